"""One decode step, in PyTorch and in Triton (interpreted where there is no GPU; compiled for two architectures)."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from compiled import EVERY, compiled_under
from probe import map_state
from torch import Tensor

from tflabench.kernels import api
from tflabench.kernels.chunkwise_operator import setup_key
from tflabench.kernels.scalar import reference
from tflabench.kernels.scalar.operations import mlstm_exp_step, mlstm_sig_step
from tflabench.kernels.state import State, zero_state
from tflabench.kernels.step import step
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG, Gate

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []

B, H, T, D_QK, D_HV = 2, 2, 5, 24, 40
GATES = {
    "exp": MLSTM_EXP,
    "sig": MLSTM_SIG,
    "sig_normalized": Gate("sigmoid", "sigmoid", normalize=True),
    "retention": Gate("fixed", "none"),
    "mamba2": Gate("log_decay", "step"),
}
every_gate = pytest.mark.parametrize("gate", GATES.values(), ids=GATES.keys())
every_implementation = pytest.mark.parametrize("implementation", ["reference", "triton"])


def sequence(gate: Gate, d_qk: int = D_QK, d_hv: int = D_HV) -> dict[str, Any]:
    """q, k, v, f, i of T steps; i is None where the gate has none."""
    torch.manual_seed(0)
    f = {"sigmoid": torch.randn(B, H, T) + 1, "log_decay": -torch.rand(B, H, T), "fixed": -torch.rand(H)}[gate.forget]
    i = {"step": torch.rand(B, H, T) + 0.1, "none": None}.get(gate.input, torch.randn(B, H, T))
    x = {
        "q": torch.randn(B, H, T, d_qk),
        "k": torch.randn(B, H, T, d_qk),
        "v": torch.randn(B, H, T, d_hv),
        "f": f,
        "i": i,
    }
    return {name: None if t is None else t.to(DEVICE) for name, t in x.items()}


def at(x: dict[str, Any], t: int) -> dict[str, Any]:
    """The inputs of step t."""
    return {n: y if y is None or y.dim() == 1 else y[:, :, t] for n, y in x.items()}


def exact(gate: Gate, x: dict[str, Any], start: State | None = None) -> tuple[Tensor, State]:
    q, k, v, f, i = (None if t is None else t.double() for t in (x[n] for n in "qkvfi"))
    assert q is not None
    assert k is not None
    assert v is not None
    assert f is not None
    return reference.recurrent(q, k, v, f, i, start, gate=gate)


def assert_same_state(found: State, wanted: State, tolerance: float = 1e-5) -> None:
    for name, a, b in zip("Cnm", found, wanted, strict=True):
        assert (a is None) == (b is None), name
        if a is not None and b is not None:
            torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def assert_equal_states(found: State, wanted: State) -> None:
    for name, a, b in zip("Cnm", found, wanted, strict=True):
        assert (a is None and b is None) or (a is not None and b is not None and a.equal(b)), name


@every_gate
@every_implementation
def test_steps_are_the_sequence(implementation, gate):
    x = sequence(gate)
    wanted, last = exact(gate, x)
    state = zero_state(gate, B, H, D_QK, D_HV, device=DEVICE)
    memory = state.C.data_ptr()
    for t in range(T):
        h = step(**at(x, t), state=state, gate=gate, implementation=implementation)
        torch.testing.assert_close(h.double(), wanted[:, :, t], rtol=2e-5, atol=2e-5)
    assert state.C.data_ptr() == memory
    assert_same_state(state, last)


@every_implementation
def test_steps_continue_a_sequence(implementation):
    x, prefix = sequence(MLSTM_EXP, 16, 32), 3
    wanted, _ = exact(MLSTM_EXP, x)
    q, k, v, f, i = (x[n][:, :, :prefix] for n in "qkvfi")
    _, state = api.chunkwise(q, k, v, f, i, gate=MLSTM_EXP, return_last_state=True, implementation="reference")
    for t in range(prefix, T):
        h = step(**at(x, t), state=state, gate=MLSTM_EXP, implementation=implementation)
        torch.testing.assert_close(h.double(), wanted[:, :, t], rtol=2e-5, atol=2e-5)


@every_implementation
def test_h_is_zero_where_a_denominator_underflows(implementation):
    x = at(sequence(MLSTM_EXP), 0)
    x |= {"q": torch.zeros_like(x["q"]), "i": torch.full_like(x["i"], 104.0)}
    state = zero_state(MLSTM_EXP, B, H, D_QK, D_HV, device=DEVICE)
    assert (step(**x, state=state, gate=MLSTM_EXP, implementation=implementation) == 0).all()


@every_gate
@every_implementation
def test_out_leaves_the_state_as_it_is(implementation, gate):
    x = sequence(gate)
    state = zero_state(gate, B, H, D_QK, D_HV, device=DEVICE)
    step(**at(x, 0), state=state, gate=gate, implementation=implementation)
    kept = map_state(torch.clone, state)
    out = zero_state(gate, B, H, D_QK, D_HV, device=DEVICE)
    h = step(**at(x, 1), state=state, out=out, gate=gate, implementation=implementation)
    assert_equal_states(state, kept)
    in_place = step(**at(x, 1), state=state, gate=gate, implementation=implementation)
    assert h.equal(in_place)
    assert_equal_states(state, out)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_implementation
def test_low_precision_inputs_and_a_bfloat16_state(implementation, dtype):
    x = {n: t.to(dtype) for n, t in sequence(MLSTM_EXP).items()}
    wanted, last = exact(MLSTM_EXP, x)
    for state_dtype, tolerance in ((torch.float32, torch.finfo(dtype).eps), (torch.bfloat16, 0.05)):
        state = zero_state(MLSTM_EXP, B, H, D_QK, D_HV, device=DEVICE)
        state = state._replace(C=state.C.to(state_dtype))
        for t in range(T):
            h = step(**at(x, t), state=state, gate=MLSTM_EXP, implementation=implementation)
        assert h.dtype == dtype
        assert (h - wanted[:, :, -1]).abs().max() <= tolerance * wanted[:, :, -1].abs().max()
    assert_same_state(state._replace(C=state.C.float()), last, 0.05)


@every_implementation
def test_shut_gates_forget_and_write_nothing(implementation):
    """Behind f = -inf the state is that of the step alone; where nothing was ever written, h = 0."""
    x: dict[str, Any] = at(sequence(MLSTM_EXP), 0)
    options: dict[str, Any] = {"gate": MLSTM_EXP, "implementation": implementation}
    shut = torch.full_like(x["f"], -math.inf)
    _, _, m = empty = zero_state(MLSTM_EXP, B, H, D_QK, D_HV, device=DEVICE)
    state = State(torch.randn_like(empty.C), torch.randn_like(x["k"]), torch.randn_like(x["i"]))
    step(**{**x, "f": shut}, state=state, **options)
    torch.testing.assert_close(state.C, x["k"][..., None] * x["v"][..., None, :])
    torch.testing.assert_close(state.m, x["i"])
    assert m is not None
    for _ in range(2):
        h = step(**{**x, "f": shut, "i": shut}, state=empty, **options)
        assert (h == 0).all()
        assert not m.isnan().any()
    alone = zero_state(MLSTM_EXP, B, H, D_QK, D_HV, device=DEVICE)
    torch.testing.assert_close(step(**x, state=empty, **options), step(**x, state=alone, gate=MLSTM_EXP))


@pytest.mark.parametrize("name", ["q", "k", "v", "f", "i"])
@every_implementation
def test_nan_is_passed_through(implementation, name):
    x = at(sequence(MLSTM_EXP), 0)
    x[name] = x[name].clone()
    x[name][0, 0] = math.nan
    h = step(
        **x, state=zero_state(MLSTM_EXP, B, H, D_QK, D_HV, device=DEVICE), gate=MLSTM_EXP, implementation=implementation
    )
    assert h[0, 0].isnan().all()
    assert h[1].isfinite().all()


@every_implementation
def test_compiles_to_a_full_graph_and_still_updates_in_place(implementation):
    x = sequence(MLSTM_EXP)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    states = [zero_state(MLSTM_EXP, B, H, D_QK, D_HV, device=DEVICE) for _ in range(2)]
    for t in range(2):
        h = step(**at(x, t), state=states[0], gate=MLSTM_EXP, implementation=implementation)
        again = compiled(**at(x, t), state=states[1], gate=MLSTM_EXP, implementation=implementation)
        torch.testing.assert_close(again, h)
    for a, b in zip(*states, strict=True):
        torch.testing.assert_close(a, b)
    torch._dynamo.reset()


@pytest.mark.parametrize("gate", [MLSTM_EXP, MLSTM_SIG], ids=["exp", "sig"])
def test_opcheck(gate):
    x, state = at(sequence(gate), 0), zero_state(gate, B, H, D_QK, D_HV, device=DEVICE)
    other = map_state(torch.clone, state)
    parts = (0.5, 1.0, setup_key("triton", gate.family, gate.fields, torch.float32, None))
    for before in ((None, None, None), other):
        args: tuple[Any, ...] = (*(x[n] for n in "qkvfi"), *state, *before, *parts)
        torch.library.opcheck(torch.ops.tflabench.step, args)


def test_autograd_knows_that_the_state_is_replaced():
    x, state = at(sequence(MLSTM_SIG), 0), zero_state(MLSTM_SIG, B, H, D_QK, D_HV, device=DEVICE)
    weight = torch.ones(1, device=DEVICE, requires_grad=True)
    loss = (weight * state.C).sum()
    with torch.no_grad():
        step(**x, state=state, gate=MLSTM_SIG, implementation="triton")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_operator_has_no_gradients():
    x, state = at(sequence(MLSTM_SIG), 0), zero_state(MLSTM_SIG, B, H, D_QK, D_HV, device=DEVICE)
    q = x["q"].clone().requires_grad_()
    key = setup_key("triton", "scalar", MLSTM_SIG.fields, torch.float32, None)
    arguments = (*(x[n] for n in "kvfi"), *state, None, None, None, 0.5, 1.0, key)
    h = torch.ops.tflabench.step(q, *arguments)
    with pytest.raises(RuntimeError, match="a decode step has no gradients"):
        h.sum().backward()


def test_named_gates_and_autocast():
    x = at(sequence(MLSTM_EXP), 0)
    for named, gate in ((mlstm_exp_step, MLSTM_EXP), (mlstm_sig_step, MLSTM_SIG)):
        states = [zero_state(gate, B, H, D_QK, D_HV, device=DEVICE) for _ in range(2)]
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            h = named(**x, state=states[0])
        low = x | {n: x[n].bfloat16() for n in "qkv"}
        assert h.equal(step(**low, state=states[1], gate=gate))
        assert h.dtype == torch.bfloat16


STATE = zero_state(MLSTM_EXP, B, H, D_QK, D_HV, device=DEVICE)
BAD_INPUTS = {
    "q_with_time": ({"q": STATE.C}, ValueError, "q has the shape (2, 2, 24, 40): it must be (B, H, d)"),
    "f_shape": ({"f": STATE.n}, ValueError, "f has the shape (2, 2, 24): it must be (2, 2)"),
    "state_missing": ({"state": None}, TypeError, "state is None: it must be a tflabench.ops.State"),
    "state_shape": (
        {"state": STATE._replace(n=STATE.m)},
        ValueError,
        "state.n has the shape (2, 2): it must be (2, 2, 24)",
    ),
    "state_dtype": (
        {"state": STATE._replace(C=STATE.C.half())},
        TypeError,
        "state.C is torch.float16: it must be torch.float32 or bfloat16",
    ),
    "state_strides": (
        {"state": STATE._replace(C=STATE.C.mT.contiguous().mT)},
        ValueError,
        "state.C has the strides (1920, 960, 1, 24): it must be contiguous",
    ),
    "out_without_m": ({"out": STATE._replace(m=None)}, TypeError, "out.m is None: it must be a tensor"),
    "gradient": (
        {"k": torch.ones(B, H, D_QK, device=DEVICE, requires_grad=True)},
        ValueError,
        "k requires a gradient: it must not",
    ),
    "implementation": ({"implementation": "cuda"}, ValueError, "implementation is 'cuda': it must be one of auto, ref"),
    "dtype": ({"v": torch.ones(B, H, D_HV, device=DEVICE).half()}, TypeError, "they must be of one dtype"),
    "scale": ({"scale": math.inf}, ValueError, "scale is inf: it must be finite"),
}


@pytest.mark.parametrize(("changes", "error", "words"), BAD_INPUTS.values(), ids=BAD_INPUTS.keys())
def test_bad_input_is_named(changes, error, words):
    given: dict[str, Any] = {**at(sequence(MLSTM_EXP), 0), "state": STATE, "gate": MLSTM_EXP, **changes}
    with pytest.raises(error, match=re.escape(words)) as raised:
        step(**given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("triton", ["installed", "oldest"] if EVERY else ["oldest"])
def test_compiles_for_sm_80_and_sm_90_without_spills(triton):
    report = compiled_under(triton, "compile_step.py")
    assert {kernel["sm"] for kernel in report["kernels"]} == {80, 90}
    for kernel in report["kernels"]:
        assert kernel["spilled_bytes"] == 0, kernel
        assert kernel["shared_bytes"] <= 48 * 1024, kernel
