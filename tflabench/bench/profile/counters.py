"""Hardware counters of a profiled call, from the text that Nsight Compute writes (`ncu --csv --page raw`).

DRAM bytes and operations as the chip counted them: their ratio is the measured arithmetic intensity, which goes on the
roofline with the modelled one (`tflabench.theory.cost`).
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

DURATION, DRAM = "gpu__time_duration.sum", "dram__bytes.sum"
# FLOPs of tensor-core instructions by type of the operands, a multiply-add being 2: a product of 4096^3 in bfloat16
# counted 2 * 4096**3 on an H200. Of float16's two names a GPU has the first, or the second within it.
BF16, TF32 = "sm__ops_path_tensor_src_bf16_dst_fp32.sum", "sm__ops_path_tensor_src_tf32_dst_fp32.sum"
FP16, FP16_TO_FP32 = "sm__ops_path_tensor_src_fp16.sum", "sm__ops_path_tensor_src_fp16_dst_fp32.sum"
# Metric -> FLOPs of one float32 instruction of a thread.
SCALAR = {
    f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum": flops
    for op, flops in (("ffma", 2), ("fadd", 1), ("fmul", 1))
}
METRICS = (DURATION, DRAM, BF16, TF32, FP16, FP16_TO_FP32, *SCALAR)
WORTH_A_NUMBER = 0.05  # of a call's time, from which the launches of one kernel are told apart

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SECONDS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}


@dataclass(frozen=True)
class KernelCounters:
    """One GPU kernel within a call: all its launches, or one of those that `told_apart` numbers.

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
        """Return the operations counted, of matrix and of other units; None where neither was."""
        known = [flops for flops in (self.tensor_flops, self.scalar_flops) if flops is not None]
        return sum(known) if known else None

    @property
    def intensity(self) -> float | None:
        """FLOP/byte of DRAM traffic."""
        return self.flops / self.dram_bytes if self.flops is not None and self.dram_bytes else None


def total(kernels: Iterable[KernelCounters]) -> KernelCounters:
    """Return the sum over kernels: what the whole call did."""
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
    names, counted = [], []
    for launch in launches:
        cells = dict(zip(header, launch, strict=True))
        numbers = {name: cells[name].replace(",", "") for name in METRICS if name in cells}
        scale = {name: _scale(unit) for name, unit in zip(header, units, strict=True) if name in numbers}
        names.append(cells["Kernel Name"])
        counted.append({name: float(number) * scale[name] for name, number in numbers.items() if _is_number(number)})
    by_name: dict[str, list[dict[str, float]]] = {}
    for name, values in zip(told_apart(names, [c.get(DURATION, 0.0) for c in counted]), counted, strict=True):
        by_name.setdefault(name, []).append(values)
    return [_kernel(name, values) for name, values in by_name.items()]


def told_apart(names: Sequence[str], times: Sequence[float]) -> list[str]:
    """Return a name for every launch of a call, given its kernel and time.

    A kernel that is launched several times and takes WORTH_A_NUMBER of the time gets a number, "outputs #2". All
    launches of any other share the name.
    """
    spent = {name: sum(t for n, t in zip(names, times, strict=True) if n == name) for name in set(names)}
    least, seen = WORTH_A_NUMBER * sum(times), Counter[str]()
    found = []
    for name in names:
        seen[name] += 1
        numbered = names.count(name) > 1 and spent[name] >= least
        found.append(f"{name} #{seen[name]}" if numbered else name)
    return found


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
        tensor_flops=summed(dict.fromkeys((BF16, TF32, FP16 if FP16 in launches[0] else FP16_TO_FP32), 1)),
        scalar_flops=summed(SCALAR),
    )


def _scale(unit: str) -> float:
    """Return the bytes, seconds or counts of a unit: "Mbyte" is 1e6, "ns" and "nsecond" 1e-9, "inst" 1."""
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
