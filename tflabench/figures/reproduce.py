"""The paper's figures with measurements in them: which sweep each needs, which stored rows answer it, how it is drawn.

Figures 4, 5, 12, 13 and 14 show measured rows; 17, 19 and 20 are theory (`tflabench.figures.paper`) with measured rows
laid over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflabench.implementations.registry import nearest, split
from tflabench.problem import InputError
from tflabench.rows.load import Results, read_results, results_folders
from tflabench.selection.axes import Values
from tflabench.selection.points import Point, select_points
from tflabench.selection.presets import load_preset

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tflabench.figures.quantities import Quantity, Rows

Drawn = Iterator[tuple[list[str], "Figure", "Rows"]]  # what follows the figure's name in the file's; it; its rows


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper.

    Attributes:
        preset: the sweep that measures it.
        matched: the preset that gives every kernel the same heads and dimensions; None where `preset` does.
        draw: rows as `tflabench.figures.quantities.drawable` gives them, and run_id -> environment -> what is drawn.
        theory: says something without any rows.
    """

    name: str
    preset: str
    draw: Callable[[Rows, Mapping[str, Any]], Drawn]
    matched: str | None = None
    theory: bool = False

    def preset_for(self, matched_heads: bool) -> str:
        return self.matched if matched_heads and self.matched else self.preset


def points_of(
    figure: PaperFigure,
    matched_heads: bool,
    patterns: Sequence[str] | None = None,
    part: Mapping[str, Values] | None = None,
) -> list[Point]:
    """What a GPU has to measure for a figure.

    Args:
        patterns: of which implementations.
        part: values by axis, as `parse_overrides` gives them: only the points of the figure that have these, in their
            order. It may have none.
    """
    preset = load_preset(figure.preset_for(matched_heads))
    points = select_points(preset, {}, patterns, "cuda")
    if not part:
        return points
    of_figure = {point.id for point in points}
    return [point for point in select_points(preset, part, patterns, "cuda") if point.id in of_figure]


def stored(points: Sequence[Point], root: Path, name: str) -> Results | None:
    """Of all results folders below `root`, the one that has most of these points measured; None where none has any.

    Folders called `name`, that of their sweep, come first: another's may share points. One folder, not several: ratios
    count within what was measured together. It is cut down to these points.
    """
    asked = {point.id for point in points}
    best, most = None, (False, 0)
    for results in map(read_results, results_folders(root)):
        rows = tuple(row for row in results.rows if row.point in asked)
        measured = sum(row.status == "ok" for row in rows)
        if measured and (rank := (results.folder.name == name, measured)) > most:
            best, most = Results(results.folder, rows, results.runs), rank
    return best


def draw(
    figure: PaperFigure, results: Results | None, out: Path, formats: Sequence[str], matched_heads: bool = False
) -> list[Path]:
    """Write a figure as `out`/fig4.png or fig4-matched.png, ... in each format, with the rows it shows as CSV.

    Returns:
        The files.

    Raises:
        InputError: no rows where the figure is nothing without them, or a folder that cannot be written.
    """
    from tflabench.figures.layout import write
    from tflabench.figures.quantities import drawable
    from tflabench.rows.table import flat, frame

    if results is None and not figure.theory:
        raise InputError(f"{figure.name} shows measurements only, and none of its points is stored")
    rows = drawable(frame(results.rows if results else ()))
    written: list[Path] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for suffix, drawn, shown in figure.draw(rows, results.runs if results else {}):
            stem = "-".join([figure.name, *(["matched"] if matched_heads and figure.matched else []), *suffix])
            for format_ in formats:
                written.append(out / f"{stem}.{format_}")
                write(drawn, written[-1])
            if len(shown):
                written.append(out / f"{stem}.csv")
                flat(shown.drop(columns=["chunk_asked", "timed"])).to_csv(written[-1], index=False)
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}): give another folder with --out") from None
    return written


def find(name: str) -> PaperFigure:
    """The figure of this name.

    Raises:
        InputError: no such figure, with the nearest names.
    """
    if name not in FIGURES:
        raise InputError(f"no figure is called {name!r}; {nearest(name, [*FIGURES, 'all'])}")
    return FIGURES[name]


def _curves(
    axis: str,
    quantities: Sequence[str],
    rows: Rows,
    runs: Mapping[str, Any],
    sheets: Mapping[str, str] = {"": "*"},
) -> Drawn:
    """Quantities over an axis, a panel a pass, as measured: the paper draws no theory beside them.

    `sheets`: what a file's name ends in -> patterns of the implementations it shows.
    """
    from tflabench.figures import curves, facets
    from tflabench.figures.captions import provenance
    from tflabench.figures.quantities import MEMORY, RUNTIME
    from tflabench.figures.style import looks

    table, footer = looks(rows), provenance(rows, runs)
    known: dict[str, Quantity] = {"runtime": RUNTIME._replace(theory=None), "memory": MEMORY}
    for sheet, patterns in sheets.items():
        belongs = [any(fnmatchcase(name, pattern) for pattern in split(patterns)) for name in rows["implementation"]]
        shown = rows[belongs]
        for name, part in product(quantities, facets.split(shown, axis) if (shown["status"] == "ok").any() else ()):
            words = [*([sheet] if sheet else []), *([name] if len(quantities) > 1 else []), *part.tags]
            yield words, curves.draw(part, known[name], table, footer), part.rows


def _tradeoffs(rows: Rows, runs: Mapping[str, Any]) -> Drawn:
    """Runtime and memory over the chunk size, a figure an implementation."""
    from tflabench.figures import facets, tradeoff
    from tflabench.figures.captions import provenance
    from tflabench.figures.style import looks

    table, footer = looks(rows), provenance(rows, runs)
    for part in facets.split(rows, "chunk_size"):
        for name in table:
            own = part.rows[part.rows["implementation"] == name]
            if own.loc[own["status"] == "ok", "chunk_size"].nunique() > 1:
                yield [name, *part.tags], tradeoff.draw(part, name, table, footer), own


def _theory(name: str, rows: Rows, runs: Mapping[str, Any]) -> Drawn:
    """A figure of the paper's theory, mLSTMsig forward as there."""
    from tflabench.figures import paper

    yield [], paper.FIGURES[name]("sig", "fw", rows if len(rows) else None), rows


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
        PaperFigure("fig5", "paper-fig5", _tradeoffs),
        PaperFigure("fig12", "paper-fig12", partial(_curves, "seq_len", BOTH)),
        PaperFigure("fig13", "paper-fig13", partial(_curves, "seq_len", BOTH)),
        PaperFigure("fig14", "paper-fig14", partial(_curves, "d_hv", ("runtime",))),
        PaperFigure("fig17", "paper-fig17", partial(_theory, "fig17"), theory=True),
        PaperFigure("fig19", "paper-fig17", partial(_theory, "fig19"), theory=True),
        PaperFigure("fig20", "paper-fig17", partial(_theory, "fig20"), theory=True),
    )
}
