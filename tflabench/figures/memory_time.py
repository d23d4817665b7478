"""Runtime against peak memory: a line an implementation, along the axis of a slice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tflabench.figures.axes import logarithmic
from tflabench.figures.captions import compact
from tflabench.figures.curves import BACKGROUND, Chart, Columns, kept
from tflabench.figures.highlights import SYMBOLS
from tflabench.figures.model import Axis, Curve, Item, Note, Panel
from tflabench.figures.quantities import flagged
from tflabench.figures.source import Source


def panel(source: Source, charts: Sequence[Chart], own: dict[str, Columns], words: str) -> Panel:
    """Return runtime over peak memory of one pass, with the ends of the fastest line named.

    What has no peak memory is left out.

    Args:
        charts: of peak memory and of runtime over the axis; what the second highlights is highlighted.
        own: as `columns_of` gives them for both quantities.
    """
    axis, names = charts[1].part.axis, charts[1].names
    columns = [chart.quantity.column for chart in charts]
    done = {name: kept(one, one["timed"] & (one[columns[0]] > 0) & (one[columns[1]] > 0)) for name, one in own.items()}
    done = {name: one for name, one in done.items() if len(one["index"])}
    if not done:
        return Panel(words, Axis(charts[0].label), Axis(charts[1].label), (), "no point was measured")
    items: list[Item] = []
    for name in [*(name for name in done if name not in names), *(name for name in names[::-1] if name in done)]:
        one, look, lit = done[name], source.looks[name], name in names
        x, y = (one[column].astype(float) / chart.size for column, chart in zip(columns, charts, strict=True))
        label, ink = (look.title, look.ink) if lit else ("", BACKGROUND)
        hollow, role = (flagged(one).tolist(), "highlight") if lit else ((), "context")
        items.append(Curve(label, x, y, ink, role, hollow=hollow, rows=one["index"].tolist(), name=name))
        ends = one[axis][[0, -1]]
        if name in names[:1] and ends[0] != ends[1] and axis in SYMBOLS:
            items += [Note(x[n], y[n], f"{SYMBOLS[axis]} = {compact(ends[n])}") for n in (0, -1)]
    places = [np.concatenate([getattr(item, side) for item in items if isinstance(item, Curve)]) for side in "xy"]
    axes = [logarithmic(chart.label, min(place), max(place)) for chart, place in zip(charts, places, strict=True)]
    return Panel(words, axes[0], axes[1], tuple(items))
