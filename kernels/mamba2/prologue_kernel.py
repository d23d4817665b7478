"""x + bias in float32 and its gradients, one pass over memory each (see `kernels.mamba2.prologue`)."""

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

TILE = 2048  # elements of one program


@triton.jit
def add_bias(
    x, x_b, x_h, x_t, bias, y, sums, heads, T, BACKWARD: tl.constexpr, STEPS: tl.constexpr, HEADS: tl.constexpr
):  # fmt: skip
    """Write y = x + bias, or backward x = y, for STEPS steps of HEADS heads.

    Args:
        x: (B, heads, T), any strides.
        y: (B, heads, T) float32, contiguous.
        sums: (B * blocks of steps, heads) float32, written backward: sums of y over the steps.
    """
    steps, blocks = tl.cdiv(T, STEPS), tl.cdiv(heads, HEADS)
    part = tl.program_id(0) // blocks
    b = (part // steps).to(tl.int64)
    h = (tl.program_id(0) % blocks * HEADS + tl.arange(0, HEADS)).to(tl.int64)
    t = part % steps * STEPS + tl.arange(0, STEPS)
    mask = (t < T)[:, None] & (h < heads)[None, :]
    # One of the two has its heads side by side in memory, the other its steps: the tile is turned on the way.
    x_tile = x + b * x_b + t[:, None].to(tl.int64) * x_t + h[None, :] * x_h
    y_tile = y + (b * heads + h[None, :]) * T + t[:, None]
    if BACKWARD:
        grad = tl.load(y_tile, mask=mask, other=0.0).to(tl.float32)
        tl.store(x_tile, grad.to(x.dtype.element_ty), mask=mask)
        tl.store(sums + part * heads + h, tl.sum(grad, 0), mask=h < heads)
    else:
        weight = tl.load(bias + h, mask=h < heads, other=0.0).to(tl.float32)
        tl.store(y_tile, tl.load(x_tile, mask=mask, other=0.0).to(tl.float32) + weight[None, :], mask=mask)


def forward(x: Tensor, bias: Tensor) -> Tensor:
    """Return x (B, H, T) + bias (H,), float32, contiguous."""
    y = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    _launch(x, bias.contiguous(), y, None)
    return y


def backward(dy: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return dx like x and dbias like bias, of dy (B, H, T)."""
    dx = torch.empty_like(x)
    sums = torch.empty((x.shape[0] * cdiv(x.shape[2], _tile(x)[0]), x.shape[1]), dtype=torch.float32, device=x.device)
    _launch(dx, None, dy.contiguous(), sums)
    return dx, sums.sum(0).to(bias.dtype)


def _tile(x: Tensor) -> tuple[int, int]:
    """Return steps and heads of a program."""
    heads = min(64, next_power_of_2(x.shape[1]))
    return TILE // heads, heads


def _launch(x: Tensor, bias: Tensor | None, y: Tensor, sums: Tensor | None) -> None:
    B, H, T = x.shape
    steps, heads = _tile(x)
    enqueue(
        add_bias, B * cdiv(T, steps) * cdiv(H, heads),
        x, *x.stride(), bias, y, sums, H, T, BACKWARD=sums is not None, STEPS=steps, HEADS=heads,
    )  # fmt: skip
