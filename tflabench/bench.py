"""Runs a plan: one job a point on an executor, one row a point in a store, with what theory says beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from math import inf
from typing import Any
from uuid import uuid4

from tflabench import registry
from tflabench.adapter import Implementation
from tflabench.analysis import hardware, roofline
from tflabench.analysis.hardware import Ceilings
from tflabench.executor import Executor
from tflabench.machine import Machine, environment
from tflabench.problem import InputError, Problem
from tflabench.protocol import Protocol
from tflabench.store import Row, Store
from tflabench.sweep import Point

# Seconds a point takes besides its samples (build, compile, verify, memory pass), and how far plain code stays below
# the roofline: rough, for the estimate of --dry-run and the progress bar.
OVERHEAD_S = {"cuda": 3.0, "cpu": 0.4}
SLOWDOWN = {"cuda": 3.0, "cpu": 10.0}
CALIBRATED_DTYPES = {"cuda": ("bfloat16", "float16", "float32"), "cpu": ("bfloat16", "float32", "float64")}


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
        """Errors of a point against float64, as `tflabench.worker.Worker.verify` gives them, with its identity."""
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


def ceilings_of(machine: Machine, dtypes: Iterable[str], executor: Executor) -> dict[str, Ceilings]:
    """Ceilings by dtype: calibrated ones where stored, else the datasheet's, else measured now, quickly, and stored."""
    dtypes = sorted(set(dtypes))
    missing = [dtype for dtype in dtypes if hardware.ceilings_for(machine.name, dtype) is None]
    if missing:
        calibrate(machine, missing, executor, seconds=1.5)
    return {dtype: hardware.ceilings_for(machine.name, dtype) for dtype in dtypes}  # type: ignore[misc]


def calibrate(machine: Machine, dtypes: Sequence[str], executor: Executor, seconds: float) -> dict[str, Ceilings]:
    """Measure the ceilings of a machine by dtype and store them for it.

    Raises:
        InputError: the measurement failed, with its reason.
    """
    result = executor.run(
        {"kind": "calibrate", "dtypes": list(dtypes), "seconds": seconds}, timeout_s=60 + 10 * seconds
    )
    if result["status"] != "ok":
        raise InputError(f"{machine.name} cannot be calibrated: {result['reason']}")
    source = f"tflabench calibrate, {seconds:g} s: copy of a large buffer (read + write), square matrix products"
    measured = {
        dtype: Ceilings(flops_per_s, bytes_per_s, "measured", source)
        for dtype, (flops_per_s, bytes_per_s) in result["ceilings"].items()
    }
    for dtype, ceilings in measured.items():
        hardware.store_ceilings(machine.name, dtype, ceilings)
    return measured


@dataclass(frozen=True)
class Estimate:
    """Before a point runs: about how many seconds it takes, and how many bytes it needs at least."""

    seconds: float
    bytes: int


def estimate(point: Point, machine: Machine, protocol: Protocol) -> Estimate:
    """From the cost model and the ceilings known so far; refused points take nothing."""
    impl, problem = point.implementation, point.problem
    if impl.refuses(problem, machine.kind):
        return Estimate(0.0, 0)
    tokens = problem.tokens * problem.heads
    copies = 2 if problem.pass_ == "fwbw" else 1  # gradients of the inputs and of the output beside them
    needed = copies * tokens * 2 * (problem.d_qk + problem.d_hv) * problem.element_bytes
    seconds = protocol.budget_s
    if ceilings := hardware.ceilings_for(machine.name, problem.dtype):
        call_s = modelled(impl, problem, ceilings, None)["model_ms_upper"] / 1e3 * SLOWDOWN[machine.kind]
        calls = protocol.warmup_iterations + protocol.min_samples
        seconds = call_s * calls + min(protocol.budget_s, call_s * protocol.max_samples)
    return Estimate(OVERHEAD_S[machine.kind] + seconds, needed)
