"""Panels that hold one quantity against another: runtime against memory, and the roofline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_hex

from tflabench.figures.captions import compact
from tflabench.figures.quantities import Rows, flagged
from tflabench.figures.style import Look
from tflabench.report.formats import BYTE_RATE, FLOP_RATE, amount, html
from tflabench.report.plotly_axes import (
    MUTED,
    PAPER,
    SHADE,
    SYMBOLS,
    Trace,
    layout,
    line,
    log_axis,
    marks,
    plain_numbers,
    points,
    say_if_empty,
    value_axis,
)
from tflabench.theory.hardware import Ceilings
from tflabench.theory.roofline import attainable

ROOF_DASHES = ("solid", "5px,3px", "2px,2px")


def trade_off(rows: Rows, ms: float, memory: tuple[str, float], looks: Mapping[str, Look]) -> dict[str, Any]:
    """Runtime in units of `ms` over peak memory in the unit `memory`: a line an implementation through its chunk sizes.

    The fastest chunk size has a larger mark; this, the least and the largest are named.
    """
    data: list[Trace] = []
    for name, look in looks.items():
        own = rows[(rows["implementation"] == name) & (rows["status"] == "ok")].sort_values("chunk_size")
        if own.empty:
            continue
        L = own["chunk_size"]
        best = (own["ms_median"] == own["ms_median"].min()) & (L.nunique() > 1)
        named = (best | L.isin([L.min(), L.max()])) & L.notna()
        data.append({
            **points(name, look, own), "mode": "lines+markers+text",
            "x": plain_numbers(own["peak_bytes"] / memory[1]), "y": plain_numbers(own["ms_median"] / ms),
            "text": [f"L {compact(size)}" if name else "" for size, name in zip(L, named, strict=True)],
            "textposition": "top center", "textfont": {"size": 10, "color": to_hex(look.colour)},
            "line": line(look, 1.3), "marker": marks(look, flagged(own), [11 if one else 7 for one in best]),
        })  # fmt: skip
    title = {"text": f"peak memory [{memory[0]}]"}
    x_axis = value_axis([value for trace in data for value in trace["x"]], room=0.04, title=title)
    times = [value for trace in data for value in trace["y"]]
    y_axis = value_axis(times, room=0.08)
    return {"data": data, "layout": layout(height=380, xaxis=x_axis, yaxis=y_axis, **say_if_empty(times))}


def rates(rows: Rows) -> Rows:
    """The measured rows, with `intensity` in FLOP/byte and `rate`, modelled FLOPs over measured time, in FLOP/s."""
    done = rows[(rows["status"] == "ok") & (rows["model_bytes"] > 0)]
    intensity, rate = done["model_flops"] / done["model_bytes"], done["model_flops"] / done["ms_median"] * 1e3
    return done.assign(intensity=intensity, rate=rate)


def roofline(
    done: Rows, roofs: Sequence[Ceilings], size: float, ends: tuple[float, float], looks: Mapping[str, Look]
) -> dict[str, Any]:
    """The `rates` of one pass, in units of `size` FLOP/s, under the roofs min(beta I, alpha) (eq. 119).

    `ends` of the intensity axis in FLOP/byte. The memory-bound side of the first roof is shaded.
    """
    data: list[Trace] = []
    for ceilings, dash in zip(roofs, ROOF_DASHES * len(roofs), strict=False):
        x = sorted([*np.geomspace(*ends, 60), ceilings.intensity])
        data.append({
            "type": "scatter", "name": words(ceilings), "meta": [], "mode": "lines", "hoverinfo": "text",
            "hovertext": f"{words(ceilings)}, min(β I, α)<br>ridge at {ceilings.intensity:.3g} FLOP/byte<br>"
            + html(ceilings.source),
            "x": plain_numbers(x), "y": plain_numbers(attainable(ceilings, np.array(x)) / size),
            "line": {"color": MUTED, "width": 1.5, "dash": dash},
        })  # fmt: skip
    for name, look in looks.items():
        own = done[done["implementation"] == name]
        if len(own):
            mark = {"size": 8, "color": to_hex(look.colour), "line": {"color": PAPER, "width": 0.8}}
            place = {"x": plain_numbers(own["intensity"]), "y": plain_numbers(own["rate"] / size), "mode": "markers"}
            data.append(points(name, look, own) | place | {"marker": mark | {"symbol": SYMBOLS[look.marker]}})
    x_axis = log_axis(*ends, title={"text": "arithmetic intensity, modelled [FLOP/byte]"})
    y_axis = value_axis([value for trace in data for value in trace["y"]], room=0.06, log=True)
    return {"data": data, "layout": layout(xaxis=x_axis, yaxis=y_axis, **(_sides(roofs[0], ends[0]) if roofs else {}))}


def _sides(ceilings: Ceilings, low: float) -> dict[str, Any]:
    """The two sides of a ridge I_acc = alpha / beta (eq. 117), the left one shaded."""
    ridge = ceilings.intensity
    words = {"yref": "paper", "y": 0.01, "yanchor": "bottom", "showarrow": False, "font": {"size": 10, "color": MUTED}}
    return {
        "shapes": [{
            "type": "rect", "x0": low, "x1": ridge, "y0": 0, "y1": 1, "yref": "paper", "layer": "below",
            "fillcolor": SHADE, "line": {"width": 0},
        }],
        "annotations": [
            {**words, "x": math.log10(ridge), "xanchor": "right", "text": "<i>memory-bound</i> "},
            {**words, "x": math.log10(ridge), "xanchor": "left", "text": " <i>compute-bound</i>"},
        ],
    }  # fmt: skip


def words(ceilings: Ceilings) -> str:
    """A roof in words: "measured roof: 798 TFLOP/s, 4.25 TB/s"."""
    rates = amount(ceilings.flops_per_s, FLOP_RATE), amount(ceilings.bytes_per_s, BYTE_RATE)
    return f"{ceilings.provenance} roof: {', '.join(rates)}"
