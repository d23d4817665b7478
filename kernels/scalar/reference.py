"""The recurrence in plain PyTorch, in its three forms: the oracle of every kernel, and what runs where Triton does not.

    C_t = F_t C_{t-1} + I_t k_t v_t^T,   n_t = F_t n_{t-1} + I_t k_t,   q'_t = scale q_t
    h_t = C_t^T q'_t / max(|n_t^T q'_t|, 1)   with a normaliser, else C_t^T q'_t

`recurrent` is the definition, `chunkwise` the same in chunks of L steps, `parallel` its case L = T. They take any Gate,
run on any device, and are exact to rounding in float64. In bfloat16 and float16 they do what tensor cores do: operands
of matrix products are rounded to that type, products are summed and everything else is computed in float32.

Gradients are autograd's, with the normaliser a constant (it cancels in the norm layer that follows: TFLA paper, B.3).
The stabiliser m is always a constant: h does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypedDict, Unpack

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad, softplus

from tflabench.kernels.common.tensors import rounded, scale_of, scan, shared, unflatten, weight
from tflabench.kernels.state import State, zero_state
from tflabench.kernels.types import Gate

M_FLOOR = -1e30  # m where nothing was ever written (I_t = F_t = 0): finite, so that differences of m are never NaN

_SMALL_STEP = -40.0  # log softplus(x) is x below it, in float64 too
_LOG_INPUT: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": lambda i: i,
    "sigmoid": logsigmoid,
    "step": lambda i: torch.where(i == 0, -math.inf, torch.where(i == 0, 1.0, i).log()),  # log would give NaN to di
    "softplus": lambda i: torch.where(i < _SMALL_STEP, i, softplus(i.clamp(min=_SMALL_STEP)).log()),
}
_STEP_SIZE: dict[str, Callable[[Tensor], Tensor]] = {"step": lambda i: i, "softplus": softplus}


def log_gates(gate: Gate, f: Tensor, i: Tensor | None, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return log F_t and log I_t, both (B, H, T), computed in float32 or the wider dtype of v (B, H, T, d_hv)."""
    shape, dtype = v.shape[:3], torch.promote_types(v.dtype, torch.float32)
    f, i = f.to(dtype), None if i is None else i.to(dtype)
    log_i = f.new_zeros(shape) if i is None else _LOG_INPUT[gate.input](i)
    if gate.forget == "sigmoid":
        f = logsigmoid(f) if gate.temperature == 1 else logsigmoid(f) / gate.temperature
    elif gate.per_head:
        f = per_head_decays(gate, f, i, v)
    return f.expand(shape), log_i


def log_decay(gate: Gate, f: Tensor, i: Tensor | None, v: Tensor) -> Tensor:
    """Return log of what all steps together multiply a state by, (B, H, 1, 1)."""
    return log_gates(gate, f, i, v)[0].sum(-1)[..., None, None]


def per_step(gate: Gate, f: Tensor, i: Tensor | None, v: Tensor) -> tuple[Tensor, Gate]:
    """Return log F_t (B, H, T) of a gate that has one number a head, and the gate of these: see `per_head_decays`."""
    return per_head_decays(gate, f, i, v), replace(gate, forget="log_decay")


def per_head_decays(gate: Gate, f: Tensor, i: Tensor | None, v: Tensor) -> Tensor:
    """Return log F_t (B, H, T) of a gate with one number f (H,) a head, in float32 or the wider dtype of v."""
    dtype = torch.promote_types(v.dtype, torch.float32)
    f = f.to(dtype)[:, None]
    if i is not None and gate.forget == "rate":
        f = f * _STEP_SIZE[gate.input](i.to(dtype))
    return f.expand(v.shape[:3])


