"""Tiles of steps and channels, and the weights of pairs of steps within one.

Channel c weighs the pair of steps j < i by exp(g_{j+1,c} + ... + g_{i,c}). A product over channels can take that only as
a factor of q_i times a factor of k_j: sums of log decays up to i from a reference, and from j to it. A reference between
j and i gives two sums that are both at most 0, whatever the gates: no exponent overflows, none is inf - inf, and a
closed gate is a weight of 0. A tile where no channel closes far has one reference for all pairs, half the tile's sum:
exponents are then at most half of that, and one product does. Elsewhere the tile is halved again and again: the pairs
across the middle of 64 steps, of each 32, ... of each 2, a product each, with the middle as reference.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

LOG2E = tl.constexpr(1.4426950408889634)
# log2 of a decay that is 0 in float32. Sums of it are finite; they are added, never subtracted, so that they lose nothing.
CLOSED = tl.constexpr(-150.0)


class Rows(NamedTuple):
    """A tensor (B, H, T, d) with contiguous columns, and its strides of batch, head and time."""

    data: Any
    b: int
    h: int
    t: int


def rows(x: Tensor) -> Rows:
    """Return what kernels take for x (B, H, T, d), of any strides but for the columns', which are copied if need be."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    return Rows(x, *x.stride()[:3])


@triton.jit
def load_rows(x, b, h, t, c, T, d):
    """Return steps t and columns c of one head of x, a `Rows`; 0 outside of the tensor."""
    at = x.data + b.to(tl.int64) * x.b + h.to(tl.int64) * x.h + t[:, None].to(tl.int64) * x.t + c[None, :]
    return tl.load(at, mask=(t < T)[:, None] & (c < d)[None, :], other=0.0)


@triton.jit
def store_rows(x, value, b, h, t, c, T, d):
    """Store steps t and columns c of one head of x, a `Rows`, in its dtype."""
    at = x.data + b.to(tl.int64) * x.b + h.to(tl.int64) * x.h + t[:, None].to(tl.int64) * x.t + c[None, :]
    tl.store(at, value.to(x.data.dtype.element_ty), mask=(t < T)[:, None] & (c < d)[None, :])


@triton.jit
def load_gates(g, b, h, t, c, T, d):
    """Return log2 of decays, of natural log decays: at least CLOSED, and 0 outside of the tensor."""
    log2 = load_rows(g, b, h, t, c, T, d).to(tl.float32) * LOG2E
    return tl.where(log2 < CLOSED, CLOSED, log2)  # NaN stays


@triton.jit
def load_matrix(x, matrix, row, col, rows, cols):
    """Return rows and columns of one matrix of x (.., rows, cols), contiguous; 0 outside of it."""
    at = x + matrix.to(tl.int64) * rows * cols + row[:, None].to(tl.int64) * cols + col[None, :]
    return tl.load(at, mask=(row < rows)[:, None] & (col < cols)[None, :], other=0.0)


@triton.jit
def store_matrix(x, value, matrix, row, col, rows, cols):
    """Store rows and columns of one matrix of x (.., rows, cols), contiguous, in its dtype."""
    at = x + matrix.to(tl.int64) * rows * cols + row[:, None].to(tl.int64) * cols + col[None, :]
    tl.store(at, value.to(x.dtype.element_ty), mask=(row < rows)[:, None] & (col < cols)[None, :])


@triton.jit
def load_vector(x, row, col, cols):
    """Return columns of one row of x (.., cols), contiguous; 0 outside of it."""
    return tl.load(x + row.to(tl.int64) * cols + col, mask=col < cols, other=0.0)


