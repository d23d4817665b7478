"""The command line application that commands add themselves to, and how errors of the user end it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from tflabench.problem import InputError

UsageError: type[Exception] = typer.BadParameter.__bases__[0]  # click's, wherever this version of typer keeps it


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """What the user got wrong is one line on stderr and exit code 2."""
    try:
        yield
    except InputError as error:
        message = str(error)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        ctx = getattr(error, "ctx", None)
        hint = f"; see {ctx.command_path} --help" if ctx else ""
        message = error.format_message().rstrip(".") + hint  # type: ignore[attr-defined]
    else:
        return
    print(f"tflabench: {' '.join(message.split())}", file=sys.stderr)
    raise typer.Exit(2)


class _Group(TyperGroup):
    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _one_line_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        warnings.formatwarning = lambda message, *_, **__: f"tflabench: warning: {message}\n"
        with _one_line_errors():
            return super().invoke(ctx)


app = typer.Typer(
    name="tflabench",
    cls=_Group,
    help="Benchmark kernels of Tiled Flash Linear Attention and their baselines, and hold them against the roofline.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
