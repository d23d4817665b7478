"""The commands that show and clear caches: cache, cache clear."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from tflabench.cli.common import options
from tflabench.cli.common.app import cache
from tflabench.cli.common.console import RenderableType, Unwrapped, emit
from tflabench.conclusions.tables import FittedTable, TableColumn
from tflabench.problem import InputError, one_of, size_in_words

# name -> what it holds
WHAT = {
    "kernels": "kernels that Triton compiled, those of other programs too",
    "tuning": "choices of autotuners",
    "ceilings": "measured ceilings of this machine (tflabench calibrate)",
}


@cache.callback()
def show(ctx: typer.Context, json_: options.Json = False) -> None:
    """Show where caches lie and how large they are, or clear them."""
    if ctx.invoked_subcommand is not None:
        return
    sizes = [{"cache": name, "path": str(path), **_size(path)} for name, path in _places().items()]
    document = {row["cache"]: {key: row[key] for key in ("path", "bytes", "files")} for row in sizes}
    emit(document, _text(sizes), json_)


def _text(sizes: list[dict[str, Any]]) -> Iterator[RenderableType]:
    columns = [
        TableColumn("cache", "cache"),
        TableColumn("size", lambda row: size_in_words(row["bytes"]), ">"),
        TableColumn("files", "files", "d"),
        TableColumn("holds", lambda row: WHAT[row["cache"]]),
    ]
    yield FittedTable(columns, sizes)
    yield "They lie, in this order, at"
    yield from (Unwrapped(row["path"]) for row in sizes)
    yield "tflabench cache clear [WHAT] removes all of them, or those named."


@cache.command("clear")
def clear(
    caches: Annotated[list[str] | None, typer.Argument(metavar="WHAT", help=f"Any of {', '.join(WHAT)}.")] = None,
) -> None:
    """Remove caches: all of them, or those named.

    Kernels are compiled again when they are needed, autotuners try their configurations again, and percentages are of
    the datasheet until the next sweep or `tflabench calibrate`.
    """
    for name in [one_of("WHAT", word, tuple(WHAT)) for word in caches or WHAT]:
        path = _places()[name]
        size = _size(path)
        try:
            if path.is_file():
                path.unlink()
            for entry in path.iterdir() if path.is_dir() else ():  # the folder stays: it may be a link or a mount
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        except OSError as error:
            raise InputError(f"{path} cannot be removed ({error.strerror})") from None
        print(f"{name}: removed {size['files']} files, {size_in_words(size['bytes'])}, from {path}")


def _places() -> dict[str, Path]:
    """Return the folder or file of each cache, by the environment; it may not exist."""
    from tflabench.bench.tuning import default_folder
    from tflabench.bench.warm import cache_folder
    from tflabench.theory.hardware import ceilings_file

    return {"kernels": cache_folder(), "tuning": default_folder(), "ceilings": ceilings_file()}


def _size(path: Path) -> dict[str, int]:
    """Return the bytes and the number of files at and below a path; nothing where there is none."""
    files = [path] if path.is_file() else [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    return {"bytes": sum(file.lstat().st_size for file in files), "files": len(files)}
