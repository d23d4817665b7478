"""The main job: sweep."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tflabench.cli.common import app, options
from tflabench.cli.common.console import RenderableType, emit, stderr
from tflabench.cli.common.options import HOW, OUTPUT, WHAT, option
from tflabench.cli.common.paths import out_folder
from tflabench.conclusions.tables import FittedTable, TableColumn
from tflabench.problem import InputError, size_in_words

if TYPE_CHECKING:
    from tflabench.bench.devices import Devices
    from tflabench.bench.request import Request
    from tflabench.bench.sweep import Measured

FULL = "full"
FAILED = ("wrong", "error", "compile_error", "crashed", "timeout")

TakenPass = Annotated[str | None, option(WHAT, "PASS", "Take this pass: fw, fwbw, both or decode.", "--pass")]
KIND = "Measure on this kind of GPU or not at all; a dry run selects for it, here or not."
Kind = Annotated[str | None, option(WHAT, "NAME", KIND, "--gpu", autocompletion=options.complete_gpus)]
TIMES = "Take these times of a point: cold, graph (CUDA graph), eager (with the host), alone (row by row)."
Times = Annotated[str | None, option(HOW, "TIMES", TIMES, "--times", show_default="cold, or the preset's")]
LOCK = "Print how to lock the GPU's clock, which the bench never does, and hold the clock that is seen to this."
LockClocks = Annotated[float | None, option(HOW, "MHZ", LOCK, "--lock-clocks", min=1, max=options.MOST_SECONDS)]
Resume = Annotated[bool, option(HOW, None, "Measure only comparisons that the results folder lacks.")]
TunedFrom = Annotated[Path | None, option(HOW, "DIR", "Take the choices of autotuners from rows below this.")]
Plots = Annotated[bool, option(OUTPUT, None, "Draw the figures at the end.")]


@app.command("sweep")
def sweep(  # noqa: PLR0913  options
    preset: options.Preset = "quick",
    axis: options.Axes = None,
    impl: options.Impl = None,
    pass_: TakenPass = None,
    plugin: options.Plugin = None,
    device: options.Device = "auto",
    gpus: options.Gpus = None,
    gpu: Kind = None,
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
    overrides = axes.parse_overrides([*(axis or ()), *([f"pass={pass_}"] if pass_ else ())])
    taken = None if times is None else options.words(times)
    request = Request(preset, overrides, impl, paper_protocol, verify_seconds, taken, lock_clocks)
    if lock_clocks is not None:
        stderr().print(f"Lock the clock before:  sudo nvidia-smi --lock-gpu-clocks={lock_clocks:g},{lock_clocks:g}")
        stderr().print("and set it free after:  sudo nvidia-smi --reset-gpu-clocks")
    devices = Devices(device, gpu, gpus)
    rules = Rules(
        timeout_s=timeout,
        tune_s=seconds_to_tune(tune_seconds),
        jobs=jobs,
        plugins=plugin or (),
        memory_limit=memory_limit,
        tuned=[row for results in find_results(tuned_from) for row in results.rows] if tuned_from else (),
        stop_at=stop_at,
    )
    if dry_run:
        document = _dry_run(request, devices, out, timeout, resume)
        emit(document, _text(document), json_)
        return
    measured = measure(request, devices, rules, out, ProgressPrinter(), resume)
    _end(measured, json=json_, full=full, plots=plots and not measured.unsaved)
    if measured.unsaved:
        stderr().print(measured.unsaved)
    if measured.unsaved or has_failed(measured, impl, plugin):
        raise typer.Exit(1)


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
    """Return the seconds of --tune-seconds, None for "full"; InputError for anything else."""
    if text == FULL:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if math.copysign(1, seconds) < 0 or not 0 <= seconds <= options.MOST_SECONDS:
        raise InputError(f"--tune-seconds is {text!r}: it must be a number of seconds, or {FULL}")
    return seconds


def _dry_run(request: Request, devices: Devices, out: Path | None, timeout_s: float, resume: bool) -> dict[str, Any]:
    """Return what would be measured on a device, about how long that takes, and how much memory.

    The device is that of --gpu, here or not, else this machine's; no point takes longer than `timeout_s`.
    """
    from tflabench.bench.estimate import Target, estimate
    from tflabench.bench.sweep import folder_for, pending, warn_too_big
    from tflabench.rows.load import rows_by_point
    from tflabench.theory import hardware

    target = Target.of_gpu(hardware.find(devices.gpu)) if devices.gpu else Target.of_machine(devices.here())
    selection = request.select(target.kind)
    folder = out or Path("results") / hardware.slug(target.name) / selection.preset.name
    folder = folder_for(folder, target.name, out is not None, stderr().print) if resume else folder
    stored = rows_by_point(folder) if resume else {}
    compared, rules = selection.comparisons, selection.protocol
    points = [(number, point) for number, comparison in enumerate(compared, 1) for point in comparison.points]
    estimates = {point.id: estimate(point, target, rules) for _, point in points}
    warn_too_big(estimates, target.memory_bytes)
    planned = [
        {
            "comparison": number,
            "implementation": point.implementation.name,
            "family": point.implementation.family,
            "gate": point.implementation.gate,
            **point.problem.columns(),
            "seconds": round(min(estimates[point.id].seconds, timeout_s), 1),
            "bytes": estimates[point.id].bytes,
            "refused": target.refusal(point),
        }
        for number, point in points
    ]
    lacking = {point.id for comparison in pending(compared, stored, rules, target.kind) for point in comparison.points}
    due = [row for (_, point), row in zip(points, planned, strict=True) if point.id in lacking]
    seconds, seconds_left = (round(sum(row["seconds"] for row in rows)) for rows in (planned, due))
    totals = {"seconds": seconds, "seconds_left": seconds_left, "points_left": len(due)}
    return {"device": target.name, "folder": str(folder), **totals, "points": planned}


def _end(measured: Measured, *, json: bool, full: bool, plots: bool) -> None:
    """Draw the figures where they are wanted, and print what was measured."""
    from tflabench.conclusions.summary import ending

    files, undrawn = measured.files, None
    if plots and measured.rows:
        from tflabench import figures

        stderr().print("Drawing the figures ...")
        try:
            files += figures.draw_all(measured.folder)
        except InputError as error:  # what was measured is printed all the same
            undrawn = error
    written = [str(path) for path in files]
    document = {"folder": str(measured.folder), "files": written, "left": measured.left}
    redraw = f"tflabench plot {shlex.quote(str(measured.folder))}"
    if json:
        emit(document | {"rows": [row.columns() for row in measured.rows]}, (), json)
    else:
        text = ending(measured.rows, files, redraw, left=measured.left, before=measured.before, full=full)
        emit(document, [text], json)
    if undrawn:
        raise undrawn


def _text(document: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield a table of comparisons, what cannot run and why, and what all takes."""
    selection, folder = document["points"], document["folder"]
    yield _comparisons_table(selection)
    names: dict[str, dict[str, None]] = {}
    for row in selection:
        if row["refused"]:
            names.setdefault(row["refused"], {})[row["implementation"]] = None
    for reason, refused in names.items():
        yield f"cannot run ({reason}): {', '.join(refused)}"
    runnable = sum(not row["refused"] for row in selection)
    most, comparisons = max(row["bytes"] for row in selection), selection[-1]["comparison"]
    yield (
        f"{len(selection)} points in {comparisons} comparison{'s' * (comparisons != 1)}, {runnable} can run on "
        f"{document['device']}: about {max(1, round(document['seconds'] / 60))} min; at least {size_in_words(most)} of "
        f"memory; rows go to {folder}"
    )
    if lacking := len(selection) - document["points_left"]:
        minutes = max(1, round(document["seconds_left"] / 60))
        rest = f"about {minutes} min are left" if document["points_left"] else "nothing is left"
        yield f"{folder} has {lacking} of them: {rest}"


