"""Axes of panels: scale, limits and ticks, the same for every renderer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np

from tflabench.figures.captions import compact, shorten
from tflabench.figures.facets import Slice
from tflabench.figures.model import Axis, Band, Curve, Item
from tflabench.figures.quantities import AXES, WORDS

MOST_TICKS = 7  # that fit below a panel 45 mm wide
CROSS_LEVEL = 0.045  # of a panel's height, from one row of crosses at its top to the next
LONGEST = 28  # letters of a line of the label of a bar
MARGIN = 0.05  # of an axis, free on either side of what is drawn
Ticks = tuple[tuple[float, str], ...]


class SweptAxis(NamedTuple):
    """The x axis of a swept column, and where its values stand on it."""

    axis: Axis
    position: Callable[[Any], np.ndarray]


def swept(part: Slice) -> SweptAxis:
    """Return the x axis of a slice: logarithmic unless the values are evenly spaced."""
    order = WORDS.get(part.axis, ())
    values = sorted(part.rows[part.axis].dropna().unique(), key=order.index if order else None)
    label = _label(part)
    if part.axis in WORDS:
        ticks = tuple((float(n), str(value)) for n, value in enumerate(values))
        places = {value: float(n) for n, value in enumerate(values)}
        axis = Axis(label, "linear", (-0.5, len(values) - 0.5), ticks)
        return SweptAxis(axis, lambda column: np.array([places.get(value, np.nan) for value in column]))
    numbers = [float(value) for value in values] or [1.0]
    steps = np.diff(numbers)
    even = len(numbers) > 2 and bool((steps == steps[0]).all())
    axis = over(label, numbers, "linear" if even else "log")
    return SweptAxis(axis, lambda column: np.asarray(column, float))


def over(label: str, values: Sequence[float], scale: Any = "log", most: int = MOST_TICKS) -> Axis:
    """Return an axis with a tick at these values, every second or fourth one where there are more than fit."""
    stride = math.ceil(len(values) / most)
    shown = sorted(values)[::-1][::stride][::-1]
    low, high = min(values), max(values)
    if scale == "linear":
        limits = (low - MARGIN * (high - low), high + MARGIN * (high - low))
    else:
        margin = max(high / low, 2**0.5) ** MARGIN
        limits = (low / margin, high * margin)
    return Axis(label, scale, limits, tuple((value, compact(value)) for value in shown))


def labels(names: Sequence[str]) -> Axis:
    """Return the y axis of bars: a label before each, the first on top."""
    ticks = tuple(
        (float(place), fill(shorten(label, 2 * LONGEST), LONGEST, break_on_hyphens=False))
        for place, label in enumerate(reversed(names))
    )
    return Axis("", "linear", (-0.6, len(names) - 0.4), ticks)


def powers(label: str, low: float, high: float) -> Axis:
    """Return a logarithmic axis from `low` to `high` with ticks at powers of two."""
    exponents = range(math.ceil(math.log2(low)), math.floor(math.log2(high) + 1e-9) + 1)
    axis = over(label, [2.0**n for n in exponents])
    return Axis(label, "log", (low / 1.12, high * 1.12), axis.ticks)


def upwards(label: str, values: Iterable[float], room: float = 0.0) -> Axis:
    """Return a y axis that holds positive values, and leaves the part `room` of its height free at the top.

    It starts at zero where all values lie within a factor of eight, else it is logarithmic.
    """
    positive = [value for value in values if math.isfinite(value) and value > 0]
    if not positive:
        return Axis(label, "linear", (0.0, 1.0), ((0.0, ""),))
    if max(positive) > 8 * min(positive):
        return logarithmic(label, *positive, room=room)
    high = max(positive) / (1 - MARGIN - room)
    return Axis(label, "linear", (0.0, high), linear_ticks(0.0, high))


def logarithmic(label: str, *values: float, room: float = 0.0) -> Axis:
    """Return a logarithmic axis with margins around the least and the greatest value."""
    low, high = min(values), max(values)
    span = max(math.log10(high / low), 0.3) / (1 - 2 * MARGIN - room)
    limits = (10 ** (math.log10(low) - MARGIN * span), 10 ** (math.log10(high) + (MARGIN + room) * span))
    return Axis(label, "log", limits, log_ticks(*limits))


def held(items: Iterable[Item]) -> list[float]:
    """Return what a y axis must hold: the values of curves, of their whiskers, and of bands."""
    numbers: list[float] = []
    for item in items:
        if isinstance(item, Curve):
            numbers.extend(chain(item.y, *(item.spread or ())))
        elif isinstance(item, Band):
            numbers += [*item.lower, *item.upper]
    return numbers


def linear(label: str, low: float, high: float) -> Axis:
    """Return a linear axis from `low` to `high`."""
    return Axis(label, "linear", (low, high), linear_ticks(low, high))


def linear_ticks(low: float, high: float, most: int = 6) -> Ticks:
    """Return ticks at round numbers between two values."""
    rough = (high - low) / most or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple((n * step, f"{n * step:,.6g}") for n in range(first, last + 1))


def log_ticks(low: float, high: float) -> Ticks:
    """Return ticks at powers of ten over many decades; at 1 and 3, or 1, 2 and 5 times these over few."""
    span = math.log10(high / low)
    subs = (1.0,) if span > 3 else (1.0, 3.0) if span > 1.8 else (1.0, 2.0, 5.0)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    stride = math.ceil(span / MOST_TICKS)
    places = [sub * 10.0**n for n in decades if n % stride == 0 for sub in subs if low <= sub * 10.0**n <= high]
    if len(places) < 2:
        return linear_ticks(low, high, 4)
    return tuple((value, f"{value:,.6g}" if 1e-4 <= value < 1e5 else f"{value:.0e}") for value in places)


def _label(part: Slice) -> str:
    d_qk, d_hv = part.rows["d_qk"], part.rows["d_hv"]
    if part.axis in ("d_hv", "d_qk") and (d_qk == d_hv).all() and d_hv.nunique() > 1:
        return "head dimension d_qk = d_hv [channels]"
    return AXES[part.axis]
