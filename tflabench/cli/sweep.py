"""The main job: sweep."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tflabench.cli.common import app, complete
from tflabench.cli.common.checks import one_of
from tflabench.cli.common.console import print_json, stderr, stdout
from tflabench.cli.common.measuring import (
    How,
    Measured,
    Shown,
    end_of,
    folder_for,
    measure_here,
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
    ExecutorName,
    Full,
    Gpus,
    Impl,
    Jobs,
    Json,
    MemoryLimit,
    MixedVersions,
    PaperProtocol,
    Plugin,
    Preset,
    RayAddress,
    StopAfter,
    Timeout,
    TuneSeconds,
    VerifySeconds,
)
from tflabench.cli.common.paths import out_folder
from tflabench.problem import InputError, parse_bytes

if TYPE_CHECKING:
    from tflabench.bench.estimate import Target
    from tflabench.cli.common import several


TakenPass = Annotated[
    str | None,
    typer.Option("--pass", metavar="PASS", rich_help_panel=WHAT, help="Take this pass: fw, fwbw or both."),
]
TargetGpu = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=WHAT,
        help="With --dry-run, select for this GPU, here or not.",
        autocompletion=complete.gpus,
    ),
]
Resume = Annotated[
    bool, typer.Option(rich_help_panel=HOW, help="Measure only comparisons that the results folder lacks.")
]
TunedFrom = Annotated[
    Path | None,
    typer.Option(metavar="DIR", rich_help_panel=HOW, help="Take the choices of autotuners from rows below this."),
]
Plots = Annotated[bool, typer.Option(rich_help_panel=OUTPUT, help="Draw the figures at the end.")]
Format = Annotated[
    str,
    typer.Option(
        "--format", rich_help_panel=OUTPUT, help="Print a table, or every point as markdown or csv, at the end."
    ),
]


class _Ending(NamedTuple):
    """The form of what is printed at the end, and the options that the text repeats."""

    format: str
    json: bool
    full: bool
    plots: bool
    resume: bool


@app.command("sweep")
def sweep(  # noqa: PLR0913  options
    preset: Preset = "quick",
    axis: Axes = None,
    impl: Impl = None,
    pass_: TakenPass = None,
    plugin: Plugin = None,
    device: Device = "auto",
    executor: ExecutorName = "local",
    ray_address: RayAddress = None,
    gpus: Gpus = None,
    allow_mixed_versions: MixedVersions = False,
    gpu: TargetGpu = None,
    out: Annotated[Path | None, out_folder("results/<device>/<preset>")] = None,
    resume: Resume = True,
    dry_run: DryRun = False,
    timeout: Timeout = 300.0,
    stop_after: StopAfter = None,
    paper_protocol: PaperProtocol = False,
    verify_seconds: VerifySeconds = None,
    tune_seconds: TuneSeconds = "20",
    tuned_from: TunedFrom = None,
    jobs: Jobs = None,
    memory_limit: MemoryLimit = None,
    full: Full = False,
    plots: Plots = True,
    format_: Format = "table",
    json_: Json = False,
) -> None:
    """Measure runtime and memory of every implementation over the axes of a preset, and draw the figures."""
    from tflabench.bench.plan import Request, plan
    from tflabench.cli.common import several
    from tflabench.implementations import registry
    from tflabench.rows.load import find_results, rows_by_point
    from tflabench.selection import axes

    stop_at = end_of(stop_after)
    ending = _Ending(one_of("--format", format_, ("table", "markdown", "csv")), json_, full, plots, resume)
    if json_ and format_ != "table":
        raise InputError(f"--json and --format {format_} are both given: give one of them")
    for name in plugin or ():
        registry.plug_in(name)
    patterns = registry.split(",".join(impl)) if impl else None
    kinds, options = axes.take_kinds([*(axis or ()), *([f"pass={pass_}"] if pass_ else ())])
    request = Request(preset, axes.parse_overrides(options), patterns, paper_protocol, verify_seconds)
    where = several.where(executor, ray_address, gpus, allow_mixed_versions, kinds, device)
    tune_s = seconds_to_tune(tune_seconds)
    tuned = tuple(row for results in find_results(tuned_from) for row in results.rows) if tuned_from else ()
    limit = None if memory_limit is None else parse_bytes("--memory-limit", memory_limit)
    if dry_run:
        if format_ != "table":
            raise InputError(f"--dry-run and --format {format_} are both given: a dry run has --json or a table")
        target, slug = _target(device, gpu, kinds)
        planned = plan(request, target.kind)
        folder = out or Path("results") / slug / planned.preset.name
        folder = folder_for(folder, given=out is not None) if resume else folder
        stored = rows_by_point(folder) if resume else {}
        print_selection(planned.comparisons, target, folder, stored, planned.protocol, Shown(timeout, full, json_))
        return
    if gpu is not None:
        _require_here(device, gpu, where)
    how = How(device, timeout, tune_s, jobs, plugin or (), limit, tuned, resume, stop_at)
    _end(several.measure_over_several(where, request, how, out) if where else measure_here(request, how, out), ending)


def _target(device: str, gpu: str | None, kinds: tuple[str, ...]) -> tuple[Target, str]:
    """Return the device to select for, and its name in paths: that of --gpu or -a gpu=KIND, else this machine's.

    Raises:
        InputError: no such GPU, or several.
    """
    from tflabench.bench.estimate import Target
    from tflabench.bench.machine import detect
    from tflabench.theory import hardware

    asked = [name for name in (gpu, *kinds) if name is not None]
    if len(asked) > 1:
        raise InputError(f"--dry-run is for {' and '.join(asked)}: give one kind of GPU, a selection is for one")
    if asked and device == "cpu":
        raise InputError(f"--device cpu and the GPU {asked[0]} are both given: give one of them")
    if not asked:
        machine = detect(device)
        return Target.of_machine(machine), machine.slug
    target = Target.of_gpu(hardware.find(asked[0]))
    return target, hardware.slug(target.name)


def _require_here(device: str, gpu: str, where: several.Where | None) -> None:
    """Refuse a --gpu that is not this machine's, or that says nothing of a sweep over several.

    Raises:
        InputError: it is refused.
    """
    from tflabench.bench.machine import detect
    from tflabench.theory import hardware

    if where is not None:
        raise InputError(f"--gpu is {gpu!r}, which is for --dry-run: for kinds of GPU give -a gpu=KIND,...")
    wanted, machine = hardware.find(gpu), detect(device)
    if machine.kind != "cuda" or hardware.from_device_name(machine.name) != wanted:
        raise InputError(f"--gpu is {gpu!r}, and this machine has {machine.name}: add --dry-run, or leave it out")


def _end(measured: Measured, ending: _Ending) -> None:
    """Draw the figures where they are wanted, and print what was measured."""
    from tflabench.conclusions.listing import listing
    from tflabench.conclusions.summary import Swept
    from tflabench.conclusions.summary import ending as ending_of

    files, undrawn = measured.files, None
    if ending.plots and measured.rows:
        from tflabench import figures

        stderr().print("Drawing the figures ...")
        try:
            files += [file for folder in measured.folders for file in figures.draw_all(folder)]
        except InputError as error:  # what was measured is printed all the same
            undrawn = error
    if ending.json:
        written = [str(path) for path in files]
        rows = [row.columns() for row in measured.rows]
        folders = [str(folder) for folder in measured.folders]
        told = {"folder": next(iter(folders), None), "folders": folders, "files": written, "left": measured.left}
        print_json(told | {"rows": rows})
    elif ending.format != "table":
        print(listing(measured.rows, ending.format), end="")  # type: ignore[arg-type]
    else:
        redraw = " && ".join(f"tflabench plot {shlex.quote(str(folder))}" for folder in measured.folders)
        again = [
            (True, "--full"),
            (ending.plots, "--no-plots"),
            (not ending.resume, "--resume"),
            (measured.left, "--stop-after 0"),
        ]
        for_all = " ".join(option for needed, option in again if needed)
        swept = Swept(measured.rows, files, redraw, measured.left, for_all)
        stdout().print(ending_of(swept, ending.full))
    if undrawn:
        raise undrawn
