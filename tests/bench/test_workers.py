"""The worker process: whatever an implementation does to it costs one result."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
import weakref
from dataclasses import asdict
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_workers import fork_worker
from repository import SUPPORT

from tflabench.bench.answers import changed
from tflabench.bench.child import Child
from tflabench.bench.protocol import SHORT
from tflabench.bench.worker import Worker
from tflabench.bench.workers import PAUSE_S, Workers, one_worker
from tflabench.implementations import registry
from tflabench.implementations.adapter import Case, Implementation
from tflabench.problem import InputError, Problem

PLUGIN = str(SUPPORT / "faulty.py")


def worker_pids() -> set[int]:
    """Workers of this process that are alive."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid() and b"tflabench.bench.worker" in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
    return found


@pytest.fixture(scope="module")
def worker():
    with contextlib.closing(Workers(lambda slot: fork_worker("cpu", [PLUGIN], memory_limit=1 << 30))) as worker:
        yield worker


def test_where_the_system_tells_no_size_there_is_no_limit_of_memory(monkeypatch):
    """As on a Mac."""
    monkeypatch.setattr("tflabench.bench.worker.STATM", Path("/nowhere"))
    with contextlib.closing(Workers(lambda slot: fork_worker("cpu", [PLUGIN], memory_limit=1))) as unlimited:
        assert measure(unlimited, "fine")["status"] == "ok"


def job(kind: str, name: str, **arguments: Any) -> dict[str, Any]:
    problem = Problem(2, 2, 64, 8, 8, dtype="float32", pass_="fwbw")
    return {"kind": kind, "implementation": name, "problem": asdict(problem), **arguments}


def measure(worker: Workers, name: str, timeout_s: float = 60.0) -> dict[str, Any]:
    """What a preparation says and, where it has results, one turn."""
    result = worker.ask(job("prepare", name, verify_s=0.15), timeout_s)
    if "digest" not in result:
        return result
    turn = worker.ask(job("turn", name, protocol=asdict(SHORT)), timeout_s)
    assert turn["status"] == "ok"
    assert changed(result["digest"], turn["digest"], result["details"]["allowed"]) is None
    return turn | result


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("fine", "ok", None),
        ("aborts", "crashed", "SIGABRT) while compiling and running for the first time: LLVM ERROR: no registers left"),
        ("breaks_device", "error", "IndexError"),
        ("raises", "error", "ValueError: this size is not for me"),
        ("returns_nan", "wrong", "forward is off by nan"),
        ("raises_no_letter", "error", "OSError: no file ?"),
        ("signals", "crashed", "(signal 40) while"),
        ("bad_gradient", "wrong", "dv is off by 0.1"),
        ("hoards", "oom", "can't allocate memory"),
        ("refuses_late", "unsupported", "needs a full moon"),
        ("chatters", "ok", None),
    ],
)
def test_every_end_is_a_result(worker, name, status, reason):
    result = measure(worker, name)
    assert result["status"] == status, result
    assert (reason or "") in (result.get("reason") or "")
    assert ("turn" in result) == (status in ("ok", "wrong"))


def test_a_hang_ends_with_the_timeout_and_the_next_job_runs(worker):
    measure(worker, "fine")  # imports done: the time left is the job's
    result = measure(worker, "hangs", timeout_s=2.0)
    assert result["status"] == "timeout"
    assert "within 2 s, while compiling and running for the first time" in result["reason"]
    assert measure(worker, "fine")["status"] == "ok"


@pytest.mark.gpu
def test_a_broken_cuda_context_costs_one_result():
    with one_worker("cuda", [PLUGIN]) as worker:
        assert measure(worker, "fine")["turn"]["timer"] == "cuda_events"
        broken = measure(worker, "breaks_device")
        assert broken["status"] == "error"
        assert "device-side assert" in broken["reason"]
        assert measure(worker, "aborts")["status"] == "crashed"
        assert measure(worker, "hangs", timeout_s=5.0)["status"] == "timeout"
        assert measure(worker, "fine")["status"] == "ok"


def test_a_result_has_everything_that_is_measured(worker):
    result = measure(worker, "fine")
    assert all(0 < ms < 1000 for ms in result["turn"]["samples"])
    assert len(result["turn"]["samples"]) >= SHORT.min_samples
    assert result["turn"]["warmup"] >= SHORT.warmup_iterations
    assert result["seconds"] > 0
    assert result["compile_s"] >= 0
    assert result["check_s"] > 0
    assert result["tune_s"] == 0
    assert not result["columns"]
    assert result["peak_bytes"] >= 2 * 2 * 64 * 8 * 4
    assert result["verified_steps"] == 64
    assert set(result["details"]["errors"]) == {"forward", "dv"}
    assert result["package_version"]


