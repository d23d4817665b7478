"""What is drawn into a panel: curves, the band of theory, crosses for what is missing, and what the legend says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tflabench.figures.quantities import Quantity, Rows, flagged, flags
from tflabench.figures.style import Look, kind_colour, measured
from tflabench.figures.ticks import limits


@dataclass(frozen=True)
class Panel:
    """Axes that show a quantity, in units of `size`, over the column `axis`, whose values `position` places."""

    ax: Axes
    axis: str
    position: Callable[[Any], np.ndarray]
    quantity: Quantity
    size: float

    def curve(self, own: Rows, look: Look) -> None:
        """The rows of one implementation: a line, broken where nothing was measured; whiskers; flagged ones open."""
        own = own.assign(y=own[self.quantity.column].where(own["timed"]) / self.size)
        if not own["y"].notna().any():
            return
        if own[self.axis].isna().all():  # the axis means nothing to it (a chunk size to attention): one level for all
            self.ax.axhline(own["y"].median(), **look.line(marker=""))
            return
        own = own.dropna(subset=[self.axis]).sort_values(self.axis)
        x = self.position(own[self.axis])
        joined = {"linestyle": ""} if self.axis == "dtype" else {}  # nothing lies between two data types
        self.ax.plot(x, own["y"], **look.line(**joined))
        wary = flagged(own, self.quantity).to_numpy()
        if wary.any():
            self.ax.plot(x[wary], own["y"][wary], **look.line(linestyle="", markerfacecolor="white", zorder=2.2))
        if self.quantity.spread:
            low, high = (own[column] / self.size for column in self.quantity.spread)
            self.ax.vlines(x, low.where(own["y"].notna()), high, color=look.colour, linewidth=0.6, zorder=1.9)

    def band(self, rows: Rows, looks: dict[str, Look]) -> None:
        """Theory from lower to upper bound, in the colour of what it is a bound of.

        Bounds that agree to 5% share a band, whose edges then alternate between their colours.
        """
        if not self.quantity.theory:
            return
        columns = list(self.quantity.theory)
        bands: list[tuple[np.ndarray, np.ndarray, list[str]]] = []
        for name, look in looks.items():
            own = rows[rows["implementation"] == name].dropna(subset=[self.axis, *columns]).sort_values(self.axis)
            if own.empty:
                continue
            x, colour = self.position(own[self.axis]), kind_colour(look.kind)
            bounds = own[columns].to_numpy(float).T / self.size
            for at, shared, colours in bands:
                if np.array_equal(at, x) and np.allclose(shared, bounds, rtol=0.05, atol=0):
                    colours += [colour] * (colour not in colours)
                    break
            else:
                bands.append((x, bounds, [colour]))
        for x, (lower, upper), colours in bands:
            fill = np.mean([to_rgb(colour) for colour in colours], axis=0)
            if len(x) == 1 or self.axis == "dtype":
                self.ax.vlines(x, lower, upper, color=fill, alpha=0.25, linewidth=6)
                continue
            self.ax.fill_between(x, lower, upper, color=fill, alpha=0.13, linewidth=0)
            for n, colour in enumerate(colours):
                dashes = "-" if len(colours) == 1 else (6 * n, (6, 6 * (len(colours) - 1)))
                for bound in (lower, upper):
                    self.ax.plot(x, bound, color=colour, alpha=0.5, linewidth=0.5, linestyle=dashes)

    def finish(self, rows: Rows, looks: dict[str, Look]) -> None:
        """Limits and ticks of y; crosses along the top, one below the other, for what was not measured: the more there
        are, the closer, so that the curves keep two thirds of the height.
        """
        crosses = self._crosses(rows, looks)
        lowest = max((level for level, _, _ in crosses), default=0)
        step = min(0.035, 0.2 / max(1, lowest))
        limits(self.ax, room=0.04 + step * lowest)
        for level, name, value in crosses:
            x, y = self.position(pd.Series([value])), [0.98 - step * level]
            along_the_top = self.ax.get_xaxis_transform()
            self.ax.plot(x, y, transform=along_the_top, marker="x", ms=3, mew=0.8, color=looks[name].colour)

    def _crosses(self, rows: Rows, looks: dict[str, Look]) -> list[tuple[int, str, Any]]:
        """(level from the top, implementation, value of the axis) of all missing points of those that have others."""
        levels: dict[Any, int] = {}
        found = []
        for name, _ in measured(rows, looks):
            own = rows[(rows["implementation"] == name) & ~rows["timed"]]
            for value in sorted(own[self.axis].dropna().unique()):
                found.append((levels.get(value, 0), name, value))
                levels[value] = levels.get(value, 0) + 1
        return found


def legend_keys(rows: Rows, quantity: Quantity) -> list[Any]:
    """Legend entries besides the implementations: bands, with the origin of their ceilings, and flags."""
    keys: list[Any] = []
    if quantity.theory and rows[quantity.theory[0]].notna().any():
        origins = sorted({str(origin).partition(":")[0] for origin in rows["ceilings"].dropna()})
        label = "theory, lower to upper bound" + (f" ({' and '.join(origins)} ceilings)" if origins else "")
        keys.append(Patch(facecolor="0.87", edgecolor="0.6", linewidth=0.5, label=label))
    if why := flags(rows, quantity):
        keys.append(Line2D([], [], color="0.4", marker="o", mfc="white", ls="", label=" or ".join(why)))
    return keys


def say_if_empty(ax: Axes, values: Rows) -> None:
    """Say so in a panel none of whose values was measured."""
    if not values.notna().any():
        ax.text(0.5, 0.5, "no point was measured", transform=ax.transAxes, ha="center", color="0.3")
