"""Turn a panel of the model into what Plotly draws: a dict of `data` and `layout`, all of it JSON.

Texts are escaped, since Plotly reads a part of HTML in them. Points carry the index of their row as `customdata`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any

import numpy as np

from tflabench.figures.axes import CROSS_LEVEL, spread
from tflabench.figures.model import Axis, Band, Bars, Cross, Curve, Note, Panel, Rule, Span

HEIGHT, BAR = 480, 22  # pixels of a panel, and of each bar in it
NAME, LONGEST = 17, 28  # pixels from one name beside a panel to the next; characters of it
MARGIN = {"l": 58, "r": 222, "t": 14, "b": 46}
# Markers as names show them.
GLYPHS = {
    "": "–", "circle": "●", "square": "■", "triangle-up": "▲", "diamond": "◆", "triangle-down": "▼", "pentagon": "⬟",
    "cross": "✚", "hexagon": "⬢", "star": "★", "triangle-left": "◀", "triangle-right": "▶", "x": "✖",
}  # fmt: skip
# Colour on white -> colour on black, where the same would be lost.
DARK = {"#000000": "#f2f2f2", "#595959": "#b4b4b4", "#404040": "#c8c8c8", "#9a9a9a": "#6f7782", "#0072b2": "#3aa0dd"}
Trace = dict[str, Any]


def draw(panel: Panel) -> dict[str, Any]:
    """Return the panel as {"data": traces, "layout": layout, "names": what a legend says of its lines}."""
    bars = [len(item.labels) for item in panel.items if isinstance(item, Bars)]
    height = max(HEIGHT, *(BAR * count + MARGIN["t"] + MARGIN["b"] for count in bars)) if bars else HEIGHT
    data = [trace for item in panel.items for trace in DRAWN.get(type(item), _nothing)(item)]
    names = _names(panel)
    layout: dict[str, Any] = {
        "height": height,
        "margin": MARGIN | ({"r": 24} if bars or not names else {}),
        "xaxis": _axis(panel.x),
        "yaxis": _axis(panel.y) | (_places(panel) if bars else {}),
        "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
        "shapes": list(_shapes(panel)),
        "annotations": [*_words(panel), *_beside(panel, height)],
        "showlegend": False,
        "hovermode": "closest",
        "barmode": "overlay",
    }
    return {"data": [*data, *_crosses(panel)], "layout": layout, "names": names}


def _nothing(item: object) -> list[Trace]:
    return []


def numbers(values: Sequence[float] | np.ndarray) -> list[float | None]:
    """Return values with five digits, and None for what is not finite: JSON has no NaN."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in np.asarray(values, float).tolist()]


def _curve(curve: Curve) -> list[Trace]:
    context, theory = curve.role == "context", curve.role == "theory"
    hollow = [bool(value) for value in curve.hollow]
    symbol = curve.ink.marker or "circle"
    marks = not curve.joined or not (context or theory)
    trace: Trace = {
        "type": "scatter",
        "x": numbers(curve.x),
        "y": numbers(curve.y),
        "mode": "+".join(["lines"] * curve.joined + ["markers"] * marks),
        "line": {"color": curve.ink.colour, "width": 0.8 if context else 1.8, "dash": curve.ink.dash},
        "meta": curve.name,
        "hoverinfo": "none" if curve.rows else "skip",
    }
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
    edge: Trace = {"type": "scatter", "x": numbers(band.x), "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    fill = {"fill": "tonexty", "fillcolor": f"{band.colour}29"}
    return [edge | {"y": numbers(band.lower)}, edge | {"y": numbers(band.upper)} | fill]


def _bars(bars: Bars) -> list[Trace]:
    places = list(range(len(bars.labels)))[::-1]
    common: Trace = {"type": "bar", "orientation": "h", "y": places}
    values = np.nan_to_num(bars.values)
    drawn = common | {
        "x": numbers(values), "width": 0.5, "marker": {"color": list(bars.colours)}, "hoverinfo": "none",
        "text": [escape(words) for words in bars.words], "textposition": "outside", "cliponaxis": False,
        "customdata": list(bars.rows), "textfont": {"size": 11},
    }  # fmt: skip
    known = [
        (place, ends) for place, ends in zip(places, bars.ranges, strict=False) if ends and np.isfinite(ends).all()
    ]
    behind = common | {
        "y": [place for place, _ in known], "base": numbers([ends[0] for _, ends in known]),
        "x": numbers([ends[1] - ends[0] for _, ends in known]), "width": 0.8, "hoverinfo": "skip",
        "marker": {"color": "#9a9a9a", "opacity": 0.35},
    }  # fmt: skip
    return [behind, drawn] if known else [drawn]


DRAWN: dict[type, Callable[[Any], list[Trace]]] = {Curve: _curve, Band: _band, Bars: _bars}


def _crosses(panel: Panel) -> Iterator[Trace]:
    """Yield a mark at the top for each cross, one below the other where several stand at one x."""
    taken: dict[float, int] = {}
    for cross in panel.items:
        if isinstance(cross, Cross):
            level = taken[cross.x] = taken.get(cross.x, 0) + 1
            yield {
                "type": "scatter", "mode": "markers", "x": numbers([cross.x]), "y": [1 - CROSS_LEVEL * (level - 0.5)],
                "yaxis": "y2", "customdata": [cross.row], "hoverinfo": "none",
                "marker": {"symbol": "x-thin", "size": 7, "line": {"color": cross.ink.colour, "width": 1.6}},
            }  # fmt: skip


def _axis(axis: Axis) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": axis.scale, "title": {"text": escape(axis.label), "standoff": 8}, "zeroline": False, "fixedrange": True
    }  # fmt: skip
    if axis.limits:
        found["range"] = [math.log10(end) if axis.scale == "log" else end for end in axis.limits]
    if axis.ticks:
        found |= {
            "tickvals": [value for value, _ in axis.ticks],
            "ticktext": [escape(words) for _, words in axis.ticks],
        }
    return found


