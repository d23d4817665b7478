"""What the tests of figures of theory draw."""

from __future__ import annotations

from functools import cache

from repository import ROOT

from tflabench.bench.machine import Machine
from tflabench.bench.profile.counters import KernelCounters
from tflabench.bench.profile.point import Profile
from tflabench.conclusions import advise
from tflabench.conclusions.advise import Advice, Demand
from tflabench.implementations import registry
from tflabench.problem import Problem
from tflabench.selection.points import Point
from tflabench.theory import hardware, transfer
from tflabench.theory.chunk_size import Tradeoff
from tflabench.theory.cost import Cost
from tflabench.theory.hardware import Ceilings

FIG_5 = ROOT / "results" / "h200" / "paper-fig5"  # three kernels at many chunk sizes
KERNELS = {"states": 0.5, "outputs": 0.7, "grad_qk": 0.9, "grad_v": 1.1, "gates": 0.01}  # name -> ms


@cache
def tradeoff() -> Tradeoff:
    return Tradeoff(Problem(8, 8, 8192, 256, 512), "sig", hardware.find("H100").ceilings)


@cache
def advice() -> Advice:
    problem = Problem(8, 8, 8192, 256, 512, pass_="fwbw")
    return advise.advice(Demand(problem, memory_bytes=8 * 2**30), hardware.find("A100"), ["exp", "sig"], "cuda")


@cache
def gains(name: str) -> tuple[transfer.Experiment, list[transfer.Gains]]:
    experiment = transfer.Experiment(tuple(range(-12, 9)), tuple(range(-5, 13)), seq_len=64, d_qk=32, d_hv=32)
    eps = (1e-6,) if name == "3" else transfer.PAPER_EPS
    return experiment, transfer.gains(experiment, transfer.FIGURES[name], eps)


def profile(counters: bool = True) -> Profile:
    """Return a profile of five kernels, with or without counters."""
    problem = Problem(16, 16, 4096, 128, 256, chunk_size=256)
    counted = tuple(
        KernelCounters(name, 1, ms, 2e9 * ms, 2e11 * ms * (1 + n / 2), 1e10)
        for n, (name, ms) in enumerate(KERNELS.items())
    )
    return Profile(
        point=Point(registry.get("tfla_sig_xl"), problem),
        problem=problem,
        machine=Machine("cuda", "NVIDIA H200", 141 << 30),
        ms=3.4,
        parts=tuple({"name": name, "launches": 1, "ms": ms} for name, ms in KERNELS.items()),
        counted=counted if counters else (),
        why_not_counted=None if counters else "ncu is not installed",
        model=Cost(1.2e12, 6e9),
        expected=(),
        ceilings=Ceilings(8e14, 4e12, "measured", "tflabench calibrate"),
        wrong=None,
    )
