"""The files of a figure: the drawing in its formats, the caption as text, and the rows it shows as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tflabench.figures.matplotlib_renderer import FORMATS, write
from tflabench.figures.model import Figure
from tflabench.problem import InputError
from tflabench.rows.table import flat

OUR_COLUMNS = ["chunk_asked", "timed"]  # that `quantities.drawable` adds to rows


def check_format(path: Path) -> None:
    """Check the suffix of a figure's path: before the work, not after it.

    Raises:
        InputError: it is none of FORMATS.
    """
    if path.suffix.lstrip(".") not in FORMATS:
        raise InputError(f"cannot draw {path}: its suffix must be one of {', '.join(f'.{name}' for name in FORMATS)}")


def write_figure(figure: Figure, path: Path) -> list[Path]:
    """Write a figure to `path`, in the format that its suffix names, with its caption and rows beside it.

    Returns:
        The files written: the figure, its caption (.txt) and, where it has rows, these (.csv).

    Raises:
        InputError: a suffix that is none of FORMATS, or a file that cannot be written.
    """
    check_format(path)
    try:
        write(figure, path)
        return [path, *_beside(figure, path)]
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def write_figures(figures: Iterable[Figure], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write figures under their stems into a folder, which is made, each in every format.

    Returns:
        The files written, figure by figure: the formats, the caption (.txt), the rows (.csv).

    Raises:
        InputError: the folder cannot be made or written into.
    """
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for figure in figures:
            paths = [folder / f"{figure.stem}.{name}" for name in formats]
            for path in paths:
                write(figure, path)
            written += [*paths, *_beside(figure, folder / f"{figure.stem}.{formats[0]}")]
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}): give another folder with --out") from None
    return written


def caption(figure: Figure) -> str:
    """Return the text of a caption file: title, setting, what each panel shows, and the lines of the caption."""
    panels = [panel.title for panel in figure.panels if panel.title]
    return "\n".join(line for line in (figure.title, figure.setting, *panels, *figure.caption) if line) + "\n"


def _beside(figure: Figure, path: Path) -> list[Path]:
    """Write caption and rows beside a figure; returns the files."""
    files = [path.with_suffix(".txt")]
    files[0].write_text(caption(figure), encoding="utf-8")
    if figure.rows is not None:
        files.append(path.with_suffix(".csv"))
        flat(figure.rows.drop(columns=OUR_COLUMNS, errors="ignore")).to_csv(files[-1], index=False)
    return files
