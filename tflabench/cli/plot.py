"""The command that draws stored rows: plot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tflabench.cli.common.app import app
from tflabench.cli.common.checks import words
from tflabench.cli.common.paths import Results, folder_to_write, out_folder


@app.command()
def plot(
    directory: Results,
    out: Annotated[Path | None, out_folder("the folder figures beside the rows")] = None,
    format_: Annotated[str, typer.Option("--format", help="Any of png, svg, pdf, comma-separated.")] = "png,svg",
    what: Annotated[
        str, typer.Option(help="Any of runtime, memory, chunk, roofline, comma-separated.")
    ] = "runtime,memory,chunk,roofline",
) -> None:
    """Draw runtime, memory, chunk-size trade-off and roofline of stored rows over theory; print the files written."""
    from tflabench import figures

    for path in figures.draw_all(directory, folder_to_write(out) if out else None, words(format_), words(what)):
        print(path)
