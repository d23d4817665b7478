"""The command line application: which commands there are, under which heading, and how errors of the user end one."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

import tflabench
from tflabench.cli.common.console import drop_stdout
from tflabench.cli.common.help import Command, Group
from tflabench.problem import InputError

# What `tflabench --help` shows, in this order: heading -> command -> its line.
COMMANDS = {
    "Measure": {
        "sweep": "Time every kernel over sizes, draw figures",
        "verify": "Hold outputs and gradients to float64",
        "calibrate": "Measure the ceilings of this machine",
        "profile": "Show where the time of one call goes",
        "reproduce": "Measure and draw figures of the paper",
    },
    "Look": {
        "plot": "Draw stored rows",
        "report": "Write stored rows as one HTML page",
        "compare": "Hold one measurement against another",
        "claims": "Hold the paper's claims to stored rows",
    },
    "Theory": {
        "optimal-chunk": "Give the chunk size of least time",
        "roofline": "Draw chunk sizes under rooflines",
        "theory": "Draw the paper's theory figures",
        "advise": "Choose kernel, chunk size and batch",
        "transfer": "Draw how gates and norms scale a signal",
        "gpus": "List known GPUs and this machine",
    },
    "Data": {
        "rows": "Merge or pack stored rows",
        "cache": "Show caches and their sizes, clear them",
        "list": "List implementations, presets and axes",
    },
}
MOVED = {name: f"rows {name}" for name in ("merge", "recount", "migrate")}  # old name -> new name
UsageError: type[Exception] = typer.BadParameter.__bases__[0]  # click's, wherever this version of typer keeps it
# help_option_names and max_content_width hold for every command below.
SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 80}


PATHS = (errno.EACCES, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR)  # errors of a path that a user gave


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """End what the user got wrong with one line on stderr and exit code 2; what cannot be written, with code 1."""
    try:
        yield
    except InputError as error:
        message, code = str(error), 2
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        ctx = getattr(error, "ctx", None)
        hint = f"; see {ctx.command_path} --help" if ctx else ""
        message, code = error.format_message().rstrip(".") + hint, 2  # type: ignore[attr-defined]
    except OSError as error:
        if error.errno in PATHS and error.filename is not None:
            message, code = f"{os.fsdecode(error.filename)} cannot be used ({error.strerror}): give another path", 2
        elif error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        else:
            drop_stdout()
            message, code = f"cannot write: {error.strerror}", 1
    except SystemExit as error:
        if not isinstance(error.__context__, BrokenPipeError):  # which rich turns into an exit without a word
            raise
        message, code = f"cannot write: {error.__context__.strerror}", 1
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    else:
        return
    print(f"tflabench: {' '.join(message.split())}", file=sys.stderr)
    raise typer.Exit(code)


class _Main(Group):
    """The outermost group: its commands stand in the order of COMMANDS, below headings."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        order = {name: place for place, name in enumerate(name for below in COMMANDS.values() for name in below)}
        self.commands = dict(sorted(self.commands.items(), key=lambda item: order[item[0]]))

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _one_line_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        warnings.formatwarning = lambda message, *_, **__: f"tflabench: warning: {message}\n"
        with _one_line_errors():
            result = super().invoke(ctx)
            sys.stdout.flush()  # here a disk that is full can still be told of in one line
            return result

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in MOVED:
            raise InputError(f"`tflabench {args[0]}` is now `tflabench {MOVED[args[0]]}`")
        return super().resolve_command(ctx, args)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tflabench {tflabench.__version__}")
        raise typer.Exit


def _shared(line: str, alone: bool = False) -> dict[str, Any]:
    """Return the settings of a group of commands; `alone`: it does something without a command."""
    return {"help": line, "no_args_is_help": not alone, "rich_markup_mode": None, "context_settings": SETTINGS}


app = typer.Typer(
    name="tflabench",
    cls=_Main,
    add_completion=True,
    pretty_exceptions_enable=False,
    **_shared("Time kernels of Tiled Flash Linear Attention, and hold them to the roofline."),
)
rows = typer.Typer(cls=Group, **_shared("Change stored rows: merge or pack folders."))
cache = typer.Typer(
    cls=Group,
    invoke_without_command=True,
    **_shared("Show where caches lie and how large they are, or clear them.", alone=True),
)
for _name, _below in (("rows", rows), ("cache", cache)):
    app.add_typer(_below, name=_name, short_help=COMMANDS["Data"][_name], rich_help_panel="Data")


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Time kernels of Tiled Flash Linear Attention, and hold them to the roofline."""


def command(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator that adds a command to `app` under its heading in COMMANDS."""
    ((heading, line),) = [(heading, below[name]) for heading, below in COMMANDS.items() if name in below]
    return app.command(name, cls=Command, short_help=line, rich_help_panel=heading)
