"""Runtime, memory and error: over an axis, ranked where there is a single point, or two of them side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from tflabench.figures.axes import CROSS_LEVEL, SweptAxis, held, labels, linear, swept, upwards
from tflabench.figures.captions import caption, legend_name, missing, places, provenance
from tflabench.figures.facets import Slice, split
from tflabench.figures.highlights import chosen, device_name, finding, title
from tflabench.figures.looks import DARK_GREY, GREY, Look, owners
from tflabench.figures.model import Band, Bars, Circle, Cross, Curve, Figure, Ink, Item, Key, Panel
from tflabench.figures.quantities import (
    AXES,
    ERROR,
    MEMORY,
    QUANTITIES,
    RUNTIME,
    WORDS,
    Quantity,
    Rows,
    by_pass,
    flagged,
    flags,
)
from tflabench.figures.source import Source
from tflabench.implementations.registry import operation
from tflabench.problem import PASS_TITLES

BACKGROUND = Ink(GREY)
POINT = Ink(GREY, "circle")  # of the background
TICKS = 4  # below a panel of half the width
LETTER = 0.027  # of the width of bars, at most
Columns = dict[str, Any]  # of the rows of one implementation: arrays


@dataclass(frozen=True)
class Chart:
    """A chart of a quantity over an axis.

    Attributes:
        unit, size: of the quantity, e.g. "ms" and 1.0.
        names: of the implementations to highlight.
        theory: whether the leading kernel's bounds are drawn as a band.
    """

    part: Slice
    quantity: Quantity
    unit: str
    size: float
    looks: dict[str, Look]
    names: tuple[str, ...]
    theory: bool

    @classmethod
    def of(
        cls,
        source: Source,
        part: Slice,
        quantity: Quantity,
        names: tuple[str, ...] = (),
        theory: bool = True,
        named: Sequence[str] = (),
    ) -> Chart:
        """Return the chart of a slice of a source's rows; without `names` the source says what to highlight.

        Args:
            named: what its titles name.
        """
        unit, size = quantity.unit(part.rows)
        names = names or chosen(part.rows, quantity, source.looks, source.highlight, part.axis, named)
        return cls(part, quantity, unit, size, source.looks, names, theory and quantity.theory is not None)

    @property
    def label(self) -> str:
        """Return the label of the axis, with its unit."""
        return f"{self.quantity.label} [{self.unit}]"

    @property
    def leader(self) -> str | None:
        """Return the implementation whose bounds are drawn: our best mLSTM, else ours, else an mLSTM, else the best."""
        families = dict(zip(self.part.rows["implementation"], self.part.rows["family"], strict=True))
        mlstm = [name for name in self.names if families[name] == "mlstm"]
        ours = [name for name in self.names if self.looks[name].owner.role == "ours"]
        return [*(name for name in mlstm if name in ours), *ours, *mlstm, *self.names, None][0]


def draw(stem: str, source: Source, part: Slice, quantity: Quantity, theory: bool = True) -> Figure:
    """Return `quantity` over the axis of a slice: a panel a pass, a line an implementation.

    Args:
        theory: draw the bounds of the leading kernel as a band, where the quantity has any.
    """
    single = part.single
    rows_of = by_pass(part.rows)
    findings = {pass_: finding(rows, quantity, None if single else part.axis) for pass_, rows in rows_of.items()}
    named = [name for result in findings.values() for name in result.names]
    chart = Chart.of(source, part, quantity, theory=theory, named=named)
    panels, heads = [], []
    for pass_, rows in rows_of.items():
        result = findings[pass_]
        heads.append(title(result, pass_, device_name(rows)))
        panel_title = PASS_TITLES[pass_] + (f": {result.subject} {result.verdict}" if result.verdict else "")
        columns = {} if single else columns_of(rows, part.axis)
        panels.append(ranking(chart, rows, panel_title) if single else over_axis(chart, columns, panel_title))
    over = "" if single else f" over {AXES[part.axis].partition(' [')[0]}"
    whole, common = f"{quantity.name}{over}, {device_name(part.rows)}", caption(part.rows, part.axis)
    if len(panels) == 1:
        panels = [Panel("", panels[0].x, panels[0].y, panels[0].items, panels[0].empty)]
        whole = heads[0]
    return Figure(
        stem=stem,
        title=whole,
        setting=f"T = {int(part.rows['seq_len'].iloc[0])}, {common}" if single else common,
        panels=tuple(panels),
        keys=keys(chart, panels),
        caption=tuple(notes(chart, source, panels, single)),
        rows=part.rows,
        height=_height(panels) if single else 1.6,
    )


def _height(panels: Sequence[Panel]) -> float:
    """Return the height of panels of bars: labels of several lines need more."""
    lines = max(label.count("\n") + 1 for panel in panels for _, label in panel.y.ticks)
    return (0.09 + 0.06 * lines) * max(len(panel.y.ticks) for panel in panels) + 0.1


def over(axis: str, quantity: str, stem: str, source: Source, rows: Rows, theory: bool = True) -> Iterator[Figure]:
    """Yield a quantity of some rows over an axis, by its name in QUANTITIES: a figure a setting of all else."""
    for part in split(rows, axis):
        yield draw(f"{stem}-{part.stem}", source, part, QUANTITIES[quantity], theory)


def over_axis(chart: Chart, columns: dict[str, Columns], title: str) -> Panel:
    """Return a panel over the swept axis: context behind, the band of theory, highlighted lines, crosses on top.

    `columns`: as `columns_of` gives them, of one pass.
    """
    x = swept(chart.part)
    behind = [name for name in chart.looks if name in columns and name not in chart.names]
    context = [line for name in behind for line in curve(chart, x, columns[name], name)]
    items: list[Item] = [*_band(chart, x, columns[chart.leader])] if chart.theory and chart.leader in columns else []
    for name in chart.names[::-1]:
        items += curve(chart, x, columns[name], name) if name in columns else []
    crosses = _crosses(chart, x, columns)
    levels = max((cross.level + 1 for cross in crosses), default=0)
    shown = [value for value in held(items) if value > 0]
    low, high = (min(shown) / 4, 4 * max(shown)) if shown else (0.0, np.inf)  # more of the context is not shown
    shown += [value for value in held(context) if low < value < high]
    y = upwards(chart.label, shown, room=0.03 + min(0.2, CROSS_LEVEL * levels))
    measured = any(isinstance(item, Curve) for item in (*context, *items))
    return Panel(title, x.axis, y, (*context, *items, *crosses), "" if measured else "no point was measured")


def columns_of(rows: Rows, axis: str) -> dict[str, Columns]:
    """Return the columns of each implementation as arrays, in the order of the axis; missing values are last."""
    place = {word: n for n, word in enumerate(WORDS.get(axis, ()))}
    ordered = rows.sort_values(axis, kind="stable", key=lambda column: column.map(place) if place else column)
    table = {name: ordered[name].to_numpy() for name in ordered}
    table |= {"index": ordered.index.to_numpy(), "known": ordered[axis].notna().to_numpy()}
    places = ordered.groupby("implementation").indices
    return {name: {column: values[at] for column, values in table.items()} for name, at in places.items()}


def kept(line: Columns, mask: np.ndarray) -> Columns:
    """Return the columns of some of the rows."""
    return line if mask.all() else {name: values[mask] for name, values in line.items()}


def curve(chart: Chart, x: SweptAxis, line: Columns, name: str) -> list[Curve]:
    """Return the line of one implementation, broken where nothing was measured; none where nothing was."""
    quantity, look, lit = chart.quantity, chart.looks[name], name in chart.names
    axis = chart.part.axis
    drawn = line["timed"] & np.isfinite(line[quantity.column])
    if not drawn.any():
        return []
    label, ink = (look.title, look.ink) if lit else ("", BACKGROUND)
    role = "highlight" if lit else "context"
    if not line["known"].any():  # the axis means nothing to it (a chunk size to attention): one level for all
        done = kept(line, drawn)
        level = float(np.median(done[quantity.column]) / chart.size)
        ends = np.array(x.axis.limits)
        same = [int(done["index"][0])] * 2
        return [Curve(label, ends, [level] * 2, Ink(ink.colour, "", ink.dash), role, rows=same, name=name)]
    line = kept(line | {"drawn": drawn}, line["known"])
    y = np.where(line["drawn"], line[quantity.column], np.nan) / chart.size
    spread = None
    if quantity.spread and lit:
        low, high = (line[column] / chart.size for column in quantity.spread)
        spread = (np.where(np.isnan(y), np.nan, low), np.where(np.isnan(y), np.nan, high))
    return [
        Curve(
            label, x.position(line[axis]), y, ink, role,
            joined=bool(WORDS.get(axis, axis)),  # nothing lies between two data types
            spread=spread,
            hollow=flagged(line, quantity).tolist() if lit else (),
            rows=line["index"].tolist(),
            name=name,
        )
    ]  # fmt: skip


def _band(chart: Chart, x: SweptAxis, line: Columns) -> list[Band]:
    low, high = (line[column] / chart.size for column in chart.quantity.theory or ())
    finite = line["known"] & ~np.isnan(low) & ~np.isnan(high)
    if not finite.any() or chart.part.axis in WORDS:
        return []
    colour = chart.looks[str(chart.leader)].ink.colour
    return [Band(x.position(line[chart.part.axis][finite]), low[finite], high[finite], colour)]


def _crosses(chart: Chart, x: SweptAxis, columns: dict[str, Columns]) -> list[Cross]:
    """Return a cross for each point of a highlighted implementation that was asked for and not measured.

    Where none of its points was, the first cross has its name.
    """
    crosses: list[Cross] = []
    named: set[str] = set()
    for name in filter(columns.__contains__, chart.names):
        failed = kept(columns[name], columns[name]["known"] & ~columns[name]["timed"])
        for place, index in zip(x.position(failed[chart.part.axis]), failed["index"], strict=True):
            level = sum(cross.x == place for cross in crosses)
            label = "" if columns[name]["timed"].any() or name in named else chart.looks[name].title
            named.add(name)
            crosses.append(Cross(float(place), chart.looks[name].ink, int(index), level, label))
    return crosses


def ranking(chart: Chart, rows: Rows, title: str) -> Panel:
    """Return bars at a single point, the best on top, with theory behind and the percentage of the problem's bound.

    What was not measured has its status in place of the bar, what is wrong or noisy has that word behind it.
    """
    column = chart.quantity.column
    measured = rows["timed"] & np.isfinite(rows[column])
    ordered = rows.assign(value=rows[column].where(measured)).sort_values("value", na_position="last")
    shows = chart.quantity == RUNTIME
    bars: list[tuple[Any, ...]] = []
    for index, row in ordered.iterrows():
        look = chart.looks[row["implementation"]]
        value = row["value"] / chart.size
        percent = f" ({row['percent_of_bound']:.0f}%)" if shows and pd.notna(row["percent_of_bound"]) else ""
        number = f"{value:,.0f}" if value >= 999.5 else f"{value:#.3g}".rstrip(".")
        wary = flags(ordered.loc[[index]], chart.quantity)
        value_words = row["status"] if pd.isna(value) else ", ".join([number + percent, *wary])
        bounds = (
            tuple(row[list(chart.quantity.theory or ())] / chart.size) if chart.theory and pd.notna(value) else None
        )
        colour = look.ink.colour if row["implementation"] in chart.names else GREY
        label = legend_name(look, row["implementation"], rows)
        bars.append((label, float(value), value_words, colour, bounds, int(index)))
    ends = [bar[1] / (1 - LETTER * min(len(bar[2]) + 1, 30)) for bar in bars if bar[1] > 0]
    most = max([*ends, *(1.05 * bound for bar in bars for bound in bar[4] or () if bound > 0)] or [1.0])
    names, values, value_words, colours, ranges, indices = zip(*bars, strict=True)
    items = (Bars(names, values, value_words, colours, ranges if chart.theory else (), indices),)
    empty = "" if measured.any() else "no point was measured"
    return Panel(title, linear(chart.label, 0.0, most), labels(names), items, empty)


def keys(chart: Chart, panels: Sequence[Panel]) -> tuple[Key, ...]:
    """Return the legend of what panels show: whose bounds the band is, and what hollow points and crosses are."""
    rows, entries = chart.part.rows, []
    items = [item for panel in panels for item in panel.items]
    if chart.leader and _has_bounds(panels):
        label, ink = f"bounds of {chart.looks[chart.leader].title}", Ink(chart.looks[chart.leader].ink.colour)
        if any(isinstance(item, Bars) for item in items):
            label, ink = "bounds of each", BACKGROUND
        entries.append(Key(label, ink, "area"))
    if context := [item for item in items if isinstance(item, Curve) and item.role == "context"]:
        lone = all(item.lone for item in context)
        entries.append(Key("others", POINT, "points") if lone else Key("others", BACKGROUND))
    hollow = any(isinstance(item, Curve) and any(item.hollow) for item in items)
    if hollow and (why := flags(rows[rows["implementation"].isin(chart.names)], chart.quantity)):
        entries.append(Key(" or ".join(why), Ink(DARK_GREY, "circle"), "hollow"))
    if any(isinstance(item, Cross) for item in items):
        entries.append(Key("no time", Ink(DARK_GREY), "cross"))
    return tuple(entries)


def _has_bounds(panels: Sequence[Panel]) -> bool:
    """Return whether a panel has a band of theory, or bars with bounds behind them."""
    items = [item for panel in panels for item in panel.items]
    finite = (np.isfinite(bounds).all() for item in items if isinstance(item, Bars) for bounds in item.ranges if bounds)
    return any(isinstance(item, Band) for item in items) or any(finite)


def notes(chart: Chart, source: Source, panels: Sequence[Panel], single: bool = False) -> Iterator[str]:
    """Yield the lines of the caption file of these panels."""
    rows = chart.part.rows
    names = set(rows["implementation"])
    yield "Highlighted: " + ("; ".join(legend_name(chart.looks[n], n, rows) for n in chart.names) or "nothing") + "."
    if grey := [legend_name(chart.looks[n], n, rows) for n in chart.looks if n in names and n not in chart.names]:
        yield f"Grey: {'; '.join(grey)}. --highlight NAMES names others."
    shown = owners(chart.looks[name] for name in chart.names)
    if shown:
        yield f"Colours: {', '.join(f'{of_owner.name} {of_owner.colour}' for of_owner in shown)}."
    if chart.quantity.spread and not single:
        yield "Whiskers: 20th to 80th percentile of the samples."
    if chart.leader and _has_bounds(panels):
        origins = sorted({str(origin) for origin in rows["ceilings"].dropna()})
        subject = "each" if single else chart.looks[chart.leader].title
        yield (
            f"Shaded: the bounds of {subject} by its FLOPs and bytes, from max(FLOPs/rate, bytes/bandwidth) up to "
            f"their sum; ceilings {'; '.join(origins) or 'unknown'}."
        )
    if chart.quantity == RUNTIME and single and rows["percent_of_bound"].notna().any():
        yield "In brackets: percent of the bound of the problem."
    slow = rows[rows["throttled"] & rows["timed"] & rows["implementation"].isin(chart.names)]
    if chart.quantity.spread and len(slow):
        yield f"Throttled (the GPU held its clock back): {places(slow, chart.part.axis, chart.looks)}."
    yield from missing(rows, chart.part.axis, chart.looks)
    yield provenance(rows, source.runs)


def tradeoffs(stem: str, source: Source) -> Iterator[Figure]:
    """Yield runtime and memory over the chunk size, a figure an implementation that was measured at several."""
    for part in split(source.rows, "chunk_size"):
        measured = part.rows[part.rows["status"] == "ok"].groupby("implementation")["chunk_size"].nunique()
        for name in source.looks:
            if measured.get(name, 0) > 1:
                yield tradeoff("-".join([stem, name, *part.tags]), source, part, name)


def tradeoff(stem: str, source: Source, part: Slice, name: str) -> Figure:
    """Return runtime (left) and peak memory (right) of one implementation over its chunk size, a row a pass.

    That is the paper's Fig. 5.
    """
    part = replace(part, rows=part.rows[part.rows["implementation"] == name])
    look, panels, best = source.looks[name], [], []
    charts = [Chart.of(source, part, quantity, (name,)) for quantity in (RUNTIME, MEMORY)]
    for pass_, rows in by_pass(part.rows).items():
        for chart in charts:
            panel = over_axis(chart, columns_of(rows, part.axis), PASS_TITLES[pass_])
            ticks = panel.x.ticks[::-1][:: math.ceil(len(panel.x.ticks) / TICKS)][::-1]
            nameless = (replace(item, label="") if isinstance(item, Curve) else item for item in panel.items)
            panels.append(replace(panel, x=replace(panel.x, ticks=ticks), items=tuple(nameless)))
        if len(done := rows[rows["status"] == "ok"]):
            least = done.loc[done["ms_median"].idxmin()]
            ring = Circle(least[part.axis], least["ms_median"] / charts[0].size, look.ink.colour)
            panels[-2] = replace(panels[-2], items=(*panels[-2].items, ring))
            best.append(f"{PASS_TITLES[pass_]} at L\u00a0=\u00a0{ring.x:.0f}")
    fastest = f": fastest {', '.join(best)}" if best else ""
    return Figure(
        stem=stem,
        title=f"{look.title}, {device_name(part.rows)}{fastest}",
        setting=caption(part.rows, part.axis),
        panels=tuple(panels),
        columns=2,
        keys=keys(charts[0], panels),
        caption=("Ring: the least runtime.", *notes(charts[0], source, panels)),
        rows=part.rows,
        height=1.3,
    )


def over_gates(stem: str, source: Source) -> Iterator[Figure]:
    """Yield runtime and below it error over the strength of the forget gates, of every pass: a figure an operation.

    Some kernels cut a sequence where its state has decayed, so that both depend on the gates.
    """
    rows = source.rows
    operations = [operation(name, gate) for name, gate in zip(rows["implementation"], rows["gate"], strict=True)]
    for name, of_one in rows.groupby(pd.Series(operations, rows.index), sort=False):
        for part in split(of_one, "gates") if of_one["gates"].nunique() > 1 else ():
            yield _of_gates("-".join([stem, str(name), *part.tags]), source, part)


def _of_gates(stem: str, source: Source, part: Slice) -> Figure:
    runtime = Chart.of(source, part, RUNTIME, theory=False)
    charts = [runtime, Chart.of(source, part, ERROR, runtime.names)]
    panels = [
        over_axis(chart, columns_of(rows, part.axis), f"{PASS_TITLES[pass_]}: {chart.quantity.name.lower()}")
        for pass_, rows in by_pass(part.rows).items()
        for chart in charts
    ]
    timed = part.rows[part.rows["timed"] & part.rows["implementation"].isin(runtime.names)]
    times = timed.groupby(["implementation", "pass"])["ms_median"].agg(["max", "min"])
    change = (times["max"] / times["min"]).groupby("implementation").max()
    statement = "no runtime changes with the gates by more than 10%"
    if change.max() > 1.1:
        statement = f"gates change the runtime of {source.looks[change.idxmax()].title} up to {change.max():.2g} times"
    return Figure(
        stem=stem,
        title=f"{device_name(part.rows)}: {statement}",
        setting=caption(part.rows, part.axis),
        panels=tuple(panels),
        keys=keys(runtime, panels),
        caption=("Error: the largest of outputs and gradients, against float64.", *notes(runtime, source, panels)),
        rows=part.rows,
        height=1.2,
    )
