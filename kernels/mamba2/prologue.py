"""The bias of Mamba 2's step sizes, before its recurrence and in one pass over memory.

It is added in Triton where that runs, as a torch operator of its own; else in PyTorch.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from tflabench.kernels.common import operators
from tflabench.kernels.common.operators import FIRST_ORDER, Gradients


def add_bias(x: Tensor, bias: Tensor, *, head_axis: int, plain: bool = False) -> Tensor:
    """Return x + bias in float32 or wider.

    Args:
        x: (B, H, T), or (B, T, H) with `head_axis` 2.
        bias: (H,).
        plain: in PyTorch, which has derivatives of every kind.
    """
    if not plain and operators.run_on(x, bias):
        return _forward(x.transpose(1, head_axis), bias).transpose(1, head_axis)
    bias = bias.to(torch.promote_types(x.dtype, torch.float32))  # wide, it makes x wide too
    return x + (bias if head_axis == 2 else bias[:, None])


def _kernels() -> Any:
    return importlib.import_module(".prologue_kernel", __package__)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
    return tuple(_backward(dy, *ctx.saved_tensors))


@operators.custom_op("add_bias", Gradients(_save_for_backward, _gradients))
def _forward(x: Tensor, bias: Tensor) -> Tensor:
    return _kernels().forward(x, bias)


@operators.register_fake("add_bias")
def _fake_forward(x: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(x.shape, dtype=torch.float32)


@operators.custom_op("add_bias_backward", FIRST_ORDER)
def _backward(dy: Tensor, x: Tensor, bias: Tensor) -> list[Tensor]:
    return list(_kernels().backward(dy, x, bias))


@operators.register_fake("add_bias_backward")
def _fake_backward(dy: Tensor, x: Tensor, bias: Tensor) -> list[Tensor]:
    return [torch.empty_like(x), torch.empty_like(bias)]
