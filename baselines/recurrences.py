"""The recurrences that baselines compute, in plain, differentiable PyTorch: the oracles of their correctness gate.

One form covers linear attention and its relatives: per head a state C (d_qk x d_hv), 0 before the first step, and

    C'_t = diag(exp(g_t)) C_{t-1}                       g: log decay, a scalar or a value a channel of d_qk
    C_t  = C'_t + k_t u_t^T                             u_t = v_t, or with the delta rule
    o_t  = scale q_t^T C_t                              u_t = beta_t (v_t - C'_t^T k_t)

GLA, Simple GLA, Retention, Lightning attention, linear attention and Mamba 2 (q = C, k = B, v = dt x, g = dt A) are the
first kind, DeltaNet, Gated DeltaNet and KDA the second. RWKV-7 adds b_t a_t^T C_{t-1} to the first. Mamba has a decay a
channel and state, and no products of matrices: `selective_scan`.

Everything is computed in at least float32, and operands of matrix products are rounded to the dtype of the inputs, as
kernels at that precision do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from tflabench.implementations.adapter import SuffixSum

if TYPE_CHECKING:
    from torch import Tensor

SCALAR_CHUNK, CHANNEL_CHUNK = 64, 16  # steps at a time: the decays of channels take L * L * d_qk numbers
SCAN_CHUNK = 64


def recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor | None = None,
    *,
    low_rank: tuple[Tensor, Tensor] | None = None,
    scale: float = 1.0,
) -> Tensor:
    """Return o (B, H, T, d_hv) of q, k (B, H, T, d_qk), v (B, H, T, d_hv); chunk by chunk, all chunks of equal form.

    Args:
        log_decay: g (B, H, T, 1), or (B, H, T, d_qk) for a decay a channel; broadcast where a size is 1.
        beta: (B, H, T): the delta rule with this step size; None writes v itself.
        low_rank: a and b (B, H, T, d_qk) of RWKV-7; None adds nothing.
        scale: of q.
    """
    import torch

    dtype, T = q.dtype, q.shape[2]
    work = torch.promote_types(dtype, torch.float32)

    def rounded(x: Tensor) -> Tensor:
        return x.to(dtype).to(work)

    B, H = torch.broadcast_shapes(q.shape[:2], v.shape[:2])
    log_decay = log_decay.to(work).expand(B, H, T, -1)
    C = torch.zeros(B, H, k.shape[-1], v.shape[-1], dtype=work, device=q.device)
    L = SCALAR_CHUNK if log_decay.shape[-1] == 1 else CHANNEL_CHUNK
    outputs = []
    for start in range(0, T, L):
        steps = slice(start, start + L)
        q_c, k_c, u = (x[:, :, steps].to(work) for x in (q, k, v))
        g = log_decay[:, :, steps]
        D = _decays(g)  # [L, L, 1 or d_qk], 0 above the diagonal
        from_start = g.cumsum(2).exp()
        C_read = rounded(C)
        if beta is not None:
            # (1 + A) u = beta (v - K' C), A_ij = beta_i k_i^T D_ij k_j for j < i
            step_size = beta[:, :, steps].to(work)[..., None]
            u = step_size * (u - rounded(k_c * from_start) @ C_read)
            A = step_size * _scores(k_c, k_c, D).tril(-1)
            u = rounded(torch.linalg.solve_triangular(A, u, upper=False, unitriangular=True))
        writes = [(k_c, u)]
        if low_rank is not None:
            # (1 - A) y = a' C + A_k v, A_ij = a_i^T D_(i-1)j b_j, A_k the same of k: a reads the state before a step
            a, b = (x[:, :, steps].to(work) for x in low_rank)
            before = torch.nn.functional.pad(D[:, :, :-1], (0, 0, 0, 0, 1, 0))
            to_before = torch.nn.functional.pad(from_start[:, :, :-1], (0, 0, 1, 0), value=1.0)
            y = rounded(a * to_before) @ C_read + rounded(_scores(a, k_c, before)) @ u
            A = -_scores(a, b, before)
            writes.append((b, rounded(torch.linalg.solve_triangular(A, y, upper=False, unitriangular=True))))
        within = sum(rounded(_scores(q_c, key, D)) @ value for key, value in writes)
        outputs.append(scale * (rounded(q_c * from_start) @ C_read + within))
        written = sum(rounded(key * D[:, :, -1]).mT @ value for key, value in writes)
        C = from_start[:, :, -1, :, None] * C + written
    return torch.cat(outputs, dim=2).to(dtype)


def normalized(x: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(|x|^2 + eps) over the last dimension, in the dtype of x."""
    import torch

    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)


