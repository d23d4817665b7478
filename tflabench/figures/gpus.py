"""GPUs in figures of theory: names, lines, roofs and where their ceilings come from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle

import numpy as np

from tflabench.figures.looks import BLACK, GREEN, ORANGE, PURPLE, SKY
from tflabench.figures.model import Curve, Ink, Rule
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
ALIKE = 1.05  # intensities within this factor share a name


def short(gpu: Gpu) -> str:
    """Return a GPU's name without its form factor."""
    return gpu.name.removeprefix("paper-").split()[0]


def ink(gpu: Gpu) -> Ink:
    """Return the line of a GPU; black for one that the paper does not name."""
    return INKS.get(short(gpu), OTHERS[0])


def roofs(gpus: Sequence[Gpu], limits: tuple[float, float]) -> Iterator[Curve]:
    """Yield the roof of each GPU between two intensities in TFLOP/s, named by rate and bandwidth."""
    others, taken = cycle(OTHERS), set()
    for gpu in gpus:
        name = short(gpu)
        line = INKS[name] if name in INKS and name not in taken else next(others)
        named = gpu.name if name in taken else name
        taken.add(name)
        yield roof(gpu.ceilings, limits, 1e12, roof_name(named, gpu.ceilings), line)


def rate(flops_per_s: float) -> str:
    """Return a rate in FLOP/s with its unit."""
    return f"{flops_per_s / 1e12:,.4g} TFLOP/s" if flops_per_s >= 1e12 else f"{flops_per_s / 1e9:,.4g} GFLOP/s"


def roof(ceilings: Ceilings, limits: tuple[float, float], size: float, label: str, line: Ink) -> Curve:
    """Return the roof min(beta I, alpha) (eq. 119) between two intensities, in units of `size` FLOP/s."""
    corners = np.array([limits[0], ceilings.intensity, limits[1]])
    return Curve(label, corners, attainable(ceilings, corners) / size, line, role="theory")


def roof_name(name: str, ceilings: Ceilings) -> str:
    """Return the words at a roof: whose it is, its rate and its bandwidth."""
    return f"{name}: {rate(ceilings.flops_per_s)}, {ceilings.bytes_per_s / 1e12:.3g} TB/s"


def intensity_rules(gpus: Sequence[Gpu], side: str) -> Iterator[Rule]:
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
            yield Rule(side, gpu.ceilings.intensity, label if gpu is group[0] else "")  # type: ignore[arg-type]


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
