"""Torch operators from plain functions: a schema by their annotations, a fake for compilers, gradients by autograd.

What `torch.library.custom_op` does, at a third of its time on the host (110 us less for a forward and backward, 140 us
for a decode step): operators are called with positional arguments only and return a tensor or a list.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

_library = torch.library.Library("tflabench", "FRAGMENT")
HAS_TRITON = find_spec("triton") is not None


class Gradients(NamedTuple):
    """Attributes:
    save: (ctx, inputs, output) -> None, what `backward` needs.
    backward: (ctx, gradients of the output) -> those of the inputs, None where there is none.
    """

    save: Callable[..., None]
    backward: Callable[..., Any]


def without_gradients(why: str) -> Gradients:
    """Of an operator that autograd would otherwise warn of and take for a constant."""

    def refuse(ctx: Any, *grads: Any) -> None:
        raise RuntimeError(why)

    return Gradients(lambda ctx, inputs, output: None, refuse)


FIRST_ORDER = without_gradients(
    "the kernels have no second derivatives: differentiate twice with implementation='reference'"
)


def _refuse_tangents(inputs: tuple[Any, ...]) -> None:
    """What autograd would otherwise leave out without a word."""
    for x in inputs:
        if isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None:
            raise RuntimeError(
                "the kernels have no forward-mode derivatives: take them with implementation='reference'"
            )


def run_on(*tensors: Tensor) -> bool:
    """Whether operators that are kernels in Triton, whatever the GPU, run on these tensors; there is PyTorch too."""
    return HAS_TRITON and all(x.is_cuda and x.dtype != torch.float64 for x in tensors)


def on_its_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with the device of its first argument, a tensor, as the current one: where Triton launches."""

    @functools.wraps(function)
    def launching(x: Tensor, *others: Any, **named: Any) -> Any:
        with torch.cuda.device_of(x):
            return function(x, *others, **named)

    return launching


def define(
    name: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
    gradients: Gradients,
    mutates: tuple[str, ...] = (),
) -> None:
    """torch.ops.tflabench.<name>, on every device.

    Args:
        function: of a tensor and more of them and numbers, annotated; runs on the device of the first; returns Tensor
            or list[Tensor], none of them one of its inputs.
        fake: the same for tensors without data.
        gradients: FIRST_ORDER for the operator of a backward pass.
        mutates: names of the tensors that it writes to.
    """
    schema = torch.library.infer_schema(function, mutates_args=mutates)
    _library.define(name + schema)
    _library.impl(name, on_its_device(function), "CompositeExplicitAutograd")
    torch.library.register_fake(f"tflabench::{name}", fake, lib=_library)
    places = [place for place, argument in enumerate(inspect.signature(function).parameters) if argument in mutates]
    operator = getattr(torch.ops.tflabench, name).default
    _library.impl(name, _differentiable(operator, gradients, places), "Autograd")


def _differentiable(operator: Callable[..., Any], gradients: Gradients, mutated: list[int]) -> Callable[..., Any]:
    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                output = operator(*inputs)
            gradients.save(ctx, inputs, output)
            return output if isinstance(output, Tensor) else tuple(output)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return gradients.backward(ctx, *grads)

    def call(*inputs: Any) -> Any:
        for place in mutated:
            if inputs[place] is not None:
                torch.autograd.graph.increment_version(inputs[place])
        if forward_ad._current_level >= 0:
            _refuse_tangents(inputs)
        if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
            output: Any = Differentiable.apply(*inputs)
            return output if isinstance(output, Tensor) else list(output)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*inputs)

    return call