def decay_gradient_as_summed(
    gate: Literal["f", "g"], inputs: Mapping[str, Tensor], results: Mapping[str, Tensor]
) -> dict[str, SuffixSum]:
    """Return the gradient of scalar decays as kernels form it: q.dq - k.dk summed over the rest of the sequence.

    Autograd through a reference would allow it no more than the rounding of the result; kernels sum a difference of
    rounded terms, whose error grows with sqrt(T).

    Args:
        gate: "g", log decays, or "f", pre-activations of forget gates, whose gradient goes through their log sigmoid.
    """
    import torch

    if f"d{gate}" not in results:
        return {}
    work = torch.promote_types(inputs["q"].dtype, torch.float32)
    q, k, pre_activation = (inputs[name].detach().to(work) for name in ("q", "k", gate))
    scale = torch.sigmoid(-pre_activation) if gate == "f" else 1.0
    return {f"d{gate}": SuffixSum((q * results["dq"] - k * results["dk"]).sum(-1), scale)}


def _decays(g: Tensor) -> Tensor:
    """exp(sum of g over steps j+1 ... i), (..., L, L, channels), and 0 for j > i; every sum is its own."""
    import torch

    causal = torch.ones(g.shape[2], g.shape[2], dtype=torch.bool, device=g.device).tril()[..., None]
    below = causal[..., 0].tril(-1)[..., None]
    return torch.where(below, g[:, :, :, None], 0.0).cumsum(2).exp().masked_fill(~causal, 0.0)


def _scores(x: Tensor, y: Tensor, D: Tensor) -> Tensor:
    """x_i^T diag(D_ij) y_j, (..., L, L)."""
    import torch

    if D.shape[-1] == 1:
        return (x @ y.mT) * D[..., 0]
    return torch.einsum("bhic,bhjc,bhijc->bhij", x, y, D)


def selective_scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """Return y (B, channels, T) of Mamba's scan.

    h_t = exp(delta_t A) h_{t-1} + delta_t u_t B_t, y_t = C_t^T h_t + D u_t.

    Args:
        u, delta: (B, channels, T), delta as it enters the recurrence (bias and softplus behind it).
        A: (channels, N), negative.
        B, C: (B, N, T), shared by all channels.
        D: (channels,).
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    dtype, T = u.dtype, u.shape[-1]
    work = torch.promote_types(dtype, torch.float32)
    u, delta, A, B, C, D = (x.to(work) for x in (u, delta, A, B, C, D))

    def chunk(h: Tensor, steps: slice) -> tuple[Tensor, Tensor]:
        decay = (delta[:, :, None, steps] * A[:, :, None]).exp()  # [channels, N, L]
        new = (delta * u)[:, :, None, steps] * B[:, None, :, steps]
        outputs = []
        for decay_t, new_t, C_t in zip(decay.unbind(-1), new.unbind(-1), C[:, :, steps].unbind(-1), strict=True):
            h = decay_t * h + new_t
            outputs.append((h * C_t[:, None]).sum(-1))
        return h, torch.stack(outputs, dim=-1)

    h = torch.zeros(u.shape[0], *A.shape, dtype=work, device=u.device)
    outputs = []
    for start in range(0, T, SCAN_CHUNK):  # each recomputed in the backward pass: memory of one chunk
        h, y = checkpoint(chunk, h, slice(start, start + SCAN_CHUNK), use_reentrant=False)
        outputs.append(y)
    return (torch.cat(outputs, dim=-1) + D[:, None] * u).to(dtype)
