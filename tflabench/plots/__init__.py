"""Figures of stored rows: runtime and memory over every swept axis, the chunk-size trade-off, the roofline. No torch.

A figure is one file: an axis and one setting of everything else, with a panel a pass. An implementation keeps its
colour, marker and line style in every figure: the colour says what it computes (Okabe-Ito, safe for the colour-blind),
its shade, marker and dashes say which implementation. What was not measured is marked and listed, never left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import TextPath
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from tflabench.analysis.hardware import Ceilings, from_device_name
from tflabench.analysis.roofline import attainable
from tflabench.problem import InputError
from tflabench.registry import implementations, nearest
from tflabench.store import read_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Any  # a pandas DataFrame, columns as store.Row: pandas infers the types of columns too loosely to check
WHAT = ("runtime", "memory", "chunk", "roofline")
FORMATS = ("png", "svg", "pdf")

# Column of a row -> axis label. In this order axes are drawn; one that follows from those before it is not.
AXES = {
    "seq_len": "sequence length T [tokens]",
    "d_hv": "head dimension $d_{hv}$ [channels]",
    "d_qk": "head dimension $d_{qk}$ [channels]",
    "chunk_size": "chunk size L [tokens]",
    "heads": "number of heads",
    "batch": "batch size [sequences]",
    "dtype": "data type",
}
PASS_TITLES = {"fw": "forward", "fwbw": "forward + backward", "decode": "decode, one step"}

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 7,
    "axes.labelsize": 7,
    "axes.titlesize": 7,
    "axes.titlepad": 4,
    "axes.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.4,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "ytick.minor.width": 0.3,
    "ytick.minor.size": 1.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.6,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "savefig.dpi": 300,
    "svg.hashsalt": "tflabench",  # the same rows give the same file
    "pdf.fonttype": 42,
}
UNDATED: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
NOTE_SIZE, FOOTER_SIZE = 5.8, 5.0
COLUMN_WIDTH, PAGE_WIDTH = 3.5, 7.0  # inches: one and two columns of a paper
PANEL_HEIGHT = 2.0
MOST_IN_A_COLUMN = 10  # implementations whose legend fits under a panel of column width
LEFT, RIGHT, GAP, EDGE = 0.58, 0.1, 0.5, 0.07
X_LABEL_HEIGHT = 0.42  # of tick labels and label under a panel

# Okabe-Ito: what is computed -> colour.
COLOURS = {
    ("mlstm", "sig"): "#D55E00",
    ("mlstm", "exp"): "#0072B2",
    ("mlstm", ""): "#56B4E9",
    ("attention", ""): "#000000",
    ("linear_attention", ""): "#009E73",
    ("ssm", ""): "#CC79A7",
}
OTHER_COLOUR = "#E69F00"
ROOF_COLOUR = "0.25"
SHADES = (0.0, -0.35, 0.3)  # none, towards black, towards white
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
DASHES = ("-", (0, (4, 1.2)), (0, (1.2, 1)), (0, (5, 1.2, 1.2, 1.2)))


@dataclass(frozen=True)
class Look:
    """How one implementation is drawn in every figure."""

    title: str
    colour: tuple[float, float, float]
    marker: str
    dashes: Any
    kind: tuple[str, str]  # (family, gate): what shares a colour and a cost model

    def line(self, **changes: Any) -> dict[str, Any]:
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.dashes,
            "markeredgewidth": 0.7,
            **changes,
        }


def looks(rows: Rows) -> dict[str, Look]:
    """The look of every implementation in rows, by name, in the order legends use: the registry's, then by name.

    An implementation's place among all registered ones of its family and gate fixes its shade, marker and dashes, so
    that it looks the same in every results folder.
    """
    found = {}
    for row in rows.drop_duplicates("implementation").sort_values("implementation").to_dict("records"):
        found[row["implementation"]] = (str(row["title"]), (str(row["family"]), row["gate"] or ""))
    registered = {impl.name: (impl.title, (impl.family, impl.gate or "")) for impl in implementations()}
    table, members = {}, dict[tuple[str, str], int]()
    for name, (_, kind) in {**registered, **found}.items():
        place = members[kind] = members.get(kind, -1) + 1
        if name in found:
            table[name] = Look(
                title=found[name][0],
                colour=_shade(_colour(kind), SHADES[place % len(SHADES)]),
                marker=MARKERS[place % len(MARKERS)],
                dashes=DASHES[place % len(DASHES)],
                kind=kind,
            )
    return table


def _colour(kind: tuple[str, str]) -> str:
    return COLOURS.get(kind) or COLOURS.get((kind[0], ""), OTHER_COLOUR)


def _shade(colour: str, amount: float) -> tuple[float, float, float]:
    target = 1.0 if amount > 0 else 0.0
    red, green, blue = ((1 - abs(amount)) * channel + abs(amount) * target for channel in to_rgb(colour))
    return red, green, blue


# --- which figures the rows make ---------------------------------------------------------------------------------


def drawable(rows: Rows) -> Rows:
    """Rows with plain floats where integers can be missing, and `chunk_asked`: the chunk size asked for, or "auto".

    Two rows that differ only in whether L was asked for or chosen by the implementation belong to different curves.
    """
    rows = rows.reset_index(drop=True)
    numbers = {
        name: float for name in rows.columns if pd.api.types.is_numeric_dtype(rows[name]) and rows[name].dtype != bool
    }
    rows = rows.astype({name: kind for name, kind in numbers.items() if rows[name].dtype != "boolean"})
    flags = {name: rows[name].astype("boolean").fillna(False).astype(bool) for name in ("noisy", "throttled")}
    auto = rows["point"].str.contains("/Lauto/") & rows["chunk_size"].notna()
    asked = rows["chunk_size"].map(_plain, na_action="ignore").astype(object).mask(auto, "auto")
    return rows.assign(**flags, gate=rows["gate"].astype(object).where(rows["gate"].notna(), None), chunk_asked=asked)


@dataclass(frozen=True)
class Slice:
    """The rows of one figure: `axis` varies, `setting` is what tells this figure from its siblings."""

    axis: str
    setting: dict[str, Any]
    rows: Rows

    @property
    def tags(self) -> list[str]:
        return [
            f"{'L' if column == 'chunk_asked' else column}_{_plain(value)}" for column, value in self.setting.items()
        ]

    @property
    def stem(self) -> str:
        return "-".join([self.axis, *self.tags])


def swept_axes(rows: Rows) -> list[str]:
    """The axes that vary within an implementation, without those that only follow another (batch at fixed tokens)."""

    def most_values(axis: str, fixed: Sequence[str]) -> int:
        return int(rows.groupby(["implementation", "pass", *fixed], dropna=False)[axis].nunique().max())

    axes: list[str] = []
    for axis in AXES:
        alone = most_values(axis, [other for other in AXES if other != axis]) > 1
        if alone or most_values(axis, axes) > 1:
            axes.append(axis)
    return axes


def slices(rows: Rows, axis: str) -> list[Slice]:
    """One Slice a setting of the columns that vary while `axis` stays; rows without such a column join all of them.

    Settings with fewer than two values of `axis` make no figure, unless there is nothing else.
    """
    if axis == "chunk_size":  # an L that was asked for and also chosen is one point here
        rows = rows.drop_duplicates(["implementation", "pass", *AXES], keep="last")
        others = [column for column in AXES if column != axis]
    else:
        others = [*(column for column in AXES if column not in (axis, "chunk_size")), "chunk_asked"]
    spread = rows.groupby(["implementation", "pass", axis], dropna=False)[others].nunique().max()
    split = [column for column in others if spread[column] > 1]
    if not split:
        return [Slice(axis, {}, rows)]
    owned = rows[rows[split].notna().all(axis=1)]
    found = []
    for setting in owned[split].drop_duplicates().sort_values(split).to_dict("records"):
        match = np.logical_and.reduce(
            [(rows[column] == value) | rows[column].isna() for column, value in setting.items()]
        )
        found.append(Slice(axis, {str(column): value for column, value in setting.items()}, rows[match]))
    curves = [part for part in found if part.rows.loc[part.rows.index.isin(owned.index), axis].nunique() > 1]
    return _shortest_settings(curves or found)


def _shortest_settings(parts: list[Slice]) -> list[Slice]:
    """The same slices, each setting cut down to the columns needed to tell them apart."""
    kept: list[str] = []

    def distinct(columns: list[str]) -> int:
        return len({tuple(part.setting[column] for column in columns) for part in parts})

    for column in parts[0].setting:
        if distinct([*kept, column]) > distinct(kept):
            kept.append(column)
    return [Slice(part.axis, {column: part.setting[column] for column in kept}, part.rows) for part in parts]


# --- runtime and memory over an axis ------------------------------------------------------------------------------


class Quantity(NamedTuple):
    """A measured column as figures show it, with the columns of its spread and of its theory where it has them."""

    column: str
    label: str
    units: tuple[tuple[str, float], ...]  # (unit, size), smallest first
    spread: tuple[str, str] | None = None
    theory: tuple[str, str] | None = None


RUNTIME = Quantity(
    "ms_median",
    "median runtime",
    (("µs", 1e-3), ("ms", 1.0), ("s", 1e3)),
    ("ms_p20", "ms_p80"),
    ("model_ms_lower", "model_ms_upper"),
)
MEMORY = Quantity("peak_bytes", "peak memory", (("KiB", 2.0**10), ("MiB", 2.0**20), ("GiB", 2.0**30)))


def curves(part: Slice, quantity: Quantity, looks: dict[str, Look], footer: str) -> Figure:
    """`quantity` over the axis of a slice: a panel a pass, a line an implementation, theory as a band in its colour.

    Open markers are rows flagged noisy or throttled, whiskers the 20th to 80th percentile; crosses at the top stand for
    points that were asked for and not measured, and the note below names their status.
    """
    if part.axis == "seq_len" and part.rows["seq_len"].nunique() == 1:
        return ranking(part, quantity, looks, footer)
    passes = _passes(part.rows)
    sheet = Sheet(len(passes), wide=part.rows["implementation"].nunique() > MOST_IN_A_COLUMN)
    unit, size = _unit(part.rows, quantity)
    for ax, pass_ in zip(sheet.axes, passes, strict=True):
        rows = part.rows[part.rows["pass"] == pass_]
        ax.set_title(PASS_TITLES.get(pass_, pass_))
        position = _x_axis(ax, part)
        if quantity.theory:
            _theory(ax, rows, part.axis, position, quantity.theory, size, looks)
        for name, look in looks.items():
            own = rows[rows["implementation"] == name]
            _curve(ax, own, part.axis, position, quantity, size, look)
        _y_axis(ax, rows, part.axis, position, looks)
        _say_if_empty(ax, rows.loc[rows["status"] == "ok", quantity.column])
    sheet.axes[0].set_ylabel(f"{quantity.label} [{unit}]")
    handles = [
        Line2D([], [], label=_label(look, name, part.rows), **look.line()) for name, look in _measured(part.rows, looks)
    ]
    keys = _keys(part.rows) if quantity is RUNTIME else []
    sheet.finish(caption(part.rows, part.axis), handles, keys, missing(part.rows, part.axis, looks), footer)
    return sheet.figure


def ranking(part: Slice, quantity: Quantity, looks: dict[str, Look], footer: str) -> Figure:
    """`quantity` at a single point: a line an implementation, its value beside the mark, theory as a bar.

    What was not measured has its status in place of the mark.
    """
    passes = _passes(part.rows)
    asked = [name for name in looks if name in set(part.rows["implementation"])][::-1]
    names = [_label(looks[name], name, part.rows) for name in asked]
    left = max(_width(name, 6.5) for name in names) + 0.2
    sheet = Sheet(len(passes), height=0.17 * len(asked) + 0.1, left=left, gap=0.15)
    unit, size = _unit(part.rows, quantity)
    done = part.rows[part.rows["status"] == "ok"]
    most = max(
        [*done[quantity.column].dropna(), *(done[quantity.theory[1]].dropna() if quantity.theory else ())] or [1]
    )
    for ax, pass_ in zip(sheet.axes, passes, strict=True):
        rows = part.rows[part.rows["pass"] == pass_].set_index("implementation")
        ax.set_title(PASS_TITLES[pass_])
        ax.set(xlim=(0, 1.16 * most / size), ylim=(-0.6, len(asked) - 0.4), xlabel=f"{quantity.label} [{unit}]")
        ax.set_yticks(range(len(asked)), names if ax is sheet.axes[0] else [""] * len(asked))
        for y, name in enumerate(asked):
            if name not in rows.index:
                continue
            row, look = rows.loc[name], looks[name]
            if quantity.theory:
                lower, upper = row[list(quantity.theory)].astype(float) / size
                ax.barh(y, upper - lower, left=lower, height=0.6, color=_colour(look.kind), alpha=0.3, linewidth=0)
            if row["status"] != "ok":
                ax.text(
                    0.01 * most / size, y, row["status"], va="center", fontsize=NOTE_SIZE, style="italic", color="0.4"
                )
                continue
            value = row[quantity.column] / size
            open_ = {"markerfacecolor": "white"} if quantity.spread and (row["noisy"] or row["throttled"]) else {}
            ax.plot(value, y, **look.line(**open_))
            ax.annotate(f"{value:.3g}", (value, y), (4, 0), textcoords="offset points", va="center", fontsize=NOTE_SIZE)
    keys = _keys(part.rows) if quantity is RUNTIME else []
    sheet.finish(f"T = {_plain(part.rows[part.axis].iloc[0])}, {caption(part.rows, part.axis)}", [], keys, [], footer)
    return sheet.figure


def _curve(ax: Axes, own: Rows, axis: str, position: Any, quantity: Quantity, size: float, look: Look) -> None:
    own = own.assign(y=own[quantity.column].where(own["status"] == "ok") / size)
    if not own["y"].notna().any():
        return
    if own[axis].isna().all():  # the axis means nothing to it (a chunk size to attention): one level for all
        ax.axhline(own["y"].median(), **look.line(marker=""))
        return
    own = own.dropna(subset=[axis]).sort_values(axis)
    x = position(own[axis])
    joined = {"linestyle": ""} if axis == "dtype" else {}  # nothing lies between two data types
    ax.plot(x, own["y"], **look.line(**joined))  # NaN where it was not measured: the line breaks there
    if quantity.spread:
        flagged = _flagged(own).to_numpy()
        ax.plot(x[flagged], own["y"][flagged], **look.line(linestyle="", markerfacecolor="white", zorder=2.2))
        low, high = (own[column] / size for column in quantity.spread)
        ax.vlines(x, low.where(own["y"].notna()), high, color=look.colour, linewidth=0.6, zorder=1.9)


def _theory(
    ax: Axes,
    rows: Rows,
    axis: str,
    position: Any,
    columns: tuple[str, str],
    size: float,
    looks: dict[str, Look],
) -> None:
    """Lower to upper bound in the colour of what it is a bound of. Bounds that agree to 5% share a band, whose edges
    then alternate between their colours."""
    bands: list[tuple[np.ndarray, np.ndarray, list[str]]] = []
    for name, look in looks.items():
        own = rows[rows["implementation"] == name].dropna(subset=[axis, *columns]).sort_values(axis)
        if own.empty:
            continue
        x, bounds, colour = position(own[axis]), own[list(columns)].to_numpy(float).T / size, _colour(look.kind)
        for at, shared, colours in bands:
            if np.array_equal(at, x) and np.allclose(shared, bounds, rtol=0.05, atol=0):
                colours += [colour] * (colour not in colours)
                break
        else:
            bands.append((x, bounds, [colour]))
    for x, (lower, upper), colours in bands:
        fill = np.mean([to_rgb(colour) for colour in colours], axis=0)
        if len(x) == 1 or axis == "dtype":
            ax.vlines(x, lower, upper, color=fill, alpha=0.25, linewidth=6)
            continue
        ax.fill_between(x, lower, upper, color=fill, alpha=0.13, linewidth=0)
        for n, colour in enumerate(colours):
            dashes = "-" if len(colours) == 1 else (6 * n, (6, 6 * (len(colours) - 1)))
            for bound in (lower, upper):
                ax.plot(x, bound, color=colour, alpha=0.5, linewidth=0.5, linestyle=dashes)


def _passes(rows: Rows) -> list[str]:
    present = set(rows["pass"])
    return [pass_ for pass_ in PASS_TITLES if pass_ in present]


def _flagged(rows: Rows) -> pd.Series:
    return (rows["noisy"] | rows["throttled"]) & (rows["status"] == "ok")


def _measured(rows: Rows, looks: dict[str, Look]) -> list[tuple[str, Look]]:
    done = set(rows.loc[rows["status"] == "ok", "implementation"])
    return [(name, look) for name, look in looks.items() if name in done]


def _unit(rows: Rows, quantity: Quantity) -> tuple[str, float]:
    """The largest unit in which the median point is at least 1."""
    middle = rows.loc[rows["status"] == "ok", quantity.column].median()
    fitting = [unit for unit in quantity.units if middle >= unit[1]]
    return fitting[-1] if fitting else quantity.units[1 if math.isnan(middle) else 0]


# --- the chunk size as a trade-off ---------------------------------------------------------------------------------


def tradeoff(part: Slice, name: str, looks: dict[str, Look], footer: str) -> Figure:
    """Runtime (left) and peak memory (right) of one implementation over its chunk size, as the paper's Fig. 5."""
    part = Slice(part.axis, part.setting, part.rows[part.rows["implementation"] == name])
    look = looks[name]
    memory_look = Look(look.title, (0.35, 0.35, 0.35), "s", DASHES[1], look.kind)
    passes = _passes(part.rows)
    sheet = Sheet(len(passes), right=0.5, gap=0.95)
    (unit, size), (memory_unit, memory_size) = _unit(part.rows, RUNTIME), _unit(part.rows, MEMORY)
    for ax, pass_ in zip(sheet.axes, passes, strict=True):
        rows = part.rows[part.rows["pass"] == pass_]
        ax.set_title(PASS_TITLES[pass_])
        position = _x_axis(ax, part)
        _theory(ax, rows, part.axis, position, ("model_ms_lower", "model_ms_upper"), size, looks)
        _curve(ax, rows, part.axis, position, RUNTIME, size, look)
        best = rows[(rows["status"] == "ok") & (rows["ms_median"] == rows["ms_median"].min())]
        ax.plot(
            best["chunk_size"],
            best["ms_median"] / size,
            marker="o",
            ms=8,
            mfc="none",
            mew=0.7,
            ls="",
            color=look.colour,
        )
        _y_axis(ax, rows, part.axis, position, looks)
        ax.set_ylabel(f"median runtime [{unit}]", color=_colour(look.kind))
        ax.tick_params(axis="y", colors=_colour(look.kind))
        right = ax.twinx()
        right.grid(visible=False)
        right.spines["right"].set_visible(True)
        _curve(right, rows, part.axis, position, MEMORY, memory_size, memory_look)
        _limits(right)
        right.set_ylabel(f"peak memory [{memory_unit}]", color=memory_look.colour)
        right.tick_params(axis="y", colors=memory_look.colour)
    handles = [
        Line2D([], [], label="runtime", **look.line()),
        Line2D([], [], label="peak memory", **memory_look.line()),
        Line2D([], [], label="least runtime", marker="o", ms=7, mfc="none", mew=0.7, ls="", color=look.colour),
    ]
    title = f"{look.title}: {caption(part.rows, part.axis)}"
    sheet.finish(title, handles, _keys(part.rows), missing(part.rows, part.axis, looks), footer)
    return sheet.figure


