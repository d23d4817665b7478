"""The command line: parse, call, print; nothing else. Heavy libraries are imported inside the commands."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import typer
from typer.core import TyperGroup

from tflabench.problem import InputError


class _Group(TyperGroup):
    """Turns what the user got wrong into one line on stderr and exit code 2; a warning is one line too."""

    def invoke(self, ctx: Any) -> Any:
        warnings.formatwarning = lambda message, *_, **__: f"tflabench: warning: {message}\n"
        try:
            return super().invoke(ctx)
        except InputError as error:
            print(f"tflabench: {' '.join(str(error).split())}", file=sys.stderr)
            raise typer.Exit(2) from None


app = typer.Typer(
    name="tflabench",
    cls=_Group,
    help="Benchmark kernels of Tiled Flash Linear Attention and their baselines, and hold them against the roofline.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

from tflabench.cli import figures, measure, theory  # noqa: E402  each adds its commands to `app`

__all__ = ["app", "figures", "measure", "theory"]
