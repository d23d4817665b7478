"""The two walks of Kimi Delta Attention, tile by tile of a sequence, with some columns of a state on chip.

    outputs, forward      E = V - K+ S               R = diag(1/s) X diag(s) E         Z = beta R
                          O = Q+ S + P Z             S <- diag(exp(b)) S + Kend^T Z
    gradients, backward   dZ = P^T dO + Kend dS      W = diag(1/s) X^T diag(s) dZ      dV = beta W
                          dS <- diag(exp(b)) dS + Q+^T dO - K+^T dV                    dbeta = sum of R W

Q+, K+, Kend, P, s and X are those of `tiles`, b is the log decay over a tile. Columns of a state share nothing.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.common.rows import (
    empty_rows,
    load_matrix,
    load_rows,
    load_vector,
    rows,
    store_matrix,
    store_rows,
)
from tflabench.kernels.delta.call import DeltaSizes
from tflabench.kernels.delta.walks import DeltaConfig, DeltaMatrices, place_of_walk, solved, start_of_walk

from .plan import KdaCall
from .tiles import TileOperands, root_strengths


@triton.jit
def kda_outputs(v, beta, o, errors, operands, matrices, sizes, config: tl.constexpr):
    """Write o and, if there is room for states, these before tiles and R; v, o, errors are `rows.Rows`."""
    ROWS: tl.constexpr = config.rows
    CHANNELS: tl.constexpr = config.channels
    DTYPE: tl.constexpr = operands.scores.dtype.element_ty
    d_qk, d_hv, T = sizes.d_qk, sizes.d_hv, sizes.T
    place = place_of_walk(matrices, sizes, config)
    bh, column = place.bh, place.column
    u, r = tl.arange(0, CHANNELS), tl.arange(0, ROWS)
    acc = start_of_walk(place, matrices, sizes, config)
    for tile in range(place.count):
        t, tile_of_head = tile * ROWS + r, bh.to(tl.int64) * place.count + tile
        k_reads = load_matrix(operands.k_reads, bh, t, u, T, d_qk)
        q_reads = load_matrix(operands.q_reads, bh, t, u, T, d_qk)
        state = acc.to(DTYPE)
        if matrices.states is not None:
            store_matrix(matrices.states, state, tile_of_head, u, column, d_qk, d_hv)
        v_tile = load_rows(v, place.b, place.h, t, column, T, d_hv)
        s = root_strengths(beta, bh, t, T, DTYPE)[:, None]
        # [rows, channels] @ [channels, columns] -> [rows, columns]
        error = v_tile.to(tl.float32) - tl.dot(k_reads, state, input_precision=config.precision)
        out = tl.dot(q_reads, state, input_precision=config.precision)
        error = (solved(error * s, tile_of_head, matrices, DTYPE, False, config) / s).to(DTYPE)
        if matrices.states is not None:
            store_rows(errors, error, place.b, place.h, t, column, T, d_hv)
        z = (error.to(tl.float32) * (s * s)).to(DTYPE)
        p = load_matrix(operands.scores, bh, t, r, T, ROWS)
        out = tl.dot(p, z, out, input_precision=config.precision)  # [rows, rows] @ [rows, columns]
        store_rows(o, out, place.b, place.h, t, column, T, d_hv)
        keep = tl.exp2(load_vector(operands.decays, tile_of_head, u, d_qk))[:, None]
        k_writes = load_matrix(operands.k_writes, bh, t, u, T, d_qk)
        # [channels, rows] @ [rows, columns] -> [channels, columns]
        acc = tl.dot(k_writes.T, z, acc * keep, input_precision=config.precision)
    store_matrix(matrices.after, acc, place.part, u, column, d_qk, d_hv)


@triton.jit
def kda_gradients(errors, beta, do, dv, dbeta, operands, matrices, sizes, config: tl.constexpr):
    """Write dV, parts of dbeta, and gradients of the states after tiles.

    Args:
        errors, do, dv: `rows.Rows`; dbeta: (B * H, blocks of d_hv, T) float32.
    """
    ROWS: tl.constexpr = config.rows
    CHANNELS: tl.constexpr = config.channels
    DTYPE: tl.constexpr = operands.scores.dtype.element_ty
    d_qk, d_hv, T = sizes.d_qk, sizes.d_hv, sizes.T
    place = place_of_walk(matrices, sizes, config)
    bh, column = place.bh, place.column
    u, r = tl.arange(0, CHANNELS), tl.arange(0, ROWS)
    acc = start_of_walk(place, matrices, sizes, config)
    for j in range(place.count):
        tile = place.count - 1 - j
        t, tile_of_head = tile * ROWS + r, bh.to(tl.int64) * place.count + tile
        k_writes = load_matrix(operands.k_writes, bh, t, u, T, d_qk)
        d_state = acc.to(DTYPE)
        store_matrix(matrices.states, d_state, tile_of_head, u, column, d_qk, d_hv)
        do_tile = load_rows(do, place.b, place.h, t, column, T, d_hv)
        s = root_strengths(beta, bh, t, T, DTYPE)[:, None]
        p = load_matrix(operands.scores, bh, t, r, T, ROWS)
        # [rows, channels] @ [channels, columns], and [rows, rows] @ [rows, columns] -> [rows, columns]
        dz = tl.dot(k_writes, d_state, input_precision=config.precision)
        dz = tl.dot(p.T, do_tile, dz, input_precision=config.precision)
        w = solved(dz * s, tile_of_head, matrices, DTYPE, True, config) / s
        error = load_rows(errors, place.b, place.h, t, column, T, d_hv)
        of_block = bh.to(tl.int64) * tl.cdiv(d_hv, config.columns) + place.block
        tl.store(dbeta + of_block * T + t, tl.sum(error.to(tl.float32) * w, 1), mask=t < T)
        dv_tile = (w * (s * s)).to(DTYPE)
        store_rows(dv, dv_tile, place.b, place.h, t, column, T, d_hv)
        q_reads = load_matrix(operands.q_reads, bh, t, u, T, d_qk)
        k_reads = load_matrix(operands.k_reads, bh, t, u, T, d_qk)
        # [channels, rows] @ [rows, columns] -> [channels, columns], twice
        acc *= tl.exp2(load_vector(operands.decays, tile_of_head, u, d_qk))[:, None]
        acc = tl.dot(q_reads.T, do_tile, acc, input_precision=config.precision)
        acc = tl.dot(k_reads.T, -dv_tile, acc, input_precision=config.precision)
    store_matrix(matrices.after, acc, place.part, u, column, d_qk, d_hv)


# --- On the host ------------------------------------------------------------------------------------------------------


def outputs(
    call: KdaCall, v: Tensor, beta: Tensor, operands: TileOperands, first: Tensor | None, *, keeps: bool
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return o like v (B, H, T, d_hv), the last state (B, H, d_qk, d_hv) float32, and what backward needs.

    That is R, like v and contiguous, and the states before tiles, (B * H * tiles, d_qk, d_hv).

    Args:
        beta: (B, H, T) float32.  first: the first state, float32, None for zero.
        keeps: there will be a backward.
    """
    o, errors = empty_rows(v), torch.empty_like(v, memory_format=torch.contiguous_format) if keeps else None
    matrices = _matrices(call, v, operands, first, states=keeps)
    tensors = rows(v), beta, rows(o), None if errors is None else rows(errors)
    _launch(call, kda_outputs, tensors, operands, matrices)
    return o, matrices.after, () if errors is None else (errors, matrices.states)


