"""Points compared with float64, one after the other: what `tflabench verify` does."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tflabench.bench.machine import Machine
from tflabench.bench.scheduler import asks_no_less
from tflabench.bench.workers import Workers
from tflabench.selection.points import Point


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
