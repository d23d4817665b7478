"""Code that `sweep` and `reproduce` share: measure comparisons with progress, or print what would be measured."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tflabench.cli.common.console import open_table, print_json, size_in_words, stderr, stdout
from tflabench.cli.common.paths import folder_to_write
from tflabench.problem import DeviceKind, InputError, parse_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tflabench.bench.estimate import Estimate, Target
    from tflabench.bench.machine import Machine
    from tflabench.bench.plan import Request
    from tflabench.bench.protocol import Protocol
    from tflabench.bench.sweep import Session, Settings
    from tflabench.rows.journal import Store
    from tflabench.rows.schema import Row
    from tflabench.selection.comparisons import Comparison
    from tflabench.selection.points import Point

FULL = "full"
LONGEST_S = 1e9  # of any time that is asked for: more is a slip
MOST_COMPARISONS, MOST_REASONS = 20, 5  # that --dry-run prints without --full
PRINTED = {"bytes": "memory"}  # heads of columns that are not named as in JSON


@dataclass
class Measured:
    """The results of a sweep: rows of its points, files, and how many points the time was too short for.

    Attributes:
        folders: the results folders that have them.
    """

    rows: list[Row] = field(default_factory=list)
    files: list[Path] = field(default_factory=list[Path])
    left: int = 0
    folders: list[Path] = field(default_factory=list[Path])


@dataclass(frozen=True)
class How:
    """The rules of measuring, as the command line has them.

    Attributes:
        memory_limit: bytes of host memory for a point; None for the limit of its node.
        stop_at: time of `time.monotonic` from which on no point is begun.
    """

    device: str
    timeout_s: float
    tune_s: float | None
    jobs: int | None
    plugins: Sequence[str]
    memory_limit: int | None
    tuned: Sequence[Row]
    resume: bool
    stop_at: float


def measure_here(request: Request, how: How, out: Path | None) -> Measured:
    """Measure what the results folder lacks on one device of this machine, telling how far it is on stderr.

    Args:
        out: the folder that the user gave; None for results/<device>/<preset>.

    Raises:
        InputError: there is no such device, or nothing can run there.
        typer.Exit: 130, interrupted; what was measured is safe.
    """
    from tflabench.bench.machine import detect
    from tflabench.bench.plan import plan
    from tflabench.bench.sweep import Session, Settings, require_runnable

    machine = detect(how.device)
    planned = plan(request, machine.kind)
    require_runnable(planned.points, machine.kind)
    folder = Path("results") / machine.slug / planned.preset.name if out is None else folder_to_write(out)
    folder = folder_for(folder, given=out is not None) if how.resume else folder
    if machine.kind == "cpu" and how.device == "auto":
        stderr().print(f"No NVIDIA GPU here: running preset {request.preset} on the CPU ({machine.name}).")
    limit = machine.host_memory_limit if how.memory_limit is None else how.memory_limit
    settings = Settings(
        *(machine, planned.protocol, how.timeout_s, how.tune_s, compilers(how.jobs), how.plugins, limit, how.tuned)
    )
    with Session(settings) as session:
        title = planned.preset.title
        return measure_comparisons(planned.comparisons, folder, session, title, how.resume, how.stop_at)


def measure_comparisons(
    comparisons: Sequence[Comparison],
    folder: Path,
    session: Session,
    title: str,
    resume: bool = True,
    stop_at: float = inf,
) -> Measured:
    """Measure what a results folder lacks (all of it without `resume`), telling how far it is on stderr.

    Args:
        stop_at: time of `time.monotonic` from which on no point is begun.

    Raises:
        typer.Exit: 130, interrupted; what was measured is safe.
    """
    from tflabench.bench.estimate import Target, estimate
    from tflabench.bench.gpu_lock import alone_on
    from tflabench.bench.sweep import Audience
    from tflabench.cli.common.live import LiveTable, ProgressBar, is_watched
    from tflabench.rows.journal import Store

    note = stderr()
    settings = session.settings
    machine = settings.machine
    points = [point for comparison in comparisons for point in comparison.points]
    target = Target.of_machine(machine)
    estimates = {point.id: estimate(point, target, settings.protocol) for point in points}
    warn_too_big(estimates, machine.memory_bytes)
    store = Store(folder, machine.name)
    todo = _lacking(comparisons, store, settings) if resume else list(comparisons)
    due = [point for comparison in todo for point in comparison.points]
    note.print(f"{title}\n{len(due)} of {len(points)} points to measure, in {len(todo)} comparisons, into {folder}")
    waiting = {point.id for point in due}
    late = sum(store.rows[p.id].status == "timeout" for p in points if p.id in store.rows and p.id not in waiting)
    if late:
        note.print(f"{late} of the others ended at a time limit: --no-resume measures them, and all else, anew.")
    say_refusals(due, machine.kind, note)
    interrupted = False
    sizes = {point.id: len(comparison.points) for comparison in todo for point in comparison.points}
    told = Told(note, sizes, live=is_watched(note))
    try:
        if todo and time.monotonic() < stop_at:
            expected = {point.id: 0.1 + estimates[point.id].seconds for point in due}
            seconds = sum(expected.values())
            shown = LiveTable(note, seconds, settings.protocol) if told.live else ProgressBar(note, seconds)
            with alone_on(session.facts.get("uuid") or machine.name, note.print), shown as progress:
                store = Store(folder, machine.name)  # again: the sweep that was waited for may have added to it
                todo = _lacking(todo, store, settings) if resume else todo

                def on_row(row: Row) -> None:
                    told.row(row)
                    if row.closed:
                        progress.advance(expected[row.point])

                session.sweep(todo, store, Audience(on_row, progress.watch), stop_at)
    except KeyboardInterrupt:
        interrupted = True
        store.save_unwritten()
        store = Store(folder, machine.name)  # again: the last row may have reached the disk and not yet the memory
    rows = [store.rows[point.id] for point in points if point.id in store.rows]
    files = store.export() if rows else []
    if interrupted:
        note.print(f"Interrupted: {_closed(store, points)} of {len(points)} points are safe; the same command goes on.")
        raise typer.Exit(130)
    left = len(points) - _closed(store, points)
    if left:
        note.print(f"The time is up: {left} of {len(points)} points are left; the same command measures them.")
    return Measured(rows, files, left, [folder])


def _lacking(comparisons: Sequence[Comparison], store: Store, settings: Settings) -> list[Comparison]:
    """Return the comparisons that a folder does not have whole."""
    from tflabench.bench.sweep import pending

    return pending(comparisons, store.rows, settings.protocol, settings.machine.kind)


def _closed(store: Store, points: Sequence[Point]) -> int:
    return sum(point.id in store.rows and store.rows[point.id].closed for point in points)


@dataclass
class Told:
    """Tells of rows as they come: each once when it is new, and of every comparison when its last row is final.

    Attributes:
        sizes: how many points the comparison of each point has.
        live: whether a live table shows what is going on; rows are then told once they are final, or have failed.
        places: whether to say on which node and GPU, where there are several.
        closing: final rows of comparisons of which not all are.
    """

    note: Console
    sizes: dict[str, int]
    live: bool = False
    places: bool = False
    closing: dict[str, list[Row]] = field(default_factory=dict)

    def row(self, row: Row) -> None:
        """Tell of a row that is new or has changed."""
        from tflabench.conclusions import summary

        if not row.closed:
            if row.ms_median is None or not self.live:
                self._print(row, summary.line(row), "yellow" if row.ms_median is None else "")
            return
        rows = self.closing.setdefault(row.comparison_id or "", [])
        rows.append(row)
        if len(rows) == self.sizes[row.point]:
            del self.closing[row.comparison_id or ""]
            if said := summary.closing(rows):
                self._print(row, said, "bold")
                return
            for final in rows:
                if self.live and final.ms_median is not None:
                    self._print(final, summary.line(final), "")

    def _print(self, row: Row, line: str, style: str) -> None:
        from rich.text import Text

        from tflabench.rows.labels import place

        if self.places:
            line = f"{line}  ({place(row)})"
        self.note.print(Text(line, style))  # a style of the whole output would colour the live table too


def say_refusals(points: Sequence[Point], kind: DeviceKind, note: Console) -> None:
    """Say once, before the start, what cannot run here: a line an implementation."""
    reasons: dict[str, str] = {}
    for point in points:
        if reason := point.implementation.refuses(point.problem, kind):
            reasons.setdefault(point.implementation.name, reason)
    for name, reason in reasons.items():
        note.print(f"  cannot run here: {name}: {reason}", style="dim")


def folder_for(folder: Path, given: bool) -> Path:
    """Return the results folder to measure into: one whose rows were made by the same sources.

    Args:
        given: whether the user named the folder.

    Raises:
        InputError: its rows were made by other sources, and the user named it.
    """
    from tflabench.bench.provenance import source_hash
    from tflabench.rows.load import read_results, results_folders

    if folder not in results_folders(folder):
        return folder
    others = {row.source_hash for row in read_results(folder).rows} - {source_hash()}
    if not others:
        return folder
    if given:
        raise InputError(
            f"{folder} holds rows that other sources made ({', '.join(sorted(map(str, others)))}; these are "
            f"{source_hash()}): give another --out, for rows of two versions cannot be divided by each other"
        )
    own = folder.with_name(f"{folder.name}-{source_hash()}")
    stderr().print(f"{folder} holds rows that other sources made: this sweep goes into {own}.")
    return own


def end_of(seconds: float | None) -> float:
    """Return the time of `time.monotonic` after this many seconds from now; infinity for None."""
    return inf if seconds is None else time.monotonic() + seconds


def check_seconds(name: str, value: object, least: float) -> None:
    """Raise InputError unless a limit of time is a finite number of seconds, `least` or more."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value < inf:
        raise InputError(f"{name} is {value!r}: it must be a finite number of seconds, {least:g} or more")


