"""A sweep into a results folder: which comparisons it still lacks, and everything that measuring them takes."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tflabench.bench.ceilings import ceilings_of, measured_instead
from tflabench.bench.comparison_run import LATE, ComparisonRun, PointRun
from tflabench.bench.executor import require_torch
from tflabench.bench.machine import Machine, environment, node_name
from tflabench.bench.process import WorkerProcess, worker_command
from tflabench.bench.protocol import Protocol
from tflabench.bench.rows_of_run import Occasion
from tflabench.bench.scheduler import SHARED, Rules, Scheduler
from tflabench.bench.standing import Standing
from tflabench.bench.tuning_store import TuningStore, default_folder
from tflabench.bench.workers import Workers
from tflabench.implementations.registry import package_versions
from tflabench.problem import InputError
from tflabench.rows.journal import Store
from tflabench.rows.schema import Row
from tflabench.selection.comparisons import Comparison
from tflabench.selection.points import Point
from tflabench.theory.hardware import Ceilings

if TYPE_CHECKING:
    from tflabench.bench.forking import Forks
    from tflabench.bench.precompile.pool import CompilePool


@dataclass(frozen=True)
class Settings:
    """The rules of measuring, as the command line has them.

    Attributes:
        plugins, memory_limit: as `process.worker_command` takes them.
        timeout_s: for one job of a point.
        tune_s: for the autotuners of one point; None for every configuration.
        jobs: compilers at a time; 0 to compile in the process that measures.
        tuned: rows whose choices of autotuners are taken over.
    """

    machine: Machine
    protocol: Protocol
    timeout_s: float = 300.0
    tune_s: float | None = 20.0
    jobs: int = 0
    plugins: Sequence[str] = ()
    memory_limit: int | None = None
    tuned: Sequence[Row] = ()


@dataclass(frozen=True)
class Audience:
    """Who hears of a sweep while it runs.

    Attributes:
        on_row: called with a row whenever it is new or has changed.
        watch: called with where the sweep stands, a few times a second; None where nobody watches.
        describe: called with a run and what environment.json says of it, whenever that has changed.
    """

    on_row: Callable[[Row], None]
    watch: Callable[[Standing], None] | None = None
    describe: Callable[[str, dict[str, Any]], None] | None = None


@dataclass(frozen=True)
class Described:
    """A run and what environment.json says of it."""

    run_id: str
    environment: dict[str, Any]


@dataclass(frozen=True)
class Origin:
    """The part of a sweep that rows are from.

    Attributes:
        run_id: names it; environment.json describes it.
        node: name of the machine.
        mixed_versions: as the column of that name.
    """

    run_id: str = field(default_factory=lambda: uuid4().hex[:12])
    node: str = field(default_factory=node_name)
    mixed_versions: str | None = None


def pending(
    comparisons: Sequence[Comparison], rows: Mapping[str, Row], protocol: Protocol, device: str
) -> list[Comparison]:
    """Return the comparisons that a results folder lacks, in their order.

    Args:
        rows: those of the folder, by point.
        device: "cuda" or "cpu".

    One is there if the last rows of all its points are of one closed comparison under the same protocol, and no point
    that was refused then can run now. Points that failed have had their chance.
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
    if row.status == "unsupported" and row.details.get("refused") != LATE:
        return point.implementation.refuses(point.problem, device) is not None
    return row.protocol == protocol.name or row.status == "unsupported"


def require_runnable(points: Sequence[Point], device: str) -> None:
    """Refuse a selection of which nothing can run: that is a mistake, not data.

    Raises:
        InputError: every point is refused; with the first reason.
    """
    reasons: list[str] = []
    for point in points:
        reason = point.implementation.refuses(point.problem, device)
        if reason is None:
            return
        reasons.append(f"{point.implementation.name}: {reason}")
    raise InputError(f"none of the {len(points)} points can run on {device}: {reasons[0]}")


