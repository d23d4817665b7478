"""Points compared with float64, one after the other: what `tflabench verify` does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from tflabench.bench.machine import Machine
from tflabench.bench.scheduler import asks_no_less
from tflabench.bench.sweep import require_runnable
from tflabench.bench.workers import one_worker
from tflabench.selection.axes import Values
from tflabench.selection.points import Point, select_points
from tflabench.selection.presets import load_preset


class Verified(NamedTuple):
    """Hold the results of a check.

    Attributes:
        results: the errors of each point, as `Worker.verify` gives them, with its identity.
        facts: of the process that checked; none after an interrupt.
    """

    results: list[dict[str, Any]]
    facts: dict[str, Any]
    interrupted: bool


def points_to_verify(
    preset: str, axes: Mapping[str, Values], patterns: Sequence[str] | None, machine: Machine
) -> list[Point]:
    """Return the points of a preset, with every gradient unless `axes` names the pass.

    Raises:
        InputError: see `select_points`, or none of them can run on this machine.
    """
    points = select_points(load_preset(preset), {"pass": ("fwbw",), **axes}, patterns, machine.kind)
    require_runnable(points, machine.kind)
    return points


def verify(
    points: Iterable[Point], machine: Machine, *,
    plugins: Sequence[str], budget_s: float, timeout_s: float,
) -> Verified:  # fmt: skip
    """Compare points with float64, in a process of their own, up to an interrupt.

    Args:
        budget_s: that the check of one point may take.
        timeout_s: after which a point ends with the status "timeout". Those that ask no less (`asks_no_less`) do from
            then on without being tried.
    """
    results: list[dict[str, Any]] = []
    slow: list[Point] = []
    with one_worker(machine.kind, plugins, machine.host_memory_limit) as workers:
        try:
            for point in points:
                impl, problem = point.implementation, point.problem
                before = next((other.problem for other in slow if asks_no_less(point, other)), None)
                if reason := impl.refuses(problem, machine.kind):
                    result = {"status": "unsupported", "reason": reason}
                elif before:
                    size = f"B = {before.batch}, H = {before.heads}, T = {before.seq_len}"
                    result = {"status": "timeout", "reason": f"not tried: it took over {timeout_s:g} s at {size}"}
                else:
                    job = {"kind": "verify", "implementation": impl.name, "problem": asdict(problem)}
                    result = workers.ask(job | {"budget_s": budget_s}, timeout_s)
                    slow += [point] * (result["status"] == "timeout")
                identity = {"point": point.id, "implementation": impl.name, **problem.columns()}
                results.append({**identity, "errors": [], **result})
            return Verified(results, workers.facts(), interrupted=False)
        except KeyboardInterrupt:
            return Verified(results, {}, interrupted=True)
