"""Gated Linear Attention on a GPU: against float64 up to 65,536 steps, bit-identical repeats, and fla's kernels."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from gla_cases import BOUND, GATES, Case, computed, distance, draw, expected, failures
from torch import Tensor

from tflabench import ops
from tflabench.baselines import gla_walkthrough_kernels as walkthrough
from tflabench.kernels.gla.hopper_plan import LARGEST_D_QK
from tflabench.ops import State

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

IMPLEMENTATIONS = ("hopper", "tfla")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CASES = [
    *(Case(T, 48, 80, "zeros", dtype=dtype, states=True) for T in (1, 15, 63, 64, 100, 1000) for dtype in DTYPES),
    *(Case(1000, 128, 256, gates, L=128, heads=2, dtype=dtype) for gates in GATES for dtype in DTYPES),
    *(Case(1000, d, d, "uniform", L=L, states=True) for d in (16, 64) for L in (64, 256, 1024)),
    *(Case(65536, 128, 256, gates, L=256, dtype=torch.bfloat16, states=True) for gates in ("usual", "zeros")),
    Case(65536, 64, 64, "usual", L=1024, states=True),
    Case(4000, 256, 512, "down", L=256, dtype=torch.bfloat16, layout="bthd"),
]

B16 = torch.bfloat16
FUSED = [case for case in CASES if case.dtype == B16 and case.d_qk <= LARGEST_D_QK]
FUSED += [
    *(Case(1030, *shape, gates, L=L, heads=3, dtype=B16, states=True) for gates in GATES
      for shape, L in (((128, 256), 256), ((64, 64), 4096))),
    *(Case(600, *shape, gates, L=1024, heads=40, dtype=B16, states=True) for gates in ("usual", "zeros")
      for shape in ((128, 512), (128, 128), (16, 320))),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_every_gradient(case: Case) -> None:
    assert failures(case) == []


@pytest.mark.parametrize("case", FUSED, ids=str)
def test_forward_and_every_gradient_fused(case: Case) -> None:
    skip_without_hopper("hopper")
    assert failures(case, "hopper") == []


@pytest.mark.parametrize(("T", "most"), [(4096, 3e-3), (65536, 5e-3)])
@pytest.mark.parametrize("gates", ["usual", "uniform"])
def test_gradients_of_gates_do_not_lose_digits_over_long_sequences(gates: str, T: int, most: float) -> None:
    skip_without_hopper("hopper")
    case = Case(T, 128, 256, gates, L=T, dtype=B16)
    inputs, grads = draw(case)
    truth = expected(case, inputs, grads, torch.float64)["dg"]
    assert distance(computed(case, inputs, grads, "hopper")["dg"], truth) < most


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_packed_sequences_are_sequences_of_their_own(implementation: Any, states: bool) -> None:
    skip_without_hopper(implementation)
    bounds = [0, 1, 65, 129, 129, 600, 1000]
    inputs, grads = draw(Case(1000, 128, 256, dtype=B16, heads=2))
    start, d_last = (torch.randn(len(bounds) - 1, 2, 128, 256, device="cuda") for _ in range(2))

    def of(implementation: Any, wide: torch.dtype | None = None) -> list[Tensor]:
        q, k, v, g, S, do, dS = (x.to(wide or x.dtype) for x in (*inputs.values(), start, grads["o"], d_last))
        leaves = [x.requires_grad_() for x in ((q, k, v, g, S) if states else (q, k, v, g))]
        options: Any = {"cu_seqlens": torch.tensor(bounds), "implementation": implementation}
        options |= {"initial_state": State(S), "return_last_state": True} if states else {}
        result: Any = ops.gla(*leaves[:4], **options)
        made = [result[0], result[1].C] if states else [result]
        return [x.detach() for x in (*made, *torch.autograd.grad(made, leaves, [do, dS][: len(made)]))]

    found, plain, truth = of(implementation), of("reference"), of("reference", torch.float64)
    for x, y, wanted in zip(found, plain, truth, strict=True):
        assert distance(x, wanted) < max(4e-3, 2 * distance(y, wanted))


def skip_without_hopper(implementation: str) -> None:
    if implementation == "hopper" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_walk_through(dtype: torch.dtype) -> None:
    case = Case(1000, 128, 256, "usual", heads=2, dtype=dtype, states=True)
    inputs, grads = draw(case)
    truth, plain = (expected(case, inputs, grads, precision) for precision in (torch.float64, dtype))
    o, last = walkthrough.forward(*inputs.values(), scale=case.d_qk**-0.5)
    for name, x in {"o": o, "S": last}.items():
        assert distance(x, truth[name]) < max(BOUND, 2 * distance(plain[name], truth[name]))


@pytest.mark.parametrize("gates", ["usual", "zeros"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_repeated_runs_are_the_same_to_the_bit(implementation: str, gates: str) -> None:
    skip_without_hopper(implementation)
    case = Case(4096, 128, 256, gates, L=256, heads=16, dtype=torch.bfloat16, states=True)
    inputs, grads = draw(case)
    first = computed(case, inputs, grads, implementation)
    for _ in range(20):
        again = computed(case, inputs, grads, implementation)
        assert [name for name, x in first.items() if not torch.equal(x, again[name])] == []


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_it_is_captured_in_a_graph_and_compiled(implementation: Any) -> None:
    skip_without_hopper(implementation)
    case = Case(1000, 64, 64, "zeros", dtype=torch.bfloat16)
    inputs, _ = draw(case)
    given = [inputs[name] for name in "qkvg"]
    named: Any = {"implementation": implementation}
    wanted = ops.gla(*given, **named)
    assert torch.equal(torch.compile(ops.gla, fullgraph=True)(*given, **named), wanted)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = ops.gla(*given, **named)
    o.zero_()
    graph.replay()
    assert torch.equal(o, wanted)


def test_memory_falls_with_the_chunk_size() -> None:
    """A state lies in memory every L steps."""
    case = Case(16384, 128, 256, "usual", heads=16, dtype=torch.bfloat16)
    given = [draw(case)[0][name] for name in "qkvg"]
    peaks = {}
    for L in (64, 256, 1024, 16384):
        torch.cuda.reset_peak_memory_stats()
        ops.gla(*given, chunk_size=L, implementation="tfla")
        peaks[L] = torch.cuda.max_memory_allocated()
    states = {L: 16 * 16384 // L * 128 * 256 * 2 for L in peaks}
    for L, M in ((64, 256), (256, 1024), (1024, 16384)):
        assert peaks[L] - peaks[M] == pytest.approx(states[L] - states[M], rel=0.1)


@pytest.mark.usefixtures("untuned")
@pytest.mark.parametrize("states", [False, True])
def test_fla_computes_the_same(states: bool) -> None:
    """Both against float64: ours is at most twice as far from it as fla, as plain PyTorch is."""
    fla_ops = pytest.importorskip("fla.ops.gla")
    case = Case(1000, 128, 256, "usual", heads=4, dtype=torch.bfloat16, states=states)
    inputs, grads = draw(case)
    truth = expected(case, inputs, grads, torch.float64)
    given = [inputs[name].transpose(1, 2).contiguous() for name in "qkvg"]
    initial = inputs.get("S")
    theirs, last = fla_ops.chunk_gla(*given, initial_state=initial, output_final_state=True)
    ours, our_last = ops.gla(
        *given, initial_state=None if initial is None else State(initial), return_last_state=True, layout="bthd"
    )
    for mine, other, wanted in ((ours, theirs, truth["o"].transpose(1, 2)), (our_last.C, last, truth["S"])):
        assert distance(mine, wanted) <= 2 * distance(other, wanted)


def test_a_thread_in_which_nothing_was_launched_has_the_kernels():
    case = Case(256, 128, 128, "usual", dtype=B16)
    inputs = draw(case)[0]

    def forward() -> Tensor:
        with torch.no_grad():
            return ops.gla(*(inputs[name] for name in "qkvg"), implementation="hopper")

    here = forward()
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(forward).result()
    assert torch.equal(here, there)
