"""The commands that show and clear caches: cache, cache clear."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from tflabench.cli.common.app import cache
from tflabench.cli.common.checks import one_of
from tflabench.cli.common.console import print_json, size_in_words
from tflabench.cli.common.help import Command
from tflabench.cli.common.options import Json
from tflabench.problem import InputError

# name -> what it holds
WHAT = {
    "kernels": "kernels that Triton compiled, those of other programs too",
    "tuning": "choices of autotuners",
    "ceilings": "measured ceilings of this machine (tflabench calibrate)",
}


@cache.callback()
def show(ctx: typer.Context, json_: Json = False) -> None:
    """Show where caches lie and how large they are, or clear them."""
    if ctx.invoked_subcommand is not None:
        return
    found = {name: (path, *_size(path)) for name, path in _places().items()}
    if json_:
        print_json({name: {"path": str(path), "bytes": size, "files": n} for name, (path, size, n) in found.items()})
        return
    for name, (path, size, files) in found.items():
        print(f"{name:10}{size_in_words(size):>10}{files:>8} files  {path}")
        print(f"{'':10}{WHAT[name]}")
    print("tflabench cache clear [WHAT] removes all of them, or those named.")


@cache.command("clear", cls=Command)
def clear(
    what: Annotated[list[str] | None, typer.Argument(metavar="[WHAT]...", help=f"Any of {', '.join(WHAT)}.")] = None,
) -> None:
    """Remove caches: all of them, or those named.

    Kernels are compiled again when they are needed, autotuners try their configurations again, and percentages are of
    the datasheet until the next sweep or `tflabench calibrate`.
    """
    for name in [one_of("WHAT", word, tuple(WHAT)) for word in what or WHAT]:
        path = _places()[name]
        size, files = _size(path)
        try:
            _remove(path)
        except OSError as error:
            raise InputError(f"{path} cannot be removed ({error.strerror})") from None
        print(f"{name}: removed {files} files, {size_in_words(size)}, from {path}")


def _places() -> dict[str, Path]:
    """Return the folder or file of each cache, by the environment; it may not exist."""
    from tflabench.bench.precompile.pool import cache_folder
    from tflabench.bench.tuning_store import default_folder
    from tflabench.theory.hardware import ceilings_file

    return {"kernels": cache_folder(), "tuning": default_folder(), "ceilings": ceilings_file()}


def _size(path: Path) -> tuple[int, int]:
    """Return the bytes and the number of files at and below a path; nothing where there is none."""
    sizes = [file.lstat().st_size for file in _files(path)]
    return sum(sizes), len(sizes)


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    for folder, _, names in os.walk(path):
        yield from (Path(folder) / name for name in names)


def _remove(path: Path) -> None:
    """Remove a file, or everything in a folder; the folder stays, for it may be a link or a mount."""
    if path.is_file():
        path.unlink()
    for entry in path.iterdir() if path.is_dir() else ():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
