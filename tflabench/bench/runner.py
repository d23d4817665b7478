"""Runs a plan: one job a point on an executor, one row a point in a store, with what theory says beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from math import inf
from typing import Any
from uuid import uuid4

from tflabench.bench.ceilings import ceilings_of
from tflabench.bench.executor import Executor
from tflabench.bench.machine import Machine, environment
from tflabench.bench.protocol import Protocol
from tflabench.bench.theory_columns import modelled
from tflabench.problem import InputError
from tflabench.rows.journal import Store
from tflabench.rows.schema import Row
from tflabench.selection.points import Point
from tflabench.theory.hardware import Ceilings


class Bench:
    """A machine, an executor on it, and the rules that every point is measured by.

    A point that takes longer than `timeout_s` ends with the status "timeout", and those that ask no less
    (`asks_no_less`) do from then on without being tried: tuning alone may take that long at every size.
    """

    def __init__(self, machine: Machine, executor: Executor, protocol: Protocol, timeout_s: float) -> None:
        self.machine = machine
        self.executor = executor
        self.protocol = protocol
        self.timeout_s = timeout_s
        self._timed_out: list[Point] = []

    def sweep(self, points: Sequence[Point], store: Store, on_row: Callable[[Row], None], stop_at: float = inf) -> None:
        """Measure the points in order; each row is on disk before `on_row` is called with it.

        From `stop_at` on, a time of `time.monotonic`, no further point is started.
        """
        run_id = uuid4().hex[:12]
        facts = self.executor.facts()
        ceilings = ceilings_of(self.machine, (point.problem.dtype for point in points), self.executor)
        described = {"ceilings": {dtype: asdict(found) for dtype, found in ceilings.items()}}
        store.describe_run(run_id, environment(self.machine, facts) | described)
        for point in points:
            if time.monotonic() >= stop_at:
                return
            row = self.measure(point, run_id, ceilings[point.problem.dtype])
            store.append(row)
            on_row(row)

    def measure(self, point: Point, run_id: str, ceilings: Ceilings) -> Row:
        """One point, whatever happens to it."""
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        impl = point.implementation
        result = self._do("measure", point, protocol=asdict(self.protocol))
        details = result.pop("details", {})
        used = point.problem.with_(chunk_size=details.pop("chunk_size", point.problem.chunk_size))
        return Row(
            run_id=run_id,
            point=point.id,
            implementation=impl.name,
            title=impl.title,
            family=impl.family,
            gate=impl.gate,
            formulation=impl.formulation,
            package=impl.package,
            **asdict(used),
            device=self.machine.name,
            protocol=self.protocol.name,
            started_at=started_at,
            details=details,
            **modelled(impl, used, ceilings, result.get("ms_median")),
            **result,
        )

    def verify(self, point: Point) -> dict[str, Any]:
        """Return the errors of a point against float64, as `Worker.verify` gives them, with its identity."""
        result = self._do("verify", point, budget_s=self.protocol.verify_s)
        return {
            "point": point.id,
            "implementation": point.implementation.name,
            **point.problem.columns(),
            "errors": [],
            **result,
        }

    def _do(self, kind: str, point: Point, **arguments: Any) -> dict[str, Any]:
        impl, problem = point.implementation, point.problem
        if reason := impl.refuses(problem, self.machine.kind):
            return {"status": "unsupported", "reason": reason}
        if before := next((slow.problem for slow in self._timed_out if asks_no_less(point, slow)), None):
            size = f"B = {before.batch}, H = {before.heads}, T = {before.seq_len}"
            return {"status": "timeout", "reason": f"not tried: it took over {self.timeout_s:g} s at {size}"}
        job = {"kind": kind, "implementation": impl.name, "problem": asdict(problem), **arguments}
        result = self.executor.run(job, self.timeout_s)
        if result["status"] == "timeout":
            self._timed_out.append(point)
        return result


def asks_no_less(point: Point, of: Point) -> bool:
    """Whether a point is the same but for its size, with at least as many steps a sequence and in all.

    Other head dimensions, dtypes and chunk sizes are other kernels, and shorter sequences may be faster.
    """
    this, that = point.problem, of.problem
    alike = this.with_(batch=that.batch, heads=that.heads, seq_len=that.seq_len, seed=that.seed) == that
    no_smaller = this.seq_len >= that.seq_len and this.tokens * this.heads >= that.tokens * that.heads
    return point.implementation == of.implementation and alike and no_smaller


def pending(points: Sequence[Point], store: Store, protocol: Protocol, device: str) -> list[Point]:
    """The points without a row, and then those with a failed one, or measured under another protocol.

    In this order, so that a sweep of a fixed time gets on however long the failures take again.
    """

    def done(point: Point) -> bool:
        row = store.rows.get(point.id)
        if row is None:
            return False
        if row.status == "unsupported":
            return point.implementation.refuses(point.problem, device) is not None
        return row.status == "ok" and row.protocol == protocol.name

    return sorted((point for point in points if not done(point)), key=lambda point: point.id in store.rows)


def require_runnable(points: Sequence[Point], device: str) -> None:
    """A plan of which nothing can run is a mistake, not data.

    Raises:
        InputError: every point is refused; with the first reason.
    """
    reasons = []
    for point in points:
        reason = point.implementation.refuses(point.problem, device)
        if reason is None:
            return
        reasons.append(f"{point.implementation.name}: {reason}")
    raise InputError(f"none of the {len(points)} points can run on {device}: {reasons[0]}")