def _comparisons_table(selection: Sequence[dict[str, Any]]) -> FittedTable:
    """Return a line a comparison."""
    points = [{**row, "heads_qk": row["heads_qk"] or row["heads"], "ranks": row["ranks"] or 1} for row in selection]
    by_comparison = [list(rows) for _, rows in groupby(points, itemgetter("comparison"))]

    def column(head: str, name: str, drop: int = 0) -> TableColumn:
        return TableColumn(head, lambda rows: _range([row[name] for row in rows]), ">", drop)

    seldom = [column(name, name) for name in ("heads_qk", "ranks", "gates", "inputs")]
    columns = [
        column("", "comparison"),
        column("pass", "pass"),
        column("batch", "batch"),
        column("heads", "heads"),
        *(cells for cells in seldom if len({cells.cell(rows) for rows in by_comparison}) > 1),
        column("T", "seq_len"),
        column("d_qk", "d_qk"),
        column("d_hv", "d_hv"),
        column("dtype", "dtype", drop=2),
        TableColumn("run", lambda rows: f"{sum(not row['refused'] for row in rows)}/{len(rows)}", ">"),
        TableColumn("min", lambda rows: sum(row["seconds"] for row in rows) / 60, ".1f", drop=1),
        TableColumn("memory", lambda rows: size_in_words(max(row["bytes"] for row in rows)), ">", drop=1),
    ]
    return FittedTable(columns, by_comparison)


def _range(values: Sequence[Any]) -> str:
    """Return the one value of a column, or the least and the most of several."""
    least, most = min(values), max(values)
    return str(least) if least == most else f"{least}-{most}"
