"""Work on tensors that references and operators share: share heads, cut axes, round, sum decays, scan."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import pad, threshold


def shared(x: Tensor, heads: int) -> Tensor:
    """Return q or k (B, G, ...) with a copy for each of the `heads` / G heads that share one; x itself if none do."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def unflatten(x: Tensor, dim: int, sizes: tuple[int, ...]) -> Tensor:
    """Return x.unflatten(dim, sizes), to which torch gives no types."""
    return cast("Any", x).unflatten(dim, sizes)


def sum_shared(gradient: Tensor, like: Tensor) -> Tensor:
    """Return the gradient of q or k (B, G, ...) from that of `shared(q)` (B, H, ...), as torch.empty_like makes it."""
    if gradient.shape == like.shape:
        return gradient
    return torch.sum(unflatten(gradient, 1, (like.shape[1], -1)), 2, out=torch.empty_like(like))


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the values of x rounded to dtype, in the dtype of x."""
    return x.to(dtype).to(x.dtype)


def floats(x: Tensor | None) -> Tensor | None:
    """Return a tensor as kernels read it: float32, contiguous; None for None."""
    return None if x is None else x.float().contiguous()


def weight(log_weight: Tensor) -> Tensor:
    """Return exp, and 0 where it is next to subnormal: CPUs multiply subnormal numbers many times slower."""
    smallest = math.log(2.0**20 * torch.finfo(log_weight.dtype).tiny)
    return torch.exp(threshold(log_weight, smallest, -math.inf))


def sums_after(g: Tensor) -> Tensor:
    """Return the sum of the log decays (..., L, d) after each step of a chunk."""
    return pad(g, (0, 0, 0, 1))[..., 1:, :].flip(-2).cumsum(-2).flip(-2)


def sums_between(g: Tensor) -> Tensor:
    """Return g_{j+1} + ... + g_i (..., L, L, d) of g (..., L, d) for every i >= j, and -inf for j > i.

    Every sum is its own: a difference of two would cancel digits, and be NaN behind a decay of -inf.
    """
    causal = torch.ones(g.shape[-2], g.shape[-2], dtype=torch.bool, device=g.device).tril()[..., None]
    later = causal.squeeze(-1).tril(-1)[..., None]
    return torch.where(later, g[..., :, None, :], 0.0).cumsum(-3).masked_fill(~causal, -math.inf)


def scale_of(scale: float | None, q: Tensor) -> float:
    """Return the scale of q (..., d_qk)."""
    return q.shape[-1] ** -0.5 if scale is None else scale


def scan(x: Tensor, keep: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Compute x_k = keep_k x_{k-1} + new_k over dimension 2: every x before its step, stacked there, and the last x."""
    before: list[Tensor] = []
    for keep_k, new_k in zip(keep.unbind(2), new.unbind(2), strict=True):
        before.append(x)
        x = keep_k * x + new_k
    return torch.stack(before, dim=2), x
