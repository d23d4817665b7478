"""Measured rows held against the published and the calibrated model: which of them either describes, and how well."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tflabench.analysis import calibrated
from tflabench.analysis.calibrated import Judged
from tflabench.analysis.hardware import Ceilings, Gpu, described
from tflabench.analysis.launches import Chip
from tflabench.problem import InputError, Problem
from tflabench.store import Results, Row


@dataclass(frozen=True)
class Verdict:
    """What the models say of the rows of some results folders.

    Attributes:
        judged: every measured row that the calibrated model describes.
        others: how many measured rows it does not describe, by what they are.
        titles: implementation -> title.
        gpu, chip: of the rows; the chip's ceilings are the measured ones where a run has stored them.
        devices, days: that the rows come from.
    """

    judged: tuple[Judged, ...]
    others: dict[str, int]
    titles: dict[str, str]
    gpu: Gpu
    chip: Chip
    devices: tuple[str, ...]
    days: tuple[str, ...]


def judge(found: Iterable[Results]) -> Verdict:
    """Hold every measured row against both models.

    Raises:
        InputError: no row is described, or too little is known of the GPU that it ran on.
    """
    judged: list[Judged] = []
    others: dict[str, int] = {}
    used: list[tuple[Row, Gpu, Chip]] = []
    folders = []
    for results in found:
        folders.append(str(results.folder))
        for row in results.rows:
            if row.status != "ok" or row.ms_median is None:
                continue
            algorithm = calibrated.algorithm_of(row.implementation, row.formulation, row.package, row.gate)
            if algorithm is None or row.pass_ == "decode" or row.dtype not in ("bfloat16", "float16"):
                kind = f"{row.implementation} {row.dtype}" if algorithm else row.implementation
                others[kind] = others.get(kind, 0) + 1
                continue
            gpu = described(row.device, row.dtype)
            chip = Chip.of(gpu, _measured_ceilings(results, row))
            problem = Problem(
                row.batch, row.heads, row.seq_len, row.d_qk, row.d_hv, row.chunk_size, row.dtype, row.pass_  # type: ignore[arg-type]
            )  # fmt: skip
            asked = (problem, row.gate, algorithm)
            judged.append(
                Judged(
                    row.implementation, row.gate, algorithm, problem,  # type: ignore[arg-type]
                    row.ms_median / 1e3, calibrated.published(*asked, gpu), calibrated.predict(*asked, chip),  # type: ignore[arg-type]
                )
            )  # fmt: skip
            used.append((row, gpu, chip))
    if not judged:
        kinds = "bundled kernels (tfla_*, hopper_*) and mlstm_kernels (nxai_*), 16-bit, fw and fwbw"
        raise InputError(f"{', '.join(folders)} holds no measured row that the calibrated model describes: {kinds}")
    _, gpu, chip = used[-1]
    return Verdict(
        judged=tuple(judged),
        others=others,
        titles={row.implementation: row.title for row, _, _ in used},
        gpu=gpu,
        chip=chip,
        devices=tuple(dict.fromkeys(row.device for row, _, _ in used)),
        days=tuple(sorted({row.started_at[:10] for row, _, _ in used})),
    )


def _measured_ceilings(results: Results, row: Row) -> Ceilings | None:
    stored = results.runs.get(row.run_id, {}).get("ceilings", {}).get(row.dtype)
    return Ceilings(**stored) if stored else None
