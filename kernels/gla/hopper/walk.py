# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Algebra and gates of a tile, for the walks for o and dv (columns.py) and for dq and dk (channels.py).

Of a tile of 64 steps, per channel, b is the sum of log2 gates from its first step on, total the last, S the state
before it. With one reference a channel, half the total, q and k are scaled once, where they lie:

    q' = scale q 2^(b - total / 2)        k' = k 2^(total / 2 - b)        A = 2^(total / 2) S

    P = tril(q' k'^T)        O = q' A + P V        S after it = 2^(total / 2) (A + k'^T V)

So the tile is one of linear attention without gates, and A + k'^T V is carried: on its way to the next tile it is
multiplied by 2^(half the total of either). bfloat16 has the exponents of float32, so nothing is lost as long as
total >= `LEAST_TOTAL`. With D the gradient of A + k'^T V and dP = tril(dO V^T), backward is as much again:

    dV = P^T dO + k' D
    dQ = scale 2^(b - total / 2) (dO A^T + dP k')        dK = 2^(total / 2 - b) (V D^T + dP^T q')

Where a tile of a sequence of a head has closed, in a channel, by more, that sequence is walked again (`exact`), with
q 2^b, k 2^(total - b), 2^total S and P, which is given: no factor is above 1.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tflabench.kernels.delta.hopper.schedule import DeltaItem, DeltaSchedule, get_work_item
from tflabench.kernels.kda.hopper.tiles import (
    BY_CHANNEL,
    as_blocks,
    as_steps,
    log2_gates,
    sums_of_blocks,
    sums_within_blocks,
)
from tflabench.kernels.scalar.hopper.conversions import nearest, widened
from tflabench.kernels.scalar.hopper.pipeline import Ring, aggregate, allocate_ring
from tflabench.kernels.scalar.hopper.tiles import ACC, VECTOR
from tflabench.kernels.scalar.hopper.workarounds import opaque_zero


class GlaTensors(NamedTuple):
    """Tensors without descriptors, or None; on the device, pointers.

    Attributes:
        closed: (B * H,) int32, not 0 for sequences of a head that have closed, as far as the walk is to know.
        flags: the same, where the walk writes which ones it sees close.
        initial: the states before segments, or backward in time the gradients after them, (B, H, segments, d_qk, d_hv)
            float32.
        final: what comes of it after the last segment of the walk, (B, H, d_qk, d_hv); of a pass, after each.
        decays: of a forward pass, (B, H, segments, d_qk): by what a segment multiplies the channels of a state.
        terms: q' G of dq, then less k' G of dk (`channels`), (B * H, tiles, 128, 64) float32, channels by steps.
        crossing: of dk, the sums of terms over the steps after segments, (B, H, segments, d_qk) float32.
    """

    closed: Any
    flags: Any = None
    initial: Any = None
    final: Any = None
    decays: Any = None
    terms: Any = None
    crossing: Any = None


@aggregate
class GlaScores:
    """A ring of slots in shared memory, each for a tile.

    Fields:
        p: P, or dP, [slots, 1, 1, 64, 64], 16 bits.
        decay: by which the channels of the carried state are multiplied, [slots, 64 * blocks of channels] float32.
    """

    ring: Ring
    p: gl.shared_memory_descriptor
    decay: gl.shared_memory_descriptor


@aggregate
class GlaProgram:
    """Buffers, pointers and counts that all partitions of a program share; inputs: rings of tiles."""

    config: gl.constexpr
    schedule: DeltaSchedule
    tensors: gl.tuple
    inputs: object
    scores: GlaScores


@gluon.jit
def allocate_scores(config: gl.constexpr, desc, CHANNELS_OF_STATE: gl.constexpr, ARRIVALS: gl.constexpr):
    """Return a ring of scores, each full after ARRIVALS; desc describes blocks of q."""
    SLOTS: gl.constexpr = config.num_slots
    return GlaScores(
        ring=allocate_ring(SLOTS, 2, ARRIVALS),
        p=gl.allocate_shared_memory(desc.dtype, [SLOTS, 1, 1, 64, 64], desc.layout),
        decay=gl.allocate_shared_memory(gl.float32, [SLOTS, CHANNELS_OF_STATE], VECTOR),
    )


@gluon.jit
def get_item(schedule, closed, item, config: gl.constexpr):
    """Return a work item by its number, without tiles unless its sequence has closed (exact) or has not."""
    work = get_work_item(schedule, item, config.pieces)
    has_closed = gl.load(closed + work.row) != 0
    if config.exact:
        end = gl.where(has_closed, work.end_tile, work.first_tile)
    else:
        end = gl.where(has_closed, work.first_tile, work.end_tile)
    return DeltaItem(
        work.batch, work.head, work.qk_head, work.row, work.piece, work.segment, work.first_tile, end, work.shift
    )  # fmt: skip


@gluon.jit
def opaque_zeros(i):
    """Return a state of zeros, [64, 64] float32, made of a counter.

    Of one that begins with constants ptxas (of Triton 3.6) takes the upper bits for 0 in every tile: `lower` of it was
    all of it.
    """
    return gl.full([64, 64], opaque_zero(i).to(gl.float32), gl.float32, layout=ACC)


@gluon.jit
def sums_of_tile(g_block, smem):
    """Return the sums of log2 gates from a tile's first step to each, [4, 16, 64], and their total, [64].

    Args:
        g_block: log gates, [64, 64] in shared memory, which all of the partition have read when this returns.
        smem: see `sums_of_blocks`.
    """
    within = sums_within_blocks(log2_gates(g_block))
    before, _after, _next, _next_two, total = sums_of_blocks(gl.min(within, axis=1), smem)  # the last is the least
    return within + before[:, None, :], total


@gluon.jit
def scaled(x_block, exponent):
    """Return a block [64, 64] in shared memory times 2^exponent, [4, 16, 64], rounded: as it is in memory."""
    x = as_blocks(widened(x_block.load(BY_CHANNEL))) * gl.exp2(exponent)
    return as_steps(nearest(x, x_block.dtype))


@gluon.jit
def exponents(b, total, scale_log2, EXACT: gl.constexpr):
    """Return log2 of what q and k are multiplied by, [4, 16, 64] each, and of what the state is by a tile's reference.

    Args:
        b, total: sums of log2 gates, see `sums_of_tile`.
    """
    if EXACT:
        return b + scale_log2, total[None, None, :] - b, total
    else:
        half = 0.5 * total
        return b - (half - scale_log2)[None, None, :], half[None, None, :] - b, half
