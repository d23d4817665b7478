"""The columns of a row that theory fills."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tflabench.implementations import registry
from tflabench.implementations.adapter import Implementation
from tflabench.problem import Problem
from tflabench.rows.schema import Row
from tflabench.theory import roofline
from tflabench.theory.hardware import Ceilings


def modelled(impl: Implementation, problem: Problem, ceilings: Ceilings, ms: float | None) -> dict[str, Any]:
    """The columns of a row that theory fills, and those that compare a measured time with it."""
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
        columns["percent_of_roofline"] = float(roofline.percent_of_roofline(count, ceilings, ms / 1e3))
    return columns


def recounted(row: Row, ceilings: Ceilings) -> Row:
    """A row as it would be if this version had measured it: its theory by the present counts, its times as they are.

    Raises:
        KeyError: no implementation is called as the row's.
    """
    problem = Problem(**{field.name: getattr(row, field.name) for field in fields(Problem)})
    return row.model_copy(update=modelled(registry.get(row.implementation), problem, ceilings, row.ms_median))
