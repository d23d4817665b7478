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

    JSON has null for numbers that it has no word for.

    Args:
        text: made only where it is printed, if it is an iterator.
    """
    if as_json:
        from pydantic_core import to_json

        print(to_json(document, indent=2, inf_nan_mode="null").decode())
        return
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not (console.is_terminal or os.environ.get("COLUMNS", "").isdigit()):
        console.width = WIDTH
    for part in text:
        console.print(part, soft_wrap=isinstance(part, Unwrapped))


def stderr() -> Console:
    """Return a console for notes and progress."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False)


def drop_stdout() -> None:
    """Send what stdout still holds nowhere: it does not take it, and Python writes it once more at its end."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except io.UnsupportedOperation:
        return  # a stream in memory
