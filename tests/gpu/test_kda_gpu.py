"""Kimi Delta Attention on a GPU: against float64 with gates of every strength, bit-identical repeats, and fla's."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from delta_cases import Case, computed, distance, distances_of_documents, draw, expected, failures

from tflabench import ops

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

Kda = partial(Case, channels=True)
GATES = ("usual", "open", "strong", "resets", "closing")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LENGTHS = (1, 15, 63, 64, 100, 1000, 4096)
SHAPES = ((16, 16), (48, 80), (64, 64), (96, 192), (128, 128), (128, 256))
CASES = [
    # Of few steps more heads: dbeta has a number a step and head, and the error of few says nothing.
    *(Kda(T, *shape, states=True, heads=max(1, 256 // T), dtype=dtype) for T in LENGTHS
      for shape in SHAPES for dtype in DTYPES),
    *(Kda(2048, 128, 128, gates, keys, beta, 128, heads=2, sharing=2, dtype=torch.bfloat16)
      for gates in GATES for keys in ("random", "alike", "repeated") for beta in ("usual", 1.0, 2.0)),
    *(Kda(1000, 64, 64, "closing", L=L, dtype=dtype, layout="bthd") for L in (16, 64, 1024) for dtype in DTYPES),
    *(Kda(500, 128, 512, dtype=dtype, states=True) for dtype in DTYPES),
]  # fmt: skip


FUSED = [
    *(Kda(T, *shape, states=True, heads=max(4, 256 // T), dtype=torch.bfloat16) for T in LENGTHS
      for shape in SHAPES),
    *(Kda(2048, 128, 128, gates, keys, beta, 2048, heads=2, sharing=2, dtype=torch.bfloat16)
      for gates in GATES for keys in ("random", "alike", "repeated") for beta in ("usual", 1.0, 2.0)),
    *(Kda(2048, 128, 256, gates, "alike", L=L, heads=2, dtype=torch.bfloat16, states=True, layout="bthd")
      for gates in GATES for L in (256, 2048)),
    Kda(8192, 128, 128, "strong", heads=4, L=8192, dtype=torch.bfloat16),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_every_gradient(case: Case) -> None:
    assert failures(case) == []


@pytest.mark.parametrize("case", FUSED, ids=str)
def test_fused_forward_and_every_gradient(case: Case) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the fused kernels need Hopper")
    assert failures(case, "hopper") == []


@pytest.mark.parametrize("gates", ["usual", "strong"])
@pytest.mark.parametrize("implementation", ["auto", "tfla"])
def test_documents_with_states(implementation: str, gates: str) -> None:
    bounds = (0, 7, 1000, 1000, 1064, 1500, *range(1600, 4100, 100))
    errors = distances_of_documents(gates, torch.bfloat16, bounds, implementation, channels=True)
    assert max(errors) < 1.5e-2


@pytest.mark.parametrize("implementation", ["auto", "tfla"])
def test_repeated_runs_are_the_same_to_the_bit(implementation: str) -> None:
    case = Kda(4096, 128, 256, "strong", heads=8, sharing=2, L=512, dtype=torch.bfloat16, states=True)
    inputs, grads = draw(case)
    first = computed(case, inputs, grads, implementation)
    for _ in range(20):
        again = computed(case, inputs, grads, implementation)
        assert [name for name, x in first.items() if not torch.equal(x, again[name])] == []


@pytest.mark.parametrize("implementation", ["auto", "tfla"])
def test_it_is_captured_in_a_graph_and_compiled(implementation: str) -> None:
    inputs: Any = draw(Kda(1000, 64, 64, dtype=torch.bfloat16))[0]
    inputs |= {"implementation": implementation, "l2_normalize": True}
    wanted = ops.kda(**inputs)
    assert torch.equal(torch.compile(ops.kda, fullgraph=True)(**inputs), wanted)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = ops.kda(**inputs)
    o.zero_()
    graph.replay()
    assert torch.equal(o, wanted)


@pytest.mark.usefixtures("untuned")
@pytest.mark.parametrize("gates", ["usual", "strong"])
def test_fla_computes_the_same(gates: str) -> None:
    """Both against float64: ours is at most twice as far from it as fla."""
    theirs = pytest.importorskip("fla.ops.kda").chunk_kda
    case = Kda(1000, 128, 128, gates, heads=4, dtype=torch.bfloat16)
    inputs, grads = draw(case)
    truth = expected(case, inputs, grads, torch.float64)
    given: Any = {name: x.transpose(1, 2).contiguous() for name, x in inputs.items()}
    other, last = theirs(**given, output_final_state=True)
    mine = computed(case, inputs, grads)
    assert distance(mine["o"], truth["o"]) <= 2 * distance(other.transpose(1, 2), truth["o"])
    assert distance(mine["S"], truth["S"]) <= 2 * distance(last, truth["S"])
