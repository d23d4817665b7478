"""Means of printing for all commands: consoles, results as text or JSON."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
else:
    RenderableType = Any  # to import rich takes a while

WIDTH = 160  # characters, where neither a terminal nor COLUMNS says how many there are


class Unwrapped(str):
    """A line that is printed whole, whatever the width: to be copied."""


def emit(document: Any, text: Iterable[RenderableType], as_json: bool) -> None:
    """Print the result of a command on stdout: a JSON document, or the same as sentences and tables.

    Args:
        text: made only where it is printed, if it is an iterator.
    """
    if as_json:
        print_json(document)
        return
    console = stdout()
    for part in text:
        console.print(part, soft_wrap=isinstance(part, Unwrapped))


def stdout() -> Console:
    """Return a console for results, as wide as the terminal, as COLUMNS says, or of WIDTH."""
    from rich.console import Console

    wide = Console(highlight=False, markup=False)
    if wide.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return wide
    return Console(highlight=False, markup=False, width=WIDTH)


def stderr() -> Console:
    """Return a console for notes and progress."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False)


def print_json(value: Any) -> None:
    """Print one JSON value on stdout, with null for numbers that JSON has no word for."""
    from pydantic_core import to_json

    print(to_json(value, indent=2, inf_nan_mode="null").decode())


def drop_stdout() -> None:
    """Send what stdout still holds nowhere: it does not take it, and Python writes it once more at its end."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except io.UnsupportedOperation:
        return  # a stream in memory
