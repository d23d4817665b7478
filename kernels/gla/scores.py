"""Before o and its gradients: weighted q and k of tiles, the sums of their log decays, and scores within tiles.

One program a tile of one head. Whatever runs after it knows log decays only as sums of whole tiles.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.common.rows import load_rows, store_matrix

from .call import GlaCall
from .tiles import load_gates, pair_scores, sums_of_segments


class Weighted(NamedTuple):
    """Name what the kernel writes, for tiles of `tile` steps.

    Attributes:
        q: (B * H, T, d_qk), q scale exp(sum of g from the tile's first step), in the dtype of q: meets what was before.
        k: (B * H, T, d_qk), k exp(sum of g to the tile's last step), in the dtype of k: meets what comes later.
        totals: (B * H, tiles, d_qk) float32, log2 of the decay over a tile.
        scores: (B * H, T, tile), of steps i and j <= i of one tile, in the dtype of q, and 0 for j > i.
    """

    q: Any
    k: Any
    totals: Any
    scores: Any


@dataclass(frozen=True)
class ScoresConfig:
    """Tell what `tile_scores` is compiled for.

    Attributes:
        tile, block: steps of a program, and channels at a time.
        levels: see `GlaPlan`.
        reach: bits that a channel may close in a tile with one reference.
    """

    tile: int
    block: int
    levels: int
    reach: float
    precision: str


@triton.jit(do_not_specialize=["heads"])
def tile_scores(q, k, g, weighted, scale, heads, T, d, config: tl.constexpr):
    """Write `Weighted` of one tile of one head, of q, k, g, `rows.Rows`."""
    TILE: tl.constexpr = config.tile
    BLOCK: tl.constexpr = config.block
    tiles = tl.cdiv(T, TILE)
    tile, bh = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    b, h = bh // heads, bh % heads
    r = tl.arange(0, TILE)
    t = tile * TILE + r
    scores = tl.zeros([TILE, TILE], tl.float32)
    for start in range(0, d, BLOCK):
        c = start + tl.arange(0, BLOCK)
        q_tile = load_rows(q, b, h, t, c, T, d)
        k_tile = load_rows(k, b, h, t, c, T, d)
        log2 = load_gates(g, b, h, t, c, T, d)
        until, after = sums_of_segments(log2, TILE)
        store_matrix(weighted.q, q_tile.to(tl.float32) * scale * tl.exp2(until), bh, t, c, T, d)
        store_matrix(weighted.k, k_tile.to(tl.float32) * tl.exp2(after), bh, t, c, T, d)
        tl.store(weighted.totals + (bh.to(tl.int64) * tiles + tile) * d + c, tl.sum(log2, 0), mask=c < d)
        scores += pair_scores(q_tile, k_tile, log2, until, config)
    scores = tl.where(r[:, None] >= r[None, :], scale * scores, 0.0)
    store_matrix(weighted.scores, scores, bh, t, r, T, TILE)


def weigh(call: GlaCall, q: Tensor, k: Tensor, g: Tensor) -> Weighted:
    """Return `Weighted` of q, k and g (B, H, T, d_qk), of documents by places."""
    plan, heads = call.plan, call.plan.batch * call.plan.heads
    weighted = Weighted(
        q.new_empty((heads, plan.T, plan.d_qk)),
        q.new_empty((heads, plan.T, plan.d_qk)),
        q.new_empty((heads, plan.tiles, plan.d_qk), dtype=torch.float32),
        q.new_empty((heads, plan.T, plan.blocks.tile)),
    )
    enqueue(
        tile_scores, heads * plan.tiles,
        *map(call.rows, (q, k, g)), weighted, call.scale, plan.heads, plan.T, plan.d_qk,
        config=ScoresConfig(plan.blocks.tile, plan.blocks.channels, plan.levels, plan.reach, call.precision),
        num_warps=4, num_stages=1,
    )  # fmt: skip
    return weighted
