"""Chunk states in sequence: C and n forward in time from k and v, dC backward in time from q and dH.

    forward    C <- exp(g) C + (exp(a) K)^T V                          n likewise with V = 1
    backward  dC <- exp(g) dC + (scale / denominator exp(prefix) Q)^T dH

tile by tile of the sequence, one program for each tile of the matrix. Where batch and heads are too few to fill the
chip, the sequence is cut into segments: what each contributes, from zero; `join_segments`; then the chunk states.
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

from tflabench.kernels.common.cover import cdiv, next_power_of_2
from tflabench.kernels.common.descriptors import matrices_argument, open_matrices, open_rows, rows_argument
from tflabench.kernels.common.launching import enqueue, unless_one, unspecialised
from tflabench.kernels.scalar.plan.tfla import StateWalk

from .call import Call

# --- What the kernel takes --------------------------------------------------------------------------------------------


class StateVectors(NamedTuple):
    """Tensors float32 with a number for each step, tile, segment or chunk, or with a normaliser; None where absent.

    Attributes:
        n_initial, n_ends: (B * H * segments, d_u), n before and after each segment.
        n_states: (B * H * chunks, d_u), n before each chunk.
        segment_g: (B * H * segments,), written: log gates of segments.
        through: (B * H * chunks, blocks of the state), written: see `chunk_states`.
        row_log: a (forward) or prefix (backward) of tiles of `rows` steps.
        g: (B * H, tiles), log gates of these tiles.
        inverse_denominator: (B, H, T).
        order, gaps, bounds: of documents, see `places.Table`.
    """

    n_initial: Any
    n_states: Any
    n_ends: Any
    segment_g: Any
    through: Any
    row_log: Any
    g: Any
    inverse_denominator: Any
    order: Any = None
    gaps: Any = None
    bounds: Any = None


class StateSizes(NamedTuple):
    """Numbers of a launch.

    Attributes:
        scale: factor of Q.  batch, heads: B and H, heads of v.
        sharing: consecutive heads that share one of u.
        T, d_u, d_v: steps, of documents places, and dimensions.
        tiles_per_chunk, tiles_per_segment: tiles of `rows` steps.
        steps: of u and v.
        documents: how many there are, 0 for sequences.
    """

    scale: Any
    batch: Any
    heads: Any
    sharing: Any
    T: Any
    d_u: Any
    d_v: Any
    tiles_per_chunk: Any
    tiles_per_segment: Any
    steps: Any
    documents: Any = 0

    def as_argument(self) -> StateSizes:
        """Return what the kernel takes, see `read_sizes`: other batches, heads or segments compile nothing."""
        return self._replace(
            batch=unspecialised(self.batch),
            heads=unspecialised(self.heads),
            sharing=unless_one(self.sharing),
            tiles_per_segment=unspecialised(self.tiles_per_segment),
            documents=unspecialised(self.documents),
        )


@dataclass(frozen=True)
class StateConfig:
    """Tell what `chunk_states` is compiled for.

    Attributes:
        reverse: dC backward in time from q and dH, not C forward from k and v.
        initial, ends: segments start from a state; the states after them are written.
        states: the state before each chunk is written.
        normalize: so are the normalisers.
        has_denominator: u is multiplied by `StateVectors.inverse_denominator`.
        chunk_tiles: tiles of a chunk, the next power of two; 1 without `through`.
        u, v: rows and columns of a tile of the state.
        documents: segments are documents, vectors are of places.
    """

    reverse: bool
    initial: bool
    ends: bool
    states: bool
    normalize: bool
    has_denominator: bool
    through: bool
    chunk_tiles: int
    precision: str
    tma: bool
    rows: int
    u: int
    v: int
    documents: bool


# --- On the device ----------------------------------------------------------------------------------------------------


class StateMatrices(NamedTuple):
    """Descriptors of tiles of states: before each chunk, and forward's for `through`; None where absent."""

    states: Any
    other: Any


class StatePlace(NamedTuple):
    """A tile of the state of one head, in one segment.

    Attributes:
        segments: of the sequence, or documents.
        segment_row: bh * segments + segment, or document * heads + head.
        first, count: the segment's first tile of steps, and how many it has.
        tiles, chunks: of the sequence, of documents with gaps.
        shift: of documents, the place of a step less its number; else 0.
        end: behind the last step of the sequence, or the last place of the document.
    """

    bh: Any
    b: Any
    h: Any
    segments: Any
    segment_row: Any
    block: Any
    u_start: Any
    v_start: Any
    u_offset: Any
    first: Any
    count: Any
    tiles: Any
    chunks: Any
    shift: Any
    end: Any


