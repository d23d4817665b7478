"""The commands that change stored rows: rows merge adds those of other sweeps, rows pack keeps folders small."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tflabench.cli.common.app import rows
from tflabench.cli.common.options import WHAT, Impl
from tflabench.cli.common.paths import ROWS, Results
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

    Of a point that both have, the row that was measured last counts, but a measurement before any failure, and one of a
    comparison that ended before a provisional one. The environment of every run comes along. Folders below a SOURCE go
    to those of the same name below --into.
    """
    from tflabench.rows import load, upkeep
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
        new, replaced, kept = upkeep.merge(results, target)
        omitted = f", {kept} left out for what was there" if kept else ""
        print(f"{target}: {new} new points, {replaced} measured again{omitted}, from {results.folder}")


@rows.command()
def pack(
    directory: Results,
    closed: Annotated[bool, typer.Option("--closed", help="Keep only rows of comparisons that ended.")] = False,
) -> None:
    """Keep finished results folders small: rows.parquet, without journal.jsonl and rows.csv.

    times.csv has the columns that matter most, to look at. Every command reads packed folders. A sweep or `merge` that
    adds rows to one unpacks it first.
    """
    from tflabench.rows import load, upkeep

    for folder in load.folders_below(directory):
        before, after = upkeep.pack(folder, closed)
        print(f"{folder}: {before / 1e3:,.0f} kB before, {after / 1e3:,.0f} kB now")
