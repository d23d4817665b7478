"""What a walk needs of the gates: base-2 exponents, summed within tiles of 64 steps.

With b_i the sum of log f from the tile's first step to i, the weight of step j in step i of the same tile is
exp(b_i - b_j + log i_j), so with

    x_i = b_i + log scale      y_j = log i_j - b_j      g = b of the tile's last step

it is exp2(x_i + y_j); the state before the tile enters step i with exp2(x_i), step j enters the state after the tile
with exp2(y_j + g), and that state keeps exp2(g) of the one before. The log gates are relative to the stabiliser and
never positive; hence a forget gate below 2**-160, -inf too, may count as 2**-160: every weight it is part of is 0 in
float32, while b stays finite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tflabench.kernels import gates
from tflabench.kernels.cover import cdiv
from tflabench.kernels.gates import Exponents
from tflabench.kernels.types import Gate

from .shapes import TILE


def exponents(
    f: Tensor, i: Tensor | None, gate: Gate, shape: tuple[int, int, int], m_0: Tensor | None, scale: float
) -> tuple[Tensor | None, Tensor | None, Exponents]:
    """log f relative to m, and m, of a gate that is stabilised, and the exponents of every step and tile.

    The arguments are those of `gates.exponents`.
    """
    B, H, T = shape
    tiles = cdiv(T, TILE)
    x, y = (torch.empty((B, H, tiles * TILE), dtype=torch.float32, device=f.device) for _ in range(2))
    e = Exponents(x, y, torch.empty((B, H, tiles), dtype=torch.float32, device=f.device))
    return *gates.exponents(f, i, gate, shape, m_0, e, scale), e
