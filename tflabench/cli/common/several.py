"""A sweep over several GPUs, as the command line has it: which devices, which folders, what is shown."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tflabench.cli.common.checks import one_of
from tflabench.cli.common.console import stderr
from tflabench.cli.common.measuring import How, Measured, Told, folder_for, say_refusals, warn_too_big
from tflabench.cli.common.paths import folder_to_write
from tflabench.problem import InputError

if TYPE_CHECKING:
    from tflabench.bench.machine import Machine
    from tflabench.bench.plan import Plan, Request
    from tflabench.bench.several.driver import ComparisonExecutor, Listener
    from tflabench.bench.several.task import Task, Terms
    from tflabench.problem import DeviceKind
    from tflabench.rows.journal import Store
    from tflabench.rows.schema import Row
    from tflabench.selection.comparisons import Comparison

EXECUTORS = ("local", "ray")
ALL = "all"
MOST_GPUS = 1024  # of one machine: more is a slip


@dataclass(frozen=True)
class Where:
    """The devices that a sweep asks for.

    Attributes:
        gpus: how many GPUs of this machine, None for all; without meaning for a Ray cluster.
        ray: whether it is a Ray cluster, at `address`.
        kinds: of GPU that each comparison is measured on, as Ray names them; none for any.
        mixed: whether nodes may have other versions.
    """

    gpus: int | None = None
    ray: bool = False
    address: str | None = None
    kinds: tuple[str, ...] = ()
    mixed: bool = False


def where(
    executor: str, address: str | None, gpus: str | None, mixed: bool, kinds: tuple[str, ...], device: str
) -> Where | None:
    """Return the devices that options ask for; None for the first one of this machine alone.

    Raises:
        InputError: an option means nothing, or nothing together with the others; or Ray is not installed.
    """
    if one_of("--executor", executor, EXECUTORS) == "ray":
        from tflabench.bench.several.on_ray import require_ray

        if gpus is not None:
            raise InputError("--gpus and --executor ray are both given: Ray takes all GPUs of its nodes")
        if kinds and device == "cpu":
            raise InputError(f"-a gpu={','.join(kinds)} and --device cpu are both given: give one of them")
        require_ray()
        return Where(ray=True, address=address, kinds=kinds, mixed=mixed)
    for option, given in (("--ray-address", address), ("-a gpu=...", kinds), ("--allow-mixed-versions", mixed)):
        if given:
            raise InputError(f"{option} is given without --executor ray: add that, or leave it out")
    if gpus is None:
        return None
    if device == "cpu":
        raise InputError(f"--gpus {gpus} and --device cpu are both given: give one of them")
    if gpus == ALL:
        return Where()
    if not (gpus.isascii() and gpus.isdigit() and 1 <= int(gpus) <= MOST_GPUS):
        raise InputError(f"--gpus is {gpus!r}: it must be a number of GPUs from 1 to {MOST_GPUS}, or {ALL}")
    return Where(gpus=int(gpus))


@dataclass(frozen=True)
class _Devices:
    """The devices of a sweep.

    Attributes:
        by_kind: one of each, by its name, by kind; the only kind is None where no kind is asked for.
        count: of all devices.
        said: what they are, in words.
    """

    by_kind: dict[str | None, dict[str, Machine]]
    count: int
    said: str

    @property
    def all(self) -> dict[str, Machine]:
        return {name: device for devices in self.by_kind.values() for name, device in devices.items()}


def measure_over_several(asked: Where, request: Request, how: How, out: Path | None) -> Measured:
    """Measure what the results folders lack on several devices, telling how far it is on stderr.

    Args:
        out: the folder that the user gave; None for results/<device>/<preset>.

    Raises:
        InputError: there are no such devices, they have other versions, or nothing can run there.
        typer.Exit: 130, interrupted; what was measured is safe.
    """
    from tflabench.bench.plan import plan
    from tflabench.bench.sweep import require_runnable

    with ExitStack() as stack:
        if asked.ray:
            from tflabench.bench.several.on_ray import Cluster, OnRay

            stderr().print("Asking the nodes of the Ray cluster what they are ...")
            cluster = stack.enter_context(Cluster(asked.address))
            kind = cluster.kind(how.device)
            nodes = cluster.nodes(kind, how.plugins, asked.mixed)
            by_kind = _by_kind([(node.kind, node.facts.devices) for node in nodes], asked.kinds)
            usable = [node for node in nodes if not asked.kinds or node.kind in asked.kinds]
            said = ", ".join(f"{node.name} ({node.slots} x {node.facts.devices[0].name})" for node in usable)
            devices = _Devices(by_kind, sum(node.slots for node in usable), said)
            for node in usable:
                if node.mixed_versions:
                    stderr().print(f"Rows of node {node.name} are marked: it has {node.mixed_versions}.")
        else:
            gpus = _gpus_here(asked.gpus)
            kind = "cuda"
            devices = _Devices(_by_kind([(None, gpus)], ()), len(gpus), ", ".join(gpu.name for gpu in gpus))
        planned = plan(request, kind)
        require_runnable(planned.points, kind)
        terms = _terms(planned, how, kind)
        if asked.ray:
            executor: ComparisonExecutor = OnRay(usable, terms)
        else:
            from tflabench.bench.several.host import OneHost

            executor = OneHost(gpus, terms)
        stack.callback(executor.close)
        return _Sweep(planned, devices, terms, how, _folders(planned, devices, how, out, asked.mixed)).run(executor)


def _gpus_here(count: int | None) -> list[Machine]:
    from tflabench.bench.machine import gpus

    there = gpus()
    if not there:
        raise InputError("--gpus is given, and this machine shows no NVIDIA GPU (nvidia-smi)")
    if count is not None and count > len(there):
        raise InputError(f"--gpus is {count}, and this machine shows {len(there)}")
    return there[:count]


def _by_kind(
    found: Sequence[tuple[str | None, Sequence[Machine]]], kinds: Sequence[str]
) -> dict[str | None, dict[str, Machine]]:
    """Return one device of each name by the kind asked for, from the kinds and devices of nodes.

    Raises:
        InputError: no node has a kind that is asked for.
    """
    if not kinds:
        return {None: {device.name: device for _, devices in found for device in devices}}
    by_kind: dict[str | None, dict[str, Machine]] = {}
    for kind in kinds:
        by_kind[kind] = {device.name: device for of, devices in found if of == kind for device in devices}
        if not by_kind[kind]:
            there = ", ".join(sorted({str(of) for of, _ in found if of})) or "no GPU"
            raise InputError(f"gpu is {kind!r}, which no node has: there is {there}")
    return by_kind


def _terms(planned: Plan, how: How, kind: DeviceKind) -> Terms:
    import os
    from uuid import uuid4

    from tflabench.bench.several.task import Terms

    return Terms(
        sweep_id=uuid4().hex[:12],
        kind=kind,
        protocol=planned.protocol,
        timeout_s=how.timeout_s,
        tune_s=how.tune_s,
        jobs=how.jobs,
        plugins=[str(Path(name).resolve()) if name.endswith(".py") else name for name in how.plugins],
        memory_limit=how.memory_limit,
        tuned=how.tuned,
        until=inf if how.stop_at == inf else time.time() + how.stop_at - time.monotonic(),
        threads=os.environ.get("OMP_NUM_THREADS"),
    )


def _folders(planned: Plan, devices: _Devices, how: How, out: Path | None, mixed: bool) -> dict[str, Path]:
    """Return the results folder of each device by its name: rows of two kinds never share one.

    Below the folder that the user gave each kind has its own, unless there is one kind, or that folder has its rows.

    Raises:
        InputError: the folder cannot be made, or has rows of other sources.
    """
    from tflabench.rows.load import read_results, results_folders

    folders: dict[str, Path] = {}
    if out is not None:
        folder_to_write(out)
    there = {row.device for row in read_results(out).rows} if out is not None and out in results_folders(out) else set()
    for name, device in devices.all.items():
        if out is None:
            folder = Path("results") / device.slug / planned.preset.name
        elif name in there or (len(devices.all) == 1 and not (out / device.slug).exists()):
            folder = out
        else:
            folder = out / device.slug
        folders[name] = folder_for(folder, out is not None) if how.resume and not mixed else folder
    return folders


@dataclass
class _Sweep:
    """A sweep over several devices into their results folders."""

    planned: Plan
    devices: _Devices
    terms: Terms
    how: How
    folders: dict[str, Path]
    stores: dict[str, Store] = field(default_factory=dict)  # by the name of a device

    def run(self, executor: ComparisonExecutor) -> Measured:
        """Measure, and return the results."""
        from tflabench.bench.several.driver import Driver

        note = stderr()
        self._open()
        tasks = self._tasks()
        points = [point for task in tasks for point in task.comparison.points]
        where = ", ".join(map(str, dict.fromkeys(self.folders.values())))
        note.print(
            f"{self.planned.preset.title}\n{len(points)} of {self._asked} points to measure, in {len(tasks)} "
            f"comparisons, on {self.devices.count} devices, {self.devices.said}, into {where}"
        )
        say_refusals(points, self.terms.kind, note)
        interrupted = False
        try:
            if tasks and time.monotonic() < self.how.stop_at:
                expected = self._expected(tasks)
                with self._shown(tasks, expected) as listener:
                    Driver(tasks, executor, self.terms, listener, self.how.stop_at).run()
        except KeyboardInterrupt:
            interrupted = True
            executor.close()
            self._open()  # again: the last row may have reached the disk and not yet the memory
        return self._ended(interrupted)

    def _open(self) -> None:
        from tflabench.rows.journal import Store

        self.stores = {name: Store(folder, name) for name, folder in self.folders.items()}

    @property
    def _asked(self) -> int:
        return len(self.planned.points) * len(self.devices.by_kind)

    def _tasks(self) -> list[Task]:
        """Return the comparisons that the folders lack, on each kind of device that is asked for."""
        from tflabench.bench.several.task import Task
        from tflabench.bench.sweep import pending

        everything = self.planned.comparisons

        def lacked(devices: dict[str, Machine]) -> set[int]:
            """Return which comparisons no folder of these devices has."""
            protocol = self.terms.protocol
            lacking = [pending(everything, self.stores[name].rows, protocol, devices[name].kind) for name in devices]
            return set.intersection(*({id(comparison) for comparison in each} for each in lacking))

        todo = {kind: lacked(devices) for kind, devices in self.devices.by_kind.items()}
        wanted: list[tuple[Comparison, str | None]] = [
            (comparison, kind)
            for comparison in everything
            for kind in todo
            if not self.how.resume or id(comparison) in todo[kind]
        ]
        return [Task(number, comparison, kind) for number, (comparison, kind) in enumerate(wanted, 1)]

    def _expected(self, tasks: Sequence[Task]) -> dict[str, float]:
        """Return about how many seconds a point takes, by its id, on the first device of its kind."""
        from tflabench.bench.estimate import Target, estimate

        seconds: dict[str, float] = {}
        for kind, devices in self.devices.by_kind.items():
            first = next(iter(devices.values()))
            target = Target.of_machine(first)
            points = [point for task in tasks if task.kind == kind for point in task.comparison.points]
            estimates = {point.id: estimate(point, target, self.terms.protocol) for point in points}
            warn_too_big(estimates, first.memory_bytes)
            seconds |= {point: 0.1 + found.seconds for point, found in estimates.items()}
        return seconds

    def _shown(self, tasks: Sequence[Task], expected: dict[str, float]) -> _Listening:
        from tflabench.cli.common.live import ProgressBar, SeveralTable, is_watched

        note = stderr()
        live = is_watched(note)
        sizes = {point.id: len(task.comparison.points) for task in tasks for point in task.comparison.points}
        total = sum(expected[point.id] for task in tasks for point in task.comparison.points)
        seconds = total / self.devices.count
        bar = SeveralTable(note, seconds, self.terms.protocol) if live else ProgressBar(note, seconds)
        return _Listening(bar, Told(note, sizes, live, places=True), self, expected)

    def keep(self, row: Row) -> None:
        """Write a row down."""
        self.stores[row.device].append(row)

    def describe(self, device: str, run_id: str, environment: dict[str, Any]) -> None:
        """Write down what environment.json says of a run."""
        from tflabench.bench.machine import command

        self.stores[device].describe_run(run_id, environment | {"arguments": command()})

    def _ended(self, interrupted: bool) -> Measured:
        note = stderr()
        ids = list(dict.fromkeys(point.id for point in self.planned.points))
        kept = [store for store in self.stores.values() if any(point in store.rows for point in ids)]
        rows = [store.rows[point] for store in kept for point in ids if point in store.rows]
        files = [file for store in kept for file in store.export()]
        closed = 0
        for devices in self.devices.by_kind.values():
            stores = [self.stores[name] for name in devices]
            closed += sum(any(point in s.rows and s.rows[point].closed for s in stores) for point in ids)
        left = self._asked - closed
        if interrupted:
            note.print(f"Interrupted: {closed} of {self._asked} points are safe; the same command goes on.")
            raise typer.Exit(130)
        if left:
            why = "The time is up" if time.monotonic() >= self.how.stop_at else "No device is left"
            note.print(f"{why}: {left} of {self._asked} points are left; the same command measures them.")
        return Measured(rows, files, left, [store.folder for store in kept] or list(self.folders.values())[:1])


@dataclass
class _Listening:
    """Show and write what happens while a sweep over several devices runs, as long as the block lasts."""

    bar: Any
    told: Told
    sweep: _Sweep
    expected: dict[str, float]

    def __enter__(self) -> Listener:
        from tflabench.bench.several.driver import Listener
        from tflabench.cli.common.live import SeveralTable

        self.bar.__enter__()
        watch = self.bar.see if isinstance(self.bar, SeveralTable) else None
        return Listener(self._row, self.sweep.describe, stderr().print, watch)

    def __exit__(self, *reason: Any) -> None:
        self.bar.__exit__(*reason)

    def _row(self, row: Row) -> None:
        self.sweep.keep(row)
        self.told.row(row)
        if row.closed:
            self.bar.advance(self.expected[row.point] / self.sweep.devices.count)
