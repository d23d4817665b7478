"""No words of a figure are struck by a line or other words, or leave the page: of theory, and of all stored rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest
from figure_cases import FIG_5, advice, gains, profile, tradeoff, verdict
from figure_rows import made, many
from overlaps import overlaps
from repository import ROOT

from tflabench import figures
from tflabench.figures import gain_maps, memory_frontier, model_errors, paper, reproduce, theory
from tflabench.figures import profile as profiles
from tflabench.figures.axes import linear
from tflabench.figures.matplotlib_renderer import draw
from tflabench.figures.model import Curve, Figure, Ink, Panel
from tflabench.figures.source import Source
from tflabench.rows.load import read_results, read_rows
from tflabench.theory.hardware import find

RESULTS = ROOT / "results"
LINE = Curve("a line", [0.0, 1.0], [0.0, 1.0], Ink("#0072b2"))
FIGURE = Figure("stem", "a title", "a setting", (Panel("a panel", linear("x", 0, 1), linear("y", 0, 1), (LINE,)),))


def roofline() -> Figure:
    costs = {int(size): tradeoff().cost(int(size)) for size in tradeoff().sizes(5)}
    points = [theory.Measured("tfla_sig_xl", 80.0, 2e14), theory.Measured("hopper_sig", 200.0, 5e14)]
    return theory.roofline([find("A100"), find("H100")], costs, "mLSTMsig forward: d_qk 256", points)


COMMITTED = {
    "h100/quick": ("runtime-seq_len", "roofline-bfloat16"),
    "h100/paper-fig4": ("runtime-seq_len",),
    "h200/paper-fig5": ("runtime-chunk_size", "roofline-bfloat16"),
}
PAPERS = {
    "fig4": ("fig4", "fig4-linear-rnns"),
    "fig5": ("fig5-tfla_sig_xl",),
    "fig12": ("fig12-runtime", "fig12-memory"),
    "fig13": ("fig13-runtime-d_hv_64",),
    "fig14": ("fig14",),
}


OTHERS: dict[str, Callable[[], Figure]] = {
    "optimal-chunk": lambda: theory.runtime_over_chunk_size(tradeoff(), 512, "mLSTMsig on H100 SXM", 8 * 2**30),
    "roofline": roofline,
    "model-error": lambda: model_errors.errors(verdict()),
    **{f"breakdown-{n}": partial(lambda n: list(model_errors.breakdowns(verdict()))[n], n) for n in range(4)},
    **{f"transfer-{name}": partial(lambda name: gain_maps.heat_maps(name, *gains(name)), name) for name in "367"},
    "profile": lambda: profiles.draw(profile(), "mLSTMsig TFLA xl_chunk: T = 4096", ["a source"]),
    "advice": lambda: memory_frontier.draw(advice(), "forward on A100 SXM 80GB: T = 8192", ["a source"]),
}


@pytest.mark.parametrize("name", paper.FIGURES)
@pytest.mark.parametrize("pass_", ["fw", "fwbw"])
def test_the_papers_figures_can_be_read(name, pass_):
    assert overlaps(draw(paper.FIGURES[name]("sig", pass_))) == []


@pytest.mark.parametrize("name", ["fig17", "fig19", "fig20", "fig22"])
def test_the_papers_figures_can_be_read_with_rows_laid_over(name):
    assert overlaps(draw(paper.FIGURES[name]("sig", "fw", read_rows(FIG_5)))) == []


@pytest.mark.parametrize("name", OTHERS)
def test_the_other_figures_of_theory_can_be_read(name):
    assert overlaps(draw(OTHERS[name]())) == []


def test_a_figure_without_fault_has_none():
    assert overlaps(draw(FIGURE)) == []


def test_words_on_words_are_found():
    drawing = draw(FIGURE)
    drawing.text(0.5, 0.5, "one")
    drawing.text(0.51, 0.5, "two")
    assert overlaps(drawing)[0] == "'one' and 'two' overlap"


def test_words_struck_by_a_line_or_a_point_are_found():
    drawing = draw(FIGURE)
    drawing.axes[0].text(0.5, 0.5, "words", ha="center", va="center")
    assert overlaps(drawing) == ["'words' is struck by a line from [0. 0.]"]
    drawing = draw(FIGURE)
    drawing.axes[0].text(0.7, 0.3, "words", ha="center", va="center")
    assert overlaps(drawing) == []
    drawing.axes[0].plot([0.7], [0.3], "o")
    assert overlaps(drawing) == ["'words' is struck by a line from [0.7 0.3]"]


def test_words_beside_a_gap_of_a_line_are_not_struck():
    drawing = draw(FIGURE)
    drawing.axes[0].text(0.7, 0.3, "words", ha="center", va="center")
    drawing.axes[0].plot([0.5, np.nan, 0.9], [0.3, 0.3, 0.3])
    assert overlaps(drawing) == []


def test_words_off_the_page_are_found():
    drawing = draw(FIGURE)
    drawing.text(0.99, 0.5, "far right")
    assert overlaps(drawing) == ["'far right' leaves the page"]


def of_rows() -> dict[str, Callable[[], Figure]]:
    """Return by name what makes each figure of rows that is committed, and the paper's."""
    found: dict[str, Callable[[], Figure]] = {}
    for folder, stems in COMMITTED.items():
        found |= {f"{folder}/{stem}": partial(_stored, folder, stem) for stem in stems}
    for name, stems in PAPERS.items():
        found |= {stem: partial(_papers, name, stem) for stem in stems}
    return found


@cache
def _source(folder: str) -> Source:
    return Source.of(read_results(RESULTS / folder))


def _stored(folder: str, stem: str) -> Figure:
    return next(figure for figure in figures.figures(_source(folder)) if figure.stem == stem)


def _papers(name: str, stem: str) -> Figure:
    return _drawn(name)[stem]


@cache
def _drawn(name: str) -> dict[str, Figure]:
    figure = reproduce.find(name)
    rows = reproduce.stored(reproduce.points_of(figure, False), RESULTS / "h200", figure.preset)
    assert rows
    return {drawn.stem: drawn for drawn in figure.draw(name, Source.of(rows))}


@pytest.mark.parametrize("name", of_rows())
def test_figures_of_stored_rows_can_be_read(name):
    assert overlaps(draw(of_rows()[name]())) == []


def test_many_long_names_can_be_read():
    rows = [row.model_copy(update={"title": f"{row.title} and a long explanation of it"}) for row in many()]
    for figure in made(rows, ["runtime"]).values():
        assert overlaps(draw(figure)) == []
