"""The main job: sweep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tflabench.cli.common.app import app
from tflabench.cli.common.console import stderr, stdout
from tflabench.cli.common.measuring import end_of, host_memory_limit, measure_points, print_plan
from tflabench.cli.common.options import (
    Axes,
    Device,
    Impl,
    Json,
    MemoryLimit,
    Plugin,
    StopAfter,
    Timeout,
    VerifySeconds,
)


@app.command()
def sweep(
    preset: Annotated[str, typer.Option(help="What to measure: a name from tflabench/selection/presets.")] = "quick",
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
    from tflabench.bench import runner as bench
    from tflabench.bench.executor import LocalExecutor
    from tflabench.bench.machine import detect
    from tflabench.bench.protocol import PAPER, PROTOCOLS
    from tflabench.conclusions import summary
    from tflabench.implementations import registry
    from tflabench.selection import axes, presets
    from tflabench.selection import points as sweeps

    stop_at = end_of(stop_after)
    for name in plugin or ():
        registry.plug_in(name)
    machine = detect(device)
    patterns = registry.split(",".join(impl)) if impl else None
    overrides = axes.parse_overrides([*(axis or ()), *([f"pass={pass_}"] if pass_ else ())])
    settings = presets.load_preset(preset)
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
        from tflabench import figures

        note.print("Drawing the figures ...")
        files += figures.draw_all(folder)
    if json_:
        written = [str(path) for path in files]
        columns = [row.columns() for row in rows]
        print(json.dumps({"folder": str(folder), "files": written, "left": left, "rows": columns}, indent=2))
    else:
        stdout().print(summary.ending(rows, files, f"tflabench plot {folder}", left))
