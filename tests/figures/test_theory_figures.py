"""Figures of theory over the chunk size, and rooflines with measured points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from figure_cases import tradeoff

from tflabench.figures import theory
from tflabench.figures.model import Band, Curve, Figure, Panel, Rule, Shading
from tflabench.theory import hardware

TRADEOFF = tradeoff()


def curves(panel: Panel) -> dict[str, Curve]:
    return {item.label: item for item in panel.items if isinstance(item, Curve)}


def rules(panel: Panel) -> dict[str, float]:
    return {item.label: item.value for item in panel.items if isinstance(item, Rule)}


def roofline(names: list[str], sizes: list[int], measured: Sequence[theory.Measured] = (), looks=None) -> Figure:
    costs = {size: TRADEOFF.cost(size) for size in sizes}
    return theory.roofline([hardware.find(name) for name in names], costs, "a setting", measured, looks or {})


def test_theory_over_the_chunk_size_marks_the_least_the_recommended_and_the_budget():
    figure = theory.runtime_over_chunk_size(TRADEOFF, 512, "a setting", 8 * 2**30)
    assert figure.title == "Theory: least runtime at L = 634, recommended is L = 512"
    runtime, memory = figure.panels
    upper = curves(runtime)["nothing overlaps"]
    assert np.asarray(upper.y) == pytest.approx(TRADEOFF.time(upper.x).upper * 1e3)
    (band,) = (item for item in runtime.items if isinstance(item, Band))
    assert np.asarray(band.lower) == pytest.approx(TRADEOFF.time(upper.x).lower * 1e3)
    assert rules(runtime) == {"least 634": TRADEOFF.runtime_optimal, "recommended 512": 512}
    assert rules(memory) == {"budget": 8, "": 512}
    (span,) = (item for item in runtime.items if isinstance(item, Shading))
    assert [(span.low, span.high)] == [(372, 1081)]
    assert [key.words for key in figure.keys] == ["within 5% of the least: 372 to 1081"]
    assert "H100 datasheet" in "\n".join(figure.caption)


def test_theoretical_rooflines_bend_at_the_ridge_and_carry_measured_points():
    figure = roofline(["H100", "A100"], [16, 1024], [theory.Measured("tfla_sig_xl", 80.0, 2e14)])
    (panel,) = figure.panels
    roofs = {name: own for name, own in curves(panel).items() if own.joined}
    assert list(roofs) == ["H100: 989 TFLOP/s, 3.35 TB/s", "A100: 312 TFLOP/s, 2.04 TB/s"]
    ridges = [hardware.find(name).ceilings.intensity for name in ("H100", "A100")]
    assert [own.x[1] for own in roofs.values()] == ridges
    assert [list(own.y)[1:] for own in roofs.values()] == [pytest.approx([rate, rate]) for rate in (989, 312)]
    point = curves(panel)["tfla_sig_xl"]
    assert (list(point.x), list(point.y)) == ([80.0], [200.0])
    assert rules(panel) == {f"L = {size}": float(TRADEOFF.cost(size).intensity) for size in (16, 1024)}
