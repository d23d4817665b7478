"""Run forward and backward of TFLA for Kimi Delta Attention, kernel by kernel.

forward:  q and k with their decays, scores, inverses of tiles (tiles) -> errors R, Z = beta R, states of chunks (walks)
          -> o (`gla.outputs`)
backward: the first again -> dV, dbeta, gradients of states (walks) -> dq, dk, dg (`gla.gradients`, twice)

With Z for v it is Gated Linear Attention, so o, dq, dg and what the state gives k are made by the kernels of that. That
k reads the state too, to make the errors, is one reader more: with k in the place of q, -dV in that of do, and a step
not reading what it writes itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.descriptors import made_like
from tflabench.kernels.common.device import refuses_tensors
from tflabench.kernels.gla import plan as gla_plan
from tflabench.kernels.gla.gradients import Reader, StatePair, gradients_of_decays, gradients_of_reader
from tflabench.kernels.gla.outputs import outputs
from tflabench.kernels.kda import plan as plans
from tflabench.kernels.state import State, float_matrix
from tflabench.kernels.types import Gating

from .call import KdaCall
from .tiles import operands_of
from .walks import errors_and_states, gradients_of_states


def empty_saved(q: Tensor, v: Tensor, options: KernelOptions) -> tuple[Tensor, ...]:
    """Return errors and states as `forward` saves them, uninitialised."""
    batch, heads, T, d_hv = v.shape
    states = q.new_empty((batch * heads * cdiv(T, options.chunk_size), q.shape[-1], d_hv))
    return torch.empty_like(v, memory_format=torch.contiguous_format), states


def refuses(q: Tensor, v: Tensor, *, gate: Gating, chunk_size: int, config: object = None) -> str | None:
    """Return why these kernels cannot run on q (B, H, T, d_qk) and v (B, H, T, d_hv), or None if they can."""
    del gate
    return refuses_tensors(q, v, chunk_size, config, plans.refuses_sizes)


def default_chunk_size(q: Tensor, v: Tensor, *, gate: Gating, backward: bool = True) -> int:
    """Return that of the kernels of Gated Linear Attention."""
    del gate, backward
    return gla_plan.default_chunk_size(q.shape[-1], v.shape[-1])


def forward(arguments: Arguments, options: KernelOptions) -> tuple[Tensor, State | None, tuple[Tensor, ...]]:
    """Return o like v, the last state or None, and the errors and the states before chunks."""
    q, k, v, g, beta, initial, _ = arguments
    assert g is not None
    call, first = KdaCall.of(arguments, options), float_matrix(initial)
    strength = _strength(beta)
    operands = operands_of(call, q, k, g, strength, reverse=False)
    made = errors_and_states(call, v, strength, operands, first)
    if options.exchange is not None:
        first = float_matrix(options.exchange(State(made.last)))
        made = errors_and_states(call, v, strength, operands, first)
    o = outputs(call.gla, operands.weighted, made.written, made.states, first is not None)
    o = made_like(o, v)
    assert o is not None
    return o, State(made.last) if options.return_last_state else None, (made.errors, made.states)


def backward(
    do: Tensor, d_last: State | None, arguments: Arguments, saved: tuple[Tensor, ...], options: KernelOptions
) -> tuple[Tensor | None, ...]:
    """Return gradients (dq, dk, dv, dg, dbeta, dC, None); those of absent inputs are None."""
    q, k, _, g, beta, initial, _ = arguments
    assert g is not None
    call, (errors, states) = KdaCall.of(arguments, options), saved
    first, last, strength = float_matrix(initial), float_matrix(d_last), _strength(beta)
    operands = operands_of(call, q, k, g, strength, reverse=True)
    back = gradients_of_states(call, errors, strength, do, operands, states, last)
    if options.exchange is not None:
        last = float_matrix(options.exchange(State(back.first)))
        back = gradients_of_states(call, errors, strength, do, operands, states, last)
    z = (errors.float() * strength[..., None]).to(errors.dtype)

    gates, edges = options.gate_gradients, (first is not None, last is not None)
    by_q = Reader(q, k, z, g, do, operands.weighted, call.gla.scale, strict=False)
    by_k = Reader(k, k, z, g, -back.dv, operands.weighted._replace(q=operands.reads), 1.0, strict=True)
    dq, dk, sums = gradients_of_reader(call.gla, by_q, StatePair(states, back.states), edges, gates=gates)
    read, written, more = gradients_of_reader(call.gla, by_k, StatePair(states, None), edges, gates=gates)
    dg = dbeta = None
    if sums is not None and more is not None and beta is not None:
        dg = gradients_of_decays(call.gla, g, sums.plus(more), back.crossing)
        dbeta = back.dbeta.to(beta.dtype)
    dk = (dk.float() + read.float() + written.float()).to(k.dtype)
    given = dq, dk, back.dv, dg, dbeta
    grads = (made_like(x, like) for x, like in zip(given, arguments[:5], strict=True))
    return (*grads, None if initial is None else made_like(back.first, initial.C), None)


def _strength(beta: Tensor | None) -> Tensor:
    assert beta is not None
    return beta.float().contiguous()
