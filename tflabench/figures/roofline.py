"""The roofline: measured points under the roofs of their device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tflabench.figures.captions import caption
from tflabench.figures.layout import Sheet
from tflabench.figures.panel import say_if_empty
from tflabench.figures.quantities import PASSES, Rows, by_pass
from tflabench.figures.style import DASHES, NOTE_SIZE, ROOF_COLOUR, Look, measured, styled
from tflabench.figures.ticks import log_ticks
from tflabench.theory.hardware import DATASHEET_DTYPES, Ceilings, from_device_name
from tflabench.theory.roofline import attainable


def roofs(rows: Rows, runs: Mapping[str, Any]) -> list[Ceilings]:
    """The ceilings to draw for rows of one dtype: the datasheet's where the device is known, then what was measured."""
    dtype = rows["dtype"].iloc[0]
    gpu = from_device_name(rows["device"].iloc[0])
    found = [gpu.ceilings] if gpu and dtype in DATASHEET_DTYPES else []
    for run in sorted(set(rows["run_id"])):
        if stored := runs.get(run, {}).get("ceilings", {}).get(dtype):
            found.append(Ceilings(**stored))
    return list(dict.fromkeys(found))


@styled
def draw(rows: Rows, roofs: Sequence[Ceilings], looks: dict[str, Look], footer: str) -> Figure:
    """Every measured point at (modelled intensity, modelled FLOPs over measured time), under the roofs of the device.

    The regions left and right of the first roof's ridge I_acc = alpha / beta are named (eqs. 117-119).
    """
    panels = by_pass(rows)
    sheet = Sheet(len(panels), height=2.3)
    done = rows[(rows["status"] == "ok") & (rows["model_bytes"] > 0)]
    done = done.assign(
        intensity=done["model_flops"] / done["model_bytes"], rate=done["model_flops"] / done["ms_median"] * 1e3
    )
    top = max([*(ceilings.flops_per_s for ceilings in roofs), *done["rate"], 1.0])
    unit, size = next(
        (unit, size)
        for unit, size in (("TFLOP/s", 1e12), ("GFLOP/s", 1e9), ("MFLOP/s", 1e6))
        if top >= size or size == 1e6
    )
    ridges = [ceilings.intensity for ceilings in roofs]
    marks = [*done["intensity"], *ridges] or [1.0]
    low, high = min(marks) / 3, max(marks) * 3
    if roofs:
        low, high = _with_room(low, high, ridges[0])
    heights = [
        *done["rate"],
        *(float(attainable(ceilings, low)) for ceilings in roofs),
        *(ceilings.flops_per_s for ceilings in roofs),
    ] or [1e6]
    for ax, pass_ in zip(sheet.axes, panels, strict=True):
        ax.set_title(PASSES[pass_])
        ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(min(heights) / size / 1.8, max(heights) / size * 2))
        ax.set_xlabel("arithmetic intensity, modelled [FLOP/byte]")
        for ceilings in roofs:
            roof(ax, ceilings, size, color=ROOF_COLOUR, linestyle=_dashes(ceilings), linewidth=0.9)
        if roofs:
            _regions(ax, ridges[0])
        for name, look in looks.items():
            own = done[(done["implementation"] == name) & (done["pass"] == pass_)]
            ax.plot(
                own["intensity"],
                own["rate"] / size,
                **look.line(linestyle="", markersize=4, markeredgecolor="white", markeredgewidth=0.35),
            )
        say_if_empty(ax, done.loc[done["pass"] == pass_, "rate"])
        log_ticks(ax.xaxis)
        log_ticks(ax.yaxis)
    sheet.axes[0].set_ylabel(f"achieved rate [{unit}]")
    handles = [
        Line2D([], [], label=look.title, **look.line(linestyle="", markersize=4)) for _, look in measured(rows, looks)
    ]
    keys = []
    for ceilings in roofs:
        label = f"{ceilings.provenance}: {rate(ceilings.flops_per_s)}, {ceilings.bytes_per_s / 1e9:,.4g} GB/s"
        keys.append(Line2D([], [], color=ROOF_COLOUR, linestyle=_dashes(ceilings), label=label))
    notes = [] if roofs else ["No roof: the ceilings of this device are not known; tflabench calibrate measures them."]
    failed = rows[rows["status"] != "ok"]
    if len(failed):
        counts = ", ".join(
            f"{count} {status}" for status, count in failed["status"].value_counts().sort_index().items()
        )
        notes.append(f"Not measured: {counts}")
    sheet.finish(caption(rows), handles, keys, notes, footer)
    return sheet.figure


def roof(ax: Axes, ceilings: Ceilings, size: float, **line: Any) -> Line2D:
    """min(beta I, alpha) in units of `size` FLOP/s, from one end of the axes to the other (eq. 119)."""
    low, high = ax.get_xlim()
    corners = np.array([low, ceilings.intensity, high])
    return ax.plot(corners, attainable(ceilings, corners) / size, **line)[0]


def rate(flops_per_s: float) -> str:
    """A rate with its unit."""
    return f"{flops_per_s / 1e12:,.4g} TFLOP/s" if flops_per_s >= 1e12 else f"{flops_per_s / 1e9:,.4g} GFLOP/s"


def _dashes(ceilings: Ceilings) -> Any:
    return DASHES[1] if ceilings.provenance == "measured" else DASHES[0]


def _with_room(low: float, high: float, ridge: float) -> tuple[float, float]:
    """Limits on a logarithmic axis that leave the names of both regions room beside the ridge."""
    share = 0.3
    low = min(low, ridge * (ridge / high) ** (share / (1 - share)))
    return low, max(high, ridge * (ridge / low) ** (share / (1 - share)))


def _regions(ax: Axes, ridge: float) -> None:
    ax.axvspan(ax.get_xlim()[0], ridge, color="0.55", alpha=0.07, linewidth=0)
    for x, align, words in ((ridge / 1.12, "right", "memory-bound"), (ridge * 1.12, "left", "compute-bound")):
        place = ax.get_xaxis_transform()
        ax.text(x, 0.955, words, transform=place, ha=align, fontsize=NOTE_SIZE, style="italic", color="0.4")