# --- the roofline -------------------------------------------------------------------------------------------------


def roofline(rows: Rows, roofs: Sequence[Ceilings], looks: dict[str, Look], footer: str) -> Figure:
    """Every measured point at (modelled intensity, modelled FLOPs over measured time), under the roofs of the device.

    The regions left and right of the first roof's ridge I_acc = alpha / beta are named (eqs. 117-119).
    """
    passes = _passes(rows)
    sheet = Sheet(len(passes), height=2.3)
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
    for ax, pass_ in zip(sheet.axes, passes, strict=True):
        ax.set_title(PASS_TITLES[pass_])
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
        _say_if_empty(ax, done.loc[done["pass"] == pass_, "rate"])
        for direction in (ax.xaxis, ax.yaxis):
            direction.set_major_locator(LogLocator(numticks=12))
            direction.set_major_formatter(
                FuncFormatter(lambda value, _: f"{value:,.10g}" if value < 1e5 else f"{value:.0e}")
            )
            direction.set_minor_formatter(NullFormatter())
    sheet.axes[0].set_ylabel(f"achieved rate [{unit}]")
    handles = [
        Line2D([], [], label=look.title, **look.line(linestyle="", markersize=4)) for _, look in _measured(rows, looks)
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


# --- axes ---------------------------------------------------------------------------------------------------------


def _x_axis(ax: Axes, part: Slice) -> Any:
    """Scale, ticks and label of the swept axis; returns what maps its values to x positions."""
    values = sorted(part.rows[part.axis].dropna().unique())
    ax.set_xlabel(_axis_label(part))
    ax.grid(visible=False, axis="x")
    if part.axis == "dtype":
        ax.set_xticks(range(len(values)), [str(value) for value in values])
        ax.set_xlim(-0.5, len(values) - 0.5)
        return lambda column: column.map({value: i for i, value in enumerate(values)}).to_numpy(float)
    values = [int(value) for value in values] or [1]
    steps = np.diff(values)
    if len(values) > 2 and (steps == steps[0]).all():
        margin = 0.05 * (values[-1] - values[0])
        ax.set_xlim(values[0] - margin, values[-1] + margin)
    else:
        ax.set_xscale("log", base=2)
        margin = max(values[-1] / values[0], 2**0.5) ** 0.05
        ax.set_xlim(values[0] / margin, values[-1] * margin)
    _value_ticks(ax, values)
    return lambda column: column.to_numpy(float)


def _value_ticks(ax: Axes, values: list[int]) -> None:
    """A tick at every value, labelled in full where that fits, else with Ki for 1024, else every other one."""
    ax.xaxis.set_major_locator(FixedLocator(values))
    ax.xaxis.set_minor_locator(NullLocator())
    place = ax.transLimits.transform(ax.transScale.transform([(value, 1) for value in values]))[:, 0]
    width = ax.get_position().width * ax.figure.get_size_inches()[0]  # type: ignore[union-attr]

    def fits(labels: list[str], shown: list[int]) -> bool:
        ends = [
            (place[i] * width - half, place[i] * width + half) for i in shown for half in [_width(labels[i], 6.5) / 2]
        ]
        return all(left - right > 0.05 for (_, right), (left, _) in pairwise(ends))

    everyone = list(range(len(values)))
    for stride in (1, 2, 3, 4, 6, 8, 16):
        shown = everyone[::-1][::stride][::-1]
        for labels in ([str(value) for value in values], [compact(value) for value in values]):
            if fits(labels, shown) or stride == 16:
                ax.xaxis.set_major_formatter(FuncFormatter(partial(_named, {values[i]: labels[i] for i in shown})))
                return


def _named(names: dict[int, str], value: float, _: int) -> str:
    return names.get(round(value), "")


def _axis_label(part: Slice) -> str:
    d_qk, d_hv = part.rows["d_qk"], part.rows["d_hv"]
    if part.axis in ("d_hv", "d_qk") and (d_qk == d_hv).all() and d_hv.nunique() > 1:
        return "head dimension $d_{qk} = d_{hv}$ [channels]"
    return AXES[part.axis]


def _keys(rows: Rows) -> list[Any]:
    """Legend entries of a runtime besides its implementations: bands, with the origin of their ceilings, and flags."""
    keys: list[Any] = []
    if rows["model_ms_lower"].notna().any():
        origins = sorted({str(origin).partition(":")[0] for origin in rows["ceilings"].dropna()})
        label = "theory, lower to upper bound" + (f" ({' and '.join(origins)} ceilings)" if origins else "")
        keys.append(Patch(facecolor="0.87", edgecolor="0.6", linewidth=0.5, label=label))
    if _flagged(rows).any():
        keys.append(Line2D([], [], color="0.4", marker="o", mfc="white", ls="", label="noisy or throttled"))
    return keys


def _say_if_empty(ax: Axes, values: Rows) -> None:
    if not values.notna().any():
        ax.text(0.5, 0.5, "no point was measured", transform=ax.transAxes, ha="center", color="0.3")


def _y_axis(ax: Axes, rows: Rows, axis: str, position: Any, looks: dict[str, Look]) -> None:
    """Limits and ticks; crosses along the top, one below the other, for what was not measured."""
    crosses = _crosses(rows, axis, looks)
    _limits(ax, room=0.04 + 0.035 * max((level for level, _, _ in crosses), default=0))
    for level, name, value in crosses:
        x, y = position(pd.Series([value])), [0.98 - 0.035 * level]
        ax.plot(x, y, transform=ax.get_xaxis_transform(), marker="x", ms=3, mew=0.8, color=looks[name].colour)


def _limits(ax: Axes, room: float = 0.0) -> None:
    """Linear from zero where all values lie within a factor of eight, else logarithmic; `room`: part free above."""
    values = np.concatenate([[], *(_heights(artist) for artist in (*ax.lines, *ax.collections))])
    values = values[np.isfinite(values) & (values > 0)]
    margin = 0.05
    if not len(values):
        ax.set(ylim=(0, 1), yticks=[])
    elif values.max() > 8 * values.min():
        low, high = math.log10(values.min()), math.log10(values.max())
        span = (high - low) / (1 - 2 * margin - room)
        ax.set(yscale="log", ylim=(10 ** (low - margin * span), 10 ** (high + (margin + room) * span)))
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0,) if span > 3 else (1.0, 3.0) if span > 2 else (1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:,.10g}" if value < 1e5 else f"{value:.0e}")
        )
        ax.yaxis.set_minor_formatter(NullFormatter())
    else:
        ax.set_ylim(0, values.max() / (1 - margin - room))
        ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))


