"""Draw the model of a figure with matplotlib: 85 mm wide, one column of a paper, with panels below each other.

Names of lines stand in the margin right of a panel, in the order of the lines, so that no line can strike a name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure as Drawing
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path
from matplotlib.ticker import NullFormatter, NullLocator

from tflabench.figures.axes import CROSS_LEVEL, linear_ticks, log_ticks, spread
from tflabench.figures.model import (
    Axis,
    Band,
    Bars,
    Cross,
    Curve,
    Figure,
    HeatMap,
    Ink,
    Key,
    Note,
    Panel,
    Rule,
    Span,
    Stack,
)

WIDTH = 85 / 25.4  # inches
EDGE, GAP = 0.05, 0.42  # inches: around the figure, between panels of a row
BAR_GAP = 0.6  # inches between panels of a row that have colour bars
MOST_MARGIN = 1.12  # inches for names beside a panel
HANDLE = 0.2  # inches of line before a name
LINE, SMALL_LINE = 0.115, 0.1  # inches from one line of text to the next
TITLE, TEXT, SMALL = 7.5, 6.5, 6.0  # points
TICKS, LABEL, LEGEND = 0.15, 0.14, 0.14  # inches below a panel, and of the legend
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
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2.0,
    "ytick.major.size": 2.0,
    "xtick.major.pad": 2.0,
    "ytick.major.pad": 2.0,
    "axes.labelpad": 2.0,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.4,
    "text.parse_math": False,  # a name is not a formula
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "savefig.dpi": 300,
    "svg.hashsalt": "tflabench",  # the same figure gives the same file
    "pdf.fonttype": 42,
}
styled = matplotlib.rc_context(STYLE)
UNDATED: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
MARKERS = {
    "": "", "circle": "o", "square": "s", "triangle-up": "^", "diamond": "D", "triangle-down": "v", "pentagon": "p",
    "cross": "P", "hexagon": "h", "star": "*", "triangle-left": "<", "triangle-right": ">", "x": "X",
}  # fmt: skip
DASHES: dict[str, Any] = {"solid": "-", "dash": (0, (4, 1.2)), "dot": (0, (1.2, 1)), "dashdot": (0, (5, 1.2, 1.2, 1.2))}


class Row(NamedTuple):
    """The panels of one row, with the inches around them."""

    panels: Sequence[Panel]
    titles: list[list[str]]
    above: float
    below: float
    left: float
    right: float


@styled
def draw(figure: Figure) -> Drawing:
    """Return the figure drawn, as high as its panels need."""
    titles = wrap(figure.title, WIDTH - 2 * EDGE, TITLE, bold=True)
    settings = wrap(figure.setting, WIDTH - 2 * EDGE, SMALL)
    rows = _rows(figure)
    gap = BAR_GAP if any(map(_has_colour_bar, figure.panels)) else GAP
    top = EDGE + LINE * len(titles) + SMALL_LINE * len(settings) + 0.06
    height = top + sum(row.above + figure.height + row.below for row in rows) + LEGEND * bool(figure.keys) + EDGE
    drawing = Drawing(figsize=(WIDTH, height), facecolor="white")
    sheet = _Sheet(drawing, WIDTH, height)
    sheet.write(titles, EDGE, height - EDGE, fontsize=TITLE, weight="bold", va="top")
    sheet.write(settings, EDGE, height - EDGE - LINE * len(titles) - 0.03, fontsize=SMALL, color="0.35", va="top")
    y = height - top
    for row in rows:
        y -= row.above + figure.height
        width = (WIDTH - row.left - row.right - (figure.columns - 1) * gap) / figure.columns
        for n, (panel, words) in enumerate(zip(row.panels, row.titles, strict=True)):
            x = row.left + n * (width + gap)
            box = Box(x, y, width, figure.height)
            ax = sheet.axes(box)
            _panel(ax, panel, label_x=row.below > TICKS)
            above = _names_above(sheet, ax, panel, box)
            start = EDGE if n == 0 else x - 0.15
            sheet.write(words, start, y + figure.height + 0.04 + above, fontsize=TEXT, va="bottom")
            _names_beside(sheet, ax, panel, box)
        y -= row.below
    _legend(sheet, figure.keys)
    return drawing


@styled
def write(figure: Figure, path: Path) -> None:
    """Write a figure in the format that its suffix names, png, svg or pdf; the same figure gives the same file."""
    draw(figure).savefig(path, metadata=UNDATED.get(path.suffix.lstrip(".")))


def _rows(figure: Figure) -> list[Row]:
    """Return the rows of panels; the label of x stands below the last one only where all share it."""
    shared = len({panel.x.label for panel in figure.panels}) == 1
    found = []
    for start in range(0, len(figure.panels), figure.columns):
        panels = figure.panels[start : start + figure.columns]
        titles = [wrap(panel.title, WIDTH / figure.columns - EDGE, TEXT) for panel in panels]
        above = LINE * max(map(len, titles)) + 0.06 + max(map(_above, panels))
        last = start + figure.columns >= len(figure.panels)
        labelled = any(panel.x.label for panel in panels) and (last or not shared)
        alike = panels if _has_bars(panels[0]) else [panel for panel in figure.panels if not _has_bars(panel)]
        margins = max(map(_left, alike)), max(map(_right, alike))
        found.append(Row(panels, titles, above, TICKS + LABEL * labelled, *margins))
    return found


def _has_bars(panel: Panel) -> bool:
    """Return whether a panel has bars, whose labels need a margin of their own."""
    return any(isinstance(item, Bars) for item in panel.items)


def _has_colour_bar(panel: Panel) -> bool:
    return any(isinstance(item, HeatMap) and item.label for item in panel.items)


def _panel(ax: Axes, panel: Panel, label_x: bool) -> None:
    """Draw the items of a panel on axes that are set before, because some items ask for their limits."""
    _set(ax, "x", panel.x, label_x)
    _set(ax, "y", panel.y, True)
    ax.grid(visible=not any(isinstance(item, (HeatMap, Bars)) for item in panel.items), axis="y")
    levels: dict[float, int] = {}
    for item in panel.items:
        if isinstance(item, Cross):
            levels[item.x] = levels.get(item.x, -1) + 1
            style: dict[str, Any] = {"marker": "x", "ms": 3, "mew": 0.8, "color": item.ink.colour, "ls": ""}
            ax.plot([item.x], [0.98 - CROSS_LEVEL * levels[item.x]], transform=ax.get_xaxis_transform(), **style)
        elif not isinstance(item, Note):
            DRAWN[type(item)](ax, item)
    _notes(ax, [item for item in panel.items if isinstance(item, Note)])
    if panel.empty:
        ax.text(0.5, 0.5, panel.empty, transform=ax.transAxes, ha="center", va="center", color="0.35")


def _set(ax: Axes, side: str, axis: Axis, labelled: bool) -> None:
    """Set scale, limits, ticks and label of one axis."""
    own = ax.xaxis if side == "x" else ax.yaxis
    (ax.set_xscale if side == "x" else ax.set_yscale)(axis.scale)
    if axis.limits:
        (ax.set_xlim if side == "x" else ax.set_ylim)(*axis.limits)
    if axis.ticks:
        own.set_ticks([value for value, _ in axis.ticks], [words for _, words in axis.ticks])
    own.set_minor_locator(NullLocator())
    own.set_minor_formatter(NullFormatter())
    if labelled:
        own.set_label_text(axis.label)


def _curve(ax: Axes, curve: Curve) -> None:
    faint = curve.role == "context"
    style: dict[str, Any] = {
        "color": curve.ink.colour,
        "marker": "" if faint and curve.joined else MARKERS[curve.ink.marker],
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


def _band(ax: Axes, band: Band) -> None:
    ax.fill_between(band.x, band.lower, band.upper, color=band.colour, alpha=0.16, linewidth=0, zorder=1.5)  # type: ignore[arg-type]


def _rule(ax: Axes, rule: Rule) -> None:
    line = ax.axvline if rule.side == "x" else ax.axhline
    line(rule.value, color=rule.ink.colour, ls=DASHES[rule.ink.dash], lw=0.7, zorder=1.7)


def _span(ax: Axes, span: Span) -> None:
    area = ax.axvspan if span.side == "x" else ax.axhspan
    area(span.low, span.high, color=span.colour, alpha=0.18, lw=0, zorder=1)


def _bars(ax: Axes, bars: Bars) -> None:
    places = np.arange(len(bars.labels))[::-1]
    for place, bounds in zip(places, bars.ranges, strict=False):
        if bounds and np.isfinite(bounds).all():
            ax.barh(place, bounds[1] - bounds[0], left=bounds[0], height=0.8, color="0.86", linewidth=0)
    ax.barh(places, np.nan_to_num(bars.values), height=0.5, color=bars.colours)
    for place, value, words in zip(places, bars.values, bars.words, strict=True):
        at = (0.0 if math.isnan(value) else value, place)
        style: dict[str, Any] = {"style": "italic", "color": "0.4"} if math.isnan(value) else {}
        ax.annotate(words, at, (3, 0), textcoords="offset points", va="center", fontsize=SMALL, **style)
    ax.set_yticks(places, [shorten(label, WIDTH * 0.42, SMALL) for label in bars.labels])
    ax.set_ylim(-0.6, len(places) - 0.4)


def _stack(ax: Axes, stack: Stack) -> None:
    base = np.zeros(len(stack.places))
    for name, values in stack.parts.items():
        ax.bar(stack.places, values, bottom=base, color=stack.colours[name], width=stack.width, linewidth=0)
        base += np.asarray(values, float)


def _heat_map(ax: Axes, found: HeatMap) -> None:
    norm = (LogNorm if found.scale == "log" else Normalize)(found.low, found.high)
    style = {"norm": norm, "cmap": "viridis", "shading": "nearest", "rasterized": True}
    drawn = ax.pcolormesh(found.x, found.y, np.clip(found.values, found.low, found.high), **style)
    if found.label:
        bar = ax.figure.colorbar(drawn, cax=ax.inset_axes((1.05, 0, 0.06, 1)))
        bar.outline.set_visible(False)  # type: ignore[operator]
        ticks = log_ticks(found.low, found.high) if found.scale == "log" else linear_ticks(found.low, found.high)
        bar.set_ticks([value for value, _ in ticks], labels=[words for _, words in ticks])
        bar.ax.minorticks_off()
        bar.ax.set_xlabel(found.label, loc="left", labelpad=5)


DRAWN: dict[type, Callable[[Axes, Any], None]] = {
    Band: _band, Bars: _bars, Curve: _curve, HeatMap: _heat_map, Rule: _rule, Span: _span, Stack: _stack,
}  # fmt: skip


def _notes(ax: Axes, notes: Sequence[Note]) -> None:
    """Write words near points, moved to where they strike neither lines nor each other."""
    lines = [_dense(ax, line) for line in ax.lines]
    for note in notes:
        if note.ring:
            ax.plot([note.x], [note.y], "o", ms=7, mfc="none", mec=note.colour, mew=0.7)
    texts = [ax.text(note.x, note.y, note.words, fontsize=SMALL, color=note.colour) for note in notes if note.words]
    if not texts:
        return
    from adjustText import adjust_text

    x, y = np.concatenate(lines).T if lines else (None, None)
    arrow = {"arrowstyle": "-", "color": "0.6", "lw": 0.4}
    adjust_text(texts, x, y, ax=ax, expand=(1.1, 1.3), arrowprops=arrow, iter_lim=300)


def _dense(ax: Axes, line: Line2D, step: float = 4.0) -> np.ndarray:
    """Return points along a line, `step` pixels apart, in data coordinates."""
    points = line.get_transform().transform(np.column_stack([line.get_xdata(orig=False), line.get_ydata(orig=False)]))
    points = points[np.isfinite(points).all(axis=1)]
    if len(points) < 2 or line.get_linestyle() == "None":
        return ax.transData.inverted().transform(points)
    lengths = np.r_[0, np.cumsum(np.hypot(*np.diff(points, axis=0).T))]
    at = np.arange(0, lengths[-1], step)
    spread = np.column_stack([np.interp(at, lengths, points[:, n]) for n in (0, 1)])
    return ax.transData.inverted().transform(spread)


# --- names in the margins


class Box(NamedTuple):
    """The place of a panel, in inches from the lower left corner of the figure."""

    x: float
    y: float
    width: float
    height: float


class _Sheet(NamedTuple):
    """A figure on which places are given in inches."""

    figure: Drawing
    width: float
    height: float

    def axes(self, box: Box) -> Axes:
        return self.figure.add_axes(
            (box.x / self.width, box.y / self.height, box.width / self.width, box.height / self.height)
        )

    def write(self, lines: Sequence[str], x: float, y: float, **style: Any) -> None:
        if any(lines):
            self.figure.text(x / self.width, y / self.height, "\n".join(lines), linespacing=1.15, **style)

    def line(self, x: Sequence[float], y: float, **style: Any) -> None:
        places = [value / self.width for value in x]
        self.figure.add_artist(Line2D(places, [y / self.height] * len(places), **style))


class Name(NamedTuple):
    """A name for a margin: its lines of text, its ink, and where it wants to stand, in inches along the margin."""

    lines: list[str]
    ink: Ink
    joined: bool
    at: float


def _named(panel: Panel) -> list[Curve | Rule]:
    """Return what has a name right of the panel: curves, rules across it, and parts of the last bar of a stack."""
    parts = [part for item in panel.items if isinstance(item, Stack) for part in _parts(item)]
    return parts + [
        item
        for item in panel.items
        if (isinstance(item, Curve) and item.label and np.isfinite(np.asarray(item.y, float)).any())
        or (isinstance(item, Rule) and item.side == "y" and item.label)
    ]


def _parts(stack: Stack) -> list[Curve]:
    """Return a point in the middle of each part of the last bar, to name the part there."""
    found, base = [], 0.0
    for name, values in stack.parts.items():
        ink = Ink(stack.colours[name], "square")
        found.append(Curve(name, [stack.places[-1]], [base + values[-1] / 2], ink, joined=False))
        base += values[-1]
    return found


def _names_beside(sheet: _Sheet, ax: Axes, panel: Panel, box: Box) -> None:
    """Write the names of lines right of a panel, near where they end, with a sample of the line before each."""
    names = []
    for item in _named(panel):
        y = item.value if isinstance(item, Rule) else [value for value in item.y if math.isfinite(value)][-1]
        part = float(ax.transAxes.inverted().transform(ax.transData.transform((ax.get_xlim()[1], y)))[1])
        lines = wrap(item.label, MOST_MARGIN - HANDLE - 0.06, SMALL, most=2)
        names.append(Name(lines, item.ink, getattr(item, "joined", True), box.y + min(max(part, 0), 1) * box.height))
    names.sort(key=lambda name: name.at)
    sizes = [SMALL_LINE * len(name.lines) + 0.02 for name in names]
    start = box.x + box.width + 0.05
    for name, y in zip(names, spread([name.at for name in names], sizes, box.y, box.y + box.height), strict=True):
        style: dict[str, Any] = {"color": name.ink.colour, "ls": DASHES[name.ink.dash] if name.joined else ""}
        sheet.line([start, start + HANDLE], y, lw=1.1, **style)
        sheet.line([start + HANDLE / 2], y, marker=MARKERS[name.ink.marker], ms=3.4, color=name.ink.colour)
        sheet.write(name.lines, start + HANDLE + 0.04, y, fontsize=SMALL, va="center", color=_readable(name.ink.colour))


def _names_above(sheet: _Sheet, ax: Axes, panel: Panel, box: Box) -> float:
    """Write the names of upright rules above a panel; returns the inches that they take."""
    rules = [item for item in panel.items if isinstance(item, Rule) and item.side == "x" and item.label]
    places = [box.x + box.width * float(_part(ax, rule.value)) for rule in rules]
    order = sorted(range(len(rules)), key=places.__getitem__)
    sizes = [text_width(rules[n].label, SMALL) + 0.06 for n in order]
    for n, x in zip(order, spread([places[n] for n in order], sizes, box.x - 0.2, WIDTH - EDGE), strict=True):
        style: dict[str, Any] = {"fontsize": SMALL, "ha": "center", "va": "bottom"}
        sheet.write([rules[n].label], x, box.y + box.height + 0.03, color=_readable(rules[n].ink.colour), **style)
    return _above(panel)


def _part(ax: Axes, x: float) -> float:
    return ax.transAxes.inverted().transform(ax.transData.transform((x, ax.get_ylim()[0])))[0]


def _left(panel: Panel) -> float:
    """Return the inches left of a panel that ticks and label of y take."""
    labels = [words for _, words in panel.y.ticks]
    for item in panel.items:
        if isinstance(item, Bars):
            labels = [shorten(label, WIDTH * 0.42, SMALL) for label in item.labels]
    widest = max((text_width(label, SMALL) for label in labels), default=0.2)
    return EDGE + widest + 0.06 + (0.13 if panel.y.label else 0.0)


def _right(panel: Panel) -> float:
    """Return the inches right of a panel that names of lines, or a colour bar, take."""
    if _has_colour_bar(panel):
        return 0.55
    lines = [wrap(item.label, MOST_MARGIN - HANDLE - 0.06, SMALL, most=2) for item in _named(panel)]
    widest = max((text_width(line, SMALL) for label in lines for line in label), default=0.0)
    return widest + HANDLE + 0.05 + 0.06 + EDGE if lines else 0.12


def _above(panel: Panel) -> float:
    named = any(isinstance(item, Rule) and item.side == "x" and item.label for item in panel.items)
    return SMALL_LINE if named else 0.0


def _readable(colour: str) -> str:
    """Return the ink for words of a colour: darker where it is too light to read on white."""
    red, green, blue = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    light = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    factor = min(1.0, 0.42 / light) if light else 1.0
    return "#" + "".join(f"{round(255 * factor * channel):02x}" for channel in (red, green, blue))


def _legend(sheet: _Sheet, keys: Sequence[Key]) -> None:
    """Draw the legend below the panels, in one row; the longest words are cut where it does not fit."""
    widths = [text_width(key.words, SMALL) for key in keys]
    room = WIDTH - 2 * EDGE - len(keys) * (HANDLE + 0.14)
    x, y = EDGE, EDGE + 0.06
    for key, width in zip(keys, widths, strict=True):
        longest = room - sum(widths) + width if width == max(widths) else width
        words = shorten(key.words, max(longest, 0.3), SMALL)
        if key.kind == "area":
            corner = (x / sheet.width, (y - 0.035) / sheet.height)
            size = (HANDLE / sheet.width, 0.07 / sheet.height)
            sheet.figure.add_artist(Rectangle(corner, *size, color=key.ink.colour, alpha=0.3, lw=0))
        else:
            hollow: dict[str, Any] = {"markerfacecolor": "white"} if key.kind == "hollow" else {}
            ls = "" if key.kind == "hollow" else DASHES[key.ink.dash]
            sheet.line([x, x + HANDLE], y, color=key.ink.colour, ls=ls, lw=1.1)
            style: dict[str, Any] = {"marker": MARKERS[key.ink.marker], "ms": 3.4, "mew": 0.6, "color": key.ink.colour}
            sheet.line([x + HANDLE / 2], y, **style, **hollow)
        sheet.write([words], x + HANDLE + 0.04, y, fontsize=SMALL, va="center")
        x += HANDLE + 0.14 + text_width(words, SMALL)


# --- words


EQUALS = re.compile(r"(?<!=) (?!=)")  # a space that is not beside an equals sign


def wrap(text: str, width: float, size: float, most: int | None = None, bold: bool = False) -> list[str]:
    """Return a text in lines of at most `width` inches; what does not fit into `most` lines is cut off with "…".

    A line never ends at an equals sign.
    """
    lines = [""]
    for word in EQUALS.split(text):
        longer = f"{lines[-1]} {word}".strip()
        if text_width(longer, size, bold) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    if most and len(lines) > most:
        lines = [*lines[: most - 1], " ".join(lines[most - 1 :])]
    return [shorten(line, width, size, bold) for line in lines if line]


def shorten(text: str, width: float, size: float, bold: bool = False) -> str:
    """Return a text of at most `width` inches, its end replaced by "…" where it is longer."""
    if text_width(text, size, bold) <= width:
        return text
    while text and text_width(f"{text}…", size, bold) > width:
        text = text[:-1]
    return f"{text.rstrip()}…"


@cache
def text_width(text: str, size: float, bold: bool = False) -> float:
    """Return the inches that a text takes at a size in points."""
    if not text.strip():
        return 0.0
    font = FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal", size=size)
    return text_to_path.get_text_width_height_descent(text, font, ismath=False)[0] / 72 + 0.01
