"""Figures of theory over the chunk size, and rooflines with measured points."""

from __future__ import annotations

from pathlib import Path

import pytest
from figure_cases import tradeoff
from synthetic import row

from tflabench.figures.model import Curve, Figure, Panel, Rule
from tflabench.figures.roofline import of_gpus
from tflabench.figures.source import Source
from tflabench.rows.load import Results
from tflabench.rows.schema import Row
from tflabench.theory import hardware

TRADEOFF = tradeoff()
H100 = "NVIDIA H100 80GB HBM3"


def curves(panel: Panel) -> dict[str, Curve]:
    return {item.label: item for item in panel.items if isinstance(item, Curve)}


def rules(panel: Panel) -> dict[str, float]:
    return {item.label: item.value for item in panel.items if isinstance(item, Rule)}


def roofline(names: list[str], sizes: list[int], *rows: Row) -> Figure:
    costs = {size: TRADEOFF.cost(size) for size in sizes}
    source = Source.of(Results(Path(), rows, {}))
    return of_gpus([hardware.find(name) for name in names], costs, "a setting", source)


def test_theoretical_rooflines_bend_at_the_ridge_and_carry_measured_points():
    figure = roofline(["H100", "A100"], [16, 1024], row(ms=2.0, model_flops=4e11, model_bytes=5e9, device=H100))
    (panel,) = figure.panels
    roofs = {name: own for name, own in curves(panel).items() if own.joined}
    assert list(roofs) == ["H100: 989 TFLOP/s, 3.35 TB/s", "A100: 312 TFLOP/s, 2.04 TB/s"]
    ridges = [hardware.find(name).ceilings.intensity for name in ("H100", "A100")]
    assert [own.x[1] for own in roofs.values()] == ridges
    assert [list(own.y)[1:] for own in roofs.values()] == [pytest.approx([rate, rate]) for rate in (989, 312)]
    point = curves(panel)["tfla sig xl"]
    assert (list(point.x), list(point.y), list(point.hollow)) == ([80.0], [200.0], [])
    assert not figure.keys
    assert rules(panel) == {f"L = {size}": float(TRADEOFF.cost(size).intensity) for size in (16, 1024)}


def test_points_of_a_gpu_whose_roof_is_not_drawn_are_hollow_and_named():
    rows = [row(name, ms=2.0, model_flops=4e11, model_bytes=5e9, device=H100) for name in ("tfla_sig_xl", "sdpa")]
    figure = roofline(["B200"], [16], *rows)
    points = [curve for curve in figure.panels[0].items if isinstance(curve, Curve) and not curve.joined]
    assert [list(point.hollow) for point in points] == [[True], [True]]
    (key,) = figure.keys
    assert (key.kind, "H100" in key.words) == ("hollow", True)
