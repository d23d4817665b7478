"""The warm-up: its order, how much at a time, who stands when, and that nothing of it holds up a sweep."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from multiprocessing import Pipe
from typing import Any

import pytest

from tflabench.bench import warm as warming_up
from tflabench.bench.child import Child
from tflabench.bench.warm import Warmed, WarmUp
from tflabench.bench.warming import WarmUpGate, stand_when_asked, wait_at
from tflabench.bench.workers import Workers
from tflabench.implementations import registry
from tflabench.implementations.adapter import Implementation
from tflabench.problem import Problem
from tflabench.selection.points import Point

TIMEOUT_S = 60.0
OK = {"status": "ok", "reason": None, "cpu_seconds": 2.5, "restart": False}
GPU_BYTES = 80 << 30


def implementation(name: str, package: str) -> Implementation:
    build = lambda *_: pytest.fail("built")  # noqa: E731
    return Implementation(name, "mlstm", name, build, lambda *_: None, package=package, compiles=True)


@pytest.fixture(autouse=True)
def known(monkeypatch) -> None:
    monkeypatch.setattr(registry, "_plugged", [implementation(*each) for each in (("a", "x"), ("b", "x"), ("c", "y"))])


def point(name: str, **changes: Any) -> Point:
    sizes = {"batch": 4, "heads": 2, "seq_len": 512, "d_qk": 16, "d_hv": 16, **changes}
    return Point(registry.get(name), Problem(**sizes))


class Process(Child):
    """The process of a worker, as far as its parent sees it; a test lets it answer.

    Attributes:
        slot: what it was started for.
        jobs: what it was asked to warm up.
        signals: that it was sent, by name.
        obeys: whether it comes to its gate as soon as it is asked.
        ended: whether it was killed.
    """

    def __init__(self, slot: str) -> None:
        ours, self._end = Pipe()
        super().__init__(ours, 1, open(os.devnull, "rb"), lambda seconds: -signal.SIGABRT, lambda: None)  # noqa: SIM115
        self.slot, self.jobs, self.obeys, self.ended = slot, list[str](), True, False
        self.signals: list[str] = []
        self._end.send({"result": {"torch": "2.11"}})

    def send(self, message: dict[str, Any]) -> None:
        assert message["kind"] == "warm"
        self.jobs.append(f"{message['implementation']} {message['problem']['seq_len']}")

    def signal(self, number: int) -> None:
        self.signals.append(signal.Signals(number).name)
        if number == signal.SIGUSR1 and self.obeys:
            self._end.send({"stands": True})

    def answer(self, result: dict[str, Any] = OK) -> None:
        self._end.send({"result": dict(result)})

    def die(self) -> None:
        self._end.close()

    def kill(self) -> None:
        self.ended = True
        super().kill()


class Bench:
    """A warm-up with stand-in processes and a clock that only they move."""

    def __init__(self, most: int = 3, memory_bytes: int = GPU_BYTES) -> None:
        self.now = 0.0
        self.processes: list[Process] = []
        self.gate = WarmUpGate()
        workers = Workers(self._start, self._clock, self._sleep)
        self.warm_up = WarmUp(most, self.gate, workers, memory_bytes, TIMEOUT_S, self._clock, self._sleep)

    @property
    def jobs(self) -> list[list[str]]:
        """Return what each process was asked for, those that have started."""
        self.poll()
        return [process.jobs for process in self.processes]

    def poll(self) -> list[tuple[int, str]]:
        return [(ended.ticket, ended.status) for ended in self.warm_up.poll()]

    def submit(self, *points: Point) -> None:
        for each in points:
            self.warm_up.submit(each)
        assert self.poll() == []  # they have started

    def _start(self, slot: str) -> Process:
        self.processes.append(Process(slot))
        return self.processes[-1]

    def _clock(self) -> float:
        self.now += 0.001
        return self.now

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.warm_up.close()
    assert all(process.ended for process in bench.processes)


def test_points_are_warmed_up_in_their_order_side_by_side(bench):
    points = [point("a"), point("b"), point("c"), point("a", dtype="float32")]
    bench.submit(*points)
    assert bench.jobs == [["a 512"], ["b 512"], ["c 512"]]
    assert bench.warm_up.at_work == tuple(points[:3])
    bench.processes[1].answer()
    assert bench.warm_up.poll() == [Warmed(2, "ok", None, 2.5)]
    assert bench.jobs == [["a 512"], ["b 512", "a 512"], ["c 512"]], "a process of the same library goes on"


def test_what_has_much_the_same_kernels_comes_one_after_the_other(bench):
    """Other numbers of heads are other kernels in some libraries, such as fla."""
    few, many = {"heads": 8, "heads_qk": 2}, {"heads": 32, "heads_qk": 16}
    bench.submit(point("a", **few), point("a", seq_len=1024, **few), point("a", **many))
    assert bench.jobs == [["a 512"], ["a 512"]]
    bench.processes[0].answer()
    assert bench.poll() == [(1, "ok")]
    assert bench.jobs == [["a 512", "a 1024"], ["a 512"]]


def test_what_compiles_for_each_size_is_warmed_up_side_by_side_once_that_is_known(bench):
    bench.submit(*(point("a", seq_len=512 * n) for n in range(1, 5)))
    (process,) = bench.processes
    process.answer({**OK, "cpu_seconds": 60.0})
    assert bench.poll() == [(1, "ok")]
    assert bench.jobs == [["a 512", "a 1024"]], "the first had to compile"
    process.answer({**OK, "cpu_seconds": 60.0})
    assert bench.poll() == [(2, "ok")]
    assert bench.jobs == [["a 512", "a 1024", "a 1536"], ["a 2048"]]


def test_there_are_never_more_processes_than_jobs_at_a_time():
    bench = Bench(most=1)
    bench.submit(point("a"), point("c"))
    bench.processes[0].answer()
    assert bench.poll() == [(1, "ok")]
    assert [process.slot[0] for process in bench.processes] == ["x", "y"]
    assert bench.processes[0].ended


def test_all_together_take_half_of_the_memory_but_one_may_take_more():
    large = {"batch": 16, "heads": 16, "seq_len": 65536, "d_qk": 128, "d_hv": 256}
    bench = Bench(memory_bytes=20 << 30)
    bench.submit(point("a", **large), point("b"), point("c"))
    assert bench.jobs == [["a 65536"]]
    bench.processes[0].answer()
    assert bench.poll() == [(1, "ok")]
    assert bench.warm_up.at_work == (point("b"), point("c"))


def test_who_is_short_of_memory_gets_all_of_it(bench):
    points = [point("a"), point("b"), point("c")]
    bench.submit(*points)
    bench.processes[0].answer()
    assert bench.poll() == [(1, "ok")]
    assert bench.warm_up.give_way()
    assert all(process.ended for process in bench.processes), "idle ones hold memory too"
    assert not bench.warm_up.give_way(), "nothing is left to give"
    assert bench.poll() == []
    assert bench.warm_up.at_work == tuple(points[1:]), "they begin anew, in their order"


def test_workers_stand_while_the_gpu_is_wanted(bench):
    bench.submit(point("a"), point("b"), point("c"))
    bench.processes[1].obeys = False
    bench.warm_up.pause()
    assert [process.signals for process in bench.processes] == [["SIGUSR1"], ["SIGUSR1", "SIGSTOP"], ["SIGUSR1"]]
    assert not is_open(bench.gate)
    bench.warm_up.submit(point("a", d_qk=32))
    bench.processes[0].answer()
    assert bench.poll() == [(1, "ok")]
    assert len(bench.jobs[0]) == 1, "no new job begins"
    bench.warm_up.resume()
    assert is_open(bench.gate)
    assert bench.processes[1].signals[-1] == "SIGCONT"
    assert len(bench.jobs[0]) == 2


def test_who_obeyed_late_last_time_does_not_count_as_standing(bench):
    bench.submit(point("a"))
    (process,) = bench.processes
    for _ in range(2):  # each time it obeys only once it has been stopped
        process.obeys = False
        bench.warm_up.pause()
        bench.warm_up.resume()
        process.obeys = True
        process.signal(signal.SIGUSR1)
    process.obeys = False
    bench.warm_up.pause()
    assert process.signals.count("SIGSTOP") == 3


def test_between_two_turns_they_go_on_for_a_moment(bench):
    bench.submit(point("a"))
    (process,) = bench.processes
    bench.warm_up.pause()
    bench.warm_up.pause()
    assert process.signals == ["SIGUSR1"], "it stands already"
    bench.now += warming_up.BREATH_EVERY_S
    bench.warm_up.pause()
    assert process.signals == ["SIGUSR1", "SIGCONT", "SIGUSR1"]
    assert not is_open(bench.gate)


def test_no_pause_lasts_for_ever(bench):
    """Whatever a stopped worker holds that what is timed needs, it can give back before that is out of time."""
    bench.submit(point("a"))
    (process,) = bench.processes
    process.obeys = False
    bench.warm_up.pause()
    begin = bench.now
    while "SIGCONT" not in process.signals:
        assert bench.now - begin < TIMEOUT_S
        bench.now += 1
        bench.poll()
    assert process.signals[-1] == "SIGSTOP", "for a moment only"
    assert not is_open(bench.gate)


def test_pauses_do_not_count_against_the_time_of_a_job(bench):
    bench.submit(point("a"))
    bench.processes[0].answer()
    assert bench.poll() == [(1, "ok")]
    bench.submit(point("a", seq_len=1024))
    bench.warm_up.pause()
    bench.now += 0.9 * warming_up.LONGEST_PAUSE * TIMEOUT_S
    bench.warm_up.resume()
    bench.now += TIMEOUT_S - 5
    assert bench.poll() == []
    bench.now += 10
    (ended,) = bench.warm_up.poll()
    assert (ended.status, ended.reason) == ("timeout", "no answer within 60 s, while starting")
    assert bench.processes[0].ended


@pytest.mark.parametrize("paused", [False, True])
def test_a_crash_costs_its_own_point(bench, paused):
    bench.submit(point("a"), point("b"), point("a", seq_len=1024))
    if paused:
        bench.warm_up.pause()
    bench.processes[0].die()
    (ended,) = bench.warm_up.poll()
    assert (ended.ticket, ended.status, ended.reason) == (1, "crashed", "the worker died (SIGABRT) while starting")
    bench.warm_up.resume()
    bench.poll()
    bench.poll()
    assert [process.jobs for process in bench.processes] == [["a 512"], ["b 512"], ["a 1024"]]


def test_a_process_comes_to_the_gate_when_it_is_asked():
    """As a worker does it: nothing passes a gate that is shut, and none who stands there keeps others out."""
    gate = WarmUpGate()
    ours, theirs = Pipe()
    gate.shut()
    if not (child := os.fork()):
        stand_when_asked(gate.descriptor, theirs)
        theirs.send("ready")
        while theirs.recv() != "end":
            theirs.send("went on")
        os._exit(0)
    try:
        assert ours.recv() == "ready"
        for _ in range(2):
            os.kill(child, signal.SIGUSR1)
            assert ours.recv() == {"stands": True}
            ours.send("go on")
            gate.open()
            assert ours.recv() == "went on"
            gate.shut()
        os.kill(child, signal.SIGUSR1)
        assert ours.recv() == {"stands": True}
        os.kill(child, signal.SIGSTOP)
        gate.open()
        wait_at(gate.descriptor)  # a stopped process at the gate holds nothing
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        gate.close()


def is_open(gate: WarmUpGate) -> bool:
    return bool(select.select([gate.descriptor], [], [], 0)[0])
