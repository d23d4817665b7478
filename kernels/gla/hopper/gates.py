"""Look at gates before all walks."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.common.rows import rows
from tflabench.kernels.gla.hopper_plan import LEAST_TOTAL
from tflabench.kernels.gla.tiles import load_gates

LEAST = tl.constexpr(LEAST_TOTAL)


@triton.jit(do_not_specialize=["heads", "tile"])
def look_at_tile(g, seen, closed, heads, tile, T, d):
    """Write to seen and closed (B * H,) whether a tile of g, `rows.Rows`, of a sequence of a head has closed."""
    bh = tl.program_id(0)
    log2 = load_gates(g, bh // heads, bh % heads, tile * 64 + tl.arange(0, 64), tl.arange(0, 128), T, d)
    has_closed = (tl.min(tl.sum(log2, 0), 0) <= LEAST).to(tl.int32)
    tl.store(seen + bh, has_closed)
    tl.store(closed + bh, has_closed)


def sample_gates(g: Tensor) -> tuple[Tensor, Tensor]:
    """Return which sequences of a head have closed (`walk`) in their middle tile, (B * H,) int32, twice.

    Where all gates close this is seen here, and no walk is in vain.
    """
    B, H, T, d = g.shape
    seen, closed = (torch.empty(B * H, dtype=torch.int32, device=g.device) for _ in range(2))
    enqueue(look_at_tile, B * H, rows(g), seen, closed, H, T // 128, T, d, num_warps=4)
    return seen, closed
