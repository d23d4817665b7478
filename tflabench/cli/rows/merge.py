"""The command that adds rows of other sweeps to a results folder: merge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tflabench.cli.common.app import rows
from tflabench.cli.common.options import WHAT, Impl
from tflabench.cli.common.paths import ROWS
from tflabench.problem import InputError


@rows.command()
def merge(
    sources: Annotated[list[Path], typer.Argument(metavar="SOURCE...", help=f"One or more. {ROWS}")],
    into: Annotated[
        Path, typer.Option(metavar="DIR", help="Add to this results folder, or to those of the same names below it.")
    ],
    impl: Impl = None,
    pass_: Annotated[
        str, typer.Option("--pass", metavar="PASS", rich_help_panel=WHAT, help="Take only this pass: fw, fwbw or both.")
    ] = "both",
) -> None:
    """Add the rows of other sweeps to a results folder: another part of a plan, measured at another time or GPU.

    Of a point that both have, the row that was measured last counts, but a measurement before any failure. The
    environment of every run comes along. Folders below a SOURCE go to those of the same name below --into.
    """
    from tflabench.rows import load
    from tflabench.rows import merge as merge_
    from tflabench.selection import axes

    patterns = impl or ["*"]
    passes = axes.parse_values("pass", pass_)
    pairs = [
        (results.only(patterns, passes), into if results.folder == source else into / results.folder.name)
        for source in sources
        for results in load.find_results(source)
    ]
    pairs = [(results, target) for results, target in pairs if results.rows]
    if not pairs:
        raise InputError(f"--impl {','.join(patterns)!r} and --pass {pass_} name no implementation that has rows here")
    for results, target in pairs:
        if results.folder.resolve() == target.resolve():
            raise InputError(f"{results.folder} is what is to be added to: SOURCE must be another folder than --into")
    for results, target in pairs:
        merged = merge_.merge(results, target)
        left = f", {merged.kept} left out for what was there" if merged.kept else ""
        print(f"{target}: {merged.new} new points, {merged.replaced} measured again{left}, from {results.folder}")
