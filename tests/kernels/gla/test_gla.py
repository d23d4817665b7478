"""Gated Linear Attention: its forms in PyTorch, its kernels in Triton's interpreter, and the operation around them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from by_steps import by_steps
from gla_cases import BOUND, DEVICE, GATES, Case, computed, distance, draw, expected, failures

from tflabench import ops
from tflabench.baselines import gla_walkthrough_kernels as walkthrough
from tflabench.implementations import registry
from tflabench.implementations.packages import taken_as_installed
from tflabench.kernels import chunkwise_operator
from tflabench.kernels.chunkwise_operator import setup_key
from tflabench.kernels.common.cover import next_power_of_2
from tflabench.kernels.compat import fla
from tflabench.kernels.gla import plan as plan
from tflabench.kernels.gla import reference
from tflabench.kernels.gla.plan import Blocks
from tflabench.ops import State
from tflabench.problem import Problem


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks as large as with 16 bits, of 64 steps: few programs, which the interpreter takes one after the other."""

    def for_shape(d_qk: int, d_hv: int, size: int, chunk_size: int) -> Blocks:
        qk, hv = max(16, next_power_of_2(d_qk)), max(16, next_power_of_2(d_hv))
        return Blocks(plan.largest_tile(chunk_size, 64), qk, qk, qk, hv, qk, hv, hv)

    monkeypatch.setattr(Blocks, "for_shape", staticmethod(for_shape))


CASES = [
    *(Case(T, 16, 16, "zeros", states=True) for T in (1, 15, 63, 64)),
    Case(100, 48, 80, "usual", L=128, states=True),
    *(Case(100, 64, 64, gates) for gates in GATES),
    Case(200, 16, 32, "closed", L=192, states=True, layout="bthd"),
    Case(100, 128, 256, "down"),
    Case(1000, 16, 16, "usual", L=256),
    Case(1000, 16, 16, "zeros", L=1024, states=True),
    Case(1, 48, 80, "zeros", dtype=torch.float16, states=True),  # all of dg comes from the initial state
    Case(512, 32, 64, "usual", L=512, dtype=torch.float16),  # the errors of eight tiles add up in dg
]


@pytest.mark.usefixtures("large")
def test_large_values_in_float16_stay_finite() -> None:
    """Weighted from one reference of the tile they would not: q here is 1000, weights reach 2^8."""
    torch.manual_seed(0)
    q, k, v, do = (torch.randn(1, 1, 64, 16, device=DEVICE) for _ in range(4))
    given = [x.half().requires_grad_() for x in (1000 * q.sign(), 1e-3 * k.sign(), v)]
    g = torch.full((1, 1, 64, 16), -0.17, device=DEVICE, requires_grad=True)
    found = []
    for implementation in ("tfla", "reference"):
        o = ops.gla(*given, g, implementation=implementation)  # type: ignore[arg-type]
        found.append([o, *torch.autograd.grad(o, (*given, g), do.half())])
    for ours, wanted in zip(*found, strict=True):
        assert distance(ours, wanted.double()) < 4e-3


def test_the_gradient_of_a_turned_state_is_turned() -> None:
    """As operators tell compilers that it is."""
    inputs, _ = draw(Case(20, 16, 32, states=True))
    S = inputs["S"].mT.contiguous().mT
    key = setup_key("tfla", ops.GLA.family, ops.GLA.fields, torch.float32, None)
    tensors = (None, None, *(inputs[name] for name in "qkvg"), None, S, None, None, [])
    numbers = (0.25, 1.0, 16, True, key, None, True, None)
    grads = torch.ops.tflabench.chunkwise_backward(torch.ones_like(inputs["v"]), *tensors, *numbers)
    assert grads[-1].stride() == S.stride()


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_every_gradient(case: Case) -> None:
    assert failures(case) == []


