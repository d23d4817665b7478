"""Figures of pure theory: runtime and memory over the chunk size, and the rooflines of GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tflabench.figures.axes import held, powers, upwards
from tflabench.figures.gpus import roofs, short, sources, under
from tflabench.figures.highlights import ranked
from tflabench.figures.looks import BLUE, GREEN, GREY, MARKERS, ORANGE, VERMILION, Look
from tflabench.figures.model import Band, Curve, Figure, Ink, Item, Key, Panel, Rule, Shading
from tflabench.figures.quantities import AXES
from tflabench.theory.chunk_size import Tradeoff
from tflabench.theory.cost import Cost
from tflabench.theory.hardware import Gpu


class Measured(NamedTuple):
    """A measured point of a roofline: the modelled intensity in FLOP/byte, and modelled FLOPs over measured time."""

    label: str
    intensity: float
    flops_per_s: float


def runtime_over_chunk_size(
    tradeoff: Tradeoff, recommended: int, setting: str, memory_budget: float | None = None
) -> Figure:
    """Return theoretical runtime, from lower to upper bound, and below it peak memory over L.

    Args:
        recommended: the L to mark.
        setting: what is modelled, in words.
        memory_budget: in bytes.
    """
    sizes, least = tradeoff.sizes(400), tradeoff.runtime_optimal
    time, memory = tradeoff.time(sizes), tradeoff.memory(np.ceil(sizes)) / 2**30
    low, high = tradeoff.within()
    mark = Ink(VERMILION)
    budget = [memory_budget / 2**30] if memory_budget else []
    runtime: tuple[Item, ...] = (
        Shading("x", low, high, ORANGE),
        Band(sizes, time.lower * 1e3, time.upper * 1e3, BLUE),
        Curve("nothing overlaps", sizes, time.upper * 1e3, Ink(BLUE), "theory"),
        Curve("all overlaps", sizes, time.lower * 1e3, Ink(BLUE, dash="dash"), "theory"),
        Rule("x", least, f"least {least:.0f}"),
        Rule("x", recommended, f"recommended {recommended}", mark),
    )
    peak: list[Item] = [
        Curve("peak memory", sizes, memory, Ink(GREEN), "theory"),
        Rule("x", recommended, "", mark),
    ]
    peak += [Rule("y", allowed, "budget", Ink(VERMILION, dash="dash")) for allowed in budget]
    x = powers(AXES["chunk_size"], float(sizes[0]), float(sizes[-1]))
    return Figure(
        stem="optimal-chunk",
        title=f"Theory: least runtime at L = {least:.0f}, recommended is L = {recommended}",
        setting=setting,
        panels=(
            Panel("runtime", x, upwards("runtime [ms]", held(runtime)), runtime),
            Panel("memory", x, upwards("peak memory [GiB]", [*held(peak), *budget]), tuple(peak)),
        ),
        keys=(Key(f"within 5% of the least: {low} to {high}", Ink(ORANGE), "area"),),
        caption=(
            "Shaded in blue: from where all overlaps to where nothing does (eq. 116).",
            f"Ceilings: {tradeoff.ceilings.provenance}, {tradeoff.ceilings.source}.",
        ),
    )


def roofline(
    gpus: Sequence[Gpu],
    costs: Mapping[int, Cost],
    setting: str,
    measured: Sequence[Measured] = (),
    looks: Mapping[str, Look] = {},
) -> Figure:
    """Return the rooflines of GPUs (eq. 119), the intensity of each L as an upright line, and measured points.

    Args:
        costs: of a chunk size.
        setting: what is modelled, in words.
        measured: of which the seven fastest implementations are named, the others grey.
        looks: of measured implementations, by label.
    """
    points = _points(measured, looks)
    grey = [curve.name for curve in points if curve.role == "context"]
    sizes = f"L = {min(costs)}" + (f" to {max(costs)}" if len(costs) > 1 else "")
    return Figure(
        stem="roofline",
        title=f"Rooflines of {', '.join(dict.fromkeys(map(short, gpus)))}, and where {sizes} meets them",
        setting=setting,
        panels=(under(roofs(gpus), points, {size: float(cost.intensity) for size, cost in costs.items()}),),
        caption=(
            "Upright: the intensity of chunk sizes, where there is room. It meets a roof at the rate of this GPU.",
            "Left of the bend of a roof moving bounds a kernel, right of it computing.",
            *(["Points: modelled FLOPs over measured time."] if points else []),
            *([f"Grey: {', '.join(grey)}."] if grey else []),
            sources(gpus),
        ),
        height=2.4,
    )


def _points(measured: Sequence[Measured], looks: Mapping[str, Look]) -> list[Curve]:
    """Return the points of each implementation in TFLOP/s, the fastest first; those beyond seven are grey.

    Colours say whose they are; markers tell them apart in this figure.
    """
    points = []
    for rank, (label, named) in enumerate(ranked((point.label, -point.flops_per_s) for point in measured).items()):
        x, y = np.array([point[1:] for point in measured if point.label == label]).T
        colour = looks[label].ink.colour if named and label in looks else GREY
        ink = Ink(colour, MARKERS[rank % len(MARKERS)] if named else "circle")
        role = "highlight" if named else "context"
        points.append(Curve(label if named else "", x, y / 1e12, ink, role, joined=False, name=label))
    return points
