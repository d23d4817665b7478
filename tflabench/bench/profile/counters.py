"""Hardware counters of a profiled call, from the text that Nsight Compute writes (`ncu --csv --page raw`).

DRAM bytes and operations as the chip counted them: their ratio is the measured arithmetic intensity, which goes on the
roofline with the modelled one (`tflabench.theory.cost`).
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Sequence
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
        return _sum((self.tensor_flops, self.scalar_flops))

    @property
    def intensity(self) -> float | None:
        """FLOP/byte of DRAM traffic."""
        return self.flops / self.dram_bytes if self.flops is not None and self.dram_bytes else None


def total(kernels: Iterable[KernelCounters]) -> KernelCounters:
    """Return the sum over kernels: what the whole call did."""
    kernels = list(kernels)
    counters = ("dram_bytes", "tensor_flops", "scalar_flops")
    sums = {name: _sum(getattr(kernel, name) for kernel in kernels) for name in counters}
    return KernelCounters(
        "all", sum(kernel.launches for kernel in kernels), sum(kernel.ms for kernel in kernels), **sums
    )


def read_ncu(text: str) -> list[KernelCounters]:
    """Counters by kernel, in the order of first launches, of the output of `ncu --csv --page raw --print-units base`.

    The output is a CSV table among lines of other text: a header, a row of units, a row a launch. Empty without one.
    """
    import pandas as pd

    table = text[text.find('"ID",') :] if '"ID",' in text else ""
    lines = [line for line in table.splitlines() if line.startswith('"')]
    if len(lines) < 3:
        return []
    _, *launches = pd.read_csv(io.StringIO("\n".join(lines)), dtype=str, keep_default_na=False).to_dict("records")
    numbers = pd.DataFrame(launches).reindex(columns=METRICS).replace(",", "", regex=True)
    numbers = numbers.apply(pd.to_numeric, errors="coerce")  # "n/a": a counter that this GPU lacks
    half = numbers[FP16].fillna(numbers[FP16_TO_FP32])
    counted = pd.DataFrame(
        {
            "ms": 1e-6 * numbers[DURATION].fillna(0.0),
            "dram_bytes": numbers[DRAM],
            "tensor_flops": pd.concat([numbers[BF16], numbers[TF32], half], axis=1).sum(axis=1, min_count=1),
            "scalar_flops": (numbers[list(SCALAR)] * pd.Series(SCALAR)).sum(axis=1, min_count=1),
        }
    )
    names = told_apart([launch["Kernel Name"] for launch in launches], list(counted["ms"]))
    by_kernel = counted.groupby(pd.Series(names), sort=False)
    sums = by_kernel.sum(min_count=1).astype(object)
    return [
        KernelCounters(str(name), int(by_kernel.size()[name]), *values)
        for name, values in zip(sums.index, sums.where(sums.notna(), None).to_numpy().tolist(), strict=True)
    ]


def told_apart(names: Sequence[str], times: Sequence[float]) -> list[str]:
    """Return a name for every launch of a call, given its kernel and time.

    A kernel that is launched several times and takes WORTH_A_NUMBER of the time gets a number, "outputs #2". All
    launches of any other share the name.
    """
    spent = {name: sum(t for n, t in zip(names, times, strict=True) if n == name) for name in set(names)}
    least, seen = WORTH_A_NUMBER * sum(times), Counter[str]()
    labels = []
    for name in names:
        seen[name] += 1
        numbered = names.count(name) > 1 and spent[name] >= least
        labels.append(f"{name} #{seen[name]}" if numbered else name)
    return labels


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
    message = f": {errors[-1].removeprefix('==ERROR==').strip()}" if errors else ""
    return f"ncu gave no counters{message}; --no-counters leaves them out"


def _sum(values: Iterable[float | None]) -> float | None:
    counted = [value for value in values if value is not None]
    return sum(counted) if counted else None
