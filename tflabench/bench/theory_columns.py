"""The columns of a row that theory fills: counts, bounds, and the two percentages that hold a time against them.

`percent_of_bound` holds it against the bound of the problem, the same for every implementation that computes it;
`percent_of_own_roofline` against what the FLOPs and bytes of this implementation take. One that does its work twice has
half the first and keeps the second.
"""

from __future__ import annotations

from typing import Any

from tflabench.implementations.adapter import Implementation
from tflabench.problem import Problem
from tflabench.theory import hardware, roofline
from tflabench.theory.hardware import Ceilings

POSSIBLE = 1.1  # times the bound by a datasheet: data that stays in a cache explains no more


def modelled(impl: Implementation, problem: Problem, ceilings: Ceilings, ms: float | None) -> dict[str, Any]:
    """Return the columns of a row that theory fills, and those that compare a measured time with it.

    Of a sequence on several devices they are those of one device: all work side by side.
    """
    problem = problem.part
    count = impl.count(problem)
    bounds = roofline.time_bounds(count, ceilings)
    columns: dict[str, Any] = {
        "model_flops": count.flops,
        "model_bytes": count.bytes,
        "model_ms_lower": float(bounds.lower) * 1e3,
        "model_ms_upper": float(bounds.upper) * 1e3,
        "ceilings": f"{ceilings.provenance}: {ceilings.source}",
    }
    if ms is not None:
        columns["tflops"] = count.flops / ms / 1e9
        columns["gbps"] = count.bytes / ms / 1e6
        bound = roofline.bound_s(impl.bounded, problem, ceilings)
        columns["percent_of_bound"] = None if bound is None else 100 * bound / (ms / 1e3)
        columns["percent_of_own_roofline"] = float(roofline.percent_of_own_roofline(count, ceilings, ms / 1e3))
    return columns


def impossible(impl: Implementation, problem: Problem, device: str, ms: float | None) -> str | None:
    """Return why a time on a GPU is none: it is far below the bound of the problem by the GPU's datasheet; else None.

    Its matrix rate in 16 bits counts for every dtype: no other product is faster.
    """
    gpu = hardware.from_device_name(device)
    bound = gpu and roofline.bound_s(impl.bounded, problem.part, gpu.ceilings)
    if not (gpu and bound and ms) or bound * 1e3 <= POSSIBLE * ms:
        return None
    percent = 100 * bound * 1e3 / ms
    return f"{ms:.3g} ms are {percent:.0f}% of the bound by the datasheet of {gpu.name}: it does not do all of the work"
