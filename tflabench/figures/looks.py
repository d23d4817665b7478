"""The look that an implementation keeps in every figure: its colour says whose it is, marker and dashes which it is.

Colours are those of Okabe and Ito, which the colour-blind can tell apart. In grey, markers, dashes and the names at
the panels tell lines apart.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tflabench.figures.model import Dash, Ink
from tflabench.figures.quantities import Rows
from tflabench.implementations.adapter import Colour, Owner
from tflabench.implementations.registry import implementations, operation, owner

BLUE, VERMILION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
ORANGE, SKY, YELLOW, BLACK, GREY, DARK_GREY = "#e69f00", "#56b4e9", "#f0e442", "#000000", "#9a9a9a", "#595959"

COLOURS: dict[Colour, str] = {
    "vermilion": VERMILION, "blue": BLUE, "green": GREEN, "purple": PURPLE, "black": BLACK, "sky": SKY,
    "orange": ORANGE, "yellow": YELLOW,
}  # fmt: skip
MARKERS = (
    "circle", "square", "triangle-up", "diamond", "triangle-down", "pentagon", "cross", "hexagon", "star",
    "triangle-left", "triangle-right", "x",
)  # fmt: skip
DASHES: tuple[Dash, ...] = ("solid", "dash", "dot", "dashdot")
# What several owners compute has the same marker in all their colours.
SHARED = ("mlstm_exp", "mlstm_sig", "simple_gla", "retention", "mamba2", "lightning", "gated_retention", "gla")


@dataclass(frozen=True)
class Look:
    """The look of one implementation in every figure."""

    title: str
    owner: Owner
    ink: Ink


def looks(rows: Rows) -> dict[str, Look]:
    """Return the look of every implementation in rows, by name: registered ones in their order, then by name.

    Titles of registered ones are those of today, of others those of their rows.

    Markers and dashes follow from the place among all registered implementations of the same owner, so that an
    implementation looks the same in every results folder. Fused kernels come first: their lines are solid.
    """
    registered = {impl.name: impl for impl in implementations()}
    ordered = sorted(registered.values(), key=lambda impl: not impl.name.startswith("hopper_"))
    measured = rows.drop_duplicates("implementation").set_index("implementation").sort_index()
    titles = {impl.name: (impl.title, impl.gate) for impl in ordered}
    titles |= {
        str(name): (str(row.title), row.gate if isinstance(row.gate, str) else None)
        for name, row in measured[["title", "gate"]].iterrows()
        if name not in registered
    }
    markers: defaultdict[Owner, dict[str, str]] = defaultdict(dict)
    variants: Counter[tuple[Owner, str]] = Counter()
    table = {}
    for name, (title, gate) in titles.items():
        impl_owner = owner(name)
        marker = _marker(markers[impl_owner], operation(name, gate) or name)
        if variants[impl_owner, marker] == len(DASHES):  # no dashes are left: a marker of its own
            marker = _marker(markers[impl_owner], name)
        dash = DASHES[variants[impl_owner, marker] % len(DASHES)]
        variants[impl_owner, marker] += 1
        if name in measured.index:
            table[name] = Look(title, impl_owner, Ink(COLOURS[impl_owner.colour], marker, dash))
    order = {name: n for n, name in enumerate(registered)}
    return dict(sorted(table.items(), key=lambda item: order.get(item[0], len(order))))


def owners(table: Iterable[Look]) -> list[Owner]:
    """Return whose implementations are, each once: ours, peers in the order of the registry, then all others."""
    roles = ("ours", "peer", "published", "reference")
    return sorted(dict.fromkeys(look.owner for look in table), key=lambda owner: roles.index(owner.role))


def _marker(taken: dict[str, str], algorithm: str) -> str:
    """Return the marker of an algorithm among those of one owner, and remember it in `taken`."""
    if algorithm in SHARED:
        taken[algorithm] = MARKERS[SHARED.index(algorithm)]
    elif algorithm not in taken:
        used = Counter(taken.values())
        taken[algorithm] = min((*MARKERS[len(SHARED) :], *MARKERS[: len(SHARED)]), key=lambda marker: used[marker])
    return taken[algorithm]
