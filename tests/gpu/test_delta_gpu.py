"""The delta rules on a GPU: against float64 in all shapes, bit-identical repeats, and fla's kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from delta_cases import BOUND, Case, computed, distance, distances_of_documents, draw, expected, failures, operation

from tflabench import ops
from tflabench.kernels.delta.hopper_plan import LARGEST_D_QK
from tflabench.ops import State

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

IMPLEMENTATIONS = ("hopper", "tfla")
GATES = ("none", "usual", "open", "strong", "resets")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((16, 16), (48, 80), (64, 64), (96, 192), (128, 128), (128, 256))
CASES = [
    # Of few steps more heads: the error of one number says nothing.
    *(Case(T, *shape, states=True, heads=16 if T < 63 else 1, dtype=dtype) for T in (1, 15, 63, 64, 100, 1000)
      for shape in SHAPES for dtype in DTYPES),
    *(Case(4096, 128, 256, gates, keys, beta, 256, heads=2, sharing=2, dtype=torch.bfloat16)
      for gates in GATES for keys in ("random", "alike", "repeated")
      for beta in ("usual", 1.0, 2.0)),
    *(Case(1000, 64, 64, "resets", L=L, dtype=dtype, layout="bthd") for L in (16, 64, 256, 1024) for dtype in DTYPES),
    *(Case(1000, 256, 512, dtype=dtype, states=True) for dtype in DTYPES),
]  # fmt: skip
FUSED = [case for case in CASES if case.dtype != torch.float32 and case.d_qk <= LARGEST_D_QK]
FUSED += [Case(700, 128, 128, gates, heads=40, sharing=4, dtype=torch.bfloat16, states=True) for gates in GATES[::4]]
FUSED += [Case(8192, 128, 128, gates, L=1024, heads=2, dtype=torch.bfloat16, states=True) for gates in GATES[:4]]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_every_gradient(case: Case) -> None:
    assert failures(case) == []


@pytest.mark.parametrize("case", FUSED, ids=str)
def test_forward_and_every_gradient_fused(case: Case) -> None:
    skip_without_hopper("hopper")
    assert failures(case, "hopper") == []


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_documents_are_one_launch(dtype: torch.dtype, implementation: str) -> None:
    skip_without_hopper(implementation)
    bounds = (0, 7, 1000, 1000, 1064, 1500, *range(1600, 4100, 100))
    errors = distances_of_documents("usual", dtype, bounds, implementation)
    assert max(errors) < (2e-3 if dtype == torch.float16 else 1.5e-2)


def skip_without_hopper(implementation: str) -> None:
    if implementation == "hopper" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_repeated_runs_are_the_same_to_the_bit(implementation: str) -> None:
    skip_without_hopper(implementation)
    case = Case(4096, 128, 256, heads=8, sharing=2, L=256, dtype=torch.bfloat16, states=True)
    inputs, grads = draw(case)
    first = computed(case, inputs, grads, implementation)
    for _ in range(20):
        again = computed(case, inputs, grads, implementation)
        assert [name for name, x in first.items() if not torch.equal(x, again[name])] == []


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_it_is_captured_in_a_graph_and_compiled(implementation: str) -> None:
    skip_without_hopper(implementation)
    inputs: Any = draw(Case(1000, 64, 64, dtype=torch.bfloat16))[0]
    inputs |= {"implementation": implementation, "l2_normalize": True}
    wanted = ops.gated_delta_net(**inputs)
    assert torch.equal(torch.compile(ops.gated_delta_net, fullgraph=True)(**inputs), wanted)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = ops.gated_delta_net(**inputs)
    o.zero_()
    graph.replay()
    assert torch.equal(o, wanted)


@pytest.mark.parametrize(("L", "channels"), [(256, False), (2048, False), (256, True)])
@pytest.mark.parametrize("length", [1e-3, 300.0])
def test_kernels_divide_by_norms_without_gradients(length: float, L: int, channels: bool) -> None:
    """And are as near to float64 as twice plain PyTorch, however long q and k are."""
    skip_without_hopper("hopper")
    inputs, _ = draw(Case(2000, 128, 192, "resets", heads=2, sharing=2, dtype=torch.bfloat16, channels=channels))
    inputs |= {name: inputs[name] * length for name in "qk"}
    run, options = operation(inputs), {"l2_normalize": True, "chunk_size": L}
    made, plain = (run(**inputs, **options, implementation=name) for name in ("hopper", "reference"))
    exact = run(**{name: x.double() for name, x in inputs.items()}, **options, implementation="reference")
    assert distance(made, exact) <= 2 * distance(plain, exact)


@pytest.mark.parametrize(("gates", "channels"), [("none", False), ("usual", False), ("usual", True)])
def test_steps_are_the_sequence(gates: str, channels: bool) -> None:
    inputs, _ = draw(Case(20, 128, 256, gates, heads=4, sharing=2, states=True, channels=channels))
    state, options = State(inputs.pop("S")), {"l2_normalize": True}
    run, step = (operation(inputs, end) for end in ("", "_step"))
    o, last = run(**inputs, initial_state=State(state.C.clone()), return_last_state=True, **options)
    for t in range(20):
        o_t = step(**{name: x[:, :, t] for name, x in inputs.items()}, state=state, implementation="triton", **options)
        assert distance(o_t, o[:, :, t]) <= BOUND
    assert distance(state.C, last.C) <= BOUND


@pytest.mark.usefixtures("untuned")
@pytest.mark.parametrize("gates", ["none", "usual"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_fla_computes_the_same(gates: str, implementation: str) -> None:
    """Both against float64: ours is at most twice as far from it as fla."""
    skip_without_hopper(implementation)
    name = "delta_rule" if gates == "none" else "gated_delta_rule"
    theirs = getattr(pytest.importorskip(f"fla.ops.{name}"), f"chunk_{name}")
    case = Case(1000, 128, 256, gates, heads=4, dtype=torch.bfloat16)
    inputs, grads = draw(case)
    truth = expected(case, inputs, grads, torch.float64)
    given: Any = {name: x.transpose(1, 2).contiguous() for name, x in inputs.items()}
    other, last = theirs(**given, output_final_state=True)
    mine = computed(case, inputs, grads, implementation)
    assert distance(mine["o"], truth["o"]) <= 2 * distance(other.transpose(1, 2), truth["o"])
    assert distance(mine["S"], truth["S"]) <= 2 * distance(last, truth["S"])
