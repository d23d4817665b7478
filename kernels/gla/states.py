"""States of chunks in sequence: S forward in time from k and v, dS backward in time from q and do.

    forward    S <- diag(2^total) S + k'^T v        k' = k 2^(sum to the tile's end)
    backward  dS <- diag(2^total) dS + q'^T do      q' = scale q 2^(sum from the tile's start)

tile by tile of the sequence, one program for each tile of the matrix. Where batch and heads are too few to fill the
chip, the sequence is cut into segments: what each contributes, from zero; `joined`; then the states of chunks.
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

from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.common.rows import load_matrix, load_rows, load_vector, store_matrix

from .call import GlaCall
from .joins import joined


class WalkSizes(NamedTuple):
    """Numbers of a launch: heads, steps, dimensions, tiles of a chunk and of a segment."""

    heads: Any
    T: Any
    d_qk: Any
    d_hv: Any
    chunk_tiles: Any
    segment_tiles: Any


class StateTensors(NamedTuple):
    """States in memory, None where they are not read or written.

    Attributes:
        initial, ends: (B * H * segments, d_qk, d_hv) float32, before and after each segment.
        decays: (B * H * segments, d_qk) float32, written: the decay over each segment.
        states: (B * H * chunks, d_qk, d_hv), written: met on entering each chunk.
        other: like states, those of forward, read backward.
        crossing: (B * H * chunks, blocks of d_hv, d_qk) float32, written: see `ChunkStates.crossing`.
        order, gaps: of documents, each of which is a segment, (documents, H, ...) (`kernels.common.places.Table`).
    """

    initial: Any
    ends: Any
    decays: Any
    states: Any
    other: Any
    crossing: Any
    order: Any = None
    gaps: Any = None


@dataclass(frozen=True)
class StatesConfig:
    """Tell what `chunk_states` is compiled for.

    Attributes:
        initial, ends, states, crossing: which of `StateTensors` there are; ends go with decays, crossing with other.
    """

    reverse: bool
    initial: bool
    ends: bool
    states: bool
    crossing: bool
    precision: str
    tile: int
    u: int
    v: int
    documents: bool


@triton.jit(do_not_specialize=["segments"])
def chunk_states(x, z, totals, matrices, sizes, segments, config: tl.constexpr):
    """Go through one segment with one tile [u, v] of the state on chip.

    Args:
        x: (B * H, T, d_qk), weighted k, or q; z: v, or do, `rows.Rows`.
        totals: (B * H, tiles, d_qk) float32, log2 of the decay over a tile.
        segments: of the sequence, or documents.
    """
    TILE: tl.constexpr = config.tile
    U: tl.constexpr = config.u
    V: tl.constexpr = config.v
    d_qk, d_hv, T = sizes.d_qk, sizes.d_hv, sizes.T
    tiles, v_blocks = tl.cdiv(T, TILE), tl.cdiv(d_hv, V)
    chunks = tl.cdiv(tiles, sizes.chunk_tiles)
    blocks = tl.cdiv(d_qk, U) * v_blocks
    block = tl.program_id(0) % blocks  # neighbours share tiles of x and z through L2
    part = tl.program_id(0) // blocks
    bh, segment = part // segments, part % segments
    u = block // v_blocks * U + tl.arange(0, U)
    v = block % v_blocks * V + tl.arange(0, V)
    if config.documents:
        document = tl.load(matrices.order + segment)
        first = (tl.load(matrices.gaps + document) + 1) * sizes.chunk_tiles
        count = tl.load(matrices.gaps + document + 1) * sizes.chunk_tiles - first
        part = document * sizes.heads + bh
    else:
        first = segment * sizes.segment_tiles
        count = tl.minimum(sizes.segment_tiles, tiles - first)
    acc = tl.zeros([U, V], tl.float32)
    if config.initial:
        acc = load_matrix(matrices.initial, part, u, v, d_qk, d_hv).to(tl.float32)
    decay = tl.zeros([U], tl.float32)
    for j in range(count):
        tile = first + count - 1 - j if config.reverse else first + j
        chunk = tile // sizes.chunk_tiles
        at_start = tile % sizes.chunk_tiles == 0
        at_end = ((tile + 1) % sizes.chunk_tiles == 0) | (tile == tiles - 1)
        if config.states:
            entering = at_end if config.reverse else at_start
            if entering:
                store_matrix(matrices.states, acc, bh * chunks + chunk, u, v, d_qk, d_hv)
        t = tile * TILE + tl.arange(0, TILE)
        total = load_vector(totals, bh * tiles + tile, u, d_qk)
        x_tile = load_matrix(x, bh, t, u, T, d_qk)
        z_tile = load_rows(z, bh // sizes.heads, bh % sizes.heads, t, v, T, d_hv)
        # [u, tile] @ [tile, v] -> [u, v]
        acc = tl.dot(x_tile.T, z_tile, acc * tl.exp2(total)[:, None], input_precision=config.precision)
        decay += total
        # The first is known when the kernel is compiled, the second when it runs.
        if config.crossing:  # noqa: SIM102
            if at_start:
                state = load_matrix(matrices.other, bh * chunks + chunk, u, v, d_qk, d_hv).to(tl.float32)
                row = (bh * chunks + chunk).to(tl.int64) * v_blocks + block % v_blocks
                tl.store(matrices.crossing + row * d_qk + u, tl.sum(state * acc, 1), mask=u < d_qk)
    if config.ends:
        store_matrix(matrices.ends, acc, part, u, v, d_qk, d_hv)
        if block % v_blocks == 0:
            tl.store(matrices.decays + part.to(tl.int64) * d_qk + u, tl.exp2(decay), mask=u < d_qk)


# --- On the host ------------------------------------------------------------------------------------------------------


class StateTerms(NamedTuple):
    """Name what states are made of.

    Attributes:
        x: (B * H, T, d_qk), weighted k forward, weighted q backward.
        z: (B, H, T, d_hv), v forward, do backward.
        totals: (B * H, tiles, d_qk) float32.
        first: (B, H, d_qk, d_hv) float32 contiguous, the state before the first chunk met; None is zero.
        other: the states of forward; backward only.
    """

    x: Tensor
    z: Tensor
    totals: Tensor
    first: Tensor | None
    other: Tensor | None = None
    reverse: bool = False


class ChunkStates(NamedTuple):
    """States of a whole sequence.

    Attributes:
        states: (B * H * chunks, d_qk, d_hv) in the dtype of x, met on entering each chunk.
        last: (B, H, d_qk, d_hv) float32, after the last chunk met, or after that of each document.
        crossing: (B, H, chunks, d_qk) float32, of backward: sum over d_hv of S dS at the start of each chunk, which is
            the gradient that pairs of steps before and after it give to a log decay there.
    """

    states: Tensor
    last: Tensor
    crossing: Tensor | None


def walk(call: GlaCall, side: StateTerms) -> ChunkStates:
    """Return the states of a whole sequence."""
    plan = call.plan
    u, v = plan.blocks.u, plan.blocks.v
    heads, shape = plan.batch * plan.heads, (plan.d_qk, plan.d_hv)
    v_blocks = cdiv(plan.d_hv, v)
    blocks = cdiv(plan.d_qk, u) * v_blocks
    segments = plan.segments(heads * blocks)
    segment_tiles = plan.chunk_tiles * cdiv(plan.chunks, segments)
    segments = cdiv(plan.tiles, segment_tiles)
    if call.places:
        segments, segment_tiles = call.places.documents, plan.tiles

    def empty(*shape: int) -> Tensor:
        return side.x.new_empty(shape, dtype=torch.float32)

    states = side.x.new_empty((heads * plan.chunks, *shape))
    crossing = None if side.other is None else empty(heads * plan.chunks, v_blocks, plan.d_qk)
    of_documents = call.places.chunks[1:3] if call.places else ()
    stored = StateTensors(None, None, None, states, side.other, crossing, *of_documents)
    ends, decays = empty(heads * segments, *shape), empty(heads * segments, plan.d_qk)
    if segments == 1 or call.places:
        _launch(call, side, stored._replace(initial=side.first, ends=ends, decays=decays), plan.tiles)
        last = ends
    else:
        _launch(call, side, StateTensors(None, ends, decays, None, None, None), segment_tiles)
        last, each = empty(heads, *shape), (plan.batch, plan.heads, segments)
        before = joined(ends.view(*each, *shape), decays.view(*each, -1), side.first, last, reverse=side.reverse)
        _launch(call, side, stored._replace(initial=before), segment_tiles)
    if crossing is not None:
        crossing = crossing.sum(1).view(plan.batch, plan.heads, plan.chunks, plan.d_qk)
    return ChunkStates(states, last.view(-1, plan.heads, *shape), crossing)


def _launch(call: GlaCall, side: StateTerms, matrices: StateTensors, segment_tiles: int) -> None:
    plan = call.plan
    blocks = cdiv(plan.d_qk, plan.blocks.u) * cdiv(plan.d_hv, plan.blocks.v)
    segments = call.places.documents if call.places else cdiv(plan.tiles, segment_tiles)
    enqueue(
        chunk_states, plan.batch * plan.heads * segments * blocks,
        side.x, call.rows(side.z), side.totals, matrices,
        WalkSizes(plan.heads, plan.T, plan.d_qk, plan.d_hv, plan.chunk_tiles, segment_tiles), segments,
        config=_config(call, side, matrices), num_warps=4, num_stages=3 if side.x.element_size() == 2 else 1,
    )  # fmt: skip


def _config(call: GlaCall, side: StateTerms, matrices: StateTensors) -> StatesConfig:
    blocks = call.plan.blocks
    return StatesConfig(
        reverse=side.reverse,
        initial=matrices.initial is not None,
        ends=matrices.ends is not None,
        states=matrices.states is not None,
        crossing=matrices.crossing is not None,
        precision=call.precision,
        tile=blocks.tile,
        u=blocks.u,
        v=blocks.v,
        documents=call.places is not None,
    )
