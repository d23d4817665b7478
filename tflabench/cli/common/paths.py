"""The meaning of paths, the same for every command: folders of rows that are read, and --out.

Rows: a path is a results folder or a folder above several; all results folders in and below it are read
(`tflabench.rows.load.find_results`).

--out: a command that writes one file takes its name, or a folder for the file of its usual name there. A command that
writes several files takes the folder. Folders that are missing are made, and files of the same name replaced.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tflabench.cli.common.options import OUTPUT
from tflabench.problem import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable


ROWS = "A results folder or a folder above several: all rows in it and below are read."

Results = Annotated[Path, typer.Argument(metavar="DIR", help=ROWS)]
Overlay = Annotated[
    Path | None,
    typer.Option(metavar="DIR", rich_help_panel=OUTPUT, help="Lay the measured rows in and below this folder over."),
]


def out_file(name: str, otherwise: str | None = None) -> Any:
    """Return the option --out of a command that writes one file, which gives it a path with a folder that exists.

    Args:
        name: the file in a folder that the user names; a .png stands for a figure in any format.
        otherwise: what happens without the option, where the default does not say it.
    """
    formats = " (.png, .svg or .pdf)" if name.endswith(".png") else ""
    return typer.Option(
        "--out",
        metavar="FILE",
        help=f"Write this file{formats}, or {name} in this folder.",
        callback=lambda out: out and _file_to_write(Path(out), name),
        show_default=otherwise or True,  # type: ignore[arg-type]
        rich_help_panel=OUTPUT,
    )


def out_folder(otherwise: str | None = None) -> Any:
    """Return the option --out of a command that writes several files; `otherwise` as in `out_file`."""
    return typer.Option(
        "--out",
        metavar="DIR",
        help="Write into this folder, which is made where it is missing.",
        show_default=otherwise or True,  # type: ignore[arg-type]
        rich_help_panel=OUTPUT,
    )


def _file_to_write(out: Path, name: str) -> Path:
    """Return the file that --out means, `name` in it where it is a folder, which is made; InputError if it cannot."""
    from tflabench.figures.files import FORMATS

    path, suffix = (out / name if out.is_dir() else out), Path(name).suffix
    if suffix == ".png" and path.suffix.lstrip(".") not in FORMATS:
        suffixes = ", ".join(f".{name}" for name in FORMATS)
        raise InputError(f"cannot draw {path}: its suffix must be one of {suffixes}")
    if suffix != ".png" and path.suffix not in ("", suffix):
        raise InputError(f"--out is {out}: what is written there is a {suffix} file, give it that suffix")
    _make(path.parent, out, "--out")
    return path


def print_figures(files: Iterable[Path]) -> None:
    """Print a line for each figure: its first file, and the suffixes of the others of that name."""
    for _, of_figure in groupby(files, lambda path: path.with_suffix("")):
        first, *formats = of_figure
        print(first, *(path.suffix for path in formats), sep=", ")


def folder_to_write(out: Path, option: str = "--out", make: bool = True) -> Path:
    """Return the folder that an option means, made if `make`; InputError where it is a file, or cannot be made."""
    if out.exists() and not out.is_dir():
        raise InputError(
            f"{option} is {out}, which cannot be written into: it is a file, and this command needs a folder"
        )
    if make:
        _make(out, out, option)
    return out


def _make(folder: Path, path: Path, option: str) -> None:
    """Make a folder; raise InputError with the path that the option gave where it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{option} is {path}, which cannot be written ({error.strerror}): give another path") from None
