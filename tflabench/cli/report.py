"""The command that writes a page about stored rows: report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tflabench.cli.common.app import app


@app.command()
def report(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A results folder written by `tflabench sweep`, or one above several.")
    ],
    out: Annotated[Path | None, typer.Option(help="The file to write. Default: DIR/report.html.")] = None,
) -> None:
    """Write stored rows as one HTML page that needs no network: headline, interactive figures, tables, commands."""
    from tflabench import report as reports

    path = reports.write(directory, out)
    print(f"{path.stat().st_size / 1e6:.1f} MB, needs no network: open it in a browser", file=sys.stderr)
    print(path)
