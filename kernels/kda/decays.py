"""Weights of pairs of steps of a tile, with a log decay a channel, as a factor of either step.

A tile has blocks of a few steps. In block I let w_i be the sum of log2 decays of a channel from the block's first step
to step i, and t_I that of the block. With 2^w_i and 2^(t_I - w_i), both at most 1, pairs of steps of different blocks
have factors of at most 1, whatever the gates: the tile is halved, its halves too, and so on down to one block, and
pairs across a middle are the product

    (x_i 2^(w_i + blocks from the middle to I)) . (y_j 2^(t_J - w_j + blocks from J to the middle))

Pairs of one block have a reference in the middle of the range of w. A decay below `floor` counts as that between them,
so that no factor overflows in float32: it lets through less than products round off. Where all channels close at once,
as between documents, the pairs are left out.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tflabench.kernels.gla.tiles import CLOSED


class TileDecays(NamedTuple):
    """Sums of log2 decays of a tile and some channels, float32.

    Attributes:
        sums: w, [blocks, steps, channels].
        near: w less its reference, of decays not below the floor.
        totals: t, [blocks, channels].
        documents: how many steps up to each have closed all channels, [tile].
    """

    sums: Any
    near: Any
    totals: Any
    documents: Any


@triton.jit
def as_blocks(x, STEPS: tl.constexpr):
    """Return x [tile, channels] as [blocks, steps, channels]."""
    return tl.reshape(x, [x.shape[0] // STEPS, STEPS, x.shape[1]])


@triton.jit
def as_tile(x):
    """Return x [blocks, steps, channels] as [tile, channels]."""
    return tl.reshape(x, [x.shape[0] * x.shape[1], x.shape[2]])


@triton.jit
def decays_of(log2, inside, config: tl.constexpr):
    """Return the `TileDecays` of log2 decays [tile, channels]; inside: which channels there are."""
    parts = as_blocks(log2, config.steps)
    near = tl.cumsum(tl.maximum(parts, config.floor), 1)
    near -= 0.5 * (tl.min(near, 1) + tl.max(near, 1))[:, None, :]
    shut = (tl.max(tl.where(inside[None, :], log2, CLOSED), 1) <= CLOSED).to(tl.int32)
    return TileDecays(tl.cumsum(parts, 1), near, tl.sum(parts, 1), tl.cumsum(shut, 0))


@triton.jit
def decays_in_runs(decays, run):
    """Return the log2 decays of each step from the first of its run of so many blocks, and to its last.

    Returns: [blocks, steps, channels] each.
    """
    totals = decays.totals
    BLOCKS: tl.constexpr = totals.shape[0]
    i, j = tl.arange(0, BLOCKS)[:, None], tl.arange(0, BLOCKS)[None, :]
    together = (i // run) == (j // run)
    before = tl.sum(tl.where((together & (j < i))[:, :, None], totals[None, :, :], 0.0), 1)
    after = tl.sum(tl.where((together & (j > i))[:, :, None], totals[None, :, :], 0.0), 1)
    since = decays.sums + before[:, None, :]
    return since, tl.minimum((totals + after)[:, None, :] - decays.sums, 0.0)


@triton.jit
def pair_decays(decays, level, config: tl.constexpr):
    """Return the log2 decays of later and earlier steps of the pairs of a level, and which these are.

    Args:
        level: 0 for pairs of one block; then pairs across the middle of a tile, of its halves and so on.

    Returns: [blocks, steps, channels] twice, and [tile, tile].
    """
    TILE: tl.constexpr = config.tile
    STEPS: tl.constexpr = config.steps
    i, j = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    if level == 0:
        later = decays.near
        earlier = -decays.near
        documents = decays.documents
        pairs = (i // STEPS == j // STEPS) & (i > j) & (documents[:, None] == documents[None, :])
    else:
        half = TILE >> level
        later, earlier = decays_in_runs(decays, half // STEPS)
        pairs = (i // half == j // half + 1) & (i // half % 2 == 1)
    return later, earlier, pairs
