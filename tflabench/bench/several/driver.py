"""The driver: gives tasks to an executor, hears of their rows, and tries once more elsewhere what has failed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from tflabench.bench.comparison_run import ComparisonRun, PointRun
from tflabench.bench.machine import Machine
from tflabench.bench.rows_of_run import Occasion
from tflabench.bench.scheduler import SHARED
from tflabench.bench.several.task import Began, Event, Fault, Note, Place, Task, Terms
from tflabench.bench.standing import Standing
from tflabench.bench.sweep import Described
from tflabench.rows.schema import Row
from tflabench.theory.hardware import Ceilings

TRIES = 2
WAIT_S = 0.5
# A task that runs says something every second, but for what a process, its libraries and a calibration take to start.
SILENT_S = 300.0


class ComparisonExecutor(Protocol):
    """Devices that measure comparisons, each alone on its device."""

    def possible(self, task: Task) -> bool:
        """Return whether there is a device, free or not, that may take a task."""
        ...

    def room(self, task: Task) -> bool:
        """Return whether a task would begin soon."""
        ...

    def start(self, task: Task) -> None:
        """Give a task to a device, where there is another one not to one on which it has failed."""
        ...

    def wait(self, timeout_s: float) -> list[tuple[Task, Event]]:
        """Return what has come of tasks; wait at most `timeout_s` seconds for the first of it.

        The last of each task is `Ended` or a `Fault`; after `stop` there is nothing more.
        """
        ...

    def stop(self, task: Task) -> None:
        """End a task, whatever it does."""
        ...

    def usual_place(self, task: Task) -> Place:
        """Return a device that a task is meant for."""
        ...

    def close(self) -> None:
        """End all tasks and what runs them."""
        ...


@dataclass
class Running:
    """A task that an executor has.

    Attributes:
        place: where it runs; None while it waits for a device.
        heard_at: time of `time.monotonic` when something came of it last.
        standing: what it is at.
        described: the run behind its rows.
        rows: the last one of each point.
    """

    task: Task
    place: Place | None = None
    heard_at: float = field(default_factory=time.monotonic)
    standing: Standing | None = None
    described: Described | None = None
    rows: dict[str, Row] = field(default_factory=dict[str, Row])


@dataclass(frozen=True)
class Overview:
    """The progress of a sweep over several devices. Counts are of points but for comparisons.

    Attributes:
        closed: comparisons that are over.
        running: tasks that have a device.
    """

    comparisons: int
    closed: int
    points: int
    timed: int
    refused: int
    failed: int
    running: tuple[Running, ...]


@dataclass(frozen=True)
class Listener:
    """Who hears of a sweep over several devices.

    Attributes:
        on_row: called with a row whenever it is new or has changed.
        describe: called with the name of a device, a run and what environment.json says of it.
        say: called with a line for the user.
        watch: called with where the sweep stands.
    """

    on_row: Callable[[Row], None]
    describe: Callable[[str, str, dict[str, Any]], None]
    say: Callable[[str], None]
    watch: Callable[[Overview], None] | None = None


class Driver:
    """Measures tasks in their order, as many at a time as there are devices.

    Args:
        stop_at: time of `time.monotonic` from which on no task is begun.
        silent_s: seconds without a word after which a task hangs.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        executor: ComparisonExecutor,
        terms: Terms,
        listener: Listener,
        stop_at: float = inf,
        silent_s: float = SILENT_S,
    ) -> None:
        self._waiting = deque(tasks)
        self._all = tuple(self._waiting)
        self._executor, self._terms, self._listener = executor, terms, listener
        self._stop_at, self._silent_s = stop_at, silent_s
        self._running: dict[Task, Running] = {}
        self._closed = 0
        self._rows: dict[tuple[Task, str], Row] = {}

    def run(self) -> None:
        """Measure until all tasks are over, the time is up, or no device is left that could take one."""
        while self._running or self._may_begin():
            self._start()
            for task, event in self._executor.wait(WAIT_S):
                if task in self._running:
                    self._heard(self._running[task], event)
            self._end_silent()
            self._show()

    def _may_begin(self) -> bool:
        return time.monotonic() < self._stop_at and any(map(self._executor.possible, self._waiting))

    def _start(self) -> None:
        """Give away every task that a device is free for."""
        if time.monotonic() >= self._stop_at:
            return
        for task in list(self._waiting):
            if self._executor.possible(task) and self._executor.room(task):
                self._waiting.remove(task)
                self._running[task] = Running(task)
                self._executor.start(task)

    def _heard(self, running: Running, event: Event) -> None:
        running.heard_at = time.monotonic()
        if isinstance(event, Began):
            running.place = event.place
        elif isinstance(event, Row):
            running.rows[event.point] = self._rows[running.task, event.point] = event
            self._listener.on_row(event)
        elif isinstance(event, Standing):
            running.standing = event
        elif isinstance(event, Described):
            running.described = event
            if running.place:
                self._listener.describe(running.place.device, event.run_id, event.environment)
        elif isinstance(event, Note):
            if event.text:
                self._listener.say(event.text)
        elif isinstance(event, Fault):
            self._failed(running, event)
        else:
            self._ended(running)

    def _ended(self, running: Running) -> None:
        points = {point.id for point in running.task.comparison.points}
        if points == {point for point, row in running.rows.items() if row.closed}:
            del self._running[running.task]
            self._closed += 1
        elif time.monotonic() >= self._stop_at or time.time() >= self._terms.until:
            del self._running[running.task]  # it is left for the same command
        else:
            self._failed(running, Fault("error", "the task ended before its comparison did"))

    def _end_silent(self) -> None:
        now = time.monotonic()
        for task, running in list(self._running.items()):
            if running.place and now - running.heard_at > self._silent_s:
                self._executor.stop(task)
                self._failed(running, Fault("timeout", f"nothing was heard of it for {self._silent_s:g} s"))

    def _failed(self, running: Running, fault: Fault) -> None:
        """Try a task once more, leave it where the time is up, or make its points rows with the reason."""
        task, place = running.task, fault.place or running.place
        del self._running[task]
        task.faults.append(Fault(fault.status, fault.reason, place))
        where = f"on {place}: " if place else ""
        if len(task.faults) < TRIES:
            self._waiting.appendleft(task)
            over = time.monotonic() >= self._stop_at
            then = "left for the same command" if over else "tried once more, elsewhere"
            self._listener.say(f"Comparison {task.number} is {then}: {where}{fault.reason}")
            return
        self._listener.say(f"Comparison {task.number} has failed: {where}{fault.reason}")
        self._closed += 1
        for row in self._rows_of_failed(running, place or self._executor.usual_place(task)):
            self._rows[task, row.point] = row
            self._listener.on_row(row)

    def _rows_of_failed(self, running: Running, place: Place) -> list[Row]:
        terms, task, run = self._terms, running.task, running.described
        known = run.environment.get("ceilings", {}) if run else {}
        occasion = Occasion(
            run_id=run.run_id if run else terms.sweep_id,
            machine=Machine(terms.kind, place.device, 0, run.environment.get("driver") if run else None),
            protocol=terms.protocol,
            ceilings={dtype: Ceilings(**found) for dtype, found in known.items()},
            node=place.node,
            gpu_uuid=place.gpu_uuid,
        )
        reasons = "; ".join(f"{f'on {fault.place}: ' if fault.place else ''}{fault.reason}" for fault in task.faults)
        runs = [PointRun(point, SHARED, alone=False) for point in task.comparison.points]
        begun = ComparisonRun(task.comparison, runs, terms.protocol, closed=True)
        for each in runs:
            refused = each.point.implementation.refuses(each.point.problem, terms.kind)
            if refused:
                each.fail("unsupported", refused)
            else:
                each.fail(task.faults[-1].status, f"tried {len(task.faults)} times, {reasons}")
        return [occasion.row(begun, each) for each in runs]

    def _show(self) -> None:
        if self._listener.watch is None:
            return
        rows = self._rows.values()
        over = [row for row in rows if row.ms_median is None]
        refused = sum(row.status == "unsupported" for row in over)
        self._listener.watch(
            Overview(
                comparisons=len(self._all),
                closed=self._closed,
                points=sum(len(task.comparison.points) for task in self._all),
                timed=len(rows) - len(over),
                refused=refused,
                failed=len(over) - refused,
                running=tuple(running for running in self._running.values() if running.place),
            )
        )
