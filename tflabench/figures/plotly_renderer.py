"""Turn a panel of the model into what Plotly draws: a dict of `data` and `layout`, all of it JSON.

Texts are escaped, since Plotly reads a part of HTML in them. Points carry the index of their row as `customdata`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np

from tflabench.figures.axes import CROSS_LEVEL
from tflabench.figures.captions import shorten
from tflabench.figures.model import Axis, Band, Bars, Cross, Curve, Panel

HEIGHT, BAR = 480, 22  # pixels of a panel, and of each bar in it
MARGIN = {"l": 58, "r": 24, "t": 14, "b": 46}
LONGEST = 35  # characters of a name
# Colour on white -> colour on black, where the same would be lost.
DARK = {"#000000": "#f2f2f2", "#595959": "#b4b4b4", "#404040": "#c8c8c8", "#9a9a9a": "#6f7782", "#0072b2": "#3aa0dd"}
Trace = dict[str, Any]


def draw(panel: Panel) -> dict[str, Any]:
    """Return the panel as {"data": traces, "layout": layout}; its legend has lines in the order in which they end."""
    bars = [len(item.labels) for item in panel.items if isinstance(item, Bars)]
    height = max([HEIGHT, *(BAR * count + MARGIN["t"] + MARGIN["b"] for count in bars)])
    middle = {"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "showarrow": False, "font": {"size": 14}}
    layout: dict[str, Any] = {
        "height": height,
        "margin": MARGIN,
        "xaxis": _axis(panel.x),
        "yaxis": _axis(panel.y) | ({"automargin": True} if bars else {}),
        "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
        "annotations": [middle | {"text": escape(panel.empty)}] if panel.empty else [],
        "showlegend": True,
        "legend": {"traceorder": "normal", "font": {"size": 11}, "itemclick": False, "itemdoubleclick": False},
        "hovermode": "closest",
        "barmode": "overlay",
    }
    traces = [trace for item in panel.items if type(item) in DRAWN for trace in DRAWN[type(item)](item)]
    return {"data": [{"showlegend": False} | trace for trace in traces], "layout": layout}


def numbers(values: Sequence[float] | np.ndarray) -> list[float | None]:
    """Return values with five digits, and None for what is not finite: JSON has no NaN."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in np.asarray(values, float).tolist()]


def _curve(curve: Curve) -> list[Trace]:
    context, theory = curve.role == "context", curve.role == "theory"
    hollow = [bool(value) for value in curve.hollow]
    symbol = curve.ink.marker or "circle"
    marks = not curve.joined or curve.lone or not (context or theory)
    trace: Trace = {
        "type": "scatter",
        "x": numbers(curve.x),
        "y": numbers(curve.y),
        "mode": "+".join(["lines"] * curve.joined + ["markers"] * marks),
        "line": {"color": curve.ink.colour, "width": 0.8 if context else 1.8, "dash": curve.ink.dash},
        "meta": curve.name,
        "hoverinfo": "none" if curve.rows else "skip",
    }
    ends = [value for value in curve.y if math.isfinite(value)]
    if curve.label and ends:  # the highest line comes first in the legend
        trace |= {"showlegend": True, "name": escape(shorten(curve.label, LONGEST)), "legendrank": -ends[-1]}
    if marks:
        drawn = [f"{symbol}-open" if open_ else symbol for open_ in hollow] if any(hollow) else symbol
        trace["marker"] = {"symbol": drawn, "size": 5 if context else 8, "color": curve.ink.colour}
    if curve.rows:
        trace["customdata"] = list(curve.rows)
    if curve.spread:
        lower, upper, y = (np.asarray(side, float) for side in (*curve.spread, curve.y))
        trace["error_y"] = {
            "type": "data", "symmetric": False, "array": numbers(upper - y), "arrayminus": numbers(y - lower),
            "color": curve.ink.colour, "thickness": 1, "width": 0,
        }  # fmt: skip
    return [trace]


def _band(band: Band) -> list[Trace]:
    line = {"width": 0.8, "color": f"{band.colour}66"}  # also a band without any width is seen
    edge: Trace = {"type": "scatter", "x": numbers(band.x), "mode": "lines", "line": line, "hoverinfo": "skip"}
    fill = {"fill": "tonexty", "fillcolor": f"{band.colour}29"}
    return [edge | {"y": numbers(band.lower)}, edge | {"y": numbers(band.upper)} | fill]


def _bars(bars: Bars) -> list[Trace]:
    places = list(range(len(bars.labels)))[::-1]
    common: Trace = {"type": "bar", "orientation": "h", "y": places}
    values = np.nan_to_num(bars.values)
    drawn = common | {
        "x": numbers(values), "width": 0.5, "marker": {"color": list(bars.colours)}, "hoverinfo": "none",
        "text": [escape(text) for text in bars.texts], "textposition": "outside", "cliponaxis": False,
        "customdata": list(bars.rows), "textfont": {"size": 11},
    }  # fmt: skip
    bounded = [
        (place, ends) for place, ends in zip(places, bars.ranges, strict=False) if ends and np.isfinite(ends).all()
    ]
    behind = common | {
        "y": [place for place, _ in bounded], "base": numbers([ends[0] for _, ends in bounded]),
        "x": numbers([ends[1] - ends[0] for _, ends in bounded]), "width": 0.8, "hoverinfo": "skip",
        "marker": {"color": "#9a9a9a", "opacity": 0.35},
    }  # fmt: skip
    return [behind, drawn] if bounded else [drawn]


def _cross(cross: Cross) -> list[Trace]:
    mark = {"symbol": "x-thin", "size": 7, "line": {"color": cross.ink.colour, "width": 1.6}}
    at: Trace = {"x": numbers([cross.x]), "y": [1 - CROSS_LEVEL * (cross.level + 0.5)], "yaxis": "y2"}
    return [{"type": "scatter", "mode": "markers", "customdata": [cross.row], "hoverinfo": "none", "marker": mark} | at]


DRAWN: dict[type, Callable[[Any], list[Trace]]] = {Curve: _curve, Band: _band, Bars: _bars, Cross: _cross}


def _axis(axis: Axis) -> dict[str, Any]:
    return {
        "type": axis.scale,
        "title": {"text": escape(axis.label), "standoff": 8},
        "zeroline": False,
        "fixedrange": True,
        "range": [math.log10(end) if axis.scale == "log" else end for end in axis.limits],
        "tickvals": [value for value, _ in axis.ticks],
        "ticktext": [escape(text) for _, text in axis.ticks],
    }
