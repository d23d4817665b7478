"""What the tests of figures of theory draw."""

from __future__ import annotations

from functools import cache

from repository import ROOT

from tflabench.problem import Problem
from tflabench.theory import hardware, transfer
from tflabench.theory.chunk_size import Tradeoff

FIG_5 = ROOT / "results" / "h200" / "paper-fig5"  # three kernels at many chunk sizes


@cache
def tradeoff() -> Tradeoff:
    return Tradeoff(Problem(8, 8, 8192, 256, 512), "sig", hardware.find("H100").ceilings)


@cache
def gains(name: str) -> tuple[transfer.Experiment, list[transfer.Gains]]:
    experiment = transfer.Experiment(tuple(range(-12, 9)), tuple(range(-5, 13)), seq_len=64, d_qk=32, d_hv=32)
    eps = (1e-6,) if name == "3" else transfer.PAPER_EPS
    return experiment, transfer.gains(experiment, transfer.FIGURES[name], eps)