class Session:
    """A machine made ready to measure, for as long as the block lasts: worker processes, compilers, ceilings.

    Raises:
        InputError: torch is missing, or the worker cannot start.
    """

    def __init__(self, settings: Settings) -> None:
        require_torch()
        self.settings = settings
        self._stack = ExitStack()
        self._pool: CompilePool | None = None
        self._forks: Forks | None = None

    def __enter__(self) -> Session:
        self._workers = Workers(self._start)
        self._stack.callback(self._workers.close)
        self._workers.begin(SHARED)
        if self.settings.machine.kind == "cuda":
            self._compile_ahead()
        return self

    @property
    def facts(self) -> dict[str, Any]:
        """Wait until the worker has started, and return what it says of its device.

        Raises:
            InputError: it cannot start.
        """
        return self._workers.facts(SHARED)

    def _compile_ahead(self) -> None:
        """Start what compiles and forks; where nothing can be compiled ahead, say so and go on."""
        from tflabench.bench.forking import Forks
        from tflabench.bench.precompile.gpu_facts import probe
        from tflabench.bench.precompile.pool import CompilePool

        if not (self.settings.jobs and find_spec("triton")):
            return
        facts = probe()
        self._forks = Forks(facts, self.settings.plugins)
        self._stack.callback(self._forks.close)
        try:
            self._pool = CompilePool(self.settings.jobs, facts, plugins=self.settings.plugins)
        except InputError as error:
            warnings.warn(f"nothing is compiled ahead: {error}", stacklevel=2)
            return
        self._stack.callback(self._pool.close)

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def sweep(self, comparisons: Sequence[Comparison], store: Store, audience: Audience, stop_at: float = inf) -> None:
        """Measure comparisons in their order into a results folder.

        Args:
            audience: hears of every row when it is on disk.
            stop_at: time of `time.monotonic` from which on no point is begun.
        """

        def keep(row: Row) -> None:
            store.append(row)
            audience.on_row(row)

        self._measure(comparisons, replace(audience, on_row=keep, describe=store.describe_run), stop_at)

    def stream(
        self, comparison: Comparison, origin: Origin, stop_at: float = inf
    ) -> Iterator[Row | Standing | Described]:
        """Measure a comparison, and yield what an audience would hear.

        Something comes at least every second once measuring has begun.
        """
        heard: deque[Row | Standing | Described] = deque()
        audience = Audience(heard.append, heard.append, lambda run_id, facts: heard.append(Described(run_id, facts)))
        scheduler = self._scheduler([comparison], audience, stop_at, origin)
        for _ in chain(scheduler.steps(), [None]):
            while heard:
                yield heard.popleft()

    def measure(self, point: Point) -> Row:
        """Measure a point alone, whatever happens to it."""
        rows: list[Row] = []
        self._measure([Comparison((point,))], Audience(rows.append), inf)
        return rows[-1]

    def ceilings(self, dtypes: Iterable[str]) -> dict[str, Ceilings]:
        """Return the ceilings of this machine by dtype; those not known yet are measured."""
        return ceilings_of(self.settings.machine, dtypes, self._ask)

    def environment(self) -> dict[str, Any]:
        """Return what environment.json says of this machine."""
        return environment(self.settings.machine, self.facts)

    def _measure(self, comparisons: Sequence[Comparison], audience: Audience, stop_at: float) -> None:
        self._scheduler(comparisons, audience, stop_at, Origin()).run()

    def _scheduler(
        self, comparisons: Sequence[Comparison], audience: Audience, stop_at: float, origin: Origin
    ) -> Scheduler:
        """Return what measures comparisons, ready to start."""
        settings = self.settings
        rules = Rules(settings.machine.kind, settings.protocol, settings.timeout_s, settings.tune_s, stop_at)
        tuning = TuningStore(default_folder(), versions(settings.machine), settings.tuned)

        def on_point(begun: ComparisonRun, run: PointRun) -> None:
            if self._forks and run.turns:
                self._forks.prepare(
                    libraries
                )  # from the first time on: until then they would take the disk from others
            audience.on_row(occasion.row(begun, run))

        def measure_ceilings() -> None:
            """Hold times against measured ceilings: once for a kind of GPU, and behind the first row, not before it.

            Rows that are told before have the datasheet's until their comparison closes.
            """
            nonlocal occasion
            occasion = replace(occasion, ceilings=measured_instead(settings.machine, occasion.ceilings, self._ask))
            describe()

        def describe() -> None:
            if audience.describe:
                described = {dtype: asdict(found) for dtype, found in occasion.ceilings.items()}
                audience.describe(occasion.run_id, self.environment() | {"node": origin.node, "ceilings": described})

        scheduler = Scheduler(rules, self._workers, self._pool, tuning, on_point, measure_ceilings, audience.watch)
        scheduler.admit(comparisons)  # from here on kernels are compiled, while the worker may still be starting
        points = [point for comparison in comparisons for point in comparison.points]
        dtypes = {point.problem.dtype for point in points}
        libraries = {point.implementation.package for point in points if point.implementation.own_process}
        ceilings, uuid = self.ceilings(dtypes), self.facts.get("uuid") or settings.machine.uuid
        occasion = Occasion(
            origin.run_id,
            settings.machine,
            settings.protocol,
            ceilings,
            origin.node,
            uuid,
            origin.mixed_versions,
        )
        describe()
        return scheduler

    def _ask(self, job: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return the result of a job of the worker, which must have said what its device is before it takes one."""
        self._workers.facts(SHARED)
        return self._workers.ask(SHARED, job, timeout_s)

    def _start(self, slot: str) -> WorkerProcess:
        settings = self.settings
        package = slot.partition("/")[0]
        forked = self._forks.start(package) if self._forks and slot != SHARED else None
        command = worker_command(settings.machine.kind, settings.plugins, settings.memory_limit)
        return forked or WorkerProcess.spawn(command)


def versions(machine: Machine) -> dict[str, str]:
    """Return what a choice of autotuners depends on, the point left out: the GPU kind and the versions of packages."""
    return {"device": machine.name, **package_versions()}
