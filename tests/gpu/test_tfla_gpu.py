"""The TFLA kernels on a GPU: every case against float64, repeats, very large tensors, the paper's error table."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tflabench.kernels.tfla import chunkwise
from tflabench.kernels.types import MLSTM_SIG

sys.path.insert(0, str(Path(__file__).parents[1]))
from tfla_cases import MAMBA2_HEADS, Case, cases, computed, draw, failures, mean_absolute_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("case", cases(), ids=str)
def test_at_most_twice_as_wrong_as_plain_pytorch(case: Case) -> None:
    assert failures(case) == []


@pytest.mark.parametrize("gate", ["exp", "sig"])
@pytest.mark.parametrize(
    "sizes", [{}, {"d_qk": 128, "d_hv": 256, "L": 128, "T": 1000}, {"batch": 1, "heads": 1, "T": 8192}]
)
def test_two_hundred_random_inputs_give_the_same_bits_twice(gate: str, sizes: dict[str, int]) -> None:
    case = Case(gate=gate, states=True, **sizes)  # type: ignore[arg-type]
    for seed in range(200):
        inputs, grads = draw(case, seed)
        one, two = computed(case, inputs, grads), computed(case, inputs, grads)
        assert all(torch.equal(one[name], two[name]) for name in one), seed


def test_heads_are_summed_in_the_same_order_every_time() -> None:
    case = replace(MAMBA2_HEADS, heads=64, sharing=64, T=4096)
    for seed in range(20):
        inputs, grads = draw(case, seed)
        one, two = computed(case, inputs, grads), computed(case, inputs, grads)
        assert all(torch.equal(one[name], two[name]) for name in one), seed


def test_more_elements_than_an_int32_counts() -> None:
    B, H, T, d_qk, d_hv = 9, 16, 65536, 128, 256
    if torch.cuda.mem_get_info()[0] < 48 * 2**30:
        pytest.skip("needs 48 GiB of free GPU memory")
    torch.manual_seed(0)
    q, k, v, dh = (torch.randn(B, H, T, d, device="cuda", dtype=torch.bfloat16) for d in (d_qk, d_qk, d_hv, d_hv))
    assert v.numel() > 2**31
    f, i = torch.randn(B, H, T, device="cuda") + 3, torch.randn(B, H, T, device="cuda")
    options = {"gate": MLSTM_SIG, "scale": d_qk**-0.5, "chunk_size": 256}
    h, last, saved = chunkwise.forward(q, k, v, f, i, None, **options)
    assert last is not None
    grads = chunkwise.backward(dh, None, q, k, v, f, i, None, saved, **options)
    end = [x[-1:].clone() for x in (q, k, v, f, i)]
    h_end, last_end, saved = chunkwise.forward(*end, None, **options)  # type: ignore[arg-type]
    grads_end = chunkwise.backward(dh[-1:].clone(), None, *end, None, saved, **options)  # type: ignore[arg-type]
    pairs = [(h, h_end), (last.C, last_end.C), *zip(grads[:5], grads_end[:5], strict=True)]
    for x, y in pairs:
        assert x is not None
        assert y is not None
        error = (x[-1:].float() - y.float()).norm() / y.float().norm()
        assert error < 1e-2


@pytest.mark.parametrize(("dtype", "published"), [(torch.float32, 7.86e-4), (torch.bfloat16, 2.905e-3)], ids=str)
@pytest.mark.parametrize("L", [64, 128, 256, 512, 1024, 2048])
def test_no_larger_errors_than_published(L: int, dtype: torch.dtype, published: float) -> None:
    assert mean_absolute_error(L, dtype) <= published
