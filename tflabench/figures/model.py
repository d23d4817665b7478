"""A figure as plain data: panels of curves, bands and lines on axes with units, and a caption.

Nothing here draws. `figures.matplotlib_renderer` makes PNG, SVG and PDF of a figure, `figures.plotly_renderer` makes it
interactive. All texts are plain: no renderer reads formulas or markup in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Scale = Literal["linear", "log"]
AxisName = Literal["x", "y"]
Dash = Literal["solid", "dash", "dot", "dashdot"]
Role = Literal["highlight", "context", "theory"]
Numbers = Sequence[float] | np.ndarray


@dataclass(frozen=True)
class Ink:
    """The colour ("#rrggbb"), marker and dashes of a line. A marker of "" draws none."""

    colour: str
    marker: str = ""
    dash: Dash = "solid"


@dataclass(frozen=True)
class Axis:
    """One axis of a panel.

    Attributes:
        label: what it shows, with the unit in brackets.
        limits: lowest and highest value shown.
        ticks: (value, words) of each tick.
    """

    label: str
    scale: Scale
    limits: tuple[float, float]
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Curve:
    """Points of one implementation or one formula, joined by a line where `joined`.

    Attributes:
        label: written next to the panel, at the height of its last point; "" writes nothing.
        x, y: values; NaN breaks the line.
        role: highlighted, thin and grey behind the others, or a line of theory.
        spread: lower and upper ends of the whiskers.
        hollow: which points are drawn hollow, because something is wrong with them; empty for none.
        rows: index of the row behind each point; empty for theory.
        name: of the implementation; "" for theory.
    """

    label: str
    x: Numbers
    y: Numbers
    ink: Ink
    role: Role = "highlight"
    joined: bool = True
    spread: tuple[Numbers, Numbers] | None = None
    hollow: Sequence[bool] = ()
    rows: Sequence[int] = ()
    name: str = ""

    @property
    def lone(self) -> bool:
        """Return whether it is a single point, of which no line is to be seen."""
        return int(np.isfinite(np.asarray(self.y, float)).sum()) == 1


@dataclass(frozen=True)
class Band:
    """The area between two curves over the same x."""

    x: Numbers
    lower: Numbers
    upper: Numbers
    colour: str


@dataclass(frozen=True)
class Rule:
    """A straight line across the panel at one value of an axis, with words at its upper or right end."""

    side: AxisName
    value: float
    label: str = ""
    ink: Ink = Ink("#595959", dash="dot")


@dataclass(frozen=True)
class Cross:
    """A point that was asked for and not measured: a mark at the top of the panel.

    Attributes:
        row: its index.
        level: how many stand above it.
        label: what the legend calls it; "" where a curve has the name.
    """

    x: float
    ink: Ink
    row: int
    level: int = 0
    label: str = ""


@dataclass(frozen=True)
class Circle:
    """A circle around a point."""

    x: float
    y: float
    colour: str = "#404040"


@dataclass(frozen=True)
class Bars:
    """Horizontal bars from zero, the first on top, with a label before each and a text after it.

    A bar of value NaN is only its text. `ranges` are theory's lower and upper bound, drawn behind the bars.
    """

    labels: Sequence[str]
    values: Numbers
    texts: Sequence[str]
    colours: Sequence[str]
    ranges: Sequence[tuple[float, float] | None] = ()
    rows: Sequence[int] = ()


@dataclass(frozen=True)
class HeatMap:
    """Values over a grid as colours from `low` to `high`.

    Attributes:
        values: of shape (y, x).
        label: of the colour bar; "" draws no bar.
    """

    x: np.ndarray
    y: np.ndarray
    values: np.ndarray
    low: float
    high: float
    scale: Scale = "linear"
    label: str = ""


Item = Curve | Band | Rule | Cross | Circle | Bars | HeatMap


@dataclass(frozen=True)
class Panel:
    """One pair of axes. `empty` is said in a panel that has nothing to draw."""

    title: str
    x: Axis
    y: Axis
    items: tuple[Item, ...]
    empty: str = ""


@dataclass(frozen=True)
class Key:
    """A legend entry for what curves have in common: a line or mark in this ink, or a filled area."""

    label: str
    ink: Ink
    kind: Literal["line", "points", "area", "hollow", "cross"] = "line"


@dataclass(frozen=True)
class Figure:
    """A whole figure.

    Attributes:
        stem: name of its files without their ending.
        title: what one sees.
        setting: what all that it shows have in common.
        panels: row by row.
        columns: panels in a row.
        keys: its legend, one row.
        caption: lines of the caption file: what marks mean, what is missing and why, where the numbers come from.
        rows: the measured rows that it shows, written next to it as CSV; None for theory.
        height: of a panel, in inches.
    """

    stem: str
    title: str
    setting: str
    panels: tuple[Panel, ...]
    columns: int = 1
    keys: tuple[Key, ...] = ()
    caption: tuple[str, ...] = ()
    rows: Any = field(default=None, compare=False)
    height: float = 1.55
