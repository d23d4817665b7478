"""Axes, colours and marks of Plotly figures, as plain dicts.

Every colour is a lower-case "#rrggbb" or "#rrggbbaa" of the light page; `dark_colours` maps each to the dark page's.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_hex, to_rgb

from tflabench.figures.captions import compact
from tflabench.figures.facets import Slice
from tflabench.figures.quantities import AXES, Rows
from tflabench.figures.style import DASHES, MARKERS, Look, kind_colour
from tflabench.report.formats import html

Trace = dict[str, Any]
Positions = Callable[[Any], list[Any]]  # values of an axis -> where they lie on it

PAPER, INK, MUTED, GRID, SHADE, CLEAR = "#ffffff", "#1b1e23", "#697180", "#e6e8eb", "#f3f4f6", "#ffffff00"
DARK = {PAPER: "#16191e", INK: "#e8eaed", MUTED: "#99a1ae", GRID: "#2b3038", SHADE: "#1d2127"}
OVERLAY = {"overlaying": "y", "range": [0, 1], "fixedrange": True, "visible": False}  # y from foot to top of a panel
_SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "pentagon")
_SYMBOLS += ("triangle-left", "triangle-right", "star")
SYMBOLS: dict[str, str] = dict(zip(MARKERS, _SYMBOLS, strict=True))
LINES: dict[Any, str] = dict(zip(DASHES, ("solid", "6px,2px", "2px,2px", "7px,2px,2px,2px"), strict=True))


def dark_colours(looks: Mapping[str, Look]) -> dict[str, str]:
    """Light colour -> dark colour, of everything that figures of these looks use: hue kept, lightness turned over."""
    used = {to_hex(colour) for look in looks.values() for colour in (look.colour, kind_colour(look.kind))}
    return DARK | {colour: _on_dark(colour) for colour in sorted(used)}


def _on_dark(colour: str) -> str:
    hue, lightness, saturation = colorsys.rgb_to_hls(*to_rgb(colour))
    return to_hex(colorsys.hls_to_rgb(hue, max(0.58, 0.92 - 0.8 * lightness), 0.8 * saturation))


def line(look: Look, width: float = 1.8) -> dict[str, Any]:
    """The line of an implementation."""
    return {"color": to_hex(look.colour), "width": width, "dash": LINES[look.dashes]}


def marks(look: Look, open_: Iterable[bool], size: float | Sequence[float] = 7.5) -> dict[str, Any]:
    """The markers of an implementation, each filled or open."""
    colour = to_hex(look.colour)
    return {
        "symbol": SYMBOLS[look.marker],
        "size": size,
        "opacity": 1,
        "color": [PAPER if one else colour for one in open_],
        "line": {"color": colour, "width": 1.5},
    }


def points(name: str, look: Look, rows: Rows) -> Trace:
    """A trace of an implementation whose points are these rows, which the page shows on hover."""
    return {
        "type": "scatter",
        "name": look.title,
        "meta": [name],
        "hoverinfo": "none",
        "customdata": [int(index) for index in rows.index],
    }


def layout(**changes: Any) -> dict[str, Any]:
    """What all panels share."""
    return {
        "height": 320,
        "margin": {"l": 46, "r": 12, "t": 8, "b": 44},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "showlegend": False,
        "hovermode": "closest",
        "hoverdistance": 24,
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 11.5, "color": INK},
        "hoverlabel": {"bgcolor": PAPER, "bordercolor": GRID, "font": {"color": INK}, "align": "left"},
        **changes,
    }


def say_if_empty(values: Sequence[float | None]) -> dict[str, Any]:
    """What a layout has beside the rest where there is no value to show."""
    place = {"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "showarrow": False}
    return (
        {} if any(values) else {"annotations": [{**place, "text": "no point was measured", "font": {"color": MUTED}}]}
    )


def axis(**changes: Any) -> dict[str, Any]:
    """What all axes share."""
    return {
        "gridcolor": GRID,
        "zeroline": False,
        "linecolor": MUTED,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": MUTED,
        "tickfont": {"color": MUTED},
        "tickangle": 0,
        **changes,
    }


def log_axis(low: float, high: float, **changes: Any) -> dict[str, Any]:
    """Plain numbers: powers of ten over many decades; 1, 3 or 1, 2, 5 times these over few."""
    decades = math.log10(high / low)
    steps = (1,) if decades > 3 else (1, 3) if decades > 2 else (1, 2, 5)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**power for power in powers for step in steps]
    labels = [f"{tick:,.10g}" if tick < 1e6 else f"{tick:.0e}" for tick in ticks]
    return axis(type="log", range=[math.log10(low), math.log10(high)], tickvals=ticks, ticktext=labels, **changes)


def value_axis(values: Sequence[float | None], room: float, log: bool = False, **changes: Any) -> dict[str, Any]:
    """Linear from zero where values lie within a factor of eight, else logarithmic; `room`: part free at the end."""
    known = np.array([value for value in values if value], float)
    if not len(known):
        return axis(range=[0, 1], tickvals=[], **changes)
    low, high = known.min(), known.max()
    if log or high > 8 * low:
        span = max(math.log10(high / low), 0.3) / (0.92 - room)
        return log_axis(low / 10 ** (0.04 * span), low * 10 ** (0.96 * span), **changes)
    return axis(range=[0, high / (0.95 - room)], nticks=7, **changes)


def swept_axis(part: Slice) -> tuple[dict[str, Any], Positions]:
    """The swept axis, logarithmic unless its values are evenly spaced, and what places values on it."""
    values = sorted(part.rows[part.axis].dropna().unique())
    _, bracket, unit = AXES[part.axis].partition(" [")
    title = {"text": axis_name(part) + bracket + unit}
    if part.axis == "dtype":
        return axis(title=title, type="category", categoryarray=values), list
    numbers = [int(value) for value in values] or [1]
    shown = numbers[:: -(-len(numbers) // 10)]
    common = {"tickvals": shown, "ticktext": [compact(value) for value in shown], "showgrid": False, "title": title}
    steps = np.diff(numbers)
    if len(numbers) > 2 and (steps == steps[0]).all():
        margin = 0.05 * (numbers[-1] - numbers[0])
        return axis(range=[numbers[0] - margin, numbers[-1] + margin], **common), plain_numbers
    margin = 0.05 * math.log10(max(numbers[-1] / numbers[0], 2**0.5))
    ends = [math.log10(numbers[0]) - margin, math.log10(numbers[-1]) + margin]
    return axis(type="log", range=ends, **common), plain_numbers


def axis_name(part: Slice) -> str:
    """The swept axis without its unit, as HTML."""
    d_qk, d_hv = part.rows["d_qk"], part.rows["d_hv"]
    if part.axis in ("d_hv", "d_qk") and (d_qk == d_hv).all() and d_hv.nunique() > 1:
        return html("head dimension $d_{qk} = d_{hv}$")
    return html(AXES[part.axis].partition(" [")[0])


def plain_numbers(values: Any) -> list[float | None]:
    """Numbers to six digits, None for what is missing, as JSON has them."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in map(float, values)]
