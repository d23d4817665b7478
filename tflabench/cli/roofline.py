"""The command that draws rooflines: roofline."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tflabench.bench.machine import chosen_gpu
from tflabench.cli.common import app, options
from tflabench.cli.common.console import RenderableType, emit
from tflabench.cli.common.paths import out_file
from tflabench.conclusions.tables import FittedTable, TableColumn
from tflabench.problem import InputError, Problem

if TYPE_CHECKING:
    from tflabench.figures.roofline import Roofline
    from tflabench.theory.hardware import Gpu

SIZES = "Mark these L: 64,128 or 16:4096:x4."
Sizes = Annotated[str, options.option(options.PROBLEM, "VALUES", SIZES, "--chunk-size")]
ROOFS = "Draw the roofs of these GPUs, comma-separated."
Gpus = Annotated[str, options.option(options.CHIP, "NAMES", ROOFS, "--gpu", autocompletion=options.complete_gpus)]


@app.command("roofline")
def roofline(  # noqa: PLR0913  options
    d_qk: options.Dqk = 256,
    d_hv: options.Dhv = 512,
    gate: options.Gate = "sig",
    chunk_size: Sizes = "16:4096:x4",
    dtype: options.Dtype = "bfloat16",
    pass_: options.Pass = "fw",
    causal_factor: options.CausalFactor = 0.5,
    state_dtype: options.StateDtype = "float32",
    counts: options.CountsName = "published",
    gpu: Gpus = "V100,A100,H100",
    out: Annotated[Path, out_file("roofline.png")] = Path("roofline.png"),
    as_json: options.Json = False,
) -> None:
    """Draw the arithmetic intensity of chunk sizes under the rooflines of GPUs. `plot` draws measured points."""
    from tflabench.figures.files import write_figures
    from tflabench.figures.roofline import of_chunk_sizes
    from tflabench.selection.axes import parse_values

    chips = [chosen_gpu(name, dtype) for name in dict.fromkeys(options.words(gpu))]
    sizes = [size for size in parse_values("chunk_size", chunk_size) if isinstance(size, int)]
    if not sizes:
        raise InputError(f"chunk_size is {chunk_size!r}: it must name chunk sizes such as 64,128 or 16:4096:x4")
    problem = Problem(1, 1, max(sizes), d_qk, d_hv, dtype=dtype, pass_=pass_)  # type: ignore[arg-type]
    drawn = of_chunk_sizes(
        chips, sizes, problem, gate, causal_factor=causal_factor, state_dtype=state_dtype, counts=counts
    )
    figure = replace(drawn.figure, stem=out.stem)
    write_figures([figure], out.parent, [out.suffix.lstrip(".")])
    print(f"wrote {out}", file=sys.stderr)
    document = {"file": str(out), "gpus": [asdict(chip) for chip in chips], "points": drawn.points}
    emit(document, _text(drawn), as_json)


def _text(drawn: Roofline) -> Iterator[RenderableType]:
    """Yield a line an L: its intensity, and what each GPU attains there."""
    from rich.text import Text

    attained = {(point["chunk_size"], point["gpu"]): point for point in drawn.points}

    def at(chip: Gpu) -> Callable[[int], str]:
        return lambda size: "{attainable_tflops:.0f} {bound}".format(**attained[size, chip.name])

    columns = [
        TableColumn("L", str),
        TableColumn("FLOP/B", lambda size: drawn.costs[size].intensity, ".0f"),
        *(
            TableColumn(f"{chip.name}\nI_acc {chip.ceilings.intensity:.0f}", at(chip), ">", drop=n)
            for n, chip in enumerate(drawn.gpus)
        ),
    ]
    yield Text(drawn.title, style="bold")
    yield FittedTable(columns, drawn.costs)
    yield "TFLOP/s that the roof allows at that intensity, and what bounds it."
