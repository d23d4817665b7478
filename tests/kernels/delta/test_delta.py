"""The delta rules: their forms in PyTorch, and the operations around them."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from by_steps import by_steps
from delta_cases import Case, draw, operation

from tflabench import ops
from tflabench.implementations import registry
from tflabench.kernels.delta import reference
from tflabench.ops import State
from tflabench.problem import Problem

GATES = ("none", "usual", "open", "strong", "resets")
KINDS = [("none", False), ("usual", False), ("usual", True)]


def wide(case: Case) -> dict[str, Any]:
    """Inputs in float64, with gradients; g is None without a decay."""
    inputs, _ = draw(case)
    return {"g": None} | {name: x.double().requires_grad_() for name, x in inputs.items()}


@pytest.mark.parametrize("beta", ["usual", 2.0])
@pytest.mark.parametrize(
    ("gates", "channels"), [*((gates, False) for gates in GATES), ("usual", True), ("closing", True)]
)
def test_the_two_forms_agree_and_so_do_their_gradients(gates: str, channels: bool, beta: Any) -> None:
    """In chunks of many, one and no whole number of steps; beta is 0 at some steps and twice at others."""
    x = wide(Case(37, 8, 12, gates, "alike", beta, heads=2, sharing=2, states=True, channels=channels))
    start, leaves = State(x.pop("S")), [y for y in x.values() if y is not None]
    found: list[list[Any]] = []
    given = [x[name] for name in ("q", "k", "v", "g", "beta")]
    forms: list[Any] = [partial(by_steps, reference.decode)]
    for form in forms + [partial(reference.chunkwise, chunk_size=L) for L in (1, 16, 64)]:
        o, last = form(*given, start)
        loss = (o * o.detach().cos()).sum() + (last.C * last.C.detach().sin()).sum()
        found.append([o, last.C, *torch.autograd.grad(loss, [*leaves, start.C])])
    for other in found[1:]:
        for ours, wanted in zip(other, found[0], strict=True):
            torch.testing.assert_close(ours, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("channels", [False, True])
def test_gradients_are_those_of_finite_differences(channels: bool) -> None:
    x = wide(Case(5, 3, 2, "usual", beta=2.0, states=True, channels=channels))
    q, k, v, g, beta, S = (x[name] for name in ("q", "k", "v", "g", "beta", "S"))

    def run(*given: Any) -> Any:
        *inputs, start = given
        options: dict[str, Any] = {"initial_state": State(start), "chunk_size": 2, "l2_normalize": True, "beta_max": 2}
        o, last = operation(x)(*inputs, return_last_state=True, **options)
        return o, last.C

    beta = beta.detach().clamp(0.1, 1.9).requires_grad_()
    assert torch.autograd.gradcheck(run, (q, k, v, g, beta, S))


def test_a_repeated_key_replaces_what_was_written() -> None:
    """With beta 1 and keys of length 1 the state has the last value of every key, whatever was there."""
    k = torch.eye(4).double()[[0, 1, 0, 1]][None, None]
    v = torch.arange(4.0).double()[None, None, :, None].expand(1, 1, 4, 2)
    _, last = ops.delta_net(k, k, v, torch.ones(1, 1, 4), return_last_state=True)
    torch.testing.assert_close(last.C[0, 0, :, 0], torch.tensor([2.0, 3.0, 0.0, 0.0]).double())


@pytest.mark.parametrize(("gates", "channels"), KINDS)
def test_packed_sequences_are_sequences_of_their_own(gates: str, channels: bool) -> None:
    inputs, _ = draw(Case(40, 16, 16, gates, heads=2, channels=channels))
    run = operation(inputs)
    bounds = [0, 7, 23, 31, 39, 40]  # two of one length in a row
    S = torch.randn(5, 2, 16, 16)

    def alone(states: Any) -> tuple[Any, Any]:
        found = []
        for n, (a, b) in enumerate(pairwise(bounds)):
            start = None if states is None else State(states[n : n + 1])
            part = {name: x[:, :, a:b] for name, x in inputs.items()}
            found.append(run(**part, initial_state=start, return_last_state=True))
        return torch.cat([o for o, _ in found], 2), torch.cat([last.C for _, last in found])

    o = run(**inputs, cu_seqlens=torch.tensor(bounds))
    torch.testing.assert_close(o, alone(None)[0], rtol=1e-4, atol=1e-5)
    o, last = run(**inputs, cu_seqlens=torch.tensor(bounds), initial_state=State(S), return_last_state=True)
    for found, wanted in zip((o, last.C), alone(S), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("implementation", ["reference", "triton"])
@pytest.mark.parametrize(("gates", "channels"), KINDS)
def test_steps_are_the_sequence(gates: str, channels: bool, implementation: str) -> None:
    inputs, _ = draw(Case(6, 16, 24, gates, heads=2, sharing=2, states=True, channels=channels))
    S = inputs.pop("S")
    run, step = (operation(inputs, end) for end in ("", "_step"))
    options: dict[str, Any] = {"l2_normalize": True, "scale": 0.3}
    o, last = run(**inputs, initial_state=State(S), return_last_state=True, **options)
    state = State(S.clone())
    for t in range(6):
        given = {name: x[:, :, t] for name, x in inputs.items()}
        found = step(**given, state=state, implementation=implementation, **options)
        torch.testing.assert_close(found, o[:, :, t])
    torch.testing.assert_close(state.C, last.C)


@pytest.mark.parametrize("channels", [False, True])
def test_layouts_and_autocast(channels: bool) -> None:
    inputs, _ = draw(Case(20, 16, 32, heads=2, sharing=2, channels=channels))
    run = operation(inputs)
    o = run(**inputs)
    turned = {name: x.transpose(1, 2) for name, x in inputs.items()}
    assert torch.equal(run(**turned, layout="bthd").transpose(1, 2), o)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, last = run(**inputs, return_last_state=True)
    assert (o.dtype, last.C.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"g": torch.ones(1, 2, 8)}, "g is up to 1: it must be at most 0"),
        ({"g": torch.zeros(1, 2, 8, 16)}, "g has the shape (1, 2, 8, 16): it must be (1, 2, 8)"),
        ({"beta": torch.full((1, 2, 8), 1.5)}, "beta is from 1.5 to 1.5: it must be from 0 to 1"),
        ({"beta": torch.full((1, 2, 8), 2.5), "beta_max": 2}, "beta is from 2.5 to 2.5: it must be from 0 to 2"),
        ({"beta": torch.ones(1, 8)}, "beta has the shape (1, 8): it must be (1, 2, 8)"),
        ({"beta_max": 3}, "beta_max is 3: it must be 1 or 2"),
        ({"implementation": "fused"}, "implementation is 'fused': it must be one of auto, reference, hopper"),
        ({"normalize": True}, "normalize is no option (did you mean l2_normalize?)"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], words: str) -> None:
    x = torch.zeros(1, 2, 8, 16)
    given: dict[str, Any] = {"q": x, "k": x, "v": x, "g": x[..., 0], "beta": x[..., 0], **changes}
    with pytest.raises((TypeError, ValueError)) as raised:
        ops.gated_delta_net(**given)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_decay_a_channel_has_a_size_more() -> None:
    x = torch.zeros(1, 2, 8, 16)
    with pytest.raises(ValueError, match=r"g has the shape \(1, 2, 8\): it must be \(1, 2, 8, 16\)"):
        ops.kda(x, x, x, x[..., 0], x[..., 0])
    with pytest.raises(TypeError, match="state_dtype is no option: it must be one of"):
        ops.kda(x, x, x, x, x[..., 0], state_dtype=torch.float32)


@pytest.mark.parametrize("name", ["reference_delta_net", "reference_gated_delta_net", "reference_kda"])
def test_what_the_bench_measures_is_the_operation(name: str) -> None:
    impl = registry.get(name)
    problem = Problem(batch=1, heads=4, heads_qk=2, seq_len=40, d_qk=16, d_hv=32, dtype="float32", pass_="fwbw")
    case = impl.build(problem, torch.device("cpu"))
    o = case.forward()
    exact = case.oracle({name: x.detach().double() for name, x in case.inputs.items()})
    torch.testing.assert_close(o.detach().double(), exact, rtol=1e-4, atol=1e-5)
    o.sum().backward()
    assert all(x.grad is not None and x.grad.any() for x in case.inputs.values())


@pytest.mark.parametrize("name", ["step_delta_net", "step_gated_delta_net", "step_kda"])
def test_the_bench_measures_steps(name: str) -> None:
    problem = Problem(batch=2, heads=2, seq_len=1, d_qk=16, d_hv=32, dtype="float32", pass_="decode")
    case = registry.get(name).build(problem, torch.device("cpu"))
    exact = case.oracle({name: x.double() for name, x in case.inputs.items()})
    torch.testing.assert_close(case.forward().double(), exact, rtol=1e-4, atol=1e-5)
