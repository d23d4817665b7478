"""The charts of the page: one for every selection of GPU, results, data type, pass, view and size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tflabench.figures import curves, facets, plotly_renderer, roofline
from tflabench.figures.captions import caption
from tflabench.figures.facets import Slice
from tflabench.figures.highlights import SYMBOLS, device_name, finding, title
from tflabench.figures.model import Panel
from tflabench.figures.quantities import MEMORY, PASSES, RUNTIME, by_pass
from tflabench.figures.source import Source

# What a chart is selected by -> its heading, in the order in which one choice narrows the next.
SELECTORS = {
    "gpu": "GPU", "results": "results", "dtype": "data type", "pass": "pass", "view": "chart",
    "size": "heads and head dimensions",
}  # fmt: skip
SHARED = ("device", "folder", "dtype", "pass")


def charts(source: Source) -> Iterator[dict[str, Any]]:
    """Yield every chart: what selects it (SELECTORS), its title, its setting and its plot.

    Folders with most rows of closed comparisons come first, then those with most rows.
    """
    rows = source.rows
    folders = rows.assign(compared=rows["comparison_id"].notna() & rows["closed"]).groupby("folder")["compared"]
    ordered = rows.assign(compared=-folders.transform("sum"), size=-folders.transform("size"))
    ordered = ordered.sort_values(["compared", "size", "folder"], kind="stable")
    for key, rows in ordered.groupby(list(SHARED), sort=False):
        for axis in facets.swept_axes(rows) or ["seq_len"]:
            for part in facets.split(rows, axis):
                yield from _of_slice(source, part, key)


def rooflines(source: Source) -> Iterator[dict[str, Any]]:
    """Yield the roofline of every GPU, folder, data type and pass, selected as charts are, without view and size."""
    for key, rows in source.rows.groupby(list(SHARED[:-1]), sort=False):
        figure = roofline.draw("roofline", source, rows)
        for pass_, panel in zip(by_pass(rows), figure.panels, strict=True):
            yield _chosen((*key, pass_), panel, title=figure.title, setting=figure.caption[0])


def _chosen(key: tuple[str, ...], panel: Panel, **texts: str) -> dict[str, Any]:
    """Return a chart: what selects it (`key`: values of SHARED) and the words at it, and its plot."""
    device, folder, dtype, pass_ = key
    shared = {"gpu": device, "results": folder, "dtype": dtype, "pass": PASSES[pass_]}
    return {**shared, **texts, "plot": plotly_renderer.draw(panel)}


def _of_slice(source: Source, part: Slice, key: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield runtime and peak memory over the axis of a slice of one pass."""
    rows, single = part.rows, _single(part)
    size = caption(rows, part.axis).replace(f", {rows['dtype'].iloc[0]}", "")
    size = f"T = {int(rows['seq_len'].iloc[0])}, {size}" if single else size
    over = "" if single else f" over {SYMBOLS.get(part.axis, part.axis)}"
    columns, device = curves.columns_of(rows, part.axis), device_name(rows)
    quantities = (RUNTIME, MEMORY) if rows["peak_bytes"].notna().any() else (RUNTIME,)
    for quantity in quantities:
        chart = curves.Chart.of(source, part, quantity)
        result = finding(rows, quantity, None if single else part.axis)
        panel = curves.ranking(chart, rows, "") if single else curves.over_axis(chart, columns, "")
        head = title(result, rows["pass"].iloc[0], device)
        yield _chosen(key, panel, view=f"{quantity.name.lower()}{over}", size=size, title=head, setting=size)


def _single(part: Slice) -> bool:
    return part.axis == "seq_len" and part.rows["seq_len"].nunique() == 1
