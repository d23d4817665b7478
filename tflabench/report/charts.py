"""The interactive figures of stored rows as plain Plotly dicts (nothing here needs plotly): a panel a pass.

A trace says in `meta` which implementations it belongs to (the filter hides it with the last of them), and in
`customdata` which rows its points are, by their index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tflabench.figures import facets
from tflabench.figures.captions import caption, legend_name, missing
from tflabench.figures.facets import Slice
from tflabench.figures.quantities import MEMORY, PASSES, RUNTIME, Quantity, Rows, by_pass, plain
from tflabench.figures.roofline import roofs
from tflabench.figures.style import Look
from tflabench.report import curves, scatter_panels
from tflabench.report.folders import Part
from tflabench.report.formats import FLOP_RATE, html, unit_of
from tflabench.report.plotly_axes import axis_name
from tflabench.theory.hardware import Ceilings


@dataclass(frozen=True)
class Panel:
    """One plot of a figure: its title, and what Plotly draws."""

    title: str
    plot: dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """Plots side by side that share a quantity.

    Attributes:
        id: unique on the page, and the address of the figure.
        kind: "runtime", "memory", "chunk" or "roofline".
        title, quantity, caption: what it shows, what is drawn upwards with its unit, what all its rows share; HTML.
        sources: where its numbers come from, e.g. ("measured", "modelled").
        notes: keys of `facts.NOTES`: how they are made.
        legend: name -> title of the implementations in it, HTML.
        missing: what was asked for and not measured, a line a status, HTML.
        roofs: (Plotly dash, words) of the roofs in it.
    """

    id: str
    kind: str
    title: str
    quantity: str
    caption: str
    panels: tuple[Panel, ...]
    sources: tuple[str, ...]
    notes: tuple[str, ...]
    legend: dict[str, str]
    missing: list[str] = field(default_factory=list)
    roofs: list[tuple[str, str]] = field(default_factory=list)


def figures(of: Part, prefix: str, looks: Mapping[str, Look]) -> Iterator[Figure]:
    """All figures of a results folder, those of `plots.figures`; `prefix` makes their ids unique on a page."""
    rows = of.rows
    axes = facets.swept_axes(rows) or ["seq_len"]
    for kind, quantity in (("runtime", RUNTIME), ("memory", MEMORY)):
        for axis in axes:
            for part in facets.split(rows, axis):
                yield _curves(f"{prefix}-{kind}-{part.stem}", kind, part, quantity, looks, of)
    if "chunk_size" in axes:
        for part in facets.split(rows, "chunk_size"):
            if part.rows["chunk_size"].nunique() > 1:
                yield _trade_off(f"{prefix}-chunk-{part.stem}", part, looks)
    for dtype, own in rows.groupby("dtype"):
        yield _roofline(f"{prefix}-roofline-{dtype}", own, roofs(own, of.runs), looks)


def _curves(id_: str, kind: str, part: Slice, quantity: Quantity, looks: Mapping[str, Look], of: Part) -> Figure:
    unit = quantity.unit(part.rows)
    single = part.axis == "seq_len" and part.rows["seq_len"].nunique() == 1
    optima = part.axis == "chunk_size" and kind == "runtime"
    panels = []
    for pass_, rows in by_pass(part.rows).items():
        plot = (curves.ranking if single else curves.over_axis)(part, rows, quantity, unit, looks)
        for _, own in rows.groupby("dtype") if optima else ():
            plot["data"] += curves.best_chunk_sizes(own, roofs(own, of.runs), looks)
        panels.append(Panel(PASSES[pass_], plot))
    modelled = quantity.theory is not None and part.rows[quantity.theory[0]].notna().any()
    name = "Runtime" if kind == "runtime" else "Peak memory"
    return Figure(
        id=id_,
        kind=kind,
        title=name if single else f"{name} over {axis_name(part)}",
        quantity=f"{quantity.label} [{unit[0]}]",
        caption=_setting(part),
        panels=tuple(panels),
        sources=("measured", "modelled") if modelled else ("measured",),
        notes=(kind, *(("bounds", "counts") if modelled else ()), *(("optimum",) if optima else ())),
        legend={} if single else _legend(part.rows, looks),  # a ranking names its lines
        missing=[html(line) for line in missing(part.rows, part.axis, dict(looks))],
    )


def _trade_off(id_: str, part: Slice, looks: Mapping[str, Look]) -> Figure:
    (unit, ms), memory = RUNTIME.unit(part.rows), MEMORY.unit(part.rows)
    panels = [
        Panel(PASSES[pass_], scatter_panels.trade_off(rows, ms, memory, looks))
        for pass_, rows in by_pass(part.rows).items()
    ]
    return Figure(
        id=id_,
        kind="chunk",
        title="What the chunk size buys: runtime against memory",
        quantity=f"median runtime [{unit}]",
        caption=_setting(part),
        panels=tuple(panels),
        sources=("measured",),
        notes=("runtime", "memory"),
        legend=_legend(part.rows, looks),
    )


def _roofline(id_: str, rows: Rows, ceilings: Sequence[Ceilings], looks: Mapping[str, Look]) -> Figure:
    done = scatter_panels.rates(rows)
    unit, size = unit_of(max([*(one.flops_per_s for one in ceilings), *done["rate"], 1.0]), FLOP_RATE)
    intensities = [*done["intensity"], *(one.intensity for one in ceilings)] or [1.0]
    ends = min(intensities) / 2, max(intensities) * 2.5
    panels = [
        Panel(PASSES[pass_], scatter_panels.roofline(done[done["pass"] == pass_], ceilings, size, ends, looks))
        for pass_ in by_pass(rows)
    ]
    failed = rows.loc[rows["status"] != "ok", "status"].value_counts().sort_index()
    notes = [f"Not measured: {', '.join(f'{count} {status}' for status, count in failed.items())}"] * bool(len(failed))
    if not ceilings:
        notes.append("No roof: the ceilings of this device are not known; tflabench calibrate measures them.")
    return Figure(
        id=id_,
        kind="roofline",
        title=f"Roofline, {rows['dtype'].iloc[0]}",
        quantity=f"achieved rate [{unit}]",
        caption=html(caption(rows)),
        panels=tuple(panels),
        sources=("modelled / measured", *sorted({one.provenance for one in ceilings})),
        notes=("rate", "intensity", "counts", "roof"),
        legend=_legend(rows, looks),
        missing=notes,
        roofs=[
            (dash, scatter_panels.words(one))
            for one, dash in zip(ceilings, scatter_panels.ROOF_DASHES * len(ceilings), strict=False)
        ],
    )  # fmt: skip


def _setting(part: Slice) -> str:
    """What the rows share, after what tells this figure from its siblings."""
    said = caption(part.rows, part.axis)
    tags = [tag.replace("_", " ") for tag in part.tags if plain(tag.rpartition("_")[2]) not in said]
    return html(", ".join([*tags, said]))


def _legend(rows: Rows, looks: Mapping[str, Look]) -> dict[str, str]:
    asked = set(rows["implementation"])
    return {name: html(legend_name(look, name, rows)) for name, look in looks.items() if name in asked}
