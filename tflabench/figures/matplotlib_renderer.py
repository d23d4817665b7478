"""Draw the model of a figure with matplotlib: 85 mm wide, one column of a paper; bars side by side take a page's width.

Matplotlib's constrained layout places panels and legends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize, to_hex, to_rgb
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator
from PIL import Image

from tflabench.figures import model
from tflabench.figures.axes import CROSS_LEVEL, linear_ticks, log_ticks
from tflabench.figures.captions import shorten
from tflabench.figures.model import Axis, Bars, Circle, Cross, Curve, Figure, HeatMap, Ink, Key, Panel, Rule

WIDTH = 85 / 25.4  # inches
DPI = 360  # 1,200 pixels across
EDGE = 0.05  # inches around the figure
TITLE, TEXT, SMALL, LINE = 7.5, 6.5, 6.0, 7.0  # points
TITLE_LETTERS, SETTING_LETTERS, PANEL_LETTERS, NAME_LETTERS, KEY_LETTERS = 50, 68, 58, 20, 60  # of a line
LABEL_LETTERS = 22  # of a panel's title, which the labels of bars leave no room for
LEGEND_LETTERS = 52  # of all entries of the legend, where they share a row
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": TEXT,
    "axes.labelsize": TEXT,
    "axes.titlesize": TEXT,
    "axes.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.4,
    "axes.labelpad": 2.0,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.4,
    "text.parse_math": False,  # a name is not a formula
    "text.hinting": "no_hinting",  # words are as wide on a screen as on paper
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "legend.borderpad": 0.0,
    "legend.borderaxespad": 0.6,
    "legend.labelspacing": 0.3,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    "legend.handlelength": 2.4,
    "legend.handletextpad": 0.5,
    "legend.columnspacing": 1.4,
    "savefig.dpi": DPI,
    "svg.hashsalt": "tflabench",  # the same figure gives the same file
    "pdf.fonttype": 42,
}
for _side in ("xtick", "ytick"):
    STYLE |= {f"{_side}.labelsize": SMALL, f"{_side}.major.width": 0.5}
    STYLE |= {f"{_side}.major.size": 2.0, f"{_side}.major.pad": 2.0}
styled = matplotlib.rc_context(STYLE)
_filled = partial(fill, break_on_hyphens=False)  # mamba-ssm is one word
UNDATED: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
MARKERS = {
    "": "", "circle": "o", "square": "s", "triangle-up": "^", "diamond": "D", "triangle-down": "v", "pentagon": "p",
    "cross": "P", "hexagon": "h", "star": "*", "triangle-left": "<", "triangle-right": ">", "x": "X",
}  # fmt: skip
CROSSED: dict[str, Any] = {"marker": "x", "ms": 3, "mew": 0.8, "ls": ""}
DASHES: dict[str, Any] = {"solid": "-", "dash": (0, (4, 1.2)), "dot": (0, (1.2, 1)), "dashdot": (0, (5, 1.2, 1.2, 1.2))}


@styled
def draw(figure: Figure) -> Drawing:
    """Return the figure drawn, as high as its panels need."""
    bars = any(isinstance(item, Bars) for panel in figure.panels for item in panel.items)
    wide = figure.columns if bars else 1  # labels of bars need the room of a panel
    setting = figure.setting.replace(" = ", "\u00a0=\u00a0")
    heads = [_filled(figure.title, TITLE_LETTERS * wide), _filled(setting, SETTING_LETTERS * wide)]
    starts = [EDGE, EDGE + 0.13 * (heads[0].count("\n") + 1)]
    top = starts[1] + 0.1 * (heads[1].count("\n") + 1)
    rows = [figure.panels[start : start + figure.columns] for start in range(0, len(figure.panels), figure.columns)]
    width = WIDTH * wide
    drawing = Drawing(
        figsize=(width, top + len(rows) * (figure.height + 0.4)), layout="constrained", facecolor="white", dpi=DPI
    )
    texts = [
        drawing.text(EDGE / width, 0, heads[0], va="top", fontsize=TITLE, weight="bold"),
        drawing.text(EDGE / width, 0, heads[1], va="top", fontsize=SMALL, color="0.35"),
    ]
    same_x = len({panel.x.label for panel in figure.panels}) == 1
    grid = drawing.subplots(len(rows), len(rows[0]), squeeze=False)
    for axes, panels in zip(grid, rows, strict=True):
        for ax, panel in zip(axes, panels, strict=True):
            letters = (PANEL_LETTERS - LABEL_LETTERS * bars) * wide // figure.columns
            _panel(ax, panel, not same_x or panels is rows[-1], letters)
    _legend(drawing, figure.keys)
    for _ in range(2):  # the room that words take is known once they are placed
        height = drawing.get_figheight()
        for text, start in zip(texts, starts, strict=True):
            text.set_y(1 - start / height)
        drawing.get_layout_engine().set(rect=(0, 0, 1, 1 - top / height))  # type: ignore[union-attr]
        drawing.draw_without_rendering()
        panel_heights = sum(axes[0].bbox.height for axes in grid) / drawing.dpi
        drawing.set_figheight(height + len(rows) * figure.height - panel_heights)
    return drawing


@styled
def write(figure: Figure, path: Path) -> None:
    """Write a figure in the format that its suffix names, png, svg or pdf; the same figure gives the same file.

    A png has a palette of 256 colours: a quarter of the bytes, and no colour that the eye tells apart.
    """
    if path.suffix != ".png":
        draw(figure).savefig(path, metadata=UNDATED.get(path.suffix.lstrip(".")))
        return
    full = BytesIO()
    draw(figure).savefig(full)
    colours = Image.open(full).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
    colours.save(path, optimize=True, dpi=(DPI, DPI))


def _panel(ax: Axes, panel: Panel, label_x: bool, letters: int) -> None:
    """Draw a panel. Its axes are set before its items, some of which ask for the limits."""
    _set(ax, "x", panel.x, label_x)
    _set(ax, "y", panel.y, True)
    ax.grid(visible=not any(isinstance(item, (HeatMap, Bars)) for item in panel.items), axis="y")
    for item in panel.items:
        DRAWN[type(item)](ax, item)
    if panel.empty:
        ax.text(0.5, 0.5, panel.empty, transform=ax.transAxes, ha="center", va="center", color="0.35")
    ax.set_title(_filled(panel.title, letters), loc="left", pad=3 + LINE * _names_above(ax, panel))
    _names_beside(ax, panel)


def _set(ax: Axes, side: str, axis: Axis, labelled: bool) -> None:
    """Set scale, limits, ticks and label of one axis."""
    axis_drawn = ax.xaxis if side == "x" else ax.yaxis
    ax.set(**{f"{side}scale": axis.scale, f"{side}label": axis.label if labelled else ""})
    ax.set(**{f"{side}lim": axis.limits})
    axis_drawn.set_ticks([value for value, _ in axis.ticks], [label for _, label in axis.ticks])
    axis_drawn.set_minor_locator(NullLocator())


def _curve(ax: Axes, curve: Curve) -> None:
    faint = curve.role == "context"
    dotted = not curve.joined or curve.lone or not faint
    style: dict[str, Any] = {
        "color": curve.ink.colour,
        "marker": MARKERS[curve.ink.marker or "circle" * faint] if dotted else "",
        "linestyle": DASHES[curve.ink.dash] if curve.joined else "",
        "linewidth": 0.5 if faint else 1.1 if curve.role == "highlight" else 0.9,
        "markersize": 2.2 if faint else 3.4,
        "markeredgewidth": 0.6,
        "zorder": 1.8 if faint else 2.0,
    }
    x, y = np.asarray(curve.x, float), np.asarray(curve.y, float)
    ax.plot(x, y, **style)
    hollow = np.asarray(curve.hollow, bool)
    if hollow.any():
        ax.plot(x[hollow], y[hollow], **style | {"linestyle": "", "markerfacecolor": "white", "zorder": 2.2})
    if curve.spread:
        ax.vlines(x, *curve.spread, color=curve.ink.colour, linewidth=0.6, zorder=1.9)  # type: ignore[arg-type]


def _cross(ax: Axes, cross: Cross) -> None:
    y = 0.98 - CROSS_LEVEL * cross.level
    ax.plot([cross.x], [y], transform=ax.get_xaxis_transform(), color=cross.ink.colour, **CROSSED)


def _band(ax: Axes, band: model.Band) -> None:
    # With an edge, for a band may have no width: where memory alone bounds a kernel both bounds are one.
    colours = {"facecolor": (band.colour, 0.16), "edgecolor": (band.colour, 0.4)}
    ax.fill_between(band.x, band.lower, band.upper, **colours, linewidth=0.8, zorder=1.5)  # type: ignore[arg-type]


def _rule(ax: Axes, rule: Rule) -> None:
    line = ax.axvline if rule.side == "x" else ax.axhline
    line(rule.value, color=rule.ink.colour, ls=DASHES[rule.ink.dash], lw=0.7, zorder=1.7)


def _bars(ax: Axes, bars: Bars) -> None:
    places = np.arange(len(bars.labels))[::-1]
    for place, bounds in zip(places, bars.ranges, strict=False):
        if bounds and np.isfinite(bounds).all():
            ax.barh(place, bounds[1] - bounds[0], left=bounds[0], height=0.8, color="0.86", linewidth=0)
    ax.barh(places, np.nan_to_num(bars.values), height=0.5, color=bars.colours)
    for place, value, label in zip(places, bars.values, bars.texts, strict=True):
        at = (0.0 if math.isnan(value) else value, place)
        style: dict[str, Any] = {"style": "italic", "color": "0.4"} if math.isnan(value) else {}
        text = ax.annotate(label, at, (3, 0), textcoords="offset points", va="center", fontsize=SMALL, **style)
        text.set_in_layout(False)  # the axis leaves room for it


def _heat_map(ax: Axes, heat: HeatMap) -> None:
    norm = (LogNorm if heat.scale == "log" else Normalize)(heat.low, heat.high)
    style = {"norm": norm, "cmap": "viridis", "shading": "nearest", "rasterized": True}
    drawn = ax.pcolormesh(heat.x, heat.y, np.clip(heat.values, heat.low, heat.high), **style)
    if heat.label:
        bar = ax.figure.colorbar(drawn, cax=ax.inset_axes((1.05, 0, 0.06, 1)))
        bar.outline.set_visible(False)  # type: ignore[operator]
        ticks = log_ticks(heat.low, heat.high) if heat.scale == "log" else linear_ticks(heat.low, heat.high)
        bar.set_ticks([value for value, _ in ticks], labels=[text for _, text in ticks])
        bar.ax.minorticks_off()
        bar.ax.set_xlabel(heat.label, loc="left", labelpad=5)


def _ring(ax: Axes, ring: Circle) -> None:
    ax.plot([ring.x], [ring.y], "o", ms=7, mfc="none", mec=ring.colour, mew=0.7, zorder=2.3)


DRAWN: dict[type, Callable[[Axes, Any], None]] = {
    model.Band: _band, Bars: _bars, Cross: _cross, Curve: _curve, HeatMap: _heat_map, Circle: _ring, Rule: _rule,
}  # fmt: skip


def _names_beside(ax: Axes, panel: Panel) -> None:
    """Write the names of lines right of a panel, from top to bottom as they end there."""
    names: list[tuple[float, str, Line2D]] = []
    for item in panel.items:
        if isinstance(item, Curve) and item.label:
            ends = [value for value in item.y if math.isfinite(value)][-1:]
            names += [
                (end, item.label, _sample(item.ink, "points" if item.lone or not item.joined else "line"))
                for end in ends
            ]
        elif isinstance(item, Cross) and item.label:
            names.append((math.inf, item.label, _sample(item.ink, "cross")))
        elif isinstance(item, Rule) and item.side == "y" and item.label:
            names.append((item.value, item.label, _sample(item.ink)))
    if names:
        _, names_shown, samples = zip(*sorted(names, key=lambda name: -name[0]), strict=True)
        ax.legend(
            samples,
            [_filled(text, NAME_LETTERS, max_lines=3, placeholder="…") for text in names_shown],
            labelcolor=[_readable(to_hex(sample.get_color())) for sample in samples],
            loc="center left",
            bbox_to_anchor=(1, 0.5),
        )


def _names_above(ax: Axes, panel: Panel) -> int:
    """Write the names of upright rules above a panel, the outer ones outwards; return in how many lines."""
    named = [item for item in panel.items if isinstance(item, Rule) and item.side == "x" and item.label]
    sides = ["center"] if len(named) == 1 else ["right", *["center"] * (len(named) - 2), "left"][: len(named)]
    lines = 1 + (len(named) > 3)  # by turns, as neighbours would meet
    style: dict[str, Any] = {"textcoords": "offset points", "fontsize": SMALL, "va": "bottom"}
    for n, (rule, side) in enumerate(zip(sorted(named, key=lambda rule: rule.value), sides, strict=True)):
        at, above = (rule.value, 1), (0, 2 + LINE * (n % lines))
        ax.annotate(rule.label, at, above, ax.get_xaxis_transform(), color=_readable(rule.ink.colour), ha=side, **style)
    return lines * bool(named)


def _sample(ink: Ink, kind: str = "line") -> Line2D:
    """Return a line or mark as legends show it; `kind`: of a `Key`."""
    if kind == "cross":
        return Line2D([], [], color=ink.colour, **CROSSED)
    style: dict[str, Any] = {"markerfacecolor": "white"} if kind == "hollow" else {}
    ls = DASHES[ink.dash] if kind == "line" else ""
    return Line2D([], [], color=ink.colour, ls=ls, lw=1.1, marker=MARKERS[ink.marker], ms=3.4, mew=0.6, **style)


def _readable(colour: str) -> str:
    """Return the ink for words of a colour: darker where it is too light to read on white."""
    red, green, blue = to_rgb(colour)
    light = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    factor = min(1.0, 0.42 / light) if light else 1.0
    return to_hex((factor * red, factor * green, factor * blue))


def _legend(drawing: Drawing, keys: Sequence[Key]) -> None:
    """Draw the legend below the panels, in one row if it fits."""
    if keys:
        handles = [
            Patch(color=key.ink.colour, alpha=0.3, lw=0) if key.kind == "area" else _sample(key.ink, key.kind)
            for key in keys
        ]
        names = [shorten(key.label, KEY_LETTERS) for key in keys]
        columns = len(keys) if sum(map(len, names)) + 4 * len(names) < LEGEND_LETTERS else 1
        drawing.legend(handles, names, loc="outside lower left", ncols=columns)