def _places(panel: Panel) -> dict[str, Any]:
    """Return the ticks of bars: a label each."""
    labels = next(item.labels for item in panel.items if isinstance(item, Bars))
    words = [escape(shorten(label)) for label in labels]
    return {"tickvals": list(range(len(words)))[::-1], "ticktext": words, "range": [-0.6, len(words) - 0.4]} | {
        "automargin": True
    }


def _shapes(panel: Panel) -> Iterator[dict[str, Any]]:
    for item in panel.items:
        if isinstance(item, (Rule, Span)):
            other = "y" if item.side == "x" else "x"
            low, high = (item.value, item.value) if isinstance(item, Rule) else (item.low, item.high)
            ends = {f"{item.side}0": low, f"{item.side}1": high, f"{other}0": 0, f"{other}1": 1}
            shape = {**ends, f"{other}ref": "paper", "layer": "below"}
            if isinstance(item, Rule):
                yield shape | {"type": "line", "line": {"color": item.ink.colour, "width": 1.2, "dash": item.ink.dash}}
            else:
                yield shape | {"type": "rect", "fillcolor": f"{item.colour}2e", "line": {"width": 0}}


def _words(panel: Panel) -> Iterator[dict[str, Any]]:
    """Yield the words in a panel: notes, names of rules and spans, and why it is empty."""
    for item in panel.items:
        if isinstance(item, Note) and item.words:
            x, y = (_place(axis, value) for axis, value in ((panel.x, item.x), (panel.y, item.y)))
            style = {"showarrow": False, "xshift": 4, "yshift": 9, "xanchor": "left"}
            yield {"x": x, "y": y, "text": escape(item.words), "font": {"color": item.colour, "size": 11}} | style
        elif isinstance(item, (Rule, Span)) and item.label:
            across = item.side == "x"
            value = _place(panel.x if across else panel.y, item.value if isinstance(item, Rule) else item.high)
            at = {"x": value, "y": 1, "yref": "paper"} if across else {"x": 1, "y": value, "xref": "paper"}
            anchor = {"xanchor": "right", "yanchor": "top" if across else "bottom"}
            yield {**at, **anchor, "text": escape(shorten(item.label)), "showarrow": False, "font": {"size": 11}}
    if panel.empty:
        middle = {"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper"}
        yield {**middle, "text": escape(panel.empty), "showarrow": False, "font": {"size": 14}}


def _place(axis: Axis, value: float) -> float:
    """Return where annotations have a value: they count in decades on a logarithmic axis."""
    return math.log10(value) if axis.scale == "log" else value


def _named(panel: Panel) -> list[tuple[Curve, float]]:
    """Return the curves that have a name, with their last value, the highest first."""
    found = [
        (item, [value for value in item.y if math.isfinite(value)][-1])
        for item in panel.items
        if isinstance(item, Curve) and item.label and np.isfinite(np.asarray(item.y, float)).any()
    ]
    return sorted(found, key=lambda one: -one[1])


def _names(panel: Panel) -> list[dict[str, str]]:
    """Return what a legend below a narrow chart says: plain texts, the highest line first."""
    return [
        {"name": curve.name, "label": curve.label, "glyph": GLYPHS[curve.ink.marker], "colour": curve.ink.colour}
        for curve, _ in _named(panel)
    ]


def _beside(panel: Panel, height: int) -> Iterator[dict[str, Any]]:
    """Yield the names of curves right of the panel, at the height of their ends and clear of each other."""
    low, high = panel.y.limits or (0.0, 1.0)
    span = [_place(panel.y, end) for end in (low, high)]
    room = height - MARGIN["t"] - MARGIN["b"]
    named = _named(panel)
    wanted = [room * (span[1] - _place(panel.y, value)) / (span[1] - span[0]) for _, value in named]
    for (curve, _), y in zip(named, spread(wanted, [NAME] * len(named), 0, room), strict=True):
        glyph = f'<span style="color:{curve.ink.colour}">{GLYPHS[curve.ink.marker]}</span>'
        yield {
            "name": "end", "text": f"{glyph} {escape(shorten(curve.label))}", "x": 1, "xref": "paper", "yref": "paper",
            "y": 1 - y / room, "xanchor": "left", "yanchor": "middle", "xshift": 6, "showarrow": False, "align": "left",
        }  # fmt: skip


def shorten(text: str) -> str:
    """Return a text of at most LONGEST characters, its end replaced by "…" where it is longer."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1].rstrip()}…"
