"""The command that draws the paper's theory figures: theory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tflabench.cli.common import app, options
from tflabench.cli.common.console import stderr
from tflabench.cli.common.paths import Overlay, folder_to_write, out_folder, print_figures
from tflabench.problem import InputError, one_of


@app.command("theory")
def theory(
    figures: Annotated[list[str] | None, typer.Argument(metavar="FIGURE", help="fig15 to fig22, or all.")] = None,
    out: Annotated[Path, out_folder()] = Path("theory"),
    overlay: Overlay = None,
    gate: Annotated[
        str, options.option(options.PROBLEM, "GATES", "Gates: exp, sig, gla, delta_net, gated_delta_net and kda.")
    ] = "exp,sig",
    pass_: Annotated[
        str, options.option(options.PROBLEM, "PASSES", "Passes: fw and fwbw, comma-separated.", "--pass")
    ] = "fw,fwbw",
    format_: options.Formats = "png",
) -> None:
    """Draw the figures of the paper's theory part, 15 to 22, for a gate and pass each; print the files written.

    Each comes with its caption (.txt) and what it shows (.csv): rows, or the points of its curves.

    Over L: FLOPs (15), theoretical runtime (17), intensity (18), a roofline (19), and FLOP/s, FLOPs and runtime (20).
    The best L: of fewest FLOPs (16), of least runtime over d_hv (21) and over the intensity of the GPU (22).
    """
    from tflabench.figures import paper
    from tflabench.figures.files import check_formats, write_figures
    from tflabench.rows.load import read_rows
    from tflabench.theory.cost import GATES

    names = [one_of("figure", name, ("all", *paper.FIGURES)) for name in figures or ["all"]]
    names = list(paper.FIGURES) if "all" in names else names
    gates = [one_of("gate", word, GATES) for word in options.words(gate)]
    passes = [one_of("pass", word, ("fw", "fwbw")) for word in options.words(pass_)]
    check_formats(formats := options.words(format_))
    rows = read_rows(overlay) if overlay else None
    out = folder_to_write(out)
    drawn = [paper.FIGURES[name](gate, pass_, rows) for name in names for gate in gates for pass_ in passes]
    if rows is not None and not any(paper.MISSING in figure.caption or figure.rows is not None for figure in drawn):
        raise InputError(f"--overlay {overlay}: figures {', '.join(names)} take no rows; 17, 19, 20 and 22 do")
    if without := [figure.stem for figure in drawn if paper.MISSING in figure.caption]:
        stderr().print(f"{', '.join(without)}: {paper.MISSING}")
    print_figures(write_figures(drawn, out, formats))
