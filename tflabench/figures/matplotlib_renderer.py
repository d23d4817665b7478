"""Draw the model of a figure with matplotlib: 85 mm wide, one column of a paper, with panels below each other.

Names of lines stand in the margin right of a panel, in the order of the lines, so that no line can strike a name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize, to_hex, to_rgb
from matplotlib.figure import Figure as Drawing
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import NullLocator

from tflabench.figures import model
from tflabench.figures.axes import CROSS_LEVEL, linear_ticks, log_ticks, spread
from tflabench.figures.captions import shorten
from tflabench.figures.model import Axis, Bars, Cross, Curve, Figure, HeatMap, Ink, Key, Note, Panel, Rule, Stack

WIDTH = 85 / 25.4  # inches
EDGE, GAP = 0.05, 0.12  # inches: around the figure, between panels of a row
LEGEND, SMALL_LINE = 0.14, 0.1  # inches from one line of text to the next
TITLE, TEXT, SMALL = 7.5, 6.5, 6.0  # points
NAME, KEYS = 20, 60  # letters of a line of a name beside a panel, and of the legend
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
    "legend.handlelength": 2.4,
    "legend.handletextpad": 0.5,
    "legend.columnspacing": 1.4,
    "savefig.dpi": 300,
    "svg.hashsalt": "tflabench",  # the same figure gives the same file
    "pdf.fonttype": 42,
}
for _side in ("xtick", "ytick"):
    STYLE |= {f"{_side}.labelsize": SMALL, f"{_side}.major.width": 0.5}
    STYLE |= {f"{_side}.major.size": 2.0, f"{_side}.major.pad": 2.0}
styled = matplotlib.rc_context(STYLE)
UNDATED: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
MARKERS = {
    "": "", "circle": "o", "square": "s", "triangle-up": "^", "diamond": "D", "triangle-down": "v", "pentagon": "p",
    "cross": "P", "hexagon": "h", "star": "*", "triangle-left": "<", "triangle-right": ">", "x": "X",
}  # fmt: skip
CROSSED: dict[str, Any] = {"marker": "x", "ms": 3, "mew": 0.8, "ls": ""}
DASHES: dict[str, Any] = {"solid": "-", "dash": (0, (4, 1.2)), "dot": (0, (1.2, 1)), "dashdot": (0, (5, 1.2, 1.2, 1.2))}


@styled
def draw(figure: Figure) -> Drawing:
    """Return the figure drawn, as high as its panels need: they are placed when the room that words take is known."""
    drawing = Drawing(figsize=(WIDTH, figure.height), facecolor="white")
    rows = [figure.panels[start : start + figure.columns] for start in range(0, len(figure.panels), figure.columns)]
    shared = len({panel.x.label for panel in figure.panels}) == 1
    axes = [[_panel(drawing, panel, not shared or row is rows[-1]) for panel in row] for row in rows]
    left, below, right = _margins(rows, axes)
    title = _text(drawing, figure.title, WIDTH - 2 * EDGE, fontsize=TITLE, weight="bold", va="top")
    setting = _text(drawing, figure.setting, WIDTH - 2 * EDGE, fontsize=SMALL, color="0.35", va="top")
    width = WIDTH / figure.columns - 2 * EDGE
    heads = [[_text(drawing, panel.title, width, fontsize=TEXT, va="bottom") for panel in row] for row in rows]
    named = [0.04 + SMALL_LINE * any(_upright(panel) for panel in row) for row in rows]
    above = [max(map(_height, row)) + room + 0.02 for row, room in zip(heads, named, strict=True)]
    top = EDGE + _height(title) + _height(setting) + 0.07
    legend = LEGEND * _legend(drawing, figure.keys)
    height = top + sum(above) + len(rows) * figure.height + below.max(axis=1).sum() + legend + EDGE
    drawing.set_size_inches(WIDTH, height)
    title.set_y(1 - EDGE / height)
    setting.set_y(1 - (EDGE + _height(title) + 0.03) / height)
    y = height - top
    for n, row in enumerate(axes):
        y -= above[n] + figure.height
        x, width = EDGE, (WIDTH - 2 * EDGE - (left + right)[n].sum() - GAP * (figure.columns - 1)) / figure.columns
        for m, ax in enumerate(row):
            heads[n][m].set_position((x / WIDTH, (y + figure.height + named[n]) / height))
            ax.set_position(((x + left[n, m]) / WIDTH, y / height, width / WIDTH, figure.height / height))
            _names_above(ax, rows[n][m])
            _notes(ax, [item for item in rows[n][m].items if isinstance(item, Note)])
            x += left[n, m] + width + right[n, m] + GAP
        y -= below[n].max()
    return drawing


@styled
def write(figure: Figure, path: Path) -> None:
    """Write a figure in the format that its suffix names, png, svg or pdf; the same figure gives the same file."""
    draw(figure).savefig(path, metadata=UNDATED.get(path.suffix.lstrip(".")))


def _margins(rows: Sequence[Sequence[Panel]], axes: Sequence[Sequence[Axes]]) -> np.ndarray:
    """Return the inches left of, below and right of each panel that its words take, of shape (side, row, column).

    Rows share them left and right; those with bars, whose labels are long, among themselves.
    """
    boxes = [[(ax.get_tightbbox(), ax.bbox) for ax in row] for row in axes]
    found = np.array([[(b.x0 - o.x0, b.y0 - o.y0, o.x1 - b.x1) for o, b in row] for row in boxes])  # type: ignore[union-attr]
    bars = np.array([any(isinstance(item, Bars) for item in row[0].items) for row in rows])
    for alike in (bars, ~bars):
        found[alike, :, ::2] = found[alike, :, ::2].max(axis=0, initial=0)
    return found.transpose(2, 0, 1) / axes[0][0].figure.dpi


def _text(drawing: Drawing, words: str, inches: float, **style: Any) -> Text:
    """Return words in lines of at most `inches`; none ends at an equals sign."""
    text = drawing.text(EDGE / WIDTH, 0, words, linespacing=1.15, **style)
    lines = text.get_window_extent().width / drawing.dpi / inches
    for letters in range(int(1.15 * len(words) / max(lines, 1)), 8, -1):
        text.set_text("\n".join(wrap(words.replace(" = ", "\u00a0=\u00a0"), letters, break_on_hyphens=False)))
        if text.get_window_extent().width <= inches * drawing.dpi:
            break
    return text


def _height(text: Text) -> float:
    """Return the inches that a text is high."""
    return text.get_window_extent().height / text.figure.dpi  # type: ignore[union-attr]


def _panel(drawing: Drawing, panel: Panel, label_x: bool) -> Axes:
    """Return a panel drawn but for its notes, on axes that are set before: some items ask for their limits."""
    ax = drawing.add_axes((0.3, 0, 0.4, 1))
    _set(ax, "x", panel.x, label_x)
    _set(ax, "y", panel.y, True)
    ax.grid(visible=not any(isinstance(item, (HeatMap, Bars)) for item in panel.items), axis="y")
    for item in panel.items:
        if not isinstance(item, Note):
            DRAWN[type(item)](ax, item)
    if panel.empty:
        ax.text(0.5, 0.5, panel.empty, transform=ax.transAxes, ha="center", va="center", color="0.35")
    _names_beside(ax, panel)
    return ax


def _set(ax: Axes, side: str, axis: Axis, labelled: bool) -> None:
    """Set scale, limits, ticks and label of one axis."""
    own = ax.xaxis if side == "x" else ax.yaxis
    ax.set(**{f"{side}scale": axis.scale, f"{side}label": axis.label if labelled else ""})
    if axis.limits:
        ax.set(**{f"{side}lim": axis.limits})
    if axis.ticks:
        own.set_ticks([value for value, _ in axis.ticks], [words for _, words in axis.ticks])
    own.set_minor_locator(NullLocator())


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


def _span(ax: Axes, span: model.Span) -> None:
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
        said = ax.annotate(words, at, (3, 0), textcoords="offset points", va="center", fontsize=SMALL, **style)
        said.set_in_layout(False)  # the axis leaves room for it


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
    model.Band: _band, Bars: _bars, Cross: _cross, Curve: _curve, HeatMap: _heat_map, Rule: _rule, model.Span: _span,
    Stack: _stack,
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


def _dense(ax: Axes, line: Line2D) -> np.ndarray:
    """Return some hundred points along a line, in data coordinates."""
    path = line.get_path().transformed(line.get_transform())
    if line.get_linestyle() != "None":
        path = path.interpolated(200 // np.shape(path.vertices)[0] + 1)
    points = np.asarray(path.vertices, float)
    return ax.transData.inverted().transform(points[np.isfinite(points).all(axis=1)])


# --- names in the margins


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


def _names_beside(ax: Axes, panel: Panel) -> None:
    """Write the names of lines right of a panel, near where they end, with a sample of the line before each."""
    height = ax.bbox.height / ax.figure.dpi
    names = []
    for item in _named(panel):
        y = item.value if isinstance(item, Rule) else [value for value in item.y if math.isfinite(value)][-1]
        part = ax.transAxes.inverted().transform(ax.transData.transform((ax.get_xlim()[1], y)))[1]
        names.append(
            (
                height * min(max(float(part), 0.0), 1.0),
                wrap(item.label, NAME, max_lines=2, placeholder="…", break_on_hyphens=False),
                item,
            )
        )
    names.sort(key=lambda name: name[0])
    sizes = [SMALL_LINE * len(lines) + 0.02 for _, lines, _ in names]
    places = spread([place for place, *_ in names], sizes, 0.0, height)
    for (_, lines, item), y in zip(names, places, strict=True):
        handle = _sample(item.ink, "line" if isinstance(item, Rule) or item.joined else "points")
        style: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, y / height)}
        name = Legend(ax, [handle], ["\n".join(lines)], labelcolor=_readable(item.ink.colour), **style)
        name.set_clip_on(False)
        ax.add_artist(name)


def _upright(panel: Panel) -> list[Rule]:
    """Return the rules that have a name above the panel, from left to right."""
    named = [item for item in panel.items if isinstance(item, Rule) and item.side == "x" and item.label]
    return sorted(named, key=lambda rule: rule.value)


def _names_above(ax: Axes, panel: Panel) -> None:
    """Write the names of upright rules above a panel, clear of each other."""
    style: dict[str, Any] = {"textcoords": "offset points", "fontsize": SMALL, "ha": "center", "va": "bottom"}
    texts = [
        ax.annotate(
            rule.label, (rule.value, 1), (0, 2), ax.get_xaxis_transform(), color=_readable(rule.ink.colour), **style
        )
        for rule in _upright(panel)
    ]
    boxes, points = [text.get_window_extent() for text in texts], 72 / ax.figure.dpi
    wanted = [(box.x0 + box.x1) / 2 for box in boxes]
    widths = [box.width + 4 / points for box in boxes]
    for text, x, place in zip(
        texts, wanted, spread(wanted, widths, ax.bbox.x0 - 14 / points, ax.figure.bbox.width), strict=True
    ):
        text.xyann = ((place - x) * points, 2)


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


def _legend(drawing: Drawing, keys: Sequence[Key]) -> int:
    """Draw the legend below the panels, and return in how many rows: in one, if it fits."""
    handles = [
        Patch(color=key.ink.colour, alpha=0.3, lw=0) if key.kind == "area" else _sample(key.ink, key.kind)
        for key in keys
    ]
    words = [shorten(key.words, KEYS) for key in keys]
    columns = len(keys)
    while columns:
        legend = drawing.legend(
            handles, words, loc="lower left", ncols=columns, handlelength=2.4 if columns < 3 else 1.3
        )
        if columns == 1 or legend.get_window_extent().width <= (WIDTH - 2 * EDGE) * drawing.dpi:
            break
        legend.remove()
        columns -= 1
    return -(-len(keys) // columns) if columns else 0
