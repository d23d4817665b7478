"""The command that repeats the paper's figures: reproduce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from tflabench.cli.common import app, options
from tflabench.cli.common.console import stderr
from tflabench.cli.common.paths import folder_to_write, out_folder, print_figures
from tflabench.problem import InputError

if TYPE_CHECKING:
    from tflabench.bench.machine import Machine
    from tflabench.bench.protocol import Rules
    from tflabench.figures.reproduce import PaperFigure
    from tflabench.selection.points import Point

    Parts = Mapping[PaperFigure, Sequence[Point]]  # the points of each figure


Figures = Annotated[list[str] | None, typer.Argument(metavar="FIGURE", help="fig4, 5, 12, 13, 14, 17, 19, 20, or all.")]
MATCHED = "Give every kernel the same heads and dimensions."
MatchedHeads = Annotated[bool, options.option(options.WHAT, None, MATCHED, "--matched-heads")]
PART = "Take only this part of a figure, such as seq_len=512,8192."
Part = Annotated[list[str] | None, options.option(options.WHAT, "AXIS=VALUES", PART, "-a", "--axis")]
Root = Annotated[Path, options.option(options.OUTPUT, "DIR", "Where results folders lie.", "--results")]


@app.command("reproduce")
def reproduce(
    figures: Figures = None,
    matched_heads: MatchedHeads = False,
    axis: Part = None,
    impl: options.Impl = None,
    device: options.Device = "auto",
    root: Root = Path("results"),
    out: Annotated[Path | None, out_folder("the folder figures beside the rows")] = None,
    format_: options.Formats = "png,svg",
    timeout: options.Timeout = 300.0,
    stop_after: options.StopAfter = None,
) -> None:
    """Repeat the paper's figures: measure what is missing, ours and the baselines, and draw as the paper does.

    Without an NVIDIA GPU nothing is measured: the figures are drawn from the rows stored below --results. What is
    measured is what `sweep --preset paper-fig4` and the like measure, which have more options.
    """
    from tflabench.bench.machine import detect
    from tflabench.bench.protocol import Rules, end_of
    from tflabench.figures import reproduce as paper
    from tflabench.figures.files import check_formats
    from tflabench.rows.load import find_results, results_folders

    stop_at = end_of(stop_after)
    names = [name for name in figures or ["all"] if name != "all"] or list(paper.FIGURES)
    wanted = [paper.find(name, matched_heads) for name in dict.fromkeys(names)]
    check_formats(formats := options.words(format_))
    machine = detect(device)
    rules = Rules(timeout_s=timeout, stop_at=stop_at)
    folder_to_write(root, "--results", make=False)
    if machine.kind == "cpu" and results_folders(root):
        find_results(root)  # rows that cannot be read are told of before anything is drawn
    parts = _parts(wanted, matched_heads, impl, axis or ())
    out = folder_to_write(out) if out else None

    if machine.kind == "cpu":
        stderr().print(f"No NVIDIA GPU here ({machine.name}): drawing the rows stored below {root}, measuring nothing.")
    measured = _measured(parts, root, machine, rules) if machine.kind == "cuda" else {}
    _draw(parts, measured, root, out, formats)


def _parts(
    wanted: Sequence[PaperFigure], matched_heads: bool, patterns: Sequence[str] | None, axis: Sequence[str]
) -> dict[PaperFigure, list[Point]]:
    """Return the points of each figure that has any; print which have none, InputError if that is all."""
    from tflabench.figures import reproduce as paper
    from tflabench.selection.axes import parse_overrides

    part = parse_overrides(axis)
    if matched_heads and (alike := [figure.name for figure in wanted if not figure.matched]):
        stderr().print(f"The same heads for every kernel in any case: {', '.join(alike)}.")
    parts = {figure: paper.points_of(figure, patterns, part) for figure in wanted}
    if outside := [figure.name for figure, points in parts.items() if not points]:
        outside_of = f"no point of {', '.join(outside)} has {' '.join(axis)}"
        if len(outside) == len(wanted):
            raise InputError(f"{outside_of}: `tflabench sweep -a` measures other values than the paper's")
        stderr().print(f"Left out: {outside_of}.")
    return {figure: points for figure, points in parts.items() if points}


def _measured(parts: Parts, root: Path, machine: Machine, rules: Rules) -> dict[PaperFigure, tuple[Path, int]]:
    """Measure what each figure lacks; return its folder and how many of its points are left."""
    from tflabench.bench.devices import Fleet
    from tflabench.bench.sweep import Sweep, folder_for
    from tflabench.progress import ProgressPrinter
    from tflabench.selection.points import comparisons

    printer, fleet = ProgressPrinter(), Fleet.one(machine)
    folders = {
        figure: folder_for(root / machine.slug / figure.preset, machine.name, False, printer.note) for figure in parts
    }
    measured = {}
    with fleet.make(rules, uuid4().hex[:12]) as stations:  # one for all, which the drawing does not keep waiting
        for figure, points in parts.items():
            folder = folders[figure]
            title = f"{figure.name}, sweep {folder.name}"
            sweep = Sweep(comparisons(points), fleet, stations, folder, rules, printer, title)
            measured[figure] = (folder, sweep.run().left)
    return measured


def _draw(
    parts: Parts, measured: Mapping[PaperFigure, tuple[Path, int]], root: Path, out: Path | None, formats: Sequence[str]
) -> None:
    """Draw every figure that has rows or is theory, and print the files; say which are missing.

    Args:
        root: the folder above all results.
        out: the folder for figures; None for one in the folder of the rows.
    """
    from tflabench.figures import reproduce as paper
    from tflabench.figures.files import write_figures
    from tflabench.figures.source import Source
    from tflabench.rows.load import Results

    note = stderr()
    missing = []
    for figure, points in parts.items():
        folder, _ = measured.get(figure, (root, 0))
        results = paper.stored(points, folder, figure.preset)
        if results is None and not figure.theory:
            missing.append(figure.name)
            continue
        if results is None:
            note.print(f"{figure.name}: theory alone, no measured point of it is stored")
        else:
            count = sum(row.status == "ok" for row in results.rows)
            note.print(f"{figure.name}: {count} of {len(points)} points measured, in {results.folder}")
        place = out or (results.folder / "figures" if results else root / "theory")
        source = Source.of(results or Results(place, (), {}))
        print_figures(write_figures(figure.draw(figure.name, source), place, formats))
    if missing:
        points_left = any(count for _, count in measured.values())
        place_to_run = "again" if points_left else "on a machine with a GPU"
        hint = f"no point of {', '.join(missing)} is stored below {root}: run the same command {place_to_run}"
        if len(missing) == len(parts) and not points_left:
            raise InputError(hint)
        note.print(f"Not drawn: {hint}")
