"""One HTML page about stored rows: a chart, a look-up, all rows, claims, machines and commands. No torch.

The page holds everything that it shows, Plotly's script included, and asks no network.
"""

from __future__ import annotations

from pathlib import Path

from tflabench.problem import InputError


def write(directory: Path | str, out: Path | str | None = None) -> Path:
    """Write the report of a results folder, or of all below a folder; return the file (default: report.html in it).

    Raises:
        InputError: no results, rows that cannot be read, plotly missing, or a file that cannot be written.
    """
    directory = Path(directory)
    out = Path(out) if out else directory / "report.html"
    from tflabench.report import page

    html = page.render(directory)
    try:
        out.write_text(html, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}): give another file with --out") from None
    return out
