"""The command for whole models: model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tflabench.cli.common import app, options
from tflabench.cli.common.console import emit
from tflabench.cli.common.options import HOW, WHAT, option
from tflabench.cli.common.paths import out_folder, print_figures
from tflabench.cli.sweep import Plots, Resume
from tflabench.problem import InputError, one_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tflabench.baselines.architectures import Form
    from tflabench.bench.devices import Devices
    from tflabench.bench.sweep import Measured

PRESETS = files("tflabench.selection.presets") / "whole"
USUAL, REVIEW, LAYERS = "whole-models", "review-1.4b", "versus"

Models = Annotated[list[str] | None, typer.Argument(metavar="MODEL", help="Such as xlstm-1.4b or 'xlstm-*'.")]
SIZES = f"Take the sizes of {USUAL}, {REVIEW} or {LAYERS}, or of a .toml or .csv file."
Preset = Annotated[str, option(WHAT, "NAME|FILE", SIZES)]
Kernels = Annotated[str | None, option(WHAT, "NAMES", "Take only these kernels, such as ours,mlstm_kernels.")]
Mode = Annotated[str | None, option(WHAT, "MODES", "Take these modes: training, prefill, decode.")]
VERSUS = f"Measure single layers ({LAYERS}), and say from which T on a linear one beats one of attention."
Versus = Annotated[bool, option(WHAT, None, VERSUS, "--versus")]
CHECKPOINTING = "Compute activations of blocks again in the backward pass."
Checkpointing = Annotated[bool, option(HOW, None, CHECKPOINTING, "--checkpointing")]
Compiled = Annotated[bool, option(HOW, None, "Run models through torch.compile.", "--compile")]


@app.command("model")
def model(  # noqa: PLR0913  options
    models: Models = None,
    preset: Preset = USUAL,
    axis: options.Axes = None,
    kernels: Kernels = None,
    mode: Mode = None,
    versus: Versus = False,
    checkpointing: Checkpointing = False,
    compiled: Compiled = False,
    device: options.Device = "auto",
    out: Annotated[Path | None, out_folder("results/DEVICE/PRESET")] = None,
    resume: Resume = True,
    timeout: options.Timeout = 300.0,
    stop_after: options.StopAfter = None,
    plots: Plots = True,
    json_: options.Json = False,
) -> None:
    """Time whole models with random weights in training, prefill and decode, on plain, others' and our kernels.

    Models are those of the package transformers. All kernels of a model take turns, as in a sweep, and rows are those
    of a sweep. docs/models.md says what a step is, and which models there are.
    """
    from tflabench import figures
    from tflabench.baselines.architectures import Form
    from tflabench.bench.devices import Devices
    from tflabench.bench.protocol import Rules, end_of
    from tflabench.bench.request import Request
    from tflabench.bench.sweep import measure
    from tflabench.conclusions.models import MODES
    from tflabench.implementations import registry
    from tflabench.progress import ProgressPrinter
    from tflabench.selection.axes import parse_overrides

    stop_at = end_of(stop_after)
    preset = LAYERS if versus and preset == USUAL else preset
    modes = [MODES[one_of("--mode", word, tuple(MODES))] for word in options.words(mode)] if mode else []
    overrides = parse_overrides([*(axis or ()), *([f"pass={','.join(modes)}"] if modes else ())])
    registry.plug_in(registry.MODELS)
    form = Form(preset == LAYERS, checkpointing, compiled)
    file = preset
    if not preset.endswith((".toml", ".csv")):
        file = str(PRESETS / f"{one_of('--preset', preset, (USUAL, REVIEW, LAYERS))}.toml")
    devices = Devices(device)
    request = Request(file, overrides, _chosen(file, devices, models, kernels, form))
    rules = Rules(timeout_s=timeout, plugins=[registry.MODELS], stop_at=stop_at)
    measured = measure(request, devices, rules, out, ProgressPrinter(), resume)
    drawn = figures.draw_all(measured.folder) if plots and measured.rows else []
    document = {"folder": str(measured.folder), "files": [str(file) for file in drawn]}
    emit(document | {"rows": [row.columns() for row in measured.rows]}, _text(measured), json_)
    if not json_:
        print_figures(drawn)
    if not any(row.status == "ok" for row in measured.rows) and not measured.left:
        raise typer.Exit(1)


def _chosen(file: str, devices: Devices, models: Sequence[str] | None, kernels: str | None, form: Form) -> list[str]:
    """Return the models of a preset, on the kernels and in the form that are asked for; InputError if there is none."""
    from tflabench.baselines.architectures import ARCHITECTURES
    from tflabench.baselines.models import IMPLEMENTATIONS, OWNERS
    from tflabench.implementations.registry import nearest
    from tflabench.selection.presets import load_preset

    for pattern in models or ():
        if not any(fnmatchcase(name, pattern) for name in ARCHITECTURES):
            raise InputError(f"no model matches {pattern!r}; {nearest(pattern, ARCHITECTURES)}")
    wanted = [one_of("--kernels", word, tuple(OWNERS)) for word in options.words(kernels)] if kernels else list(OWNERS)
    kind = devices.here().kind
    groups = [group for group in load_preset(file).groups if group.device in (None, kind)]
    there = {
        (str(impl.operation), owner): impl.name
        for impl in IMPLEMENTATIONS
        for owner in OWNERS
        if impl.name == ".".join((str(impl.operation), owner, *form.words))
        and any(group.fits(impl) for group in groups)
    }
    named = {key: name for key, name in there.items() if any(fnmatchcase(key[0], word) for word in models or ["*"])}
    names = [name for (_, owner), name in named.items() if owner in wanted]
    if named and not names:
        kernels_there = ", ".join(dict.fromkeys(owner for _, owner in named))
        raise InputError(f"--kernels is {kernels}: {', '.join(models or ['these models'])} run on {kernels_there}")
    if not names:
        named_there = ", ".join(dict.fromkeys(model for model, _ in there)) or "none"
        missing = ", ".join(models or ["model"])
        raise InputError(f"preset {Path(file).stem} has no {missing} on {kind}; it has {named_there} there")
    return names


def _text(measured: Measured) -> Iterator[RenderableType]:
    """Yield the table of what was measured, and what follows from it."""
    from tflabench.conclusions import models as conclusions
    from tflabench.conclusions.tables import FittedTable

    records = [conclusions.record(row) for row in measured.rows]
    yield FittedTable(conclusions.columns(records), records)
    yield conclusions.COUNTED
    yield from conclusions.gains(measured.rows)
    yield from conclusions.crossings(measured.rows)
    if any(record["review_s"] for record in records):
        yield conclusions.REVIEW_DIFFERS
