"""The wrappers that speak fla's and mamba-ssm's conventions, on the CPU: against definitions in those conventions.

`gpu/test_compat_gpu.py` compares them with the packages themselves.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from tflabench.kernels.compat import fla, mamba

BATCH, T, HEADS, D_QK, D_HV = 2, 23, 4, 8, 12


def simple_gla(q, k, v, g, start=None, scale=None) -> tuple[Tensor, Tensor]:
    """(B, T, H, ...) step by step."""
    S = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3]) if start is None else start
    o = []
    for t in range(q.shape[1]):
        S = g[:, t, :, None, None].exp() * S + k[:, t, :, :, None] * v[:, t, :, None, :]
        o.append(torch.einsum("bhk,bhkv->bhv", q[:, t] * (scale or q.shape[3] ** -0.5), S))
    return torch.stack(o, 1), S


def inputs(batch: int = BATCH) -> list[Tensor]:
    torch.manual_seed(0)
    q, k = (torch.randn(batch, T, HEADS, D_QK).double() for _ in range(2))
    return [q, k, torch.randn(batch, T, HEADS, D_HV).double(), -torch.rand(batch, T, HEADS).double()]


def assert_same(found, wanted, tolerance: float = 1e-9) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_simple_gla_with_states_and_scale():
    q, k, v, g = inputs()
    start = torch.randn(BATCH, HEADS, D_QK, D_HV).double()
    wanted = simple_gla(q, k, v, g, start, scale=0.3)
    assert_same(fla.chunk_simple_gla(q, k, v, g, None, 0.3, start, True), wanted)
    o, last = fla.chunk_simple_gla(q, k, v, g, None, 0.3, start.mT, True, True)
    assert last is not None
    assert_same((o, last.mT), wanted)


def test_simple_gla_without_states_returns_none():
    q, k, v, g = inputs()
    o, last = fla.chunk_simple_gla(q, k, v, g)
    assert last is None
    torch.testing.assert_close(o, simple_gla(q, k, v, g)[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(fla.chunk_simple_gla(q, k, v)[0], simple_gla(q, k, v, 0 * g)[0], rtol=1e-9, atol=1e-9)


def test_constant_decays():
    """Which are float32, as the package's are."""
    q, k, v, g = inputs()
    h = torch.arange(HEADS).double()
    retention = torch.log(1 - 2.0 ** (-5 - h)).expand_as(g)
    assert_same(fla.chunk_retention(q, k, v, None, None, True), simple_gla(q, k, v, retention), 1e-5)
    lightning = (-8 / HEADS * (1 - 3 / 12) * h).expand_as(g)
    assert_same(fla.chunk_lightning_attn(q, k, v, 3, 12, None, None, True), simple_gla(q, k, v, lightning), 1e-5)


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_packed_sequences_do_not_meet(constant, states):
    """Two sequences end to end are each by itself, in values and gradients, with states and without."""
    x = [y.requires_grad_() for y in inputs(batch=1)]
    q, k, v, g = x
    gate: dict[str, Any] = {"g_gamma": g[0, 0]} if constant else {"g": g}
    if constant:
        g = g[:, :1].expand_as(g)
    cu_seqlens, cut = torch.tensor([0, 9, T]), 9
    start = torch.randn(2, HEADS, D_QK, D_HV).double() if states else None
    o, last = fla.chunk_simple_gla(
        q, k, v, **gate, initial_state=start, output_final_state=states, cu_seqlens=cu_seqlens
    )
    parts = [
        simple_gla(*(y[:, steps] for y in (q, k, v, g)), None if start is None else start[n : n + 1])
        for n, steps in enumerate((slice(cut), slice(cut, None)))
    ]
    wanted = torch.cat([part[0] for part in parts], 1)
    torch.testing.assert_close(o, wanted, rtol=1e-9, atol=1e-9)
    if states:
        assert last is not None
        torch.testing.assert_close(last, torch.cat([part[1] for part in parts]), rtol=1e-9, atol=1e-9)
    weight = torch.randn_like(o)
    assert_same(torch.autograd.grad((o * weight).sum(), x), torch.autograd.grad((wanted * weight).sum(), x))


def gated_delta_rule(q, k, v, g, beta, start=None, scale=None) -> tuple[Tensor, Tensor]:
    """(B, T, H, ...) step by step."""
    S = q.new_zeros(q.shape[0], v.shape[2], q.shape[3], v.shape[3]) if start is None else start
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
    o = []
    for t in range(q.shape[1]):
        S = g[:, t].reshape(*beta[:, t].shape, -1, 1).exp() * S
        error = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], S))
        S = S + k[:, t, :, :, None] * error[:, :, None]
        o.append(torch.einsum("bhk,bhkv->bhv", q[:, t] * (scale or q.shape[3] ** -0.5), S))
    return torch.stack(o, 1), S


