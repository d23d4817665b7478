"""Runtime against peak memory: a line an implementation, along the axis of a slice."""

from __future__ import annotations

from collections.abc import Sequence

from tflabench.figures.axes import logarithmic
from tflabench.figures.captions import compact
from tflabench.figures.curves import BACKGROUND
from tflabench.figures.facets import Slice
from tflabench.figures.highlights import SYMBOLS, chosen, device_name
from tflabench.figures.model import Axis, Curve, Figure, Item, Note, Panel
from tflabench.figures.quantities import MEMORY, PASSES, RUNTIME, Rows, by_pass, flagged
from tflabench.figures.source import Source


def draw(stem: str, source: Source, part: Slice) -> Figure:
    """Return runtime over peak memory of a slice: a panel a pass, the ends of the fastest line with their value."""
    names = chosen(part.rows, RUNTIME, source.looks, source.highlight).names
    panels = tuple(panel(source, part, rows, names) for rows in by_pass(part.rows).values())
    title = f"Runtime over peak memory, {device_name(part.rows)}"
    return Figure(stem, title, "", panels, caption=(source.origin,), rows=part.rows)


def panel(source: Source, part: Slice, rows: Rows, names: Sequence[str]) -> Panel:
    """Return the rows of one pass, with `names` highlighted; what has no peak memory is left out."""
    words = PASSES[rows["pass"].iloc[0]]
    units = {quantity: quantity.unit(rows) for quantity in (MEMORY, RUNTIME)}
    done = rows[rows["timed"] & (rows["peak_bytes"] > 0) & (rows["ms_median"] > 0)]
    labels = [f"{quantity.label} [{units[quantity][0]}]" for quantity in (MEMORY, RUNTIME)]
    if done.empty:
        return Panel(words, Axis(labels[0]), Axis(labels[1]), (), "no point was measured")
    places = [done[quantity.column] / size for quantity, (_, size) in units.items()]
    axes = [logarithmic(label, min(place), max(place)) for label, place in zip(labels, places, strict=True)]
    done = done.assign(flagged=flagged(done)).sort_values(part.axis)
    groups = dict(list(done.groupby("implementation", sort=False)))
    items: list[Item] = []
    for name in sorted(groups, key=lambda name: (name in names, -names.index(name) if name in names else 0)):
        own, look, lit = groups[name], source.looks[name], name in names
        x, y = (own[quantity.column].to_numpy(float) / size for quantity, (_, size) in units.items())
        label, ink = (look.title, look.ink) if lit else ("", BACKGROUND)
        hollow, rows_ = own["flagged"].tolist() if lit else (), [int(index) for index in own.index]
        role = "highlight" if lit else "context"
        items.append(Curve(label, x, y, ink, role, hollow=hollow, rows=rows_, name=name))
        if names and name == names[0] and own[part.axis].nunique() > 1 and part.axis in SYMBOLS:
            for n in (0, -1):
                items.append(Note(x[n], y[n], f"{SYMBOLS[part.axis]} = {compact(own[part.axis].iloc[n])}"))
    return Panel(words, axes[0], axes[1], tuple(items))
