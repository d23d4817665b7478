"""Hardware counters of a profiled call, from the text that Nsight Compute writes (`ncu --csv --page raw`).

DRAM bytes and operations as the chip counted them: their ratio is the measured arithmetic intensity, which goes on the
roofline beside the modelled one (`tflabench.analysis.cost`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

DURATION, DRAM = "gpu__time_duration.sum", "dram__bytes.sum"
# FLOPs of tensor-core instructions, a multiply-add being 2, by type of the operands.
TENSOR = tuple(f"sm__ops_path_tensor_src_{source}_dst_fp32.sum" for source in ("bf16", "fp16", "tf32"))
# Metric -> FLOPs of one float32 instruction of a thread.
SCALAR = {
    f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum": flops
    for op, flops in (("ffma", 2), ("fadd", 1), ("fmul", 1))
}
METRICS = (DURATION, DRAM, *TENSOR, *SCALAR)

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SECONDS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}


@dataclass(frozen=True)
class KernelCounters:
    """All launches of one GPU kernel within a call.

    Attributes:
        ms: summed duration, with the caches emptied before each launch, as Nsight Compute does.
        dram_bytes: read and written.
        tensor_flops, scalar_flops: by tensor cores, and by float32 multiply-add, add and multiply instructions.
        None where this GPU has no such counter.
    """

    name: str
    launches: int
    ms: float
    dram_bytes: float | None
    tensor_flops: float | None
    scalar_flops: float | None

    @property
    def flops(self) -> float | None:
        known = [flops for flops in (self.tensor_flops, self.scalar_flops) if flops is not None]
        return sum(known) if known else None

    @property
    def intensity(self) -> float | None:
        """FLOP/byte of DRAM traffic."""
        return self.flops / self.dram_bytes if self.flops is not None and self.dram_bytes else None


def total(kernels: Iterable[KernelCounters]) -> KernelCounters:
    """The sum over kernels: what the whole call did."""
    kernels = list(kernels)
    return KernelCounters(
        name="all",
        launches=sum(kernel.launches for kernel in kernels),
        ms=sum(kernel.ms for kernel in kernels),
        dram_bytes=_sum(kernel.dram_bytes for kernel in kernels),
        tensor_flops=_sum(kernel.tensor_flops for kernel in kernels),
        scalar_flops=_sum(kernel.scalar_flops for kernel in kernels),
    )


def read_ncu(text: str) -> list[KernelCounters]:
    """Counters by kernel, in the order of first launches, of the output of `ncu --csv --page raw --metrics ...`.

    The output is a CSV table among lines of other text: a header, a row of units, a row a launch. Empty without one.
    """
    table = text[text.find('"ID",') :] if '"ID",' in text else ""
    lines = [line for line in table.splitlines() if line.startswith('"')]
    header, units, *launches = list(csv.reader(lines)) if len(lines) > 2 else [[], []]
    by_name: dict[str, list[dict[str, float]]] = {}
    for launch in launches:
        cells = dict(zip(header, launch, strict=True))
        numbers = {name: cells[name].replace(",", "") for name in METRICS if name in cells}
        scale = {name: _scale(unit) for name, unit in zip(header, units, strict=True) if name in numbers}
        values = {name: float(number) * scale[name] for name, number in numbers.items() if _is_number(number)}
        by_name.setdefault(cells["Kernel Name"], []).append(values)
    return [_kernel(name, counted) for name, counted in by_name.items()]


def why_not(text: str) -> str:
    """One sentence: why the output of ncu has no counters, and what to do."""
    if "ERR_NVGPUCTRPERM" in text:
        return (
            "this user may not read the GPU's counters: run as root, or have them opened to all users "
            "(driver option NVreg_RestrictProfilingToAdminUsers=0)"
        )
    if "LibraryNotLoaded" in text or "Failed to initialize the profiler" in text:
        return "the profiler cannot reach the GPU's counters from here (a sandbox or container): use another machine"
    if "No kernels were profiled" in text:
        return "the call launched no GPU kernel that ncu could see"
    errors = [line for line in text.splitlines() if line.startswith("==ERROR==")]
    said = f": {errors[-1].removeprefix('==ERROR==').strip()}" if errors else ""
    return f"ncu gave no counters{said}; --no-counters leaves them out"


def _kernel(name: str, launches: list[dict[str, float]]) -> KernelCounters:
    def summed(metrics: Mapping[str, int]) -> float | None:
        found = [
            factor * counted[metric] for counted in launches for metric, factor in metrics.items() if metric in counted
        ]
        return sum(found) if found else None

    return KernelCounters(
        name=name,
        launches=len(launches),
        ms=summed({DURATION: 1000}) or 0.0,
        dram_bytes=summed({DRAM: 1}),
        tensor_flops=summed(dict.fromkeys(TENSOR, 1)),
        scalar_flops=summed(SCALAR),
    )


def _scale(unit: str) -> float:
    """What a unit stands for in bytes, seconds or counts: "Mbyte" is 1e6, "ns" and "nsecond" 1e-9, "inst" 1."""
    if found := re.fullmatch(r"([kmgt]?)byte", unit, re.IGNORECASE):
        return _PREFIXES[found[1].lower()]
    if found := re.fullmatch(r"([num]?)s(?:econd)?", unit):
        return _SECONDS[found[1]]
    return 1.0


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:  # "n/a": a counter that this GPU lacks
        return False
    return True


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
