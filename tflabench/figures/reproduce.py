"""The paper's figures with measurements in them: which sweep each needs, which stored rows answer it, how it is drawn.

Figures 4, 5, 12, 13 and 14 show measured rows; 17, 19 and 20 are theory (`tflabench.figures.paper`) with measured rows
laid over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from tflabench.figures import curves, paper
from tflabench.figures.model import Figure
from tflabench.figures.source import Source
from tflabench.implementations.registry import is_current, nearest, split
from tflabench.problem import InputError
from tflabench.rows.load import Results, read_results, results_folders
from tflabench.selection.axes import Values
from tflabench.selection.points import Point, select_points
from tflabench.selection.presets import load_preset


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper.

    Attributes:
        preset: the sweep that measures it.
        matched: the preset that gives every kernel the same heads and dimensions; None where `preset` does.
        draw: the start of the files' names, and the rows -> the figures.
        theory: says something without any rows.
    """

    name: str
    preset: str
    draw: Callable[[str, Source], Iterator[Figure]]
    matched: str | None = None
    theory: bool = False


def points_of(
    figure: PaperFigure, patterns: Sequence[str] | None = None, part: Mapping[str, Values] | None = None
) -> list[Point]:
    """Return the points that a GPU has to measure for a figure.

    Args:
        patterns: of which implementations.
        part: values by axis, as `parse_overrides` gives them: only the points of the figure that have these, in their
            order. It may have none.
    """
    preset = load_preset(figure.preset)
    points = select_points(preset, {}, patterns, "cuda")
    if not part:
        return points
    of_figure = {point.id for point in points}
    return [point for point in select_points(preset, part, patterns, "cuda") if point.id in of_figure]


def stored(points: Sequence[Point], root: Path, name: str) -> Results | None:
    """Return the results folder below `root` that has most of these points measured; None where none has any.

    Points of older kernels of ours count where no folder has others. Folders called `name`, that of their sweep, come
    first: another's may share points. One folder, not several: ratios count within what was measured together. It is
    cut down to these points.
    """
    ids = {point.id for point in points}
    best, most = None, (False, 0, 0)
    for results in map(read_results, results_folders(root)):
        rows = tuple(row for row in results.rows if row.point in ids)
        measured = [row for row in rows if row.status == "ok"]
        current = sum(is_current(row.implementation, row.kernel_version) for row in measured)
        if measured and (rank := (results.folder.name == name, current, len(measured))) > most:
            best, most = Results(results.folder, rows, results.runs), rank
    return best


def find(name: str, matched_heads: bool = False) -> PaperFigure:
    """Return the figure of this name, or InputError; `matched_heads`: as "fig4-matched", where that has a preset."""
    if name not in FIGURES:
        raise InputError(f"no figure is called {name!r}; {nearest(name, [*FIGURES, 'all'])}")
    figure = FIGURES[name]
    if matched_heads and figure.matched:
        return replace(figure, name=f"{name}-matched", preset=figure.matched)
    return figure


def _curves(
    axis: str, quantities: Sequence[str], name: str, source: Source, sheets: Mapping[str, str] = {"": "*"}
) -> Iterator[Figure]:
    """Yield quantities over an axis, a panel a pass, as measured: the paper draws no theory with them.

    `sheets`: what a file's name ends in -> patterns of the implementations it shows.
    """
    for sheet, patterns in sheets.items():
        names = source.rows["implementation"]
        shown = source.rows[
            [any(fnmatchcase(name_of_row, pattern) for pattern in split(patterns)) for name_of_row in names]
        ]
        if (shown["status"] == "ok").any():
            for quantity in quantities:
                stem = "-".join([name, *filter(None, [sheet]), *([quantity] if len(quantities) > 1 else [])])
                for figure in curves.over(axis, quantity, stem, source, shown, theory=False):
                    yield replace(figure, stem=figure.stem.replace(f"{stem}-{axis}", stem, 1))


def _theory(name: str, source: Source) -> Iterator[Figure]:
    """Yield a figure of the paper's theory, mLSTMsig forward as there, with the rows laid over."""
    rows = source.rows if len(source.rows) else None
    yield replace(paper.FIGURES[name]("sig", "fw", rows), stem=name, rows=rows)


# Fig. 4 has too many lines for one: the paper's kernels, and the other linear RNNs, ours and the libraries'.
FIG4 = {
    "": "tfla_exp_*,tfla_sig_*,hopper_exp,hopper_sig,nxai_*,sdpa*,flash_attention_*,fla_*gla*,mamba*",
    "linear-rnns": "hopper_*,tfla_*_xl,fla_*,lightning_*,mamba2*",
}
BOTH = ("runtime", "memory")
FIGURES = {
    figure.name: figure
    for figure in (
        PaperFigure(
            "fig4", "paper-fig4", partial(_curves, "seq_len", ("runtime",), sheets=FIG4), matched="paper-fig4-matched"
        ),
        PaperFigure("fig5", "paper-fig5", curves.tradeoffs),
        PaperFigure("fig12", "paper-fig12", partial(_curves, "seq_len", BOTH)),
        PaperFigure("fig13", "paper-fig13", partial(_curves, "seq_len", BOTH)),
        PaperFigure("fig14", "paper-fig14", partial(_curves, "d_hv", ("runtime",))),
        PaperFigure("fig17", "paper-fig17", _theory, theory=True),
        PaperFigure("fig19", "paper-fig17", _theory, theory=True),
        PaperFigure("fig20", "paper-fig17", _theory, theory=True),
    )
}