def gradients(
    call: KdaCall, errors: Tensor, beta: Tensor, do: Tensor, operands: TileOperands, last: Tensor | None
) -> tuple[Tensor, ...]:
    """Return dV like R, dbeta (B, H, T) float32, gradients of the states after tiles, and that of the first, float32.

    Args:
        last: the gradient of the last state, float32, None for zero.
    """
    matrices, dv = _matrices(call, errors, operands, last, states=True), torch.empty_like(errors)
    batch, heads, _, T, _, d_hv = call.plan.sizes
    blocks = cdiv(d_hv, call.plan.walk.columns)
    dbeta = errors.new_empty((batch, heads, blocks, T), dtype=torch.float32)
    tensors = rows(errors), beta, rows(do), rows(dv), dbeta
    _launch(call, kda_gradients, tensors, operands, matrices)
    return dv, dbeta.sum(2), matrices.states, matrices.after


def _matrices(
    call: KdaCall, v: Tensor, operands: TileOperands, before: Tensor | None, *, states: bool
) -> DeltaMatrices:
    batch, heads, _, _, d_qk, d_hv = call.plan.sizes
    of_tiles = v.new_empty((batch * heads * call.plan.tiles, d_qk, d_hv)) if states else None
    after = v.new_empty((batch, heads, d_qk, d_hv), dtype=torch.float32)
    return DeltaMatrices(operands.inverses, None, before, after, of_tiles)


def _launch(
    call: KdaCall, walk: Any, tensors: tuple[Any, ...], operands: TileOperands, matrices: DeltaMatrices
) -> None:
    tiles, (batch, heads, _, T, d_qk, d_hv) = call.plan.walk, call.plan.sizes
    enqueue(
        walk, batch * heads * cdiv(d_hv, tiles.columns),
        *tensors, operands, matrices, DeltaSizes(heads, 1, T, d_qk, d_hv, 1, call.scale, 1),
        config=DeltaConfig(
            matrices.before is not None, False, call.precision,
            tiles.rows, tiles.channels, tiles.columns, tiles.parts,
        ), num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
