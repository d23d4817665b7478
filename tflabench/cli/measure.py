"""The commands that measure: sweep, verify, calibrate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tflabench.cli import app
from tflabench.problem import parse_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from tflabench.machine import Machine
    from tflabench.protocol import Protocol
    from tflabench.store import Row, Store
    from tflabench.sweep import Point

Axes = Annotated[
    list[str] | None,
    typer.Option(
        "-a", "--axis", metavar="AXIS=VALUES", help="Replace an axis: seq_len=512:65536:x2, chunk_size=64,128."
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
Timeout = Annotated[float, typer.Option(min=1, help="Seconds for one point, from its build to its last sample.")]
MemoryLimit = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Host memory for one point, e.g. 8GiB. [default on CPUs: 80% of what is free]"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


@app.command()
def sweep(
    preset: Annotated[str, typer.Option(help="What to measure: a name from tflabench/presets.")] = "quick",
    axis: Axes = None,
    impl: Impl = None,
    pass_: Annotated[str | None, typer.Option("--pass", help="fw, fwbw or both.")] = None,
    device: Device = "auto",
    out: Annotated[Path | None, typer.Option(help="Results folder. [default: results/<device>/<preset>]")] = None,
    resume: Annotated[bool, typer.Option(help="Measure only what is missing or failed in the results folder.")] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and an estimate, measure nothing.")
    ] = False,
    timeout: Timeout = 300.0,
    paper_protocol: Annotated[
        bool, typer.Option("--paper-protocol", help="Exactly 10 warm-ups and 30 samples.")
    ] = False,
    memory_limit: MemoryLimit = None,
    plots: Annotated[bool, typer.Option(help="Draw the figures at the end.")] = True,
    plugin: Plugin = None,
    json_: Json = False,
) -> None:
    """Measure runtime and memory of every implementation over the axes of a preset, and draw the figures."""
    from tflabench import bench, machine, registry
    from tflabench import sweep as sweeps
    from tflabench.protocol import PAPER, PROTOCOLS
    from tflabench.store import Store

    for name in plugin or ():
        registry.plug_in(name)
    here = machine.detect(device)
    plan_of = sweeps.load_preset(preset)
    overrides = sweeps.parse_overrides([*(axis or ()), *([f"pass={pass_}"] if pass_ else ())])
    points = sweeps.plan(plan_of, overrides, registry.select(",".join(impl)) if impl else None, here.kind)
    bench.require_runnable(points, here.kind)
    protocol = PAPER if paper_protocol else PROTOCOLS[plan_of.protocol.get(here.kind, "standard")]
    folder = out or Path("results") / here.slug / preset

    note = _stderr()
    if here.kind == "cpu" and device == "auto":
        note.print(f"No NVIDIA GPU here: running preset {preset} on the CPU ({here.name}).")
    _warn_too_big(note, points, here, protocol)
    if dry_run:
        return _print_plan(points, here, protocol, folder, json_)

    store = Store(folder, here.name)
    todo = bench.pending(points, store, protocol, here.kind) if resume else points
    note.print(f"{plan_of.title}\n{len(todo)} of {len(points)} points to measure -> {folder}", highlight=False)
    interrupted = False
    try:
        if todo:
            _measure(note, todo, here, protocol, store, timeout, memory_limit, plugin or [])
    except KeyboardInterrupt:
        interrupted = True
    rows = [store.rows[point.id] for point in points if point.id in store.rows]
    files = [str(path) for path in store.export()] if rows else []
    store.close()
    if interrupted:
        note.print(
            f"Interrupted: {len(rows)} of {len(points)} points are safe in {folder}; the same command goes on from there."
        )
        raise typer.Exit(130)
    if plots:
        files += _draw(folder, note)
    if json_:
        print(json.dumps({"folder": str(folder), "files": files, "rows": [_plain(row) for row in rows]}, indent=2))
    else:
        from rich.console import Console

        from tflabench import summary

        Console().print(summary.ending(rows, files, f"tflabench plot {folder}"), highlight=False)


def _measure(
    note: Console,
    points: list[Point],
    machine: Machine,
    protocol: Protocol,
    store: Store,
    timeout_s: float,
    memory_limit: str | None,
    plugins: list[str],
) -> None:
    """Run the points under a progress bar, a live line each."""
    import uuid

    from tflabench import bench, summary
    from tflabench.executor import LocalExecutor
    from tflabench.machine import environment

    weights = {point.id: 0.1 + bench.estimate(point, machine, protocol).seconds for point in points}
    with LocalExecutor(machine.kind, plugins, _memory_limit(memory_limit, machine)) as executor:
        facts = executor.facts()
        ceilings = bench.ceilings_of(machine, (point.problem.dtype for point in points), executor)
        session = bench.Session(uuid.uuid4().hex[:12], machine, executor, store, ceilings, protocol, timeout_s)
        described = environment(machine, facts) | {
            "ceilings": {dtype: vars(found) for dtype, found in ceilings.items()}
        }
        store.describe_run(session.run_id, described)
        with _progress(note) as bar:
            task = bar.add_task("", total=sum(weights.values()))

            def on_row(row: Row) -> None:
                bar.console.print(summary.line(row), style="" if row.status == "ok" else "yellow", highlight=False)
                bar.advance(task, weights[row.point])

            session.run(points, on_row)


@app.command()
def verify(
    preset: Annotated[str, typer.Option(help="Which sizes: a name from tflabench/presets.")] = "quick",
    axis: Axes = None,
    impl: Impl = None,
    device: Device = "auto",
    budget: Annotated[float, typer.Option(help="Seconds that the float64 oracle of one point may take.")] = 30.0,
    timeout: Timeout = 600.0,
    memory_limit: MemoryLimit = None,
    plugin: Plugin = None,
    json_: Json = False,
) -> None:
    """Compare forward and every gradient with float64; exit code 1 if any deviates more than plain PyTorch may."""
    from tflabench import bench, machine, registry
    from tflabench import sweep as sweeps
    from tflabench.executor import LocalExecutor

    for name in plugin or ():
        registry.plug_in(name)
    here = machine.detect(device)
    overrides = {"pass": ("fwbw",)} | sweeps.parse_overrides(axis or ())
    chosen = registry.select(",".join(impl)) if impl else None
    points = sweeps.plan(sweeps.load_preset(preset), overrides, chosen, here.kind)
    bench.require_runnable(points, here.kind)
    note = _stderr()
    results = []
    with LocalExecutor(here.kind, plugin or [], _memory_limit(memory_limit, here)) as executor, _progress(note) as bar:
        task = bar.add_task("", total=len(points))
        for point in points:
            results.append(bench.verify(point, here, executor, budget, timeout))
            bar.advance(task)
    failed = [result for result in results if result["status"] not in ("ok", "unsupported")]
    if json_:
        print(json.dumps(results, indent=2))
    else:
        from rich.console import Console

        from tflabench import summary

        Console().print(summary.error_table(results), highlight=False)
    note.print(f"{len(results) - len(failed)} of {len(results)} points agree with float64.", highlight=False)
    if failed:
        raise typer.Exit(1)


@app.command()
def calibrate(
    device: Device = "auto",
    seconds: Annotated[float, typer.Option(min=0.1, help="About how long to measure.")] = 10.0,
    json_: Json = False,
) -> None:
    """Measure the copy bandwidth and the matrix rate of this machine; theory uses them from then on."""
    from tflabench import bench, machine
    from tflabench.executor import LocalExecutor

    here = machine.detect(device)
    with LocalExecutor(here.kind) as executor:
        measured = bench.calibrate(here, bench.CALIBRATED_DTYPES[here.kind], executor, seconds)
    if json_:
        print(
            json.dumps(
                {"device": here.name, "ceilings": {dtype: vars(found) for dtype, found in measured.items()}}, indent=2
            )
        )
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("dtype", "matrix rate", "copy bandwidth", title=here.name, box=None, header_style="bold")
    for dtype, found in measured.items():
        table.add_row(dtype, f"{found.flops_per_s / 1e12:.3g} TFLOP/s", f"{found.bytes_per_s / 1e9:.4g} GB/s")
    Console().print(table)


def _print_plan(points: list[Point], machine: Machine, protocol: Protocol, folder: Path, json_: bool) -> None:
    from tflabench import bench

    estimates = [bench.estimate(point, machine, protocol) for point in points]
    plan = [
        {
            "implementation": point.implementation.name,
            **_named(point),
            "refused": point.implementation.refuses(point.problem, machine.kind),
            "seconds": round(estimate.seconds, 1),
            "bytes": estimate.bytes,
        }
        for point, estimate in zip(points, estimates, strict=True)
    ]
    seconds, most = sum(estimate.seconds for estimate in estimates), max(estimate.bytes for estimate in estimates)
    if json_:
        total = {"device": machine.name, "folder": str(folder), "seconds": round(seconds), "bytes": most}
        print(json.dumps({**total, "points": plan}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(
        *(key for key in plan[0] if key not in ("refused", "bytes")), "GiB at least", "", box=None, header_style="bold"
    )
    for row in plan:
        refused, needed = row.pop("refused"), row.pop("bytes")
        cells = ["" if value is None else str(value) for value in row.values()]
        table.add_row(*cells, f"{needed / 2**30:.2f}", refused, style="dim" if refused else "")
    console = Console()
    console.print(table, highlight=False)
    runnable = sum(1 for row in estimates if row.seconds)
    console.print(
        f"{len(points)} points, {runnable} can run on {machine.name}: about {seconds / 60:.0f} min, "
        f"at least {most / 2**30:.1f} GiB at a time; rows go to {folder}",
        highlight=False,
    )


def _warn_too_big(note: Console, points: list[Point], machine: Machine, protocol: Protocol) -> None:
    from tflabench import bench

    estimates = {point.id: bench.estimate(point, machine, protocol).bytes for point in points}
    largest = max(estimates, key=lambda point: estimates[point])
    if (count := sum(needed > machine.memory_bytes for needed in estimates.values())) > 0:
        note.print(
            f"tflabench: warning: {count} of {len(points)} points will not fit in memory and be recorded as oom: {largest} needs at "
            f"least {estimates[largest] / 2**30:.1f} GiB, {machine.name} has {machine.memory_bytes / 2**30:.1f} GiB",
            style="yellow",
            highlight=False,
        )


def _draw(folder: Path, note: Console) -> list[str]:
    """Draw every figure of a results folder, next to its rows."""
    from tflabench import plots

    note.print("Drawing the figures ...")
    return [str(path) for path in plots.draw_all(folder)]


def _named(point: Point) -> dict[str, Any]:
    problem = vars(point.problem).copy()
    return {
        "pass": problem.pop("pass_"),
        **{key: value for key, value in problem.items() if key not in ("inputs", "seed")},
    }


def _plain(row: Row) -> dict[str, Any]:
    return row.model_dump(by_alias=True)


def _memory_limit(size: str | None, machine: Machine) -> int | None:
    """Bytes of host memory a worker may allocate: as asked for, else what leaves a CPU machine alive."""
    if size is None:
        return int(0.8 * machine.memory_bytes) if machine.kind == "cpu" else None
    return parse_bytes("--memory-limit", size)


def _stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True)


def _progress(note: Console) -> Progress:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), "left", TimeRemainingColumn())
    return Progress(*columns, console=note, transient=True)
