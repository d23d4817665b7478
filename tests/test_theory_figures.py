"""Figures of theory over the chunk size, and rooflines with measured points."""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from tflabench.figures import theory
from tflabench.problem import Problem
from tflabench.theory import hardware
from tflabench.theory.chunk_size import Tradeoff

sys.path.insert(0, str(Path(__file__).parent))
from figure_rows import SWEEPS, drawn, legend_words, stays_on_the_page, words


def points(line) -> np.ndarray:
    """[n, 2] of x and y."""
    return np.asarray(line.get_xydata(), float)


TRADEOFF = Tradeoff(Problem(8, 8, 8192, 256, 512), "sig", hardware.find("H100").ceilings)


def test_theory_over_the_chunk_size_marks_the_least_the_recommended_and_the_budget():
    figure = theory.runtime_over_chunk_size(TRADEOFF, 512, "a title", 8 * 2**30)
    stays_on_the_page(figure)
    runtime, memory = figure.axes
    curve, best, recommended = map(points, runtime.lines)
    assert curve[:, 1] == pytest.approx(TRADEOFF.time(curve[:, 0]).upper * 1e3)
    assert (best[0, 0], recommended[0, 0]) == (TRADEOFF.runtime_optimal, 512)
    _, budget, also_recommended = map(points, memory.lines)
    assert (budget[0, 1], also_recommended[0, 0]) == (8, 512)
    assert {"recommended: 512", "within 5% of the least: 372 to 1081", "memory budget"} <= set(legend_words(figure))
    assert "H100 datasheet" in words(figure)


def test_theoretical_rooflines_bend_at_the_ridge_and_carry_measured_points():
    gpus = [hardware.find("H100"), hardware.find("A100")]
    costs = {size: TRADEOFF.cost(size) for size in (16, 1024)}
    point = theory.Measured("tfla_sig_xl", 80.0, 2e14)
    figure = theory.roofline(gpus, costs, "a title", [point])
    stays_on_the_page(figure)
    (ax,) = figure.axes
    roofs = [corners for line in ax.lines if len(corners := points(line)) == 3]
    assert [corners[1, 0] for corners in roofs] == [gpu.ceilings.intensity for gpu in gpus]
    assert [corners[1:, 1] for corners in roofs] == [pytest.approx([rate, rate]) for rate in (989, 312)]
    (shown,) = [line for line in ax.lines if line.get_label() == "tfla_sig_xl, measured"]
    assert points(shown).tolist() == [[80.0, 200.0]]
    assert {"L = 16", "L = 1024"} <= {text.get_text() for text in ax.texts}


def test_chunk_sizes_too_close_to_name_each_are_named_where_there_is_room():
    costs = {size: TRADEOFF.cost(size) for size in range(64, 4097, 64)}
    figure = theory.roofline([hardware.find("H100")], costs, "a title")
    (ax,) = figure.axes
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    names = [text.get_window_extent(renderer) for text in ax.texts if text.get_text().startswith("L = ")]
    assert 3 < len(names) < len(costs)
    assert not any(one.overlaps(other) for one, other in combinations(names, 2))


def test_a_legend_takes_one_row_where_one_is_enough():
    figure, _ = drawn(SWEEPS["chunks"], ["chunk"])["chunk-tfla_sig_xl"]
    (legend,) = figure.legends
    assert len({round(text.get_window_extent().y0) for text in legend.get_texts()}) == 1
    figure, _ = drawn(SWEEPS["many"], ["runtime"])["runtime-seq_len"]
    assert len(figure.legends) == 2
