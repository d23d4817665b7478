"""Join what segments add to a state of zero, and their transitions, into the states that they start from."""

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
from tflabench.kernels.common.rows import load_matrix, store_matrix

COLUMNS = 16  # of a state in a program
INNER = 32  # of the channels that a product sums over


@triton.jit(do_not_specialize=["count"])
def join_states(
    of_each, transitions, edge, states, count, d_qk, d_hv,
    REVERSE: tl.constexpr, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """Write the states of all `count` segments of a head, some columns of them, see `joined`."""
    blocks = tl.cdiv(d_hv, COLUMNS)
    row = tl.program_id(0) // blocks
    u, i = tl.arange(0, CHANNELS), tl.arange(0, INNER)
    column = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    state = tl.zeros([CHANNELS, COLUMNS], tl.float32)
    if edge is not None:
        state = load_matrix(edge, row, u, column, d_qk, d_hv)
    for j in range(count):
        n = row * count + (count - 1 - j if REVERSE else j)
        store_matrix(states, state, n, u, column, d_qk, d_hv)
        tl.debug_barrier()  # the state is read again, by other threads
        state = load_matrix(of_each, n, u, column, d_qk, d_hv)
        for c in range(0, d_qk, INNER):
            if REVERSE:
                matrix = load_matrix(transitions, n, c + i, u, d_qk, d_qk).T
            else:
                matrix = load_matrix(transitions, n, u, c + i, d_qk, d_qk)
            before = load_matrix(states, n, c + i, column, d_qk, d_hv)
            # [channels, inner] @ [inner, columns]; three products of tf32 are as exact as one of float32
            state = tl.dot(matrix, before, state, input_precision="tf32x3")


def joined(of_each: Tensor, transitions: Tensor, edge: Tensor | None, *, reverse: bool) -> Tensor:
    """Return the states that segments start from, or if reversed the gradients of those that they end with.

    Args:
        of_each: what each segment adds to a state of zero, (B, H, segments, d_qk, d_hv) float32; what the last one in
            this direction adds is of no effect.
        transitions: what it makes of the state before it, (B, H, segments, d_qk, d_qk) float32.
        edge: the state before the first segment, or the gradient after the last, (B, H, d_qk, d_hv); None for zero.
    """
    states = torch.empty_like(of_each)
    batch, heads, count, d_qk, d_hv = of_each.shape
    enqueue(
        join_states, batch * heads * cdiv(d_hv, COLUMNS), of_each, transitions, edge, states, count, d_qk, d_hv,
        REVERSE=reverse, CHANNELS=max(16, next_power_of_2(d_qk)), COLUMNS=COLUMNS, INNER=INNER,
        num_warps=8, num_stages=2,
    )  # fmt: skip
    return states
