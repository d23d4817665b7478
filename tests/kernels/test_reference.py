"""The three forms of the reference: against the definition written out, against each other, and at the edges."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tflabench.kernels.scalar import reference
from tflabench.kernels.state import State, zero_state
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG, Gate

B, H, T, D_QK, D_HV = 2, 2, 21, 4, 6
RETENTION = Gate(forget="fixed", input="none")
SIMPLE_GLA = Gate(forget="sigmoid", input="none")
MAMBA2 = Gate(forget="log_decay", input="step")
NORMALIZED_SIG = Gate(forget="sigmoid", input="sigmoid", normalize=True)
UNNORMALIZED_EXP = Gate(forget="log_decay", input="exp")
GATES = {
    "exp": MLSTM_EXP,
    "sig": MLSTM_SIG,
    "retention": RETENTION,
    "simple_gla": SIMPLE_GLA,
    "mamba2": MAMBA2,
    "sig_normalized": NORMALIZED_SIG,
    "exp_unnormalized": UNNORMALIZED_EXP,
}
FORMS = {
    "recurrent": reference.recurrent,
    "parallel": reference.parallel,
    **{f"chunk{L}": partial(reference.chunkwise, chunk_size=L) for L in (1, 4, 7, 16, T, 64)},
}
Leaves = dict[str, Any]  # tensors by name; a gate without i, n or m has none
LEAVES = ("q", "k", "v", "f", "i", "C", "n")

every_gate = pytest.mark.parametrize("gate", GATES.values(), ids=GATES.keys())
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())


def inputs(gate: Gate, extreme: bool = False, seed: int = 0) -> Leaves:
    """Float64 leaves by name; extreme gates are +-30, with forget gates of -inf at a chunk's start, end and middle."""
    torch.manual_seed(seed)
    f, i = torch.randn(B, H, T).double() + 3, torch.randn(B, H, T).double()
    if extreme:
        f, i = 30 * f.sub(3).sign(), 30 * i.sign()
        f[0, :, [0, 7, 15, 18]] = -math.inf
    if gate.forget == "log_decay":
        f = torch.nn.functional.logsigmoid(f)
    elif gate.forget == "fixed":
        f = torch.tensor([-0.1, -1.0]).double()
    if gate.input == "step":
        i = torch.nn.functional.softplus(i)
    leaves = {"q": torch.randn(B, H, T, D_QK), "k": torch.randn(B, H, T, D_QK), "v": torch.randn(B, H, T, D_HV), "f": f}
    if gate.input != "none":
        leaves["i"] = i
    leaves["C"] = torch.randn(B, H, D_QK, D_HV)
    if gate.normalize:
        leaves["n"] = torch.randn(B, H, D_QK)
    if gate.stabilized:
        leaves["m"] = torch.randn(B, H)
    return {name: x.double().requires_grad_(name in LEAVES) for name, x in leaves.items()}


def run(form, gate: Gate, x: Leaves, start: State | None = None, steps: slice = slice(None), **options):
    """(h, last state) of the form over the given steps."""
    i = x.get("i")
    f = x["f"] if x["f"].dim() == 1 else x["f"][:, :, steps]
    q, k, v = (x[name][:, :, steps] for name in "qkv")
    return form(q, k, v, f, None if i is None else i[:, :, steps], start, gate=gate, **options)


def state_of(x: Leaves) -> State:
    return State(x["C"], x.get("n"), x.get("m"))


