"""Add up what several kernels give of a gradient, and the heads that share it, in one pass over memory."""

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
def add_rows(parts, sharing, out, heads, T, d, blocks, PARTS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Write the sums of ROWS rows of all parts and, of part n, of `sharing[n]` heads side by side; all are `Rows`."""
    block, bh = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    b, h = bh // heads, bh % heads
    t, c = block * ROWS + tl.arange(0, ROWS), tl.arange(0, COLS)
    acc = tl.zeros([ROWS, COLS], tl.float32)
    for n in tl.static_range(PARTS):
        for j in range(sharing[n]):
            acc += load_rows(parts[n], b, h * sharing[n] + j, t, c, T, d).to(tl.float32)
    store_rows(out, acc, b, h, t, c, T, d)


def added(parts: tuple[Tensor, ...], like: Tensor) -> Tensor:
    """Return the sum of parts (B, a multiple of G, T, d) over parts and heads, like `like` (B, G, T, d), contiguous."""
    out = torch.empty_like(like, memory_format=torch.contiguous_format)
    batch, heads, T, d = like.shape
    cols = next_power_of_2(d)
    block = max(1, min(ELEMENTS // cols, next_power_of_2(T)))
    blocks = cdiv(T, block)
    enqueue(
        add_rows, batch * heads * blocks,
        tuple(map(rows, parts)), tuple(x.shape[1] // heads for x in parts), rows(out), heads, T, d, blocks,
        PARTS=len(parts), ROWS=block, COLS=cols,
    )  # fmt: skip
    return out
