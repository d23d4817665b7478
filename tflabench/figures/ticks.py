"""Axes of a panel: scale, limits, ticks and labels."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from tflabench.figures.captions import compact
from tflabench.figures.facets import Slice
from tflabench.figures.layout import text_width
from tflabench.figures.quantities import AXES
from tflabench.figures.style import TICK_SIZE


def x_axis(ax: Axes, part: Slice) -> Any:
    """Scale, ticks and label of the swept axis; returns what maps its values to x positions."""
    values = sorted(part.rows[part.axis].dropna().unique())
    ax.set_xlabel(_axis_label(part))
    ax.grid(visible=False, axis="x")
    if part.axis == "dtype":
        ax.set_xticks(range(len(values)), [str(value) for value in values])
        ax.set_xlim(-0.5, len(values) - 0.5)
        return lambda column: column.map({value: i for i, value in enumerate(values)}).to_numpy(float)
    values = [int(value) for value in values] or [1]
    steps = np.diff(values)
    if len(values) > 2 and (steps == steps[0]).all():
        margin = 0.05 * (values[-1] - values[0])
        ax.set_xlim(values[0] - margin, values[-1] + margin)
    else:
        ax.set_xscale("log", base=2)
        margin = max(values[-1] / values[0], 2**0.5) ** 0.05
        ax.set_xlim(values[0] / margin, values[-1] * margin)
    _value_ticks(ax, values)
    return lambda column: column.to_numpy(float)


def _value_ticks(ax: Axes, values: list[int]) -> None:
    """A tick at every value, labelled in full where that fits, else with Ki for 1024, else every other one."""
    ax.xaxis.set_major_locator(FixedLocator(values))
    ax.xaxis.set_minor_locator(NullLocator())
    place = ax.transLimits.transform(ax.transScale.transform([(value, 1) for value in values]))[:, 0]
    width = ax.get_position().width * ax.figure.get_size_inches()[0]  # type: ignore[union-attr]

    def fits(labels: list[str], shown: list[int]) -> bool:
        ends = [
            (place[i] * width - half, place[i] * width + half)
            for i in shown
            for half in [text_width(labels[i], TICK_SIZE) / 2]
        ]
        return all(left - right > 0.05 for (_, right), (left, _) in pairwise(ends))

    everyone = list(range(len(values)))
    for stride in (1, 2, 3, 4, 6, 8, 16):
        shown = everyone[::-1][::stride][::-1]
        for labels in ([str(value) for value in values], [compact(value) for value in values]):
            if fits(labels, shown) or stride == 16:
                ax.xaxis.set_major_formatter(FuncFormatter(partial(_named, {values[i]: labels[i] for i in shown})))
                return


def _named(names: dict[int, str], value: float, _: int) -> str:
    return names.get(round(value), "")


def _axis_label(part: Slice) -> str:
    d_qk, d_hv = part.rows["d_qk"], part.rows["d_hv"]
    if part.axis in ("d_hv", "d_qk") and (d_qk == d_hv).all() and d_hv.nunique() > 1:
        return "head dimension $d_{qk} = d_{hv}$ [channels]"
    return AXES[part.axis]


def limits(ax: Axes, room: float = 0.0) -> None:
    """Linear from zero where all values lie within a factor of eight, else logarithmic; `room`: part free above."""
    values = np.concatenate([[], *(_heights(artist) for artist in (*ax.lines, *ax.collections))])
    values = values[np.isfinite(values) & (values > 0)]
    margin = 0.05
    if not len(values):
        ax.set(ylim=(0, 1), yticks=[])
    elif values.max() > 8 * values.min():
        low, high = math.log10(values.min()), math.log10(values.max())
        span = (high - low) / (1 - 2 * margin - room)
        ax.set(yscale="log", ylim=(10 ** (low - margin * span), 10 ** (high + (margin + room) * span)))
        log_ticks(ax.yaxis)
    else:
        ax.set_ylim(0, values.max() / (1 - margin - room))
        ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))


def log_ticks(direction: Axis) -> None:
    """Plain numbers: powers of ten over many decades; 1, 3 or 1, 2, 5 times these over few."""
    low, high = direction.get_view_interval()
    span = math.log10(high / low)
    direction.set_major_locator(LogLocator(subs=(1.0,) if span > 3 else (1.0, 3.0) if span > 2 else (1.0, 2.0, 5.0)))
    direction.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}" if value < 1e5 else f"{value:.0e}"))
    direction.set_minor_formatter(NullFormatter())


def _heights(artist: Any) -> np.ndarray:
    """The y values of a line, of whiskers or of a band; none of what is placed relative to the axes."""
    if isinstance(artist, Line2D):
        return np.asarray(artist.get_ydata(), float)
    return np.concatenate([[], *(path.vertices[:, 1] for path in artist.get_paths())])
