"""A sweep as a loop over stations: who measures what, what a fault costs, what a folder lacks, when it ends."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from synthetic import row_of

from tflabench.bench.devices import Fleet
from tflabench.bench.events import Began, Ended, Event, Fault, Note, RunDescription, Stations, Task
from tflabench.bench.machine import Machine
from tflabench.bench.protocol import PAPER, STANDARD, Rules
from tflabench.bench.sweep import Listener, Measured, Progress, Sweep, outdated, pending
from tflabench.implementations import registry
from tflabench.implementations.adapter import Plugin
from tflabench.problem import Problem
from tflabench.rows.schema import Row
from tflabench.selection.points import Comparison, Point

CPU = Machine("cpu", "a CPU, 2 cores", 2**36)
A, B = (replace(CPU, uuid=uuid) for uuid in "ab")


def comparison(seq_len: int = 64) -> Comparison:
    points = (Point(registry.get(name), Problem(1, 2, seq_len, 16, 16)) for name in ("reference_sig", "sdpa"))
    return Comparison(tuple(points))


def finished(task: Task, machine: Machine, closed: bool = True) -> list[Event]:
    """What comes of a task that runs to its end, or to the end of its first turns."""
    shared = {"gpu_uuid": machine.uuid, "device": machine.name, "comparison_id": str(task.number), "protocol": "paper"}
    rows = [row_of(point, closed=closed, **shared) for point in task.comparison.points]
    return [Began(machine), RunDescription("run", {"ceilings": {}}), *rows]


class Clock:
    """A clock that only goes on where a test lets it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Devices(Stations):
    """Stations that do what a script says: for each try of a task, in order, its events; None for a silent one.

    Attributes:
        given: number of a task, and its faults until then.
        wait_s: by which the clock goes on at every wait.
    """

    silent_s = 300.0

    def __init__(self, script: Callable[[Task], Iterable[Event | None]], room: int = 1, wait_s: float = 0.0) -> None:
        self.script, self.free, self.wait_s = script, room, wait_s
        self.given: list[tuple[int, int]] = []
        self.stopped: list[int] = []
        self.clock = Clock()
        self._due: list[tuple[Task, list[Event | None]]] = []

    def room(self, task: Task) -> bool:
        return len(self._due) < self.free

    def start(self, task: Task) -> None:
        self.given.append((task.number, len(task.faults)))
        self._due.append((task, list(self.script(task))))

    def wait(self, timeout_s: float) -> list[tuple[Task | None, Event]]:
        self.clock.now += self.wait_s
        events: list[tuple[Task | None, Event]] = []
        for task, due in list(self._due):
            while due and (event := due.pop(0)) is not None:
                events.append((task, event))
                if isinstance(event, Ended | Fault):
                    self._due.remove((task, due))
        return events

    def stop(self, task: Task) -> None:
        self.stopped.append(task.number)
        self._due = [(each, events) for each, events in self._due if each is not task]

    def close(self) -> None: ...


