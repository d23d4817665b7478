"""The command that compares our best kernel with every baseline: headline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tflabench.cli.common.app import command
from tflabench.cli.common.paths import Results, file_to_write, out_file


@command("headline")
def headline(
    directory: Results,
    out: Annotated[Path | None, out_file("README.md", "the page is printed")] = None,
) -> None:
    """Compare our best kernel with each baseline, as Markdown: a table a figure, what is missing and why."""
    from tflabench.conclusions import headline as page

    if out is None:
        print(page.markdown(directory, ["tflabench", "headline", str(directory)]), end="")
    else:
        print(page.write(directory, file_to_write(out, "README.md")))
