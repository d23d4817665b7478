"""The command that compares our best kernel with every baseline: headline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tflabench.cli.common import app
from tflabench.cli.common.paths import Results, file_to_write, out_file


@app.command("headline")
def headline(
    directory: Results,
    subject: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN", help="Whose rows are ours: 'my_kernel,tfla_*'.", show_default="this project's kernels"
        ),
    ] = None,
    out: Annotated[Path | None, out_file("README.md", "the page is printed")] = None,
) -> None:
    """Compare our best kernel with each baseline, as Markdown: a table a figure, what is missing and why."""
    from tflabench.conclusions import headline as page

    if out is None:
        options = [] if subject is None else ["--subject", subject]
        print(page.markdown(directory, ["tflabench", "headline", str(directory), *options], subject=subject), end="")
    else:
        print(page.write(directory, file_to_write(out, "README.md"), subject))
