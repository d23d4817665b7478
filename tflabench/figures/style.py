"""How figures look: type, sizes and colours, and the one look that an implementation keeps in all of them.

The colour says what an implementation computes (Okabe-Ito, safe for the colour-blind); its shade, marker and dashes say
which it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.colors import to_rgb

from tflabench.figures.quantities import Rows
from tflabench.implementations.registry import implementations

TITLE_SIZE, TICK_SIZE, NOTE_SIZE, FOOTER_SIZE = 7, 6.5, 5.8, 5.0  # points; legends as ticks
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": TITLE_SIZE,
    "axes.labelsize": TITLE_SIZE,
    "axes.titlesize": TITLE_SIZE,
    "axes.titlepad": 4,
    "axes.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.4,
    "xtick.labelsize": TICK_SIZE,
    "ytick.labelsize": TICK_SIZE,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "ytick.minor.width": 0.3,
    "ytick.minor.size": 1.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.6,
    "legend.fontsize": TICK_SIZE,
    "legend.frameon": False,
    "savefig.dpi": 300,
    "svg.hashsalt": "tflabench",  # the same rows give the same file
    "pdf.fonttype": 42,
}

styled = matplotlib.rc_context(STYLE)  # decorates what draws or writes a figure

# Okabe-Ito.
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK = "#E69F00", "#56B4E9", "#000000"
PALETTE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
COLOURS = {  # of what is computed
    ("mlstm", "sig"): VERMILION,
    ("mlstm", "exp"): BLUE,
    ("mlstm", ""): SKY,
    ("attention", ""): BLACK,
    ("linear_attention", ""): GREEN,
    ("ssm", ""): PURPLE,
}
OTHER_COLOUR = ORANGE
ROOF_COLOUR = "0.25"
SHADES = (0.0, -0.35, 0.3)  # none, towards black, towards white
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "*")  # 11: shade, marker and dashes repeat after 132
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
                colour=_shade(kind_colour(kind), SHADES[place % len(SHADES)]),
                marker=MARKERS[place % len(MARKERS)],
                dashes=DASHES[place % len(DASHES)],
                kind=kind,
            )
    return table


def measured(rows: Rows, looks: dict[str, Look]) -> list[tuple[str, Look]]:
    """Names and looks of the implementations that have a row with a time."""
    done = set(rows.loc[rows["timed"], "implementation"])
    return [(name, look) for name, look in looks.items() if name in done]


def kind_colour(kind: tuple[str, str]) -> str:
    """The colour of what is computed: of a (family, gate), or else of its family."""
    return COLOURS.get(kind) or COLOURS.get((kind[0], ""), OTHER_COLOUR)


def _shade(colour: str, amount: float) -> tuple[float, float, float]:
    target = 1.0 if amount > 0 else 0.0
    red, green, blue = ((1 - abs(amount)) * channel + abs(amount) * target for channel in to_rgb(colour))
    return red, green, blue
