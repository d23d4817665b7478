"""The look that an implementation keeps in every figure: its colour says whose it is, marker and dashes which it is.

Colours are those of Okabe and Ito, which the colour-blind can tell apart. In grey, markers, dashes and the names at
the panels tell lines apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tflabench.figures.model import Dash, Ink
from tflabench.figures.quantities import Rows
from tflabench.implementations.registry import bundled_kernels, implementations, operation

BLUE, VERMILION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
ORANGE, SKY, BLACK, GREY = "#e69f00", "#56b4e9", "#000000", "#9a9a9a"

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
OWNER_OF_PACKAGE = {"mlstm_kernels": "mlstm_kernels", "flash-linear-attention": "fla", "mamba-ssm": "mamba"}
MARKERS = (
    "circle", "square", "triangle-up", "diamond", "triangle-down", "pentagon", "cross", "hexagon", "star",
    "triangle-left", "triangle-right", "x",
)  # fmt: skip
DASHES: tuple[Dash, ...] = ("solid", "dash", "dot", "dashdot")
# What several owners compute has the same marker in all their colours.
SHARED = ("mlstm_exp", "mlstm_sig", "simple_gla", "retention", "mamba2", "lightning", "gated_retention")


@dataclass(frozen=True)
class Look:
    """The look of one implementation in every figure."""

    title: str
    owner: str
    ink: Ink


class _Place(NamedTuple):
    """The facts that fix the look of an implementation."""

    title: str
    owner: str
    algorithm: str


def owner_of(name: str, family: str, package: str) -> str:
    """Return whose implementation it is, a key of OWNERS."""
    if name in bundled_kernels():
        return "ours"
    if family == "attention":
        return "softmax attention"
    if name.startswith("reference_"):
        return "PyTorch"
    return OWNER_OF_PACKAGE.get(package, "others")


def looks(rows: Rows) -> dict[str, Look]:
    """Return the look of every implementation in rows, by name: registered ones in their order, then by name.

    Markers and dashes follow from the place among all registered implementations of the same owner, so that an
    implementation looks the same in every results folder. Fused kernels come first: their lines are solid.
    """
    found = {
        row["implementation"]: _Place(
            str(row["title"]),
            owner_of(row["implementation"], row["family"], row["package"]),
            operation(row["implementation"], row["gate"] if isinstance(row["gate"], str) else None)
            or row["implementation"],
        )
        for row in rows.drop_duplicates("implementation").sort_values("implementation").to_dict("records")
    }
    registered = {
        impl.name: _Place(
            impl.title, owner_of(impl.name, impl.family, impl.package), operation(impl.name, impl.gate) or impl.name
        )
        for impl in sorted(implementations(), key=lambda impl: not impl.name.startswith("hopper_"))
    }
    markers: dict[str, dict[str, str]] = {owner: {} for owner in OWNERS}
    variants: dict[tuple[str, str], int] = {}
    table = {}
    for name, place in {**registered, **found}.items():
        marker = _marker(markers[place.owner], place.algorithm)
        if variants.get((place.owner, marker), -1) + 1 == len(DASHES):  # no dashes are left: a marker of its own
            marker = _marker(markers[place.owner], name)
        variant = variants[place.owner, marker] = variants.get((place.owner, marker), -1) + 1
        if name in found:
            ink = Ink(OWNERS[place.owner], marker, DASHES[variant % len(DASHES)])
            table[name] = Look(found[name].title, place.owner, ink)
    order = [impl.name for impl in implementations()]
    return dict(sorted(table.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))


def _marker(taken: dict[str, str], algorithm: str) -> str:
    """Return the marker of an algorithm among those of one owner, and remember it in `taken`."""
    if algorithm not in taken:
        reserved = MARKERS[: len(SHARED)]
        free = [marker for marker in (*MARKERS[len(SHARED) :], *reserved) if marker not in taken.values()]
        own = MARKERS[SHARED.index(algorithm)] if algorithm in SHARED else None
        taken[algorithm] = own or (free[0] if free else MARKERS[len(taken) % len(MARKERS)])
    return taken[algorithm]
