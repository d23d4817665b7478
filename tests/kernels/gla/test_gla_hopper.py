"""The source of the fused kernels of Gated Linear Attention, run on the CPU (gluon_on_cpu.py), held to float64."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.importorskip("triton.experimental.gluon")

from gla_cases import Case, distance, draw
from gluon_on_cpu import GLA, Machine, launch_gla_on

from tflabench import ops
from tflabench.kernels.gla import reference
from tflabench.ops import State

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
def test_forward(case, monkeypatch):
    launch_gla_on(Machine(seed=case.T, family=GLA), monkeypatch)
    inputs, _ = draw(case)
    given = [inputs[name] for name in "qkvg"]
    if case.layout == "bthd":
        given = [x.transpose(1, 2) for x in given]
    with torch.no_grad():
        o, last = ops.gla(
            *given,
            initial_state=State(inputs["S"]),
            return_last_state=True,
            chunk_size=case.L,
            layout=case.layout,
            implementation="hopper",
        )
    if case.layout == "bthd":
        o = o.transpose(1, 2)
    q, k, v, g = (inputs[n].double() for n in "qkvg")
    ro, rl = reference.chunkwise(q, k, v, g, None, State(inputs["S"].double()), chunk_size=16)
    print(distance(o, ro), distance(last.C, rl.C))
    assert distance(o, ro) < 8e-3
    assert distance(last.C, rl.C) < 8e-3
