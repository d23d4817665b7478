"""The files of figures: each in several formats, with its caption as text and the rows it shows as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tflabench.figures.model import Figure
from tflabench.implementations.registry import nearest
from tflabench.problem import InputError
from tflabench.rows.table import flat

FORMATS = ("png", "svg", "pdf")
OWN_COLUMNS = ["chunk_asked", "timed"]  # that figures add to rows


def check_formats(formats: Iterable[str]) -> None:
    """Raise InputError for a format that figures do not come in, before any work is done."""
    for word in formats:
        if word not in FORMATS:
            raise InputError(f"no format is called {word!r}; {nearest(word, FORMATS)}")


def check_format(path: Path) -> None:
    """Raise InputError unless the suffix of a figure's path is one of FORMATS, before any work is done."""
    if path.suffix.lstrip(".") not in FORMATS:
        raise InputError(f"cannot draw {path}: its suffix must be one of {', '.join(f'.{name}' for name in FORMATS)}")


def write_figure(figure: Figure, path: Path) -> list[Path]:
    """Write one figure in the format that the suffix of `path` names, and its caption; return both files.

    Raises:
        InputError: another suffix than those of FORMATS, or a file that cannot be written.
    """
    from tflabench.figures.matplotlib_renderer import write

    check_format(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(figure, path)
        return [path, _write_caption(figure, path.with_suffix(".txt"))]
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def write_figures(figures: Iterable[Figure], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write figures into a folder in each format, with captions and rows; return the files.

    Raises:
        InputError: a folder that cannot be written.
    """
    from tflabench.figures.matplotlib_renderer import write

    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for figure in figures:
            for format_ in formats:
                written.append(folder / f"{figure.stem}.{format_}")
                write(figure, written[-1])
            written.append(_write_caption(figure, folder / f"{figure.stem}.txt"))
            if figure.rows is not None and len(figure.rows):
                written.append(folder / f"{figure.stem}.csv")
                columns = figure.rows.columns.intersection(OWN_COLUMNS)
                flat(figure.rows.drop(columns=columns)).to_csv(written[-1], index=False)
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}): give another folder with --out") from None
    return written


def _write_caption(figure: Figure, path: Path) -> Path:
    heads = [figure.title, figure.setting, *(panel.title for panel in figure.panels)]
    path.write_text("\n".join([*filter(None, heads), "", *figure.caption]) + "\n", encoding="utf-8")
    return path
