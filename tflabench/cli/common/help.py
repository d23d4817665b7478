"""The text of `--help`: commands below headings, options below the headings of their panels, no boxes."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

from tflabench.cli.common import arguments

NAME_WIDTH = 17  # of the column of commands
OPTIONS = "Options"  # heading of options without a panel
KINDS = {"int": "N", "integer": "N", "float": "X", "str": "TEXT", "text": "TEXT", "path": "PATH", "list[str]": "TEXT"}
SHORTER = {
    "Install completion for the current shell.": "Complete commands in this shell.",
    "Show this message and exit.": "Show this text and exit.",
}
HIDDEN = "--show-completion"  # one line is enough for both


class Command(TyperCommand):
    """A command: its options stand below the headings of their panels, and their values are checked before it runs."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options below the headings of their panels."""
        _write_panels(self, ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Check what was typed, then parse it."""
        arguments.check_words(ctx.info_name, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Check the numbers, then run the command."""
        arguments.check_numbers({param.opts[-1]: ctx.params.get(param.name) for param in self.params})
        return super().invoke(ctx)


class Group(TyperGroup):
    """A group of commands: these stand below the headings of their panels, a line each."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a line for each command below its heading, then the options."""
        below: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            heading = command.rich_help_panel if isinstance(command.rich_help_panel, str) else "Commands"
            below.setdefault(heading, []).append((name, command.short_help or command.get_short_help_str(60)))
        for heading, commands in below.items():
            with formatter.section(heading):
                for name, line in commands:
                    formatter.write(f"  {name:{NAME_WIDTH - 2}}{line}\n")
        _write_panels(self, ctx, formatter)


def _write_panels(command: Any, ctx: Any, formatter: Any) -> None:
    """Write arguments, then options by panel, those without one last."""
    panels: dict[str, list[tuple[str, str]]] = {}
    alone: list[tuple[str, str]] = []
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is None or HIDDEN in param.opts:
            continue
        is_argument = param.param_type_name == "argument"
        panel = "Arguments" if is_argument else getattr(param, "rich_help_panel", None)
        place = panels.setdefault(panel, []) if isinstance(panel, str) else alone
        place.append((_names(param, record[0]), _meaning(param, record[1])))
    if alone:
        panels[OPTIONS] = alone
    for heading, records in panels.items():
        with formatter.section(heading):
            formatter.write_dl(records, col_max=24)


def _names(param: Any, names: str) -> str:
    """Return how a parameter is written, with a short word for its value: `--batch N`."""
    if getattr(param, "is_flag", False):
        return names if param.default or not param.secondary_opts else ", ".join(param.opts)
    if param.metavar:
        return param.metavar if param.param_type_name == "argument" else names
    return re.sub(r"<([^>]*)>", lambda found: KINDS.get(found[1].removesuffix(" range"), found[1].upper()), names)


def _meaning(param: Any, text: str) -> str:
    """Return a help text without what a reader can do without: ranges, defaults of flags, hints of the library."""
    for long, short in SHORTER.items():
        text = text.replace(long, short)
    told, bracket, facts = text.partition("  [")
    kept = [fact for fact in facts.removesuffix("]").split("; ") if not re.match(r"-?[\d.]*<?=?x[<>]=?", fact)]
    if getattr(param, "is_flag", False):
        kept = []
    facts = re.sub(r"default: \((.*)\)$", r"default: \1", "; ".join(kept))
    return f"{told} [{facts}]" if bracket and facts else told
