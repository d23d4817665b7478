"""Before the walks: q and k with their decays, scores of tiles, and the inverses that solve for their errors.

With w_ij,c = exp(g_{j+1,c} + ... + g_{i,c}), a tile has

    P_ij = scale sum_c q_ic k_jc w_ij,c, j <= i        G_ij = sum_c k_ic k_jc w_ij,c, j < i

both by `gla.tiles`, where every factor is at most 1, whatever the gates. Forward, (I + G diag(beta))^-1 is written,
backward (I + diag(beta) G)^-1 (`delta.inverses`). One program a tile of one head.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.common.rows import rows, store_matrix
from tflabench.kernels.delta.inverses import inverse_of
from tflabench.kernels.gla.scores import Weighted, empty_weighted, weigh_tile

from .call import KdaCall


class TileOperands(NamedTuple):
    """Name what the kernel writes.

    Attributes:
        weighted: of q, and of k as it is written.
        reads: (B * H, T, d_qk), k exp(sum of g from the tile's first step): what k reads of the state before the tile.
        inverses: (B * H * tiles * parts, tile, tile), in the dtype of q, whose sum is the inverse.
    """

    weighted: Any
    reads: Any
    inverses: Any


@dataclass(frozen=True)
class OperandsConfig:
    """Tell what `tile_operands` is compiled for.

    Attributes:
        reverse: for the walk backward in time.
        tile, block, levels, reach: see `ScoresConfig` of gla.
        parts: see `WalkTiles` of delta.
        precision, of_inverse: input_precision of products with q and k, and of those that invert.
    """

    reverse: bool
    tile: int
    block: int
    levels: int
    reach: float
    parts: int
    precision: str
    of_inverse: str


@triton.jit(do_not_specialize=["heads"])
def tile_operands(q, k, g, beta, operands, scale, heads, T, d, config: tl.constexpr):
    """Write `TileOperands` of one tile of one head, of q, k, g, `rows.Rows`, and beta (B * H, T) float32."""
    TILE: tl.constexpr = config.tile
    PARTS: tl.constexpr = config.parts
    OF_INVERSE: tl.constexpr = config.of_inverse
    a = weigh_tile(q, k, g, operands.weighted, operands.reads, scale, heads, T, d, config)
    tiles = tl.cdiv(T, TILE)
    tile, bh = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    r = tl.arange(0, TILE)
    t = tile * TILE + r
    strength = tl.load(beta + bh.to(tl.int64) * T + t, mask=t < T, other=0.0)
    a = tl.where(r[:, None] > r[None, :], a * (strength[:, None] if config.reverse else strength[None, :]), 0.0)
    x = inverse_of(a, OF_INVERSE)
    matrix = bh * tiles + tile
    for part in tl.static_range(PARTS):
        rounded = x.to(operands.inverses.dtype.element_ty)
        store_matrix(operands.inverses, rounded, matrix * PARTS + part, r, r, TILE, TILE)
        x -= rounded.to(tl.float32)


def operands_of(call: KdaCall, q: Tensor, k: Tensor, g: Tensor, beta: Tensor, *, reverse: bool) -> TileOperands:
    """Return `TileOperands` of q, k and g (B, H, T, d_qk), and beta (B, H, T) float32."""
    plan = call.gla.plan
    heads, T, d, tile, parts = plan.batch * plan.heads, plan.T, plan.d_qk, plan.blocks.tile, call.walk.parts
    weighted: Weighted = empty_weighted(call.gla, q)
    operands = TileOperands(weighted, q.new_empty((heads, T, d)), q.new_empty((heads * plan.tiles * parts, tile, tile)))
    precision = call.gla.precision
    enqueue(
        tile_operands, heads * plan.tiles,
        *map(rows, (q, k, g)), beta, operands, call.gla.scale, plan.heads, T, d,
        config=OperandsConfig(
            reverse, tile, plan.blocks.channels, plan.levels, plan.reach, parts, precision,
            "tf32" if q.element_size() == 2 else precision,
        ),
        num_warps=8, num_stages=1,
    )  # fmt: skip
    return operands
