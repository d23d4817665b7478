"""The public operations: values, gradients, layouts and states, and what the user gets wrong."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from probe import (
    D_HV,
    D_QK,
    GATES,
    PROBE,
    B,
    Expert,
    H,
    T,
    assert_close,
    double,
    every_gate,
    every_implementation,
    inputs,
    map_state,
    probed,
    results,
    start,
)

from tflabench import ops
from tflabench.kernels import api, backends
from tflabench.kernels.state import zero_state
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG, Gate


@pytest.fixture
def probe(monkeypatch):
    yield from probed(monkeypatch)


@pytest.mark.parametrize("with_state", [False, True], ids=["from_nothing", "from_state"])
@every_gate
@every_implementation
def test_values_and_every_gradient(probe, implementation, gate, with_state):
    x, state = inputs(gate), start(gate) if with_state else None
    exact = None if state is None else map_state(double, state)
    wanted = results(api.chunkwise, {n: double(t) for n, t in x.items()}, exact, gate=gate, implementation="reference")
    assert_close(results(api.chunkwise, x, state, gate=gate, implementation=implementation), wanted)


def test_named_gates_are_the_papers():
    x = inputs()
    args = [x[n] for n in ("q", "k", "v", "i", "f")]
    for named, gate in ((ops.mlstm_exp, MLSTM_EXP), (ops.mlstm_sig, MLSTM_SIG)):
        assert named(*args, chunk_size=16).equal(api.chunkwise(**x, gate=gate, chunk_size=16))


@every_gate
def test_layout_bthd_makes_no_copies(probe, gate):
    x = inputs(gate)
    swapped = {n: t if t.dim() == 1 else t.detach().transpose(1, 2).contiguous().requires_grad_() for n, t in x.items()}
    h = api.chunkwise(**swapped, gate=gate, layout="bthd", implementation=PROBE)
    seen = probe.calls[-1]
    assert seen["q"].data_ptr() == swapped["q"].data_ptr()
    assert seen["f"].data_ptr() == swapped["f"].data_ptr()
    assert h.is_contiguous()
    wanted = api.chunkwise(**x, gate=gate, implementation=PROBE)
    assert h.transpose(1, 2).equal(wanted)
    h.sum().backward()
    wanted.sum().backward()
    for name, t in swapped.items():
        g = t.grad if t.dim() == 1 else t.grad.transpose(1, 2)
        torch.testing.assert_close(g, x[name].grad, msg=name)


@every_implementation
def test_any_strides(probe, implementation):
    x = inputs()
    wanted = results(api.chunkwise, x, None, gate=MLSTM_EXP, implementation=implementation)
    wide = {n: torch.stack([t.detach(), t.detach()], dim=-1)[..., 0].requires_grad_() for n, t in x.items()}
    assert not wide["q"].is_contiguous()
    assert_close(results(api.chunkwise, wide, None, gate=MLSTM_EXP, implementation=implementation), wanted, 1e-6)


@every_implementation
def test_gradient_of_the_last_state_alone(probe, implementation):
    x = inputs()
    _, last = api.chunkwise(**x, gate=MLSTM_EXP, return_last_state=True, implementation=implementation)
    assert last.n is not None
    dk, dv = torch.autograd.grad(last.n.sum(), [x["k"], x["v"]], materialize_grads=True)
    assert (dv == 0).all()
    assert dk.abs().sum() > 0


@every_implementation
def test_continuing_from_the_last_state_is_one_sequence(probe, implementation):
    x, cut = inputs(), 24
    whole = api.chunkwise(**x, gate=MLSTM_EXP, implementation=implementation)
    first = {n: t[:, :, :cut] for n, t in x.items()}
    rest = {n: t[:, :, cut:] for n, t in x.items()}
    h, state = api.chunkwise(**first, gate=MLSTM_EXP, return_last_state=True, implementation=implementation)
    more = api.chunkwise(**rest, gate=MLSTM_EXP, initial_state=state, implementation=implementation)
    torch.testing.assert_close(torch.cat([h, more], 2), whole, rtol=1e-4, atol=1e-4)


@every_implementation
def test_nan_is_passed_through(probe, implementation):
    x = {n: t.detach() for n, t in inputs().items()}
    x["v"][0, 0, 5, 3] = math.nan
    h = api.chunkwise(**x, gate=MLSTM_EXP, implementation=implementation)
    assert h[0, 0, 5:, 3].isnan().all()
    assert h[1].isfinite().all()


@every_implementation
def test_autocast_casts_q_k_v_alone(probe, implementation):
    x, state = inputs(), start(MLSTM_EXP)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h, last = api.chunkwise(
            **x, gate=MLSTM_EXP, initial_state=state, return_last_state=True, implementation=implementation
        )
    assert h.dtype == torch.bfloat16
    assert last.C.dtype == torch.float32
    low = x | {n: x[n].bfloat16() for n in "qkv"}
    assert h.equal(api.chunkwise(**low, gate=MLSTM_EXP, initial_state=state, implementation=implementation))
    h.float().sum().backward()
    assert x["q"].grad.dtype == torch.float32


@every_gate
def test_kernels_that_cannot_share_heads_are_given_copies(probe, gate):
    """q and k of one head for both of v: values, gradients, and what the compiler expects of them."""
    x = inputs(gate)
    x |= {n: x[n].detach()[:, :1].clone().requires_grad_() for n in "qk"}
    options = {"gate": gate, "implementation": "probe"}
    wanted = results(api.chunkwise, x, None, gate=gate, implementation="reference")
    assert_close(results(api.chunkwise, x, None, **options), wanted)
    assert probe.calls[-1]["q"].shape == (B, H, T, D_QK)
    compiled = torch.compile(api.chunkwise, fullgraph=True, backend="aot_eager")
    assert_close(results(compiled, x, None, **options), wanted)


@pytest.mark.parametrize("implementation", ["probe", "tfla_xl"])
def test_a_skip_connection(probe, implementation):
    """By kernels that have one and by a pass of its own, for those that do not."""
    if implementation == "tfla_xl" and torch.cuda.is_available():
        pytest.skip("gpu tests run the kernels")
    gate = GATES["retention"]
    x = inputs(gate) | {"skip": torch.tensor([0.5, -2.0]).requires_grad_()}
    exact = {n: double(t) for n, t in x.items()}
    wanted = results(api.chunkwise, exact, None, gate=gate, implementation="reference")
    bare: dict[str, Any] = {n: t for n, t in exact.items() if n != "skip"}
    without = api.chunkwise(**bare, gate=gate, implementation="reference")
    assert_close({"h": wanted["h"]}, {"h": without + exact["skip"][:, None, None] * exact["v"]}, 1e-12)
    options = {"gate": gate, "implementation": implementation, "chunk_size": 16}
    assert_close(results(api.chunkwise, x, None, **options), wanted)
    compiled = torch.compile(api.chunkwise, fullgraph=True, backend="aot_eager")
    assert_close(results(compiled, x, None, **options), wanted)


def test_options_reach_the_kernels(probe):
    x = inputs()
    options: dict[str, Any] = {"scale": 0.5, "chunk_size": 16, "state_dtype": torch.bfloat16, "config": Expert(8)}
    api.chunkwise(**x, gate=MLSTM_EXP, implementation=PROBE, **options)
    assert {n: probe.calls[-1][n] for n in options} == options
    api.chunkwise(**x, gate=MLSTM_EXP, implementation=PROBE)
    defaults = {"scale": D_QK**-0.5, "chunk_size": 32, "state_dtype": torch.float32, "config": None}
    assert {n: probe.calls[-1][n] for n in options} == defaults


def test_auto_is_the_reference_where_no_kernel_runs():
    x = inputs()
    assert backends.choose(x["q"], x["v"], gate=MLSTM_EXP)[:2] == ("reference", T)
    assert api.chunkwise(**x, gate=MLSTM_EXP).equal(api.chunkwise(**x, gate=MLSTM_EXP, implementation="reference"))
    assert ops.mlstm_exp(*(double(x[n]) for n in ("q", "k", "v", "i", "f"))).dtype == torch.float64


STATE = zero_state(MLSTM_EXP, B, H, D_QK, D_HV)
BY_PROBE = {"implementation": "probe"}
# what differs from a call that works, the error, and what its message says
BAD_INPUTS = {
    "q_not_a_tensor": ({"q": [1.0]}, TypeError, "q is a list: it must be a tensor"),
    "k_integers": ({"k": torch.ones(B, H, T, D_QK).int()}, TypeError, "k is torch.int32: it must be bfloat16"),
    "q_three_sizes": ({"q": torch.ones(B, H, T)}, ValueError, "q has the shape (2, 2, 40): it must be (B, H, T, d)"),
    "no_steps": ({"q": torch.ones(B, H, 0, D_QK)}, ValueError, "every size at least 1"),
    "k_unlike_q": ({"k": torch.ones(B, H, T, 32)}, ValueError, "k has the shape (2, 2, 40, 32): it must be that of q"),
    "v_shorter": ({"v": torch.ones(B, H, 39, D_HV)}, ValueError, "v has the shape (2, 2, 39, 32)"),
    "f_shorter": ({"f": torch.ones(B, H, 39)}, ValueError, "f has the shape (2, 2, 39): it must be (2, 2, 40)"),
    "no_i": ({"i": None}, TypeError, "i is None: it must be a tensor"),
    "i_not_wanted": ({"gate": Gate("sigmoid", "none")}, ValueError, "i is a Tensor: it must be None"),
    "f_of_a_fixed_gate": ({"gate": Gate("fixed")}, ValueError, "f has the shape (2, 2, 40): it must be (2,)"),
    "gate_a_name": ({"gate": "exp"}, TypeError, "gate is a str: it must be a tflabench.ops.Gate"),
    "dtypes_differ": ({"v": torch.ones(B, H, T, D_HV).half()}, TypeError, "they must be of one dtype"),
    "devices_differ": ({"f": torch.ones(B, H, T, device="meta")}, ValueError, "f is on meta: it must be where q is"),
    "skip_shape": ({"gate": MLSTM_SIG, "skip": torch.ones(3)}, ValueError, "skip has the shape (3,): it must be (2,)"),
    "skip_divided": (
        {"skip": torch.ones(H)},
        ValueError,
        "skip is a Tensor: it must be None for Gate(forget=",
    ),
    "layout": ({"layout": "thbd"}, ValueError, "layout is 'thbd': it must be one of bhtd, bthd"),
    "chunk_size_zero": ({"chunk_size": 0}, ValueError, "chunk_size is 0: it must be at least 1"),
    "chunk_size_float": ({"chunk_size": 16.0}, TypeError, "chunk_size is a float: it must be an int or 'auto'"),
    "chunk_size_small": (BY_PROBE | {"chunk_size": 8}, ValueError, "chunk_size is 8: it must be a multiple of 16"),
    "chunk_size_odd": (BY_PROBE | {"chunk_size": 40}, ValueError, "chunk_size is 40: it must be a multiple of 16"),
    "chunk_size_refused": (BY_PROBE | {"chunk_size": 128}, ValueError, "probe takes chunks up to 64"),
    "config": (
        {"implementation": "tfla_xl", "config": {"rows": 64}},
        ValueError,
        "takes a TileConfig as config, not a",
    ),
    "scale_text": ({"scale": "1"}, TypeError, "scale is a str: it must be a float or None"),
    "scale_nan": ({"scale": math.nan}, ValueError, "scale is nan: it must be finite"),
    "state_dtype": ({"state_dtype": torch.float16}, ValueError, "it must be one of torch.float32, torch.bfloat16"),
    "implementation": (
        {"implementation": "triton"},
        ValueError,
        "implementation is 'triton': it must be one of auto, ref",
    ),
    "head_dimension": (
        BY_PROBE | {"v": torch.ones(B, H, T, 24)},
        ValueError,
        "v has the head dimension 24: it must be a",
    ),
    "float64": (
        BY_PROBE | {name: torch.ones(B, H, T, 16).double() for name in "qkv"},
        TypeError,
        "q is torch.float64: it must be bfloat16, float16 or float32",
    ),
    "state_a_tensor": (
        {"initial_state": STATE.C},
        TypeError,
        "initial_state is a Tensor: it must be a tflabench.ops.St",
    ),
    "state_shape": (
        {"initial_state": STATE._replace(C=torch.zeros(B, H, D_HV, D_QK))},
        ValueError,
        "initial_state.C has the shape (2, 2, 32, 16): it must be (2, 2, 16, 32)",
    ),
    "state_without_n": (
        {"initial_state": STATE._replace(n=None)},
        TypeError,
        "initial_state.n is None: it must be a t",
    ),
    "state_with_n": (
        {"gate": MLSTM_SIG, "initial_state": STATE},
        ValueError,
        "initial_state.n is a Tensor: it must be",
    ),
}


@pytest.mark.parametrize(("changes", "error", "words"), BAD_INPUTS.values(), ids=BAD_INPUTS.keys())
def test_bad_input_is_named(probe, changes, error, words):
    given: dict[str, Any] = {**inputs(), "gate": MLSTM_EXP, **changes}
    with pytest.raises(error, match=re.escape(words)) as raised:
        api.chunkwise(**given)
    assert "\n" not in str(raised.value)


def test_a_gate_has_known_parts():
    with pytest.raises(ValueError, match="forget is 'tanh': it must be one of sigmoid, log_decay, fixed, rate"):
        Gate(forget="tanh")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="input is 'tanh': it must be one of exp, sigmoid, step, softplus, none"):
        Gate(input="tanh")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="input is 'exp': it must be a step size, step or softplus, for forget 'rate'"):
        Gate(forget="rate")
    with pytest.raises(ValueError, match="temperature is 2: it must be 1 for forget 'log_decay'"):
        Gate(forget="log_decay", temperature=2)
