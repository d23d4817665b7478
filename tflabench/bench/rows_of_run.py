"""The row of a point: what the bench measured, what theory says of it, and which sources and GPU made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tflabench.bench.comparison_run import ComparisonRun, PointRun
from tflabench.bench.machine import Machine
from tflabench.bench.protocol import VERSION, Protocol
from tflabench.bench.provenance import commit, source_hash
from tflabench.bench.theory_columns import impossible, modelled
from tflabench.implementations.registry import versions_used
from tflabench.rows.schema import Row
from tflabench.theory.hardware import Ceilings

TIMES = ("ms_median", "ms_min", "ms_p20", "ms_p80")


@dataclass(frozen=True)
class Occasion:
    """The facts that all rows of a sweep share.

    Attributes:
        run_id: of the sweep.
        ceilings: by dtype; a dtype without them has no theory.
        gpu_uuid: of the GPU; None on a CPU.
        mixed_versions: in what this node's versions differ from those of the process that drives the sweep.
    """

    run_id: str
    machine: Machine
    protocol: Protocol
    ceilings: Mapping[str, Ceilings]
    node: str
    gpu_uuid: str | None = None
    mixed_versions: str | None = None

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
            node=self.node,
            mixed_versions=self.mixed_versions,
            gpu_uuid=self.gpu_uuid,
            driver=self.machine.driver,
            started_at=run.started_at,
            details=details,
            **theory,
            **columns,
        )