def seconds_to_tune(text: str) -> float | None:
    """Return the seconds of --tune-seconds; None for "full".

    Raises:
        InputError: neither a number of seconds nor "full".
    """
    if text == FULL:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if math.copysign(1, seconds) < 0 or not 0 <= seconds <= LONGEST_S:
        raise InputError(f"--tune-seconds is {text!r}: it must be a number of seconds, or {FULL}")
    return seconds


def compilers(jobs: int | None) -> int:
    """Return how many kernels are compiled at a time: as asked for, else two fewer than there are cores."""
    from tflabench.bench import machine

    return machine.compilers(jobs)


@dataclass(frozen=True)
class Shown:
    """The form in which a selection is printed.

    Attributes:
        timeout_s: no point takes longer.
        full: a line a point, where there is one a comparison otherwise.
        json: one JSON object in place of text.
    """

    timeout_s: float
    full: bool = False
    json: bool = False


def print_selection(
    comparisons: Sequence[Comparison],
    target: Target,
    folder: Path,
    stored: Mapping[str, Row],
    rules: Protocol,
    shown: Shown,
) -> None:
    """Print what a sweep would measure, in its order, about how long that takes, and how much memory.

    Args:
        stored: the rows that its folder has, by point.
    """
    from tflabench.bench.estimate import estimate
    from tflabench.bench.sweep import pending

    points = [(number, point) for number, one in enumerate(comparisons, 1) for point in one.points]
    estimates = {point.id: estimate(point, target, rules) for _, point in points}
    warn_too_big(estimates, target.memory_bytes)
    selection = [
        {
            "comparison": number,
            "implementation": point.implementation.name,
            "family": point.implementation.family,
            "gate": point.implementation.gate,
            **point.problem.columns(),
            "seconds": round(min(estimates[point.id].seconds, shown.timeout_s), 1),
            "bytes": estimates[point.id].bytes,
            "refused": target.refusal(point),
        }
        for number, point in points
    ]
    todo = {point.id for one in pending(comparisons, stored, rules, target.kind) for point in one.points}
    due = [row for (_, point), row in zip(points, selection, strict=True) if point.id in todo]
    seconds, left = (round(sum(row["seconds"] for row in rows)) for rows in (selection, due))
    if shown.json:
        told = {"device": target.name, "folder": str(folder), "seconds": seconds, "seconds_left": left}
        print_json(told | {"points_left": len(due), "points": selection})
        return
    console = stdout()
    console.print(_points_table(selection) if shown.full else _comparisons_table(selection))
    if not shown.full:
        for line in _cut_lines(selection):
            console.print(line)
    runnable = sum(not row["refused"] for row in selection)
    most = max(row["bytes"] for row in selection)
    console.print(
        f"{len(selection)} points in {len(comparisons)} comparisons, {runnable} can run on {target.name}: "
        f"about {max(1, round(seconds / 60))} min; at least {size_in_words(most)} of memory; rows go to {folder}",
        markup=False,
    )
    if len(due) < len(selection):
        rest = f"about {max(1, round(left / 60))} min are left" if due else "nothing is left"
        console.print(f"{folder} has {len(selection) - len(due)} of them: {rest}", markup=False)


