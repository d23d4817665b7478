"""A station: it waits for its device, looks ahead, and tells what it is at."""

from __future__ import annotations

import itertools
from typing import Any
from unittest.mock import Mock

import pytest
from stand_in import IMPLEMENTATIONS, start_quick

from tflabench.bench.ceilings import ceilings_of
from tflabench.bench.events import Activity, Began, Ended, Note, RunDescription, Task
from tflabench.bench.machine import Machine
from tflabench.bench.protocol import PAPER, STANDARD, Rules
from tflabench.bench.station import DeviceLock, Station
from tflabench.implementations import registry
from tflabench.problem import Problem
from tflabench.rows.schema import Row
from tflabench.selection.points import Comparison, Point

CPU = Machine("cpu", "a CPU", 2**36)


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "_plugged", list(IMPLEMENTATIONS))
    monkeypatch.setattr("stand_in.TURN_S", 0.0)
    monkeypatch.setattr(Station, "_open", start_quick)
    for name in ("XDG_CACHE_HOME", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def task(number: int = 1, names: int = 2) -> Task:
    points = (Point(impl, Problem(1, 2, 16 * number, 16, 16)) for impl in IMPLEMENTATIONS[:names])
    return Task(number, Comparison(tuple(points)))


def station(rules: Rules = Rules(PAPER), **options: Any) -> Station:  # noqa: B008
    ticks = itertools.count(step=0.1)
    return Station(CPU, rules, clock=lambda: next(ticks), **options)


def test_a_task_has_a_device_a_run_rows_and_an_end():
    with station() as here:
        events = list(here.measure(task()))
    kinds = [type(event) for event in events if not isinstance(event, Activity)]
    assert kinds[:3] == [Began, Began, RunDescription], "ready; of the task; its run"
    assert kinds[-1] is Ended
    rows = [event for event in events if isinstance(event, Row)]
    assert [row.closed for row in rows][-2:] == [True, True]
    assert {row.run_id for row in rows} == {e.run_id for e in events if isinstance(e, RunDescription)}


def test_ceilings_are_measured_once_for_a_device_while_nothing_warms_up(monkeypatch):
    order: list[str] = []

    def noted(*arguments: Any) -> Any:
        order.append("ceilings")
        return ceilings_of(*arguments)

    monkeypatch.setattr("tflabench.bench.station.ceilings_of", noted)
    with station() as here:
        here.wait(0)
        here._warm_up = Mock(pause=lambda: order.append("pause"))
        for number in (1, 2):
            rows = [event for event in here.measure(task(number)) if isinstance(event, Row)]
            assert {str(row.ceilings).partition(":")[0] for row in rows} == {"measured"}
    assert order == ["pause", "ceilings"]


def test_it_takes_all_tasks_once_it_is_ready_and_tells_what_it_is_at():
    with station(Rules(STANDARD)) as here:
        tasks = [task(number) for number in (1, 2)]
        assert not here.room(tasks[0])
        assert [type(event) for _, event in here.wait(0)] == [Began]
        for each in tasks:
            assert here.room(each)
            here.start(each)
        seen: list[tuple[Task | None, Any]] = []
        while sum(isinstance(event, Ended) for _, event in seen) < 2:
            seen += here.wait(0)
    assert [each for each, event in seen if isinstance(event, Ended)] == tasks
    works = {
        (work.doing, work.comparison) for _, event in seen if isinstance(event, Activity) for work in event.working
    }
    assert works >= {("timing", 1), ("timing", 2)}


def test_it_waits_for_the_sweep_that_has_its_device():
    other, slept = DeviceLock(CPU.name), list[float]()
    assert other.holder() is None

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            other.release()

    with station(sleep=sleep) as here:
        events = list(here.measure(task()))
        notes = [event.text for event in events if isinstance(event, Note)]
        assert notes[0].endswith("measures on a CPU: waiting for its end, Ctrl-C stops.")
        assert (notes[1:], len(slept)) == (["", ""], 3)
        assert isinstance(events[-1], Ended)
        assert other.holder() is not None, "it has the device now"
    assert other.holder() is None
    other.release()


def test_it_waits_for_another_sweep_no_longer_than_there_is_time():
    other = DeviceLock(CPU.name)
    assert other.holder() is None
    with station(Rules(stop_at=1.0), sleep=lambda seconds: None) as here:
        assert isinstance(list(here.measure(task()))[-1], Ended)
    other.release()


def test_once_the_time_is_up_its_tasks_end():
    with station(Rules(stop_at=0.0)) as here:
        events = list(here.measure(task()))
    assert [type(event) for event in events if not isinstance(event, Activity)] == [Began, Began, RunDescription, Ended]
