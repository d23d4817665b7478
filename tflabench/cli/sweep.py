"""The main job: sweep."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tflabench.cli.common import app, complete, options
from tflabench.cli.common.console import print_json, stderr, stdout
from tflabench.cli.common.dry_run import print_selection
from tflabench.cli.common.options import HOW, OUTPUT, WHAT, option
from tflabench.cli.common.paths import out_folder
from tflabench.problem import InputError, one_of

if TYPE_CHECKING:
    from tflabench.bench.devices import Devices
    from tflabench.bench.estimate import Target
    from tflabench.bench.request import Request
    from tflabench.bench.sweep import Measured

FULL = "full"
FAILED = ("wrong", "error", "compile_error", "crashed", "timeout")
LONGEST_S = 1e9  # of any time that is given: more is a slip

TakenPass = Annotated[str | None, option(WHAT, "PASS", "Take this pass: fw, fwbw or both.", "--pass")]
KINDS = "Measure on these kinds of GPU, such as H100,H200; a dry run selects for one, here or not."
Kinds = Annotated[str | None, option(WHAT, "NAMES", KINDS, "--gpu", autocompletion=complete.gpus)]
TIMES = "Take these times of a point: cold, graph (CUDA graph), eager (with the host), alone (row by row)."
Times = Annotated[str | None, option(HOW, "TIMES", TIMES, "--times", show_default="cold, or the preset's")]
LOCK = "Print how to lock the GPU's clock, which the bench never does, and hold the clock that is seen to this."
LockClocks = Annotated[float | None, option(HOW, "MHZ", LOCK, "--lock-clocks", min=1, max=LONGEST_S)]
Resume = Annotated[bool, option(HOW, None, "Measure only comparisons that the results folder lacks.")]
TunedFrom = Annotated[Path | None, option(HOW, "DIR", "Take the choices of autotuners from rows below this.")]
Plots = Annotated[bool, option(OUTPUT, None, "Draw the figures at the end.")]
FORMAT = "Print a table, or every point as markdown or csv, at the end."
Format = Annotated[str, option(OUTPUT, None, FORMAT, "--format")]


class _Ending(NamedTuple):
    """The form of what is printed at the end, and the options that the text repeats."""

    format: str
    json: bool
    full: bool
    plots: bool
    resume: bool


@app.command("sweep")
def sweep(  # noqa: PLR0913  options
    preset: options.Preset = "quick",
    axis: options.Axes = None,
    impl: options.Impl = None,
    pass_: TakenPass = None,
    plugin: options.Plugin = None,
    device: options.Device = "auto",
    executor: options.ExecutorName = "local",
    ray_address: options.RayAddress = None,
    gpus: options.Gpus = None,
    allow_mixed_versions: options.MixedVersions = False,
    gpu: Kinds = None,
    out: Annotated[Path | None, out_folder("results/DEVICE/PRESET")] = None,
    resume: Resume = True,
    dry_run: options.DryRun = False,
    timeout: options.Timeout = 300.0,
    stop_after: options.StopAfter = None,
    paper_protocol: options.PaperProtocol = False,
    times: Times = None,
    lock_clocks: LockClocks = None,
    verify_seconds: options.VerifySeconds = None,
    tune_seconds: options.TuneSeconds = "20",
    tuned_from: TunedFrom = None,
    jobs: options.Jobs = None,
    memory_limit: options.MemoryLimit = None,
    full: options.Full = False,
    plots: Plots = True,
    format_: Format = "table",
    json_: options.Json = False,
) -> None:
    """Measure runtime and memory of every implementation over the axes of a preset, and draw the figures."""
    from tflabench.bench.devices import Devices
    from tflabench.bench.protocol import Rules, end_of
    from tflabench.bench.request import Request
    from tflabench.bench.sweep import measure
    from tflabench.progress import ProgressPrinter
    from tflabench.rows.load import find_results
    from tflabench.selection import axes

    stop_at = end_of(stop_after)
    ending = _Ending(one_of("--format", format_, ("table", "markdown", "csv")), json_, full, plots, resume)
    if json_ and format_ != "table":
        raise InputError(f"--json and --format {format_} are both given: give one of them")
    overrides = axes.parse_overrides([*(axis or ()), *([f"pass={pass_}"] if pass_ else ())])
    taken = None if times is None else options.words(times)
    request = Request(preset, overrides, impl, paper_protocol, verify_seconds, taken, lock_clocks)
    if lock_clocks is not None:
        stderr().print(f"Lock the clock before:  sudo nvidia-smi --lock-gpu-clocks={lock_clocks:g},{lock_clocks:g}")
        stderr().print("and set it free after:  sudo nvidia-smi --reset-gpu-clocks")
    kinds = tuple(dict.fromkeys(options.words(gpu))) if gpu is not None else ()
    devices = Devices(device, kinds, gpus, executor, ray_address, allow_mixed_versions)
    rules = Rules(
        timeout_s=timeout,
        tune_s=seconds_to_tune(tune_seconds),
        jobs=jobs,
        plugins=plugin or (),
        memory_limit=memory_limit,
        tuned=[row for results in find_results(tuned_from) for row in results.rows] if tuned_from else (),
        stop_at=stop_at,
    )
    if not dry_run:
        measured = measure(request, devices, rules, out, ProgressPrinter(), resume)
        _end(measured, ending._replace(plots=plots and not measured.unsaved))
        for line in measured.unsaved:
            stderr().print(line)
        if measured.unsaved or has_failed(measured, impl, plugin):
            raise typer.Exit(1)
    elif format_ != "table":
        raise InputError(f"--dry-run and --format {format_} are both given: a dry run has --json or a table")
    else:
        _print_dry_run(request, devices, out, timeout, ending)


def has_failed(measured: Measured, impl: Sequence[str] | None, plugin: Sequence[str] | None) -> bool:
    """Return whether a sweep is a failure: nothing of it is ok, or something that the user named has failed.

    Args:
        impl: patterns of implementations; those without a wildcard are names.
        plugin: plugins; without patterns all that they bring is named.
    """
    if not any(row.status == "ok" for row in measured.rows):
        return not measured.left
    brought = bool(plugin) and not impl
    return any(
        row.status in FAILED and (row.implementation in (impl or ()) or (brought and row.plugin_hash is not None))
        for row in measured.rows
    )


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
        seconds = math.nan
    if math.copysign(1, seconds) < 0 or not 0 <= seconds <= LONGEST_S:
        raise InputError(f"--tune-seconds is {text!r}: it must be a number of seconds, or {FULL}")
    return seconds


def _print_dry_run(request: Request, devices: Devices, out: Path | None, timeout_s: float, ending: _Ending) -> None:
    """Print what would be measured on one kind of device."""
    from tflabench.bench.sweep import folder_for
    from tflabench.rows.load import rows_by_point

    target, slug = _target(devices)
    selection = request.select(target.kind)
    folder = out or Path("results") / slug / selection.preset.name
    folder = folder_for(folder, target.name, out is not None, stderr().print) if ending.resume else folder
    stored = rows_by_point(folder) if ending.resume else {}
    print_selection(
        selection.comparisons, target, folder, stored, selection.protocol, timeout_s, full=ending.full, json=ending.json
    )


def _target(devices: Devices) -> tuple[Target, str]:
    """Return the device to select for, and its name in paths: that of --gpu, here or not, else this machine's.

    Raises:
        InputError: no such GPU, or several.
    """
    from tflabench.bench.estimate import Target
    from tflabench.theory import hardware

    if len(devices.kinds) > 1:
        raise InputError(
            f"--dry-run is for {' and '.join(devices.kinds)}: give one kind of GPU, a selection is for one"
        )
    if not devices.kinds:
        here = devices.here()
        return Target.of_machine(here), here.slug
    target = Target.of_gpu(hardware.find(devices.kinds[0]))
    return target, hardware.slug(target.name)


def _end(measured: Measured, ending: _Ending) -> None:
    """Draw the figures where they are wanted, and print what was measured."""
    from tflabench.conclusions.summary import Swept
    from tflabench.conclusions.summary import ending as ending_of
    from tflabench.rows.table import listing

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
        head = {"folder": next(iter(folders), None), "folders": folders, "files": written, "left": measured.left}
        print_json(head | {"rows": rows})
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
        swept = Swept(measured.rows, files, redraw, measured.left, for_all, measured.before)
        stdout().print(ending_of(swept, ending.full))
    if undrawn:
        raise undrawn
