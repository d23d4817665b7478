"""Torch operators from plain functions: a schema by their annotations, a fake for compilers, gradients by autograd.

This is what `torch.library.custom_op` does, at a third of its time on the host (110 us less for a forward and backward,
140 us for a decode step): operators are called with positional arguments only and return a tensor or a list. Where
nothing but autograd looks at operators, what is called is a plain function: torch's dispatcher takes 12 us a call.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

P = ParamSpec("P")
Q = ParamSpec("Q")
Outputs = TypeVar("Outputs")

HAS_TRITON = find_spec("triton") is not None
# Parts of torch without types of their own.
_library: Any = torch.library.Library("tflabench", "FRAGMENT")
_torch_library: Any = torch.library
_forward_mode: Any = forward_ad
_PLAIN = frozenset((Tensor, torch.nn.Parameter, int, float, bool, str, list, type(None)))
# Whether something looks at operators: modes (fakes, selective checkpoints), torch.func, torch.jit.trace, profilers.
_c: Any = torch._C  # pyright: ignore[reportPrivateUsage]
_LOOK: tuple[Callable[[], Any], ...] = (
    torch.compiler.is_compiling,
    _c._len_torch_dispatch_stack,
    _c._len_torch_function_stack,
    _c._are_functorch_transforms_active,
    _c._get_tracing_state,
    _c._autograd._profiler_enabled,
)
_below_autograd: Callable[[], AbstractContextManager[None]] = torch._C._AutoDispatchBelowAutograd  # pyright: ignore[reportPrivateUsage]


def has_numbers(x: Tensor) -> bool:
    """Return whether Python may read the numbers of x: no compiler, mode, transform or subclass stands between."""
    if torch.compiler.is_compiling() or type(x) not in _PLAIN:
        return False
    return not _c._len_torch_dispatch_stack() and not _c._are_functorch_transforms_active()


def constant_to_compilers(function: Callable[P, Outputs]) -> Callable[P, Outputs]:
    """Return `function`, marked so that torch.compile takes its result for a constant.

    `torch.compiler.assume_constant_result` sets the same mark, but imports all of Dynamo, which takes seconds.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


class Gradients(NamedTuple):
    """The derivative of an operator.

    Attributes:
        save: (ctx, inputs, output) -> None, keeps what `backward` needs.
        backward: (ctx, gradients of the output) -> gradients of the inputs, None where there is none.
    """

    save: Callable[..., None]
    backward: Callable[..., Any]


def without_gradients(why: str) -> Gradients:
    """Return gradients that raise RuntimeError(why); autograd would warn, or take the operator for a constant."""

    def save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    def refuse(ctx: Any, *grads: Any) -> None:
        raise RuntimeError(why)

    return Gradients(save_nothing, refuse)


FIRST_ORDER = without_gradients(
    "the kernels have no second derivatives: differentiate twice with implementation='reference'"
)


def _refuse_tangents(inputs: tuple[Any, ...]) -> None:
    """Raise RuntimeError for inputs of forward-mode autograd, which would otherwise lose their tangents silently."""
    for x in inputs:
        if isinstance(x, Tensor) and _forward_mode.unpack_dual(x).tangent is not None:
            raise RuntimeError(
                "the kernels have no forward-mode derivatives: take them with implementation='reference'"
            )


def run_on(*tensors: Tensor) -> bool:
    """Return whether operators that are written in Triton for any GPU run on these tensors; elsewhere PyTorch does."""
    return HAS_TRITON and all(x.is_cuda and x.dtype != torch.float64 for x in tensors)


class _Contexts(threading.local):
    """The devices that have their CUDA context in this thread, as far as it was seen to.

    A thread of autograd has none until PyTorch launches something there, and to make a descriptor of a tensor needs it.
    """

    def __init__(self) -> None:
        self.devices: set[torch.device] = set()


_contexts = _Contexts()


def on_its_device(
    function: Callable[Concatenate[Tensor, P], Outputs],
) -> Callable[Concatenate[Tensor, P], Outputs]:
    """Return `function` with the device of its first argument, a tensor, as the current one: Triton launches there."""

    @functools.wraps(function)
    def launching(x: Tensor, *others: P.args, **named: P.kwargs) -> Outputs:
        with torch.cuda.device_of(x):
            if x.is_cuda and x.device not in _contexts.devices:
                x.new_zeros(1)
                _contexts.devices.add(x.device)
            return function(x, *others, **named)

    return launching


def custom_op(
    name: str, gradients: Gradients, *, mutates: tuple[str, ...] = ()
) -> Callable[[Callable[..., Outputs]], Callable[..., Outputs]]:
    """Return a decorator that makes a function torch.ops.tflabench.<name> on every device, and a way to call it.

    The function takes a tensor, more of them, and numbers, annotated. It runs on the device of the first, and returns
    a Tensor or list[Tensor], none of them one of its inputs.

    Args:
        name: of the operator; `register_fake` for it is to follow.
        gradients: FIRST_ORDER for the operator of a backward pass.
        mutates: names of the tensors that it writes to.
    """

    def registered(function: Callable[..., Outputs]) -> Callable[..., Outputs]:
        schema = _torch_library.infer_schema(function, mutates_args=mutates)
        _library.define(name + schema)
        launching = on_its_device(function)
        _library.impl(name, launching, "CompositeExplicitAutograd")
        places = [place for place, argument in enumerate(inspect.signature(function).parameters) if argument in mutates]
        operator: Any = getattr(torch.ops.tflabench, name).default
        _library.impl(name, _differentiable(operator, gradients, places), "Autograd")
        in_eager_mode = _differentiable(launching, gradients, places)

        @functools.wraps(function)
        def called(*inputs: Any) -> Any:
            return (operator if _is_looked_at(inputs) else in_eager_mode)(*inputs)

        return called

    return registered


def _is_looked_at(inputs: tuple[Any, ...]) -> bool:
    """Return whether anything but autograd is to see an operator, such as a mode or a subclass of Tensor."""
    return any(look() for look in _LOOK) or not _PLAIN.issuperset(map(type, inputs))


def register_fake(name: str) -> Callable[[Callable[Q, Outputs]], Callable[Q, Outputs]]:
    """Return a decorator for the function that compilers run for the operator `name`, on tensors without data."""
    return _torch_library.register_fake(f"tflabench::{name}", lib=_library)


def _differentiable(operator: Callable[..., Any], gradients: Gradients, mutated: list[int]) -> Callable[..., Any]:
    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            with _below_autograd():
                output = operator(*inputs)
            gradients.save(ctx, inputs, output)
            return output if isinstance(output, Tensor) else tuple(output)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return gradients.backward(ctx, *grads)

    differentiable: Any = Differentiable

    def call(*inputs: Any) -> Any:
        for place in mutated:
            if inputs[place] is not None and not inputs[place].is_inference():  # which have no version
                torch.autograd.graph.increment_version(inputs[place])
        if _forward_mode._current_level >= 0:
            _refuse_tangents(inputs)
        if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
            output: Any = differentiable.apply(*inputs)
            return output if isinstance(output, Tensor) else list(output)
        with _below_autograd():
            return operator(*inputs)

    return call


def tuple_of(bounds: Sequence[int] | None) -> tuple[int, ...] | None:
    """Return the bounds of documents as kernels take them, of the list that an operator is given."""
    return None if bounds is None else tuple(bounds)
