"""The recurrences of baselines that our operations do not compute, in plain, differentiable PyTorch: oracles.

RWKV-7 has per head a state C (d_qk x d_hv), 0 before the first step, and g, a log decay a channel:

    C_t = diag(exp(g_t)) C_{t-1} + b_t a_t^T C_{t-1} + k_t v_t^T        o_t = q_t^T C_t

Mamba has a decay a channel and state, and no products of matrices: `selective_scan`.

Everything is computed in at least float32, and operands of matrix products are rounded to the dtype of the inputs, as
kernels at that precision do.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Literal

from tflabench.implementations.adapter import SuffixSum

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 16  # steps at a time: the decays of channels take L * L * d_qk numbers
SCAN_CHUNK = 64


def rwkv7(q: Tensor, k: Tensor, v: Tensor, g: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return o (B, H, T, d_hv) of q, k, g, a, b (B, H, T, d_qk), v (B, H, T, d_hv), chunk by chunk."""
    import torch

    from tflabench.kernels.common import tensors

    dtype = q.dtype
    work = torch.promote_types(dtype, torch.float32)

    rounded = partial(tensors.rounded, dtype=dtype)
    C = torch.zeros(*q.shape[:2], k.shape[-1], v.shape[-1], dtype=work, device=q.device)
    outputs = []
    for start in range(0, q.shape[2], CHUNK):
        q_c, k_c, v_c, g_c, a_c, b_c = (x[:, :, start : start + CHUNK].to(work) for x in (q, k, v, g, a, b))
        D = tensors.sums_between(g_c).exp()  # [L, L, d_qk], 0 above the diagonal
        from_start = g_c.cumsum(2).exp()
        C_read = rounded(C)
        # (1 - A) y = a' C + A_k v, A_ij = a_i^T D_(i-1)j b_j, A_k the same of k: a reads the state before a step
        before = torch.nn.functional.pad(D[:, :, :-1], (0, 0, 0, 0, 1, 0))
        to_before = torch.nn.functional.pad(from_start[:, :, :-1], (0, 0, 1, 0), value=1.0)
        y = rounded(a_c * to_before) @ C_read + rounded(_scores(a_c, k_c, before)) @ v_c
        y = torch.linalg.solve_triangular(-_scores(a_c, b_c, before), y, upper=False, unitriangular=True)
        writes = (k_c, v_c), (b_c, rounded(y))
        within = sum(rounded(_scores(q_c, key, D)) @ value for key, value in writes)
        outputs.append(rounded(q_c * from_start) @ C_read + within)
        written = sum(rounded(key * D[:, :, -1]).mT @ value for key, value in writes)
        C = from_start[:, :, -1, :, None] * C + written
    return torch.cat(outputs, dim=2).to(dtype)


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


def _scores(x: Tensor, y: Tensor, D: Tensor) -> Tensor:
    """x_i^T diag(D_ij) y_j, (..., L, L)."""
    import torch

    return torch.einsum("bhic,bhjc,bhijc->bhij", x, y, D)


def selective_scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """Return y (B, channels, T) of Mamba's scan.

    h_t = exp(delta_t A) h_{t-1} + delta_t u_t B_t, y_t = C_t^T h_t + D u_t.

    Args:
        u, delta: (B, channels, T), delta behind bias and softplus.
        A: (channels, N), negative; B, C: (B, N, T), shared by all channels; D: (channels,).
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
