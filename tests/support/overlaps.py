"""What cannot be read in a drawn figure: text that another text, a line or the edge of the page is on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from tflabench.figures.matplotlib_renderer import styled

SLACK = 1.0  # pixels that boxes may share, for they hold the room above and below letters


@styled  # letters are as wide as where it is written
def overlaps(drawing: Figure) -> list[str]:
    """Return one sentence for each text that another text or a line strikes, or that leaves the page; drawn anew."""
    renderer = FigureCanvasAgg(drawing).get_renderer()
    drawing.draw_without_rendering()
    boxes = [(text.get_text(), _shrunk(text.get_window_extent(renderer))) for text in _texts(drawing)]
    found = [
        f"{one!r} and {other!r} overlap"
        for (one, box), (other, second) in combinations(boxes, 2)
        if box.overlaps(second)
    ]
    page = drawing.bbox
    for words, box in boxes:
        if box.x0 < page.x0 or box.y0 < page.y0 or box.x1 > page.x1 or box.y1 > page.y1:
            found.append(f"{words!r} leaves the page")
    for name, points, joined in _lines(drawing):
        found += [f"{words!r} is struck by {name}" for words, box in boxes if _strikes(points, joined, box)]
    return found


def _shrunk(box: Bbox) -> Bbox:
    return Bbox.from_extents(box.x0 + SLACK, box.y0 + SLACK, box.x1 - SLACK, box.y1 - SLACK)


def _texts(drawing: Figure) -> Iterator[Text]:
    """Yield every text that is drawn; of tick labels, those within the limits of their axis."""
    axes = drawing.findobj(Axes)
    ticks = {label for ax in axes for axis in _axes_of(ax) for label in axis.get_ticklabels(which="both")}
    shown = {tick.label1 for ax in axes for axis in _axes_of(ax) for tick in axis._update_ticks()}
    shown |= {tick.label2 for ax in axes for axis in _axes_of(ax) for tick in axis._update_ticks()}
    for text in drawing.findobj(Text):
        if text.get_visible() and text.get_text().strip() and (text not in ticks or text in shown):
            yield text


def _axes_of(ax: Any) -> tuple[Any, Any]:
    return ax.xaxis, ax.yaxis


def _lines(drawing: Figure) -> Iterator[tuple[str, np.ndarray, bool]]:
    """Yield what each line is called, its points in pixels, and whether they are joined; what is clipped is left out.

    Lines of a grid and of ticks are no lines of data.
    """
    for line in drawing.lines:
        yield "the sample of a name", _pixels(line), line.get_linestyle() != "None"
    for ax in drawing.findobj(Axes):
        for line in ax.lines:  # type: ignore[attr-defined]
            joined = line.get_linestyle() != "None"
            start = np.round(np.asarray(line.get_xydata())[0], 3)
            yield f"a line from {start}", _clipped(_pixels(line), joined, ax.bbox), joined
        for collection in ax.collections:  # type: ignore[attr-defined]
            if isinstance(collection, LineCollection):
                for segment in filter(len, collection.get_segments()):
                    yield "a whisker", _clipped(collection.get_transform().transform(segment), True, ax.bbox), True


def _pixels(line: Line2D) -> np.ndarray:
    points = np.column_stack([line.get_xdata(orig=False), line.get_ydata(orig=False)]).astype(float)
    return line.get_transform().transform(points)


def _clipped(points: np.ndarray, joined: bool, box: Any) -> np.ndarray:
    """Return points a pixel apart along a line, those in the panel: what is outside is not drawn."""
    dense = _dense(points) if joined else points
    inside = np.isfinite(dense).all(axis=1)
    inside &= (dense[:, 0] >= box.x0 - 1) & (dense[:, 0] <= box.x1 + 1)
    inside &= (dense[:, 1] >= box.y0 - 1) & (dense[:, 1] <= box.y1 + 1)
    return dense[inside]


def _dense(points: np.ndarray) -> np.ndarray:
    """Return points a pixel apart along a line; none where it is broken."""
    pieces = [points[:1]]
    for start, end in pairwise(points):
        if np.isfinite([start, end]).all():
            steps = min(int(np.hypot(*(end - start))) + 2, 20_000)
            pieces.append(np.linspace(start, end, steps))
    return np.concatenate(pieces)


def _strikes(points: np.ndarray, joined: bool, box: Bbox) -> bool:
    dense = _dense(points) if joined and 1 < len(points) < 3 else points
    inside = (dense > (box.x0, box.y0)) & (dense < (box.x1, box.y1))
    return bool(inside.all(axis=1).any())