class ReferenceOptions(TypedDict, total=False):
    """Keywords of all forms.

    Attributes:
        scale: of q; None, the default, is 1/sqrt(d_qk).
        exact_normalizer_gradient: let gradients flow through the normaliser too; False is the default.
    """

    scale: float | None
    exact_normalizer_gradient: bool


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    i: Tensor | None = None,
    initial: State | None = None,
    *,
    gate: Gate,
    **options: Unpack[ReferenceOptions],
) -> tuple[Tensor, State]:
    """Compute the recurrence step by step (TFLA paper, eqs. 1-9).

    Args:
        q, k: (B, H, T, d_qk), or (B, G, T, d_qk): each for H / G consecutive heads of v.
        v: (B, H, T, d_hv), of the dtype of q.
        f, i: gate pre-activations (B, H, T), or as `gate` says.
        initial: state before the first step; None is `zero_state`.
        gate: which gates, with a normaliser or without.
        options: see `ReferenceOptions`.

    Returns:
        h (B, H, T, d_hv) in the dtype of q, and the state after the last step in float32 (float64 for float64).
    """
    work = torch.promote_types(q.dtype, torch.float32)
    log_f, log_i = log_gates(gate, f, i, v)
    state = _start(q, v, gate, initial)
    h: list[Tensor] = []
    for t in range(q.shape[2]):
        q_t, k_t, v_t = (x[:, :, t].to(work) for x in (q, k, v))
        h_t, state = step(q_t, k_t, v_t, log_f[..., t], log_i[..., t], state, **options)
        h.append(h_t)
    return torch.stack(h, dim=2).to(q.dtype), state


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_f: Tensor,
    log_i: Tensor,
    state: State,
    *,
    scale: float | None = None,
    exact_normalizer_gradient: bool = False,
) -> tuple[Tensor, State]:
    """Compute h_t (B, H, d_hv) and the state after the step.

    Args:
        q, k: (B, H, d_qk), or (B, G, d_qk); v: (B, H, d_hv).
        log_f, log_i: (B, H).
    """
    q, k = shared(q, v.shape[1]), shared(k, v.shape[1])
    C_before, n, m_before = state
    if m_before is None:
        m = m_before = torch.zeros_like(log_f)
    else:
        m = torch.maximum(log_f + m_before, log_i).clamp(min=M_FLOOR).detach()
    keep, write = torch.exp(log_f + m_before - m)[..., None], torch.exp(log_i - m)[..., None]
    C = keep[..., None] * C_before + (write * k)[..., :, None] * v[..., None, :]
    q = q * scale_of(scale, q)
    h = (q[..., None, :] @ C).squeeze(-2)
    if n is not None:
        n = keep * n + write * k
        h = h / _denominator((n * q).sum(-1), m, exact_normalizer_gradient)[..., None]
    return h, State(C, n, None if state.m is None else m)


def decode(
    q: Tensor, k: Tensor, v: Tensor, f: Tensor, i: Tensor | None, state: State, *, gate: Gate, scale: float | None
) -> tuple[Tensor, State]:
    """Compute h_t (B, H, d_hv) in the dtype of q and the state after one step, of tensors without time axis."""
    f, i = f if f.dim() == 1 else f[..., None], None if i is None else i[..., None]
    log_f, log_i = log_gates(gate, f, i, v[:, :, None])
    q_t, k_t, v_t = (x.to(log_f.dtype) for x in (q, k, v))
    h, after = step(q_t, k_t, v_t, log_f[..., 0], log_i[..., 0], state, scale=scale)
    return h.to(q.dtype), after


def parallel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    i: Tensor | None = None,
    initial: State | None = None,
    *,
    gate: Gate,
    **options: Unpack[ReferenceOptions],
) -> tuple[Tensor, State]:
    """Compute all steps at once, H = ((Q K^T * D) / n) V with D (T, T): one chunk. Arguments as for `recurrent`."""
    return chunkwise(q, k, v, f, i, initial, gate=gate, chunk_size=q.shape[2], **options)


