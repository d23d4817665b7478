"""What callers get wrong has one line that names their argument; what traces operators needs no numbers of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import tflabench.ops
from tflabench.kernels.compat import fla as compat_fla
from tflabench.kernels.compat import mamba as compat_mamba

ops: Any = tflabench.ops  # of which the tests ask what their types forbid
fla: Any = compat_fla
mamba: Any = compat_mamba

B, H, T, D = 1, 2, 20, 16


def drawn(*shape: int, **made: Any) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)), **made)


Q, K, V = (drawn(B, H, T, D) + n for n in range(3))
IN, F, LOG = drawn(B, H, T), drawn(B, H, T) + 1, -drawn(B, H, T).abs()
X, DT, A, BC = drawn(B, H, T, D), drawn(B, H, T).abs(), -torch.ones(H), drawn(B, 1, T, D)
DECAYING = {
    "retention": (ops.retention, (Q, K, V, -torch.ones(H))),
    "simple_gla": (ops.simple_gla, (Q, K, V, LOG)),
    "lightning_attention": (ops.lightning_attention, (Q, K, V, torch.ones(H))),
    "gla": (ops.gla, (Q, K, V, -Q.abs())),
    "mamba2_ssd": (ops.mamba2_ssd, (X, DT, A, BC, BC)),
}


def first(*tensors: Tensor) -> Any:
    return [x[:, :, 0] if x.dim() > 1 else x for x in tensors]


def state(gate: Any, **made: Any) -> Any:
    return ops.zero_state(gate, B, H, D, D, **made)


@pytest.mark.parametrize("name", DECAYING)
class TestWithoutNumbers:
    def test_vmap_maps_over_decays(self, name):
        operation, tensors = DECAYING[name]
        stacked = [torch.stack([x, x / 2]) for x in tensors]
        mapped = torch.func.vmap(lambda *each: operation(*each, implementation="reference"))(*stacked)
        one_by_one = [operation(*[x[n] for x in stacked], implementation="reference") for n in range(2)]
        torch.testing.assert_close(mapped, torch.stack(one_by_one))

    def test_meta_tensors_have_the_shape(self, name):
        operation, tensors = DECAYING[name]
        found = operation(*[x.to("meta") for x in tensors])
        assert (found.shape, found.device.type) == (operation(*tensors).shape, "meta")


@pytest.mark.parametrize("name", ["retention", "gla"])
def test_make_fx_traces_it(name):
    operation, tensors = DECAYING[name]
    traced = make_fx(lambda *each: operation(*each), tracing_mode="symbolic")(*tensors)
    torch.testing.assert_close(traced(*tensors), operation(*tensors))


def test_a_scale_that_changes_stays_in_one_graph():
    compiled = torch.compile(lambda s: ops.mlstm_sig(Q, K, V, IN, F, scale=s), fullgraph=True, backend="eager")
    for scale in (0.1, 0.2, 0.3):
        torch.testing.assert_close(compiled(scale), ops.mlstm_sig(Q, K, V, IN, F, scale=scale))


def test_a_temperature_may_be_a_float_of_numpy():
    found = ops.gated_retention(Q, K, V, F, temperature=np.float64(4))
    assert found.equal(ops.gated_retention(Q, K, V, F, temperature=4.0))


def test_steps_and_choose_take_meta_tensors():
    on_meta = [x.to("meta") for x in (Q, K, V, IN, F)]
    assert ops.mlstm_exp_step(*first(*on_meta), state(ops.MLSTM_EXP, device="meta")).shape == (B, H, D)
    gates = -on_meta[0][:, :, 0].abs()
    assert ops.gla_step(*first(*on_meta[:3]), gates, state(ops.SIMPLE_GLA, device="meta")).shape == (B, H, D)
    assert ops.choose(on_meta[0], on_meta[2], gate=ops.MLSTM_EXP).implementation == "reference"


@pytest.mark.parametrize("through", ["ops", "compat"])
def test_a_step_size_of_zero_has_a_finite_gradient_through_the_decay(through):
    dt = DT.clone()
    dt[0, 0, 3] = 0

    def y(dt: Tensor) -> Tensor:
        if through == "ops":
            return ops.mamba2_ssd(X, dt, A, BC, BC)
        x, dt, b = (t.transpose(1, 2) for t in (X, dt, BC))
        return mamba.mamba_chunk_scan_combined(x, dt, A, b, b, chunk_size=16, dt_limit=(0.0, 9.0))

    at_zero, near_zero = dt.clone().requires_grad_(), dt.clone()
    near_zero[0, 0, 3] = 1e-30
    near_zero.requires_grad_()
    y(at_zero).square().sum().backward()
    y(near_zero).square().sum().backward()
    assert at_zero.grad is not None
    assert near_zero.grad is not None
    assert at_zero.grad.isfinite().all()
    others = torch.ones_like(DT, dtype=torch.bool)
    others[0, 0, 3] = False
    torch.testing.assert_close(at_zero.grad[others], near_zero.grad[others])


def test_float64_has_retnets_decays_in_float64():
    q, k, v = (x.double() for x in (Q, K, V))
    decays = torch.log1p(-torch.exp2(-5.0 - torch.arange(H, dtype=torch.float64)))
    torch.testing.assert_close(ops.retention(q, k, v), ops.retention(q, k, v, decays), rtol=1e-14, atol=1e-14)
    got, expected = (state(ops.RETENTION, dtype=torch.float64) for _ in range(2))
    ops.retention_step(*first(q, k, v), got)
    ops.retention_step(*first(q, k, v), expected, decays)
    torch.testing.assert_close(got.C, expected.C, rtol=1e-14, atol=1e-14)


def test_a_step_under_autocast_goes_on_from_the_state_of_a_sequence_of_float64():
    tensors = [x.double() for x in (Q, K, V, IN, F)]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        _, last = ops.mlstm_exp(*tensors, return_last_state=True)
        assert ops.mlstm_exp_step(*first(*tensors), last).dtype == torch.bfloat16


@pytest.mark.parametrize("operation", [ops.mlstm_sig, ops.gla])
def test_h_is_contiguous_where_v_is(operation):
    q, k, v, i, f = (x.transpose(1, 2).contiguous() for x in (Q, K, V, IN, F))
    gates = (-q.abs(),) if operation is ops.gla else (i, f)
    assert operation(q, k, v, *gates, layout="bthd").is_contiguous()


def needs_gradient(x: Tensor) -> Tensor:
    return x.clone().requires_grad_()


RETENTION_STATE, MAMBA_STATE = state(ops.RETENTION), state(ops.MAMBA2)
MAMBA_STEP = (*first(X, DT), A, *first(BC, BC), MAMBA_STATE)
HALF_STATE = ops.State(torch.zeros(B, H, D, D, dtype=torch.float16))
TOO_WIDE = ops.State(torch.zeros(B, H, D, 2 * D)[..., ::2])
WRONG: dict[str, tuple[Any, str]] = {
    "D of a step": (
        lambda: ops.mamba2_ssd_step(*MAMBA_STEP, D=needs_gradient(torch.ones(H))),
        "D requires a gradient: it must not, or step be called under torch.no_grad()",
    ),
    "z of a step": (lambda: ops.mamba2_ssd_step(*MAMBA_STEP, z=needs_gradient(X[:, :, 0])), "z requires a gradient"),
    "no slopes": (
        lambda: ops.lightning_attention_step(*first(Q, K, V), None, RETENTION_STATE),
        "slopes is None: it must be a tensor",
    ),
    "a decay that is a number": (
        lambda: ops.retention_step(*first(Q, K, V), RETENTION_STATE, 0.5),
        "log_decay is a float: it must be a tensor",
    ),
    "no v": (lambda: ops.retention_step(*first(Q, K), None, RETENTION_STATE), "v is None: it must be a tensor"),
    "a v of one size": (
        lambda: ops.retention_step(*first(Q, K), torch.ones(3), RETENTION_STATE, -torch.ones(H)),
        "v has the shape (3,): it must be (B, H, d)",
    ),
    "fla without v": (lambda: fla.chunk_retention(Q, K, None), "v is None: it must be a tensor"),
    "fla without q": (lambda: fla.chunk_retention(None, K, V), "q is None: it must be a tensor"),
    "a state of fla": (
        lambda: fla.chunk_simple_gla(Q, K, V, LOG, initial_state=[1], state_v_first=True),
        "initial_state is a list: it must be a tensor",
    ),
    "a state of mamba": (
        lambda: mamba.mamba_chunk_scan_combined(X, X[..., 0], -torch.ones(T), X, X, 16, initial_states=[1]),
        "initial_states is a list: it must be a tensor",
    ),
    "dtypes of mamba": (
        lambda: ops.mamba2_ssd(X.half(), DT, A, BC.half(), BC),
        "x, B, C are torch.float16, torch.float16, torch.float32: they must be of one dtype",
    ),
    "a typo": (lambda: ops.mamba2_ssd(X, DT, A, BC, BC, dt_sofplus=True), "did you mean dt_softplus?"),
    "a typo of a step": (lambda: ops.mamba2_ssd_step(*MAMBA_STEP, dt_sofplus=True), "did you mean dt_softplus?"),
    "choose nothing": (lambda: ops.choose(Q[:, :, :0], V[:, :, :0], gate=ops.MLSTM_EXP), "q has the shape (1, 2, 0,"),
    "choose heads": (lambda: ops.choose(Q[:, :1].expand(1, 3, T, D), V, gate=ops.MLSTM_EXP), "v has 2 heads: it must"),
    "choose lengths": (lambda: ops.choose(Q, V[:, :, 1:], gate=ops.MLSTM_EXP), "v has the shape (1, 2, 19, 16): it"),
    "choose integers": (lambda: ops.choose(Q.int(), V.int(), gate=ops.MLSTM_EXP), "q is torch.int32: it must be"),
    "a state of gla": (
        lambda: ops.gla_step(*first(Q, K, V), -Q[:, :, 0].abs(), HALF_STATE),
        "state.C is torch.float16: it must be torch.float32 or bfloat16",
    ),
    "strides of gla": (
        lambda: ops.gla_step(*first(Q, K, V), -Q[:, :, 0].abs(), TOO_WIDE),
        "it must be contiguous",
    ),
    "a scale beyond floats": (lambda: ops.mlstm_sig(Q, K, V, IN, F, scale=10**400), "it must be finite"),
    "nested": (
        lambda: ops.mlstm_sig(torch.nested.nested_tensor([Q[0], Q[0]]), K, V, IN, F),
        "q is nested or sparse: it must be dense",
    ),
    "a temperature of yes or no": (lambda: ops.gated_retention(Q, K, V, F, temperature=True), "temperature is a bool"),
    "temperature": (lambda: ops.gated_retention(Q, K, V, F, temperature="a"), "temperature is a str: it must be a"),
    "a gate by name": (lambda: ops.zero_state("mlstm", B, H, D, D), "gate is a str: it must be a tflabench.ops.Gate"),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_one_line_with_the_callers_names(name):
    call, said = WRONG[name]
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
