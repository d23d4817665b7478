"""The command line application: which commands there are, under which heading, and how errors of the user end one."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import tflabench
from tflabench.cli.common.console import drop_stdout
from tflabench.problem import InputError

# What `tflabench --help` shows, in this order: heading -> command -> its line.
COMMANDS = {
    "Measure": {
        "sweep": "Time every kernel over sizes, draw figures",
        "time": "Check and time one kernel at one shape",
        "verify": "Hold outputs and gradients to float64",
        "calibrate": "Measure the ceilings of this machine",
        "profile": "Show where the time of one call goes",
        "reproduce": "Measure and draw figures of the paper",
        "model": "Time whole models on several kernels",
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
    "Data": {"rows": "Merge or pack stored rows", "list": "List implementations, presets and axes"},
}
UsageError: type[Exception] = typer.BadParameter.__bases__[0]  # click's, wherever this version of typer keeps it
CLOSED_PIPE = 141  # as a shell has it of a program that SIGPIPE ends
PATHS = (errno.EACCES, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR)  # errors of a path that a user gave


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """End what the user got wrong with one line on stderr and code 2; what cannot be written, with code 1.

    Whoever has closed the pipe that results go to wants no word: that is CLOSED_PIPE.
    """
    try:
        yield
    except InputError as error:
        message, code = str(error), 2
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        ctx = getattr(error, "ctx", None)
        hint = f"; see {ctx.command_path} --help" if ctx else ""
        text: str = error.format_message().rstrip(".")  # type: ignore[attr-defined]
        message, code = text.rpartition("Value error, ")[2] + hint, 2  # which pydantic puts before ours
    except OSError as error:
        if error.errno in PATHS and error.filename is not None:
            message, code = f"{os.fsdecode(error.filename)} cannot be used ({error.strerror}): give another path", 2
        elif error.errno == errno.EPIPE:
            drop_stdout()
            raise typer.Exit(CLOSED_PIPE) from None
        elif error.errno != errno.ENOSPC:
            raise
        else:
            drop_stdout()
            message, code = f"cannot write: {error.strerror}", 1
    except SystemExit as error:
        if not isinstance(error.__context__, BrokenPipeError):  # which rich turns into an exit without a word
            raise
        raise typer.Exit(CLOSED_PIPE) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    else:
        return
    print(f"tflabench: {' '.join(message.split())}", file=sys.stderr)
    raise typer.Exit(code)


def _check_words(arguments: Sequence[str]) -> None:
    """Raise InputError for a word that is empty, as a shell makes it of a variable that is not set."""
    for before, word in zip(("an argument", *arguments), arguments, strict=False):
        option, equals, value = word.partition("=") if word.startswith("--") else (before, "=", word)
        if equals and not value.strip():
            raise InputError(f"{option} is {value!r}: it must not be empty")


class _Panels:
    """Writes what a command takes as click does, a heading a panel."""

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        """Write arguments and options; commands of a group stand below theirs."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx) if hasattr(self, "list_commands") else ():
            below = self.get_command(ctx, name)
            panels.setdefault(below.rich_help_panel or "Commands", []).append((name, below.get_short_help_str(60)))
        for param in self.get_params(ctx):
            if record := param.get_help_record(ctx):
                panels.setdefault(param.rich_help_panel or f"{param.param_type_name}s".capitalize(), []).append(record)
        for heading, records in panels.items():
            with formatter.section(heading):
                formatter.write_dl(records, col_max=24)


class Command(_Panels, TyperCommand):
    """A command whose options stand below headings, and whose errors call them as they are typed."""

    def invoke(self, ctx: Any) -> Any:
        """Run it; a message about a parameter (`d_qk is 0`) names its option (`--d-qk is 0`)."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            options = {param.name.rstrip("_"): max(param.opts, key=len) for param in self.params if param.name}
            name, _, rest = str(error).partition(" ")
            if rest.startswith("is ") and options.get(name, "").startswith("--"):
                raise InputError(f"{options[name]} {rest}") from None
            raise


class CommandGroup(_Panels, TyperGroup):
    """A group of such commands, which stand below headings too."""


class _Main(CommandGroup):
    """The outermost group: its commands stand in the order of COMMANDS."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        order = [name for below in COMMANDS.values() for name in below]
        self.commands = {name: self.commands[name] for name in order}

    def make_context(self, info_name: Any, args: list[str], *more: Any, **extra: Any) -> Any:
        with _one_line_errors():
            _check_words(args)
            return super().make_context(info_name, args, *more, **extra)

    def invoke(self, ctx: Any) -> Any:
        warnings.formatwarning = lambda message, *_, **__: f"tflabench: warning: {message}\n"
        with _one_line_errors():
            result = super().invoke(ctx)
            sys.stdout.flush()  # here a disk that is full can still be told of in one line
            return result


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tflabench {tflabench.__version__}")
        raise typer.Exit


def _group(line: str, cls: type[CommandGroup] = CommandGroup, **options: Any) -> typer.Typer:
    """Return a group of commands, whose help is plain text: boxes cost the imports of rich."""
    settings = {"help_option_names": ["-h", "--help"]}
    return typer.Typer(help=line, cls=cls, context_settings=settings, rich_markup_mode=None, **options)


app = _group(
    "Time kernels of Tiled Flash Linear Attention, and hold them to the roofline.",
    _Main,
    name="tflabench",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
rows = _group("Change stored rows: merge or pack folders.", no_args_is_help=True)
app.add_typer(rows, name="rows", short_help=COMMANDS["Data"]["rows"], rich_help_panel="Data")


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