def _heights(artist: Any) -> np.ndarray:
    """The y values of a line, of whiskers or of a band; none of what is placed relative to the axes."""
    if isinstance(artist, Line2D):
        return np.asarray(artist.get_ydata(), float)
    return np.concatenate([[], *(path.vertices[:, 1] for path in artist.get_paths())])


def _crosses(rows: Rows, axis: str, looks: dict[str, Look]) -> list[tuple[int, str, Any]]:
    """(level from the top, implementation, value of the axis) of every missing point of those that have others here."""
    levels: dict[Any, int] = {}
    found = []
    for name, _ in _measured(rows, looks):
        own = rows[(rows["implementation"] == name) & (rows["status"] != "ok")]
        for value in sorted(own[axis].dropna().unique()):
            found.append((levels.get(value, 0), name, value))
            levels[value] = levels.get(value, 0) + 1
    return found


# --- words --------------------------------------------------------------------------------------------------------


def compact(value: float) -> str:
    """A count as ticks and notes write it: 65536 is 64Ki, 512 is 512."""
    value = int(value)
    return f"{value // 1024}Ki" if value >= 1024 and value % 1024 == 0 else str(value)


def _plain(value: Any) -> str:
    return str(int(value)) if isinstance(value, (float, np.number)) and float(value).is_integer() else str(value)


