"""A sweep: what a results folder lacks is handed to stations, comparison by comparison, and their rows are written."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

from tflabench.bench.comparison_run import LATE, ComparisonRun, PointRun
from tflabench.bench.devices import Devices, Fleet
from tflabench.bench.estimate import Estimate, Target, estimate
from tflabench.bench.events import Activity, Began, Event, Fault, Note, RunDescription, Stations, Task
from tflabench.bench.machine import Machine, command
from tflabench.bench.protocol import Protocol, Rules
from tflabench.bench.request import Request
from tflabench.bench.rows_of_run import Occasion
from tflabench.bench.workers import SHARED
from tflabench.implementations import registry
from tflabench.problem import DeviceKind, InputError
from tflabench.rows.journal import Store, is_packed
from tflabench.rows.load import read_results, results_folders
from tflabench.rows.schema import Row
from tflabench.selection.points import Comparison, Point
from tflabench.theory.hardware import Ceilings, slug

TRIES = 2
WAIT_S = 0.5


@dataclass(frozen=True)
class Progress:
    """Tell how far a sweep is. Counts are of points but for comparisons.

    Attributes:
        closed: comparisons that are over.
        activities: what each device is at that has begun something.
    """

    comparisons: int
    closed: int
    points: int
    timed: int
    refused: int
    failed: int
    activities: tuple[tuple[Machine, Activity], ...] = ()


class Listener:
    """Hears of a sweep, and does nothing; subclasses show it."""

    def note(self, text: str, minor: bool = False) -> None:
        """Take a line for the user; a `minor` one is there for who looks for it."""

    def begin(self, tasks: Sequence[Task], seconds: Mapping[str, float], fleet: Fleet, protocol: Protocol) -> None:
        """Take what is going to be measured, and about how many seconds each point takes, by its id."""

    def row(self, row: Row) -> None:
        """Take a row that is new or has changed, and is on disk."""

    def progress(self, progress: Progress) -> None:
        """Take how far the sweep is, several times a second."""

    def end(self) -> None:
        """Take note that nothing more is measured."""


@dataclass
class Measured:
    """The results of a sweep: rows of its points, files, and how many points the time was too short for.

    Attributes:
        folder: the results folder that has them.
        before: the rows that points had in it, by point.
        unsaved: where rows are that the folder had no room for, and how they come back.
    """

    rows: list[Row] = field(default_factory=list)
    files: list[Path] = field(default_factory=list[Path])
    left: int = 0
    folder: Path = Path()
    before: Mapping[str, Row] = field(default_factory=dict[str, Row])
    unsaved: str | None = None


def measure(
    request: Request, devices: Devices, rules: Rules, out: Path | None, listener: Listener, resume: bool = True
) -> Measured:
    """Measure what the results folders lack: all that `tflabench sweep` does but to show it.

    Args:
        rules: without a protocol; the request has it.
        out: the folder that the user gave; None for results/<device>/<preset>.
        resume: False to measure anew what is there.

    Raises:
        InputError: there are no such devices, nothing can run there, or the folder has rows of older kernels.
        KeyboardInterrupt: what was measured is safe.
    """
    fleet = devices.fleet()
    here = fleet.machine
    selection = request.select(here.kind)
    require_runnable(selection.points, here.kind)
    title = selection.preset.title
    if devices == Devices(device="auto") and here.kind == "cpu":
        title = f"No NVIDIA GPU here: running preset {selection.preset.name} on the CPU ({here.name}).\n{title}"
    plugins = [str(Path(name).resolve()) if name.endswith(".py") else name for name in rules.plugins]
    rules = replace(rules, protocol=selection.protocol, plugins=plugins)
    folder = out or Path("results") / here.slug / selection.preset.name
    if resume:
        folder = folder_for(folder, here.name, out is not None, listener.note)
    with fleet.make(rules, uuid4().hex[:12]) as stations:
        return Sweep(selection.comparisons, fleet, stations, folder, rules, listener, title, resume).run()


def pending(
    comparisons: Sequence[Comparison], rows: Mapping[str, Row], protocol: Protocol, device: str
) -> list[Comparison]:
    """Return the comparisons that a results folder lacks, in their order.

    Args:
        rows: those of the folder, by point.
        device: "cuda" or "cpu".

    One is there if the last rows of all its points are of one closed comparison under the same protocol, and no point
    that was refused then can run now. Nothing that decides a number has changed since. Points that failed have had
    their chance.
    """

    def done(comparison: Comparison) -> bool:
        stored = [rows.get(point.id) for point in comparison.points]
        if len({row.comparison_id if row and row.closed else None for row in stored} - {None}) != 1 or None in stored:
            return False
        pairs = zip(comparison.points, stored, strict=True)
        return all(row and row.closed and _holds(point, row, protocol, device) for point, row in pairs)

    return [comparison for comparison in comparisons if not done(comparison)]


def _holds(point: Point, row: Row, protocol: Protocol, device: str) -> bool:
    """Return whether a row answers what is asked now: under the same rules, and refused only if it still is."""
    if outdated(point, row):
        return False
    if row.status == "unsupported" and row.details.get("refused") != LATE:
        return point.implementation.refuses(point.problem, device) is not None
    if row.status != "ok":
        return row.protocol == protocol.name or row.status == "unsupported"
    taken = {"cold", *row.details.get("times", ())}
    return (row.protocol, row.locked_mhz) == (protocol.name, protocol.locked_mhz) and taken >= set(protocol.times)


def outdated(point: Point, row: Row) -> str | None:
    """Return what has changed since a row of a point was measured, in words; None where nothing has."""
    impl = point.implementation
    if impl.plugin and impl.plugin.hash != row.plugin_hash:
        return f"{impl.plugin.name} has changed"
    now = registry.versions_used(impl)
    changed = {name: version for name, version in (row.packages or {}).items() if now.get(name) != version}
    return ", ".join(f"{name} was {was} and is {now.get(name, 'gone')}" for name, was in changed.items()) or None


def refusals(points: Iterable[Point], device: DeviceKind) -> dict[str, str]:
    """Return why implementations cannot run on a device, by name, with the reason of the first point of each."""
    reasons: dict[str, str] = {}
    for point in points:
        if reason := point.implementation.refuses(point.problem, device):
            reasons.setdefault(point.implementation.name, reason)
    return reasons


def require_runnable(points: Sequence[Point], device: DeviceKind) -> None:
    """Refuse a selection of which nothing can run: that is a mistake, not data.

    Raises:
        InputError: every point is refused; with the first reason.
    """
    if any(point.implementation.refuses(point.problem, device) is None for point in points):
        return
    name, reason = next(iter(refusals(points, device).items()))
    raise InputError(f"none of the {len(points)} points can run on {device}: {name}: {reason}")


def warn_too_big(estimates: Mapping[str, Estimate], memory_bytes: int) -> None:
    """Warn of points that need more memory than there is."""
    too_big = [point for point, needed in estimates.items() if needed.bytes > memory_bytes]
    if too_big:
        largest = max(too_big, key=lambda point: estimates[point].bytes)
        warnings.warn(
            f"{len(too_big)} of {len(estimates)} points will not fit in memory and end as oom: {largest} needs "
            f"at least {estimates[largest].bytes / 2**30:.1f} GiB, and there are {memory_bytes / 2**30:.1f}",
            stacklevel=2,
        )


def folder_for(folder: Path, device: str, given: bool, note: Callable[[str], None]) -> Path:
    """Return the results folder to measure into: one whose rows are all of today's kernels.

    The usual folder of a device and preset is left alone also where it is packed, and so finished, or has rows of
    another device.

    Args:
        device: name of what measures.
        given: whether the user named the folder.
        note: takes a line for the user where it is another one.

    Raises:
        InputError: it has rows of older kernels, and the user named it.
    """
    if folder not in results_folders(folder):
        return folder
    rows = read_results(folder).rows
    older = {row.implementation for row in rows if not registry.is_current(row.implementation, row.kernel_version)}
    if given and older:
        raise InputError(
            f"{folder} holds rows of older versions of {', '.join(sorted(older))}: give another --out, for rows of two "
            "versions cannot be divided by each other"
        )
    finished = is_packed(folder) or any(slug(row.device) != slug(device) for row in rows)
    if given or not (older or finished):
        return folder
    beside = folder.with_name(f"{folder.name}-kernels-{registry.kernel_versions()}")
    holds = f"older versions of {', '.join(sorted(older))}" if older else "a finished sweep"
    note(f"{folder} holds rows of {holds}: this sweep goes into {beside}.")
    return beside


@dataclass
class _Running:
    """A task that a station has.

    Attributes:
        machine: where it runs; None while it waits for a device.
        heard_at: when something came of it last.
        described: the run behind its rows.
        rows: the last one of each point.
    """

    task: Task
    heard_at: float
    machine: Machine | None = None
    described: RunDescription | None = None
    rows: dict[str, Row] = field(default_factory=dict[str, Row])


class Sweep:
    """Measures comparisons on devices into a results folder.

    Args:
        title: what the user is told first.
        resume: False to measure anew what is there.
        clock: tells the time as `rules.stop_at` has it.
    """

    def __init__(
        self,
        comparisons: Sequence[Comparison],
        fleet: Fleet,
        stations: Stations,
        folder: Path,
        rules: Rules,
        listener: Listener,
        title: str = "",
        resume: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._comparisons, self._fleet, self._stations = comparisons, fleet, stations
        self._folder, self._rules, self._listener = folder, rules, listener
        self._title, self._resume, self._clock = title, resume, clock
        self._before: dict[str, Row] = {}
        self._tasks: list[Task] = []
        self._waiting: deque[Task] = deque()
        self._running: dict[Task, _Running] = {}
        self._closed = 0
        self._rows: dict[tuple[Task, str], Row] = {}  # by task and point
        self._activities: dict[Machine, Activity] = {}
        self._ready: set[Machine] = set()

    def run(self) -> Measured:
        """Measure what the folder lacks.

        Raises:
            KeyboardInterrupt: what was measured is safe.
        """
        self._open_store()
        self._before = dict(self._store.rows)
        self._tasks = self._lacking()
        seconds = self._expected()
        self._announce()
        interrupted = False
        try:
            if self._tasks and not self._time_is_up():
                self._listener.begin(self._tasks, seconds, self._fleet, self._rules.protocol)
                try:
                    self._measure()
                finally:
                    self._listener.end()
        except KeyboardInterrupt:
            interrupted = True
            self._stations.close()
            self._store.save_unwritten()
            self._open_store()  # again: the last row may have reached the disk and not yet the memory
        return self._results(interrupted)

    # --- Before and after

    def _open_store(self) -> None:
        self._store = Store(self._folder, self._fleet.machine.name)

    @property
    def _points(self) -> list[Point]:
        return [point for comparison in self._comparisons for point in comparison.points]

    def _lacking(self) -> list[Task]:
        """Return the comparisons that the folder lacks."""
        lacking = self._still_lacking([Task(0, comparison) for comparison in self._comparisons])
        for number, task in enumerate(lacking, 1):
            task.number = number
        return lacking

    def _still_lacking(self, tasks: Iterable[Task]) -> list[Task]:
        """Return the tasks whose comparison the folder lacks; all where that does not matter."""
        if not self._resume:
            return list(tasks)
        rest = pending(self._comparisons, self._store.rows, self._rules.protocol, self._fleet.machine.kind)
        return [task for task in tasks if task.comparison in rest]

    def _expected(self) -> dict[str, float]:
        """Return about how many seconds a point takes, by its id; warn of memory."""
        device = self._fleet.machine
        target, protocol = Target.of_machine(device), self._rules.protocol
        estimates = {p.id: estimate(p, target, protocol) for task in self._tasks for p in task.comparison.points}
        warn_too_big(estimates, device.memory_bytes)
        return {point: 0.1 + needed.seconds for point, needed in estimates.items()}

    def _announce(self) -> None:
        due = [point for task in self._tasks for point in task.comparison.points]
        on = f"on {self._fleet.count} x {self._fleet.machine.name}, " if self._fleet.count > 1 else ""
        counts = f"{len(due)} of {len(self._points)} points to measure"
        comparisons = f"{len(self._tasks)} comparison{'s' * (len(self._tasks) != 1)}"
        line = f"{self._title}\n{counts}, in {comparisons}, {on}into {self._folder}"
        there = {point.id for point in self._points} - {point.id for point in due}
        times = sorted(row.started_at for id_, row in self._before.items() if id_ in there)
        if times and not due:
            first, last = (time[:16].replace("T", " ") for time in (times[0], times[-1]))
            line += f": its rows are from {first}{f' to {last}' * (first != last)} UTC"
        self._listener.note(line)
        causes: dict[str, dict[str, None]] = {}
        for point in due if self._resume else ():
            if (row := self._before.get(point.id)) and (cause := outdated(point, row)):
                causes.setdefault(cause, {})[point.implementation.name] = None
        for cause, names in causes.items():
            self._listener.note(f"{cause}: measuring {', '.join(names)} again, and what takes turns with it")
        late = sum(row.status == "timeout" for id_, row in self._store.rows.items() if id_ in there)
        if late:
            self._listener.note(
                f"{late} of the others ended at a time limit: --no-resume measures them, and all else, anew."
            )
        for name, reason in refusals(due, self._fleet.machine.kind).items():
            self._listener.note(f"  cannot run here: {name}: {reason}", minor=True)

    def _results(self, interrupted: bool) -> Measured:
        ids = list(dict.fromkeys(point.id for point in self._points))
        due = {point.id for task in self._tasks for point in task.comparison.points}
        left = due - {row.point for row in self._rows.values() if row.closed}
        rows = [row for id_ in ids if (row := self._store.rows.get(id_)) and not (row.closed and id_ in left)]
        files = self._store.export() if rows else []
        if interrupted:
            again = "the same command" if self._resume else "the same command without --no-resume"
            line = f"Interrupted: {len(ids) - len(left)} of {len(ids)} points are safe; {again} goes on."
            kept = sum(not row.closed and row.ms_median is not None for row in rows)
            line += f" Provisional rows that are kept: {kept}." if kept else ""
            self._listener.note(line)
            raise KeyboardInterrupt
        if left:
            counts = f"{len(left)} of {len(ids)} points"
            self._listener.note(f"The time is up: {counts} are left; the same command measures them.")
        return Measured(rows, files, len(left), self._folder, self._before, self._store.unsaved)

    # --- While it runs

    def _time_is_up(self) -> bool:
        return self._clock() >= self._rules.stop_at

    def _measure(self) -> None:
        """Go on until all tasks are over, or the time is up."""
        self._waiting = deque(self._tasks)
        while self._running or (self._waiting and not self._time_is_up()):
            self._start()
            for task, event in self._stations.wait(WAIT_S):
                self._take(task, event)
            self._end_silent()
            self._listener.progress(self._progress())

    def _start(self) -> None:
        """Hand over every task that there is room for."""
        if self._time_is_up():
            return
        for task in list(self._waiting):
            if self._stations.room(task):
                self._waiting.remove(task)
                self._running[task] = _Running(task, self._clock())
                self._stations.start(task)

    def _take(self, task: Task | None, event: Event) -> None:
        running = self._running.get(task) if task else None
        if task and running is None:
            return  # it was stopped
        if running:
            running.heard_at = self._clock()
        if isinstance(event, Began):
            self._begin_at(event.machine, running)
        elif isinstance(event, RunDescription) and running:
            running.described = event
            self._store.describe_run(event.run_id, {**event.environment, "arguments": command()})
        elif isinstance(event, Activity):
            self._activities |= {(running.machine if running else None) or next(iter(self._ready)): event}
        elif isinstance(event, Note):
            if event.text:
                self._listener.note(event.text)
        elif running is None:
            raise AssertionError(f"{event} is of no task")
        elif isinstance(event, Row):
            running.rows[event.point] = event
            self._keep(running.task, event)
        elif isinstance(event, Fault):
            self._fail(running, event)
        else:
            self._end(running)

    def _begin_at(self, machine: Machine, running: _Running | None) -> None:
        if running:
            running.machine = machine
        if machine not in self._ready:  # the sweep that was waited for may have added rows
            self._ready.add(machine)
            self._open_store()
            lacking = self._still_lacking(self._waiting)
            self._tasks = [task for task in self._tasks if task in lacking or task not in self._waiting]
            self._waiting = deque(lacking)

    def _keep(self, task: Task, row: Row) -> None:
        self._rows[task, row.point] = row
        self._store.append(row)
        self._listener.row(row)

    def _end(self, running: _Running) -> None:
        points = {point.id for point in running.task.comparison.points}
        if points == {point for point, row in running.rows.items() if row.closed}:
            del self._running[running.task]
            self._closed += 1
        elif self._time_is_up():
            del self._running[running.task]  # it is left for the same command
        else:
            self._fail(running, Fault("error", "the task ended before its comparison did"))
        if running.machine and all(running.machine != other.machine for other in self._running.values()):
            self._activities.pop(running.machine, None)

    def _end_silent(self) -> None:
        limit = self._stations.silent_s
        for running in list(self._running.values()):
            if running.machine and self._clock() - running.heard_at > limit:
                self._stations.stop(running.task)
                self._fail(running, Fault("timeout", f"nothing was heard of it for {limit:g} s"))

    def _fail(self, running: _Running, fault: Fault) -> None:
        """Try a task once more, leave it where the time is up, or make its points rows with the reason."""
        task, machine = running.task, running.machine or self._fleet.machine
        fault = replace(fault, machine=machine)
        del self._running[task]
        task.faults.append(fault)
        if len(task.faults) < TRIES:
            self._waiting.appendleft(task)
            then = "left for the same command" if self._time_is_up() else "tried once more, elsewhere"
            self._listener.note(f"Comparison {task.number} is {then}: {fault}")
            return
        self._listener.note(f"Comparison {task.number} has failed: {fault}")
        self._closed += 1
        for row in self._rows_of_failed(running, machine):
            self._keep(task, row)

    def _rows_of_failed(self, running: _Running, machine: Machine) -> list[Row]:
        rules, task = self._rules, running.task
        environment = running.described.environment if running.described else {}
        occasion = Occasion(
            run_id=running.described.run_id if running.described else "",
            machine=machine,
            protocol=rules.protocol,
            ceilings={dtype: Ceilings(**ceilings) for dtype, ceilings in environment.get("ceilings", {}).items()},
        )
        reasons = "; ".join(map(str, task.faults))
        runs = [PointRun(point, SHARED, alone=False) for point in task.comparison.points]
        begun = ComparisonRun(task, runs, rules.protocol, closed=True)
        for run in runs:
            refused = run.point.implementation.refuses(run.point.problem, self._fleet.machine.kind)
            status, reason = task.faults[-1].status, f"tried {len(task.faults)} times, {reasons}"
            run.fail(*(("unsupported", refused) if refused else (status, reason)))
        return [occasion.row(begun, run) for run in runs]

    def _progress(self) -> Progress:
        rows = self._rows.values()
        over = [row for row in rows if row.ms_median is None]
        refused = sum(row.status == "unsupported" for row in over)
        return Progress(
            comparisons=len(self._tasks),
            closed=self._closed,
            points=sum(len(task.comparison.points) for task in self._tasks),
            timed=len(rows) - len(over),
            refused=refused,
            failed=len(over) - refused,
            activities=tuple(self._activities.items()),
        )
