"""Look at gates before all walks, and make their gradients after them, of the terms that channels.py writes."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.common.rows import load_matrix, load_vector, rows, store_rows
from tflabench.kernels.gla.hopper_plan import LEAST_TOTAL
from tflabench.kernels.gla.tiles import CLOSED, load_gates

LEAST = tl.constexpr(LEAST_TOTAL)


@triton.jit(do_not_specialize=["heads", "tile"])
def look_at_tile(g, seen, closed, heads, tile, T, d):
    """Write to seen and closed (B * H,) whether a tile of g, `rows.Rows`, of a sequence of a head has closed."""
    bh = tl.program_id(0)
    log2 = load_gates(g, bh // heads, bh % heads, tile * 64 + tl.arange(0, 64), tl.arange(0, 128), T, d)
    has_closed = (tl.min(tl.sum(log2, 0), 0) <= LEAST).to(tl.int32)
    tl.store(seen + bh, has_closed)
    tl.store(closed + bh, has_closed)


def sample_gates(g: Tensor) -> tuple[Tensor, Tensor]:
    """Return which sequences of a head have closed (`walk`) in their middle tile, (B * H,) int32, twice.

    Where all gates close this is seen here, and no walk is in vain.
    """
    B, H, T, d = g.shape
    seen, closed = (torch.empty(B * H, dtype=torch.int32, device=g.device) for _ in range(2))
    enqueue(look_at_tile, B * H, rows(g), seen, closed, H, T // 128, T, d, num_warps=4)
    return seen, closed


@triton.jit(do_not_specialize=["heads"])
def sum_terms(g, terms, later, dg, closed, heads, T, d):
    """Write dg, `rows.Rows`, of 64 channels of a tile: sums of terms over a step and those after it.

    A closed gate has the gradient 0, as its decay has.

    Args:
        terms: (B * H, tiles, 128, 64) float32; later: sums of those of later tiles, (B * H, tiles, 128) float32.
        closed: (B * H,) int32, 0 where no gate has closed.
    """
    tiles, blocks = tl.cdiv(T, 64), tl.cdiv(d, 64)
    i = tl.program_id(0) % blocks * 64 + tl.arange(0, 64)
    tile, bh = tl.program_id(0) // blocks % tiles, tl.program_id(0) // blocks // tiles
    b, h = bh // heads, bh % heads
    step = tl.arange(0, 64)
    x = load_matrix(terms, bh * tiles + tile, i, step, 128, 64)
    x = tl.cumsum(x, 1, reverse=True) + load_vector(later, bh * tiles + tile, i, 128)[:, None]
    x = x.T
    t = tile * 64 + step
    if tl.load(closed + bh) != 0:
        x = tl.where(load_gates(g, b, h, t, i, T, d) <= CLOSED, 0.0, x)
    store_rows(dg, x, b, h, t, i, T, d)


def gradients_of_gates(g: Tensor, terms: Tensor, sums: Tensor, crossing: Tensor | None, closed: Tensor) -> Tensor:
    """Return dg like g (B, H, T, d_qk).

    Args:
        terms, sums: see `walk.GlaTensors`.
        crossing: the last state times its gradient, summed over columns, (B, H, d_qk); None for zero.
        closed: (B * H,) int32, 0 for sequences of a head that have not closed.
    """
    B, H, T, d = g.shape
    later = sums.sum(1, keepdim=True) - sums.cumsum(1)
    if crossing is not None:
        later[..., :d] += crossing.reshape(B * H, 1, d)
    dg = torch.empty_like(g)
    given = rows(g), terms, later, rows(dg), closed, H, T, d
    enqueue(sum_terms, B * H * cdiv(T, 64) * cdiv(d, 64), *given, num_warps=4)
    return dg
