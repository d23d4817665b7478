"""The Triton kernel behind `normalize`: rows divided by their norms, or the gradient of that."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.common.cover import cdiv, next_power_of_2
from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.common.rows import load_rows, rows, store_rows

ELEMENTS = 4096  # of a program


@triton.jit(do_not_specialize=["heads", "blocks"])
def normalize_rows(
    x, dy, out, heads, T, d, blocks, epsilon, BACKWARD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr
):
    """Write x / |x| or, for BACKWARD, the gradient of x, of ROWS rows; x, dy, out are `rows.Rows`."""
    block, bh = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    b, h = bh // heads, bh % heads
    t, c = block * ROWS + tl.arange(0, ROWS), tl.arange(0, COLS)
    value = load_rows(x, b, h, t, c, T, d).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(value * value, 1) + epsilon)[:, None]
    y = value * inverse
    if BACKWARD:
        given = load_rows(dy, b, h, t, c, T, d).to(tl.float32)
        y = inverse * (given - y * tl.sum(given * y, 1)[:, None])
    store_rows(out, y, b, h, t, c, T, d)


def normalize(x: Tensor, dy: Tensor | None, epsilon: float) -> Tensor:
    """Return x (.., .., .., d) with rows divided by sqrt(sum of squares + epsilon), or given dy the gradient of x.

    It is made as `torch.empty_like(x)`.
    """
    out = torch.empty_like(x)
    written = out if out.stride(-1) == 1 else torch.empty_like(x, memory_format=torch.contiguous_format)
    batch, heads, T, d = x.shape
    cols = next_power_of_2(d)
    block = max(1, min(ELEMENTS // cols, next_power_of_2(T)))
    blocks = cdiv(T, block)
    enqueue(
        normalize_rows, batch * heads * blocks,
        rows(x), None if dy is None else rows(dy), rows(written), heads, T, d, blocks, epsilon,
        BACKWARD=dy is not None, ROWS=block, COLS=cols,
    )  # fmt: skip
    return out if written is out else out.copy_(written)
