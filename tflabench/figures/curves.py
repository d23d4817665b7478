"""Runtime and memory: over an axis, or ranked where there is a single point."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tflabench.figures.captions import caption, legend_name, missing
from tflabench.figures.facets import Slice
from tflabench.figures.layout import Sheet, text_width
from tflabench.figures.panel import Panel, legend_keys, say_if_empty
from tflabench.figures.quantities import PASSES, RUNTIME, Quantity, by_pass, flagged, plain
from tflabench.figures.style import NOTE_SIZE, TICK_SIZE, Look, kind_colour, measured, styled
from tflabench.figures.ticks import x_axis
from tflabench.rows.labels import on_datasheet

MOST_IN_A_COLUMN = 10  # implementations whose legend fits under a panel of column width


@styled
def draw(part: Slice, quantity: Quantity, looks: dict[str, Look], footer: str) -> Figure:
    """`quantity` over the axis of a slice: a panel a pass, a line an implementation, theory as a band in its colour.

    Open markers are rows that are noisy, throttled or wrong, whiskers the 20th to 80th percentile. Crosses at the top
    stand for points that were asked for and not measured; the note below names their status.
    """
    if part.axis == "seq_len" and part.rows["seq_len"].nunique() == 1:
        return _ranking(part, quantity, looks, footer)
    panels = by_pass(part.rows)
    sheet = Sheet(len(panels), wide=part.rows["implementation"].nunique() > MOST_IN_A_COLUMN)
    unit, size = quantity.unit(part.rows)
    for ax, (pass_, rows) in zip(sheet.axes, panels.items(), strict=True):
        ax.set_title(PASSES[pass_])
        panel = Panel(ax, part.axis, x_axis(ax, part), quantity, size)
        panel.band(rows, looks)
        for name, look in looks.items():
            panel.curve(rows[rows["implementation"] == name], look)
        panel.finish(rows, looks)
        say_if_empty(ax, rows.loc[rows["timed"], quantity.column])
    sheet.axes[0].set_ylabel(f"{quantity.label} [{unit}]")
    handles = [
        Line2D([], [], label=legend_name(look, name, part.rows), **look.line())
        for name, look in measured(part.rows, looks)
    ]
    notes = missing(part.rows, part.axis, looks)
    sheet.finish(caption(part.rows, part.axis), handles, legend_keys(part.rows, quantity), notes, footer)
    return sheet.figure


def _ranking(part: Slice, quantity: Quantity, looks: dict[str, Look], footer: str) -> Figure:
    """`quantity` at a single point: a line an implementation, its value beside the mark, theory as a bar.

    A runtime has the percentage of the problem's bound with it. What was not measured has its status in place of the
    mark.
    """
    panels = by_pass(part.rows)
    asked = [name for name in looks if name in set(part.rows["implementation"])][::-1]
    names = [legend_name(looks[name], name, part.rows) for name in asked]
    left = max(text_width(name, TICK_SIZE) for name in names) + 0.2
    sheet = Sheet(len(panels), height=0.17 * len(asked) + 0.1, left=left, gap=0.15)
    unit, size = quantity.unit(part.rows)
    done = part.rows[part.rows["timed"]]
    shown = [quantity.column, *(quantity.theory or ())[1:]]
    most = max([value for column in shown for value in done[column].dropna()] or [1])
    shows = quantity == RUNTIME
    bounded = done[done["percent_of_bound"].notna() & shows]
    room = 1.4 if len(bounded) else 1.16  # for what stands beside the marks
    for ax, (pass_, rows) in zip(sheet.axes, panels.items(), strict=True):
        ax.set_title(PASSES[pass_])
        ax.set(xlim=(0, room * most / size), ylim=(-0.6, len(asked) - 0.4), xlabel=f"{quantity.label} [{unit}]")
        ax.set_yticks(range(len(asked)), names if ax is sheet.axes[0] else [""] * len(asked))
        by_name = rows.set_index("implementation")
        for y, name in enumerate(asked):
            if name not in by_name.index:
                continue
            row, look = by_name.loc[name], looks[name]
            if quantity.theory:
                lower, upper = row[list(quantity.theory)].astype(float) / size
                ax.barh(y, upper - lower, left=lower, height=0.6, color=kind_colour(look.kind), alpha=0.3, linewidth=0)
            if not row["timed"]:
                place = (0.01 * most / size, y)
                ax.text(*place, row["status"], va="center", fontsize=NOTE_SIZE, style="italic", color="0.4")
                continue
            value = row[quantity.column] / size
            wary = flagged(rows[rows["implementation"] == name], quantity).any()
            open_ = {"markerfacecolor": "white"} if wary else {}
            ax.plot(value, y, **look.line(**open_))
            percent = row["percent_of_bound"]
            nearness = f" ({percent:.0f}%)" if shows and pd.notna(percent) else ""
            ax.annotate(
                f"{value:.3g}{nearness}",
                (value, y),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=NOTE_SIZE,
            )
    title = f"T = {plain(part.rows[part.axis].iloc[0])}, {caption(part.rows, part.axis)}"
    datasheet = bounded["ceilings"].map(on_datasheet, na_action="ignore").any()
    note = "In brackets: percent of the problem's bound" + (", with datasheet ceilings" if datasheet else "")
    notes = [f"{note}."] if len(bounded) else []
    sheet.finish(title, [], legend_keys(part.rows, quantity), notes, footer)
    return sheet.figure
