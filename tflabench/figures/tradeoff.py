"""The chunk size as a trade-off between runtime and memory: the paper's Fig. 5."""

from __future__ import annotations

from dataclasses import replace

from tflabench.figures.axes import swept
from tflabench.figures.captions import caption
from tflabench.figures.curves import Chart, columns_of, keys, notes, over_axis
from tflabench.figures.facets import Slice
from tflabench.figures.highlights import Highlights, device_name
from tflabench.figures.model import Axis, Curve, Figure, Note, Panel
from tflabench.figures.quantities import MEMORY, PASSES, RUNTIME, Rows, by_pass
from tflabench.figures.source import Source

TICKS = 4  # below a panel of half the width


def draw(stem: str, source: Source, part: Slice, name: str) -> Figure:
    """Return runtime (left) and peak memory (right) of one implementation over its chunk size, a row a pass."""
    part = replace(part, rows=part.rows[part.rows["implementation"] == name])
    look, panels, best = source.looks[name], [], []
    runtime, memory = (Chart.of(source, part, quantity, Highlights((name,))) for quantity in (RUNTIME, MEMORY))
    for pass_, rows in by_pass(part.rows).items():
        for chart in (runtime, memory):
            panel = over_axis(chart, columns_of(rows, part.axis), PASSES[pass_])
            panels.append(replace(panel, x=_fewer_ticks(panel.x), items=_nameless(panel)))
        if ring := _best(rows, runtime):
            panels[-2] = replace(panels[-2], items=(*panels[-2].items, ring))
            best.append(f"L\u00a0=\u00a0{ring.x:.0f} {PASSES[pass_]}")
    found = f": fastest at {', '.join(best)}" if best else ""
    return Figure(
        stem=stem,
        title=f"{look.title}, {device_name(part.rows)}{found}",
        setting=caption(part.rows, part.axis),
        panels=tuple(panels),
        columns=2,
        keys=keys(runtime),
        caption=("Ring: the least runtime.", *notes(runtime, source)),
        rows=part.rows,
        height=1.3,
    )


def _best(rows: Rows, chart: Chart) -> Note | None:
    """Return a ring around the point of least runtime."""
    done = rows[rows["status"] == "ok"]
    if done.empty:
        return None
    best = done.loc[done["ms_median"].idxmin()]
    x = float(swept(chart.part).position(done.loc[[best.name], chart.part.axis])[0])
    return Note(x, best["ms_median"] / chart.size, "", chart.looks[chart.names[0]].ink.colour, ring=True)


def _fewer_ticks(axis: Axis) -> Axis:
    """Return the axis with as many ticks as fit below a narrow panel, the last one among them."""
    stride = -(-len(axis.ticks) // TICKS)
    return replace(axis, ticks=axis.ticks[::-1][::stride][::-1])


def _nameless(panel: Panel) -> tuple:
    """Return the items without names at the panel: the title names the only line."""
    return tuple(replace(item, label="") if isinstance(item, Curve) else item for item in panel.items)
