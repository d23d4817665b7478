"""The commands that measure: sweep, verify, calibrate."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tflabench.cli import app
from tflabench.problem import parse_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from tflabench.bench import Bench, Estimate
    from tflabench.machine import Machine
    from tflabench.protocol import Protocol
    from tflabench.store import Row
    from tflabench.sweep import Point

Axes = Annotated[
    list[str] | None,
    typer.Option(
        "-a",
        "--axis",
        metavar="AXIS=VALUES",
        help="Replace an axis, and run its values in this order: seq_len=512:65536:x2, chunk_size=128,64.",
    ),
]
Impl = Annotated[
    list[str] | None, typer.Option(metavar="PATTERN", help="Only these implementations: 'sdpa*,tfla_sig_*'.")
]
Device = Annotated[str, typer.Option(help="auto, cuda or cpu.")]
Plugin = Annotated[
    list[str] | None,
    typer.Option(metavar="MODULE", help="Module or .py file whose IMPLEMENTATIONS are measured too."),
]
Timeout = Annotated[
    float,
    typer.Option(
        min=1,
        help="Seconds for one point, from its build to its last sample. After one that took longer, those of the same "
        "implementation, pass, head dimensions, chunk size and dtype that have no shorter sequences and no fewer steps "
        "in all are not tried: they are timeouts too, until the next call.",
    ),
]


def _seconds(words: str, default: str) -> Any:
    return typer.Option(metavar="SECONDS", min=0, help=words, show_default=default)


StopAfter = Annotated[
    float | None,
    _seconds(
        "Start no point after this time; the one that runs is finished. The same command measures the rest.",
        "all are measured",
    ),
]
VerifySeconds = Annotated[
    float | None,
    _seconds(
        "What the float64 check of one point may take: it checks as many steps as fit, 512 whatever they take.",
        "10; 0.15 where the preset is short",
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Host memory for one point, e.g. 8GiB.",
        show_default="on CPUs 80% of what is free",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


@app.command()
def sweep(
    preset: Annotated[str, typer.Option(help="What to measure: a name from tflabench/presets.")] = "quick",
    axis: Axes = None,
    impl: Impl = None,
    pass_: Annotated[str | None, typer.Option("--pass", help="fw, fwbw or both.")] = None,
    device: Device = "auto",
    out: Annotated[Path | None, typer.Option(help="Results folder.", show_default="results/<device>/<preset>")] = None,
    resume: Annotated[bool, typer.Option(help="Measure only what is missing or failed in the results folder.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and an estimate only.")] = False,
    timeout: Timeout = 300.0,
    stop_after: StopAfter = None,
    paper_protocol: Annotated[bool, typer.Option(help="Exactly 10 warm-ups and 30 samples.")] = False,
    verify_seconds: VerifySeconds = None,
    memory_limit: MemoryLimit = None,
    plots: Annotated[bool, typer.Option(help="Draw the figures at the end.")] = True,
    plugin: Plugin = None,
    json_: Json = False,
) -> None:
    """Measure runtime and memory of every implementation over the axes of a preset, and draw the figures."""
    from tflabench import bench, registry, summary
    from tflabench import sweep as sweeps
    from tflabench.executor import LocalExecutor
    from tflabench.machine import detect
    from tflabench.protocol import PAPER, PROTOCOLS

    stop_at = end_of(stop_after)
    for name in plugin or ():
        registry.plug_in(name)
    machine = detect(device)
    patterns = registry.split(",".join(impl)) if impl else None
    overrides = sweeps.parse_overrides([*(axis or ()), *([f"pass={pass_}"] if pass_ else ())])
    settings = sweeps.load_preset(preset)
    points = sweeps.plan(settings, overrides, patterns, machine.kind)
    bench.require_runnable(points, machine.kind)
    protocol = PAPER if paper_protocol else PROTOCOLS[settings.protocol.get(machine.kind, "standard")]
    protocol = protocol.verifying_within(verify_seconds)
    limit = host_memory_limit(memory_limit, machine)
    folder = out or Path("results") / machine.slug / preset

    note = stderr()
    if machine.kind == "cpu" and device == "auto":
        note.print(f"No NVIDIA GPU here: running preset {preset} on the CPU ({machine.name}).")
    if dry_run:
        print_plan(points, machine, protocol, folder, json_)
        return
    with LocalExecutor(machine.kind, plugin or (), limit) as executor:
        runner = bench.Bench(machine, executor, protocol, timeout)
        rows, files, left = measure_points(points, folder, runner, settings.title, resume, stop_at)
    if plots and rows:
        from tflabench import plots as figures

        note.print("Drawing the figures ...")
        files += figures.draw_all(folder)
    if json_:
        written = [str(path) for path in files]
        columns = [row.columns() for row in rows]
        print(json.dumps({"folder": str(folder), "files": written, "left": left, "rows": columns}, indent=2))
    else:
        stdout().print(summary.ending(rows, files, f"tflabench plot {folder}", left))


@app.command()
def verify(
    preset: Annotated[str, typer.Option(help="Which sizes: a name from tflabench/presets.")] = "quick",
    axis: Axes = None,
    impl: Impl = None,
    device: Device = "auto",
    budget: Annotated[float, typer.Option(min=0, help="Seconds that the oracle of one point may take.")] = 30.0,
    timeout: Timeout = 600.0,
    memory_limit: MemoryLimit = None,
    plugin: Plugin = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Also write errors.csv here.")] = None,
    json_: Json = False,
) -> None:
    """Compare forward and every gradient with float64; exit code 1 where one is too far off."""
    from dataclasses import replace

    from tflabench import bench, registry, store, summary
    from tflabench import sweep as sweeps
    from tflabench.executor import LocalExecutor
    from tflabench.machine import detect, environment
    from tflabench.protocol import STANDARD

    for name in plugin or ():
        registry.plug_in(name)
    machine = detect(device)
    patterns = registry.split(",".join(impl)) if impl else None
    overrides = {"pass": ("fwbw",)} | sweeps.parse_overrides(axis or ())
    points = sweeps.plan(sweeps.load_preset(preset), overrides, patterns, machine.kind)
    bench.require_runnable(points, machine.kind)
    note = stderr()
    results = []
    with LocalExecutor(machine.kind, plugin or (), host_memory_limit(memory_limit, machine)) as executor:
        checks = bench.Bench(machine, executor, replace(STANDARD, verify_s=budget), timeout)
        with _progress(note) as bar:
            results = [checks.verify(point) for point in bar.track(points)]
        facts = executor.facts()
    if out:
        note.print(f"Wrote {store.write_errors(out, results, environment(machine, facts))}")
    failed = [result for result in results if result["status"] not in ("ok", "unsupported")]
    if json_:
        print(json.dumps(results, indent=2))
    else:
        stdout().print(summary.error_table(results))
    if facts.get("ptxas"):
        note.print(f"Triton's kernels were assembled by ptxas {facts['ptxas']}.")
    note.print(f"{len(results) - len(failed)} of {len(results)} points agree with float64 or were refused.")
    if failed:
        raise typer.Exit(1)


@app.command()
def calibrate(
    device: Device = "auto",
    seconds: Annotated[float, typer.Option(min=0.1, help="About how long to measure.")] = 10.0,
    json_: Json = False,
) -> None:
    """Measure the copy bandwidth and the matrix rate of this machine; theory uses them from then on."""
    from dataclasses import asdict

    from tflabench import bench
    from tflabench.executor import LocalExecutor
    from tflabench.machine import detect

    machine = detect(device)
    with LocalExecutor(machine.kind) as executor:
        measured = bench.calibrate(machine, bench.CALIBRATED_DTYPES[machine.kind], executor, seconds)
    if json_:
        ceilings = {dtype: asdict(found) for dtype, found in measured.items()}
        print(json.dumps({"device": machine.name, "ceilings": ceilings}, indent=2))
        return
    table = _table("dtype", "matrix rate", "copy bandwidth", title=machine.name)
    for dtype, found in measured.items():
        table.add_row(dtype, f"{found.flops_per_s / 1e12:.3g} TFLOP/s", f"{found.bytes_per_s / 1e9:.4g} GB/s")
    stdout().print(table)


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
    from tflabench import bench, summary
    from tflabench.store import Store

    note = stderr()
    machine, protocol = runner.machine, runner.protocol
    estimates = {point.id: bench.estimate(point, machine, protocol) for point in points}
    _warn_too_big(estimates, machine)
    store = Store(folder, machine.name)
    todo = bench.pending(points, store, protocol, machine.kind) if resume else points
    note.print(f"{title}\n{len(todo)} of {len(points)} points to measure, into {folder}")
    left = len(todo)
    interrupted = False
    try:
        if todo and time.monotonic() < stop_at:
            with _progress(note) as bar:
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
    from tflabench import bench

    estimates = {point.id: bench.estimate(point, machine, protocol) for point in points}
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
    seconds = sum(estimate.seconds for estimate in estimates.values())
    if json_:
        print(
            json.dumps(
                {"device": machine.name, "folder": str(folder), "seconds": round(seconds), "points": plan}, indent=2
            )
        )
        return
    table = _table(*plan[0])
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
    too_big = [point for point, estimate in estimates.items() if estimate.bytes > machine.memory_bytes]
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


def stdout() -> Console:
    """Tables keep their width where nobody's terminal limits it."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=160)


def stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True, highlight=False)


def _table(*columns: str, title: str | None = None) -> Table:
    from rich.table import Table

    return Table(*columns, title=title, box=None, header_style="bold", pad_edge=False)


def _progress(note: Console) -> Progress:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TaskProgressColumn(), TextColumn("time left"), TimeRemainingColumn())
    return Progress(*columns, console=note, transient=True)