def _points_table(selection: Sequence[dict[str, Any]]) -> Table:
    """Return a line a point; those that cannot run are dim and say why."""
    table = open_table(*(PRINTED.get(name, name) for name in selection[0] if name != "seed"))
    for row in selection:
        told = row | {"bytes": size_in_words(row["bytes"])}
        cells = ["" if value is None else str(value) for name, value in told.items() if name != "seed"]
        table.add_row(*cells, style="dim" if row["refused"] else "")
    return table


def _comparisons_table(selection: Sequence[dict[str, Any]]) -> Table:
    """Return a line a comparison, of the first MOST_COMPARISONS."""
    shared = ("pass", "batch", "heads", "seq_len", "d_qk", "d_hv", "dtype")
    table = open_table("", *("T" if name == "seq_len" else name for name in shared), "run", "min", "memory")
    for number in range(1, MOST_COMPARISONS + 1):
        rows = [row for row in selection if row["comparison"] == number]
        if not rows:
            break
        ranges = [_range([row[name] for row in rows]) for name in shared]
        runnable = f"{sum(not row['refused'] for row in rows)}/{len(rows)}"
        minutes = f"{sum(row['seconds'] for row in rows) / 60:.1f}"
        table.add_row(str(number), *ranges, runnable, minutes, size_in_words(max(row["bytes"] for row in rows)))
    return table