@pytest.mark.parametrize(
    "case",
    [
        Case(40, 48, 80, "zeros", L=32, states=True),
        Case(100, 16, 16, "usual", L=64, dtype=torch.float16, states=True),
        Case(70, 16, 16, "uniform", L=64, dtype=torch.float16),
    ],
    ids=str,
)
def test_with_the_blocks_that_run_on_a_gpu(case: Case) -> None:
    assert failures(case) == []


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(("gates", "L"), [("uniform", 64), ("zeros", 64), ("down", 32), ("zeros", 16)])
def test_blocks_of_16_steps_have_one_reference(gates: str, L: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in bfloat16, of which the interpreter knows no products."""
    monkeypatch.setitem(plan.NEAR, "float32", 16)
    assert failures(Case(70, 16, 16, gates, L=L, states=True)) == []


@pytest.mark.usefixtures("large")
def test_a_sequence_in_segments_is_the_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where programs are few the walk over states is cut into segments; states in and out."""
    case = Case(200, 16, 16, "zeros", states=True)
    inputs, grads = draw(case)
    for programs in (1, 10_000):
        monkeypatch.setattr(plan, "PROGRAMS", programs)
        found, truth = computed(case, inputs, grads), expected(case, inputs, grads, torch.float64)
        assert max(distance(found[name], y) for name, y in truth.items()) < BOUND


@pytest.mark.usefixtures("large")
def test_gates_that_all_close_leave_each_step_alone() -> None:
    inputs, grads = draw(Case(70, 16, 16))
    inputs["g"] = torch.full_like(inputs["g"], float("-inf"))
    found = computed(Case(70, 16, 16), inputs, grads)
    own = (inputs["q"] * inputs["k"]).sum(-1, keepdim=True) / 4 * inputs["v"]
    torch.testing.assert_close(found["o"], own, rtol=1e-5, atol=1e-6)
    assert not found["dg"].any()


def test_both_forms_agree() -> None:
    inputs, _ = draw(Case(37, 16, 24, "zeros", states=True))
    wide = [x.double() for x in inputs.values()]
    q, k, v, g, S = wide
    wanted, state = by_steps(reference.decode, q, k, v, g, None, State(S))
    for chunk_size in (16, 37):
        o, last = reference.chunkwise(q, k, v, g, None, State(S), chunk_size=chunk_size)
        torch.testing.assert_close(o, wanted)
        torch.testing.assert_close(last.C, state.C)
    g = g.clamp(min=-10).requires_grad_()
    q, k, v, g, S = (*(x[..., :5, :3] for x in (q, k, v, g)), S[..., :3, :3])

    def both(g: Any, S: Any) -> Any:
        o, last = reference.chunkwise(q, k, v, g, None, State(S), chunk_size=2)
        return o, last.C

    assert torch.autograd.gradcheck(both, (g, S))


# --- The walk-through


@pytest.mark.parametrize("case", [Case(50, 16, 80, "usual", states=True), Case(33, 80, 16, "down")], ids=str)
def test_the_walk_through(case: Case) -> None:
    inputs, grads = draw(case)
    truth = expected(case, inputs, grads, torch.float64)
    q, k, v, g = (inputs[name] for name in "qkvg")
    o, last = walkthrough.forward(q, k, v, g, inputs.get("S"), scale=case.d_qk**-0.5)
    assert max(distance(o, truth["o"]), distance(last, truth["S"])) < BOUND


def test_the_walk_through_as_published_is_nan_behind_a_closed_gate() -> None:
    inputs, _ = draw(Case(32, 16, 16))
    inputs["g"][:, :, 5] = float("-inf")
    q, k, v, g = inputs.values()
    o, _ = walkthrough.forward(q, k, v, g, None, scale=0.25)
    assert o[:, :, :5].isfinite().all()
    assert o[:, :, 5:16].isnan().all()


# --- The operation


def packed() -> tuple[tuple[Any, ...], Any, list[int]]:
    inputs, _ = draw(Case(40, 16, 16, "usual", heads=2))
    bounds = [0, 7, 23, 31, 39, 40]  # two of one length in a row
    return tuple(inputs.values()), torch.tensor(bounds, device=DEVICE), bounds


@pytest.mark.parametrize("implementation", ["reference", "tfla"])
def test_packed_sequences_are_sequences_of_their_own(implementation: Any) -> None:
    (q, k, v, g), cu_seqlens, bounds = packed()
    S = torch.randn(5, 2, 16, 16, device=DEVICE)
    parts = [slice(a, b) for a, b in pairwise(bounds)]

    def alone(initial: Any) -> list[Any]:
        given = {"implementation": implementation, "return_last_state": True}
        starts = [None if initial is None else State(initial[n : n + 1]) for n in range(5)]
        return [
            ops.gla(q[:, :, s], k[:, :, s], v[:, :, s], g[:, :, s], initial_state=start, **given)
            for s, start in zip(parts, starts, strict=True)
        ]

    options: dict[str, Any] = {"cu_seqlens": cu_seqlens, "implementation": implementation}
    o = ops.gla(q, k, v, g, **options)
    torch.testing.assert_close(o, torch.cat([x for x, _ in alone(None)], 2), rtol=1e-4, atol=1e-5)
    o, last = ops.gla(q, k, v, g, initial_state=State(S), return_last_state=True, **options)
    torch.testing.assert_close(o, torch.cat([x for x, _ in alone(S)], 2), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(last.C, torch.cat([x.C for _, x in alone(S)]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("gates", "chunk_size", "bounds"),
    [
        ("zeros", 16, (0, 7, 23, 31, 31, 70)),
        ("closed", 16, (0, 7, 23, 31, 31, 70)),
        ("closed", 32, (0, 33, 70)),
        ("usual", 256, (0, 1, 70)),
    ],
)
def test_documents_with_states_are_one_call(
    gates: str, chunk_size: int, bounds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs, last states and gradients are those of the reference, document by document."""
    inputs, _ = draw(Case(70, 16, 32, gates, heads=2))
    S = torch.randn(len(bounds) - 1, 2, 16, 32, device=DEVICE)
    leaves = [x.requires_grad_() for x in (*inputs.values(), S)]
    calls: list[Any] = []
    kernels = chunkwise_operator.kernels_of("gla", "tfla")
    counted = kernels._replace(
        forward=lambda given, options: calls.append(options.bounds) or kernels.forward(given, options)
    )
    monkeypatch.setattr(chunkwise_operator, "kernels_of", lambda *_: counted)

    def of(implementation: Any, wide: list[Any]) -> list[Any]:
        *given, start = wide
        o, last = ops.gla(
            *given, initial_state=State(start), return_last_state=True, implementation=implementation,
            cu_seqlens=torch.tensor(bounds), chunk_size=chunk_size,
        )  # fmt: skip
        weight = torch.arange(o.numel(), device=DEVICE).view(o.shape).sin()
        loss = (o * weight).sum() + (last.C * last.C.detach().cos()).sum()
        return [o, last.C, *torch.autograd.grad(loss, wide)]

    found, wanted = of("tfla", leaves), of("reference", [x.detach().double().requires_grad_() for x in leaves])
    assert calls == [bounds]
    for x, y in zip(found, wanted, strict=True):
        assert distance(x, y) < BOUND


def test_steps_are_the_sequence() -> None:
    inputs, _ = draw(Case(6, 16, 24, "zeros", heads=2, states=True))
    q, k, v, g, S = inputs.values()
    o, last = ops.gla(q, k, v, g, initial_state=State(S), return_last_state=True, implementation="reference")
    state, after = State(S.clone()), State(torch.empty_like(S))
    for t in range(6):
        q_t, k_t, v_t, g_t = (x[:, :, t] for x in (q, k, v, g))
        before = state.C.clone()
        apart = ops.gla_step(q_t, k_t, v_t, g_t, state, out=after)
        assert torch.equal(state.C, before)
        found = ops.gla_step(q_t, k_t, v_t, g_t, state)
        torch.testing.assert_close(found, o[:, :, t])
        assert torch.equal(apart, found)
        assert torch.equal(after.C, state.C)
    torch.testing.assert_close(state.C, last.C)


def test_autocast_casts_q_k_and_v_only() -> None:
    (q, k, v, g), _, _ = packed()
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        o, last = ops.gla(q, k, v, g, return_last_state=True)
    assert (o.dtype, last.C.dtype) == (torch.bfloat16, torch.float32)
    wanted = ops.gla(q.bfloat16(), k.bfloat16(), v.bfloat16(), g)
    assert torch.equal(o, wanted)


def test_the_operator_is_one_to_compilers() -> None:
    """Its fake has the shapes of what runs, and torch.compile traces a call with gradients into it."""
    (q, k, v, g), _, _ = packed()
    leaves = [x[:, :, :17].clone().requires_grad_() for x in (q, k, v, g)]
    checks = ("test_schema", "test_faketensor")
    for bounds in (None, [0, 5, 17]):
        key = setup_key("tfla", ops.GLA.family, ops.GLA.fields, torch.float32, None)
        arguments = (*leaves, None, None, None, None, 0.25, 1.0, 32, True, key, None, True, bounds)
        torch.library.opcheck(torch.ops.tflabench.chunkwise.default, arguments, test_utils=checks)

    def loss(*x: Any) -> Any:
        return ops.gla(*x, implementation="tfla", chunk_size=32).square().sum()

    wanted = torch.autograd.grad(loss(*leaves), leaves)
    found = torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(*leaves), leaves)
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"g": torch.ones(1, 2, 8, 16)}, ValueError, "g is up to 1: it must be at most 0"),
        ({"g": torch.zeros(1, 2, 8)}, ValueError, "g has the shape (1, 2, 8): it must be (1, 2, 8, 16)"),
        ({"v": torch.zeros(1, 2, 9, 16)}, ValueError, "v has the shape (1, 2, 9, 16): it must be (1, 2, 8) and d_hv"),
        ({"chunk_size": 24, "implementation": "tfla"}, ValueError, "chunk_size is 24: it must be a multiple of 16"),
        ({"implementation": "hopper"}, ValueError, "hopper needs a GPU of compute capability 9.0"),
        ({"initial_state": State(torch.zeros(1, 2, 16, 8))}, ValueError, "initial_state.C has the shape"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    x = torch.zeros(1, 2, 8, 16)
    given: dict[str, Any] = {"q": x, "k": x, "v": x, "g": x, **changes}
    with pytest.raises(error) as raised:
        ops.gla(**given)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_second_derivatives_are_refused() -> None:
    leaves = [x[:, :, :9].requires_grad_() for x in packed()[0]]
    o = ops.gla(*leaves, implementation="tfla")
    (dq,) = torch.autograd.grad(o.square().sum(), leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        dq.sum().backward()


# --- As flash-linear-attention calls it


@pytest.fixture
def bthd() -> dict[str, Any]:
    (q, k, v, g), _, _ = packed()
    return {"q": q.transpose(1, 2), "k": k.transpose(1, 2), "v": v.transpose(1, 2), "g": g.transpose(1, 2)}


@pytest.mark.parametrize("name", ["chunk_gla", "fused_chunk_gla", "fused_recurrent_gla"])
def test_functions_of_fla(name: str, bthd: dict[str, Any]) -> None:
    S = torch.randn(1, 2, 16, 16, device=DEVICE)
    if name == "fused_recurrent_gla":
        bthd["gk"] = bthd.pop("g")
    o, last = getattr(fla, name)(**bthd, scale=0.5, initial_state=S, output_final_state=True)
    g = bthd["gk"] if name == "fused_recurrent_gla" else bthd["g"]
    q, k, v, g = (x.transpose(1, 2) for x in (bthd["q"], bthd["k"], bthd["v"], g))
    wanted, state = by_steps(reference.decode, q, k, v, g, None, State(S), scale=0.5)
    torch.testing.assert_close(o, wanted.transpose(1, 2), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(last, state.C, rtol=1e-4, atol=1e-4)
    assert getattr(fla, name)(**bthd)[1] is None


def test_a_keyword_that_fla_has_renamed(bthd: dict[str, Any]) -> None:
    bthd["gk"] = bthd.pop("g")
    S = torch.randn(1, 2, 16, 16, device=DEVICE)
    states = {"initial_state": S.mT, "output_final_state": True}
    o, last = fla.fused_recurrent_gla(**bthd, **states, state_v_first=True)
    with pytest.warns(DeprecationWarning, match="transpose_state_layout is now state_v_first"):
        again = fla.fused_recurrent_gla(**bthd, **states, transpose_state_layout=True)
    assert last is not None
    assert again[1] is not None
    assert torch.equal(o, again[0])
    assert torch.equal(last, again[1])
    with pytest.raises(ValueError, match="both given"):
        fla.fused_recurrent_gla(**bthd, state_v_first=True, transpose_state_layout=True)
    with pytest.raises(TypeError, match="head_first"):
        fla.fused_recurrent_gla(**bthd, head_first=True)  # type: ignore[call-arg]


def test_fla_in_packed_sequences(bthd: dict[str, Any]) -> None:
    _, cu_seqlens, _ = packed()
    o, last = fla.chunk_gla(**bthd, cu_seqlens=cu_seqlens, output_final_state=True)
    assert last is not None
    assert last.shape == (5, 2, 16, 16)
    alone, _ = fla.chunk_gla(**{name: x[:, 7:23] for name, x in bthd.items()})
    torch.testing.assert_close(o[:, 7:23], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["tfla_gla_xl", "gla_chunk_fuse", "reference_gla"])
def test_what_the_bench_measures_is_the_operation(name: str) -> None:
    impl = registry.get(name)
    problem = Problem(batch=1, heads=2, seq_len=40, d_qk=16, d_hv=32, dtype="float32", pass_="fwbw")
    case = impl.build(problem, torch.device(DEVICE))
    o = case.forward()
    wide = {name: x.detach().double() for name, x in case.inputs.items()}
    assert distance(o.detach(), case.oracle(wide)) < BOUND
    o.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in case.inputs.values())
    assert (impl.count(problem).flops > 0, impl.bounded, impl.operation) == (True, "channel_gates", "gla")


def test_the_bench_says_what_the_kernels_do_not_take() -> None:
    problem = Problem(batch=1, heads=2, seq_len=40, d_qk=24, d_hv=32, dtype="bfloat16", pass_="fw")
    assert "CUDA" in (registry.get("tfla_gla_xl").refuses(problem, "cpu") or "")
    with taken_as_installed():
        reason = registry.get("tfla_gla_xl").refuses(problem, "cuda")
    assert reason == "takes a d_qk that is a multiple of 16 up to 1024, not 24"


def test_offsets_on_the_cpu_say_nothing_alone() -> None:
    """As in fla: without `cu_seqlens` the call is one sequence, with states or without."""
    (q, k, v, g), cu_seqlens, _ = packed()
    given = [x.transpose(1, 2) for x in (q, k, v, g)]
    for states in (False, True):
        o, _ = fla.chunk_gla(*given, output_final_state=states, cu_seqlens_cpu=cu_seqlens.cpu())
        wanted, _ = fla.chunk_gla(*given, output_final_state=states)
        assert torch.equal(o, wanted)


def test_states_of_empty_documents_have_the_dtype_of_all_others() -> None:
    (q, k, v, g), _, _ = packed()
    S = torch.randn(3, 2, 16, 16, dtype=torch.float64, device=DEVICE)
    offsets = torch.tensor([0, 20, 20, 40])
    _, last = ops.gla(q, k, v, g, initial_state=State(S), return_last_state=True, cu_seqlens=offsets)
    assert last.C.dtype == torch.float32
    assert torch.equal(last.C[1], S[1].float())


def test_the_published_kernels_say_where_grids_end() -> None:
    long = torch.empty(1, 1, 16 * 65535 + 1, 16, device="meta")
    assert "1,048,560 steps" in (walkthrough.refuses(long, long) or "")
