"""GPUs in figures of theory: names, lines, roofs and where their ceilings come from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import NamedTuple

import numpy as np

from tflabench.figures.axes import held, logarithmic
from tflabench.figures.looks import BLACK, GREEN, ORANGE, PURPLE, SKY
from tflabench.figures.model import AxisName, Curve, Ink, Panel, Rule
from tflabench.theory.hardware import Ceilings, Gpu
from tflabench.theory.roofline import attainable

# Vermilion and blue stay for measured kernels. Dashes tell lines apart in grey.
INKS = {
    "V100": Ink("#767676", dash="dot"),
    "A100": Ink(GREEN, dash="dashdot"),
    "H100": Ink(SKY),
    "H200": Ink(PURPLE, dash="dash"),
    "B200": Ink(ORANGE, dash="dashdot"),
}
OTHERS = tuple(Ink(BLACK, dash=dash) for dash in ("dash", "dot", "dashdot", "solid"))
APART = 0.17  # of a panel's width, between the names of chunk sizes above it
RATES = (("TFLOP/s", 1e12), ("GFLOP/s", 1e9), ("MFLOP/s", 1e6))
ALIKE = 1.05  # intensities within this factor share a name


def short(gpu: Gpu) -> str:
    """Return a GPU's name without its form factor."""
    return gpu.name.removeprefix("paper-").split()[0]


def ink(gpu: Gpu) -> Ink:
    """Return the line of a GPU; black for one that the paper does not name."""
    return INKS.get(short(gpu), OTHERS[0])


class Roof(NamedTuple):
    """The roof min(beta I, alpha) of a chip (eq. 119), and the words and line that it is drawn with."""

    ceilings: Ceilings
    label: str
    ink: Ink


def roofs(gpus: Sequence[Gpu]) -> list[Roof]:
    """Return the roof of each GPU, named by rate and bandwidth; GPUs of one name have lines of their own."""
    inks, by_name = cycle(OTHERS), {}
    for gpu in gpus:
        name = short(gpu) if short(gpu) not in by_name else gpu.name
        by_name[name] = Roof(gpu.ceilings, roof_name(name, gpu.ceilings), INKS.get(name) or next(inks))
    return list(by_name.values())


def under(
    roofs: Sequence[Roof],
    points: Sequence[Curve],
    sizes: Mapping[int, float] = {},
    unit: tuple[str, float] = RATES[0],
    names: tuple[str, str] = ("arithmetic intensity", "rate"),
) -> Panel:
    """Return a roofline: points at FLOP/byte and at a rate in `unit`, and the intensity of chunk sizes upright.

    Args:
        unit: name and size in FLOP/s, as RATES has them.
        names: what intensities and rates are called.
    """
    marks = [*sizes.values(), *(roof.ceilings.intensity for roof in roofs), *(x for curve in points for x in curve.x)]
    x = logarithmic(f"{names[0]} [FLOP/byte]", min(marks or [1.0]) / 1.5, max(marks or [1.0]) * 1.5)
    assert x.limits
    lines = []
    for roof in roofs:
        corners = np.array([x.limits[0], roof.ceilings.intensity, x.limits[1]])
        lines.append(Curve(roof.label, corners, attainable(roof.ceilings, corners) / unit[1], roof.ink, "theory"))
    y = logarithmic(f"{names[1]} [{unit[0]}]", *(held([*lines, *points]) or [1.0]))
    return Panel("", x, y, (*size_rules(sizes, x.limits), *lines, *points))


def unit(rates: Iterable[float]) -> tuple[str, float]:
    """Return the largest unit that the highest rate reaches, and its size in FLOP/s."""
    top = max(rates, default=0.0)
    return next((unit for unit in RATES if top >= unit[1]), RATES[-1])


def rate(flops_per_s: float) -> str:
    """Return a rate in FLOP/s with its unit."""
    return f"{flops_per_s / 1e12:,.4g} TFLOP/s" if flops_per_s >= 1e12 else f"{flops_per_s / 1e9:,.4g} GFLOP/s"


def roof_name(name: str, ceilings: Ceilings) -> str:
    """Return the words at a roof: whose it is, its rate and its bandwidth."""
    return f"{name}: {rate(ceilings.flops_per_s)}, {ceilings.bytes_per_s / 1e12:.3g} TB/s"


def intensity_rules(gpus: Sequence[Gpu], side: AxisName) -> Iterator[Rule]:
    """Yield a rule at the intensity of each GPU; those within 5% of the one below share its name."""
    groups: list[list[Gpu]] = []
    for gpu in sorted(gpus, key=lambda gpu: gpu.ceilings.intensity):
        if groups and gpu.ceilings.intensity < ALIKE * groups[-1][0].ceilings.intensity:
            groups[-1].append(gpu)
        else:
            groups.append([gpu])
    for group in groups:
        name = ", ".join(map(short, group))
        for gpu in group:
            label = f"{name} {group[0].ceilings.intensity:.0f}" if side == "y" else name
            yield Rule(side, gpu.ceilings.intensity, label if gpu is group[0] else "")


def size_rules(intensities: Mapping[int, float], limits: tuple[float, float]) -> Iterator[Rule]:
    """Yield an upright rule at the intensity of each chunk size on a logarithmic axis, where there is room for one.

    It is named where there is room for a name.
    """
    named = drawn = -math.inf
    for size, intensity in sorted(intensities.items()):
        place = math.log(intensity / limits[0]) / math.log(limits[1] / limits[0])
        if place >= named + APART:
            named = drawn = place
            yield Rule("x", intensity, f"L = {size}")
        elif place >= drawn + APART / 4:
            drawn = place
            yield Rule("x", intensity)


def sources(gpus: Sequence[Gpu]) -> str:
    """Return the GPUs by the document that their ceilings come from."""
    by_source: dict[str, list[str]] = {}
    for gpu in gpus:
        by_source.setdefault(f"{gpu.ceilings.provenance}, {gpu.ceilings.source}", []).append(short(gpu))
    return "Ceilings: " + "; ".join(f"{', '.join(names)}: {source}" for source, names in by_source.items()) + "."