@triton.jit
def sums_of_segments(log2, SEGMENT: tl.constexpr):
    """Return the sums of log decays [rows, cols] within segments of SEGMENT rows: up to each row, and after it."""
    ROWS: tl.constexpr = log2.shape[0]
    COLS: tl.constexpr = log2.shape[1]
    if SEGMENT == 1:
        until = log2
        after = tl.zeros([ROWS, COLS], tl.float32)
    elif SEGMENT == ROWS:
        until = tl.cumsum(log2, 0)
        after = tl.cumsum(log2, 0, reverse=True) - log2
    else:
        parts = tl.reshape(log2, [ROWS // SEGMENT, SEGMENT, COLS])
        until = tl.reshape(tl.cumsum(parts, 1), [ROWS, COLS])
        after = tl.reshape(tl.cumsum(parts, 1, reverse=True) - parts, [ROWS, COLS])
    return until, after


@triton.jit
def across_middles(TILE: tl.constexpr, HALF: tl.constexpr):
    """Return which pairs [i, j] lie in one block of 2 HALF steps, i in its second half and j in its first."""
    i = (tl.arange(0, TILE) // HALF)[:, None]
    j = (tl.arange(0, TILE) // HALF)[None, :]
    return (i == j + 1) & (i % 2 == 1)


@triton.jit
def pair_scores(q_given, k_given, scale, log2, until, config: tl.constexpr):
    """Return scale sum_c q_ic k_jc times the weight of channel c, [i, j], for j <= i; for j > i it is of no use.

    Args:
        q_given, k_given: [tile, block], in the dtype of the operands of products.
        log2: log decays of the tile; until: their sums up to each step.
        config: has `tile`, `levels`, `reach` and `precision`.
    """
    TILE: tl.constexpr = config.tile
    q, k = q_given.to(tl.float32) * scale, k_given.to(tl.float32)
    total = tl.sum(log2, 0)
    if tl.min(total, 0) >= -config.reach:
        reference = 0.5 * total[None, :]
        x = (q * tl.exp2(until - reference)).to(q_given.dtype)
        y = (k * tl.exp2(reference - until)).to(q_given.dtype)
        s = tl.dot(x, y.T, input_precision=config.precision)  # [tile, block] @ [block, tile] -> [tile, tile]
    else:
        same = tl.arange(0, TILE)[:, None] == tl.arange(0, TILE)[None, :]
        s = tl.where(same, tl.sum(q * k, 1)[:, None], 0.0)
        for level in tl.static_range(config.levels):
            HALF: tl.constexpr = TILE >> (level + 1)
            to_row, from_row = sums_of_segments(log2, HALF)
            x = (q * tl.exp2(to_row)).to(q_given.dtype)
            y = (k * tl.exp2(from_row)).to(q_given.dtype)
            part = tl.dot(x, y.T, input_precision=config.precision)
            s += tl.where(across_middles(TILE, HALF), part, 0.0)
    return s


@triton.jit
def pair_gradients(ds, q_given, k_given, log2, until, config: tl.constexpr):
    """Return what pairs of steps j < i of a tile add to dq, to dk and, of each step, to q.dq - k.dk a channel.

    The last is made of the very products that the first two are, of rounded q and k: summed over steps, what belongs to
    pairs that do not cross a step cancels to float32.

    Args:
        ds: [i, j] float32, gradient of the scores, with their scale, 0 for j >= i.
        q_given, k_given, log2, until, config: as in `pair_scores`; config has `block` too.
    """
    TILE: tl.constexpr = config.tile
    q, k = q_given.to(tl.float32), k_given.to(tl.float32)
    COLS: tl.constexpr = config.block
    total = tl.sum(log2, 0)
    if tl.min(total, 0) >= -config.reach:
        reference = 0.5 * total[None, :]
        up, down = tl.exp2(until - reference), tl.exp2(reference - until)
        x, y = (q * up).to(q_given.dtype), (k * down).to(q_given.dtype)
        ds_rounded = ds.to(q_given.dtype)
        dx = tl.dot(ds_rounded, y, input_precision=config.precision)  # [tile, tile] @ [tile, block] -> [tile, block]
        dy = tl.dot(ds_rounded.T, x, input_precision=config.precision)
        pairs = x.to(tl.float32) * dx - y.to(tl.float32) * dy
        dq, dk = up * dx, down * dy
    else:
        dq = tl.zeros([TILE, COLS], tl.float32)
        dk = tl.zeros([TILE, COLS], tl.float32)
        pairs = tl.zeros([TILE, COLS], tl.float32)
        for level in tl.static_range(config.levels):
            HALF: tl.constexpr = TILE >> (level + 1)
            to_row, from_row = sums_of_segments(log2, HALF)
            up, down = tl.exp2(to_row), tl.exp2(from_row)
            x, y = (q * up).to(q_given.dtype), (k * down).to(q_given.dtype)
            ds_rounded = tl.where(across_middles(TILE, HALF), ds, 0.0).to(q_given.dtype)
            dx = tl.dot(ds_rounded, y, input_precision=config.precision)
            dy = tl.dot(ds_rounded.T, x, input_precision=config.precision)
            dq += up * dx
            dk += down * dy
            pairs += x.to(tl.float32) * dx - y.to(tl.float32) * dy
    return dq, dk, pairs
