"""The two walks of Kimi Delta Attention, tile by tile of a sequence, with some columns of a state on chip.

    errors, forward       E = V - K+ S               R = (I + G diag(beta))^-1 E       Z = beta R
                          S <- diag(exp(g)) S + Kend^T Z
    gradients, backward   dZ = P^T dO + Kend dS      W = (I + diag(beta) G)^-T dZ      dV = beta W
                          dS <- diag(exp(g)) dS + Q+^T dO - K+^T dV                    dbeta = sum of R W

Q+ and K+ have the decays from the first step of a tile, Kend those to its last, g is their sum over it. They, P and the
inverses are those of `tiles`. Columns of a state share nothing.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.common.rows import load_matrix, load_rows, load_vector, rows, store_matrix, store_rows
from tflabench.kernels.delta.call import DeltaSizes
from tflabench.kernels.delta.plan import WalkTiles
from tflabench.kernels.delta.walks import (
    DeltaConfig,
    DeltaMatrices,
    place_of_walk,
    solved,
    start_of_walk,
)

from .call import KdaCall
from .tiles import TileOperands


class WalkSums(NamedTuple):
    """Name what the walk backward writes in float32.

    Attributes:
        dbeta: (B * H, blocks of d_hv, T).
        crossing: (B * H * chunks, blocks of d_hv, d_qk), sum of S dS over columns, before a chunk.
    """

    dbeta: Any
    crossing: Any


@triton.jit
def kda_errors(v, beta, errors, written, operands, matrices, sizes, config: tl.constexpr):
    """Write R and Z of every step and the states before chunks; v, errors, written are `rows.Rows`."""
    ROWS: tl.constexpr = config.rows
    CHANNELS: tl.constexpr = config.channels
    d_qk, d_hv, T = sizes.d_qk, sizes.d_hv, sizes.T
    tiles = tl.cdiv(T, ROWS)
    chunks = tl.cdiv(tiles, sizes.chunk_tiles)
    place = place_of_walk(matrices, sizes, config)
    bh, column = place.bh, place.column
    u, r = tl.arange(0, CHANNELS), tl.arange(0, ROWS)
    acc = start_of_walk(place, matrices, sizes, config)
    for tile in range(place.count):
        if tile % sizes.chunk_tiles == 0:
            store_matrix(matrices.states, acc, bh * chunks + tile // sizes.chunk_tiles, u, column, d_qk, d_hv)
        t = tile * ROWS + r
        k_reads = load_matrix(operands.reads, bh, t, u, T, d_qk)
        k_writes = load_matrix(operands.weighted.k, bh, t, u, T, d_qk)
        v_tile = load_rows(v, place.b, place.h, t, column, T, d_hv)
        strength = tl.load(beta + bh.to(tl.int64) * T + t, mask=t < T, other=0.0)
        # [rows, channels] @ [channels, columns] -> [rows, columns]
        error = v_tile.to(tl.float32) - tl.dot(k_reads, acc.to(k_reads.dtype), input_precision=config.precision)
        error = solved(error, bh.to(tl.int64) * tiles + tile, matrices, k_reads.dtype, False, config).to(k_reads.dtype)
        store_rows(errors, error, place.b, place.h, t, column, T, d_hv)
        z = (error.to(tl.float32) * strength[:, None]).to(k_reads.dtype)
        store_rows(written, z, place.b, place.h, t, column, T, d_hv)
        keep = tl.exp2(load_vector(operands.weighted.totals, bh * tiles + tile, u, d_qk))[:, None]
        # [channels, rows] @ [rows, columns] -> [channels, columns]
        acc = tl.dot(k_writes.T, z, acc * keep, input_precision=config.precision)
    store_matrix(matrices.after, acc, place.part, u, column, d_qk, d_hv)


@triton.jit
def kda_gradients(errors, beta, do, dv, operands, matrices, sums, sizes, config: tl.constexpr):
    """Write dV, `WalkSums`, and gradients of the states after chunks; errors, do, dv are `rows.Rows`."""
    ROWS: tl.constexpr = config.rows
    CHANNELS: tl.constexpr = config.channels
    d_qk, d_hv, T = sizes.d_qk, sizes.d_hv, sizes.T
    tiles, blocks = tl.cdiv(T, ROWS), tl.cdiv(d_hv, config.columns)
    chunks = tl.cdiv(tiles, sizes.chunk_tiles)
    place = place_of_walk(matrices, sizes, config)
    bh, column = place.bh, place.column
    u, r = tl.arange(0, CHANNELS), tl.arange(0, ROWS)
    weighted = operands.weighted
    acc = start_of_walk(place, matrices, sizes, config)
    for j in range(place.count):
        tile = place.count - 1 - j
        chunk = bh * chunks + tile // sizes.chunk_tiles
        if ((tile + 1) % sizes.chunk_tiles == 0) | (j == 0):
            store_matrix(matrices.states, acc, chunk, u, column, d_qk, d_hv)
        t = tile * ROWS + r
        k_writes = load_matrix(weighted.k, bh, t, u, T, d_qk)
        do_tile = load_rows(do, place.b, place.h, t, column, T, d_hv)
        strength = tl.load(beta + bh.to(tl.int64) * T + t, mask=t < T, other=0.0)
        p = load_matrix(weighted.scores, bh, t, r, T, ROWS)
        # [rows, channels] @ [channels, columns], and [rows, rows] @ [rows, columns] -> [rows, columns]
        dz = tl.dot(k_writes, acc.to(k_writes.dtype), input_precision=config.precision)
        dz = tl.dot(p.T, do_tile, dz, input_precision=config.precision)
        w = solved(dz, bh.to(tl.int64) * tiles + tile, matrices, k_writes.dtype, True, config)
        error = load_rows(errors, place.b, place.h, t, column, T, d_hv)
        of_block = bh.to(tl.int64) * blocks + place.block
        tl.store(sums.dbeta + of_block * T + t, tl.sum(error.to(tl.float32) * w, 1), mask=t < T)
        dv_tile = (w * strength[:, None]).to(k_writes.dtype)
        store_rows(dv, dv_tile, place.b, place.h, t, column, T, d_hv)
        q_reads = load_matrix(weighted.q, bh, t, u, T, d_qk)
        k_reads = load_matrix(operands.reads, bh, t, u, T, d_qk)
        # [channels, rows] @ [rows, columns] -> [channels, columns], twice
        acc *= tl.exp2(load_vector(weighted.totals, bh * tiles + tile, u, d_qk))[:, None]
        acc = tl.dot(q_reads.T, do_tile, acc, input_precision=config.precision)
        acc = tl.dot(k_reads.T, -dv_tile, acc, input_precision=config.precision)
        if tile % sizes.chunk_tiles == 0:
            state = load_matrix(matrices.other, chunk, u, column, d_qk, d_hv).to(tl.float32)
            row = chunk.to(tl.int64) * blocks + place.block
            tl.store(sums.crossing + row * d_qk + u, tl.sum(state * acc, 1), mask=u < d_qk)
    store_matrix(matrices.after, acc, place.part, u, column, d_qk, d_hv)


# --- On the host ------------------------------------------------------------------------------------------------------


class KdaErrors(NamedTuple):
    """Name what the walk forward gives.

    Attributes:
        errors, written: R and Z, (B, H, T, d_hv), contiguous.
        states: before chunks, (B * H * chunks, d_qk, d_hv).
        last: (B, H, d_qk, d_hv), float32.
    """

    errors: Tensor
    written: Tensor
    states: Tensor
    last: Tensor


class KdaGradients(NamedTuple):
    """Name what the walk backward gives.

    Attributes:
        dv: (B, H, T, d_hv), contiguous.
        dbeta: (B, H, T), float32.
        states: gradients of the states after chunks; first: of the state before the first, float32.
        crossing: (B, H, chunks, d_qk) float32, as of the states of gla.
    """

    dv: Tensor
    dbeta: Tensor
    states: Tensor
    first: Tensor
    crossing: Tensor


def errors_and_states(
    call: KdaCall, v: Tensor, beta: Tensor, operands: TileOperands, first: Tensor | None
) -> KdaErrors:
    """Return `KdaErrors` of v (B, H, T, d_hv) and beta (B, H, T) float32; `first`: float32, None for zero."""
    errors, written = (torch.empty_like(v, memory_format=torch.contiguous_format) for _ in range(2))
    matrices = _matrices(call, v, operands, first)
    _launch(call, call.walk, kda_errors, [rows(v), beta, rows(errors), rows(written)], operands, matrices)
    return KdaErrors(errors, written, matrices.states, matrices.after)


def gradients_of_states(
    call: KdaCall, errors: Tensor, beta: Tensor, do: Tensor, operands: TileOperands, states: Tensor, last: Tensor | None
) -> KdaGradients:
    """Return `KdaGradients`; states: those of forward; last: the gradient of the last one, float32, None for zero."""
    plan, tiles = call.gla.plan, call.walk.backward
    matrices, dv = _matrices(call, errors, operands, last)._replace(other=states), torch.empty_like(errors)
    blocks, lead = cdiv(plan.d_hv, tiles.columns), (plan.batch, plan.heads)
    sums = WalkSums(
        errors.new_empty((*lead, blocks, plan.T), dtype=torch.float32),
        errors.new_empty((*lead, plan.chunks, blocks, plan.d_qk), dtype=torch.float32),
    )
    _launch(call, tiles, kda_gradients, [rows(errors), beta, rows(do), rows(dv)], operands, matrices, sums)
    return KdaGradients(dv, sums.dbeta.sum(2), matrices.states, matrices.after, sums.crossing.sum(3))


def _matrices(call: KdaCall, v: Tensor, operands: TileOperands, before: Tensor | None) -> DeltaMatrices:
    plan = call.gla.plan
    states = v.new_empty((plan.batch * plan.heads * plan.chunks, plan.d_qk, plan.d_hv))
    after = v.new_empty((plan.batch, plan.heads, plan.d_qk, plan.d_hv), dtype=torch.float32)
    return DeltaMatrices(operands.inverses, None, before, after, states)


def _launch(
    call: KdaCall, tiles: WalkTiles, walk: Any, tensors: list[Any], operands: TileOperands, matrices: DeltaMatrices,
    *sums: WalkSums,
) -> None:  # fmt: skip
    plan = call.gla.plan
    sizes = DeltaSizes(plan.heads, 1, plan.T, plan.d_qk, plan.d_hv, plan.chunk_tiles, call.gla.scale, 1)
    enqueue(
        walk, plan.batch * plan.heads * cdiv(plan.d_hv, tiles.columns),
        *tensors, operands, matrices, *sums, sizes,
        config=DeltaConfig(
            matrices.before is not None, False, call.gla.precision,
            tiles.rows, tiles.channels, tiles.columns, tiles.parts,
        ), num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
