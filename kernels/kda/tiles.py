"""Before the walks: q and k with their decays, scores of tiles, and the inverses that solve for their errors.

With w_ij,c = exp(g_{j+1,c} + ... + g_{i,c}), a tile has

    P_ij = scale sum_c q_ic k_jc w_ij,c, j <= i        G_ij = sum_c k_ic k_jc w_ij,c, j < i

both by the factors of `decays`, and with s = sqrt(beta) the inverse X = (I + diag(s) G diag(s))^-1 (`delta.inverses`).
One program a tile of one head.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
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
from tflabench.kernels.common.rows import load_rows, rows, store_matrix
from tflabench.kernels.delta.inverses import PRECISIONS, inverse_of
from tflabench.kernels.gla.tiles import load_gates

from .decays import as_blocks, as_tile, decays_in_runs, decays_of, pair_decays
from .plan import KdaCall


class TileOperands(NamedTuple):
    """Name what the kernel writes, in the dtype of q but for the decays.

    Attributes:
        q_reads, k_reads: (B * H, T, d_qk), scale Q exp(b) and K exp(b): what reads the state before the tile.
        k_writes: (B * H, T, d_qk), K exp(b_63 - b): what is added to the state after it.
        decays: (B * H, tiles, d_qk) float32, log2 of the decay over a tile.
        scores: (B * H, T, tile), P, and 0 for j > i.
        inverses: (B * H * tiles * parts, tile, tile), whose sum is the inverse.
    """

    q_reads: Any
    k_reads: Any
    k_writes: Any
    decays: Any
    scores: Any
    inverses: Any


@dataclass(frozen=True)
class KdaTileConfig:
    """Tell what the kernels of tiles are compiled for.

    Attributes:
        tile, channels, steps, floor: see `KdaPlan`.
        levels: of pairs (`pair_decays`).
        parts: see `WalkTiles` of delta.
        precision: input_precision of products of float32.
    """

    tile: int
    channels: int
    steps: int
    floor: float
    levels: int
    parts: int
    precision: str

    @staticmethod
    def of(call: KdaCall, dtype: torch.dtype) -> KdaTileConfig:
        """Return that of a call with tensors of a dtype."""
        plan = call.plan
        return KdaTileConfig(
            plan.tile, plan.channels, plan.steps, plan.floor, (plan.tile // plan.steps).bit_length(),
            plan.walk.parts, PRECISIONS.get(dtype, call.precision),
        )  # fmt: skip


@triton.jit
def root_strengths(beta, bh, t, T, dtype: tl.constexpr):
    """Return sqrt(beta) of steps t of a head, beta (B * H, T) float32; at least what a quotient by it can do with."""
    least: tl.constexpr = 2.0**-8 if dtype == tl.float16 else 2.0**-15
    strength = tl.load(beta + bh.to(tl.int64) * T + t, mask=t < T, other=0.0)
    return tl.maximum(tl.sqrt(strength), least)


@triton.jit(do_not_specialize=["heads"])
def tile_operands(q, k, g, beta, operands, scale, heads, T, d, config: tl.constexpr):
    """Write `TileOperands` of one tile of one head, of q, k, g, `rows.Rows`, and beta (B * H, T) float32."""
    TILE: tl.constexpr = config.tile
    CHANNELS: tl.constexpr = config.channels
    STEPS: tl.constexpr = config.steps
    PARTS: tl.constexpr = config.parts
    PRECISION: tl.constexpr = config.precision
    dtype: tl.constexpr = q.data.dtype.element_ty
    wide: tl.constexpr = tl.float32 if dtype == tl.float16 else dtype  # float16 has not the range of weights
    tiles = tl.cdiv(T, TILE)
    tile, bh = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    b, h = bh // heads, bh % heads
    r = tl.arange(0, TILE)
    t = tile * TILE + r
    p = tl.zeros([TILE, TILE], tl.float32)
    a = tl.zeros([TILE, TILE], tl.float32)
    diagonal = tl.zeros([TILE], tl.float32)
    for start in range(0, d, CHANNELS):
        c = start + tl.arange(0, CHANNELS)
        log2 = load_gates(g, b, h, t, c, T, d)
        q_tile = load_rows(q, b, h, t, c, T, d).to(tl.float32)
        k_tile = load_rows(k, b, h, t, c, T, d).to(tl.float32)
        diagonal += tl.sum(q_tile * k_tile, 1)
        decays = decays_of(log2, c < d, config)
        since, until = decays_in_runs(decays, TILE // STEPS)
        reading = as_tile(tl.exp2(since))
        store_matrix(operands.q_reads, q_tile * (reading * scale), bh, t, c, T, d)
        store_matrix(operands.k_reads, k_tile * reading, bh, t, c, T, d)
        store_matrix(operands.k_writes, k_tile * as_tile(tl.exp2(until)), bh, t, c, T, d)
        tl.store(operands.decays + (bh.to(tl.int64) * tiles + tile) * d + c, tl.sum(decays.totals, 0), mask=c < d)
        q_tile, k_tile = as_blocks(q_tile, STEPS), as_blocks(k_tile, STEPS)
        for level in range(config.levels):
            since, until, pairs = pair_decays(decays, level, config)
            up = tl.exp2(since)
            earlier = as_tile((k_tile * tl.exp2(until)).to(wide))
            # [tile, channels] @ [channels, tile] -> [tile, tile]
            part = tl.dot(as_tile((q_tile * up).to(wide)), earlier.T, input_precision=PRECISION)
            p += tl.where(pairs, part, 0.0)
            part = tl.dot(as_tile((k_tile * up).to(wide)), earlier.T, input_precision=PRECISION)
            a += tl.where(pairs, part, 0.0)
    p = tl.where(r[:, None] == r[None, :], diagonal[:, None], p)
    store_matrix(operands.scores, p * scale, bh, t, r, T, TILE)
    s = root_strengths(beta, bh, t, T, dtype)
    x = inverse_of(a * s[:, None] * s[None, :], PRECISION)
    for part in tl.static_range(PARTS):
        rounded = x.to(dtype)
        store_matrix(operands.inverses, rounded, (bh * tiles + tile) * PARTS + part, r, r, TILE, TILE)
        x -= rounded.to(tl.float32)


def empty_operands(q: Tensor, heads: int, T: int, tile: int, parts: int) -> TileOperands:
    """Return `TileOperands` of so many sequences of a head, uninitialised, in the dtype of q."""
    d, tiles = q.shape[-1], cdiv(T, tile)
    q_reads, k_reads, k_writes = (q.new_empty((heads, T, d)) for _ in range(3))
    decays = q.new_empty((heads, tiles, d), dtype=torch.float32)
    scores, inverses = q.new_empty((heads, T, tile)), q.new_empty((heads * tiles * parts, tile, tile))
    return TileOperands(q_reads, k_reads, k_writes, decays, scores, inverses)


def operands_of(call: KdaCall, q: Tensor, k: Tensor, g: Tensor, beta: Tensor) -> TileOperands:
    """Return `TileOperands` of q, k and g (B, H, T, d_qk), and beta (B, H, T) float32."""
    plan, sizes = call.plan, call.plan.sizes
    operands = empty_operands(q, sizes.rows, sizes.steps, plan.tile, plan.walk.parts)
    enqueue(
        tile_operands, sizes.rows * plan.tiles,
        *map(rows, (q, k, g)), beta, operands, call.scale, sizes.heads, sizes.steps, sizes.d_qk,
        config=KdaTileConfig.of(call, q.dtype), num_warps=8, num_stages=1,
    )  # fmt: skip
    return operands