def test_a_recurrent_delta_rule_takes_q_and_k_that_are_wider_than_v():
    q, k = (torch.randn(1, 5, 2, 16) for _ in range(2))
    v = torch.randn(1, 5, 2, 16).half()
    for function in (fla.fused_recurrent_delta_rule, fla.fused_recurrent_gated_delta_rule):
        assert torch.equal(function(q, k, v)[0], function(q.half(), k.half(), v)[0])


@pytest.mark.parametrize("name", ["chunk", "fused_recurrent"])
def test_delta_rules_with_all_that_fla_makes_of_their_inputs(name):
    q, k, v, g = inputs()
    q, k = q[:, :, :2], torch.nn.functional.normalize(k[:, :, :2], dim=-1, eps=1e-12)
    start, beta = torch.randn(BATCH, HEADS, D_QK, D_HV).double(), torch.randn(BATCH, T, HEADS).double()
    gated, plain = (getattr(fla, f"{name}_{kind}delta_rule") for kind in ("gated_", ""))
    given = {"scale": 0.3, "output_final_state": True}
    found = gated(q, k, v, g=g, beta=beta.sigmoid(), initial_state=start, **given)
    assert_same(found, gated_delta_rule(q, k, v, g, beta.sigmoid(), start, 0.3), 1e-6)
    found = plain(q, k, v, 2 * beta.sigmoid(), initial_state=start, **given)
    assert_same(found, gated_delta_rule(q, k, v, 0 * g, 2 * beta.sigmoid(), start, 0.3), 1e-6)
    A_log, dt_bias = torch.randn(HEADS), torch.randn(HEADS)
    in_kernel = {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "use_qk_l2norm_in_kernel": True}
    o, last = gated(
        q, 3 * k, v, g=g, beta=beta, initial_state=start.mT, state_v_first=True, allow_neg_eigval=True, **in_kernel,
        A_log=A_log, dt_bias=dt_bias, **given,
    )  # fmt: skip
    decay = -A_log.exp() * softplus(g + dt_bias)
    wanted = gated_delta_rule(q / q.norm(dim=-1, keepdim=True), k, v, decay, 2 * beta.sigmoid(), start, 0.3)
    assert_same((o, last.mT), wanted, 1e-4)
    assert plain(q, k, v, beta.sigmoid())[1] is None


@pytest.mark.parametrize("bounded", [False, True])
def test_kimi_delta_attention_with_all_that_fla_makes_of_its_inputs(bounded):
    """The result, and gradients of what the decays are made of."""
    q, k, v, _ = inputs()
    q, k = q[:, :, :2], torch.nn.functional.normalize(k[:, :, :2], dim=-1, eps=1e-12)
    beta = torch.randn(BATCH, T, HEADS).double()
    leaves = [
        x.requires_grad_() for x in (torch.randn(*v.shape[:3], D_QK), torch.randn(HEADS), torch.randn(HEADS * D_QK))
    ]
    g, A_log, dt_bias = leaves
    before = g + dt_bias.view(HEADS, D_QK)
    decay = -A_log.exp()[:, None] * softplus(before)
    if bounded:
        decay = -5 * torch.sigmoid(A_log.exp()[:, None] * before)
    o, last = fla.chunk_kda(
        q, 3 * k, v, g, beta, 0.3, output_final_state=True, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
        use_beta_sigmoid_in_kernel=True, allow_neg_eigval=True, safe_gate=bounded,
        lower_bound=-5.0 if bounded else None, state_v_first=True, A_log=A_log, dt_bias=dt_bias,
    )  # fmt: skip
    wanted = gated_delta_rule(q / q.norm(dim=-1, keepdim=True), k, v, decay, 2 * beta.sigmoid(), None, 0.3)
    assert last is not None
    assert_same((o, last.mT), wanted, 1e-4)
    found, expected = (torch.autograd.grad(x.sin().sum(), leaves, retain_graph=True) for x in (o, wanted[0]))
    assert_same(found, expected, 1e-4)
    start = torch.randn(BATCH, HEADS, D_QK, D_HV).double()
    step: Any = [x.detach() for x in (q, k, v, decay, beta.sigmoid())]
    found = fla.fused_recurrent_kda(*step, initial_state=start, output_final_state=True)
    assert_same(found, gated_delta_rule(*[*step, start]), 1e-6)


