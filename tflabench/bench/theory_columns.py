"""The columns of a row that theory fills: counts, bounds, and the two percentages that hold a time against them.

`percent_of_bound` holds it against the bound of the problem, the same for every implementation that computes it;
`percent_of_own_roofline` against what the FLOPs and bytes of this implementation take. One that does its work twice has
half the first and keeps the second.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tflabench.implementations import registry
from tflabench.implementations.adapter import Implementation
from tflabench.problem import Problem
from tflabench.rows.schema import Row
from tflabench.theory import problem_bound, roofline
from tflabench.theory.hardware import Ceilings


def modelled(impl: Implementation, problem: Problem, ceilings: Ceilings, ms: float | None) -> dict[str, Any]:
    """Return the columns of a row that theory fills, and those that compare a measured time with it."""
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
        columns["percent_of_bound"] = percent_of_bound(impl, problem, ceilings, ms)
        columns["percent_of_own_roofline"] = float(roofline.percent_of_own_roofline(count, ceilings, ms / 1e3))
    return columns


def percent_of_bound(impl: Implementation, problem: Problem, ceilings: Ceilings, ms: float) -> float | None:
    """Return the bound of the problem as a percentage of a time in ms; None where it has no formula."""
    bound = problem_bound.bound_s(impl.bounded, problem, ceilings)
    return None if bound is None else 100 * bound / (ms / 1e3)


def recounted(row: Row, ceilings: Ceilings) -> Row:
    """Return a row as this version would have measured it: theory by the present counts, times as they are.

    Raises:
        KeyError: no implementation is called as the row's.
    """
    return row.model_copy(update=modelled(registry.get(row.implementation), _problem(row), ceilings, row.ms_median))


def _problem(row: Row) -> Problem:
    return Problem(**{field.name: getattr(row, field.name) for field in fields(Problem)})