def compute(form, gate: Gate, x: Leaves, **options) -> dict[str, Tensor]:
    """h, the last state and every gradient of a loss that weighs all of them, by name."""
    h, last = run(form, gate, x, state_of(x), **options)
    found = {"h": h, **{f"last.{n}": s for n, s in zip("Cnm", last, strict=True) if s is not None}}
    weighed = [(y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum() for y in found.values()]
    return found | gradients(torch.stack(weighed).sum(), x)


def gradients(loss: Tensor, x: Leaves) -> dict[str, Tensor]:
    leaves = [n for n in LEAVES if n in x]
    grads = torch.autograd.grad(loss, [x[n] for n in leaves], materialize_grads=True)
    return {f"d{n}": g for n, g in zip(leaves, grads, strict=True)}


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        error = (found[name] - want).abs().max() / (1 + want.abs().max())
        assert error <= tolerance, f"{name}: {error:.1e}"  # false for NaN too


def definition(gate: Gate, x: Leaves) -> Tensor:
    """h with nothing rescaled: C_t = F_t C_{t-1} + I_t k_t v_t^T, and max(|n^T q|, 1) as denominator."""
    forget = {
        "sigmoid": torch.sigmoid,
        "log_decay": torch.exp,
        "fixed": lambda f: f.exp()[None, :, None].expand(B, H, T),
    }
    write = {"exp": torch.exp, "sigmoid": torch.sigmoid, "step": lambda i: i, "none": lambda _: torch.ones(B, H, T)}
    keep, new = forget[gate.forget](x["f"]), write[gate.input](x.get("i"))
    true_scale = x["m"].exp() if gate.stabilized else torch.ones(B, H).double()
    C, n = x["C"] * true_scale[..., None, None], x["n"] * true_scale[..., None] if gate.normalize else None
    h = []
    for t in range(T):
        q, k, v = (x[name][:, :, t] for name in "qkv")
        C = torch.einsum("bh,bhkv->bhkv", keep[:, :, t], C) + torch.einsum("bh,bhk,bhv->bhkv", new[:, :, t], k, v)
        h_t = torch.einsum("bhkv,bhk->bhv", C, q / math.sqrt(D_QK))
        if n is not None:
            n = keep[:, :, t, None] * n + new[:, :, t, None] * k
            h_t = h_t / (n * q / math.sqrt(D_QK)).sum(-1, keepdim=True).abs().clamp(min=1)
        h.append(h_t)
    return torch.stack(h, dim=2)


@every_form
@every_gate
def test_forms_compute_the_definition(gate, form):
    x = inputs(gate)
    torch.testing.assert_close(run(form, gate, x, state_of(x))[0], definition(gate, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("exact", [False, True], ids=["constant_normalizer", "exact_normalizer"])
@pytest.mark.parametrize("extreme", [False, True], ids=["normal", "extreme"])
@every_gate
def test_forms_agree_in_values_and_gradients(gate, extreme, exact):
    x = inputs(gate, extreme)
    wanted = compute(reference.recurrent, gate, x, exact_normalizer_gradient=exact)
    for form in FORMS.values():
        assert_same(compute(form, gate, x, exact_normalizer_gradient=exact), wanted)


@every_gate
def test_exact_gradient_is_that_of_the_definition(gate):
    x = inputs(gate)
    weight = torch.linspace(-1, 1, B * H * T * D_HV).view(B, H, T, D_HV).double()
    h, _ = run(reference.chunkwise, gate, x, state_of(x), chunk_size=8, exact_normalizer_gradient=True)
    assert_same(gradients((h * weight).sum(), x), gradients((definition(gate, x) * weight).sum(), x), 1e-9)


def test_normalizer_is_a_constant_by_default():
    """The gradient is that of the numerator, C^T q, over a denominator that does not move."""
    x = inputs(MLSTM_EXP)
    weight = torch.randn(B, H, T, D_HV).double()
    h, _ = run(reference.chunkwise, MLSTM_EXP, x, state_of(x))
    true_C = State(x["C"] * x["m"].exp()[..., None, None])
    numerator, _ = run(reference.chunkwise, Gate("sigmoid", "exp", normalize=False), x, true_C)
    held = (numerator * (weight * h / numerator).detach()).sum()
    assert_same(gradients((h * weight).sum(), x), gradients(held, x))


@every_form
@pytest.mark.parametrize("gate", [MLSTM_EXP, MLSTM_SIG], ids=["exp", "sig"])
def test_shut_forget_gates_keep_documents_apart(gate, form):
    """Behind a forget gate of -inf nothing of what was before is left, in values or gradients."""
    x, cut = inputs(gate), 10
    with torch.no_grad():
        x["f"][:, :, cut] = -math.inf
    h, last = run(form, gate, x, state_of(x))
    alone, alone_last = run(form, gate, x, steps=slice(cut, None))
    torch.testing.assert_close(h[:, :, cut:], alone, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(last.C, alone_last.C, rtol=1e-12, atol=1e-12)
    for name, g in gradients(h[:, :, cut:].sum() + last.C.sum(), x).items():
        assert g.isfinite().all(), name
        assert (g[:, :, :cut] == 0).all() or name in ("dC", "dn"), name
        assert (g == 0).all() == (name in ("dC", "dn")), name


@every_form
def test_shut_input_gates_write_nothing(form):
    """Tokens with an input gate of -inf (padding) change nothing but the forgetting, also where the state is empty."""
    x = inputs(MLSTM_EXP)
    with torch.no_grad():
        x["i"][:, :, :5] = -math.inf
        x["f"][:, :, :3] = -math.inf
    h, last = run(form, MLSTM_EXP, x)
    alone, _ = run(form, MLSTM_EXP, x, steps=slice(5, None))
    assert (h[:, :, :5] == 0).all()
    torch.testing.assert_close(h[:, :, 5:], alone, rtol=1e-12, atol=1e-12)
    for name, g in gradients(h.sum() + last.C.sum(), x).items():
        assert g.isfinite().all(), name


@every_gate
def test_two_halves_are_the_whole(gate):
    x = inputs(gate)
    h, last = run(reference.chunkwise, gate, x, chunk_size=4)
    h1, middle = run(reference.chunkwise, gate, x, steps=slice(9), chunk_size=4)
    h2, end = run(reference.chunkwise, gate, x, middle, steps=slice(9, None), chunk_size=4)
    torch.testing.assert_close(torch.cat([h1, h2], dim=2), h, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(tuple(end), tuple(last), rtol=1e-10, atol=1e-10)


@every_gate
def test_no_initial_state_is_the_zero_state(gate):
    x = inputs(gate)
    zero = zero_state(gate, B, H, D_QK, D_HV, dtype=torch.float64)
    assert run(reference.chunkwise, gate, x)[0].equal(run(reference.chunkwise, gate, x, zero)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@every_gate
def test_low_precision_rounds_only_products(gate, dtype):
    """The result has the inputs' dtype, the state float32, and the error is a few units of that dtype."""
    x = {n: t.detach().to(dtype) for n, t in inputs(gate).items()}
    h, last = run(reference.chunkwise, gate, x, state_of(x), chunk_size=8)
    exact = {n: t.double() for n, t in x.items()}
    wanted, _ = run(reference.recurrent, gate, exact, state_of(exact))
    assert h.dtype == dtype
    assert last.C.dtype == torch.float32
    assert (h - wanted).abs().mean() <= 4 * torch.finfo(dtype).eps * wanted.abs().mean()


@every_form
def test_nan_passes_through(form):
    x = {n: t.detach() for n, t in inputs(MLSTM_EXP).items()}
    x["i"][0, 0, 5] = math.nan
    h, last = run(form, MLSTM_EXP, x)
    assert h[0, 0, 5:].isnan().all()
    assert h[0, 0, :5].isfinite().all()
    assert h[1].isfinite().all()
    assert last.C[0, 0].isnan().all()


@every_form
@pytest.mark.parametrize("at", [3, T - 1])
def test_nothing_is_nan_where_a_denominator_underflows(form, at):
    """Where n^T q is 0 and exp(-m) too, also in the steps that fill the last chunk behind a large m."""
    exact = {name: x.detach() for name, x in inputs(MLSTM_EXP).items()}
    exact["i"][..., at] = 110
    exact["q"][:, :, 3] = 0
    x = {name: y.float().requires_grad_() for name, y in exact.items()}
    h, _ = run(form, MLSTM_EXP, x)
    wanted, _ = run(reference.recurrent, MLSTM_EXP, exact)
    torch.testing.assert_close(h.double(), wanted, rtol=1e-4, atol=1e-5)
    assert all(x.isfinite().all() for x in torch.autograd.grad(h.sum(), [x[name] for name in "qkvfi"]))


def test_state_dtype_rounds_the_state_between_chunks():
    x = {n: t.detach().float() for n, t in inputs(MLSTM_SIG).items()}
    kept, _ = run(reference.chunkwise, MLSTM_SIG, x, chunk_size=8)
    rounded, _ = run(reference.chunkwise, MLSTM_SIG, x, chunk_size=8, state_dtype=torch.bfloat16)
    assert rounded[:, :, :8].equal(kept[:, :, :8])
    assert 0 < (rounded - kept).abs().max() < 2**-6 * kept.abs().max()