def mamba2(x, dt, A, B, C, D=None, z=None, start=None) -> tuple[Tensor, Tensor]:
    """mamba-ssm's recurrence with the step size given; states (B, H, headdim, dstate)."""
    B, C = (y.repeat_interleave(HEADS // y.shape[2], 2) for y in (B, C))
    S = x.new_zeros(x.shape[0], HEADS, x.shape[3], B.shape[3]) if start is None else start
    y = []
    for t in range(x.shape[1]):
        S = (dt[:, t] * A).exp()[..., None, None] * S + torch.einsum("bh,bhp,bhn->bhpn", dt[:, t], x[:, t], B[:, t])
        y.append(torch.einsum("bhpn,bhn->bhp", S, C[:, t]))
    out = torch.stack(y, 1)
    out = out if D is None else out + (D[:, None] if D.dim() == 1 else D) * x
    return (out if z is None else out * silu(z)), S


def mamba_inputs(groups: int, batch: int = BATCH) -> dict[str, Tensor]:
    torch.manual_seed(0)
    rows = (batch, T, HEADS)
    x = {"x": torch.randn(*rows, D_HV), "dt": torch.randn(rows), "A": -torch.rand(HEADS)}
    x |= {name: torch.randn(batch, T, groups, D_QK) for name in "BC"}
    x |= {"D": torch.randn(HEADS), "z": torch.randn(*rows, D_HV), "dt_bias": torch.randn(HEADS)}
    return {name: y.double().requires_grad_() for name, y in x.items()}


def scanned(x: dict[str, Tensor], steps: slice = slice(None)) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The arguments every scan has."""
    return x["x"][:, steps], x["dt"][:, steps], x["A"], x["B"][:, steps], x["C"][:, steps]


@pytest.mark.parametrize("dt_limit", [(0.0, float("inf")), (0.3, 1.0)], ids=["unlimited", "limited"])
@pytest.mark.parametrize("dt_softplus", [True, False])
def test_mamba2_with_everything(dt_softplus, dt_limit):
    x = mamba_inputs(groups=2)
    start = torch.randn(BATCH, HEADS, D_HV, D_QK).double().requires_grad_()
    found = mamba.mamba_chunk_scan_combined(
        *scanned(x),
        256,
        x["D"],
        x["z"],
        x["dt_bias"],
        start,
        dt_softplus=dt_softplus,
        dt_limit=dt_limit,
        return_final_states=True,
    )
    dt = x["dt"] + x["dt_bias"]
    dt = (softplus(dt) if dt_softplus else dt).clamp(*dt_limit)
    wanted = mamba2(x["x"], dt, x["A"], x["B"], x["C"], x["D"], x["z"], start)
    assert_same(found, wanted)
    if not dt_softplus and dt_limit[0] == 0:
        return  # the gradient of a step of 0 is what differs
    weights = [torch.randn_like(y) for y in wanted]
    leaves = [*x.values(), start]
    assert_same(torch.autograd.grad(found, leaves, weights), torch.autograd.grad(wanted, leaves, weights))


def test_mamba2_alone_is_a_tensor():
    x = mamba_inputs(groups=1)
    y = mamba.mamba_chunk_scan_combined(*scanned(x), 64, dt_softplus=True)
    assert isinstance(y, Tensor)
    x["dt"] = softplus(x["dt"])
    torch.testing.assert_close(y, mamba2(*scanned(x))[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("started", [False, True])
def test_mamba2s_sequences_do_not_meet(started):
    """The first one goes on from the initial state."""
    x = mamba_inputs(groups=1, batch=1)
    start = torch.randn(1, HEADS, D_HV, D_QK).double() if started else None
    cut, cu_seqlens = 9, torch.tensor([0, 9, T])
    seq_idx = (torch.arange(T) >= cut).int()[None]
    y, last, ends = mamba.mamba_chunk_scan_combined(
        *scanned(x),
        256,
        D=x["D"],
        initial_states=start,
        seq_idx=seq_idx,
        cu_seqlens=cu_seqlens,
        dt_softplus=True,
        return_final_states=True,
        return_varlen_states=True,
    )
    positive = x | {"dt": softplus(x["dt"])}
    edges = ((slice(cut), start), (slice(cut, None), None))
    parts = [mamba2(*scanned(positive, steps), x["D"], start=before) for steps, before in edges]
    wanted, states = torch.cat([p[0] for p in parts], 1), torch.cat([p[1] for p in parts])
    assert_same((y, last, ends), (wanted, states[1:], states))
    leaves = [x[n] for n in ("x", "dt", "A", "B", "C", "D")]
    assert_same(torch.autograd.grad(y.sum(), leaves), torch.autograd.grad(wanted.sum(), leaves))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"g": torch.zeros(1), "g_gamma": torch.zeros(1)}, "g and g_gamma are both given"),
        ({"cu_seqlens": torch.tensor([0, T])}, "q has the batch size 2: it must be 1 with cu_seqlens"),
        ({"g_gamma": torch.ones(HEADS)}, "g_gamma is up to 1: it must be at most 0"),
        ({"g": torch.zeros(BATCH, HEADS, T)}, "g has the shape"),
    ],
)
def test_bad_input_is_named(arguments, words):
    q, k, v, _ = inputs()
    with pytest.raises(ValueError, match=words):
        fla.chunk_simple_gla(q, k, v, **arguments)


def test_kda_has_the_chunk_sizes_of_fla():
    q, k, v, g = inputs()
    with pytest.raises(ValueError, match="`chunk_size` must be either 32 or 64"):
        fla.chunk_kda(q, k, v, g, g[..., 0], chunk_size=16)


def test_states_must_be_one_a_sequence():
    q, k, v, g = inputs(batch=1)
    with pytest.raises(ValueError, match=r"initial_state.C has the shape \(1, 1, 1, 1\): it must be \(2, "):
        fla.chunk_simple_gla(q, k, v, g, initial_state=torch.zeros(1, 1, 1, 1), cu_seqlens=torch.tensor([0, 9, T]))


def test_varlen_states_need_bounds():
    x = mamba_inputs(groups=1)
    with pytest.raises(ValueError, match="cu_seqlens is None"):
        mamba.mamba_chunk_scan_combined(*scanned(x), 64, return_varlen_states=True)


@pytest.mark.parametrize(
    ("ours", "module"),
    [
        (fla.chunk_simple_gla, "fla.ops.simple_gla.chunk"),
        (fla.chunk_retention, "fla.ops.retention.chunk"),
        (fla.chunk_lightning_attn, "fla.ops.lightning_attn.chunk"),
        (fla.chunk_delta_rule, "fla.ops.delta_rule.chunk"),
        (fla.chunk_gated_delta_rule, "fla.ops.gated_delta_rule.chunk"),
        (fla.fused_recurrent_delta_rule, "fla.ops.delta_rule.fused_recurrent"),
        (fla.fused_recurrent_gated_delta_rule, "fla.ops.gated_delta_rule.fused_recurrent"),
        (fla.chunk_kda, "fla.ops.kda.chunk"),
        (fla.fused_recurrent_kda, "fla.ops.kda.fused_recurrent"),
        (mamba.mamba_chunk_scan_combined, "mamba_ssm.ops.triton.ssd_combined"),
    ],
    ids=[
        "simple_gla",
        "retention",
        "lightning_attn",
        "delta",
        "gated_delta",
        "step_delta",
        "step_gated_delta",
        "kda",
        "step_kda",
        "mamba2",
    ],
)
def test_arguments_are_the_packages(ours, module):
    """Names, order and defaults, where the package is installed."""
    theirs = getattr(pytest.importorskip(module, exc_type=ImportError), ours.__name__)

    def arguments(function):
        parameters = inspect.signature(inspect.unwrap(function)).parameters.values()
        return [(p.name, p.default) for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]

    assert arguments(ours) == arguments(theirs)


def test_mamba2_takes_every_argument_by_place_or_by_name():
    """As mamba-ssm 2.3 has them, which is installed on few machines."""
    parameters = inspect.signature(mamba.mamba_chunk_scan_combined).parameters
    assert [*parameters] == [
        "x", "dt", "A", "B", "C", "chunk_size", "D", "z", "dt_bias", "initial_states", "seq_idx", "cu_seqlens",
        "dt_softplus", "dt_limit", "return_final_states", "return_varlen_states",
    ]  # fmt: skip
    assert {p.kind for p in parameters.values()} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    x = mamba_inputs(groups=1)
    by_place = mamba.mamba_chunk_scan_combined(
        *scanned(x), 64, None, x["z"], None, None, None, None, True, (0.1, 0.5), True
    )
    by_name = mamba.mamba_chunk_scan_combined(
        *scanned(x), chunk_size=64, z=x["z"], dt_softplus=True, dt_limit=(0.1, 0.5), return_final_states=True
    )
    for a, b in zip(by_place, by_name, strict=True):
        assert a.equal(b)
    with pytest.raises(TypeError, match="headdim"):
        mamba.mamba_chunk_scan_combined(*scanned(x), 64, headdim=16)  # type: ignore[call-arg]
