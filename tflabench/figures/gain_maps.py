"""Heat maps of the transfer behaviour: gains over the input and the forget gate, a row a normaliser. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from tflabench.figures.axes import linear
from tflabench.figures.looks import VERMILION
from tflabench.figures.model import Axis, Curve, Dash, Figure, HeatMap, Ink, Key, Panel
from tflabench.theory.transfer import DEFAULT_EPS, OUR_READING, Experiment, Gains, half_gain

LEAST = 1e-6  # smaller gains are drawn as this
DASHES: tuple[Dash, ...] = ("solid", "dash", "dot")  # of the eps whose gains are the colours, and of the others
NORMS = {"rms": "RMS norm", "layer": "layer norm"}


def heat_maps(name: str, experiment: Experiment, rows: Sequence[Gains]) -> Figure:
    """Return figure 3, 6 or 7 of the paper: a row a gate and normaliser, the gain before and after the norm layer.

    After the norm, colours are of one eps, and lines show where the gain is half of its largest, for every eps.
    All maps of a kind share their colours.
    """
    e, lines = experiment, _lines(list(rows[0].after))
    cap = "" if e.soft_cap is None else f", gates under a soft cap of {e.soft_cap:g}"
    eps = next(iter(lines))
    panels = [panel for row in rows for panel in _row(experiment, rows, row, eps)]
    return Figure(
        stem=f"transfer-fig{name}",
        title=_title(rows, eps),
        setting=(
            f"T = {e.seq_len}, one head, d_qk = {e.d_qk}, d_hv = {e.d_hv}, {NORMS[e.norm]}{cap}; "
            f"colours after the norm: eps = {eps:g}; lines: half the largest gain"
        ),
        panels=tuple(panels),
        columns=2,
        keys=tuple(Key(f"eps = {value:g}", lines[value]) for value in sorted(lines, reverse=True)),
        caption=tuple(_notes(name, experiment)),
        rows=table(experiment, rows),
        height=0.86,
    )


def table(experiment: Experiment, rows: Sequence[Gains]) -> pd.DataFrame:
    """Return the gains as a table to five digits, one row a point of the grid."""
    i, f = (axis.ravel() for axis in np.meshgrid(experiment.input_gates, experiment.forget_gates, indexing="ij"))
    columns = {"input_gate": i, "forget_gate": f}
    for row in rows:
        label = f"{row.gate} n={row.normalizer.name}"
        columns[f"{label} before"] = row.before.ravel()
        columns |= {f"{label} after eps={eps:g}": gain.ravel() for eps, gain in row.after.items()}
    return pd.DataFrame(columns).map(lambda value: float(f"{value:.5g}"))


def _row(experiment: Experiment, rows: Sequence[Gains], row: Gains, eps: float) -> Iterator[Panel]:
    """Yield the maps of one gate and normaliser, with the colours that all `rows` share."""
    x = linear("forget gate f~", experiment.forget_gates[0], experiment.forget_gates[-1])
    y = linear("input gate i~", experiment.input_gates[0], experiment.input_gates[-1])
    grid = (np.array(experiment.forget_gates), np.array(experiment.input_gates))
    every = np.maximum([gains.before for gains in rows], LEAST)
    first, last = math.floor(math.log10(every.min())), math.ceil(math.log10(every.max()))
    decades = 10.0**first, 10.0 ** max(last, first + 1)
    before = HeatMap(*grid, np.maximum(row.before, LEAST), *decades, "log", "gain")
    most = math.ceil(10 * max(gain.max() for gains in rows for gain in gains.after.values())) / 10
    after = HeatMap(*grid, row.after[eps], 0.0, most, label="gain")
    yield Panel(f"mLSTM{row.gate}, n = {row.normalizer.name}", x, y, (before,))
    bare = Axis("", "linear", y.limits, tuple((value, "") for value, _ in y.ticks))
    yield Panel("after the norm", x, bare, (after, *_half_gains(experiment, row)))


def _half_gains(experiment: Experiment, row: Gains) -> Iterator[Curve]:
    """Yield for each eps the input gate of half the largest gain over the forget gate; nothing where all is above."""
    for eps, ink in _lines(list(row.after)).items():
        halves = [half_gain(experiment.input_gates, column) for column in row.after[eps].T]
        if any(value is not None for value in halves):
            y = [math.nan if value is None else value for value in halves]
            yield Curve("", experiment.forget_gates, y, ink, "theory")


def _lines(eps: Sequence[float]) -> dict[float, Ink]:
    """Return the line of each eps, the one whose gains are the colours first; of no more than fit the legend."""
    shown = DEFAULT_EPS if DEFAULT_EPS in eps else eps[0]
    ordered = [shown, *(value for value in eps if value != shown)]
    return {value: Ink(VERMILION, dash=dash) for value, dash in zip(ordered, DASHES, strict=False)}


def _title(rows: Sequence[Gains], eps: float) -> str:
    """Say with which normalisers the input gate decides the gain after the norm."""
    deciding = [row.after[eps].min() < row.after[eps].max() / 2 for row in rows]
    if all(deciding):
        return "The input gate decides the gain after the norm, with either gate"
    few = sum(deciding) <= len(rows) / 2
    names = [row.normalizer.name for row, decides in zip(rows, deciding, strict=True) if decides == few]
    restriction = "only with" if few else "except with"
    return f"mLSTM{rows[0].gate}: the input gate decides the gain after the norm {restriction} n = {' or '.join(names)}"


def _notes(name: str, experiment: Experiment) -> Iterator[str]:
    yield f"Fig. {name} of the paper: the transfer behaviour of the mLSTM."
    yield "Left: the gain before the norm layer, on a logarithmic scale. Right: after it."
    yield "Gain: mean over time of max|h| / max|v| (eq. 26), computed in float64."
    yield "Lines: where the gain after the norm passes half of its largest at that forget gate."
    yield f"s = n.q; q, k, v ~ N(0, 1), the same gates at every step, seed {experiment.seed}; tflabench transfer."
    if rows := OUR_READING.get(name):
        yield f"Normalisers of {rows}: our reading, the paper does not print them."
