"""The command that draws stored rows: plot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tflabench.cli.common import app, options
from tflabench.cli.common.paths import Results, folder_to_write, out_folder, print_figures
from tflabench.problem import InputError


@app.command("plot")
def plot(
    directory: Results,
    out: Annotated[Path | None, out_folder("the folder figures beside the rows")] = None,
    format_: options.Formats = "png,svg",
    what: Annotated[
        str, options.option(None, "FIGURES", "Draw any of runtime, memory, chunk, gates and roofline, comma-separated.")
    ] = "runtime,memory,chunk,gates,roofline",
    highlight: Annotated[
        str | None, options.option(None, "PATTERN", "Colour and name these implementations, at most 7.")
    ] = None,
) -> None:
    """Draw runtime, memory, trade-offs and roofline of stored rows over theory; print the files written."""
    from tflabench import figures
    from tflabench.implementations.registry import split

    named = split(highlight) if highlight else ()
    if highlight and not named:
        raise InputError(f"--highlight is {highlight!r}: it must name implementations, such as 'tfla_*'")
    folder = folder_to_write(out) if out else None
    print_figures(figures.draw_all(directory, folder, options.words(format_), options.words(what), named))
