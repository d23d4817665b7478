"""Run forward and backward of TFLA for Kimi Delta Attention, kernel by kernel.

forward:  q and k with their decays, scores, inverses of tiles (tiles) -> o, errors R, states before tiles (walks)
backward: these -> dV, dbeta, gradients of states (walks) -> dq, dk, dg (gradients)
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.descriptors import made_like
from tflabench.kernels.common.device import float32_precision, refuses_tensors
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.delta.call import as_gradients
from tflabench.kernels.delta.normalize import EPSILON
from tflabench.kernels.delta.normalize_kernel import normalize
from tflabench.kernels.delta.plan import TILE
from tflabench.kernels.state import State, float_matrix
from tflabench.kernels.types import Gating

from . import plan as plans
from . import walks
from .gradients import gradients_of_channels
from .tiles import TileOperands, empty_operands, operands_of


def empty_saved(q: Tensor, v: Tensor, options: KernelOptions) -> tuple[Tensor, ...]:
    """Return operands, errors and states as `forward` saves them, uninitialised."""
    if not options.backward:
        return ()
    (batch, heads, T, d_hv), wide = v.shape, v.dtype == torch.float32
    tile = plans.tile_of(options.chunk_size, T, wide=wide)
    operands = empty_operands(q, batch * heads, T, tile, plans.parts_of(options.gate.beta_max, wide=wide))
    states = q.new_empty((batch * heads * cdiv(T, tile), q.shape[-1], d_hv))
    return *operands, torch.empty_like(v, memory_format=torch.contiguous_format), states


def refuses(q: Tensor, v: Tensor, *, gate: Gating, chunk_size: int, config: object = None) -> str | None:
    """Return why these kernels cannot run on q (B, H, T, d_qk) and v (B, H, T, d_hv), or None if they can."""
    del gate
    return refuses_tensors(q, v, chunk_size, config, plans.refuses_sizes)


def default_chunk_size(q: Tensor, v: Tensor, *, gate: Gating, backward: bool = True) -> int:
    """Return the steps of a tile: there is a state for each."""
    del q, v, gate, backward
    return TILE


def forward(arguments: Arguments, options: KernelOptions) -> tuple[Tensor, State | None, tuple[Tensor, ...]]:
    """Return o like v, the last state or None, and what `backward` needs, if there will be one (`empty_saved`)."""
    q, k, v, g, beta, initial, _ = arguments
    if options.gate.l2_normalize:
        q, k = (normalize(x, None, EPSILON) for x in (q, k))
    call, strength = _call(arguments, options), _strength(beta)
    operands = operands_of(call, q, k, g, strength)
    walk = partial(walks.outputs, call, v, strength, operands, keeps=options.backward)
    o, last, saved = walk(float_matrix(initial))
    if options.exchange is not None:
        o, last, saved = walk(float_matrix(options.exchange(State(last))))
    o = made_like(o, v)
    assert o is not None
    return o, State(last) if options.return_last_state else None, (*operands, *saved) if options.backward else ()


def backward(
    do: Tensor, d_last: State | None, arguments: Arguments, saved: tuple[Tensor, ...], options: KernelOptions
) -> tuple[Tensor | None, ...]:
    """Return gradients (dq, dk, dv, dg, dbeta, dC, None); those of absent inputs are None."""
    q, k, _, g, beta, _, _ = arguments
    call, strength = _call(arguments, options), _strength(beta)
    operands, (errors, states) = TileOperands(*saved[:6]), saved[6:]
    walk = partial(walks.gradients, call, errors, strength, do, operands)
    dv, dbeta, d_states, d_initial = walk(float_matrix(d_last))
    if options.exchange is not None:
        dv, dbeta, d_states, d_initial = walk(float_matrix(options.exchange(State(d_initial))))
    dq, dk, dg = gradients_of_channels(call, (q, k, g, errors, do, dv), strength, (states, d_states))
    return as_gradients(arguments, options, (dq, dk, dv, dg, dbeta), d_initial)


def _call(arguments: Arguments, options: KernelOptions) -> plans.KdaCall:
    q, v = arguments.q, arguments.v
    dtype = str(q.dtype).removeprefix("torch.")
    plan = plans.KdaPlan.of(Sizes.of(q, v), options.chunk_size, dtype, options.gate.beta_max)
    return plans.KdaCall(plan, options.scale, float32_precision(q.dtype))


def _strength(beta: Tensor | None) -> Tensor:
    assert beta is not None
    return beta.float().contiguous()
