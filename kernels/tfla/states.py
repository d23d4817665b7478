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

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.cover import cdiv, next_power_of_2
from tflabench.kernels.launching import enqueue

from .config import StateTiles
from .plan import Plan
from .tiles import matrices_argument, open_matrices, open_rows, rows_argument


@triton.jit(do_not_specialize=["batch", "heads", "tiles_per_segment"], do_not_specialize_on_alignment=["sharing"])
def chunk_states(
    u, u_b, u_h, u_t, v, v_b, v_h, v_t, initial, n_initial, states, n_states, ends, n_ends, segment_g, other, through,
    row_log, g, inverse_denominator, scale, batch, heads, sharing, T, d_u, d_v, tiles_per_chunk, tiles_per_segment,
    REVERSE: tl.constexpr, HAS_INITIAL: tl.constexpr, STORE_STATES: tl.constexpr, STORE_ENDS: tl.constexpr,
    NORMALIZE: tl.constexpr, HAS_DENOMINATOR: tl.constexpr, THROUGH: tl.constexpr, CHUNK_TILES: tl.constexpr,
    PRECISION: tl.constexpr, TMA: tl.constexpr, ROWS: tl.constexpr, U: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """Walks one segment with one tile (U, V) of the state on chip.

    Args:
        u, v: k and v, or q and dH; `sharing` heads have one of u.  row_log: a, or prefix, of tiles of ROWS steps; as g.
        initial (B * H * segments, d_u, d_v), n_initial (.., d_u): the state before each segment, float32.
        states (B * H * chunks, d_u, d_v), n_states (.., d_u): before each chunk, in the direction of the walk.
        ends, n_ends, segment_g: the state after each segment, and the segment's log gate, float32.
        other, through: the backward walk also reads the forward states and writes, for each chunk and each tile of
            the state, what passes through it, exp(g) sum(C before it * dC after it): (B * H * chunks, tiles).
    """
    u_tiles = open_rows(u, u_b, u_h, u_t, batch, heads, T, d_u, ROWS, U, TMA)
    v_tiles = open_rows(v, v_b, v_h, v_t, batch, heads, T, d_v, ROWS, V, TMA)
    tiles = tl.cdiv(T, ROWS)
    chunks = tl.cdiv(tiles, tiles_per_chunk)
    segments = tl.cdiv(tiles, tiles_per_segment)
    u_blocks, v_blocks = tl.cdiv(d_u, U), tl.cdiv(d_v, V)
    block = tl.program_id(0) % (u_blocks * v_blocks)  # neighbours share tiles of u and v through L2
    segment = (tl.program_id(0) // (u_blocks * v_blocks)) % segments
    bh = tl.program_id(0) // (u_blocks * v_blocks) // segments
    b, h, bh64 = bh // heads, bh % heads, bh.to(tl.int64)
    u_start, v_start = (block // v_blocks) * U, (block % v_blocks) * V
    u_offset = u_start + tl.arange(0, U)
    row = tl.arange(0, ROWS)
    first = segment * tiles_per_segment
    count = tl.minimum(tiles_per_segment, tiles - first)
    segment_row = bh * segments + segment

    if STORE_STATES:
        state_tiles = open_matrices(states, batch * heads * chunks, d_u, d_v, U, V, TMA)
    if THROUGH:
        other_tiles = open_matrices(other, batch * heads * chunks, d_u, d_v, U, V, TMA)
    acc = tl.zeros([U, V], tl.float32)
    # n is a column of the state for a v of ones: column 0 here, as products are at least 16 wide.
    n_columns = tl.zeros([U, 16], tl.float32)
    is_n = tl.arange(0, 16) == 0
    if HAS_INITIAL:
        initial_tiles = open_matrices(initial, batch * heads * segments, d_u, d_v, U, V, TMA)
        acc = initial_tiles.load([segment_row, u_start, v_start]).reshape(U, V)
        if NORMALIZE:
            n = tl.load(n_initial + segment_row.to(tl.int64) * d_u + u_offset, mask=u_offset < d_u, other=0.0)
            n_columns = tl.where(is_n[None, :], n[:, None], 0.0)
    total = 0.0
    for j in range(count):
        tile = first + count - 1 - j if REVERSE else first + j
        if STORE_STATES:
            chunk = tile // tiles_per_chunk
            entering = (
                tile == tl.minimum((chunk + 1) * tiles_per_chunk, tiles) - 1 if REVERSE else tile % tiles_per_chunk == 0
            )
            if entering:
                matrix = bh * chunks + chunk
                if THROUGH:
                    c = other_tiles.load([matrix, u_start, v_start]).reshape(U, V)
                    of_chunk = chunk * tiles_per_chunk + tl.arange(0, CHUNK_TILES)
                    mask = (tl.arange(0, CHUNK_TILES) < tiles_per_chunk) & (of_chunk < tiles)
                    g_chunk = tl.sum(tl.load(g + bh64 * tiles + of_chunk, mask=mask, other=0.0), 0)
                    part = matrix.to(tl.int64) * u_blocks * v_blocks + block
                    # Over both axes at once: one after the other does not compile for sm_100 before Triton 3.9.
                    tl.store(through + part, tl.exp(g_chunk) * tl.sum(c.to(tl.float32) * acc))
                state_tiles.store([matrix, u_start, v_start], acc.to(state_tiles.dtype).reshape(1, U, V))
                if NORMALIZE:  # noqa: SIM102
                    if v_start == 0:
                        tl.store(
                            n_states + matrix.to(tl.int64) * d_u + u_offset, tl.sum(n_columns, 1), mask=u_offset < d_u
                        )
        t = tile * ROWS
        weight = tl.exp(tl.load(row_log + (bh64 * tiles + tile) * ROWS + row))
        if REVERSE:
            weight *= scale
        if HAS_DENOMINATOR:
            weight *= tl.load(inverse_denominator + bh64 * T + t + row, mask=t + row < T, other=0.0)
        g_tile = tl.load(g + bh64 * tiles + tile)
        total += g_tile
        keep = tl.exp(g_tile)
        u_tile = u_tiles.load([b, h // sharing, t, u_start]).reshape(ROWS, U)
        v_tile = v_tiles.load([b, h, t, v_start]).reshape(ROWS, V)
        weighted = u_tile.to(tl.float32) * weight[:, None]
        rounded = weighted.to(u_tile.dtype)
        acc = tl.dot(rounded.T, v_tile, acc * keep, input_precision=PRECISION)
        if NORMALIZE:  # noqa: SIM102
            if v_start == 0:
                ones = tl.broadcast_to(is_n[None, :], (ROWS, 16)).to(u_tile.dtype)
                n_columns = tl.dot(rounded.T, ones, n_columns * keep, input_precision=PRECISION)
                if u_tile.dtype != tl.float32:  # q.n may cancel: what rounding took off counts
                    rest = (weighted - rounded.to(tl.float32)).to(u_tile.dtype)
                    n_columns = tl.dot(rest.T, ones, n_columns)

    if STORE_ENDS:
        end_tiles = open_matrices(ends, batch * heads * segments, d_u, d_v, U, V, TMA)
        end_tiles.store([segment_row, u_start, v_start], acc.reshape(1, U, V))
        if block == 0:
            tl.store(segment_g + segment_row, total)
        if NORMALIZE:  # noqa: SIM102
            if v_start == 0:
                tl.store(n_ends + segment_row.to(tl.int64) * d_u + u_offset, tl.sum(n_columns, 1), mask=u_offset < d_u)


@triton.jit(do_not_specialize=["segments"])
def join_segments(
    ends, before, last, initial, segment_g, segments, size,
    REVERSE: tl.constexpr, HAS_INITIAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The state before each segment, and after the last, from what each adds: before, ends (B * H, segments, size)."""
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


class Walk(NamedTuple):
    """What a walk over all chunks leaves behind.

    Attributes:
        states: (B, H, chunks, d_qk, d_hv), before each chunk in the direction of the walk; None if not asked for.
        n_states: (B, H, chunks, d_qk) float32 where the gate normalises and the walk is forward.
        last, n_last: the state after the last chunk met, (B, H, d_qk, d_hv) and (B, H, d_qk) float32.
        through: (B, H, chunks), of a backward walk: gradient of the log gate of a chunk as a whole, less what its own
            steps have a part in: exp(g) sum(C before it * dC after it).
    """

    states: Tensor | None
    n_states: Tensor | None
    last: Tensor
    n_last: Tensor | None
    through: Tensor | None


def walk(
    plan: Plan,
    tiles: StateTiles,
    u: Tensor,
    v: Tensor,
    initial: Tensor | None,
    n_initial: Tensor | None,
    dtype: torch.dtype | None,
    *,
    reverse: bool = False,
    inverse_denominator: Tensor | None = None,
    other: Tensor | None = None,
) -> Walk:
    """Walks the whole sequence: forward with u = k, v = v, or backward with u = q, v = dH.

    Args:
        initial, n_initial: state (B, H, d_qk, d_hv), (B, H, d_qk) float32 before the first chunk met; None is zero.
        dtype: of the chunk states; None stores none, only the last.
        inverse_denominator: (B, H, T), weight of the query side besides `scale`.
        other: forward states of the same chunks, for `through`.
    """
    batch, heads, T, d_v = v.shape
    d_u = u.shape[-1]
    gates = plan.tile_gates(tiles.rows)
    per_chunk = cdiv(plan.chunk_size, tiles.rows)
    chunks = plan.chunks
    blocks = cdiv(d_u, tiles.u) * cdiv(d_v, tiles.v)
    normalize = plan.gate.normalize and not reverse
    pieces = plan.segments(batch * heads * blocks)
    per_segment = per_chunk * cdiv(chunks, pieces)
    pieces = cdiv(gates.g.shape[-1], per_segment)

    def state(*lead: int) -> tuple[Tensor, Tensor | None]:
        shape = (batch, heads, *lead, d_u)
        n = u.new_empty(shape, dtype=torch.float32) if normalize else None
        return u.new_empty((*shape, d_v), dtype=torch.float32), n

    states = None if dtype is None else u.new_empty((batch, heads, chunks, d_u, d_v), dtype=dtype)
    n_states = (
        u.new_empty((batch, heads, chunks, d_u), dtype=torch.float32) if normalize and dtype is not None else None
    )
    parts = None if other is None else u.new_empty((batch, heads, chunks, blocks), dtype=torch.float32)

    def run(segment_tiles: int, before: Tensor | None, n_before: Tensor | None, store: bool, keep_ends: bool):
        segments = cdiv(gates.g.shape[-1], segment_tiles)
        ends, n_ends = state(segments) if keep_ends else (None, None)
        segment_g = u.new_empty((batch, heads, segments), dtype=torch.float32) if keep_ends else None
        through = store and parts is not None

        def matrices(x: Tensor | None) -> object:
            return None if x is None else matrices_argument(x, tiles.u, tiles.v, plan.tma)

        enqueue(
            chunk_states,
            batch * heads * segments * blocks,
            *rows_argument(u, tiles.rows, tiles.u, plan.tma),
            *rows_argument(v, tiles.rows, tiles.v, plan.tma),
            matrices(before),
            n_before,
            matrices(states if store else None),
            n_states if store else None,
            matrices(ends),
            n_ends,
            segment_g,
            matrices(other if through else None),
            parts if through else None,
            gates.prefix if reverse else gates.a,
            gates.g,
            inverse_denominator,
            plan.scale,
            batch,
            heads,
            heads // u.shape[1],
            T,
            d_u,
            d_v,
            per_chunk,
            segment_tiles,
            REVERSE=reverse,
            HAS_INITIAL=before is not None,
            STORE_STATES=store,
            STORE_ENDS=keep_ends,
            NORMALIZE=normalize,
            HAS_DENOMINATOR=inverse_denominator is not None,
            THROUGH=through,
            CHUNK_TILES=next_power_of_2(per_chunk) if through else 1,
            PRECISION=plan.precision,
            TMA=plan.tma,
            ROWS=tiles.rows,
            U=tiles.u,
            V=tiles.v,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
        return ends, n_ends, segment_g

    if pieces == 1:
        last, n_last, _ = run(gates.g.shape[-1], initial, n_initial, dtype is not None, True)
    else:
        ends, n_ends, segment_g = run(per_segment, None, None, False, True)
        before, last = _join(ends, segment_g, initial, reverse)
        n_before, n_last = _join(n_ends, segment_g, n_initial, reverse) if normalize else (None, None)
        if dtype is not None:
            run(per_segment, before, n_before, True, False)
    assert last is not None
    through = None if parts is None else parts.sum(-1)
    shape = (batch, heads, d_u)
    return Walk(states, n_states, last.view(*shape, d_v), None if n_last is None else n_last.view(shape), through)


def _join(
    ends: Tensor | None, segment_g: Tensor | None, initial: Tensor | None, reverse: bool
) -> tuple[Tensor, Tensor]:
    """The state before each segment, like `ends` (B, H, segments, ...), and after the last (B, H, ...)."""
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
