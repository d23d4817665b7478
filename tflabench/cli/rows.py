"""The commands that change stored rows and measure nothing: merge, recount."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tflabench.cli import app
from tflabench.problem import InputError
from tflabench.registry import split


@app.command()
def merge(
    sources: Annotated[list[Path], typer.Argument(metavar="SOURCE...", help="Results folders, or folders of them.")],
    into: Annotated[
        Path, typer.Option(help="The results folder to add to; for folders of them, the one that holds those.")
    ],
    impl: Annotated[str, typer.Option(metavar="PATTERN", help="Only these implementations: 'sdpa*,fla_gla'.")] = "*",
    pass_: Annotated[str, typer.Option("--pass", help="Only this pass: fw, fwbw or both.")] = "both",
) -> None:
    """Add the rows of other sweeps to a results folder: another part of a plan, measured at another time or GPU.

    Of a point that both have, the row that was measured last counts, but a measurement before any failure. The
    environment of every run comes along. Folders below a SOURCE go to those of the same name below --into.
    """
    from tflabench import store, sweep

    passes = sweep.parse_values("pass", pass_)
    pairs = [
        (results.only(split(impl), passes), into if results.folder == source else into / results.folder.name)
        for source in sources
        for results in store.find_results(source)
    ]
    pairs = [(results, target) for results, target in pairs if results.rows]
    if not pairs:
        raise InputError(f"--impl {impl!r} and --pass {pass_} name no implementation that has rows here")
    for results, target in pairs:
        if results.folder.resolve() == target.resolve():
            raise InputError(f"{results.folder} is what is to be added to: SOURCE must be another folder than --into")
    for results, target in pairs:
        found = store.merge(results, target)
        left = f", {found.kept} left out for what was there" if found.kept else ""
        print(f"{target}: {found.new} new points, {found.replaced} measured again{left}, from {results.folder}")


@app.command()
def recount(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A results folder, or one that holds some.")],
) -> None:
    """Fill in the theory of stored rows anew (FLOPs, bytes, bounds, percentages), by the counts of this version.

    Times stay as they were measured, and ceilings those of the run that a row is from. Rows whose run has recorded
    none, or whose implementation is gone, are left as they are.
    """
    from tflabench import bench, registry, store
    from tflabench.analysis.hardware import Ceilings

    known = {impl.name for impl in registry.implementations()}
    for results in store.find_results(directory):
        changed = left = 0
        opened = store.Store(results.folder, results.rows[0].device)
        for row in results.rows:
            ceilings = results.runs.get(row.run_id, {}).get("ceilings", {}).get(row.dtype)
            if ceilings is None or row.implementation not in known:
                left += 1
            elif (found := bench.recounted(row, Ceilings(**ceilings))) != row:
                opened.append(found)
                changed += 1
        if changed:
            opened.export()
        told = f", {left} left as they are" if left else ""
        print(f"{results.folder}: {changed} of {len(results.rows)} rows changed{told}")
