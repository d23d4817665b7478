"""Add up the gradients of heads that share one of q and k, in one pass over memory."""

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


@triton.jit(do_not_specialize=["heads", "sharing", "blocks"])
def add_heads(x, out, heads, sharing, T, d, blocks, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Write the sums of ROWS rows of `sharing` heads of x side by side; x and out are `Rows`."""
    block, bh = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    b, h = bh // heads, bh % heads
    t, c = block * ROWS + tl.arange(0, ROWS), tl.arange(0, COLS)
    acc = tl.zeros([ROWS, COLS], tl.float32)
    for j in range(sharing):
        acc += load_rows(x, b, h * sharing + j, t, c, T, d).to(tl.float32)
    store_rows(out, acc, b, h, t, c, T, d)


def added(x: Tensor, like: Tensor) -> Tensor:
    """Return the sums of x (B, a multiple of G, T, d) over heads that share one of `like` (B, G, T, d), contiguous.

    That is x itself where no head is shared.
    """
    if x.shape == like.shape:
        return x
    out = torch.empty_like(like, memory_format=torch.contiguous_format)
    batch, heads, T, d = like.shape
    cols = next_power_of_2(d)
    block = max(1, min(ELEMENTS // cols, next_power_of_2(T)))
    blocks = cdiv(T, block)
    enqueue(
        add_heads, batch * heads * blocks,
        rows(x), rows(out), heads, x.shape[1] // heads, T, d, blocks, ROWS=block, COLS=cols,
    )  # fmt: skip
    return out
