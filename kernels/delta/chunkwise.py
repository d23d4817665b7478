"""Run forward and backward of TFLA for the delta rule, kernel by kernel.

forward:  inverses of tiles (inverses) -> errors R, states of chunks (walks) -> o (`scalar.tfla.outputs`)
backward: inverses and scores of tiles (inverses) -> dV, dbeta, gradients of states (walks) -> dq, dk
          (`scalar.tfla.outputs`) -> dg (`scalar.gates`)

Backward reads the states that forward met. Made again from R they would drift: forward corrects in each error what
rounding did to the state before, and without decay nothing else does.

With its errors R for v and beta for an input gate it is a linear RNN with scalar gates, so o, dq and what the state
gives k are made by the kernels of these. That k reads the state too, to make the errors, is one reader more: with k in
the place of q, -dV in that of do, and a step not reading what it writes itself.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.descriptors import aligned, made_like
from tflabench.kernels.common.device import refuses_tensors
from tflabench.kernels.common.places import fitting, tiles_of
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.delta import plan as plans
from tflabench.kernels.scalar.gates import GradientSums, RowSums, gate_gradients
from tflabench.kernels.scalar.plan import tfla
from tflabench.kernels.scalar.tfla.call import EdgeStates
from tflabench.kernels.scalar.tfla.chunkwise import log_gates_of_chunks
from tflabench.kernels.scalar.tfla.outputs import Role, launch
from tflabench.kernels.state import State, float_matrix
from tflabench.kernels.types import SIMPLE_GLA, Gating

from .call import DeltaCall, as_gradients
from .normalize import EPSILON
from .normalize_kernel import normalize
from .walks import errors_and_states, gradients_of_states


def empty_saved(q: Tensor, v: Tensor, options: KernelOptions) -> tuple[Tensor, ...]:
    """Return errors and states as `forward` saves them, uninitialised."""
    steps, chunk = v.shape[2], options.chunk_size
    if options.bounds is not None:
        chunk = fitting(options.bounds, chunk)
        steps = tiles_of(options.bounds, chunk) * chunk
    states = q.new_empty((*v.shape[:2], cdiv(steps, chunk), q.shape[-1], v.shape[-1]))
    return torch.empty_like(v, memory_format=torch.contiguous_format), states


def takes_documents(bounds: list[int], q: Tensor, v: Tensor, *, states: bool) -> bool:
    """Return whether one launch is the fastest way for documents: always, for they walk side by side."""
    del bounds, q, v, states
    return True


def refuses(q: Tensor, v: Tensor, *, gate: Gating, chunk_size: int, config: object = None) -> str | None:
    """Return why these kernels cannot run on q (B, H, T, d_qk) and v (B, H, T, d_hv), or None if they can."""
    del gate
    return refuses_tensors(q, v, chunk_size, config, plans.refuses_sizes)


def default_chunk_size(q: Tensor, v: Tensor, *, gate: Gating, backward: bool = True) -> int:
    """Return that of the kernels of scalar gates."""
    del gate, backward
    return tfla.default_chunk_size(Sizes.of(q, v), levels=2)


def forward(arguments: Arguments, options: KernelOptions) -> tuple[Tensor, State | None, tuple[Tensor, ...]]:
    """Return o like v, the last state or None, and the errors and the states before chunks."""
    q, k, v = (aligned(x) for x in arguments[:3])
    if options.gate.l2_normalize:
        q, k = (normalize(x, None, EPSILON) for x in (q, k))
    call = DeltaCall.of(arguments._replace(q=q, k=k, v=v), options)
    first = float_matrix(arguments.initial)
    errors, matrices = errors_and_states(call, k, v, first)
    if options.exchange is not None:
        first = float_matrix(options.exchange(State(matrices.after)))
        errors, matrices = errors_and_states(call, k, v, first)
    edges = EdgeStates(matrices.states, None, first is not None)
    h, _ = launch(call.scalar, call.scalar.plan.h, Role(q, k, errors, v, edges, None, False, state_stages=2))
    h = made_like(h, arguments.v)
    assert h is not None
    return h, State(matrices.after) if options.return_last_state else None, (errors, matrices.states)


def backward(
    do: Tensor, d_last: State | None, arguments: Arguments, saved: tuple[Tensor, ...], options: KernelOptions
) -> tuple[Tensor | None, ...]:
    """Return gradients (dq, dk, dv, dg, dbeta, dC, None); those of absent inputs are None."""
    q, k, v, do = (aligned(x) for x in (*arguments[:3], do))
    call, (errors, states) = DeltaCall.of(arguments._replace(q=q, k=k, v=v), options), saved
    scalar, plan = call.scalar, call.scalar.plan
    first, last = float_matrix(arguments.initial), float_matrix(d_last)
    dots = options.gate_gradients and arguments.f is not None
    walk_back = partial(gradients_of_states, call, q, k, v, errors, do, states, through=dots)
    dv, dbeta, back, through = walk_back(last)
    if options.exchange is not None:
        last = float_matrix(options.exchange(State(back.after)))
        dv, dbeta, back, through = walk_back(last)
    before, after = EdgeStates(states, None, first is not None), EdgeStates(back.states, None, last is not None)

    alike: dict[str, Any] = {"transposed": True, "split": dots, "state_stages": 2}
    of_q, of_k = (q, k) if dots else (None, None)
    dq, qdq = launch(scalar, plan.dq, Role(do, errors, k, q, before, None, False, probe=of_q, **alike))
    # k is not scaled, and what it reads is subtracted from v. Where keys are alike these scores nearly cancel in dg.
    read = Role(dv, errors, k, k, before, None, False, strict=True, probe=of_k, **alike)
    dk, kdk_read = launch(replace(scalar, scale=-1.0), plan.dk, read)
    written = Role(errors, do, q, k, after, None, True, probe=of_k, more=(dv, k, -1.0), onto=dk, **alike)
    dk, kdk = launch(scalar, plan.dk, written)

    dg = None
    if dots:
        assert qdq is not None
        assert kdk_read is not None
        assert kdk is not None
        assert through is not None
        log_f, through = scalar.gates.log_f, log_gates_of_chunks(scalar, call.tiles.rows).exp() * through
        of_reads = RowSums(*(x + y for x, y in zip(qdq, kdk_read, strict=True)))
        dg, _ = gate_gradients(log_f, None, SIMPLE_GLA, log_f, GradientSums(of_reads, kdk, through, plan.chunk_size))
    of_gates = [_of_steps(x, call, like) for x, like in ((dg, arguments.f), (dbeta, arguments.i))]
    return as_gradients(arguments, options, (dq, dk, dv, *of_gates), back.after)


def _of_steps(x: Tensor | None, call: DeltaCall, like: Tensor | None) -> Tensor | None:
    """Return x (B, H, T), of documents by places, by steps and in the dtype of like."""
    if x is None or like is None:
        return None
    return (x.index_select(2, call.places.of_steps) if call.places else x).to(like.dtype)
