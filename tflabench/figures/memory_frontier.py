"""Time of a step over the memory it takes: every kernel, chunk size and batch, and those worth choosing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tflabench.conclusions.advise import Choice, frontier
from tflabench.figures.layout import Sheet, text_width
from tflabench.figures.style import DASHES, MARKERS, NOTE_SIZE, PALETTE, VERMILION, styled
from tflabench.figures.ticks import log_ticks

GIB = 2.0**30
LOG_FROM = 4.0  # largest over least value, from which an axis is logarithmic


@styled
def draw(
    recommended: Choice, considered: Sequence[Choice], memory_bytes: float | None, title: str, footer: str
) -> Figure:
    """Every choice as a dot and, a line a kernel, those that no other one of that kernel beats in both time and memory.

    Chunk size, and batch where it differs, are written along the line of the recommended kernel.
    """
    sheet = Sheet(1, height=3.0, wide=True)
    (ax,) = sheet.axes
    times, sizes = [choice.step_s for choice in considered], [choice.memory_bytes for choice in considered]
    unit, size = ("s", 1.0) if min(times) >= 1 else ("ms", 1e-3)
    if max(sizes) > LOG_FROM * min(sizes):
        ax.set_xscale("log")
    if max(times) > LOG_FROM * min(times):
        ax.set_yscale("log")
    handles: list[Any] = []
    for n, name in enumerate(dict.fromkeys(choice.kernel.name for choice in considered)):
        own = [choice for choice in considered if choice.kernel.name == name]
        look: dict[str, Any] = {"color": PALETTE[n % len(PALETTE)], "marker": MARKERS[n % len(MARKERS)]}
        ax.plot(*_places(own, size), ls="", ms=2, alpha=0.35, mew=0, **look)
        look |= {"ls": DASHES[n % len(DASHES)], "lw": 0.9, "ms": 3, "drawstyle": "steps-post"}
        handles += ax.plot(*_places(frontier(own), size), label=name, **look)
    ring = {"ls": "", "marker": "o", "ms": 9, "mfc": "none", "mec": VERMILION, "mew": 1.1, "label": "recommended"}
    keys = ax.plot(*_places([recommended], size), **ring)
    if memory_bytes is not None and memory_bytes < LOG_FROM * max(sizes):
        label = f"memory allowed: {memory_bytes / GIB:.3g} GiB"
        keys.append(ax.axvline(memory_bytes / GIB, color=VERMILION, ls="--", lw=0.8, label=label))
    ax.margins(0.05, 0.1)
    ax.set(xlabel="memory [GiB]", ylabel=f"time of a step [{unit}]")
    for axis, logarithmic in ((ax.xaxis, ax.get_xscale() == "log"), (ax.yaxis, ax.get_yscale() == "log")):
        if logarithmic:
            log_ticks(axis)
    own = frontier([choice for choice in considered if choice.kernel == recommended.kernel])
    _name(ax, [recommended, *reversed(own)], size)
    keys.append(Line2D([], [], ls="", ms=2.5, marker="o", mew=0, color="0.6", label="any other choice"))
    sheet.finish(title, handles, keys, [], footer)
    return sheet.figure


def _places(choices: Sequence[Choice], size: float) -> tuple[list[float], list[float]]:
    return [choice.memory_bytes / GIB for choice in choices], [choice.step_s / size for choice in choices]


def _name(ax: Axes, choices: Sequence[Choice], size: float) -> None:
    """Write chunk size and batch beside each choice, in this order, where no earlier name is."""
    box = ax.get_position()
    width, height = ax.figure.get_size_inches() * (box.width, box.height)  # type: ignore[union-attr]
    one_batch = len({choice.problem.batch for choice in choices}) == 1
    taken: list[tuple[float, float, float]] = []  # left, right and middle height of a name, in inches
    for choice in choices:
        words = f"L = {choice.problem.chunk_size}" + ("" if one_batch else f", batch {choice.problem.batch}")
        place = (choice.memory_bytes / GIB, choice.step_s / size)
        x, y = ax.transAxes.inverted().transform(ax.transData.transform(place)) * (width, height)
        long = text_width(words, NOTE_SIZE) + 0.1
        side, left = (1, x) if x + long < width else (-1, x - long)
        if all(left > end or left + long < start or abs(y - middle) > 0.11 for start, end, middle in taken):
            offset = {"xytext": (4 * side, 3), "textcoords": "offset points", "ha": "left" if side > 0 else "right"}
            ax.annotate(words, place, fontsize=NOTE_SIZE, color="0.25", **offset)
            taken.append((left, left + long, y))