def test_what_a_point_leaves_in_cycles_is_gone_after_it(monkeypatch):
    """And what libraries keep is not looked through again for every point."""
    left = []

    def build(problem: Problem, device: torch.device) -> Case:
        def forward() -> torch.Tensor:
            cycle: dict[str, Any] = {"output": torch.zeros(1, 1, 8, 8)}
            cycle["itself"] = cycle
            left.append(weakref.ref(cycle["output"]))
            return cycle["output"].clone()

        inputs = {"v": torch.zeros(1, 1, 8, 8)}
        return Case(inputs, forward, lambda inputs: 0 * inputs["v"])

    impl = Implementation("cyclic", "mlstm", "cyclic", build, lambda problem, device: None)
    monkeypatch.setattr(registry, "_plugged", [impl])
    answers = []
    worker = Worker("cpu", answers.append)
    worker.start([], None)
    problem = asdict(Problem(1, 1, 8, 8, 8, dtype="float32"))
    turn = {"kind": "turn", "implementation": "cyclic", "problem": problem, "protocol": asdict(SHORT)}
    frozen: list[list[torch.Tensor | None]] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append([ref() for ref in left]))
    worker.do(turn)
    assert answers[-1]["result"]["status"] == "ok"
    (kept,) = frozen
    assert len(kept) > 10
    assert set(kept) == {None}


def test_results_that_are_no_numbers_after_the_check_are_wrong(worker):
    result = worker.ask(job("prepare", "returns_nan_later", verify_s=0.15), 60.0)
    reason = "not repeatable: forward has NaN or infinities in a later call"
    assert (result["status"], result["reason"]) == ("wrong", reason)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_when_its_block_ends_no_process_is_left():
    before = worker_pids()
    with one_worker("cpu", [PLUGIN]) as worker:
        assert type(worker.facts()["torch"]) is str  # not torch's own class, which would import torch here
        assert measure(worker, "fine")["status"] == "ok"
        assert len(worker_pids() - before) == 1
    assert worker_pids() == before


def test_a_worker_that_cannot_start_says_why():
    with one_worker("cpu", ["no_such_module"]) as worker, pytest.raises(InputError, match="no_such_module"):
        worker.facts()


def test_without_torch_says_what_to_install(monkeypatch):
    monkeypatch.setattr("tflabench.bench.workers.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"torch, which is not installed: pip install 'tflabench\[gpu\]'"):
        one_worker("cpu").__enter__()


def test_a_process_may_be_paused_until_it_has_made_its_first_call():
    ours, theirs = Pipe()
    with tempfile.TemporaryFile() as log, contextlib.closing(theirs):
        workers = Workers(lambda slot: Child(ours, 0, log, lambda seconds: 0, lambda: None))
        workers.send("one", {"kind": "prepare"}, timeout_s=60.0)
        assert not workers.pausable("one")  # its id is not known

        def pausable(**message: Any) -> bool:
            theirs.send(message)
            assert workers.wait(0.0) == []
            return workers.pausable("one")

        assert pausable(stage="starting", pid=2**22 + 1)
        assert pausable(result={"torch": "2.13"})
        assert pausable(stage="building")
        assert pausable(stage="compiling and running for the first time")
        assert not pausable(stage="verifying")
        theirs.send({"result": {"status": "ok", "restart": False}})
        assert workers.wait(0.0) == [("one", {"status": "ok"})]
        assert not workers.pausable("one")
        workers.send("one", {"kind": "prepare"}, timeout_s=60.0)
        assert workers.pausable("one"), "whatever it did last"


def test_a_long_pause_in_several_turns_does_not_count_against_the_time_of_a_job():
    ours, theirs = Pipe()
    now, slept = 0.0, []
    with tempfile.TemporaryFile() as log, contextlib.closing(theirs):
        workers = Workers(lambda slot: Child(ours, 0, log, lambda seconds: 0, lambda: None), lambda: now, slept.append)
        workers.send("one", {"kind": "prepare"}, timeout_s=60.0)
        theirs.send({"result": {"torch": "2.13"}})
        assert workers.wait(0.0) == []
        for now in (300.0, 350.0, 400.0):  # noqa: B007 - the clock of the workers
            workers.pause(["one"])
        assert slept == [PAUSE_S], "what is stopped already has nothing left on the GPU"
        now = 450.0
        workers.resume()
        now = 500.0
        assert workers.wait(0.0) == []
        now = 511.0
        assert [result["status"] for _, result in workers.wait(0.0)] == ["timeout"]


def test_a_process_that_answers_just_before_it_is_paused_has_its_next_job_in_time():
    ours, theirs = Pipe()
    now = 0.0
    with tempfile.TemporaryFile() as log, contextlib.closing(theirs):
        workers = Workers(lambda slot: Child(ours, 0, log, lambda seconds: 0, lambda: None), lambda: now)
        theirs.send({"result": {"torch": "2.13"}})
        assert workers.facts("one") == {"torch": "2.13"}
        workers.send("one", {"kind": "prepare"}, timeout_s=60.0)
        theirs.send({"result": {"status": "ok", "restart": False}})
        workers.pause(["one"])
        assert workers.wait(0.0) == [("one", {"status": "ok"})]
        workers.send("one", {"kind": "turn"}, timeout_s=60.0)
        now = 61.0
        ((_, result),) = workers.wait(0.0)
        assert result["reason"].startswith("no answer within 60 s"), "its time counts: it does not stand still"
