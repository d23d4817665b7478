"""The command that repeats the paper's figures: reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tflabench.cli.common.app import command
from tflabench.cli.common.options import (
    WHAT,
    Device,
    DryRun,
    Formats,
    Full,
    Impl,
    Jobs,
    PaperProtocol,
    StopAfter,
    Timeout,
    TuneSeconds,
    VerifySeconds,
)
from tflabench.cli.common.paths import folder_to_write, out_folder


@command("reproduce")
def reproduce(
    figures: Annotated[
        list[str] | None, typer.Argument(metavar="[FIGURE]...", help="fig4, 5, 12, 13, 14, 17, 19, 20, or all.")
    ] = None,
    matched_heads: Annotated[
        bool,
        typer.Option("--matched-heads", rich_help_panel=WHAT, help="Give every kernel the same heads and dimensions."),
    ] = False,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            "-a",
            "--axis",
            metavar="AXIS=VALUES",
            rich_help_panel=WHAT,
            help="Take only this part of a figure, such as seq_len=512,8192.",
        ),
    ] = None,
    impl: Impl = None,
    device: Device = "auto",
    root: Annotated[Path, typer.Option("--results", metavar="DIR", help="Where results folders lie.")] = Path(
        "results"
    ),
    out: Annotated[Path | None, out_folder("the folder figures beside the rows")] = None,
    format_: Formats = "png,svg",
    timeout: Timeout = 300.0,
    stop_after: StopAfter = None,
    paper_protocol: PaperProtocol = False,
    verify_seconds: VerifySeconds = None,
    tune_seconds: TuneSeconds = "20",
    jobs: Jobs = None,
    dry_run: DryRun = False,
    full: Full = False,
) -> None:
    """Repeat the paper's figures: measure what is missing, ours and the baselines, and draw as the paper does.

    Without an NVIDIA GPU nothing is measured: the figures are drawn from the rows stored below --results.
    """
    from tflabench.bench.estimate import Target
    from tflabench.bench.machine import detect
    from tflabench.bench.protocol import PAPER, STANDARD
    from tflabench.bench.sweep import Session, Settings
    from tflabench.cli.common.checks import words
    from tflabench.cli.common.console import stderr
    from tflabench.cli.common.measuring import (
        Shown,
        compilers,
        end_of,
        folder_for,
        measure_comparisons,
        print_selection,
        seconds_to_tune,
    )
    from tflabench.figures import reproduce as paper
    from tflabench.figures.files import check_formats
    from tflabench.implementations import registry
    from tflabench.problem import InputError
    from tflabench.selection.axes import parse_overrides
    from tflabench.selection.comparisons import comparisons

    stop_at = end_of(stop_after)
    out = folder_to_write(out) if out and not dry_run else out
    names = [name for name in figures or ["all"] if name != "all"] or list(paper.FIGURES)
    wanted = [paper.find(name) for name in dict.fromkeys(names)]
    formats = words(format_)
    check_formats(formats)
    patterns = registry.split(",".join(impl)) if impl else None
    machine = detect(device)
    part = parse_overrides(axis or ())
    protocol = (PAPER if paper_protocol else STANDARD).verifying_within(verify_seconds)
    note = stderr()
    if machine.kind == "cpu":
        note.print(f"No NVIDIA GPU here ({machine.name}): drawing the rows stored below {root}, measuring nothing.")
    if matched_heads and (alike := [figure.name for figure in wanted if not figure.matched]):
        note.print(f"The same heads for every kernel in any case: {', '.join(alike)}.")

    parts = {figure: paper.points_of(figure, matched_heads, patterns, part) for figure in wanted}
    if outside := [figure.name for figure, points in parts.items() if not points]:
        outside_of = f"no point of {', '.join(outside)} has {' '.join(axis or ())}"
        if len(outside) == len(wanted):
            raise InputError(f"{outside_of}: `tflabench sweep -a` measures other values than the paper's")
        note.print(f"Left out: {outside_of}.")
    parts = {figure: points for figure, points in parts.items() if points}
    folders, left = dict.fromkeys(parts, root), dict.fromkeys(parts, 0)
    if machine.kind == "cuda":
        folders = {figure: root / machine.slug / figure.preset_for(matched_heads) for figure in parts}
        if dry_run:
            for figure, points in parts.items():
                print_selection(
                    comparisons(points), Target.of_machine(machine), folders[figure], protocol, Shown(timeout, full)
                )
            return
        folders = {figure: folder_for(folder, given=False) for figure, folder in folders.items()}
        settings = Settings(machine, protocol, timeout, seconds_to_tune(tune_seconds), compilers(jobs))
        with Session(settings) as session:  # one for all, which the drawing does not keep waiting
            for figure, points in parts.items():
                title = f"{figure.name}, sweep {folders[figure].name}"
                selected = comparisons(points)
                done = measure_comparisons(selected, folders[figure], session, title, stop_at=stop_at)
                left[figure] = done.left

    missing = []
    for figure, points in parts.items():
        results = paper.stored(points, folders[figure], figure.preset_for(matched_heads))
        if results is None and not figure.theory:
            missing.append(figure.name)
            continue
        if results is None:
            note.print(f"{figure.name}: theory alone, no measured point of it is stored")
        else:
            measured = sum(row.status == "ok" for row in results.rows)
            note.print(f"{figure.name}: {measured} of {len(points)} points measured, in {results.folder}")
        place = out or (results.folder / "figures" if results else root / "theory")
        for path in paper.draw(figure, results, place, formats, matched_heads):
            print(path)
    if missing:
        where = "again" if any(left.values()) else "on a machine with a GPU"
        hint = f"no point of {', '.join(missing)} is stored below {root}: run the same command {where}"
        if len(missing) == len(parts) and not any(left.values()):
            raise InputError(hint)
        note.print(f"Not drawn: {hint}")
