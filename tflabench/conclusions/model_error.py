"""Measured rows held against the published and the calibrated model: which of them either describes, and how well."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tflabench.implementations import registry
from tflabench.problem import InputError, Problem
from tflabench.rows.load import Results
from tflabench.rows.schema import Row
from tflabench.theory import calibrated
from tflabench.theory.calibrated import Judged, Modelled, median_and_worst
from tflabench.theory.hardware import Ceilings, described
from tflabench.theory.launches import Chip


@dataclass(frozen=True)
class Verdict:
    """The judgement of the models by the rows of some results folders.

    Attributes:
        judged: every measured row that the calibrated model describes.
        others: how many measured rows it does not describe, by what they are.
        titles: implementation -> title.
        days: on which the rows were measured, sorted.
    """

    judged: tuple[Judged, ...]
    others: dict[str, int]
    titles: dict[str, str]
    days: tuple[str, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the devices that the rows ran on."""
        return tuple(dict.fromkeys(row.device for row in self.judged))

    @property
    def roofs(self) -> dict[str, list[Ceilings]]:
        """By model, the ceilings it used; several where rows come from several devices or calibrations."""
        return {
            "published": list(dict.fromkeys(row.gpu.ceilings for row in self.judged)),
            "calibrated": list(dict.fromkeys(row.chip.ceilings for row in self.judged)),
        }

    def told_roofs(self) -> dict[str, list[str]]:
        """By model, its ceilings in words, those of several calibrations together as a range."""
        told = {}
        for model, used in self.roofs.items():
            alike: dict[str, list[Ceilings]] = {}
            for roofs in used:
                alike.setdefault(roofs.provenance, []).append(roofs)
            told[model] = [
                f"{_range([c.flops_per_s / 1e12 for c in several], 4)} TFLOP/s and "
                f"{_range([c.bytes_per_s / 1e12 for c in several], 3)} TB/s ({provenance}: {several[0].source})"
                for provenance, several in alike.items()
            ]
        return told


@dataclass(frozen=True)
class Errors:
    """Errors on some rows: how many, the median and the worst (see `median_and_worst`); None without rows."""

    rows: int
    median: float | None = None
    worst: float | None = None


@dataclass(frozen=True)
class Family:
    """Kernels of one algorithm and gate on one GPU, and how far the models are from their rows.

    Attributes:
        gpu: its name.
        kernels: algorithm and gate, "all" of a whole GPU.
        fitted: of the calibrated model, on rows that its constant was fitted on.
        held_out: of the calibrated model, on all others.
        published: of the published model, on the rows that are held out; it has no constant that was fitted.
    """

    gpu: str
    kernels: str
    fitted: Errors
    held_out: Errors
    published: Errors


def families(judged: Iterable[Judged]) -> list[Family]:
    """Every GPU's kernels by algorithm and gate, and all of them last."""
    groups: dict[str, dict[str, list[Judged]]] = {}
    for row in judged:
        own = groups.setdefault(row.gpu.name, {})
        for name in (f"{row.kernel.algorithm} {row.kernel.gate}", "all"):
            own.setdefault(name, []).append(row)
    return [
        _family(gpu, name, own[name]) for gpu, own in groups.items() for name in (*sorted(own.keys() - {"all"}), "all")
    ]


def _family(gpu: str, name: str, rows: list[Judged]) -> Family:
    fitted, held_out = ([row.errors for row in rows if row.held_out is out] for out in (False, True))
    return Family(
        gpu,
        name,
        fitted=_errors([calibrated for _, calibrated in fitted]),
        held_out=_errors([calibrated for _, calibrated in held_out]),
        published=_errors([published for published, _ in held_out]),
    )


def _errors(found: list[float]) -> Errors:
    return Errors(len(found), *median_and_worst(found)) if found else Errors(0)


def _range(values: list[float], digits: int) -> str:
    """Return "784.8 to 803.5", or one number where they are the same."""
    return " to ".join(dict.fromkeys(f"{value:.{digits}g}" for value in (min(values), max(values))))


def judge(found: Iterable[Results]) -> Verdict:
    """Hold measured rows against both models: of a point that one source measured twice on a GPU only the first.

    Raises:
        InputError: no row is described, or too little is known of the GPU that it ran on.
    """
    judged: list[Judged] = []
    others: dict[str, int] = {}
    rows: list[Row] = []
    folders = []
    seen: set[tuple[str, str, str]] = set()
    for results in found:
        folders.append(str(results.folder))
        for row in results.rows:
            key = (row.device, row.source_hash or row.run_id, row.point)
            if row.status != "ok" or row.ms_median is None or key in seen:
                continue
            seen.add(key)
            kernel = registry.modelled(row.implementation)
            if kernel is None or row.chunk_size is None or row.dtype not in ("bfloat16", "float16"):
                kind = f"{row.implementation} {row.dtype}" if kernel else row.implementation
                others[kind] = others.get(kind, 0) + 1
                continue
            if not registry.is_current(row.implementation, row.kernel_version):
                kind = f"{row.implementation} as it was"
                others[kind] = others.get(kind, 0) + 1
                continue
            rows.append(row)
            judged.append(_judge(row, kernel, _measured_ceilings(results, row)))
    if not judged:
        kinds = "bundled kernels (tfla_*, hopper_*) and mlstm_kernels (nxai_*), 16-bit, fw and fwbw"
        raise InputError(f"{', '.join(folders)} holds no measured row that the calibrated model describes: {kinds}")
    return Verdict(
        judged=tuple(judged),
        others=others,
        titles={row.implementation: row.title for row in rows},
        days=tuple(sorted({row.started_at[:10] for row in rows})),
    )


def _problem(row: Row) -> Problem:
    sizes = (row.batch, row.heads, row.seq_len, row.d_qk, row.d_hv, row.chunk_size)
    return Problem(*sizes, dtype=row.dtype, pass_=row.pass_)  # type: ignore[arg-type]


def _judge(row: Row, kernel: Modelled, measured: Ceilings | None) -> Judged:
    gpu = described(row.device, row.dtype)
    chip = Chip.of(gpu, measured)
    problem = _problem(row)
    return Judged(
        device=row.device,
        gpu=gpu,
        chip=chip,
        implementation=row.implementation,
        kernel=kernel,
        problem=problem,
        measured=(row.ms_median or 0.0) / 1e3,
        published=calibrated.published(problem, kernel, gpu),
        terms=calibrated.predict(problem, kernel, chip),
    )


def _measured_ceilings(results: Results, row: Row) -> Ceilings | None:
    stored = results.runs.get(row.run_id, {}).get("ceilings", {}).get(row.dtype)
    return Ceilings(**stored) if stored else None
