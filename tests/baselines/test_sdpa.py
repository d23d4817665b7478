"""torch's attention as a baseline: the blockwise oracle, refusals, and every backend on a GPU."""

from __future__ import annotations

import contextlib
from math import sqrt

import pytest
import torch

from tflabench.baselines import sdpa
from tflabench.bench.verify import verify
from tflabench.implementations.adapter import Unsupported
from tflabench.problem import Problem

BY_NAME = {impl.name: impl for impl in sdpa.IMPLEMENTATIONS}


@pytest.mark.parametrize(("d_qk", "d_hv"), [(16, 16), (8, 24)])
def test_oracle_is_causal_softmax_attention(monkeypatch, d_qk, d_hv):
    monkeypatch.setattr(sdpa, "ORACLE_BLOCK", 7)  # blocks and a ragged end
    torch.manual_seed(0)
    shapes = {"q": d_qk, "k": d_qk, "v": d_hv}
    inputs = {name: torch.randn(2, 3, 30, d, dtype=torch.float64, requires_grad=True) for name, d in shapes.items()}
    q, k, v = inputs.values()
    scores = (q @ k.mT / sqrt(d_qk)).masked_fill(torch.ones(30, 30).triu(1).bool(), -torch.inf)
    expected, actual = scores.softmax(-1) @ v, sdpa.oracle(inputs)
    torch.testing.assert_close(actual, expected)
    grad = torch.randn_like(expected)
    for left, right in zip(
        torch.autograd.grad(actual, (q, k, v), grad), torch.autograd.grad(expected, (q, k, v), grad), strict=True
    ):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("d_qk", "d_hv"), [(32, 32), (16, 32)])
def test_sdpa_on_the_cpu_passes_the_gate(dtype, d_qk, d_hv):
    problem = Problem(2, 2, 100, d_qk, d_hv, dtype=dtype, pass_="fwbw")
    assert BY_NAME["sdpa"].refuses(problem, "cpu") is None
    case = BY_NAME["sdpa"].build(problem, torch.device("cpu"))
    verdict = verify(case, getattr(torch, dtype), torch.randn_like(case.forward()), 5.0)
    assert verdict.reason is None
    assert {error.name for error in verdict.errors} == {"forward", "dq", "dk", "dv"}


@pytest.mark.parametrize(
    ("name", "problem", "device", "reason"),
    [
        ("sdpa_flash", Problem(1, 1, 64, 64, 64), "cpu", "needs a CUDA GPU"),
        ("sdpa_flash", Problem(1, 1, 64, 64, 128), "cuda", "equal head dimensions, not d_qk 64 and d_hv 128"),
        ("sdpa_flash", Problem(1, 1, 64, 64, 64, dtype="float32"), "cuda", "bfloat16 and float16, not float32"),
        ("sdpa_efficient", Problem(1, 1, 64, 64, 64, dtype="float64"), "cuda", "no float64"),
        ("sdpa", Problem(1, 1, 1, 64, 64, pass_="decode"), "cuda", "only whole sequences"),
        ("sdpa_efficient", Problem(1, 1, 64, 64, 128, dtype="float32"), "cuda", None),
    ],
)
def test_refusals(name, problem, device, reason):
    assert (reason or "") in (BY_NAME[name].refuses(problem, device) or "")
    assert (BY_NAME[name].refuses(problem, device) is None) == (reason is None)


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(BY_NAME))
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_every_backend_on_a_gpu_is_right_or_says_why_not(name, head_dim):
    problem = Problem(2, 4, 1000, head_dim, head_dim, pass_="fwbw")
    device = torch.device("cuda", 0)
    unsure = name in ("sdpa_cudnn", "sdpa_efficient") and head_dim > 128  # depends on the GPU and on cuDNN
    with contextlib.suppress(Unsupported) if unsure else contextlib.nullcontext():
        case = BY_NAME[name].build(problem, device)
        assert verify(case, torch.bfloat16, grad(problem, device), 20.0).reason is None


def grad(problem: Problem, device: torch.device) -> torch.Tensor:
    shape = (problem.batch, problem.heads, problem.seq_len, problem.d_hv)
    return torch.randn(shape, device=device, dtype=torch.bfloat16)
