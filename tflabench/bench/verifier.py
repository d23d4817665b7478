"""Points compared with float64, one after the other: what `tflabench verify` does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from tflabench.bench.machine import Machine
from tflabench.bench.scheduler import asks_no_less
from tflabench.bench.sweep import require_runnable
from tflabench.bench.workers import Workers, one_worker
from tflabench.selection.axes import Values
from tflabench.selection.points import Point, select_points
from tflabench.selection.presets import load_preset


class Verifier:
    """Asks a worker for the errors of points.

    A point that takes longer than `timeout_s` seconds ends with the status "timeout". Those that ask no less
    (`asks_no_less`) do from then on without being tried.
    """

    def __init__(self, machine: Machine, workers: Workers, budget_s: float, timeout_s: float) -> None:
        self._machine = machine
        self._workers = workers
        self._budget_s = budget_s
        self._timeout_s = timeout_s
        self._timed_out: list[Point] = []

    def verify(self, point: Point) -> dict[str, Any]:
        """Return the errors of a point, as `Worker.verify` gives them, with its identity."""
        identity = {"point": point.id, "implementation": point.implementation.name, **point.problem.columns()}
        return {**identity, "errors": [], **self._result(point)}

    def _result(self, point: Point) -> dict[str, Any]:
        impl, problem = point.implementation, point.problem
        if reason := impl.refuses(problem, self._machine.kind):
            return {"status": "unsupported", "reason": reason}
        if before := next((slow.problem for slow in self._timed_out if asks_no_less(point, slow)), None):
            size = f"B = {before.batch}, H = {before.heads}, T = {before.seq_len}"
            return {"status": "timeout", "reason": f"not tried: it took over {self._timeout_s:g} s at {size}"}
        job = {"kind": "verify", "implementation": impl.name, "problem": asdict(problem), "budget_s": self._budget_s}
        result = self._workers.ask(job, self._timeout_s)
        if result["status"] == "timeout":
            self._timed_out.append(point)
        return result


class Verified(NamedTuple):
    """Hold the results of a check.

    Attributes:
        results: as `Verifier.verify` gives them.
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
    plugins: Sequence[str], budget_s: float, timeout_s: float, memory_limit: int | None = None,
) -> Verified:  # fmt: skip
    """Compare points with float64, in a process of their own, up to an interrupt.

    Args:
        budget_s, timeout_s: see `Verifier`.
        memory_limit: bytes of the host that the process may take; None for the machine's.
    """
    limit = machine.host_memory_limit if memory_limit is None else memory_limit
    results: list[dict[str, Any]] = []
    with one_worker(machine.kind, plugins, limit) as workers:
        verifier = Verifier(machine, workers, budget_s, timeout_s)
        try:
            results.extend(verifier.verify(point) for point in points)
            return Verified(results, workers.facts(), interrupted=False)
        except KeyboardInterrupt:
            return Verified(results, {}, interrupted=True)
