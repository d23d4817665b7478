"""The row of a point: what the bench measured, what theory says of it, and which sources and GPU made it.

Theory fills counts, bounds and two percentages. `percent_of_bound` holds a time against the bound of the problem, the
same for every implementation that computes it; `percent_of_own_roofline` against what the FLOPs and bytes of this
implementation take. One that does its work twice has half the first and keeps the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tflabench.bench.comparison_run import ComparisonRun, PointRun
from tflabench.bench.machine import Machine, commit, node_name, source_hash
from tflabench.bench.protocol import VERSION, Protocol
from tflabench.implementations.adapter import Implementation
from tflabench.implementations.registry import versions_used
from tflabench.problem import Problem
from tflabench.rows.schema import Row
from tflabench.theory import hardware, roofline
from tflabench.theory.hardware import Ceilings

TIMES = ("ms_median", "ms_min", "ms_p20", "ms_p80")
POSSIBLE = 1.1  # times the bound by a datasheet: data that stays in a cache explains no more


@dataclass(frozen=True)
class Occasion:
    """The facts that all rows of a sweep share.

    Attributes:
        run_id: of the sweep.
        ceilings: by dtype; a dtype without them has no theory.
    """

    run_id: str
    machine: Machine
    protocol: Protocol
    ceilings: Mapping[str, Ceilings]

    def row(self, begun: ComparisonRun, run: PointRun) -> Row:
        """Return the row of a point as it stands, provisional while its comparison is open."""
        impl = run.point.implementation
        columns = run.row_columns()
        details = columns.pop("details", {})
        used = run.point.problem.with_(chunk_size=details.pop("chunk_size", run.point.problem.chunk_size))
        ceilings = self.ceilings.get(used.dtype)
        if reason := impossible(impl, used, self.machine.name, columns.get("ms_median")):
            columns |= {"status": "wrong", "reason": columns.get("reason") or reason, **dict.fromkeys(TIMES)}
        theory = modelled(impl, used, ceilings, columns.get("ms_median")) if ceilings else {}
        return Row(
            run_id=self.run_id,
            point=run.point.id,
            comparison_id=begun.id,
            closed=begun.closed,
            noisy=begun.noisy(run),
            implementation=impl.name,
            title=impl.title,
            family=impl.family,
            gate=impl.gate,
            formulation=impl.formulation,
            package=impl.package,
            packages=versions_used(impl),
            plugin_hash=impl.plugin and impl.plugin.hash,
            kernel_version=impl.version,
            **asdict(used),
            device=self.machine.name,
            protocol=self.protocol.name,
            protocol_version=VERSION,
            commit=commit(),
            source_hash=source_hash(),
            node=node_name(),
            gpu_uuid=self.machine.uuid,
            driver=self.machine.driver,
            started_at=run.started_at,
            details=details,
            **theory,
            **columns,
        )


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
        columns["percent_of_own_roofline"] = 100 * float(bounds.lower) / (ms / 1e3)
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