def missing(rows: Rows, axis: str, looks: dict[str, Look]) -> list[str]:
    """One line a status other than ok: which implementations have it, and where on the axis."""
    lines = []
    for status, having in rows[rows["status"] != "ok"].groupby("status"):
        titles: dict[str, list[str]] = {}
        for name, look in looks.items():
            for where in _where(rows[rows["implementation"] == name], having[having["implementation"] == name], axis):
                titles.setdefault(where, []).append(look.title)
        lines.append(f"× {status}: " + "; ".join(f"{', '.join(group)} {where}" for where, group in titles.items()))
    return lines


def _where(asked: Rows, failed: Rows, axis: str) -> Iterator[str]:
    """Where on the axis an implementation failed; passes that agree are said once, and no pass where all do."""
    passes: dict[str, list[str]] = {}
    for pass_, part in failed.groupby("pass", sort=False):
        values = sorted(asked.loc[asked["pass"] == pass_, axis].dropna().unique())
        passes.setdefault(_ranges(sorted(part[axis].dropna().unique()), values), []).append(str(pass_))
    for where, agreeing in passes.items():
        yield where if set(agreeing) == set(asked["pass"]) else f"{where} ({', '.join(agreeing)})"


def _ranges(values: list[Any], asked: list[Any]) -> str:
    """ "at 512, 4Ki-64Ki": runs of neighbours in `asked` are written as ranges; "everywhere" if all of them."""
    if values == asked:
        return "everywhere"
    write = compact if not isinstance(values[0], str) else str
    runs: list[list[Any]] = []
    for value in values:
        if runs and asked.index(value) == asked.index(runs[-1][-1]) + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return "at " + ", ".join(
        f"{write(run[0])}–{write(run[-1])}" if len(run) > 2 else ", ".join(map(write, run)) for run in runs
    )


