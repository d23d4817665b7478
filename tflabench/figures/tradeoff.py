"""The chunk size as a trade-off between runtime and memory."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tflabench.figures.captions import caption, missing
from tflabench.figures.facets import Slice
from tflabench.figures.layout import Sheet
from tflabench.figures.panel import Panel, legend_keys
from tflabench.figures.quantities import MEMORY, PASSES, RUNTIME, by_pass
from tflabench.figures.style import DASHES, Look, kind_colour, styled
from tflabench.figures.ticks import limits, x_axis


@styled
def draw(part: Slice, name: str, looks: dict[str, Look], footer: str) -> Figure:
    """Runtime (left) and peak memory (right) of one implementation over its chunk size, as the paper's Fig. 5."""
    part = replace(part, rows=part.rows[part.rows["implementation"] == name])
    look = looks[name]
    memory_look = replace(look, colour=(0.35, 0.35, 0.35), marker="s", dashes=DASHES[1])
    ring = {"marker": "o", "mfc": "none", "mew": 0.7, "ls": "", "color": look.colour}
    panels = by_pass(part.rows)
    sheet = Sheet(len(panels), right=0.5, gap=0.95)
    (unit, size), (memory_unit, memory_size) = RUNTIME.unit(part.rows), MEMORY.unit(part.rows)
    for ax, (pass_, rows) in zip(sheet.axes, panels.items(), strict=True):
        ax.set_title(PASSES[pass_])
        runtime = Panel(ax, part.axis, x_axis(ax, part), RUNTIME, size)
        runtime.band(rows, looks)
        runtime.curve(rows, look)
        best = rows[(rows["status"] == "ok") & (rows["ms_median"] == rows["ms_median"].min())]
        ax.plot(best["chunk_size"], best["ms_median"] / size, ms=8, **ring)
        runtime.finish(rows, looks)
        ax.set_ylabel(f"median runtime [{unit}]", color=kind_colour(look.kind))
        ax.tick_params(axis="y", colors=kind_colour(look.kind))
        right = ax.twinx()
        right.grid(visible=False)
        right.spines["right"].set_visible(True)
        replace(runtime, ax=right, quantity=MEMORY, size=memory_size).curve(rows, memory_look)
        limits(right)
        right.set_ylabel(f"peak memory [{memory_unit}]", color=memory_look.colour)
        right.tick_params(axis="y", colors=memory_look.colour)
    handles = [
        Line2D([], [], label="runtime", **look.line()),
        Line2D([], [], label="peak memory", **memory_look.line()),
        Line2D([], [], label="least runtime", ms=7, **ring),
    ]
    title = f"{look.title}: {caption(part.rows, part.axis)}"
    notes = missing(part.rows, part.axis, looks)
    sheet.finish(title, handles, legend_keys(part.rows, RUNTIME), notes, footer)
    return sheet.figure
