"""Gated Linear Attention in plain PyTorch: the oracle of its kernels, and what CPUs run.

    S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T,   o_t = scale S_t^T q_t

`decode` is the definition, a step of it, `chunkwise` the same of a sequence in chunks of L steps. They run on any
device, and are exact to rounding in float64 at every gate, -inf among them: no sum of log decays is a difference. In 16
bits `chunkwise` does what tensor cores do: operands of matrix products are rounded, products are summed in float32.
Gradients are autograd's.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from tflabench.kernels.common.tensors import (
    rounded,
    scale_of,
    scan,
    shared,
    sums_after,
    sums_between,
    unflatten,
    weight,
)
from tflabench.kernels.state import State, matrix_before
from tflabench.kernels.types import Gating

from .gating import GLA


def decode(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, i: None, state: State, *, gate: Gating, scale: float | None
) -> tuple[Tensor, State]:
    """Compute o_t (B, H, d_hv) in the dtype of q and the state after one step, of tensors without time axis."""
    del i, gate
    dtype, work = q.dtype, torch.promote_types(q.dtype, torch.float32)
    q, k, v, g, C = (x.to(work) for x in (shared(q, v.shape[1]), shared(k, v.shape[1]), v, g, state.C))
    after = torch.exp(g)[..., None] * C + k[..., :, None] * v[..., None, :]
    return ((scale_of(scale, q) * q)[..., None, :] @ after).squeeze(-2).to(dtype), State(after)


def chunkwise(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    i: None = None,
    initial: State | None = None,
    *,
    gate: Gating = GLA,
    scale: float | None = None,
    chunk_size: int = 32,
    state_dtype: torch.dtype | None = None,
) -> tuple[Tensor, State]:
    """Compute the recurrence between chunks of L steps, the parallel form within them.

    Args:
        q, k, v, g, initial, scale: as of `gla`.
        i: None, as there is no such gate.
        chunk_size: L, any value >= 1; the last chunk may be shorter. Memory grows as T L d_qk.
        gate, state_dtype: of no effect: there is one gate, and states are rounded to the dtype of q.

    Returns:
        o (B, H, T, d_hv) in the dtype of q, and the state after the last step in float32 (float64 for float64).
    """
    del i, gate, state_dtype
    T, dtype = q.shape[2], q.dtype
    L = min(chunk_size, T)
    work = torch.promote_types(dtype, torch.float32)
    before = matrix_before(q, v, initial)
    q, k = shared(q, v.shape[1]), shared(k, v.shape[1])

    # Chunks (B, H, N, L, ...); the steps added to fill the last one keep the state, and write nothing.
    q, k, v, g = (unflatten(pad(x.to(work), (0, 0, 0, -T % L)), 2, (-1, L)) for x in (q, k, v, g))
    q = q * scale_of(scale, q)

    # Between chunks: S_k = diag(exp(total)) S_{k-1} + (K * exp(after))^T V.
    k_weighted = rounded(k * weight(sums_after(g)), dtype)
    states, last = scan(before, weight(g.sum(-2))[..., None], k_weighted.transpose(-1, -2) @ v)

    # Within them: O = (Q * exp(until)) S_{k-1} + P V, with P_ij = sum_c q_ic k_jc exp(g_{j+1,c} + ... + g_ic).
    P = ((q[..., :, None, :] * weight(sums_between(g))) * k[..., None, :, :]).sum(-1)
    q_weighted = rounded(q * weight(g.cumsum(-2)), dtype)
    o = rounded(P, dtype) @ v + q_weighted @ rounded(states, dtype)
    return o.flatten(2, 3)[:, :, :T].to(dtype), State(last)


def log_decay(gate: Gating, g: Tensor, i: None, v: Tensor) -> Tensor:
    """Return log of what all steps together multiply each row of a state by, (B, H, d_qk, 1)."""
    del gate, i
    return g.to(torch.promote_types(v.dtype, torch.float32)).sum(2)[..., None]