def caption(rows: Rows, axis: str | None = None) -> str:
    """What all rows of a figure have in common, units included: "batch 8 · 16 heads of 256 · ..."."""
    words = []

    def common(column: pd.Series) -> Any:
        return column.dropna().iloc[0] if column.nunique() == 1 else None

    if axis != "seq_len" and (seq_len := common(rows["seq_len"])):
        words.append(f"T = {_plain(seq_len)}")
    if axis != "batch" and (batch := common(rows["batch"])):
        words.append(f"batch {_plain(batch)}")
    elif tokens := common(rows["batch"] * rows["seq_len"]):
        words.append(f"{int(tokens):,} tokens")
    heads, d_hv, d_qk = (common(rows[column]) for column in ("heads", "d_hv", "d_qk"))
    if heads and axis != "heads":
        words.append(f"{_plain(heads)} head{'s' if heads != 1 else ''}")
    elif embedding := common(rows["heads"] * rows["d_hv"]):
        words.append(f"embedding {_plain(embedding)}")
    if d_hv and axis != "d_hv":
        words.append(f"$d_{{hv}}$ = {_plain(d_hv)}")
    if d_qk and axis != "d_qk":
        words.append(f"$d_{{qk}}$ = {_plain(d_qk)}")
    elif not d_qk and not d_hv and (ratio := common(rows["d_qk"] / rows["d_hv"])) and ratio != 1:
        words.append(f"$d_{{qk}}$ = {ratio:g} $d_{{hv}}$")
    if axis != "chunk_size" and (chunk_size := common(rows["chunk_size"])):
        words.append(f"L = {_plain(chunk_size)}")
    if axis != "dtype" and (dtype := common(rows["dtype"])):
        words.append(str(dtype))
    return ", ".join(words)


