"""The source of the fused kernels of Gated Linear Attention, run on the CPU (gluon_on_cpu.py), held to float64."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.importorskip("triton.experimental.gluon")

from gla_cases import Case, failures
from gluon_on_cpu import GLA, Machine, launch_gla_on

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the rest is computed in Triton's interpreter")

B16 = torch.bfloat16
CASES = [
    Case(3, 48, 80, dtype=B16, heads=2, states=True),
    Case(200, 64, 192, dtype=B16, states=True, L=64),
    Case(150, 128, 256, "uniform", L=1024, dtype=B16, states=True, layout="bthd"),
    Case(130, 16, 320, "zeros", L=1024, dtype=B16, states=True, heads=2),
    Case(130, 16, 16, "closed", L=64, dtype=B16, states=True, heads=2),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_every_gradient(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    launch_gla_on(Machine(seed=case.T, family=GLA), monkeypatch)
    assert failures(case, "hopper") == []
