"""Heat maps of the transfer behaviour: gains over the input and the forget gate, a row a normaliser. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from tflabench.figures.layout import EDGE
from tflabench.figures.style import FOOTER_SIZE, TITLE_SIZE, styled
from tflabench.theory.transfer import Experiment, Gains

PANEL, GAP, LEFT, TOP, BOTTOM = 1.3, 0.14, 0.72, 0.44, 0.44  # inches
BAR_GAP, BAR, BAR_LABELS = 0.08, 0.08, 0.5  # of a colour bar, right of its panels
TICKS = 0.34  # of the first panel after it
COLOURS = "viridis"  # dark where the signal is suppressed, as in the paper
LEAST = 1e-6  # smaller gains are drawn as this


@styled
def heat_maps(experiment: Experiment, rows: Sequence[Gains], title: str, footer: Sequence[str]) -> Figure:
    """A row a gate and normaliser: G_before on a log scale, then G_after for every eps with a line where it is half.

    All panels of a kind share their colours, so that rows and eps can be compared.
    """
    eps = list(rows[0].after)
    first_after = LEFT + PANEL + BAR_GAP + BAR + BAR_LABELS + TICKS
    end = first_after + len(eps) * (PANEL + GAP) - GAP
    width, tall = end + BAR_GAP + BAR + BAR_LABELS, len(rows) * (PANEL + GAP) - GAP
    height = TOP + tall + BOTTOM + 0.09 * len(footer)
    figure = Figure(figsize=(width, height), facecolor="white")

    def axes(x: float, row: int, across: float = PANEL, down: float = PANEL) -> Any:
        y = height - TOP - row * (PANEL + GAP) - down
        return figure.add_axes((x / width, y / height, across / width, down / height))

    decades = _decades([row.before for row in rows])
    linear = Normalize(0, math.ceil(10 * max(gain.max() for row in rows for gain in row.after.values())) / 10)
    before, after = None, None
    for n, row in enumerate(rows):
        panel = axes(LEFT, n)
        before = _map(panel, experiment, np.maximum(row.before, LEAST), decades)
        panel.set_ylabel(f"mLSTM{row.gate}, n = {_formula(row.normalizer.name)}\ninput gate $\\tilde i$")
        panels = [panel]
        for column, (e, gain) in enumerate(row.after.items()):
            panel = axes(first_after + column * (PANEL + GAP), n)
            after = _map(panel, experiment, gain, linear)
            if gain.min() < gain.max() / 2:
                grid, half = (experiment.forget_gates, experiment.input_gates, gain), [gain.max() / 2]
                panel.contour(*grid, levels=half, colors="white", linewidths=0.7)
            panel.set_title(rf"after, $\epsilon$ = {e:g}" if n == 0 else "")
            panel.tick_params(labelleft=column == 0)
            panels.append(panel)
        for panel in panels:
            panel.tick_params(labelbottom=n == len(rows) - 1)
            panel.set_xlabel(r"forget gate $\tilde f$" if n == len(rows) - 1 else "")
    figure.axes[0].set_title("before the norm")
    for drawn, x, label in ((before, LEFT + PANEL, "before"), (after, end, "after")):
        bar = axes(x + BAR_GAP, 0, BAR, tall)
        figure.colorbar(drawn, cax=bar).outline.set_visible(False)  # type: ignore[arg-type]
        bar.set_ylabel(f"gain $G_{{\\mathrm{{{label}}}}}$")
    figure.text(EDGE / width, 1 - EDGE / height, title, fontsize=TITLE_SIZE, va="top")
    words = {"fontsize": FOOTER_SIZE, "color": "0.45", "va": "bottom", "linespacing": 1.25}
    figure.text(EDGE / width, EDGE / height, "\n".join(footer), **words)
    return figure


def _formula(name: str) -> str:
    return name.replace("exp(-m)", "$e^{-m}$").replace("|s|", "$|s|$")


def _decades(gains: Sequence[np.ndarray]) -> LogNorm:
    """Whole powers of ten around all gains, from LEAST on."""
    low, high = min(gain.min() for gain in gains), max(gain.max() for gain in gains)
    first = math.floor(math.log10(max(low, LEAST)))
    return LogNorm(10.0**first, 10.0 ** max(math.ceil(math.log10(max(high, LEAST))), first + 1))


def _map(ax: Any, experiment: Experiment, gain: np.ndarray, norm: Normalize) -> Any:
    ax.grid(visible=False)
    ax.set_box_aspect(1)
    x, y = experiment.forget_gates, experiment.input_gates
    return ax.pcolormesh(x, y, gain, norm=norm, cmap=COLOURS, shading="nearest", rasterized=True)