def _label(look: Look, name: str, rows: Rows) -> str:
    """The title, with heads, dimensions or chunk size where implementations differ in them and this has just one."""
    extra = []
    own = rows[rows["implementation"] == name]
    sizes = {
        column: own[column].nunique() == 1 and rows[column].nunique() > 1 for column in ("heads", "d_hv", "chunk_size")
    }
    if sizes["heads"] and sizes["d_hv"]:
        extra.append(f"{_plain(own['heads'].iloc[0])}×{_plain(own['d_hv'].iloc[0])}")
    if sizes["chunk_size"]:
        extra.append(f"L {_plain(own['chunk_size'].dropna().iloc[0])}")
    return f"{look.title} ({', '.join(extra)})" if extra else look.title


# --- the sheet: sizes in inches, so that type and panels are the same size in every figure -------------------------


@cache
def _width(text: str, size: float) -> float:
    """Inches a text takes at a type size in points."""
    if not text.strip():
        return 0.0
    return TextPath((0, 0), text, size=size, prop=FontProperties(family="DejaVu Sans")).get_extents().width / 72


def _wrap(text: str, width: float, size: float) -> list[str]:
    lines = [""]
    for word in text.split():
        grown = f"{lines[-1]} {word}".strip()
        if lines[-1] and _width(grown, size) > width:
            lines.append(f"{word}")
        else:
            lines[-1] = grown
    return lines


