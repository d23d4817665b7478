"""Queries and keys divided by their norms, in one pass over memory forward and one backward.

In Triton where that runs, as a torch operator of its own; else in PyTorch.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from tflabench.kernels.common import operators
from tflabench.kernels.common.operators import FIRST_ORDER, Gradients

EPSILON = 1e-6


def l2_normalized(x: Tensor, *, plain: bool = False) -> Tensor:
    """Return x / sqrt(sum of squares over the last axis + EPSILON), in the dtype of x.

    Args:
        x: (..., d), in three or four axes where it is to run in Triton.
        plain: in PyTorch, which has derivatives of every kind.
    """
    if not plain and x.dim() in (3, 4) and operators.run_on(x):
        return _forward(x) if x.dim() == 4 else _forward(x[:, :, None])[:, :, 0]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * (wide.square().sum(-1, keepdim=True) + EPSILON).rsqrt()).to(x.dtype)


def _kernels() -> Any:
    return importlib.import_module(".normalize_kernel", __package__)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, dy: Tensor) -> Tensor:
    return _backward(dy, *ctx.saved_tensors)


@operators.custom_op("l2_normalize", Gradients(_save_for_backward, _gradients))
def _forward(x: Tensor) -> Tensor:
    return _kernels().normalize(x, None, EPSILON)


@operators.register_fake("l2_normalize")
def _fake_forward(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@operators.custom_op("l2_normalize_backward", FIRST_ORDER)
def _backward(dy: Tensor, x: Tensor) -> Tensor:
    return _kernels().normalize(x, dy, EPSILON)


@operators.register_fake("l2_normalize_backward")
def _fake_backward(dy: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(x)
