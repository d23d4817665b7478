"""The delta rules in plain PyTorch: the oracle of their kernels, and what CPUs run.

    r_t = v_t - (exp(g_t) S_{t-1})^T k_t,   S_t = exp(g_t) S_{t-1} + beta_t k_t r_t^T,   o_t = scale S_t^T q_t

with a decay exp(g_t) a head, or one a row of the state, which is a channel of q and k (Kimi Delta Attention).

`decode` is the definition, a step of it. `chunkwise` makes all r_t of a chunk at once, as the solution of a triangular
system (Yang et al. 2024, "Parallelizing linear transformers with the delta rule"); what is left is linear attention
with the values beta_t r_t. Both are exact to rounding in float64 at every decay, -inf among them: no sum of log decays
is a difference. In 16 bits `chunkwise` does what tensor cores do: operands of matrix products are rounded, products are
summed in float32. Gradients are autograd's. A g of None is no decay.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from tflabench.kernels.common.tensors import rounded, scale_of, shared, sums_after, sums_between, unflatten, weight
from tflabench.kernels.state import State, matrix_before
from tflabench.kernels.types import Gating

from .gating import GATED_DELTA_NET, DeltaGate
from .normalize import l2_normalized


def without_decay(gate: DeltaGate, v: Tensor) -> tuple[Tensor, DeltaGate]:
    """Return log decays (B, H, T) of 0 for v (B, H, T, d_hv), and the gate of these, which computes as `gate` does."""
    return v.new_zeros(v.shape[:3], dtype=torch.promote_types(v.dtype, torch.float32)), replace(gate, gated=True)


def decode(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor, state: State, *,
    gate: Gating, scale: float | None,
) -> tuple[Tensor, State]:  # fmt: skip
    """Compute o_t (B, H, d_hv) in the dtype of q and the state after one step, of tensors without time axis."""
    del gate
    dtype, work = q.dtype, torch.promote_types(q.dtype, torch.float32)
    g = torch.zeros_like(beta) if g is None else g
    given = (shared(q, v.shape[1]), shared(k, v.shape[1]), v, g, beta, state.C)
    q, k, v, g, beta, C = (x.to(work) for x in given)
    kept = torch.exp(g if g.dim() == 3 else g[..., None])[..., None] * C
    error = v - (k[..., None, :] @ kept).squeeze(-2)
    after = kept + k[..., :, None] * (beta[..., None] * error)[..., None, :]
    return ((scale_of(scale, q) * q)[..., None, :] @ after).squeeze(-2).to(dtype), State(after)


def chunkwise(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor,
    initial: State | None = None,
    *,
    gate: DeltaGate = GATED_DELTA_NET,
    scale: float | None = None,
    chunk_size: int = 64,
    state_dtype: torch.dtype | None = None,
) -> tuple[Tensor, State]:
    """Compute the recurrence between chunks of L steps, and the steps of a chunk together.

    Args:
        q, k: (B, H, T, d_qk), or (B, G, T, d_qk): each for H / G consecutive heads of v.
        v: (B, H, T, d_hv), of the dtype of q.
        g: log decays (B, H, T), or (B, H, T, d_qk), at most 0, any floating dtype; None is no decay.
        beta: (B, H, T), from 0 to 2, any floating dtype.
        initial: state before the first step; None is zero.
        scale: of q; None is 1/sqrt(d_qk).
        chunk_size: L, any value >= 1; the last chunk may be shorter. Memory grows as T L, with decays a channel as
            T L d_qk.
        gate: whether q and k are normalised; g says whether there is a decay.
        state_dtype: of no effect: states are rounded to the dtype of q.

    Returns:
        o (B, H, T, d_hv) in the dtype of q, and the state after the last step in float32 (float64 for float64).
    """
    del state_dtype
    if gate.l2_normalize:
        q, k = (l2_normalized(x, plain=True) for x in (q, k))
    T, dtype = q.shape[2], q.dtype
    L = min(chunk_size, T)
    work = torch.promote_types(dtype, torch.float32)
    S = matrix_before(q, v, initial)
    q, k = shared(q, v.shape[1]), shared(k, v.shape[1])
    g = torch.zeros_like(beta) if g is None else g
    g, beta = g if g.dim() == 4 else g[..., None], beta[..., None]

    # Chunks (B, H, N, L, ...); the steps added to fill the last one keep the state, and write nothing.
    q, k, v, g, beta = (unflatten(pad(x.to(work), (0, 0, 0, -T % L)), 2, (-1, L)) for x in (q, k, v, g, beta))
    q = q * scale_of(scale, q)
    between = weight(sums_between(g))  # [i, j]: decay from j to i, 0 for j > i
    from_start, to_end = weight(g.cumsum(-2)), weight(sums_after(g))

    # Errors R of a chunk: (I + A) R = V - (K * from_start) S, A_ij = (between_ij * k_i) . k_j beta_j for j < i.
    A = _scores(k, k, between).tril(-1) * beta.mT
    identity = torch.eye(L, dtype=work, device=q.device).expand_as(A)
    inverse = rounded(torch.linalg.solve_triangular(A + identity, identity, upper=False, unitriangular=True), dtype)
    k_reads, q_reads = rounded(k * from_start, dtype), rounded(q * from_start, dtype)
    k_writes = rounded(k * (to_end * beta), dtype)
    P = rounded(_scores(q, k, between) * beta.mT, dtype)
    keep = weight(g.sum(-2))[..., None]
    outputs: list[Tensor] = []
    for n in range(v.shape[2]):
        start = rounded(S, dtype)
        R = rounded(inverse[:, :, n] @ rounded(v[:, :, n] - k_reads[:, :, n] @ start, dtype), dtype)
        outputs.append(P[:, :, n] @ R + q_reads[:, :, n] @ start)
        S = keep[:, :, n] * S + k_writes[:, :, n].mT @ R
    return torch.cat(outputs, 2)[:, :, :T].to(dtype), State(S)


def log_decay(gate: Gating, g: Tensor | None, beta: Tensor, v: Tensor) -> None:
    """Return None: what all steps together multiply a state by is a matrix."""


def _scores(x: Tensor, y: Tensor, between: Tensor) -> Tensor:
    """Return x_i . y_j [..., i, j] with the weights between of all channels, or of each."""
    if between.shape[-1] == 1:
        return (x @ y.mT) * between[..., 0]
    return ((x[..., :, None, :] * between) * y[..., None, :, :]).sum(-1)