class Heard(Listener):
    """What a sweep says."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.rows: list[Row] = []
        self.seen: list[Progress] = []

    def note(self, text: str, minor: bool = False) -> None:
        if not minor:
            self.lines.append(text)

    def row(self, row: Row) -> None:
        self.rows.append(row)

    def progress(self, progress: Progress) -> None:
        self.seen.append(progress)


@pytest.fixture
def sweep(tmp_path) -> Callable[..., tuple[Heard, Measured]]:
    """Measure some comparisons into a folder: what is said but for the first line, and the results."""

    def sweep(devices: Devices, count: int = 1, stop_at: float = float("inf")) -> tuple[Heard, Measured]:
        comparisons = [comparison(64 * number) for number in range(1, count + 1)]
        fleet = Fleet(CPU, devices.free, lambda rules, sweep_id: devices)
        rules, heard = Rules(PAPER, stop_at=stop_at), Heard()
        measured = Sweep(comparisons, fleet, devices, tmp_path / "out", rules, heard, clock=devices.clock).run()
        del heard.lines[0]
        return heard, measured

    return sweep


def test_comparisons_go_to_whoever_is_free_in_their_order(sweep):
    devices = Devices(lambda task: [*finished(task, A), Ended()], room=2)
    heard, measured = sweep(devices, 3)
    assert devices.given == [(1, 0), (2, 0), (3, 0)]
    assert len({row.point for row in heard.rows}) == len(measured.rows) == 6
    assert (heard.lines, measured.left) == ([], 0)
    last = heard.seen[-1]
    assert (last.closed, last.comparisons, last.timed, last.points) == (3, 3, 6, 6)
    heard, measured = sweep(devices, 3)
    assert (heard.rows, len(measured.rows)) == ([], 6), "nothing is lacking"


def test_a_comparison_that_is_lost_is_measured_once_more_before_the_others(sweep):
    def script(task: Task) -> list[Event]:
        if task.number == 1 and not task.faults:
            return [*finished(task, A, closed=False), Fault("crashed", "its process died")]
        return [*finished(task, B), Ended()]

    devices = Devices(script)
    heard, measured = sweep(devices, 2)
    assert devices.given == [(1, 0), (1, 1), (2, 0)]
    assert heard.lines == ["Comparison 1 is tried once more, elsewhere: on a: its process died"]
    assert {(row.gpu_uuid, row.closed, row.status) for row in measured.rows} == {("b", True, "ok")}


@pytest.mark.parametrize("status", ["crashed", "oom", "timeout", "error"])
def test_lost_twice_its_points_are_rows_with_the_reason_and_the_sweep_goes_on(sweep, status):
    def script(task: Task) -> list[Event]:
        if task.number == 2:
            return [*finished(task, A), Ended()]
        return [*finished(task, B if task.faults else A, closed=False), Fault(status, f"fault {len(task.faults) + 1}")]

    heard, measured = sweep(Devices(script), 2)
    assert heard.lines[-1] == "Comparison 1 has failed: on b: fault 2"
    last = [row for row in measured.rows if row.point in {point.id for point in comparison().points}]
    assert {(row.status, row.closed, row.gpu_uuid, row.ms_median) for row in last} == {(status, True, "b", None)}
    assert {row.reason for row in last} == {"tried 2 times, on a: fault 1; on b: fault 2"}
    assert len({row.comparison_id for row in last}) == 1
    assert (heard.seen[-1].closed, heard.seen[-1].failed, heard.seen[-1].timed) == (2, 2, 2)


def test_a_task_that_says_nothing_any_more_hangs(sweep):
    def script(task: Task) -> list[Event | None]:
        return [*finished(task, B), Ended()] if task.faults else [Began(A), *[None] * 9]

    devices = Devices(script, wait_s=100.0)
    heard, measured = sweep(devices)
    assert devices.stopped == [1]
    assert heard.lines == ["Comparison 1 is tried once more, elsewhere: on a: nothing was heard of it for 300 s"]
    assert {row.gpu_uuid for row in measured.rows} == {"b"}


def test_a_sign_of_life_is_no_hang(sweep):
    devices = Devices(lambda task: [Began(A), *[None, Note()] * 20, *finished(task, A), Ended()], wait_s=200.0)
    assert len(sweep(devices)[1].rows) == 2
    assert devices.stopped == []


def test_a_task_that_ends_too_soon_has_failed(sweep):
    heard, _ = sweep(Devices(lambda task: [*finished(task, A, closed=bool(task.faults)), Ended()]))
    assert heard.lines == ["Comparison 1 is tried once more, elsewhere: on a: the task ended before its comparison did"]
    assert [row.closed for row in heard.rows] == [False, False, True, True]


def test_without_time_the_rest_is_left(sweep):
    def script(task: Task) -> list[Event]:
        devices.clock.now = 1.0
        return [*finished(task, A), Ended()]

    devices = Devices(script)
    heard, measured = sweep(devices, 3, stop_at=1.0)
    assert (len(measured.rows), measured.left, devices.given) == (2, 4, [(1, 0)])
    assert heard.lines == ["The time is up: 4 of 6 points are left; the same command measures them."]
    late = Devices(script)
    heard, measured = sweep(late, 3, stop_at=0.0)
    assert (heard.rows, measured.left, late.given) == ([], 4, [])


def test_what_is_to_be_measured_again_is_left_until_it_is(sweep, monkeypatch):
    def script(task: Task) -> list[Event]:
        events = [*finished(task, A), Ended()]
        return [e.model_copy(update={"packages": {"torch": "2.0"}}) if isinstance(e, Row) else e for e in events]

    assert sweep(Devices(script), 2)[1].left == 0
    monkeypatch.setattr(registry, "versions_used", lambda impl: {"torch": "9.0"})
    heard, measured = sweep(Devices(script), 2, stop_at=0.0)
    assert (heard.rows, measured.rows, measured.left) == ([], [], 4)
    assert heard.lines[-1].startswith("The time is up: 4 of 4 points are left")


def test_a_task_that_fails_when_the_time_is_up_is_left(sweep):
    heard, measured = sweep(Devices(lambda task: [Began(A), Fault("crashed", "it died")], wait_s=1.0), stop_at=0.5)
    assert (measured.rows, measured.left) == ([], 2)
    assert heard.lines[0] == "Comparison 1 is left for the same command: on a: it died"


def test_interrupted_it_says_what_is_safe(sweep):
    def script(task: Task) -> Iterable[Event]:
        if task.number == 2:
            raise KeyboardInterrupt
        return [*finished(task, A), Ended()]

    with pytest.raises(KeyboardInterrupt):
        sweep(Devices(script), 2)
    heard, measured = sweep(Devices(lambda task: [*finished(task, B), Ended()]), 2)
    assert {row.gpu_uuid for row in heard.rows} == {"b"}
    assert sorted(str(row.gpu_uuid) for row in measured.rows) == ["a", "a", "b", "b"]


def test_what_another_sweep_has_measured_meanwhile_is_not_measured_again(sweep):
    """A device begins once the sweep that had it has ended."""

    class Late(Devices):
        def room(self, task: Task) -> bool:
            return bool(self.begun) and super().room(task)

        def wait(self, timeout_s: float) -> list[tuple[Task | None, Event]]:
            if not self.begun:
                sweep(Devices(lambda task: [*finished(task, B), Ended()]), 1)
                self.begun = True
                return [(None, Began(A))]
            return super().wait(timeout_s)

        begun = False

    devices = Late(lambda task: [*finished(task, A), Ended()])
    _, measured = sweep(devices, 2)
    assert [number for number, _ in devices.given] == [2]
    assert sorted(str(row.gpu_uuid) for row in measured.rows) == ["a", "a", "b", "b"]


def test_points_travel_by_the_names_of_their_implementations():
    sent = comparison()
    assert pickle.loads(pickle.dumps(sent)) == sent
    assert pickle.loads(pickle.dumps(sent)).points[0].implementation is registry.get("reference_sig")


# --- What a folder lacks


def rows_of(of: Comparison, **changes: Any) -> dict[str, Row]:
    common = {"protocol": "standard", "comparison_id": "1", **changes}
    return {point.id: row_of(point, **common) for point in of.points}


def test_a_folder_lacks_what_is_not_of_one_closed_comparison():
    both = comparison()
    first = Comparison(both.points[:1])
    assert pending([both], {}, STANDARD, "cpu") == [both]
    assert pending([both], rows_of(both), STANDARD, "cpu") == []
    assert pending([both], rows_of(both), PAPER, "cpu") == [both]
    assert pending([both], rows_of(both, closed=False), STANDARD, "cpu") == [both], "interrupted"
    assert pending([both], rows_of(first), STANDARD, "cpu") == [both]
    assert pending([both], rows_of(both) | rows_of(first, comparison_id="2"), STANDARD, "cpu") == [both]
    failed = rows_of(both) | rows_of(first, status="oom", ms_median=None)
    assert pending([both], failed, STANDARD, "cpu") == [], "what failed has had its chance"


def test_what_has_changed_since_is_measured_again(monkeypatch):
    both = comparison()
    assert outdated(both.points[0], rows_of(both)[both.points[0].id]) is None, "of before this was recorded"
    known = {point.id: registry.versions_used(point.implementation) for point in both.points}
    rows = {id_: each.model_copy(update={"packages": known[id_]}) for id_, each in rows_of(both).items()}
    assert pending([both], rows, STANDARD, "cpu") == []
    older = rows[both.points[1].id].model_copy(update={"packages": {"torch": "2.0"}})
    assert pending([both], rows | {older.point: older}, STANDARD, "cpu") == [both], "whole"
    assert (outdated(both.points[1], older) or "").startswith("torch was 2.0 and is ")
    plugged = replace(both.points[0].implementation, plugin=Plugin("mine.py", "2"))
    mine = Point(plugged, both.points[0].problem)
    row = rows[mine.id].model_copy(update={"plugin_hash": "1"})
    assert outdated(mine, row) == "mine.py has changed"
    assert outdated(mine, row.model_copy(update={"plugin_hash": "2"})) is None


def test_what_was_refused_is_measured_once_it_can_run(monkeypatch):
    both = comparison()
    refused = rows_of(both) | rows_of(Comparison(both.points[:1]), status="unsupported", ms_median=None)
    assert pending([both], refused, STANDARD, "cpu") == [both]
    late = {id_: each.model_copy(update={"details": {"refused": "late"}}) for id_, each in refused.items()}
    assert pending([both], late, STANDARD, "cpu") == []
    unable = replace(both.points[0].implementation, refuses=lambda problem, device: "needs the moon")
    still = Comparison((Point(unable, both.points[0].problem), both.points[1]))
    assert pending([still], refused, STANDARD, "cpu") == []