def chunkwise(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    i: Tensor | None = None,
    initial: State | None = None,
    *,
    gate: Gate,
    chunk_size: int = 64,
    state_dtype: torch.dtype | None = None,
    **options: Unpack[ReferenceOptions],
) -> tuple[Tensor, State]:
    """Compute the recurrence between chunks of L steps, the parallel form within them (TFLA paper, section 3).

    Arguments and results as in `recurrent`, and:
        chunk_size: L, any value >= 1; the last chunk may be shorter.
        state_dtype: what the chunks' states C are rounded to where the outputs read them; None keeps them as they are.
    """
    T, dtype = q.shape[2], q.dtype
    L = min(chunk_size, T)
    work = torch.promote_types(dtype, torch.float32)
    log_f, log_i = log_gates(gate, f, i, v)
    q, k = shared(q, v.shape[1]), shared(k, v.shape[1])
    start, n, m = _start(q, v, gate, initial)

    # Chunks (B, H, N, L, ...); the steps added to fill the last one keep the state: F = 1, I = 0.
    missing = -T % L
    q, k, v = (unflatten(pad(x, (0, 0, 0, missing)), 2, (-1, L)).to(work) for x in (q, k, v))
    log_f = unflatten(pad(log_f, (0, missing)), 2, (-1, L))
    log_i = unflatten(pad(log_i, (0, missing), value=-math.inf), 2, (-1, L))

    D = _log_weights(log_f, log_i)
    b = log_f.cumsum(-1)
    a, g = D[..., -1, :], b[..., -1]  # log weights at the end of the chunk: of token j, of the state before the chunk

    # Between chunks: C_k = exp(g + m_{k-1} - m_k) C_{k-1} + (exp(a - m_k) K)^T V, and n with V = 1.
    m = _running_maximum(g, a, m)
    m_before, m_after = m[..., :-1], m[..., 1:]
    keep = torch.exp(g + m_before - m_after)
    k_weighted = weight(a - m_after[..., None])[..., None] * k
    C_before, C = scan(start, keep[..., None, None], rounded(k_weighted, dtype).transpose(-1, -2) @ v)
    n_before = None
    if n is not None:
        n_before, n = scan(n, keep[..., None], k_weighted.sum(-2))
    last = State(C, n, m[..., -1].contiguous() if gate.stabilized else None)

    # Within chunks, H = [ exp(b + m_{k-1} - m) q C_{k-1} + (Q K^T * exp(D - m)) V ] / denominator.
    state = b + m_before[..., None]
    m = torch.zeros_like(b)
    if gate.stabilized:
        m = torch.maximum(state, D.amax(-1)).clamp(min=M_FLOOR).detach()
    scale = scale_of(options.get("scale"), q)
    state_weight = scale * weight(state - m)
    P = (q @ k.transpose(-1, -2)) * (scale * weight(D - m[..., None]))
    C_read = C_before if state_dtype is None else rounded(C_before, state_dtype)
    h = rounded(P, dtype) @ v + state_weight[..., None] * (q @ rounded(C_read, dtype))
    if n_before is not None:
        n_dot_q = P.sum(-1) + state_weight * (q @ n_before[..., None]).squeeze(-1)
        h = h / _denominator(n_dot_q, m, options.get("exact_normalizer_gradient", False))[..., None]
    return h.flatten(2, 3)[:, :, :T].to(dtype), last


def _start(q: Tensor, v: Tensor, gate: Gate, initial: State | None) -> State:
    """Return the state before the first step in the dtype it is computed in, m finite and a constant."""
    work = torch.promote_types(q.dtype, torch.float32)
    if initial is None:
        B, H, _, d_hv = v.shape
        initial = zero_state(gate, B, H, q.shape[-1], d_hv, device=q.device, dtype=work)
    C, n, m = initial
    return State(
        C.to(work),
        None if n is None else n.to(work),
        None if m is None else m.detach().to(work).clamp(min=M_FLOOR),
    )


def _log_weights(log_f: Tensor, log_i: Tensor) -> Tensor:
    """Return D~_ij (..., L, L), the log weight of token j at step i.

    It is sum_{l=j+1..i} log F_l + log I_j, and -inf for j > i.

    Every sum is its own: a difference b_i - b_j would cancel digits, and be NaN behind a forget gate of -inf.
    """
    causal = torch.ones(log_f.shape[-1], log_f.shape[-1], dtype=torch.bool, device=log_f.device).tril()
    forgotten = torch.where(causal.tril(-1), log_f[..., :, None], 0.0).cumsum(-2)
    return (forgotten + log_i[..., None, :]).masked_fill(~causal, -math.inf)


@torch.no_grad()
def _running_maximum(g: Tensor, a: Tensor, m: Tensor | None) -> Tensor:
    """Return m before the first and after every chunk, (B, H, N + 1); zeros without m.

    m_k = max(g_k + m_{k-1}, max_j a_j)
    """
    if m is None:
        return g.new_zeros(*g.shape[:-1], g.shape[-1] + 1)
    steps = [m]
    for g_k, a_k in zip(g.unbind(-1), a.amax(-1).unbind(-1), strict=True):
        steps.append(torch.maximum(g_k + steps[-1], a_k).clamp(min=M_FLOOR))
    return torch.stack(steps, dim=-1)


def _denominator(n_dot_q: Tensor, m: Tensor, with_gradient: bool) -> Tensor:
    """Return max(|n^T q|, exp(-m)): at least 1 in the scale of the true n, and never 0, where exp(-m) underflows."""
    smallest = 2.0**26 * torch.finfo(m.dtype).tiny  # 2^-100 in float32, as kernels have it
    return torch.maximum((n_dot_q if with_gradient else n_dot_q.detach()).abs(), torch.exp(-m).clamp(min=smallest))
