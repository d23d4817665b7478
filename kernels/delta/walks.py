"""The two walks of the delta rule, tile by tile of a sequence, with some columns of a state on chip.

    errors, forward       E = V - (K exp(prefix)) S          R = (I + G diag(beta))^-1 E
                          S <- exp(g) S + (K beta exp(suffix))^T R
    gradients, backward   dU = P^T dO + (K exp(suffix)) dS   W = (I + diag(beta) G)^-T dU    dV = beta W
                          dS <- exp(g) dS + (Q scale exp(prefix))^T dO - (K exp(prefix))^T dV
                          dbeta = sum of R W

The inverses and P are those of `inverses`. Columns of a state share nothing, so that programs never wait for each
other, but a tile waits for the one before it: a walk takes as long as the longest sequence.
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
from tflabench.kernels.common.rows import load_matrix, load_rows, store_matrix, store_rows

from .call import DeltaCall
from .inverses import of_tiles
from .plan import WalkTiles


class DeltaMatrices(NamedTuple):
    """Matrices in memory, None where they are not read or written.

    Attributes:
        inverses, scores: see `of_tiles`.
        before, after: (B * H, d_qk, d_hv) float32, the state before the first tile met, and after the last one; of
            documents (documents * H, d_qk, d_hv).
        states: (B * H * chunks, d_qk, d_hv), written: met on entering each chunk.
        other: like states, those of forward, read backward.
        order, gaps: of documents (`places.Table`).
    """

    inverses: Any
    scores: Any
    before: Any
    after: Any
    states: Any
    other: Any = None
    order: Any = None
    gaps: Any = None


class Sums(NamedTuple):
    """Name what the walk backward reads and writes of each step or chunk, float32.

    Attributes:
        log_f: (B * H, T).
        dbeta: (B * H, blocks of d_hv, T), written.
        through: (B * H * chunks, blocks of d_hv), written: sum of S dS, before a chunk and after it; None without a
            decay.
    """

    log_f: Any
    dbeta: Any
    through: Any


@dataclass(frozen=True)
class DeltaConfig:
    """Tell what a walk is compiled for.

    Attributes:
        before: whether it starts from a state.
        rows, channels, columns, parts: see `plan.WalkTiles`.
    """

    before: bool
    documents: bool
    precision: str
    rows: int
    channels: int
    columns: int
    parts: int


class DeltaPlace(NamedTuple):
    """Say where a program walks: batch and head, its part of the states, tiles, and columns of v."""

    bh: Any
    b: Any
    h: Any
    part: Any
    first: Any
    count: Any
    block: Any
    column: Any


@triton.jit
def place_of_walk(matrices, sizes, config: tl.constexpr):
    """Return the `DeltaPlace` of this program."""
    COLUMNS: tl.constexpr = config.columns
    blocks = tl.cdiv(sizes.d_hv, COLUMNS)
    block = tl.program_id(0) % blocks  # neighbours share tiles of k through L2
    part = tl.program_id(0) // blocks
    bh = part // sizes.documents
    if config.documents:
        document = tl.load(matrices.order + part % sizes.documents)
        first = (tl.load(matrices.gaps + document) + 1) * sizes.chunk_tiles
        count = tl.load(matrices.gaps + document + 1) * sizes.chunk_tiles - first
        part = document * sizes.heads + bh
    else:
        first = 0
        count = tl.cdiv(sizes.T, config.rows)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    return DeltaPlace(bh, bh // sizes.heads, bh % sizes.heads, part, first, count, block, column)


@triton.jit
def start_of_walk(place, matrices, sizes, config: tl.constexpr):
    """Return the state that a walk starts from, [channels, columns] float32."""
    CHANNELS: tl.constexpr = config.channels
    COLUMNS: tl.constexpr = config.columns
    acc = tl.zeros([CHANNELS, COLUMNS], tl.float32)
    if config.before:
        u = tl.arange(0, CHANNELS)
        acc = load_matrix(matrices.before, place.part, u, place.column, sizes.d_qk, sizes.d_hv)
    return acc


@triton.jit
def solved(x, tile_of_head, matrices, dtype: tl.constexpr, TRANSPOSED: tl.constexpr, config: tl.constexpr):
    """Return the inverse of a tile, or the transposed one, times x [rows, columns] float32."""
    ROWS: tl.constexpr = config.rows
    COLUMNS: tl.constexpr = config.columns
    PARTS: tl.constexpr = config.parts
    r = tl.arange(0, ROWS)
    rounded = x.to(dtype)
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for part in tl.static_range(PARTS):
        inverse = load_matrix(matrices.inverses, tile_of_head * PARTS + part, r, r, ROWS, ROWS)
        if TRANSPOSED:
            inverse = inverse.T
        acc = tl.dot(inverse, rounded, acc, input_precision=config.precision)  # [rows, rows] @ [rows, columns]
    return acc


@triton.jit
def walk_errors(k, v, errors, gates, matrices, sizes, config: tl.constexpr):
    """Write R of every step and the states before chunks; k, v, errors are `rows.Rows`, gates `TileGates`."""
    ROWS: tl.constexpr = config.rows
    CHANNELS: tl.constexpr = config.channels
    d_qk, d_hv, T = sizes.d_qk, sizes.d_hv, sizes.T
    tiles = tl.cdiv(T, ROWS)
    chunks = tl.cdiv(tiles, sizes.chunk_tiles)
    place = place_of_walk(matrices, sizes, config)
    u, column, r = tl.arange(0, CHANNELS), place.column, tl.arange(0, ROWS)
    acc = start_of_walk(place, matrices, sizes, config)
    for j in range(place.count):
        tile = place.first + j
        if tile % sizes.chunk_tiles == 0:
            chunk = place.bh * chunks + tile // sizes.chunk_tiles
            store_matrix(matrices.states, acc, chunk, u, column, d_qk, d_hv)
        k_tile = load_rows(k, place.b, place.h // sizes.sharing, tile * ROWS + r, u, T, d_qk)
        v_tile = load_rows(v, place.b, place.h, tile * ROWS + r, column, T, d_hv)
        tile_of_head = place.bh.to(tl.int64) * tiles + tile
        at = tile_of_head * ROWS + r
        reads, writes = tl.exp(tl.load(gates.prefix + at)), tl.exp(tl.load(gates.a + at))
        # [rows, channels] @ [channels, columns] -> [rows, columns]
        read = tl.dot(k_tile, acc.to(k_tile.dtype), input_precision=config.precision)
        error = v_tile.to(tl.float32) - reads[:, None] * read
        rounded = solved(error, tile_of_head, matrices, k_tile.dtype, False, config).to(k_tile.dtype)
        store_rows(errors, rounded, place.b, place.h, tile * ROWS + r, column, T, d_hv)
        written = (rounded.to(tl.float32) * writes[:, None]).to(k_tile.dtype)
        keep = tl.exp(tl.load(gates.g + tile_of_head))
        # [channels, rows] @ [rows, columns] -> [channels, columns]
        acc = tl.dot(k_tile.T, written, acc * keep, input_precision=config.precision)
    store_matrix(matrices.after, acc, place.part, u, column, d_qk, d_hv)


@triton.jit
def walk_gradients(q, k, errors, do, dv, gates, matrices, sums, sizes, config: tl.constexpr):
    """Write dV, parts of dbeta, and gradients of the states after chunks.

    Args:
        q, k, errors, do, dv: `rows.Rows`; gates: `TileGates`.
    """
    ROWS: tl.constexpr = config.rows
    CHANNELS: tl.constexpr = config.channels
    COLUMNS: tl.constexpr = config.columns
    d_qk, d_hv, T = sizes.d_qk, sizes.d_hv, sizes.T
    tiles, blocks = tl.cdiv(T, ROWS), tl.cdiv(d_hv, COLUMNS)
    chunks = tl.cdiv(tiles, sizes.chunk_tiles)
    place = place_of_walk(matrices, sizes, config)
    u, column, r = tl.arange(0, CHANNELS), place.column, tl.arange(0, ROWS)
    behind = place.first + place.count
    acc = start_of_walk(place, matrices, sizes, config)
    for j in range(place.count):
        tile = behind - 1 - j
        if ((tile + 1) % sizes.chunk_tiles == 0) | (j == 0):
            chunk = place.bh * chunks + tile // sizes.chunk_tiles
            store_matrix(matrices.states, acc, chunk, u, column, d_qk, d_hv)
            if sums.through is not None:
                state = load_matrix(matrices.other, chunk, u, column, d_qk, d_hv).to(tl.float32)
                tl.store(sums.through + chunk.to(tl.int64) * blocks + place.block, tl.sum(state * acc))
        t = tile * ROWS + r
        k_tile = load_rows(k, place.b, place.h // sizes.sharing, t, u, T, d_qk)
        do_tile = load_rows(do, place.b, place.h, t, column, T, d_hv)
        tile_of_head = place.bh.to(tl.int64) * tiles + tile
        at = tile_of_head * ROWS + r
        next_f = tl.load(sums.log_f + place.bh.to(tl.int64) * T + t + 1, mask=(t + 1 < T) & (r + 1 < ROWS), other=0.0)
        keeps = tl.exp(tl.cumsum(next_f, 0, reverse=True))
        reads = tl.exp(tl.load(gates.prefix + at))
        beta = tl.exp(tl.load(gates.b_rest + at) + tl.load(gates.log_i_rest + at))
        s = load_matrix(matrices.scores, tile_of_head, r, r, ROWS, ROWS)
        # [rows, channels] @ [channels, columns], and [rows, rows] @ [rows, columns] -> [rows, columns]
        du = tl.dot(k_tile, acc.to(k_tile.dtype), input_precision=config.precision) * keeps[:, None]
        du = tl.dot(s.T, do_tile, du, input_precision=config.precision)
        w = solved(du, tile_of_head, matrices, k_tile.dtype, True, config)
        error = load_rows(errors, place.b, place.h, t, column, T, d_hv)
        of_block = place.bh.to(tl.int64) * blocks + place.block
        tl.store(sums.dbeta + of_block * T + t, tl.sum(error.to(tl.float32) * w, 1), mask=t < T)
        dv_tile = (w * beta[:, None]).to(k_tile.dtype)
        store_rows(dv, dv_tile, place.b, place.h, t, column, T, d_hv)
        q_tile = load_rows(q, place.b, place.h // sizes.sharing, t, u, T, d_qk)
        do_read = (do_tile.to(tl.float32) * (reads * sizes.scale)[:, None]).to(k_tile.dtype)
        dv_read = (dv_tile.to(tl.float32) * -reads[:, None]).to(k_tile.dtype)
        # [channels, rows] @ [rows, columns] -> [channels, columns], twice
        acc *= tl.exp(tl.load(gates.g + tile_of_head))
        acc = tl.dot(q_tile.T, do_read, acc, input_precision=config.precision)
        acc = tl.dot(k_tile.T, dv_read, acc, input_precision=config.precision)
    store_matrix(matrices.after, acc, place.part, u, column, d_qk, d_hv)


# --- On the host ------------------------------------------------------------------------------------------------------


def errors_and_states(call: DeltaCall, k: Tensor, v: Tensor, first: Tensor | None) -> tuple[Tensor, DeltaMatrices]:
    """Return R like v, contiguous, and the matrices; `first`: (B, H, d_qk, d_hv) float32, None for zero."""
    errors = torch.empty_like(v, memory_format=torch.contiguous_format)
    matrices = _matrices(call, k, v, None, first)
    _launch(call, call.tiles.forward, walk_errors, [k, v, errors], matrices, ())
    return errors, matrices


def gradients_of_states(
    call: DeltaCall, q: Tensor, k: Tensor, v: Tensor, errors: Tensor, do: Tensor, states: Tensor, last: Tensor | None,
    *, through: bool,
) -> tuple[Tensor, Tensor, DeltaMatrices, Tensor | None]:  # fmt: skip
    """Return dV like v, dbeta (B, H, T) float32, of documents by places, the matrices, and the sums of S dS.

    Args:
        states: those of forward; last: the gradient of the last one, float32, None for zero.
        through: whether the sums of S dS, before a chunk and after it, (B, H, chunks) float32, are asked for.
    """
    batch, heads, T = call.scalar.gates.log_f.shape
    matrices = _matrices(call, k, v, q, last)._replace(other=states)
    tiles, dv = call.tiles.backward, torch.empty_like(v)
    blocks = cdiv(v.shape[-1], tiles.columns)
    dbeta = v.new_empty((batch, heads, blocks, T), dtype=torch.float32)
    passing = v.new_zeros((*matrices.states.shape[:3], blocks), dtype=torch.float32) if through else None
    sums = Sums(call.scalar.gates.log_f, dbeta, passing)
    _launch(call, tiles, walk_gradients, [q, k, errors, do, dv], matrices, (sums,))
    return dv, dbeta.sum(2), matrices, None if passing is None else passing.sum(-1)


def _matrices(call: DeltaCall, k: Tensor, v: Tensor, q: Tensor | None, before: Tensor | None) -> DeltaMatrices:
    """Return all matrices of a walk, with room for the states that it writes; q: see `of_tiles`."""
    (batch, heads, _, d_hv), d_qk = v.shape, k.shape[-1]
    documents = call.places.documents if call.places else batch
    states = k.new_empty((batch, heads, call.scalar.plan.chunks, d_qk, d_hv))
    after = k.new_empty((documents, heads, d_qk, d_hv), dtype=torch.float32)
    of_documents = call.places.chunks[1:3] if call.places else ()
    return DeltaMatrices(*of_tiles(call, k, q), before, after, states, None, *of_documents)


def _launch(
    call: DeltaCall, tiles: WalkTiles, walk: Any, tensors: list[Tensor], matrices: DeltaMatrices, sums: tuple[Sums, ...]
) -> None:
    """Launch a walk over tensors whose second last is like v, and their first like k."""
    d_hv, sizes = tensors[-1].shape[-1], call.sizes(tensors[0], tensors[-1].shape[-1])
    enqueue(
        walk, len(call.scalar.gates.log_f) * sizes.heads * sizes.documents * cdiv(d_hv, tiles.columns),
        *map(call.rows, tensors), call.gates, matrices, *sums, sizes,
        config=DeltaConfig(
            matrices.before is not None, call.places is not None, call.precision,
            tiles.rows, tiles.channels, tiles.columns, tiles.parts,
        ), num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
