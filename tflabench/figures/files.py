"""The files of figures: each in several formats, with its caption as text, and the rows or curves it shows as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tflabench.figures.model import Curve, Figure
from tflabench.problem import InputError, one_of
from tflabench.rows.table import flat

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("png", "svg", "pdf")
ADDED_COLUMNS = ["chunk_asked", "timed", "tuned_in_part", "record"]  # that figures add to rows


def check_formats(formats: Iterable[str]) -> None:
    """Raise InputError for a format that figures do not come in, before any work is done."""
    for name in formats:
        one_of("format", name, FORMATS)


def write_figures(figures: Iterable[Figure], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write figures under their stems in each format, with captions and rows; return the files, or InputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [path for figure in figures for path in _write(figure, folder / figure.stem, formats)]
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}): give another folder with --out") from None


def _write(figure: Figure, start: Path, formats: Sequence[str]) -> list[Path]:
    """Write a figure as `start`.png and so on, its caption as `start`.txt and its rows as .csv; return the files."""
    from tflabench.figures.matplotlib_renderer import write

    *drawings, text, table = (start.with_name(f"{start.name}.{ending}") for ending in (*formats, "txt", "csv"))
    for path in drawings:
        write(figure, path)
    heads = [figure.title, figure.setting, *(panel.title for panel in figure.panels)]
    text.write_text("\n".join([*filter(None, heads), "", *figure.caption]) + "\n", encoding="utf-8")
    if figure.rows is not None and len(figure.rows):
        flat(figure.rows.drop(columns=ADDED_COLUMNS, errors="ignore")).to_csv(table, index=False)
    elif len(drawn := _drawn(figure)):
        drawn.to_csv(table, index=False, float_format="%.6g")
    else:
        return [*drawings, text]
    return [*drawings, text, table]


def _drawn(figure: Figure) -> pd.DataFrame:
    """Return the points of the curves of a figure of theory: panel, name, x and y."""
    import pandas as pd

    curves = [(panel, item) for panel in figure.panels for item in panel.items if isinstance(item, Curve)]
    points = [
        {"panel": panel.title or panel.y.label, "curve": item.label, "x": x, "y": y}
        for panel, item in curves
        for x, y in zip(item.x, item.y, strict=True)
    ]
    return pd.DataFrame(points)
