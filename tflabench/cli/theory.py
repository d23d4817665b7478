"""The command that draws the paper's theory figures: theory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tflabench.cli.common import app
from tflabench.cli.common.options import PROBLEM, Formats
from tflabench.cli.common.paths import Overlay, folder_to_write, out_folder
from tflabench.problem import one_of


@app.command("theory")
def theory(
    figures: Annotated[list[str] | None, typer.Argument(metavar="[FIGURE]...", help="fig15 to fig22, or all.")] = None,
    out: Annotated[Path, out_folder()] = Path("theory"),
    overlay: Overlay = None,
    gate: Annotated[
        str,
        typer.Option(metavar="GATES", rich_help_panel=PROBLEM, help="Gates: exp and sig of the mLSTM, and gla."),
    ] = "exp,sig",
    pass_: Annotated[
        str,
        typer.Option("--pass", metavar="PASSES", rich_help_panel=PROBLEM, help="Passes: fw and fwbw, comma-separated."),
    ] = "fw,fwbw",
    format_: Formats = "png",
) -> None:
    """Draw the figures of the paper's theory part, 15 to 22, for a gate and pass each; print the files written.

    Each comes with its caption (.txt) and the rows it shows (.csv).

    FLOPs over L (15), L of fewest (16), theoretical runtime over L (17), intensity (18), roofline (19), FLOP/s, FLOPs
    and runtime over L (20), L of least runtime over d_hv (21) and over accelerator intensity (22).
    """
    from tflabench.figures import paper
    from tflabench.figures.files import FORMATS, write_figures
    from tflabench.rows.load import read_rows
    from tflabench.theory.cost import GATES

    wanted = [name for name in figures or ["all"] if name != "all"] or list(paper.FIGURES)
    for name in wanted:
        one_of("figure", name, ("all", *paper.FIGURES))
    gates = [one_of("gate", word.strip(), GATES) for word in gate.split(",")]
    passes = [one_of("pass", word.strip(), ("fw", "fwbw")) for word in pass_.split(",")]
    formats = [one_of("format", word.strip(), FORMATS) for word in format_.split(",")]
    rows = read_rows(overlay) if overlay else None
    out = folder_to_write(out)
    figures_wanted = (
        paper.FIGURES[name](own_gate, own_pass, rows) for name in wanted for own_gate in gates for own_pass in passes
    )
    for path in write_figures(figures_wanted, out, formats):
        print(path)
