"""What `sweep` and `reproduce` share: measure a list of points with progress, or print what would be measured."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tflabench.cli.common.console import open_table, progress_bar, stderr, stdout
from tflabench.problem import parse_bytes

if TYPE_CHECKING:
    from tflabench.bench.estimate import Estimate
    from tflabench.bench.machine import Machine
    from tflabench.bench.protocol import Protocol
    from tflabench.bench.runner import Bench
    from tflabench.rows.schema import Row
    from tflabench.selection.points import Point


def measure_points(
    points: Sequence[Point], folder: Path, runner: Bench, title: str, resume: bool = True, stop_at: float = inf
) -> tuple[list[Row], list[Path], int]:
    """Measure what a results folder lacks of a plan (all of it without `resume`), telling how far it is on stderr.

    Args:
        stop_at: time of `time.monotonic` from which on no point is started.

    Returns:
        The rows of the plan, the files of the folder, and how many points the time was too short for.

    Raises:
        typer.Exit: 130, interrupted; what was measured is safe.
    """
    from tflabench.bench.estimate import estimate
    from tflabench.bench.runner import pending
    from tflabench.conclusions import summary
    from tflabench.rows.journal import Store

    note = stderr()
    machine, protocol = runner.machine, runner.protocol
    estimates = {point.id: estimate(point, machine, protocol) for point in points}
    _warn_too_big(estimates, machine)
    store = Store(folder, machine.name)
    todo = pending(points, store, protocol, machine.kind) if resume else points
    note.print(f"{title}\n{len(todo)} of {len(points)} points to measure, into {folder}")
    left = len(todo)
    interrupted = False
    try:
        if todo and time.monotonic() < stop_at:
            with progress_bar(note) as bar:
                task = bar.add_task("", total=sum(0.1 + estimates[point.id].seconds for point in todo))

                def on_row(row: Row) -> None:
                    nonlocal left
                    left -= 1
                    note.print(summary.line(row), style="" if row.status == "ok" else "yellow")
                    bar.advance(task, 0.1 + estimates[row.point].seconds)

                runner.sweep(todo, store, on_row, stop_at)
    except KeyboardInterrupt:
        interrupted = True
        store = Store(folder, machine.name)  # again: the last row may have reached the disk and not yet the memory
    rows = [store.rows[point.id] for point in points if point.id in store.rows]
    files = store.export() if rows else []
    if interrupted:
        note.print(f"Interrupted: {len(rows)} of {len(points)} points are safe; the same command measures the rest.")
        raise typer.Exit(130)
    if left:
        note.print(f"The time is up: {left} of {len(points)} points are left; the same command measures them.")
    return rows, files, left


def end_of(seconds: float | None) -> float:
    """The time of `time.monotonic` in so many seconds; infinity for None."""
    return inf if seconds is None else time.monotonic() + seconds


def print_plan(points: Sequence[Point], machine: Machine, protocol: Protocol, folder: Path, json_: bool) -> None:
    """What a sweep would measure, and about how long that takes and how much memory."""
    from tflabench.bench.estimate import estimate

    estimates = {point.id: estimate(point, machine, protocol) for point in points}
    _warn_too_big(estimates, machine)
    plan = [
        {
            "implementation": point.implementation.name,
            **point.problem.columns(),
            "seconds": round(estimates[point.id].seconds, 1),
            "bytes": estimates[point.id].bytes,
            "refused": point.implementation.refuses(point.problem, machine.kind),
        }
        for point in points
    ]
    seconds = sum(one.seconds for one in estimates.values())
    if json_:
        print(
            json.dumps(
                {"device": machine.name, "folder": str(folder), "seconds": round(seconds), "points": plan}, indent=2
            )
        )
        return
    table = open_table(*plan[0])
    for row in plan:
        cells = ["" if value is None else str(value) for value in row.values()]
        table.add_row(*cells, style="dim" if row["refused"] else "")
    runnable = sum(not row["refused"] for row in plan)
    stdout().print(table)
    stdout().print(
        f"{len(plan)} points, {runnable} of them can run on {machine.name}: about {max(1, round(seconds / 60))} min; "
        f"at least {max(row['bytes'] for row in plan) / 2**30:.2f} GiB of memory; rows go to {folder}"
    )


def _warn_too_big(estimates: dict[str, Estimate], machine: Machine) -> None:
    too_big = [point for point, needed in estimates.items() if needed.bytes > machine.memory_bytes]
    if too_big:
        largest = max(too_big, key=lambda point: estimates[point].bytes)
        warnings.warn(
            f"{len(too_big)} of {len(estimates)} points will not fit in memory and end as oom: {largest} needs "
            f"at least {estimates[largest].bytes / 2**30:.1f} GiB, and there are {machine.memory_bytes / 2**30:.1f}",
            stacklevel=2,
        )


def host_memory_limit(size: str | None, machine: Machine) -> int | None:
    """Bytes of host memory a point may allocate: as asked for, else what leaves a CPU machine alive."""
    if size is not None:
        return parse_bytes("--memory-limit", size)
    return int(0.8 * machine.memory_bytes) if machine.kind == "cpu" else None
