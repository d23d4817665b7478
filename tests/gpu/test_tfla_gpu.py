"""The TFLA kernels on a GPU: every case against float64, repeats, very large tensors, the paper's error table."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tfla_cases import (
    MAMBA2_HEADS,
    Case,
    cases,
    computed,
    draw,
    errors_of_the_last_of_a_large_batch,
    failures,
    mean_absolute_error,
)

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
    assert max(errors_of_the_last_of_a_large_batch(chunk_size=256)) < 1e-2


@pytest.mark.parametrize(("dtype", "published"), [(torch.float32, 7.86e-4), (torch.bfloat16, 2.905e-3)], ids=str)
@pytest.mark.parametrize("L", [64, 128, 256, 512, 1024, 2048])
def test_no_larger_errors_than_published(L: int, dtype: torch.dtype, published: float) -> None:
    assert mean_absolute_error(L, dtype) <= published
