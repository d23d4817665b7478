"""Panels of runtime and memory: over a swept axis, or ranked where there is a single point."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_hex

from tflabench.figures.captions import legend_name
from tflabench.figures.facets import Slice
from tflabench.figures.quantities import Quantity, Rows, flagged
from tflabench.figures.style import Look, kind_colour
from tflabench.problem import Problem
from tflabench.report.formats import html, number
from tflabench.report.plotly_axes import (
    MUTED,
    OVERLAY,
    Positions,
    Trace,
    axis,
    layout,
    line,
    marks,
    plain_numbers,
    points,
    say_if_empty,
    swept_axis,
    value_axis,
)
from tflabench.theory.chunk_size import Tradeoff
from tflabench.theory.hardware import Ceilings

Looks = Mapping[str, Look]
Unit = tuple[str, float]  # its name and its size
BOUNDS = {"lower": "lower bound max(FLOPs/α, bytes/β)", "upper": "upper bound FLOPs/α + bytes/β"}  # eqs. 112-116
TOP, LEVEL = 0.97, 0.04  # of the crosses, in parts of the panel


def over_axis(part: Slice, rows: Rows, quantity: Quantity, unit: Unit, looks: Looks) -> dict[str, Any]:
    """`quantity` over the axis of a slice, theory as bands, crosses for what was not measured."""
    x_axis, position = swept_axis(part)
    data = list(_bands(part, rows, quantity, unit, looks, position))
    for name, look in looks.items():
        data += _line(part, rows[rows["implementation"] == name], quantity, unit, name, look, position)
    crosses = list(_crosses(part, rows, looks, position))
    lowest = min((y for trace in crosses for y in trace["y"]), default=TOP + LEVEL)
    values = [value for trace in data for value in trace["y"]]
    y_axis = value_axis(values, room=0.02 + TOP + LEVEL - lowest)
    measured = [value for trace in data if "customdata" in trace for value in trace["y"]]
    axes = {"xaxis": x_axis, "yaxis": y_axis, "yaxis2": OVERLAY}
    return {"data": data + crosses, "layout": layout(**axes, **say_if_empty(measured))}


def _line(
    part: Slice, own: Rows, quantity: Quantity, unit: Unit, name: str, look: Look, position: Positions
) -> list[Trace]:
    """An implementation: a line broken where nothing was measured, whiskers, open markers where a time is flagged."""
    done = own[own["timed"]]
    if done.empty:
        return []
    if own[part.axis].isna().all():  # the axis means nothing to it (a chunk size to attention): one level for all
        ends = position(sorted(part.rows[part.axis].dropna().unique()))
        level = done[quantity.column].median() / unit[1]
        shared = points(name, look, done.iloc[[0] * len(ends)])
        return [{**shared, "x": ends, "y": [level] * len(ends), "mode": "lines", "line": line(look)}]
    own = own.dropna(subset=[part.axis]).sort_values(part.axis)
    y = own[quantity.column].where(own["timed"]) / unit[1]
    trace = points(name, look, own) | {
        "x": position(own[part.axis]),
        "y": plain_numbers(y),
        "mode": "markers" if part.axis == "dtype" else "lines+markers",
        "line": line(look),
        "marker": marks(look, flagged(own, quantity)),
    }
    if quantity.spread:
        low, high = (own[column] / unit[1] for column in quantity.spread)
        whiskers = {"array": plain_numbers(high - y), "arrayminus": plain_numbers(y - low)}
        style = {"type": "data", "symmetric": False, "color": to_hex(look.colour), "thickness": 1, "width": 0}
        trace["error_y"] = whiskers | style
    return [trace]


def _bands(
    part: Slice, rows: Rows, quantity: Quantity, unit: Unit, looks: Looks, position: Positions
) -> Iterator[Trace]:
    """Theory from lower to upper bound, once for all implementations whose bounds agree to 5%."""
    if quantity.theory is None or part.axis == "dtype":
        return
    bands: list[tuple[list[Any], np.ndarray, list[str]]] = []
    for name in looks:
        own = rows[rows["implementation"] == name].dropna(subset=[part.axis, *quantity.theory]).sort_values(part.axis)
        if own.empty:
            continue
        x, bounds = position(own[part.axis]), own[list(quantity.theory)].to_numpy(float).T / unit[1]
        for at, shared, names in bands:
            if at == x and np.allclose(shared, bounds, rtol=0.05, atol=0):
                names.append(name)
                break
        else:
            bands.append((x, bounds, [name]))
    for x, bounds, names in bands:
        colour = to_hex(kind_colour(looks[names[0]].kind))
        titles = "<br>".join(looks[name].title for name in names)
        for side, values in zip(BOUNDS, bounds, strict=True):
            filled = {"fill": "tonexty", "fillcolor": colour + "1f"} if side == "upper" else {}
            yield {
                "type": "scatter",
                "name": f"theory, {side} bound",
                "meta": names,
                "mode": "lines",
                "x": x,
                "y": plain_numbers(values),
                "line": {"color": colour + "80", "width": 0.7},
                "hoveron": "points",
                "hoverinfo": "text",
                "hovertext": [
                    f"{number(value)} {unit[0]}, modelled: {BOUNDS[side]}<br>of {titles}" for value in values
                ],
                **filled,
            }


def _crosses(part: Slice, rows: Rows, looks: Looks, position: Positions) -> Iterator[Trace]:
    """Along the top, one below the other: what was asked for and not measured."""
    taken: dict[Any, int] = {}
    for name, look in looks.items():
        own = rows[(rows["implementation"] == name) & ~rows["timed"]].dropna(subset=[part.axis])
        if own.empty:
            continue
        levels = [taken.get(value, 0) for value in own[part.axis]]
        taken |= {value: level + 1 for value, level in zip(own[part.axis], levels, strict=True)}
        yield points(name, look, own) | {
            "mode": "markers",
            "yaxis": "y2",
            "x": position(own[part.axis]),
            "y": [TOP - LEVEL * level for level in levels],
            "marker": {"symbol": "x-thin", "size": 6, "line": {"color": to_hex(look.colour), "width": 1.6}},
        }


def best_chunk_sizes(rows: Rows, roofs: Sequence[Ceilings], looks: Looks) -> list[Trace]:
    """At the foot of a panel over L: the L of least modelled upper bound (eq. 121, generalised) under the last roof.

    Problems whose optima agree to 5% share a mark.
    """
    found: list[tuple[float, list[str]]] = []
    chunked = rows[rows["formulation"].eq("chunkwise") & rows["chunk_size"].notna() & rows["pass"].ne("decode")]
    for row in chunked.to_dict("records") if roofs else ():
        sizes = (int(row[column]) for column in ("batch", "heads", "seq_len", "d_qk", "d_hv"))
        problem = Problem(*sizes, dtype=row["dtype"], pass_=row["pass"])
        best = float(Tradeoff(problem, row["gate"] or "sig", roofs[-1], counts="exact").runtime_optimal)
        names = next((names for other, names in found if math.isclose(other, best, rel_tol=0.05)), None)
        if names is None:
            found.append((best, names := []))
        if row["implementation"] not in names:
            names.append(row["implementation"])
    traces = []
    for best, names in found:
        colour = to_hex(kind_colour(looks[names[0]].kind))
        titles = "<br>".join(looks[name].title for name in names)
        traces.append({
            "type": "scatter", "name": "best L in theory", "meta": names, "mode": "markers+text", "x": [best],
            "y": [0.02], "yaxis": "y2", "hoverinfo": "text",
            "hovertext": f"L = {best:.0f}, modelled: least upper bound<br>of {titles}",
            "text": [f"{best:.0f}"], "textposition": "top center", "textfont": {"size": 10, "color": colour},
            "marker": {"symbol": "triangle-up", "size": 9, "color": colour},
        })  # fmt: skip
    return traces


def ranking(part: Slice, rows: Rows, quantity: Quantity, unit: Unit, looks: Looks) -> dict[str, Any]:
    """A single point: a line an implementation, theory as a bar; what was not measured has its status in its place."""
    asked = [name for name in looks if name in set(rows["implementation"])][::-1]
    titles = [html(legend_name(looks[name], name, part.rows)) for name in asked]
    data: list[Trace] = []
    for name, title in zip(asked, titles, strict=True):
        look, own = looks[name], rows[rows["implementation"] == name].iloc[:1]
        row, trace = own.iloc[0], points(name, look, own) | {"textposition": "middle right", "cliponaxis": False}
        if quantity.theory and not math.isnan(row[quantity.theory[0]]):
            bounds = plain_numbers(row[column] / unit[1] for column in quantity.theory)
            bar = {"color": to_hex(kind_colour(look.kind)) + "4d", "width": 12}
            data.append(trace | {"x": bounds, "y": [title] * 2, "mode": "lines", "line": bar, "hoverinfo": "skip"})
        if row["timed"]:
            value = row[quantity.column] / unit[1]
            open_ = bool(flagged(own, quantity).iloc[0])
            words = {"mode": "markers+text", "text": [f"  {number(value)}"], "marker": marks(look, [open_], 9)}
        else:
            value, words = 0, {"mode": "text", "text": [f"  {row['status']}"], "textfont": {"color": MUTED}}
        data.append(trace | words | {"x": plain_numbers([value]), "y": [title]})
    most = max((value for trace in data for value in trace["x"] if value), default=1)
    x_axis = axis(range=[0, 1.05 * most], nticks=5)
    margin = {"l": 46, "r": 44, "t": 8, "b": 26}  # room for the value beside the last mark
    y_axis = axis(categoryorder="array", categoryarray=titles, automargin=True, showgrid=False)
    return {"data": data, "layout": layout(height=50 + 26 * len(asked), margin=margin, xaxis=x_axis, yaxis=y_axis)}
