"""Find what passes over segments need not walk over, and join what these make into the states that they start from."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.common.cover import cdiv, next_power_of_2
from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.common.rows import load_matrix, store_matrix
from tflabench.kernels.scalar.plan.hopper_segments import Segments

COLUMNS = 16  # of a state in a program
INNER = 32  # of the channels that a product sums over
LEAST_GAIN = tl.constexpr(-150.0)  # log2 of a factor that leaves nothing of a float32


@triton.jit(do_not_specialize=["count"])
def join_states(
    of_each, transitions, edge, states, count, d_qk, d_hv,
    REVERSE: tl.constexpr, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """Write the states of all `count` segments of a head, some columns of them, see `joined`."""
    blocks = tl.cdiv(d_hv, COLUMNS)
    row = tl.program_id(0) // blocks
    u, i = tl.arange(0, CHANNELS), tl.arange(0, INNER)
    column = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    state = tl.zeros([CHANNELS, COLUMNS], tl.float32)
    if edge is not None:
        state = load_matrix(edge, row, u, column, d_qk, d_hv)
    for j in range(count):
        n = row * count + (count - 1 - j if REVERSE else j)
        store_matrix(states, state, n, u, column, d_qk, d_hv)
        tl.debug_barrier()  # the state is read again, by other threads
        state = load_matrix(of_each, n, u, column, d_qk, d_hv)
        for c in range(0, d_qk, INNER):
            if REVERSE:
                matrix = load_matrix(transitions, n, c + i, u, d_qk, d_qk).T
            else:
                matrix = load_matrix(transitions, n, u, c + i, d_qk, d_qk)
            before = load_matrix(states, n, c + i, column, d_qk, d_hv)
            # [channels, inner] @ [inner, columns]; three products of tf32 are as exact as one of float32
            state = tl.dot(matrix, before, state, input_precision="tf32x3")


@triton.jit(do_not_specialize=["tiles", "segment_tiles", "segments"])
def find_spans(gains, spans, tiles, segment_tiles, segments, BLOCK: tl.constexpr):
    """Write the span of a segment, see `spans_of`: a NaN counts as if nothing decayed."""
    row, segment = tl.program_id(0) // segments, tl.program_id(0) % segments
    end = tiles - (segments - 1 - segment) * segment_tiles
    first = tl.maximum(end - segment_tiles, 0)
    i = tl.arange(0, BLOCK)
    there = i < end - first
    gain = tl.load(gains + row.to(tl.int64) * tiles + first + i, mask=there, other=0.0)
    within = tl.minimum(gain, 0.0)  # what decays of the last, or the first, of what a tile adds is not known
    decayed = tl.cumsum(gain, 0, reverse=True) - within <= LEAST_GAIN
    decayed_back = tl.cumsum(gain, 0) - within <= LEAST_GAIN
    at = spans + tl.program_id(0) * 2
    tl.store(at, first + tl.min(tl.where(there & (decayed == 0), i, BLOCK), 0))
    tl.store(at + 1, first + 1 + tl.max(tl.where(there & (decayed_back == 0), i, 0), 0))


def spans_of(gains: Tensor, cut: Segments) -> Tensor:
    """Return the first tile that the state after each segment depends on, and the end of those before it that count.

    These are the tiles that the gradient of the state before a segment depends on. Of all others float32 has nothing
    left there. (B, H, segments, 2) int32.

    Args:
        gains: log2 of the most by which a state grows in a tile, (B, H, tiles) float32.
    """
    batch, heads, tiles = gains.shape
    spans = torch.empty((batch, heads, cut.count, 2), dtype=torch.int32, device=gains.device)
    enqueue(
        find_spans, batch * heads * cut.count, gains, spans, tiles, cut.segment_tiles, cut.count,
        BLOCK=next_power_of_2(cut.segment_tiles), num_warps=1,
    )  # fmt: skip
    return spans


def joined(of_each: Tensor, transitions: Tensor, edge: Tensor | None, *, reverse: bool) -> Tensor:
    """Return the states that segments start from, or if reversed the gradients of those that they end with.

    Args:
        of_each: what each segment adds to a state of zero, (B, H, segments, d_qk, d_hv) float32; what the last one in
            this direction adds is of no effect.
        transitions: what it makes of the state before it, (B, H, segments, d_qk, d_qk) float32.
        edge: the state before the first segment, or the gradient after the last, (B, H, d_qk, d_hv); None for zero.
    """
    states = torch.empty_like(of_each)
    batch, heads, count, d_qk, d_hv = of_each.shape
    enqueue(
        join_states, batch * heads * cdiv(d_hv, COLUMNS), of_each, transitions, edge, states, count, d_qk, d_hv,
        REVERSE=reverse, CHANNELS=max(16, next_power_of_2(d_qk)), COLUMNS=COLUMNS, INNER=INNER,
        num_warps=8, num_stages=2,
    )  # fmt: skip
    return states
