"""The meaning of paths, the same for every command: folders of rows that are read, and --out.

Rows: a path is a results folder or a folder above several; all results folders in and below it are read
(`tflabench.rows.load.find_results`).

--out: a command that writes one file takes its name, or a folder for the file of its usual name there. A command that
writes several files takes the folder. Folders that are missing are made, and files of the same name replaced.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tflabench.cli.common.options import OUTPUT
from tflabench.problem import InputError

ROWS = "A results folder or a folder above several: all rows in it and below are read."
_FILE = "Write this file{formats}, or {name} in this folder."
_FOLDER = "Write into this folder, which is made where it is missing."

Results = Annotated[Path, typer.Argument(metavar="DIR", help=ROWS)]
SomeResults = Annotated[list[Path] | None, typer.Argument(metavar="DIR...", help=ROWS, show_default=False)]
Overlay = Annotated[
    Path | None,
    typer.Option(metavar="DIR", rich_help_panel=OUTPUT, help="Lay the measured rows in and below this folder over."),
]


def out_file(name: str, otherwise: str | None = None) -> Any:
    """Return the option --out of a command that writes one file.

    Args:
        name: the file in a folder that the user names; its suffix says whether it is a figure.
        otherwise: what happens without the option, where the default does not say it.
    """
    formats = " (.png, .svg or .pdf)" if name.endswith(".png") else ""
    return typer.Option(
        "--out",
        metavar="FILE",
        help=_FILE.format(formats=formats, name=name),
        show_default=otherwise or True,  # type: ignore[arg-type]
        rich_help_panel=OUTPUT,
    )


def out_folder(otherwise: str | None = None) -> Any:
    """Return the option --out of a command that writes several files; `otherwise` as in `out_file`."""
    return typer.Option(
        "--out",
        metavar="DIR",
        help=_FOLDER,
        show_default=otherwise or True,  # type: ignore[arg-type]
        rich_help_panel=OUTPUT,
    )


def file_to_write(out: Path, name: str, option: str = "--out") -> Path:
    """Return the file that an option means: `name` in it where it is a folder.

    Its folder is made.

    Raises:
        InputError: its suffix is that of another kind of file than `name`, or the folder cannot be made.
    """
    path = out / name if out.is_dir() else out
    suffix = Path(name).suffix
    if path.suffix not in ("", suffix):
        raise InputError(f"{option} is {out}: what is written there is a {suffix} file, give it that suffix")
    _make(path.parent, out, option)
    return path


def figure_to_write(out: Path, name: str) -> Path:
    """Return the file that --out means as `file_to_write` does, for a figure.

    Raises:
        InputError: no figure comes in the format of its suffix, or its folder cannot be made.
    """
    from tflabench.figures.files import check_format

    path = out / name if out.is_dir() else out
    check_format(path)
    _make(path.parent, out, "--out")
    return path


def folder_to_write(out: Path, option: str = "--out", make: bool = True) -> Path:
    """Return the folder that an option means, and make it, unless `make` is false.

    Raises:
        InputError: it is a file, or cannot be made.
    """
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
