"""Base-2 exponents, summed within tiles of 64 steps: all that the kernels here know of the gates.

Let b_i be the sum of log2 f from the tile's first step to i. With

    x_i = b_i + log2 scale      y_j = log2 i_j - b_j      g = b of the tile's last step

the weight of step j in step i of the same tile is 2^(x_i + y_j). The state before the tile enters step i with 2^x_i,
step j enters the state after the tile with 2^(y_j + g), and that state keeps 2^g of the one before.

The log gates are relative to the stabiliser and never positive. So a forget gate below 2**-160, -inf too, may count as
2**-160: every weight it is part of is 0 in float32, while b stays finite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.scalar import gates
from tflabench.kernels.scalar.gates import Exponents
from tflabench.kernels.scalar.plan.hopper_shapes import TILE
from tflabench.kernels.types import Gate


def exponents(
    f: Tensor, i: Tensor | None, gate: Gate, shape: tuple[int, int, int], m_0: Tensor | None, scale: float
) -> tuple[Tensor | None, Tensor | None, Exponents]:
    """Return log f relative to m and m, (B, H, T) float32 or None without a stabiliser, and the exponents."""
    B, H, T = shape
    tiles = cdiv(T, TILE)
    x = torch.empty((B, H, tiles * TILE), dtype=torch.float32, device=f.device)
    e = Exponents(x, torch.empty_like(x), x.new_empty((B, H, tiles)))
    return *gates.exponents(f, i, gate, shape, m_0, e, scale), e