@triton.jit
def read_sizes(sizes):
    """Return sizes as they are, from `StateSizes.as_argument`."""
    return StateSizes(
        sizes.scale,
        sizes.batch >> 1,
        sizes.heads >> 1,
        (sizes.sharing + 1) >> 1,
        sizes.T,
        sizes.d_u,
        sizes.d_v,
        sizes.tiles_per_chunk,
        sizes.tiles_per_segment >> 1,
        sizes.steps,
        sizes.documents >> 1,
    )


@triton.jit
def place_of_program(vectors, sizes, config: tl.constexpr):
    """Return the `StatePlace` of this program."""
    U: tl.constexpr = config.u
    V: tl.constexpr = config.v
    tiles = tl.cdiv(sizes.T, config.rows)
    segments = sizes.documents if config.documents else tl.cdiv(tiles, sizes.tiles_per_segment)
    u_blocks, v_blocks = tl.cdiv(sizes.d_u, U), tl.cdiv(sizes.d_v, V)
    block = tl.program_id(0) % (u_blocks * v_blocks)  # neighbours share tiles of u and v through L2
    segment = (tl.program_id(0) // (u_blocks * v_blocks)) % segments
    bh = tl.program_id(0) // (u_blocks * v_blocks) // segments
    u_start, v_start = (block // v_blocks) * U, (block % v_blocks) * V
    if config.documents:
        document = tl.load(vectors.order + segment)
        first = (tl.load(vectors.gaps + document) + 1) * sizes.tiles_per_chunk
        begin = tl.load(vectors.bounds + document)
        length = tl.load(vectors.bounds + document + 1) - begin
        segment_row, count = document * sizes.heads + bh, tl.cdiv(length, config.rows)
        shift, end = first * config.rows - begin, first * config.rows + length
    else:
        first = segment * sizes.tiles_per_segment
        segment_row, count = bh * segments + segment, tl.minimum(sizes.tiles_per_segment, tiles - first)
        shift, end = 0, sizes.T
    return StatePlace(
        bh,
        bh // sizes.heads,
        bh % sizes.heads,
        segments,
        segment_row,
        block,
        u_start,
        v_start,
        u_start + tl.arange(0, U),
        first,
        count,
        tiles,
        tl.cdiv(tiles, sizes.tiles_per_chunk),
        shift,
        end,
    )


@triton.jit
def store_n(n, row, n_columns, place, sizes):
    """Write n (.., d_u), the column 0 of n_columns [u, 16], once for all blocks of columns of the state."""
    if place.v_start == 0:
        at = n + row.to(tl.int64) * sizes.d_u + place.u_offset
        tl.store(at, tl.sum(n_columns, 1), mask=place.u_offset < sizes.d_u)


@triton.jit
def store_through(acc, chunk, matrix, place, matrices, vectors, sizes, config: tl.constexpr):
    """Write what passes a chunk, exp(g) sum(C before it * dC after it), as far as this tile of the state goes."""
    U: tl.constexpr = config.u
    V: tl.constexpr = config.v
    CHUNK_TILES: tl.constexpr = config.chunk_tiles
    c = matrices.other.load([matrix, place.u_start, place.v_start]).reshape(U, V)
    of_chunk = chunk * sizes.tiles_per_chunk + tl.arange(0, CHUNK_TILES)
    mask = (tl.arange(0, CHUNK_TILES) < sizes.tiles_per_chunk) & (of_chunk < place.tiles)
    g_chunk = tl.sum(tl.load(vectors.g + place.bh.to(tl.int64) * place.tiles + of_chunk, mask=mask, other=0.0), 0)
    part = matrix.to(tl.int64) * tl.cdiv(sizes.d_u, U) * tl.cdiv(sizes.d_v, V) + place.block
    # Over both axes at once: one after the other does not compile for sm_100 before Triton 3.9.
    tl.store(vectors.through + part, tl.exp(g_chunk) * tl.sum(c.to(tl.float32) * acc))


@triton.jit
def store_entering(acc, n_columns, tile, place, matrices, vectors, sizes, config: tl.constexpr):
    """Write the state where a tile is the first one met of its chunk."""
    U: tl.constexpr = config.u
    V: tl.constexpr = config.v
    chunk = tile // sizes.tiles_per_chunk
    behind = place.first + place.count if config.documents else place.tiles
    entering = (
        tile == tl.minimum((chunk + 1) * sizes.tiles_per_chunk, behind) - 1
        if config.reverse
        else tile % sizes.tiles_per_chunk == 0
    )
    if entering:
        matrix = place.bh * place.chunks + chunk
        if config.through:
            store_through(acc, chunk, matrix, place, matrices, vectors, sizes, config)
        at = [matrix, place.u_start, place.v_start]
        matrices.states.store(at, acc.to(matrices.states.dtype).reshape(1, U, V))
        if config.normalize:
            store_n(vectors.n_states, matrix, n_columns, place, sizes)


@triton.jit
def load_weights(tile, place, vectors, sizes, config: tl.constexpr):
    """Return the weights of u's steps in the state after a tile, [rows], and the tile's log gate."""
    ROWS: tl.constexpr = config.rows
    row = tl.arange(0, ROWS)
    t = tile * ROWS
    head = place.bh.to(tl.int64)
    weight = tl.exp(tl.load(vectors.row_log + (head * place.tiles + tile) * ROWS + row))
    if config.reverse:
        weight *= sizes.scale
    if config.has_denominator:
        weight *= tl.load(vectors.inverse_denominator + head * sizes.T + t + row, mask=t + row < place.end, other=0.0)
    if config.documents:  # steps of the next document add nothing
        weight = tl.where(t + row < place.end, weight, 0.0)
    return weight, tl.load(vectors.g + head * place.tiles + tile)


@triton.jit
def add_normaliser(n_columns, weighted, rounded, keep, config: tl.constexpr):
    """Return n after a tile: a column of the state for a v of ones, column 0 here, as products are 16 wide at least.

    Args:
        n_columns: [u, 16] float32.
        weighted, rounded: [rows, u], weighted u in float32 and in its own dtype.
    """
    ROWS: tl.constexpr = config.rows
    is_n = tl.arange(0, 16) == 0
    ones = tl.broadcast_to(is_n[None, :], (ROWS, 16)).to(rounded.dtype)
    # [u, rows] @ [rows, 16] -> [u, 16]
    n_columns = tl.dot(rounded.T, ones, n_columns * keep, input_precision=config.precision)
    if rounded.dtype != tl.float32:  # q.n may cancel: what rounding took off counts
        rest = (weighted - rounded.to(tl.float32)).to(rounded.dtype)
        n_columns = tl.dot(rest.T, ones, n_columns)
    return n_columns


@triton.jit
def chunk_states(u, v, initial, states, ends, other, strides, vectors, sizes, config: tl.constexpr):
    """Go through one segment with one tile [u, v] of the state on chip.

    Args:
        u, v: (B, H, T, d), k and v, or q and dH, u of fewer heads; descriptors, or pointers before compute capability
            9.0, as all matrices.
        initial, ends: (B * H * segments, d_u, d_v) float32, the state before and after each segment; of documents
            (documents * H, d_u, d_v).
        states: (B * H * chunks, d_u, d_v), before each chunk, in the direction of time.
        other: like states: the backward pass also reads the forward states and writes, for each chunk and each tile of
            the state, what passes through it, exp(g) sum(C before it * dC after it).
        strides: of u and of v, three each: of batch, head and time.
    """
    ROWS: tl.constexpr = config.rows
    U: tl.constexpr = config.u
    V: tl.constexpr = config.v
    TMA: tl.constexpr = config.tma
    sizes = read_sizes(sizes)
    d_u, d_v = sizes.d_u, sizes.d_v
    shape = (sizes.batch, sizes.heads, sizes.steps if config.documents else sizes.T)
    u_tiles = open_rows(u, strides[0], shape, d_u, ROWS, U, TMA)
    v_tiles = open_rows(v, strides[1], shape, d_v, ROWS, V, TMA)
    place = place_of_program(vectors, sizes, config)
    rows = sizes.batch * sizes.heads
    at = [place.segment_row, place.u_start, place.v_start]
    state_tiles, other_tiles = None, None
    if config.states:
        state_tiles = open_matrices(states, rows * place.chunks, d_u, d_v, U, V, TMA)
    if config.through:
        other_tiles = open_matrices(other, rows * place.chunks, d_u, d_v, U, V, TMA)
    matrices = StateMatrices(state_tiles, other_tiles)
    acc = tl.zeros([U, V], tl.float32)
    n_columns = tl.zeros([U, 16], tl.float32)
    if config.initial:
        acc = open_matrices(initial, rows * place.segments, d_u, d_v, U, V, TMA).load(at).reshape(U, V)
        if config.normalize:
            n_at = vectors.n_initial + place.segment_row.to(tl.int64) * d_u + place.u_offset
            n = tl.load(n_at, mask=place.u_offset < d_u, other=0.0)
            n_columns = tl.where((tl.arange(0, 16) == 0)[None, :], n[:, None], 0.0)
    total = 0.0
    for j in range(place.count):
        tile = place.first + place.count - 1 - j if config.reverse else place.first + j
        if config.states:
            store_entering(acc, n_columns, tile, place, matrices, vectors, sizes, config)
        weight, g_tile = load_weights(tile, place, vectors, sizes, config)
        total += g_tile
        keep = tl.exp(g_tile)
        step = tile * ROWS - place.shift
        u_tile = u_tiles.load([place.b, place.h // sizes.sharing, step, place.u_start]).reshape(ROWS, U)
        v_tile = v_tiles.load([place.b, place.h, step, place.v_start]).reshape(ROWS, V)
        weighted = u_tile.to(tl.float32) * weight[:, None]
        rounded = weighted.to(u_tile.dtype)
        # [u, rows] @ [rows, v] -> [u, v]
        acc = tl.dot(rounded.T, v_tile, acc * keep, input_precision=config.precision)
        if config.normalize:  # noqa: SIM102  a constant decides alone
            if place.v_start == 0:
                n_columns = add_normaliser(n_columns, weighted, rounded, keep, config)

    if config.ends:
        end_tiles = open_matrices(ends, rows * place.segments, d_u, d_v, U, V, TMA)
        end_tiles.store(at, acc.reshape(1, U, V))
        if place.block == 0:
            tl.store(vectors.segment_g + place.segment_row, total)
        if config.normalize:
            store_n(vectors.n_ends, place.segment_row, n_columns, place, sizes)


@triton.jit(do_not_specialize=["segments"])
def join_segments(
    ends, before, last, initial, segment_g, segments, size,
    REVERSE: tl.constexpr, HAS_INITIAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the state before each segment, and after the last, from what each adds and its log gates, segment_g."""
    blocks = tl.cdiv(size, BLOCK)
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    i = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    mask = i < size
    state = tl.zeros([BLOCK], tl.float32)
    if HAS_INITIAL:
        state = tl.load(initial + bh * size + i, mask=mask, other=0.0)
    for j in range(segments):
        segment = bh * segments + (segments - 1 - j if REVERSE else j)
        tl.store(before + segment * size + i, state, mask=mask)
        state = state * tl.exp(tl.load(segment_g + segment)) + tl.load(ends + segment * size + i, mask=mask, other=0.0)
    tl.store(last + bh * size + i, state, mask=mask)


# --- On the host ------------------------------------------------------------------------------------------------------


class ChunkInputs(NamedTuple):
    """Name what states are made of: forward u = k and v = v, backward u = q and v = dH.

    Attributes:
        u, v: (B, H, T, d), u of fewer heads where these share it.
        C, n: (B, H, d_qk, d_hv), (B, H, d_qk) float32, the state before the first chunk met; None is zero.
        inverse_denominator: (B, H, T) float32, of a normalised gate backward.
        other: the states of forward; backward only, see `SequenceStates.through`.
    """

    u: Tensor
    v: Tensor
    C: Tensor | None = None
    n: Tensor | None = None
    inverse_denominator: Tensor | None = None
    other: Tensor | None = None
    reverse: bool = False


class SequenceStates(NamedTuple):
    """States of a whole sequence.

    Attributes:
        states: (B, H, chunks, d_qk, d_hv), before each chunk in the direction of time; None if not asked for.
        n_states: (B, H, chunks, d_qk) float32 where the gate normalises and the direction is forward.
        last, n_last: the state after the last chunk met, (B, H, d_qk, d_hv) and (B, H, d_qk) float32, or of each of
            N documents, (N, H, ...).
        through: (B, H, chunks), of backward: gradient of the log gate of a chunk as a whole, less what its own
            steps have a part in: exp(g) sum(C before it * dC after it).
    """

    states: Tensor | None
    n_states: Tensor | None
    last: Tensor
    n_last: Tensor | None
    through: Tensor | None


class Pass(NamedTuple):
    """One launch of `chunk_states`: what it starts from and what it writes (`StateVectors`); None where absent.

    Attributes:
        before, ends: (B, H, segments, ...) float32, states before and after segments.
        parts: (B, H, chunks, blocks of the state) float32, summands of `SequenceStates.through`.
    """

    before: Tensor | None = None
    n_before: Tensor | None = None
    states: Tensor | None = None
    n_states: Tensor | None = None
    ends: Tensor | None = None
    n_ends: Tensor | None = None
    segment_g: Tensor | None = None
    parts: Tensor | None = None


def walk(call: Call, planned: StateWalk, side: ChunkInputs, dtype: torch.dtype | None) -> SequenceStates:
    """Return the states of a whole sequence, stored in dtype; None stores only the last."""
    batch, heads, _, d_v = side.v.shape
    d_u = side.u.shape[-1]
    chunks, segments = call.plan.chunks, planned.segments
    if call.documents is not None:
        segments = call.documents.documents
    normalize = call.gate.normalize and not side.reverse

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return side.u.new_empty((batch, heads, *shape), dtype=dtype)

    ends: dict[str, Tensor | None] = {"ends": empty(segments, d_u, d_v), "segment_g": empty(segments)}
    ends["n_ends"] = empty(segments, d_u) if normalize else None
    states = None if dtype is None else empty(chunks, d_u, d_v, dtype=dtype)
    n_states = empty(chunks, d_u) if normalize and dtype is not None else None
    parts = None if side.other is None else empty(chunks, planned.blocks)
    stored: dict[str, Tensor | None] = {"states": states, "n_states": n_states}
    stored["parts"] = None if dtype is None else parts
    if segments == 1 or call.documents is not None:
        whole = Pass(side.C, side.n, **stored, **ends)
        launch(call, planned, side, whole)
        last, n_last = whole.ends, whole.n_ends
    else:
        added = Pass(**ends)
        launch(call, planned, side, added)
        before, last = _join(added.ends, added.segment_g, side.C, side.reverse)
        n_before, n_last = _join(added.n_ends, added.segment_g, side.n, side.reverse) if normalize else (None, None)
        if dtype is not None:
            launch(call, planned, side, Pass(before, n_before, **stored))
    assert last is not None
    through = None if parts is None else parts.sum(-1)
    n_last = None if n_last is None else n_last.view(-1, heads, d_u)
    return SequenceStates(states, n_states, last.view(-1, heads, d_u, d_v), n_last, through)


def launch(call: Call, planned: StateWalk, side: ChunkInputs, of: Pass) -> None:
    """Launch `chunk_states`."""
    tiles, tma = planned.tiles, call.plan.tma
    u, v, other = side.u, side.v, None if of.parts is None else side.other
    batch, heads, steps, d_v = v.shape
    d_u, table = u.shape[-1], call.documents
    gates = call.tile_gates(tiles.rows)
    segments, of_table = (planned.segments, ()) if table is None else (table.documents, table[1:])
    sizes = StateSizes(
        call.scale, batch, heads, heads // u.shape[1], call.gates.log_f.shape[2], d_u, d_v,
        planned.tiles_per_chunk, planned.segment_tiles, steps, 0 if table is None else table.documents,
    )  # fmt: skip
    config = StateConfig(
        reverse=side.reverse,
        initial=of.before is not None,
        ends=of.ends is not None,
        states=of.states is not None,
        normalize=call.gate.normalize and not side.reverse,
        has_denominator=side.inverse_denominator is not None,
        through=other is not None,
        chunk_tiles=next_power_of_2(planned.tiles_per_chunk) if other is not None else 1,
        precision=call.precision,
        tma=tma,
        rows=tiles.rows,
        u=tiles.u,
        v=tiles.v,
        documents=table is not None,
    )
    u_tiles, *strides_of_u = rows_argument(u, tiles.rows, tiles.u, tma)
    v_tiles, *strides_of_v = rows_argument(v, tiles.rows, tiles.v, tma)
    matrices = [
        None if x is None else matrices_argument(x, tiles.u, tiles.v, tma)
        for x in (of.before, of.states, of.ends, other)
    ]
    enqueue(
        chunk_states,
        batch * heads * segments * planned.blocks,
        u_tiles,
        v_tiles,
        *matrices,
        (tuple(strides_of_u), tuple(strides_of_v)),
        StateVectors(
            of.n_before,
            of.n_states,
            of.n_ends,
            of.segment_g,
            of.parts,
            gates.prefix if side.reverse else gates.a,
            gates.g,
            side.inverse_denominator,
            *of_table,
        ),
        sizes.as_argument(),
        config=config,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )


def _join(
    ends: Tensor | None, segment_g: Tensor | None, initial: Tensor | None, reverse: bool
) -> tuple[Tensor, Tensor]:
    """Return the state before each segment, like `ends` (B, H, segments, ...), and after the last (B, H, ...)."""
    assert ends is not None
    batch, heads, segments = ends.shape[:3]
    before, last = torch.empty_like(ends), torch.empty_like(ends[:, :, 0])
    size = last[0, 0].numel()
    block = min(1024, next_power_of_2(size))
    enqueue(
        join_segments, batch * heads * cdiv(size, block),
        ends, before, last, initial, segment_g, segments, size,
        REVERSE=reverse, HAS_INITIAL=initial is not None, BLOCK=block,
    )  # fmt: skip
    return before, last
