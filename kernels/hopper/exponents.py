"""What a walk needs of the gates: base-2 exponents, summed within tiles of 64 steps.

With b_i the sum of log f from the tile's first step to i, the weight of step j in step i of the same tile is
exp(b_i - b_j + log i_j), so with

    x_i = b_i + log scale      y_j = log i_j - b_j      g = b of the tile's last step

it is exp2(x_i + y_j); the state before the tile enters step i with exp2(x_i), step j enters the state after the tile
with exp2(y_j + g), and that state keeps exp2(g) of the one before. The log gates come from `kernels.gates.log_gates`,
relative to the stabiliser and never positive; hence a forget gate below 2**-160, -inf too, may count as 2**-160: every
weight it is part of is 0 in float32, while b stays finite.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.gates import LogGates

TILE = 64
LOG2_E = tl.constexpr(1.4426950408889634)
SMALLEST = tl.constexpr(-160.0)


class Exponents(NamedTuple):
    """Base-2 exponents, float32; x and y (B, H, tiles * 64) with steps beyond T weightless, g (B, H, tiles)."""

    x: Tensor
    y: Tensor
    g: Tensor


@triton.jit
def _sum_tiles(
    log_f, log_i, m, x, y, g, log2_scale, T, tiles, groups,
    WITH_M: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) // groups).to(tl.int64)
    tile = (tl.program_id(0) % groups) * TILES + tl.arange(0, TILES)
    t = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
    f = tl.load(log_f + row * T + t, mask=t < T, other=0.0) * LOG2_E
    i = tl.load(log_i + row * T + t, mask=t < T, other=float("-inf")) * LOG2_E
    f = tl.where(f < SMALLEST, SMALLEST, f)  # not a maximum: NaN is to pass
    b = tl.cumsum(f, 1)
    valid = (tile < tiles)[:, None] & (t >= 0)
    b_x = b + log2_scale
    if WITH_M:
        b_x += tl.load(m + row * T + t, mask=t < T, other=0.0) * LOG2_E
    tl.store(x + row * tiles * TILE + t, b_x, mask=valid)
    tl.store(y + row * tiles * TILE + t, i - b, mask=valid)
    tl.store(g + row * tiles + tile, tl.sum(f, 1), mask=tile < tiles)


def exponents(gates: LogGates, scale: float, *, unstabilise: bool) -> Exponents:
    """Exponents of every step and tile.

    Args:
        gates: (B, H, T).
        scale: of q, not negative.
        unstabilise: weights without the stabiliser, exp(m_i) times as large: for a gate that has one but no normaliser.
    """
    B, H, T = gates.log_f.shape
    tiles = triton.cdiv(T, TILE)
    x, y = (torch.empty((B, H, tiles * TILE), dtype=torch.float32, device=gates.log_f.device) for _ in range(2))
    g = torch.empty((B, H, tiles), dtype=torch.float32, device=gates.log_f.device)
    per_program = min(16, triton.next_power_of_2(tiles))
    groups = triton.cdiv(tiles, per_program)
    log2_scale = math.log2(scale) if scale > 0 else -math.inf
    kernel: Any = _sum_tiles
    kernel[(B * H * groups,)](
        gates.log_f, gates.log_i, gates.m if unstabilise else x, x, y, g, log2_scale, T, tiles, groups,
        WITH_M=unstabilise, TILES=per_program, TILE=TILE,
    )  # fmt: skip
    return Exponents(x, y, g)