class Sheet:
    """A figure of panels side by side: caption above; legend, notes and provenance below, never over the data."""

    def __init__(
        self,
        panels: int,
        *,
        height: float = PANEL_HEIGHT,
        left: float = LEFT,
        right: float = RIGHT,
        gap: float = GAP,
        wide: bool = False,
    ) -> None:
        self.width = COLUMN_WIDTH if panels == 1 and not wide else PAGE_WIDTH * max(1.0, panels / 2)
        self.panel_height = height
        panel = (self.width - left - right - gap * (panels - 1)) / panels
        self.figure = Figure(figsize=(self.width, height), facecolor="white")
        self.axes = [
            self.figure.add_axes(((left + n * (panel + gap)) / self.width, 0, panel / self.width, 1))
            for n in range(panels)
        ]

    def finish(
        self, title: str, handles: Sequence[Any], keys: Sequence[Any], notes: Sequence[str], footer: str
    ) -> None:
        """Place everything and give the figure the height it takes; `keys` are legend entries of their own row."""
        room = self.width - 2 * EDGE
        titles = _wrap(title, room, 7)
        lines = [line for note in notes for line in _wrap(note, room, NOTE_SIZE)]
        footers = _wrap(footer, room, FOOTER_SIZE)
        legends = [(entries, *_grid(entries, room)) for entries in (handles, keys) if entries]

        top = 0.14 * len(titles) + 0.26
        legend_height = 0.13 * sum(rows for _, rows, _ in legends) + 0.02 * len(legends)
        note_height = 0.1 * len(lines) + 0.04 * bool(lines)
        bottom = X_LABEL_HEIGHT + legend_height + note_height + 0.09 * len(footers) + EDGE
        height = top + self.panel_height + bottom
        self.figure.set_size_inches(self.width, height)
        for ax in self.figure.axes:
            box = ax.get_position()
            ax.set_position((box.x0, bottom / height, box.width, self.panel_height / height))

        def put(words: list[str], y: float, size: float, colour: str) -> None:
            place = (EDGE / self.width, y / height)
            self.figure.text(*place, "\n".join(words), fontsize=size, color=colour, va="top", linespacing=1.2)

        put(titles, height - EDGE, 7, "black")
        y = bottom - X_LABEL_HEIGHT
        for entries, rows, columns in legends:
            self.figure.legend(
                handles=entries,
                loc="upper left",
                bbox_to_anchor=(EDGE / self.width, y / height),
                ncols=columns,
                handlelength=2.6,
                columnspacing=1.2,
                handletextpad=0.5,
                labelspacing=0.35,
                borderpad=0,
                borderaxespad=0,
            )
            y -= 0.13 * rows + 0.02
        put(lines, y, NOTE_SIZE, "0.25")
        put(footers, y - note_height, FOOTER_SIZE, "0.5")


