"""Figures of pure theory: runtime and memory over the chunk size, rooflines. Imports matplotlib only to draw one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tflabench.analysis.chunk_size import Tradeoff
from tflabench.analysis.cost import Cost
from tflabench.analysis.hardware import Gpu
from tflabench.analysis.roofline import attainable
from tflabench.problem import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
MARKERS = "osD^vPX*"
STYLE = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.4,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "savefig.dpi": 300,
    "svg.hashsalt": "tflabench",
}


class Measured(NamedTuple):
    """A measured point of a roofline: the modelled intensity in FLOP/byte, and modelled FLOPs over measured time."""

    label: str
    intensity: float
    flops_per_s: float


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format its suffix names.

    Raises:
        InputError: a suffix that matplotlib does not know, or a file that cannot be written.
    """
    known = figure.canvas.get_supported_filetypes()
    if path.suffix.lstrip(".") not in known:
        raise InputError(f"cannot draw {path}: its suffix must be one of .png, .svg, .pdf")
    try:
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def runtime_over_chunk_size(tradeoff: Tradeoff, recommended: int, title: str, memory_budget: float | None) -> Figure:
    """Theoretical runtime (from lower to upper, the 5% band shaded) and peak memory over L, one above the other."""
    from matplotlib.figure import Figure

    sizes = _chunk_sizes(tradeoff, 400)
    low, high = tradeoff.within()
    time = tradeoff.time(sizes)
    with _style():
        figure = Figure(figsize=(4.2, 4.6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        above.fill_between(
            sizes, time.lower * 1e3, time.upper * 1e3, color=COLOURS[0], alpha=0.2, label="theory, lower to upper"
        )
        above.plot(sizes, time.upper * 1e3, color=COLOURS[0], label="upper: nothing overlaps")
        above.axvspan(low, high, color=COLOURS[4], alpha=0.25, lw=0, label=f"within 5%: {low} to {high}")
        above.axvline(
            tradeoff.runtime_optimal, color="black", lw=0.8, ls=":", label=f"best: {tradeoff.runtime_optimal:.0f}"
        )
        above.set(ylabel="runtime [ms]", yscale="log")
        _plain_log_ticks(above)

        below.plot(sizes, tradeoff.memory(np.ceil(sizes)) / 2**30, color=COLOURS[2], label="peak memory")
        if memory_budget:
            below.axhline(memory_budget / 2**30, color=COLOURS[1], ls="--", lw=0.8, label="memory budget")
        below.set(xlabel="chunk size L [tokens]", ylabel="memory [GiB]", yscale="log")
        _plain_log_ticks(below)
        below.set_xscale("log", base=2)
        below.xaxis.set_major_formatter("{x:.0f}")
        above.axvline(recommended, color=COLOURS[1], lw=1)
        below.axvline(recommended, color=COLOURS[1], lw=1, label=f"recommended: {recommended}")
        figure.legend(loc="outside lower center", ncols=2)
        figure.suptitle(title, fontsize=7.5)
    return figure


def roofline(gpus: Sequence[Gpu], costs: Mapping[int, Cost], title: str, measured: Sequence[Measured] = ()) -> Figure:
    """Rooflines of GPUs (eq. 119), the intensities of chunk sizes as columns that meet them, and measured points."""
    from matplotlib.figure import Figure

    marks = [gpu.ceilings.intensity for gpu in gpus] + [cost.intensity for cost in costs.values()]
    marks += [point.intensity for point in measured]
    intensity = np.geomspace(min(marks) / 2.5, max(marks) * 2.5, 400)
    with _style():
        figure = Figure(figsize=(5.6, 3.9), layout="constrained")
        axes = figure.subplots()
        for gpu, colour in zip(gpus, _cycle(COLOURS, len(gpus)), strict=True):
            ridge = gpu.ceilings.intensity
            label = (
                f"{gpu.name}: {gpu.ceilings.flops_per_s / 1e12:.0f} TFLOP/s, {gpu.ceilings.bytes_per_s / 1e12:.2f} TB/s"
            )
            axes.plot(intensity, attainable(gpu.ceilings, intensity) / 1e12, color=colour, label=label)
            axes.plot(ridge, gpu.ceilings.flops_per_s / 1e12, "o", color=colour, ms=4)
            axes.axvline(ridge, color=colour, lw=0.6, ls=":")
        top = axes.get_ylim()[1]
        for size, cost in costs.items():
            axes.axvline(cost.intensity, color="#777777", lw=0.5, ls="--")
            axes.annotate(
                f"L={size}", (cost.intensity, 0.01), xycoords=("data", "axes fraction"), fontsize=6, rotation=90,
                color="#444444", ha="right", va="bottom",
            )  # fmt: skip
            for gpu, colour in zip(gpus, _cycle(COLOURS, len(gpus)), strict=True):
                axes.plot(cost.intensity, attainable(gpu.ceilings, cost.intensity) / 1e12, "_", color=colour, ms=6)
        labels = list(dict.fromkeys(point.label for point in measured))
        for label, marker, colour in zip(
            labels, _cycle(MARKERS, len(labels)), _cycle(COLOURS, len(labels)), strict=True
        ):
            own = [point for point in measured if point.label == label]
            axes.plot(
                [point.intensity for point in own], [point.flops_per_s / 1e12 for point in own], marker,
                color=colour, mec="white", mew=0.4, ms=5, label=f"{label}, measured",
            )  # fmt: skip
        axes.set(xscale="log", yscale="log", ylim=(None, top * 1.6))
        axes.set(xlabel="arithmetic intensity [FLOP/byte]", ylabel="performance [TFLOP/s]")
        _plain_log_ticks(axes)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.text(0.01, 0.985, "memory-bound left of a ridge", transform=axes.transAxes, va="top", fontsize=6.5)
        axes.text(
            0.99, 0.985, "compute-bound right of it", transform=axes.transAxes, va="top", ha="right", fontsize=6.5
        )
        figure.legend(loc="outside lower center", ncols=2)
        axes.set_title(title, fontsize=7.5)
    return figure


def sketch(
    tradeoff: Tradeoff, recommended: int, *, width: int = 60, height: int = 9, ascii_only: bool = False
) -> list[str]:
    """Lines of text that show the upper time over L (log scale), the 5% band shaded, the recommended L marked below."""
    curve, shade, mark = ("*", ":", "^") if ascii_only else ("•", "░", "▲")
    sizes = _chunk_sizes(tradeoff, width)
    times = tradeoff.time(sizes).upper * 1e3
    low, high = tradeoff.within()
    bottom, top = float(times.min()), min(float(times.max()), 4 * float(times.min()))
    # Beyond four times the best the curve leaves the sketch: the trough is what it is for.
    levels = np.round((times - bottom) / max(top - bottom, 1e-300) * (height - 1))
    lines = []
    for level in reversed(range(height)):
        cells = [
            curve if at == level else shade if low <= size <= high else " "
            for at, size in zip(levels, sizes, strict=True)
        ]
        value = bottom + (top - bottom) * level / (height - 1)
        label = f"{value:8.3g} ms" if level in (0, height - 1) else " " * 11
        lines.append(f"{label} |{''.join(cells)}".rstrip())
    ticks, labels = ["-"] * width, [" "] * (width + 6)
    for power in range(int(np.ceil(np.log2(sizes[0]))), int(np.log2(sizes[-1]) + 1e-9) + 1, 2):
        column = int(np.argmin(abs(sizes - 2.0**power)))
        ticks[column] = "+"
        labels[column : column + len(str(2**power))] = str(2**power)
    ticks[int(np.argmin(abs(sizes - recommended)))] = mark
    lines.append(" " * 11 + "+" + "".join(ticks))
    lines.append(" " * 12 + "".join(labels).rstrip() + "  L")
    return lines


def _chunk_sizes(tradeoff: Tradeoff, count: int) -> np.ndarray:
    """L from 16, the smallest that kernels take, to T, evenly spaced on a log scale."""
    last = float(tradeoff.problem.seq_len)
    return np.geomspace(min(16.0, last), last, count)


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(rc=STYLE):  # type: ignore[arg-type]  # its keys are typed as literals
        yield


def _cycle(values: Sequence[str], count: int) -> list[str]:
    return [values[n % len(values)] for n in range(count)]


def _plain_log_ticks(axes: Axes) -> None:
    """1, 2, 5, 10, ... instead of powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
