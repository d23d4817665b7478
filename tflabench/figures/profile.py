"""A profiled point: its time by kernel, and its measured arithmetic intensity on the roofline beside the modelled."""

from __future__ import annotations

import re
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tflabench.figures.layout import Sheet, text_width
from tflabench.figures.roofline import rate, roof
from tflabench.figures.style import BLUE, DASHES, MARKERS, NOTE_SIZE, PALETTE, ROOF_COLOUR, TICK_SIZE, VERMILION, styled
from tflabench.figures.ticks import log_ticks
from tflabench.theory.roofline import attainable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tflabench.bench.profile.point import Profile

PARTS = {"cuda": "GPU kernel", "cpu": "operator"}  # what a call consists of, by kind of device
Mark = dict[str, Any]  # of a kernel, in both panels
MOST_BARS = 9  # parts shown; what is left is summed
LONGEST_NAME = 26  # characters
TORCH_KERNEL = re.compile(r"\b(\w*[Ff]unctor\w*|\w+_kernel_(?:cuda|impl))\b")
COLOURS = tuple(colour for colour in PALETTE if colour != VERMILION)  # of kernels: vermilion is the whole call
WORTH_A_POINT = 0.02  # of a call's time, from which a kernel is drawn on the roofline


@styled
def draw(profile: Profile, title: str, footer: str) -> Figure:
    """Left, the milliseconds of each GPU kernel (CPU: operator); right, the roofline.

    On the roofline is the call by the model (modelled FLOPs over time at the modelled intensity) and, where there are
    counters, as measured (counted FLOPs over time at counted FLOPs over DRAM bytes); its longest kernels as measured,
    each with the mark of its bar.
    """
    bars = shortened(profile)
    names = [short(name) for name, _ in bars]
    least = WORTH_A_POINT * sum(kernel.ms for kernel in profile.counted)
    points = {
        short(kernel.name): (kernel.intensity, kernel.flops / kernel.ms * 1e3)
        for kernel in profile.counted
        if kernel.intensity and kernel.flops and kernel.ms >= least
    }
    marked = [name for name in names if name in points]
    marks = {
        name: {"color": c, "marker": m} for name, c, m in zip(marked, cycle(COLOURS), cycle(MARKERS), strict=False)
    }
    left = max(text_width(name, TICK_SIZE) for name in names) + 0.2
    sheet = Sheet(2, height=2.3, left=left, gap=0.75)
    sheet.axes[0].set_title(f"time by {PARTS[profile.machine.kind]}")
    _bars(sheet.axes[0], names, [ms for _, ms in bars], marks)
    handles = _roofline(sheet.axes[1], profile, points, marks)
    notes = [] if profile.counted else [f"No counters: {profile.why_not_counted}."]
    sheet.finish(title, handles, [], notes, footer)
    return sheet.figure


def shortened(profile: Profile) -> list[tuple[str, float]]:
    """(name, ms) of the longest parts, in order of time, the rest summed."""
    parts = sorted(profile.parts, key=lambda part: -part["ms"])
    shown = [(part["name"], part["ms"]) for part in parts[:MOST_BARS]]
    if rest := parts[MOST_BARS:]:
        shown.append((f"{len(rest)} others", sum(part["ms"] for part in rest)))
    return shown


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """A kernel's name cut to a length: without C++ namespaces and arguments, and torch's own by what they compute."""
    number = found[0] if (found := re.search(r" #\d+$", name)) else ""
    bare = name.removesuffix(number).removeprefix("void ")
    bare = bare.replace("<unnamed>::", "").replace("(anonymous namespace)::", "")
    if not bare.startswith(("aten::", "at::")):
        bare = bare.partition("<")[0].partition("(")[0]
    elif bare.startswith("at::"):
        told = [word for word in TORCH_KERNEL.findall(bare) if word != "BinaryFunctor"]
        bare = told[0] if told else bare.partition("<")[0].partition("(")[0].split("::")[-1]
    room = longest - len(number)
    return (bare if len(bare) <= room else bare[: room - 1] + "…") + number


def _bars(ax: Axes, names: Sequence[str], ms: Sequence[float], marks: Mapping[str, Mark]) -> None:
    places = np.arange(len(names))[::-1]
    colours = [marks.get(name, {"color": "0.75" if marks else BLUE})["color"] for name in names]
    ax.barh(places, ms, height=0.62, color=colours, alpha=0.85)
    for name, place, value in zip(names, places, ms, strict=True):
        if name in marks:
            ax.plot(value, place, ms=4, mec="white", mew=0.5, **marks[name])
        share = f"{value:.3g}  ({100 * value / sum(ms):.0f}%)"
        ax.annotate(share, (value, place), (5, 0), textcoords="offset points", va="center", fontsize=NOTE_SIZE)
    ax.set_yticks(places, names)
    ax.set_xlim(0, max(ms) * 1.3)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel("time [ms], share of their sum")


def _roofline(
    ax: Axes, profile: Profile, kernels: Mapping[str, tuple[float, float]], marks: Mapping[str, Mark]
) -> list[Line2D]:
    ceilings, seconds, total = profile.ceilings, profile.ms / 1e3, profile.total
    modelled = (float(profile.model.intensity), float(profile.model.flops) / seconds)
    measured = (total.intensity, total.flops / seconds) if total and total.intensity and total.flops else None
    points = [modelled, *kernels.values(), *([measured] if measured else [])]
    top = max(ceilings.flops_per_s, *(y for _, y in points))
    size, unit = (1e12, "TFLOP/s") if top >= 1e12 else (1e9, "GFLOP/s")
    xs = [x for x, _ in points] + [ceilings.intensity]
    low, high = min(xs) / 2, max(xs) * 2
    ys = [y for _, y in points] + [float(attainable(ceilings, low))]
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(min(ys) / size / 2, top / size * 2))
    ax.set(title="roofline", xlabel="arithmetic intensity [FLOP/byte]", ylabel=f"achieved rate [{unit}]")
    label = f"{ceilings.provenance} roof: {rate(ceilings.flops_per_s)}, {ceilings.bytes_per_s / 1e9:,.4g} GB/s"
    handles = [roof(ax, ceilings, size, color=ROOF_COLOUR, linestyle=DASHES[0], linewidth=0.9, label=label)]

    def mark(found: Sequence[tuple[float, float]], **look: object) -> None:
        x, y = np.array(found).T
        handles.extend(ax.plot(x, y / size, ls="", **look))  # type: ignore[arg-type]

    for name, look in marks.items():
        x, y = kernels[name]
        ax.plot(x, y / size, ms=4, mec="white", mew=0.4, **look)
    mark([modelled], marker="D", ms=5, mfc="white", color=VERMILION, label="the call, modelled")
    if measured:
        mark([measured], marker="D", ms=5, color=VERMILION, label="the call, counted")
        (x, y), (x_model, y_model) = measured, modelled
        arrow = {"arrowstyle": "->", "color": VERMILION, "lw": 0.7, "shrinkA": 4, "shrinkB": 4}
        ax.annotate("", (x, y / size), (x_model, y_model / size), arrowprops=arrow)
    log_ticks(ax.xaxis)
    log_ticks(ax.yaxis)
    return handles
