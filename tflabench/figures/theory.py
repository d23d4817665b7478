"""A figure of pure theory: runtime and memory over the chunk size."""

from __future__ import annotations

import numpy as np

from tflabench.figures.axes import held, powers, upwards
from tflabench.figures.looks import BLUE, GREEN, ORANGE, VERMILION
from tflabench.figures.model import Band, Curve, Figure, Ink, Item, Key, Panel, Rule, Shading
from tflabench.figures.quantities import AXES
from tflabench.theory.chunk_size import Tradeoff


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