def _range(values: Sequence[Any]) -> str:
    """Return the one value of a column, or the least and the most of several."""
    different = sorted(set(values))
    return str(different[0]) if len(different) == 1 else f"{different[0]}-{different[-1]}"


def _cut_lines(selection: Sequence[dict[str, Any]]) -> list[str]:
    """Return what the table of comparisons leaves out: comparisons beyond the first, and why points cannot run."""
    lines = []
    if (more := selection[-1]["comparison"] - MOST_COMPARISONS) > 0:
        lines.append(f"... and {more} more comparisons")
    reasons: dict[str, str] = {}
    for row in selection:
        if row["refused"]:
            reasons.setdefault(row["implementation"], row["refused"])
    told = [f"cannot run: {name}: {reason}" for name, reason in reasons.items()]
    if len(told) > MOST_REASONS:
        told = [*told[:MOST_REASONS], f"... and {len(told) - MOST_REASONS} more implementations that cannot run"]
    return [*lines, *told, "--full prints every point."]


def warn_too_big(estimates: dict[str, Estimate], memory_bytes: int) -> None:
    """Warn of points that need more memory than there is."""
    too_big = [point for point, needed in estimates.items() if needed.bytes > memory_bytes]
    if too_big:
        largest = max(too_big, key=lambda point: estimates[point].bytes)
        warnings.warn(
            f"{len(too_big)} of {len(estimates)} points will not fit in memory and end as oom: {largest} needs "
            f"at least {estimates[largest].bytes / 2**30:.1f} GiB, and there are {memory_bytes / 2**30:.1f}",
            stacklevel=2,
        )


def host_memory_limit(size: str | None, machine: Machine) -> int | None:
    """Return the bytes of host memory a point may allocate: as asked for, else what leaves a CPU machine alive."""
    if size is not None:
        return parse_bytes("--memory-limit", size)
    return machine.host_memory_limit
