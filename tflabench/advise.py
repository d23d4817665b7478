"""Advice from the registry: which kernels can be had for a demand, at which chunk sizes; and their measured times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

from tflabench import bundled, registry
from tflabench.adapter import Implementation
from tflabench.analysis import advise
from tflabench.analysis.advise import Choice, Demand, Kernel
from tflabench.analysis.hardware import Gpu
from tflabench.bench import Bench
from tflabench.machine import Kind
from tflabench.problem import InputError
from tflabench.sweep import Point

GATES = (*bundled.GATES, *(op.name for op in bundled.RECURRENCES))  # of the mLSTM, and the other linear RNNs
SMALLEST_CHUNK = 64
WORTH_MEMORY = 0.01  # part of the time of a step, for which more memory is worth naming
FUSED_ON = ("H100", "H200", "GH200")  # compute capability 9.0


@dataclass(frozen=True)
class Advice:
    """Choices in the order of their ranks, all that were considered, and why other kernels were not."""

    demand: Demand
    gpu: Gpu
    ranked: list[Choice]
    considered: list[Choice]
    refused: dict[str, str]

    @property
    def frontier(self) -> list[Choice]:
        """Of the memory needed against the time of a step, over all choices that fit, where memory buys time."""
        return advise.frontier([choice for choice in self.considered if choice.fits], WORTH_MEMORY)


def advice(demand: Demand, gpu: Gpu, gates: Sequence[str], kind: Kind, pattern: str | None = None) -> Advice:
    """Rank what theory says of every kernel that computes one of `gates`.

    Args:
        gates: of GATES.
        kind: of device that it is for: "cuda", or "cpu" for this machine's CPU, which has the plain PyTorch form.
        pattern: shell pattern of implementations, of libraries too; default: the bundled kernels for that kind.

    Raises:
        InputError: no kernel can run, with the first reason.
    """
    found: list[Choice] = []
    refused: dict[str, str] = {}
    for impl in registry.select(pattern) if pattern else bundled.IMPLEMENTATIONS:
        plain = impl.package == "torch"
        computes = impl.gate or impl.operation
        if not impl.chunked or computes is None or computes not in gates:
            continue
        if pattern is None and plain != (kind == "cpu"):
            continue
        kernel = Kernel(impl.name, computes, impl.modelled, impl.count)
        sizes, reason = _chunk_sizes(impl, kernel, demand, gpu, kind)
        if not sizes:
            refused[impl.name] = reason
        found += advise.choices(demand, kernel, sizes, gpu)
    if not found:
        why = "; ".join(f"{name} {reason}" for name, reason in list(refused.items())[:1])
        raise InputError(f"no kernel can run this{f': {why}' if why else ''}: change the sizes, --gate or --impl")
    return Advice(demand, gpu, advise.rank(found), found, refused)


def measure(given: Advice, bench: Bench, top: int, on_choice: Callable[[Choice], None] = lambda choice: None) -> Advice:
    """Measure the `top` choices that fit, and rank these by what was measured; failures join those refused.

    Raises:
        InputError: none could be measured, with the first reason.
    """
    measured: list[Choice] = []
    failed: dict[str, str] = {}
    for choice in [choice for choice in given.ranked if choice.fits][:top]:
        point = Point(registry.get(choice.kernel.name), choice.problem)
        row = bench.measure(point, run_id="advise", ceilings=given.gpu.ceilings)
        if row.status == "ok" and row.ms_median is not None and row.peak_bytes is not None:
            measured.append(choice.measured(given.demand, row.ms_median / 1e3, row.peak_bytes))
            on_choice(measured[-1])
        else:
            failed[f"{choice.kernel.name} at L = {choice.problem.chunk_size}"] = f"{row.status}: {row.reason}"
    if not measured:
        why = "; ".join(f"{name} {reason}" for name, reason in list(failed.items())[:1])
        raise InputError(f"nothing could be measured{f': {why}' if why else ': no choice fits the memory'}")
    return replace(given, ranked=advise.rank(measured), considered=measured, refused=given.refused | failed)


def _chunk_sizes(impl: Implementation, kernel: Kernel, demand: Demand, gpu: Gpu, kind: Kind) -> tuple[list[int], str]:
    """Powers of two up to the sequence length, and all of it, that the implementation takes, or why it takes none."""
    if kernel.algorithm == "fused" and not any(name in gpu.name for name in FUSED_ON):
        return [], f"runs on {', '.join(FUSED_ON)} only"
    last = demand.problem.seq_len
    sizes = [2**n for n in range(min(SMALLEST_CHUNK, last).bit_length() - 1, last.bit_length())]
    if last > SMALLEST_CHUNK and last not in sizes:
        sizes.append(-(-last // SMALLEST_CHUNK) * SMALLEST_CHUNK)
    if kind == "cuda" and find_spec(impl.package) is None:
        return sizes, ""  # theory needs no package; what it would refuse is not known without it
    reasons = {size: impl.refuses(demand.problem.with_(chunk_size=size), kind) for size in sizes}
    return [size for size in sizes if reasons[size] is None], str(reasons[sizes[-1]])
