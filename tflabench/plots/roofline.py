"""The roofline: measured points under the roofs of their device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from tflabench.analysis.hardware import DATASHEET_DTYPES, Ceilings, from_device_name
from tflabench.analysis.roofline import attainable
from tflabench.plots.panel import say_if_empty
from tflabench.plots.rows import PASSES, Rows, by_pass
from tflabench.plots.sheet import Sheet
from tflabench.plots.style import DASHES, ROOF_COLOUR, Look, measured
from tflabench.plots.words import caption


def roofs(rows: Rows, runs: Mapping[str, Any]) -> list[Ceilings]:
    """The ceilings to draw for rows of one dtype: the datasheet's where the device is known, then what was measured."""
    dtype = rows["dtype"].iloc[0]
    gpu = from_device_name(rows["device"].iloc[0])
    found = [gpu.ceilings] if gpu and dtype in DATASHEET_DTYPES else []
    for run in sorted(set(rows["run_id"])):
        if stored := runs.get(run, {}).get("ceilings", {}).get(dtype):
            found.append(Ceilings(**stored))
    return list(dict.fromkeys(found))


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
    top = max([*(roof.flops_per_s for roof in roofs), *done["rate"], 1.0])
    unit, size = next(
        (unit, size)
        for unit, size in (("TFLOP/s", 1e12), ("GFLOP/s", 1e9), ("MFLOP/s", 1e6))
        if top >= size or size == 1e6
    )
    ridges = [roof.intensity for roof in roofs]
    marks = [*done["intensity"], *ridges] or [1.0]
    low, high = min(marks) / 3, max(marks) * 3
    heights = [
        *done["rate"],
        *(float(attainable(roof, low)) for roof in roofs),
        *(roof.flops_per_s for roof in roofs),
    ] or [1e6]
    for ax, pass_ in zip(sheet.axes, panels, strict=True):
        ax.set_title(PASSES[pass_])
        ax.set(
            xscale="log", yscale="log", xlim=(low, high), ylim=(min(heights) / size / 1.8, max(heights) / size * 2.4)
        )
        ax.set_xlabel("arithmetic intensity, modelled [FLOP/byte]")
        for n, roof in enumerate(roofs):
            _roof(ax, roof, size, below=n > 0)
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
        for direction in (ax.xaxis, ax.yaxis):
            direction.set_major_locator(LogLocator(numticks=12))
            direction.set_major_formatter(
                FuncFormatter(lambda value, _: f"{value:,.10g}" if value < 1e5 else f"{value:.0e}")
            )
            direction.set_minor_formatter(NullFormatter())
    sheet.axes[0].set_ylabel(f"achieved rate [{unit}]")
    handles = [
        Line2D([], [], label=look.title, **look.line(linestyle="", markersize=4)) for _, look in measured(rows, looks)
    ]
    keys = []
    for roof in roofs:
        label = f"{roof.provenance}: {_rate(roof.flops_per_s)}, {roof.bytes_per_s / 1e9:,.4g} GB/s"
        keys.append(Line2D([], [], color=ROOF_COLOUR, linestyle=_roof_dashes(roof), label=label))
    notes = [] if roofs else ["No roof: the ceilings of this device are not known; tflabench calibrate measures them."]
    failed = rows[rows["status"] != "ok"]
    if len(failed):
        counts = ", ".join(
            f"{count} {status}" for status, count in failed["status"].value_counts().sort_index().items()
        )
        notes.append(f"Not measured: {counts}")
    sheet.finish(caption(rows), handles, keys, notes, footer)
    return sheet.figure


def _roof(ax: Axes, roof: Ceilings, size: float, *, below: bool) -> None:
    low, high = ax.get_xlim()
    corners = np.array([low, roof.intensity, high])
    ax.plot(corners, attainable(roof, corners) / size, color=ROOF_COLOUR, linestyle=_roof_dashes(roof), linewidth=0.9)
    ax.annotate(
        _rate(roof.flops_per_s), (high, roof.flops_per_s / size), (-1, -2 if below else 2), textcoords="offset points",
        ha="right", va="top" if below else "bottom", fontsize=5.5, color=ROOF_COLOUR,
    )  # fmt: skip


def _roof_dashes(roof: Ceilings) -> Any:
    return DASHES[1] if roof.provenance == "measured" else DASHES[0]


def _regions(ax: Axes, ridge: float) -> None:
    ax.axvspan(ax.get_xlim()[0], ridge, color="0.55", alpha=0.07, linewidth=0)
    for x, align, words in ((ridge / 1.12, "right", "memory-bound"), (ridge * 1.12, "left", "compute-bound")):
        ax.text(
            x, 0.955, words, transform=ax.get_xaxis_transform(), ha=align, fontsize=5.8, style="italic", color="0.4"
        )


def _rate(flops_per_s: float) -> str:
    return f"{flops_per_s / 1e12:,.4g} TFLOP/s" if flops_per_s >= 1e12 else f"{flops_per_s / 1e9:,.4g} GFLOP/s"
