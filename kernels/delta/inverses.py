"""Tensors that the walks of the delta rule read, made tile by tile: inverses, and scores of q and k.

The errors R of a tile and what they are to be multiplied by, the gradients W of what they write, solve

    forward    (I + G diag(beta)) R = E          E = V - (K exp(prefix)) S
    backward   (I + diag(beta) G)^T W = dU       G_ij = exp(b_i - b_j) k_i . k_j for j < i

Neither divides by beta. Their matrices are inverted here: blocks of 16 by doubling, X <- X - X A X for pairs of blocks,
then, with N = D A of the inverse D of these blocks and what is left of A, D - N (D - N (D - N D)). All that comes up on
the way is an entry of an inverse, so keys that are alike do no harm, as they would to a series in powers of A.
"""

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
from tflabench.kernels.common.rows import load_rows, store_matrix

from .call import DeltaCall

BLOCK = tl.constexpr(16)
# Of the products that invert: tf32 has no more digits than float16.
PRECISIONS = {torch.bfloat16: "tf32", torch.float16: "tf32x3"}


@triton.jit
def inverse_of_blocks(a, BLOCKS: tl.constexpr, precision: tl.constexpr):
    """Return (I + a)^-1 of blocks a [BLOCKS, 16, 16] with numbers below the diagonal only, float32."""
    i = tl.arange(0, BLOCK)[None, :, None]
    j = tl.arange(0, BLOCK)[None, None, :]
    x = tl.where(i == j, 1.0, 0.0) - tl.where((i >> 1) == (j >> 1), a, 0.0)
    for level in tl.static_range(1, 4):
        across = ((i >> level) == (j >> level) + 1) & ((i >> (level + 1)) == (j >> (level + 1)))
        # [16, 16] @ [16, 16], twice
        ax = tl.dot(tl.where(across, a, 0.0), x, input_precision=precision)
        x -= tl.dot(x, ax, input_precision=precision)
    return x


@triton.jit
def inverse_of(a, precision: tl.constexpr):
    """Return (I + a)^-1 of a [rows, rows] float32 with numbers below the diagonal only."""
    ROWS: tl.constexpr = a.shape[0]
    BLOCKS: tl.constexpr = ROWS // BLOCK
    parts = tl.reshape(a, [BLOCKS, BLOCK, BLOCKS, BLOCK])
    same = tl.arange(0, BLOCKS)[:, None, None, None] == tl.arange(0, BLOCKS)[None, None, :, None]
    blocks = inverse_of_blocks(tl.sum(tl.where(same, parts, 0.0), 2), BLOCKS, precision)
    d = tl.reshape(tl.where(same, blocks[:, :, None, :], 0.0), [ROWS, ROWS])
    x = d
    if BLOCKS > 1:
        i = tl.arange(0, ROWS)
        below = tl.where((i // BLOCK)[:, None] > (i // BLOCK)[None, :], a, 0.0)
        n = tl.dot(d, below, input_precision=precision)
        for _ in tl.static_range(BLOCKS - 1):
            x = d - tl.dot(n, x, input_precision=precision)
    return x


@triton.jit
def tile_inverses(
    q, k, gates, inverses, scores, sizes, REVERSE: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr, OF_INVERSE: tl.constexpr,
):  # fmt: skip
    """Write the inverse of one tile of one head and, backward, scale exp(b_i - b_j) q_i . k_j for j <= i.

    Args:
        q, k: `rows.Rows`; q is None forward.
        gates: `TileGates` of tiles of ROWS steps.  sizes: `DeltaSizes`.
        inverses: (B * H * tiles * parts, rows, rows); scores: (B * H * tiles, rows, rows).
        PRECISION, OF_INVERSE: input_precision of products with q and k, and of those that invert.
    """
    tiles = tl.cdiv(sizes.T, ROWS)
    tile, bh = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    r = tl.arange(0, ROWS)
    matrix = bh * tiles + tile
    if k.steps is not None:  # noqa: SIM102  a constant decides alone
        if tl.load(k.steps + tile * ROWS) < 0:  # places without a step, over which a walk may pass
            nothing = tl.zeros([ROWS, ROWS], tl.float32)
            for part in tl.static_range(PARTS):
                store_matrix(inverses, nothing, matrix * PARTS + part, r, r, ROWS, ROWS)
            if REVERSE:
                store_matrix(scores, nothing, matrix, r, r, ROWS, ROWS)
            return
    c = tl.arange(0, CHANNELS)
    b, h = bh // sizes.heads, bh % sizes.heads // sizes.sharing
    k_tile = load_rows(k, b, h, tile * ROWS + r, c, sizes.T, sizes.d_qk)
    at = (bh.to(tl.int64) * tiles + tile) * ROWS + r
    b_t, rest, segment = tl.load(gates.b + at), tl.load(gates.b_rest + at), tl.load(gates.segment + at)
    beta = tl.exp(rest + tl.load(gates.log_i_rest + at))
    together = (segment[:, None] == segment[None, :]) & (r[:, None] >= r[None, :])
    exponent = (b_t[:, None] - b_t[None, :]) + (rest[:, None] - rest[None, :])
    decay = tl.exp(tl.where(together, exponent, float("-inf")))
    # [rows, channels] @ [channels, rows] -> [rows, rows]
    a = tl.dot(k_tile, k_tile.T, input_precision=PRECISION) * decay
    a = tl.where(r[:, None] > r[None, :], a * (beta[:, None] if REVERSE else beta[None, :]), 0.0)
    x = inverse_of(a, OF_INVERSE)
    for part in tl.static_range(PARTS):
        rounded = x.to(k_tile.dtype)
        store_matrix(inverses, rounded, matrix * PARTS + part, r, r, ROWS, ROWS)
        x -= rounded.to(tl.float32)
    if REVERSE:
        q_tile = load_rows(q, b, h, tile * ROWS + r, c, sizes.T, sizes.d_qk)
        s = tl.dot(q_tile, k_tile.T, input_precision=PRECISION) * (decay * sizes.scale)
        store_matrix(scores, s, matrix, r, r, ROWS, ROWS)


# --- On the host ------------------------------------------------------------------------------------------------------


def of_tiles(call: DeltaCall, k: Tensor, q: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Return inverses (B * H * tiles * parts, rows, rows), and with q, backward, scores (B * H * tiles, rows, rows)."""
    tiles, (batch, heads, T) = call.tiles, call.scalar.gates.log_f.shape
    count, size = batch * heads * cdiv(T, tiles.rows), (tiles.rows, tiles.rows)
    inverses = k.new_empty((count * tiles.parts, *size))
    scores = None if q is None else k.new_empty((count, *size))
    enqueue(
        tile_inverses, count,
        None if q is None else call.rows(q), call.rows(k), call.gates, inverses, scores,
        call.sizes(k, d_hv=0), REVERSE=q is not None, ROWS=tiles.rows, CHANNELS=tiles.channels, PARTS=tiles.parts,
        PRECISION=call.precision, OF_INVERSE=PRECISIONS.get(k.dtype, call.precision), num_warps=4, num_stages=1,
    )  # fmt: skip
    return inverses, scores
