"""The GLA kernels as one torch operator and its backward, as `chunkwise_operator` has those of scalar gates."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tflabench.kernels.common import operators
from tflabench.kernels.common.operators import FIRST_ORDER, Gradients, tuple_of
from tflabench.kernels.gla.plan import default_chunk_size

from .call import Arguments

IMPLEMENTATIONS = ("tfla",)


def kernels_of(name: str) -> Any:
    """Return the module of an implementation, which imports triton."""
    return importlib.import_module({"tfla": ".chunkwise"}[name], __package__)


def _chunk_size(q: Tensor, v: Tensor, given: int | None) -> int:
    return int(default_chunk_size(q.shape[-1], v.shape[-1], q.shape[2]) if given is None else given)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.set_materialize_grads(False)  # a last state that nothing depends on has no gradient, not one of zeros
    *tensors, scale, chunk_size, _, ctx.bounds = inputs
    ctx.numbers = (scale, chunk_size)
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, do: Tensor | None, d_last: Tensor | None) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    if do is None:
        do = torch.zeros_like(tensors[2])
    gates = ctx.needs_input_grad[3]
    found = iter(backward(do, d_last, *tensors, *ctx.numbers, gates, ctx.bounds))
    dq, dk, dv = next(found), next(found), next(found)
    dg = next(found) if gates else None
    return dq, dk, dv, dg, None if tensors[4] is None else next(found), *[None] * 4


@operators.custom_op("gla", Gradients(_save_for_backward, _gradients))
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    initial: Tensor | None,
    scale: float,
    chunk_size: int | None,
    implementation: str,
    bounds: Sequence[int] | None,
) -> list[Tensor]:
    """Return [o, the last state (B, H, d_qk, d_hv) float32] of q, k, g (B, H, T, d_qk) and v (B, H, T, d_hv).

    Args:
        bounds: of documents, see `chunkwise.forward`.
    """
    L = _chunk_size(q, v, chunk_size)
    arguments = Arguments(q, k, v, g, initial)
    of_kernels = kernels_of(implementation)
    return list(of_kernels.forward(arguments, scale=scale, chunk_size=L, bounds=tuple_of(bounds)))


@operators.register_fake("gla")
def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> list[Tensor]:
    *_, bounds = others
    N = v.shape[0] if bounds is None else len(bounds) - 1
    return [torch.empty_like(v), q.new_empty((N, v.shape[1], q.shape[-1], v.shape[-1]), dtype=torch.float32)]


@operators.custom_op("gla_backward", FIRST_ORDER)
def backward(
    do: Tensor,
    d_last: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    initial: Tensor | None,
    scale: float,
    chunk_size: int | None,
    gate_gradients: bool,
    bounds: Sequence[int] | None,
) -> list[Tensor]:
    """Return gradients of q, k, v, g, initial, in this order, without those that are None or not asked for."""
    grads = kernels_of("tfla").backward(
        *(do, d_last, Arguments(q, k, v, g, initial)),
        scale=scale,
        chunk_size=_chunk_size(q, v, chunk_size),
        gate_gradients=gate_gradients,
        bounds=tuple_of(bounds),
    )
    return [x for x in grads if x is not None]


@operators.register_fake("gla_backward")
def _fake_backward(
    do: Tensor, d_last: Tensor | None, q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial: Tensor | None, *others: Any
) -> list[Tensor]:
    *_, gate_gradients, _ = others
    return [torch.empty_like(x) for x in (q, k, v, g if gate_gradients else None, initial) if x is not None]
