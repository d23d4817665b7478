"""Join what segments add to a state of zero, and the decays of their channels, into the states that they start from."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.launching import enqueue

ELEMENTS = 1024  # of a state in a program


@triton.jit(do_not_specialize=["count"])
def join_segments(
    of_each, decays, edge, states, last, count, d_qk, d_hv, REVERSE: tl.constexpr, ELEMENTS: tl.constexpr
):
    """Write some elements of the states of all `count` segments of a head, and of the last, see `joined`."""
    size = d_qk * d_hv
    blocks = tl.cdiv(size, ELEMENTS)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    i = tl.program_id(0) % blocks * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = i < size
    state = tl.zeros([ELEMENTS], tl.float32)
    if edge is not None:
        state = tl.load(edge + row * size + i, mask=inside, other=0.0)
    for j in range(count):
        n = row * count + (count - 1 - j if REVERSE else j)
        tl.store(states + n * size + i, state, mask=inside)
        decay = tl.load(decays + n * d_qk + i // d_hv, mask=inside, other=0.0)
        state = state * decay + tl.load(of_each + n * size + i, mask=inside, other=0.0)
    if last is not None:
        tl.store(last + row * size + i, state, mask=inside)


def joined(
    of_each: Tensor, decays: Tensor, edge: Tensor | None, last: Tensor | None = None, *, reverse: bool
) -> Tensor:
    """Return the states that segments start from, or if reversed the gradients of those that they end with.

    Args:
        of_each: what each segment adds to a state of zero, (B, H, segments, d_qk, d_hv) float32.
        decays: by what it multiplies the channels of the state before it, (B, H, segments, d_qk) float32.
        edge: the state before the first segment, or the gradient after the last, (B, H, d_qk, d_hv); None for zero.
        last: written, the state after the last segment in this direction, like edge.
    """
    states = torch.empty_like(of_each)
    batch, heads, count, d_qk, d_hv = of_each.shape
    enqueue(
        join_segments, batch * heads * cdiv(d_qk * d_hv, ELEMENTS), of_each, decays, edge, states, last, count,
        d_qk, d_hv, REVERSE=reverse, ELEMENTS=ELEMENTS, num_warps=4,
    )  # fmt: skip
    return states
