"""Mamba 2's skip connection and output gate, behind its recurrence and in one pass over memory.

    y = (h + D x) * silu(z)

They run in Triton where that runs, as a torch operator of their own; else in PyTorch.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from tflabench.kernels.common import operators
from tflabench.kernels.common.operators import FIRST_ORDER, Gradients


def skip_and_gate(
    h: Tensor, x: Tensor, D: Tensor | None, z: Tensor | None, *, head_axis: int, plain: bool = False
) -> Tensor:
    """Return (h + D x) * silu(z), computed in float32 or wider, in the dtype of h; h itself without D and z.

    Args:
        h, x, z: of one shape (B, H, T, d), or (B, T, H, d) with `head_axis` 2; z may be None.
        D: (H,) or (H, d), or None.
        plain: in PyTorch, which has derivatives of every kind.
    """
    if D is None and z is None:
        return h
    if not plain and operators.run_on(h):
        h, x = h.transpose(1, head_axis), x.to(h.dtype).transpose(1, head_axis)
        z = None if z is None else z.transpose(1, head_axis)
        return _forward(h, x, D, z).transpose(1, head_axis)
    y = h.to(torch.promote_types(h.dtype, torch.float32))
    if D is not None:
        weight = D if D.dim() == 2 else D[:, None]
        y = y + (weight if head_axis == 2 else weight[:, None]) * x
    if z is not None:
        y = y * silu(z.to(y.dtype))
    return y.to(h.dtype)


def skip_gradients(dh: Tensor, x: Tensor, D: Tensor) -> list[Tensor]:
    """Return D dh, what the skip connection adds to dx, and dD. For operators, which autograd does not look into."""
    if operators.run_on(x):
        return _backward(dh, None, x, D, None)
    work = torch.promote_types(x.dtype, torch.float32)
    weight = D if D.dim() == 2 else D[:, None]
    dots = (dh.to(work) * x).sum((0, 2) if D.dim() == 2 else (0, 2, 3))
    return [(weight[:, None] * dh.to(work)).to(x.dtype), dots.to(D.dtype)]


def _kernels() -> Any:
    return importlib.import_module(".epilogue_kernel", __package__)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    h, x, D, z = inputs
    ctx.save_for_backward(None if z is None else h, x, D, z)


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    h, x, D, z = ctx.saved_tensors
    grads = iter(_backward(dy, h, x, D, z))
    dx, dD = (next(grads), next(grads)) if D is not None else (None, None)
    dh, dz = (next(grads), next(grads)) if z is not None else (dy, None)
    return dh, dx, dD, dz


@operators.custom_op("skip_and_gate", Gradients(_save_for_backward, _gradients))
def _forward(h: Tensor, x: Tensor, D: Tensor | None, z: Tensor | None) -> Tensor:
    return _kernels().forward(h, x, D, z)


@operators.register_fake("skip_and_gate")
def _fake_forward(h: Tensor, *others: Tensor | None) -> Tensor:
    return torch.empty_like(h)


@operators.custom_op("skip_and_gate_backward", FIRST_ORDER)
def _backward(dy: Tensor, h: Tensor | None, x: Tensor, D: Tensor | None, z: Tensor | None) -> list[Tensor]:
    """Return dx and dD with D, then dh and dz with z; without z h is None and dh is dy."""
    return [g for g in _kernels().backward(dy, h, x, D, z) if g is not None]


@operators.register_fake("skip_and_gate_backward")
def _fake_backward(dy: Tensor, h: Tensor | None, x: Tensor, D: Tensor | None, z: Tensor | None) -> list[Tensor]:
    return [torch.empty_like(y) for y in (*((x, D) if D is not None else ()), h, z) if y is not None]
