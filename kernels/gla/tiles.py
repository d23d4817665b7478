"""Tiles of steps and channels, and the weights of pairs of steps within one.

Channel c weighs the pair of steps j < i by exp(g_{j+1,c} + ... + g_{i,c}). A product over channels can take that only
as a factor of q_i times a factor of k_j: sums of log decays up to i from a reference, and from j to it. A reference
between j and i gives two sums that are both at most 0, whatever the gates: no exponent overflows, none is inf - inf,
and a closed gate is a weight of 0. A tile where no channel closes far has one reference for all pairs, half its sum:
exponents are then at most half of that, and one product does. Elsewhere the tile is halved again and again: the pairs
across the middle of 64 steps, of each 32, ... of each 2, a product each, with the middle as reference. In bfloat16,
which has the exponents of float32, halving ends at 16 steps, whose pairs have one reference (`weigh_near`).
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

import triton
import triton.language as tl

from tflabench.kernels.common.rows import load_rows

LOG2E = tl.constexpr(1.4426950408889634)
# log2 of a decay that is 0 in float32. Sums of it are finite, and are added, never subtracted: they lose nothing.
CLOSED = tl.constexpr(-150.0)
LEAST_NEAR = tl.constexpr(-16.0)
LARGEST_FLOAT16 = tl.constexpr(65504.0)


@triton.jit
def load_gates(g, b, h, t, c, T, d):
    """Return log2 of decays, of natural log decays: at least CLOSED, and 0 outside of the tensor."""
    log2 = load_rows(g, b, h, t, c, T, d).to(tl.float32) * LOG2E
    return tl.where(log2 < CLOSED, CLOSED, log2)  # NaN stays


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
def sums_to_middles(log2, level, LEVELS: tl.constexpr):
    """Return the sums of log decays between each step and the middle of its block of ROWS >> level steps.

    Before the middle they are those after the step, behind it those up to the step. The level is a number of the loop,
    which is not unrolled: all levels at once would not fit into registers.
    """
    ROWS: tl.constexpr = log2.shape[0]
    until, after = sums_of_segments(log2, ROWS >> LEVELS)
    for n in tl.static_range(1, LEVELS):
        if level == n - 1:
            until, after = sums_of_segments(log2, ROWS >> n)
    behind = tl.arange(0, ROWS) // (ROWS >> (level + 1)) % 2 == 1
    return tl.where(behind[:, None], until, after)


@triton.jit
def sums_to_middles_of_blocks(log2, HALF: tl.constexpr, STEPS: tl.constexpr):
    """Return `sums_to_middles` of blocks of 2 HALF steps, HALF being STEPS or twice that, by one sum within STEPS.

    What is subtracted has an error of some 1e-4, which bfloat16 does not see.
    """
    ROWS: tl.constexpr = log2.shape[0]
    COLS: tl.constexpr = log2.shape[1]
    COUNT: tl.constexpr = ROWS // STEPS
    parts = tl.reshape(log2, [COUNT, STEPS, COLS])
    until, total = tl.cumsum(parts, 1), tl.sum(parts, 1)
    number = tl.arange(0, COUNT)[:, None]
    second = number % 2 == 1  # of the two in a half
    more = tl.zeros([COUNT, COLS], tl.float32)
    if (HALF > STEPS) and (COUNT > 2):
        pairs = tl.reshape(total, [COUNT // 2, 2, COLS])
        more = tl.reshape(tl.sum(pairs, 1)[:, None, :] - pairs, [COUNT, COLS])
    behind = number // (HALF // STEPS) % 2 == 1
    added = tl.where(behind, tl.where(second, more, 0.0), total + tl.where(second, 0.0, more))
    sums = tl.where(behind[:, None, :], until, -until) + added[:, None, :]
    return tl.reshape(tl.minimum(sums, 0.0), [ROWS, COLS])


@triton.jit
def across_middles(level, TILE: tl.constexpr):
    """Return which pairs [i, j] lie in one block of TILE >> level steps, i in its second half and j in its first."""
    half = TILE >> (level + 1)
    i = (tl.arange(0, TILE) // half)[:, None]
    j = (tl.arange(0, TILE) // half)[None, :]
    return (i == j + 1) & (i % 2 == 1)


@triton.jit
def within_blocks(TILE: tl.constexpr, STEPS: tl.constexpr):
    """Return which pairs [i, j] lie in one block of STEPS steps."""
    i = tl.arange(0, TILE) // STEPS
    return i[:, None] == i[None, :]


@triton.jit
def one_reference_does(q_given, k_given, log2, config: tl.constexpr):
    """Return whether pairs of a tile may have one reference: no channel closes far, and weighted q and k are finite."""
    least = tl.min(tl.sum(log2, 0), 0)
    does = least >= -config.reach
    if q_given.dtype == tl.float16:  # weights reach half of the tile's sum
        most = tl.maximum(tl.max(tl.abs(q_given.to(tl.float32))), tl.max(tl.abs(k_given.to(tl.float32))))
        does = does & (most * tl.exp2(-0.5 * least) < LARGEST_FLOAT16)
    return does


@triton.jit
def weigh_by_one_reference(q_given, k_given, log2, until):
    """Return q and k weighted from and to half a tile's sum, rounded as they were given, and these weights."""
    reference = 0.5 * tl.sum(log2, 0)[None, :]
    up, down = tl.exp2(until - reference), tl.exp2(reference - until)
    x = (q_given.to(tl.float32) * up).to(q_given.dtype)
    y = (k_given.to(tl.float32) * down).to(k_given.dtype)
    return x, y, up, down


