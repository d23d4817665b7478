"""One self-contained HTML page of stored rows: headline, interactive figures, tables, environment, commands. No torch.

The page holds everything it shows, Plotly's script included (compressed, unpacked by the browser), and asks no network.
"""

from __future__ import annotations

from pathlib import Path

from tflabench.problem import InputError

INSTALL = "pip install 'tflabench[report]'"


def write(directory: Path | str, out: Path | str | None = None) -> Path:
    """Write the report of a results folder, or of all below a folder; returns the file (default: report.html in it).

    Raises:
        InputError: no results, rows that cannot be read, plotly or jinja2 missing, or a file that cannot be written.
    """
    directory = Path(directory)
    out = Path(out) if out else directory / "report.html"
    from tflabench.report import folders

    parts = folders.find(directory)
    try:
        from tflabench.report import page
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("plotly", "jinja2"):
            raise
        raise InputError(f"the report needs the package {package}, which is not installed: {INSTALL}") from None
    html = page.render(directory, parts)
    try:
        out.write_text(html, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}): give another file with --out") from None
    return out
