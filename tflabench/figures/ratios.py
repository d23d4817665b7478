"""Ratios of two measurements of the same points: a panel a pass, a line an implementation, over every swept axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from tflabench.conclusions.compare import Comparison, Match
from tflabench.figures import facets
from tflabench.figures.captions import caption, legend_name, missing, provenance
from tflabench.figures.layout import FORMATS, Sheet, write
from tflabench.figures.panel import Panel, say_if_empty
from tflabench.figures.quantities import PASSES, Quantity, Rows, by_pass, drawable
from tflabench.figures.style import NOTE_SIZE, Look, looks, measured, styled
from tflabench.figures.ticks import log_ticks, x_axis
from tflabench.problem import InputError
from tflabench.rows.table import frame

RATIO = Quantity("ratio", "runtime, B over A", (("×", 1.0), ("×", 1.0)), spread=("ratio_low", "ratio_high"))


@dataclass(frozen=True)
class Side:
    """One side of a comparison: what it is called, and what environment.json says of its runs."""

    name: str
    runs: Mapping[str, Any]


def draw_all(found: Comparison, sides: tuple[Side, Side], out: Path) -> list[Path]:
    """Draw the ratios of matched points with a band of their widest threshold around 1; returns the files written.

    One file is `out` itself; where several axes were swept, the axis is added to its name.

    Raises:
        InputError: a format that figures do not come in, or a folder that cannot be written.
    """
    if (suffix := out.suffix.removeprefix(".")) not in FORMATS:
        raise InputError(f"--out is {out}: its format must be one of {', '.join(FORMATS)}, not {suffix or 'none'}")
    drawn = list(figures(found, sides))
    written = [out if len(drawn) == 1 else out.with_stem(f"{out.stem}-{stem}") for stem, _ in drawn]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for path, (_, figure) in zip(written, drawn, strict=True):
            write(figure, path)
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}): give another file with --out") from None
    return written


def figures(found: Comparison, sides: tuple[Side, Side]) -> Iterator[tuple[str, Figure]]:
    """(axis and setting, figure) of every axis that the points were swept over."""
    rows = _frame(found.matches)
    table = looks(rows)
    a, b = (frame([getattr(match, side) for match in found.matches]) for side in "ab")
    origins = dict.fromkeys((provenance(a, sides[0].runs), provenance(b, sides[1].runs)))
    footer = " — ".join(origins)
    names = f"B = {sides[1].name}, A = {sides[0].name}"
    for axis in facets.swept_axes(rows) or ["seq_len"]:
        for part in facets.split(rows, axis):
            yield part.stem, _draw(part, table, names, max(match.threshold.value for match in found.matches), footer)


def _frame(matches: Sequence[Match]) -> Rows:
    """The rows of B with the ratio and its interval; status that of the side which failed; ambiguous ones flagged."""
    spans = [_span(match) for match in matches]
    rows = drawable(
        frame([match.b for match in matches]).assign(
            status=[match.a.status if match.b.status == "ok" else match.b.status for match in matches],
            noisy=[match.verdict == "ambiguous" for match in matches],
            throttled=False,
            ratio=[match.ratio or np.nan for match in matches],
            ratio_low=[low for low, _ in spans],
            ratio_high=[high for _, high in spans],
        )
    )
    return rows.assign(timed=rows["status"] == "ok")


def _span(match: Match) -> tuple[float, float]:
    """What the intervals [min, p80] of both sides allow the ratio to be."""
    a, b = match.a, match.b
    if not (a.ms_min and a.ms_p80 and b.ms_min and b.ms_p80):
        return np.nan, np.nan
    return b.ms_min / a.ms_p80, b.ms_p80 / a.ms_min


@styled
def _draw(part: facets.Slice, looks: dict[str, Look], names: str, threshold: float, footer: str) -> Figure:
    panels = by_pass(part.rows)
    sheet = Sheet(len(panels))
    for ax, (pass_, rows) in zip(sheet.axes, panels.items(), strict=True):
        ax.set_title(PASSES[pass_])
        panel = Panel(ax, part.axis, x_axis(ax, part), RATIO, 1.0)
        for name, look in looks.items():
            panel.curve(rows[rows["implementation"] == name], look)
        panel.finish(rows, looks)
        _around_one(ax, rows, threshold)
        say_if_empty(ax, rows["ratio"])
    sheet.axes[0].set_ylabel(f"{RATIO.label} [{RATIO.units[0][0]}]")
    handles = [
        Line2D([], [], label=legend_name(look, name, part.rows), **look.line())
        for name, look in measured(part.rows, looks)
    ]
    keys: list[Any] = [Patch(facecolor="0.9", linewidth=0, label=f"within the threshold of {100 * threshold:.3g}%")]
    if part.rows["noisy"].any():
        keys.append(Line2D([], [], color="0.4", marker="o", mfc="white", ls="", label="ambiguous"))
    notes = ["Whiskers: what the intervals [min, p80] of both allow.", *missing(part.rows, part.axis, looks)]
    sheet.finish(f"{names}: {caption(part.rows, part.axis)}", handles, keys, notes, footer)
    return sheet.figure


def _around_one(ax: Axes, rows: Rows, threshold: float) -> None:
    """Limits that hold the ratios, 1 and the threshold; logarithmic where they lie further apart than a factor of 3."""
    shown = rows[["ratio", "ratio_low", "ratio_high"]].to_numpy(float)
    margin = max(threshold, 0.01)
    values = np.array([*shown[np.isfinite(shown)], 1 / (1 + margin), 1 + margin])
    low, high = np.log(values.min()), np.log(values.max())
    span = high - low
    wide = span > np.log(3)
    ax.set(yscale="log" if wide else "linear", ylim=np.exp([low - 0.2 * span, high + 0.2 * span]))
    if wide:
        log_ticks(ax.yaxis)
    else:
        ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    ax.axhspan(1 / (1 + threshold), 1 + threshold, color="0.9", linewidth=0, zorder=0)
    ax.axhline(1, color="0.3", linewidth=0.6, zorder=1)
    for y, side, words in ((0.985, "top", "B slower"), (0.015, "bottom", "B faster")):
        place = ax.transAxes
        ax.text(0.015, y, words, transform=place, va=side, fontsize=NOTE_SIZE, style="italic", color="0.4")
