"""Run forward and backward of the fused kernels of Kimi Delta Attention, by the names of `backends`.

forward:  operands of tiles (operands) -> o, errors and states before tiles (walks)
backward: dv and gradients of states (walks) -> dq, dk, dg, dbeta of tiles (gradients)

Segments are those of the delta rule: see `delta.hopper.chunkwise`.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.descriptors import aligned
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.delta.call import as_gradients
from tflabench.kernels.delta.hopper.chunkwise import (
    default_chunk_size,
    empty_tile_states,
    planned,
    refuses,
    walk_back,
    walk_forward,
)
from tflabench.kernels.delta.hopper_plan import parts
from tflabench.kernels.scalar.plan.hopper_segments import Segments
from tflabench.kernels.state import State

from .gradients import launch_gradients
from .operands import WalkOperands, empty_operands, launch_operands
from .walks import launch_walk

__all__ = ["backward", "default_chunk_size", "empty_saved", "forward", "refuses"]


def forward(arguments: Arguments, options: KernelOptions) -> tuple[Tensor, State | None, tuple[Tensor, ...]]:
    """Return o like v, the last state or None, and what `backward` needs, if there will be one (`empty_saved`)."""
    plan, v = planned(arguments, options), aligned(arguments.v)
    q, k, g, beta = _inputs(arguments)
    operands = launch_operands(
        q, k, g, beta, sizes=plan.sizes, scale=options.scale, parts=plan.parts, normalizes=options.gate.l2_normalize
    )
    kept = empty_tile_states(plan, v) if options.backward else None
    launch = partial(launch_walk, operands=operands, v=v, kept=kept, reverse=False, parts=plan.parts)
    o, last, z, of_segments = walk_forward(launch, plan, arguments, options)
    return o, last, () if z is None or kept is None else (*operands, z, kept, *of_segments[1:])


def empty_saved(q: Tensor, v: Tensor, options: KernelOptions) -> tuple[Tensor, ...]:
    """Return what `forward` saves, uninitialised: operands, errors, states of tiles, and transitions of segments."""
    if not options.backward:
        return ()
    sizes, cut = Sizes.of(q, v), Segments.of(v.shape[2], options.chunk_size)
    z = torch.empty_like(v, memory_format=torch.contiguous_format)
    kept = v.new_empty((1, sizes.rows * cut.tiles, sizes.d_hv, sizes.d_qk))
    saved = *empty_operands(q, sizes, parts(options.gate.beta_max)), z, kept
    shape = sizes.batch, sizes.heads, cut.count, sizes.d_qk, sizes.d_qk
    return saved if cut.count == 1 else (*saved, q.new_empty(shape, dtype=torch.float32))


def backward(
    do: Tensor, d_last: State | None, arguments: Arguments, saved: tuple[Tensor, ...], options: KernelOptions
) -> tuple[Tensor | None, ...]:
    """Return gradients (dq, dk, dv, dg, dbeta, dC, None); those of absent inputs are None."""
    plan, do = planned(arguments, options), aligned(do)
    operands, (z, kept, *transitions) = WalkOperands(*saved[:6]), saved[6:]
    q, k, g, beta = _inputs(arguments)
    launch = partial(launch_walk, operands=operands, v=do, reverse=True, parts=plan.parts)
    dv, D, d_initial = walk_back(
        launch, plan, arguments, d_last, transitions[0] if transitions else None, options.exchange
    )  # fmt: skip
    dq, dk, dg, dbeta = launch_gradients((q, k, g, do, z, dv, kept, D), beta, scale=options.scale, plan=plan)
    return as_gradients(arguments, options, (dq, dk, dv, dg, dbeta), d_initial)


def _inputs(arguments: Arguments) -> tuple[Tensor, ...]:
    """Return q, k and g as TMA takes them, and beta."""
    q, k, _, g, beta = arguments[:5]
    assert beta is not None
    g = g if g.dtype in (torch.float32, torch.bfloat16) else g.float()
    return aligned(q), aligned(k), aligned(g), beta.float().contiguous()