@triton.jit
def weigh_halves(q_given, k_given, log2, level, LEVELS: tl.constexpr):
    """Return q and k weighted from and to the middles of a level's blocks, rounded, and these weights."""
    ROWS: tl.constexpr = log2.shape[0]
    NEAR: tl.constexpr = ROWS >> LEVELS
    if NEAR > 1:
        if level == LEVELS - 1:
            weights = tl.exp2(sums_to_middles_of_blocks(log2, NEAR, NEAR))
        else:
            weights = tl.exp2(sums_to_middles_of_blocks(log2, 2 * NEAR, NEAR))
    else:
        weights = tl.exp2(sums_to_middles(log2, level, LEVELS))
    x = (q_given.to(tl.float32) * weights).to(q_given.dtype)
    y = (k_given.to(tl.float32) * weights).to(k_given.dtype)
    return x, y, weights


@triton.jit
def weigh_near(q_given, k_given, log2, STEPS: tl.constexpr):
    """Return q and k weighted from and to the middle of the range of each STEPS steps, rounded, and these weights.

    A gate below 2^LEAST_NEAR counts as that: so weights stay in range, and what it lets through bfloat16 rounds off.
    """
    ROWS: tl.constexpr = log2.shape[0]
    COLS: tl.constexpr = log2.shape[1]
    until, _ = sums_of_segments(tl.maximum(log2, LEAST_NEAR), STEPS)
    parts = tl.reshape(until, [ROWS // STEPS, STEPS, COLS])
    parts -= 0.5 * (tl.min(parts, 1) + tl.max(parts, 1))[:, None, :]
    away = tl.reshape(parts, [ROWS, COLS])
    up, down = tl.exp2(away), tl.exp2(-away)
    x = (q_given.to(tl.float32) * up).to(q_given.dtype)
    y = (k_given.to(tl.float32) * down).to(k_given.dtype)
    return x, y, up, down


@triton.jit
def scores_by_halves(q_given, k_given, log2, config: tl.constexpr):
    """Return `pair_scores` without scale, right for any gates."""
    TILE: tl.constexpr = config.tile
    LEVELS: tl.constexpr = config.levels
    NEAR: tl.constexpr = TILE >> LEVELS
    s = tl.zeros([TILE, TILE], tl.float32)
    if NEAR > 1:
        x, y, _, _ = weigh_near(q_given, k_given, log2, NEAR)
        s = tl.where(within_blocks(TILE, NEAR), tl.dot(x, y.T, input_precision=config.precision), 0.0)
    own = tl.sum(q_given.to(tl.float32) * k_given.to(tl.float32), 1)
    s = tl.where(within_blocks(TILE, 1), own[:, None], s)
    for level in range(LEVELS):
        x, y, _ = weigh_halves(q_given, k_given, log2, level, LEVELS)
        part = tl.dot(x, y.T, input_precision=config.precision)
        s += tl.where(across_middles(level, TILE), part, 0.0)
    return s


@triton.jit
def pair_scores(q_given, k_given, log2, until, config: tl.constexpr):
    """Return sum_c q_ic k_jc times the weight of channel c, [i, j], for j <= i; for j > i it is of no use.

    Args:
        q_given, k_given: [tile, block], in the dtype of the operands of products.
        log2: log decays of the tile; until: their sums up to each step.
    """
    if one_reference_does(q_given, k_given, log2, config):
        x, y, _, _ = weigh_by_one_reference(q_given, k_given, log2, until)
        s = tl.dot(x, y.T, input_precision=config.precision)  # [tile, block] @ [block, tile] -> [tile, tile]
    else:
        s = scores_by_halves(q_given, k_given, log2, config)
    return s


@triton.jit
def weighted_gradients(ds, x, y, up, down, config: tl.constexpr):
    """Return dq, dk and q.dq - k.dk of s = x y^T, for ds rounded, q = x / up and k = y / down."""
    rounded = ds.to(x.dtype)
    dx = tl.dot(rounded, y, input_precision=config.precision)  # [tile, tile] @ [tile, block] -> [tile, block]
    dy = tl.dot(rounded.T, x, input_precision=config.precision)
    return up * dx, down * dy, x.to(tl.float32) * dx - y.to(tl.float32) * dy


@triton.jit
def gradients_by_halves(ds, q_given, k_given, log2, config: tl.constexpr):
    """Return `pair_gradients`, right for any gates."""
    TILE: tl.constexpr = config.tile
    COLS: tl.constexpr = config.block
    LEVELS: tl.constexpr = config.levels
    NEAR: tl.constexpr = TILE >> LEVELS
    if NEAR > 1:
        x, y, up, down = weigh_near(q_given, k_given, log2, NEAR)
        near = tl.where(within_blocks(TILE, NEAR), ds, 0.0)
        dq, dk, pairs = weighted_gradients(near, x, y, up, down, config)
    else:
        dq = tl.zeros([TILE, COLS], tl.float32)
        dk = tl.zeros([TILE, COLS], tl.float32)
        pairs = tl.zeros([TILE, COLS], tl.float32)
    for level in range(LEVELS):
        x, y, weights = weigh_halves(q_given, k_given, log2, level, LEVELS)
        part = tl.where(across_middles(level, TILE), ds, 0.0)
        dq_part, dk_part, pairs_part = weighted_gradients(part, x, y, weights, weights, config)
        dq += dq_part
        dk += dk_part
        pairs += pairs_part
    return dq, dk, pairs


@triton.jit
def pair_gradients(ds, q_given, k_given, log2, until, config: tl.constexpr):
    """Return what pairs of steps j < i of a tile add to dq, to dk and, of each step, to q.dq - k.dk a channel.

    The last is made of the very products that the first two are, of rounded q and k: summed over steps, what belongs to
    pairs that do not cross a step cancels to float32.

    Args:
        ds: [i, j] float32, gradient of the scores, with their scale, 0 for j >= i.
        q_given, k_given, log2, until, config: as in `pair_scores`; config has `block` too.
    """
    if one_reference_does(q_given, k_given, log2, config):
        x, y, up, down = weigh_by_one_reference(q_given, k_given, log2, until)
        dq, dk, pairs = weighted_gradients(ds, x, y, up, down, config)
    else:
        dq, dk, pairs = gradients_by_halves(ds, q_given, k_given, log2, config)
    return dq, dk, pairs
