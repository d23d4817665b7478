"""The look that an implementation keeps in every figure: its colour says whose it is, marker and dashes which it is.

Colours are those of Okabe and Ito, which the colour-blind can tell apart. In grey, markers, dashes and the names at
the panels tell lines apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from tflabench.conclusions.contests import owner
from tflabench.figures.model import Dash, Ink
from tflabench.figures.quantities import Rows
from tflabench.implementations.registry import implementations, operation

BLUE, VERMILION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
ORANGE, SKY, BLACK, GREY, DARK_GREY = "#e69f00", "#56b4e9", "#000000", "#9a9a9a", "#595959"

# Whose kernel -> colour, in the order in which figures choose what to highlight.
OWNERS = {
    "ours": VERMILION,
    "mlstm_kernels": BLUE,
    "fla": GREEN,
    "mamba": PURPLE,
    "softmax attention": BLACK,
    "PyTorch": SKY,
    "others": ORANGE,
}
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
    owner: str
    ink: Ink


def looks(rows: Rows) -> dict[str, Look]:
    """Return the look of every implementation in rows, by name: registered ones in their order, then by name.

    Markers and dashes follow from the place among all registered implementations of the same owner, so that an
    implementation looks the same in every results folder. Fused kernels come first: their lines are solid.
    """
    known = {impl.name: impl for impl in implementations()}
    ordered = sorted(known.values(), key=lambda impl: not impl.name.startswith("hopper_"))
    found = rows.drop_duplicates("implementation").set_index("implementation").sort_index()
    facts = {impl.name: (impl.title, impl.family, impl.package, impl.gate) for impl in ordered}
    facts |= {
        str(name): (str(row.title), row.family, row.package, row.gate if isinstance(row.gate, str) else None)
        for name, row in found[["title", "family", "package", "gate"]].iterrows()
    }
    markers: dict[str, dict[str, str]] = {each: {} for each in OWNERS}
    variants: dict[tuple[str, str], int] = {}
    table = {}
    for name, (title, family, package, gate) in facts.items():
        whose = owner(name, family, package)
        marker = _marker(markers[whose], operation(name, gate) or name)
        if variants.get((whose, marker), -1) + 1 == len(DASHES):  # no dashes are left: a marker of its own
            marker = _marker(markers[whose], name)
        variant = variants[whose, marker] = variants.get((whose, marker), -1) + 1
        if name in found.index:
            table[name] = Look(title, whose, Ink(OWNERS[whose], marker, DASHES[variant % len(DASHES)]))
    order = {name: n for n, name in enumerate(known)}
    return dict(sorted(table.items(), key=lambda item: order.get(item[0], len(order))))


def _marker(taken: dict[str, str], algorithm: str) -> str:
    """Return the marker of an algorithm among those of one owner, and remember it in `taken`."""
    if algorithm not in taken:
        reserved = MARKERS[: len(SHARED)]
        free = [marker for marker in (*MARKERS[len(SHARED) :], *reserved) if marker not in taken.values()]
        own = MARKERS[SHARED.index(algorithm)] if algorithm in SHARED else None
        taken[algorithm] = own or (free[0] if free else MARKERS[len(taken) % len(MARKERS)])
    return taken[algorithm]
