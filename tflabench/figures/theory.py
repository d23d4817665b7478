"""Figures of pure theory: runtime and memory over the chunk size, and the rooflines of GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tflabench.figures.layout import FORMATS, Sheet, text_width, write
from tflabench.figures.roofline import rate, roof
from tflabench.figures.style import BLUE, GREEN, MARKERS, NOTE_SIZE, ORANGE, PALETTE, VERMILION, styled
from tflabench.figures.ticks import log_ticks
from tflabench.problem import InputError
from tflabench.theory.chunk_size import Tradeoff
from tflabench.theory.cost import Cost
from tflabench.theory.hardware import Ceilings, Gpu


class Measured(NamedTuple):
    """A measured point of a roofline: the modelled intensity in FLOP/byte, and modelled FLOPs over measured time."""

    label: str
    intensity: float
    flops_per_s: float


def check_format(path: Path) -> None:
    """Raises InputError unless the suffix of a figure's path is one of FORMATS: before the work, not after it."""
    if path.suffix.lstrip(".") not in FORMATS:
        raise InputError(f"cannot draw {path}: its suffix must be one of {', '.join(f'.{name}' for name in FORMATS)}")


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format its suffix names.

    Raises:
        InputError: another suffix than those of FORMATS, or a file that cannot be written.
    """
    check_format(path)
    try:
        write(figure, path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


@styled
def runtime_over_chunk_size(tradeoff: Tradeoff, recommended: int, title: str, memory_budget: float | None) -> Figure:
    """Theoretical runtime (from lower to upper bound, the 5% band shaded) and peak memory over L, side by side."""
    sheet = Sheet(2)
    left, right = sheet.axes
    right.sharex(left)
    sizes = tradeoff.sizes(400)
    time, memory = tradeoff.time(sizes), tradeoff.memory(np.ceil(sizes)) / 2**30
    low, high = tradeoff.within()
    best = tradeoff.runtime_optimal
    handles = [
        left.fill_between(
            sizes, time.lower * 1e3, time.upper * 1e3, color=BLUE, alpha=0.2, lw=0, label="theory, lower to upper bound"
        ),
        *left.plot(sizes, time.upper * 1e3, color=BLUE, label="upper bound: nothing overlaps"),
        left.axvspan(low, high, color=ORANGE, alpha=0.25, lw=0, label=f"within 5% of the least: {low} to {high}"),
        left.axvline(best, color="black", lw=0.8, ls=":", label=f"least upper bound: {best:.0f}"),
        *right.plot(sizes, memory, color=GREEN, label="peak memory"),
    ]
    if memory_budget:
        handles.append(right.axhline(memory_budget / 2**30, color=VERMILION, ls="--", lw=0.8, label="memory budget"))
    for ax in sheet.axes:
        mark = ax.axvline(recommended, color=VERMILION, lw=1, label=f"recommended: {recommended}")
        ax.set(yscale="log", xlabel="chunk size L [tokens]")
        ax.margins(x=0.02)
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:.0f}")
        log_ticks(ax.yaxis)
    left.set(title="runtime", ylabel="theoretical runtime [ms]")
    right.set(title="memory", ylabel="theoretical peak memory [GiB]")
    sheet.finish(title, [*handles, mark], [], [], _source(tradeoff.ceilings))
    return sheet.figure


@styled
def roofline(gpus: Sequence[Gpu], costs: Mapping[int, Cost], title: str, measured: Sequence[Measured] = ()) -> Figure:
    """Rooflines of GPUs (eq. 119), the intensities of chunk sizes as columns that meet them, and measured points."""
    sheet = Sheet(1, height=3.0, wide=True)
    (ax,) = sheet.axes
    intensities = [float(cost.intensity) for cost in costs.values()]
    intensities += [gpu.ceilings.intensity for gpu in gpus] + [point.intensity for point in measured]
    ax.set(xscale="log", yscale="log", xlim=(min(intensities) / 2.5, max(intensities) * 2.5))
    roofs = []
    for gpu, colour in zip(gpus, cycle(PALETTE), strict=False):
        ceilings = gpu.ceilings
        label = f"{gpu.name}: {rate(ceilings.flops_per_s)}, {ceilings.bytes_per_s / 1e12:.2f} TB/s"
        roofs.append(roof(ax, ceilings, 1e12, color=colour, label=label))
        ax.plot(ceilings.intensity, ceilings.flops_per_s / 1e12, "o", color=colour)
        ax.axvline(ceilings.intensity, color=colour, lw=0.6, ls=":")
    points = []
    labels = dict.fromkeys(point.label for point in measured)
    for label, marker, colour in zip(labels, cycle(MARKERS), cycle(PALETTE), strict=False):
        x, y = np.array([point[1:] for point in measured if point.label == label]).T
        points += ax.plot(x, y / 1e12, marker, color=colour, mec="white", mew=0.35, ms=4, label=f"{label}, measured")
    ax.set_ylim(top=ax.get_ylim()[1] * 1.6)
    _columns(ax, costs)
    words = {"transform": ax.transAxes, "fontsize": NOTE_SIZE, "style": "italic", "color": "0.4"}
    words["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # clear of the columns behind
    ax.text(0.01, 0.96, "memory-bound left of a ridge", **words)
    ax.text(0.99, 0.96, "compute-bound right of it", ha="right", **words)
    ax.set(xlabel="arithmetic intensity [FLOP/byte]", ylabel="attainable rate [TFLOP/s]")
    log_ticks(ax.xaxis)
    log_ticks(ax.yaxis)
    sheet.finish(title, roofs, points, [], " · ".join(f"{gpu.name}: {_source(gpu.ceilings)}" for gpu in gpus))
    return sheet.figure


def _columns(ax: Axes, costs: Mapping[int, Cost]) -> None:
    """A dashed line at the intensity of each L, named above the panel where there is room."""
    width = ax.get_position().width * ax.figure.get_size_inches()[0]  # type: ignore[union-attr]
    taken = 0.0  # inches from the left
    for size, cost in sorted(costs.items()):
        intensity = float(cost.intensity)
        ax.axvline(intensity, color="0.5", lw=0.5, ls="--")
        name = f"L = {size}"
        x = width * ax.transAxes.inverted().transform(ax.transData.transform((intensity, 1)))[0]
        half = text_width(name, NOTE_SIZE) / 2 + 0.03
        if x - half >= taken:
            place = {"xy": (intensity, 1), "xycoords": ax.get_xaxis_transform(), "xytext": (0, 2)}
            ax.annotate(name, textcoords="offset points", ha="center", fontsize=NOTE_SIZE, color="0.25", **place)
            taken = x + half


def _source(ceilings: Ceilings) -> str:
    return f"{ceilings.provenance}, {ceilings.source}"
