"""The main job: sweep."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from tflabench.cli.common import complete
from tflabench.cli.common.app import command
from tflabench.cli.common.checks import one_of
from tflabench.cli.common.console import print_json, stderr, stdout
from tflabench.cli.common.measuring import (
    Shown,
    compilers,
    end_of,
    folder_for,
    host_memory_limit,
    measure_comparisons,
    print_selection,
    seconds_to_tune,
)
from tflabench.cli.common.options import (
    HOW,
    OUTPUT,
    WHAT,
    Axes,
    Device,
    DryRun,
    Full,
    Impl,
    Jobs,
    Json,
    MemoryLimit,
    PaperProtocol,
    Plugin,
    Preset,
    StopAfter,
    Timeout,
    TuneSeconds,
    VerifySeconds,
)
from tflabench.cli.common.paths import folder_to_write, out_folder
from tflabench.problem import InputError


@command("sweep")
def sweep(
    preset: Preset = "quick",
    axis: Axes = None,
    impl: Impl = None,
    pass_: Annotated[
        str | None,
        typer.Option("--pass", metavar="PASS", rich_help_panel=WHAT, help="Take this pass: fw, fwbw or both."),
    ] = None,
    plugin: Plugin = None,
    device: Device = "auto",
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=WHAT,
            help="With --dry-run, select for this GPU, here or not.",
            autocompletion=complete.gpus,
        ),
    ] = None,
    out: Annotated[Path | None, out_folder("results/<device>/<preset>")] = None,
    resume: Annotated[
        bool, typer.Option(rich_help_panel=HOW, help="Measure only comparisons that the results folder lacks.")
    ] = True,
    dry_run: DryRun = False,
    timeout: Timeout = 300.0,
    stop_after: StopAfter = None,
    paper_protocol: PaperProtocol = False,
    verify_seconds: VerifySeconds = None,
    tune_seconds: TuneSeconds = "20",
    tuned_from: Annotated[
        Path | None,
        typer.Option(metavar="DIR", rich_help_panel=HOW, help="Take the choices of autotuners from rows below this."),
    ] = None,
    jobs: Jobs = None,
    memory_limit: MemoryLimit = None,
    full: Full = False,
    plots: Annotated[bool, typer.Option(rich_help_panel=OUTPUT, help="Draw the figures at the end.")] = True,
    format_: Annotated[
        str,
        typer.Option(
            "--format", rich_help_panel=OUTPUT, help="Print a table, or every point as markdown or csv, at the end."
        ),
    ] = "table",
    json_: Json = False,
) -> None:
    """Measure runtime and memory of every implementation over the axes of a preset, and draw the figures."""
    from tflabench.bench import machine as machines
    from tflabench.bench.estimate import Target
    from tflabench.bench.plan import Request, plan
    from tflabench.bench.sweep import Session, Settings, require_runnable
    from tflabench.conclusions.brief import BriefEnding
    from tflabench.conclusions.listing import listing
    from tflabench.conclusions.summary import Swept, full_ending
    from tflabench.implementations import registry
    from tflabench.rows.load import find_results
    from tflabench.selection import axes
    from tflabench.theory import hardware

    stop_at = end_of(stop_after)
    one_of("--format", format_, ("table", "markdown", "csv"))
    if json_ and format_ != "table":
        raise InputError(f"--json and --format {format_} are both given: give one of them")
    for name in plugin or ():
        registry.plug_in(name)
    machine = machines.detect(device)
    target = Target.of_machine(machine)
    if gpu is not None:
        wanted = hardware.find(gpu)
        here = hardware.from_device_name(machine.name) if machine.kind == "cuda" else None
        if not dry_run and here != wanted:
            raise InputError(f"--gpu is {gpu!r}, and this machine has {machine.name}: add --dry-run, or leave it out")
        target = target if here == wanted and not dry_run else Target.of_gpu(wanted)
    patterns = registry.split(",".join(impl)) if impl else None
    overrides = axes.parse_overrides([*(axis or ()), *([f"pass={pass_}"] if pass_ else ())])
    planned = plan(Request(preset, overrides, patterns, paper_protocol, verify_seconds), target.kind)
    selected, protocol = planned.comparisons, planned.protocol
    tune_s = seconds_to_tune(tune_seconds)
    tuned = tuple(row for results in find_results(tuned_from) for row in results.rows) if tuned_from else ()
    slug = machine.slug if gpu is None else hardware.slug(target.name)
    folder = out or Path("results") / slug / planned.preset.name

    note = stderr()
    if target.kind == "cpu" and device == "auto":
        note.print(f"No NVIDIA GPU here: running preset {preset} on the CPU ({machine.name}).")
    if dry_run:
        print_selection(selected, target, folder, protocol, Shown(timeout, full, json_))
        return
    require_runnable(planned.points, machine.kind)
    if out is not None:
        folder_to_write(out)
    folder = folder_for(folder, given=out is not None) if resume else folder
    limit = host_memory_limit(memory_limit, machine)
    settings = Settings(machine, protocol, timeout, tune_s, compilers(jobs), plugin or (), limit, tuned)
    with Session(settings) as session:
        measured = measure_comparisons(selected, folder, session, planned.preset.title, resume, stop_at)
    files = measured.files
    if plots and measured.rows:
        from tflabench import figures

        note.print("Drawing the figures ...")
        files += figures.draw_all(folder)
    if json_:
        written = [str(path) for path in files]
        rows = [row.columns() for row in measured.rows]
        print_json({"folder": str(folder), "files": written, "left": measured.left, "rows": rows})
    elif format_ != "table":
        print(listing(measured.rows, format_), end="")  # type: ignore[arg-type]
    else:
        redraw = f"tflabench plot {shlex.quote(str(folder))}"
        again = [(True, "--full"), (plots, "--no-plots"), (not resume, "--resume"), (measured.left, "--stop-after 0")]
        for_all = " ".join(option for needed, option in again if needed)
        swept = Swept(measured.rows, files, redraw, measured.left, for_all)
        stdout().print(full_ending(swept) if full else BriefEnding(swept))
