"""Chunkwise kernels for documents with states as one torch operator and its backward, see `chunkwise_operator`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import operators
from .backends import Arguments, DocumentKernels, KernelOptions, kernels_of, only_reference, resolve
from .chunkwise_operator import Setup, kernels_and_options, key_of, setup_of, split, wants_gradients
from .operators import FIRST_ORDER, Gradients
from .state import State


def take(call: Arguments, setup: Setup, chunk_size: int | None, bounds: list[int], *, states: bool) -> bool:
    """Return whether kernels that take all documents in one launch run here, and are the fastest way.

    Args:
        call: (1, H, T, d), with an initial state a document or without.
        bounds: where documents begin and end, [0, ..., T].
        states: whether states go in or out.
    """
    q, v = call.q, call.v
    if setup.implementation == "reference" or only_reference(q, v) is not None:
        return False
    backward = wants_gradients(*call[:5], *call.initial or ())
    name, _, _ = resolve(
        q, v, gate=setup.gate, implementation=setup.implementation, chunk_size=chunk_size, backward=backward,
        config=setup.config,
    )  # fmt: skip
    kernels = kernels_of(name).documents
    return kernels is not None and kernels.takes(bounds, q, v, states=states)


def run(
    call: Arguments, setup: Setup, scale: float, chunk_size: int | None, return_last_state: bool, bounds: list[int]
) -> tuple[Tensor, State | None]:
    """Return h, without the skip connection, and if asked for the last state of each document.

    Args:
        call: that `take` has taken, with a forget gate a step.
        chunk_size: that `take` has chosen kernels by.
    """
    C, n, m = (None if x is None else x.float() for x in call.initial or (None, None, None))
    key = key_of(setup)
    given = *call[:5], C, n, m, scale, setup.gate.temperature, chunk_size, key, bounds, return_last_state
    h, *states = _forward(*given)
    return h, split(states, setup.gate)[0] if return_last_state else None


def _documents_and_options(
    q: Tensor, v: Tensor, numbers: tuple[float, float, int | None, str], **asked: bool
) -> tuple[DocumentKernels, KernelOptions]:
    """Return the kernels that run and what they are told; numbers: scale, temperature, chunk size, setup."""
    scale, temperature, chunk_size, setup = numbers
    kernels, options = kernels_and_options(q, v, scale, temperature, chunk_size, True, setup, **asked)
    assert kernels.documents
    return kernels.documents, options


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.set_materialize_grads(False)  # a last state that nothing depends on has no gradient, not one of zeros
    *tensors, scale, temperature, chunk_size, setup, ctx.bounds, ctx.has_last = inputs
    ctx.numbers = (scale, temperature, chunk_size, setup)
    ctx.gate = setup_of(setup).gate
    saved = split(output[1:], ctx.gate)[1] if ctx.has_last else output[1:]
    ctx.save_for_backward(*tensors, *saved)


def _gradients(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    dh, *d_states = grads
    dC, dn, _ = split(d_states, ctx.gate)[0] if ctx.has_last else (None, None, None)
    kept = ctx.saved_tensors  # once: activation checkpointing computes them anew for whoever asks
    tensors, saved = kept[:8], kept[8:]
    if dh is None:
        dh = torch.zeros_like(tensors[2])
    gates = any(ctx.needs_input_grad[3:5])
    found = iter(_backward(dh, dC, dn, *tensors, list(saved), *ctx.numbers, ctx.bounds, gates))
    given = [x if gates or place not in (3, 4) else None for place, x in enumerate(tensors[:7])]
    return (*(next(found) if x is not None else None for x in given), *[None] * (3 + len(ctx.numbers)))


@operators.custom_op("documents", Gradients(_save_for_backward, _gradients))
def _forward(  # noqa: PLR0913  an operator's schema
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    i: Tensor | None,
    C: Tensor | None,
    n: Tensor | None,
    m: Tensor | None,
    scale: float,
    temperature: float,
    chunk_size: int | None,
    setup: str,
    bounds: Sequence[int],
    return_last_state: bool,
) -> list[Tensor]:
    """Return [h, if asked for the last C, n and m as far as the gate has them, *saved].

    Args:
        C, n, m: the states before documents, float32.
        chunk_size, setup: as of the operator `chunkwise`.
        bounds: where documents begin and end.
    """
    numbers = scale, temperature, chunk_size, setup
    kernels, options = _documents_and_options(q, v, numbers, return_last_state=return_last_state)
    arguments = Arguments(q, k, v, f, i, None if C is None else State(C, n, m))
    h, last, saved = kernels.forward(arguments, options, list(bounds))
    return [h, *(x for x in last or () if x is not None), *saved]


@operators.register_fake("documents")
def _fake_forward(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> list[Tensor]:
    scale, _, chunk_size, setup, bounds, return_last_state = others[5:]
    kernels, options = _documents_and_options(q, v, (scale, 1.0, chunk_size, setup))
    documents, H, d_qk, gate = len(bounds) - 1, v.shape[1], q.shape[-1], options.gate
    shapes = [(documents, H, d_qk, v.shape[-1]), *[(documents, H, d_qk)] * gate.normalize]
    shapes += [(documents, H)] * gate.stabilized
    last = [q.new_empty(shape, dtype=torch.float32) for shape in shapes] if return_last_state else []
    return [torch.empty_like(v), *last, *kernels.empty_saved(q, v, options, bounds)]


@operators.custom_op("documents_backward", FIRST_ORDER)
def _backward(  # noqa: PLR0913  an operator's schema
    dh: Tensor,
    dC_last: Tensor | None,
    dn_last: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    i: Tensor | None,
    C: Tensor | None,
    n: Tensor | None,
    m: Tensor | None,
    saved: Sequence[Tensor],
    scale: float,
    temperature: float,
    chunk_size: int | None,
    setup: str,
    bounds: Sequence[int],
    gate_gradients: bool,
) -> list[Tensor]:
    """Return gradients of q, k, v, f, i, C, n, in this order, without those that are None; f and i if asked for.

    Args:
        dh, dC_last, dn_last: gradients of h and of the last states; None for a state that nothing depends on.
        saved: what forward returned behind the last states; the other arguments are those of forward.
        gate_gradients: whether those of f and i are asked for.
    """
    numbers = scale, temperature, chunk_size, setup
    kernels, options = _documents_and_options(q, v, numbers, gate_gradients=gate_gradients)
    if dC_last is None and dn_last is not None:
        dC_last = dn_last.new_zeros(*dn_last.shape, v.shape[-1])
    d_last = None if dC_last is None else State(dC_last, dn_last)
    arguments = Arguments(q, k, v, f, i, None if C is None else State(C, n, m))
    found = kernels.backward(dh, d_last, arguments, tuple(saved), options, list(bounds))
    return [x for x in found if x is not None]


@operators.register_fake("documents_backward")
def _fake_backward(dh: Tensor, dC_last: Tensor | None, dn_last: Tensor | None, *others: Any) -> list[Tensor]:
    q, k, v, f, i, C, n = others[:7]
    gates = (f, i) if others[-1] else ()
    return [torch.empty_like(x) for x in (q, k, v, *gates, C, n) if x is not None]
