"""The charts of the page: one for every selection of GPU, results, data type, pass, view and size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tflabench.figures import curves, facets, memory_time, plotly_renderer, roofline
from tflabench.figures.captions import caption
from tflabench.figures.facets import Slice
from tflabench.figures.highlights import SYMBOLS, chosen, device_name, finding, title
from tflabench.figures.model import Panel
from tflabench.figures.quantities import MEMORY, PASSES, RUNTIME, Quantity, Rows
from tflabench.figures.source import Source

SELECTORS = ("gpu", "results", "dtype", "pass", "view", "size")
SHARED = ("device", "folder", "dtype", "pass")


class View(NamedTuple):
    """One way to look at a slice: its name, and what draws its panel with a title."""

    name: str
    draw: Callable[[Source, Slice], tuple[str, Panel]]


def charts(source: Source) -> Iterator[dict[str, Any]]:
    """Yield every chart: what selects it (SELECTORS), its title, its setting and its plot."""
    for key, rows in source.rows.groupby(list(SHARED), sort=False):
        for axis in facets.swept_axes(rows) or ["seq_len"]:
            for part in facets.split(rows, axis):
                yield from _of_slice(source, part, dict(zip(SHARED, key, strict=True)))


def rooflines(source: Source) -> Iterator[dict[str, Any]]:
    """Yield the roofline of every GPU, folder, data type and pass, selected as charts are, without view and size."""
    for key, rows in source.rows.groupby(list(SHARED), sort=False):
        figure = roofline.draw("roofline", source, rows)
        said = figure.caption[0]
        yield _chosen(dict(zip(SHARED, key, strict=True)), title=figure.title, setting=said) | {
            "plot": plotly_renderer.draw(figure.panels[0])
        }


def _of_slice(source: Source, part: Slice, shared: dict[str, str]) -> Iterator[dict[str, Any]]:
    for view in _views(part):
        head, panel = view.draw(source, part)
        size = caption(part.rows, part.axis).replace(f", {shared['dtype']}", "")
        fixed = f"T = {int(part.rows['seq_len'].iloc[0])}, " if _single(part) else ""
        yield _chosen(shared, view=view.name, size=fixed + size, title=head, setting=fixed + size) | {
            "plot": plotly_renderer.draw(panel)
        }


def _chosen(shared: dict[str, str], **said: str) -> dict[str, Any]:
    found = {"gpu": shared["device"], "results": shared["folder"], "dtype": shared["dtype"]}
    return found | {"pass": PASSES[shared["pass"]]} | said


def _views(part: Slice) -> Iterator[View]:
    """Yield the views of a slice: runtime and memory over its axis, and one against the other."""
    symbol = SYMBOLS.get(part.axis, part.axis)
    over = "" if _single(part) else f" over {symbol}"
    yield View(f"runtime{over}", lambda source, part: _over_axis(source, part, RUNTIME))
    if part.rows["peak_bytes"].notna().any():
        yield View(f"peak memory{over}", lambda source, part: _over_axis(source, part, MEMORY))
        yield View(f"runtime over memory{'' if _single(part) else f', along {symbol}'}", _memory)


def _over_axis(source: Source, part: Slice, quantity: Quantity) -> tuple[str, Panel]:
    unit, size = quantity.unit(part.rows)
    lit = chosen(part.rows, quantity, source.looks)
    chart = curves.Chart(part, quantity, unit, size, source.looks, lit, quantity.theory is not None)
    single = _single(part)
    said = finding(source.records_of(part.rows), quantity, None if single else part.axis)
    head = title(said, part.rows["pass"].iloc[0], device_name(part.rows))
    return head, (curves.ranking if single else curves.over_axis)(chart, part.rows, "")


def _memory(source: Source, part: Slice) -> tuple[str, Panel]:
    figure = memory_time.draw("memory", source, part)
    return figure.title, figure.panels[0]


def _single(part: Slice) -> bool:
    return part.axis == "seq_len" and part.rows["seq_len"].nunique() == 1