def _grid(entries: Sequence[Any], room: float) -> tuple[int, int]:
    """(rows, columns) of a legend that fits into `room` inches; no more columns than its rows need."""
    widest = max(_width(entry.get_label(), 6.5) for entry in entries) + 0.42
    rows = math.ceil(len(entries) / max(1, int(room / widest)))
    return rows, math.ceil(len(entries) / rows)


# --- files --------------------------------------------------------------------------------------------------------


def draw_all(
    directory: Path | str,
    out: Path | str | None = None,
    formats: Sequence[str] = ("png", "svg"),
    what: Sequence[str] = WHAT,
) -> list[Path]:
    """Draw the figures of a results folder into `out` (default: its folder `figures`); returns the files written.

    Every figure comes in each of `formats`, with the rows it shows beside it as CSV: `runtime-seq_len.png`, ....

    Raises:
        InputError: no results folder, no rows, an unknown figure or format, or a folder that cannot be written.
    """
    directory = Path(directory)
    for kind, given, known in (("figure", what, WHAT), ("format", formats, FORMATS)):
        for word in given:
            if word not in known:
                raise InputError(f"no {kind} is called {word!r}; {nearest(word, known)}")
    rows = drawable(read_rows(directory))
    runs = _runs(directory)
    out = Path(out) if out else directory / "figures"
    written: list[Path] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(STYLE):
            for stem, figure, shown in figures(rows, runs, what):
                for format_ in formats:
                    written.append(out / f"{stem}.{format_}")
                    figure.savefig(written[-1], metadata=UNDATED.get(format_))
                written.append(out / f"{stem}.csv")
                shown.drop(columns="chunk_asked").to_csv(written[-1], index=False)
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}): give another folder with --out") from None
    return written


def figures(rows: Rows, runs: Mapping[str, Any], what: Sequence[str] = WHAT) -> Iterator[tuple[str, Figure, Rows]]:
    """(stem of the file names, figure, the rows it shows) of every figure that `drawable` rows make.

    `runs`: run_id -> what environment.json says of that run. Use inside `matplotlib.rc_context(STYLE)`.
    """
    table, footer = looks(rows), provenance(rows, runs)
    axes = swept_axes(rows) or ["seq_len"]
    for name, quantity in (("runtime", RUNTIME), ("memory", MEMORY)):
        for axis in axes if name in what else ():
            for part in slices(rows, axis):
                yield f"{name}-{part.stem}", curves(part, quantity, table, footer), part.rows
    if "chunk" in what and "chunk_size" in axes:
        for part in slices(rows, "chunk_size"):
            for name in table:
                own = part.rows[part.rows["implementation"] == name]
                if own["chunk_size"].nunique() > 1:
                    yield "-".join(["chunk", name, *part.tags]), tradeoff(part, name, table, footer), own
    if "roofline" in what:
        for dtype, own in rows.groupby("dtype"):
            yield f"roofline-{dtype}", roofline(own, roofs(own, runs), table, footer), own


def roofs(rows: Rows, runs: Mapping[str, Any]) -> list[Ceilings]:
    """The ceilings to draw for rows of one dtype: the datasheet's where the device is known, then what was measured."""
    dtype = rows["dtype"].iloc[0]
    gpu = from_device_name(rows["device"].iloc[0])
    found = [gpu.ceilings] if gpu and dtype in ("bfloat16", "float16") else []
    for run in sorted(set(rows["run_id"])):
        if stored := runs.get(run, {}).get("ceilings", {}).get(dtype):
            found.append(Ceilings(**stored))
    return list(dict.fromkeys(found))


def provenance(rows: Rows, runs: Mapping[str, Any]) -> str:
    """Device, days, and the versions behind the rows, in one line."""
    days = sorted({str(started)[:10] for started in rows["started_at"]})
    words = [*sorted(set(rows["device"])), " to ".join(dict.fromkeys((days[0], days[-1])))]
    described = [runs[run] for run in dict.fromkeys(rows["run_id"]) if run in runs]
    for package in ("torch", "triton"):
        if versions := sorted({run["packages"][package] for run in described if package in run.get("packages", {})}):
            words.append(f"{package} {', '.join(versions)}")
    if commits := sorted({f"{run['tflabench']} ({run['commit']})" for run in described if run.get("commit")}):
        words.append(f"tflabench {', '.join(commits)}")
    return " · ".join(words)


def _runs(directory: Path) -> dict[str, Any]:
    path = directory / "environment.json"
    try:
        return json.loads(path.read_text())["runs"] if path.exists() else {}
    except (ValueError, KeyError):
        raise InputError(
            f"{path} is not what `tflabench sweep` writes: mend it, or delete it to draw without it"
        ) from None
