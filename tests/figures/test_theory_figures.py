"""Figures of theory over the chunk size, and rooflines."""

from __future__ import annotations

import pytest
from figure_cases import tradeoff

from tflabench.figures.model import Curve, Panel, Rule
from tflabench.figures.roofline import Roofline
from tflabench.theory import hardware

TRADEOFF = tradeoff()


def curves(panel: Panel) -> dict[str, Curve]:
    return {item.label: item for item in panel.items if isinstance(item, Curve)}


def rules(panel: Panel) -> dict[str, float]:
    return {item.label: item.value for item in panel.items if isinstance(item, Rule)}


def test_theoretical_rooflines_bend_at_the_ridge():
    costs = {size: TRADEOFF.cost(size) for size in (16, 1024)}
    (panel,) = Roofline("a setting", [hardware.find(name) for name in ("H100", "A100")], costs).figure.panels
    roofs = curves(panel)
    assert list(roofs) == ["H100: 989 TFLOP/s, 3.35 TB/s", "A100: 312 TFLOP/s, 2.04 TB/s"]
    ridges = [hardware.find(name).ceilings.intensity for name in ("H100", "A100")]
    assert [own.x[1] for own in roofs.values()] == ridges
    assert [list(own.y)[1:] for own in roofs.values()] == [pytest.approx([rate, rate]) for rate in (989, 312)]
    assert rules(panel) == {f"L = {size}": float(TRADEOFF.cost(size).intensity) for size in (16, 1024)}
