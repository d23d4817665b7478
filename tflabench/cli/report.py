"""The command that writes a page about stored rows: report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from tflabench.cli.common import app
from tflabench.cli.common.paths import Results, out_file


@app.command("report")
def report(directory: Results, out: Annotated[Path | None, out_file("report.html", "DIR/report.html")] = None) -> None:
    """Write stored rows as one HTML page that needs no network: a chart, all rows, roofline, machines, commands."""
    from tflabench.report import page

    path = page.write(directory, out)
    print(f"{path.stat().st_size / 1e6:.1f} MB, needs no network: open it in a browser", file=sys.stderr)
    print(path)
