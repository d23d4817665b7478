"""Run forward and backward of the fused kernels of the delta rule, by the names of `backends`.

forward:  inverses of tiles (inverses) -> o and errors (forward)
backward: dv and gradients of states (backward_dv) -> dq, dk, sums of gates (backward_dqk)
"""

from __future__ import annotations

import torch
from torch import Tensor

from tflabench.kernels.common import device
from tflabench.kernels.common.contract import Arguments, KernelOptions, Kernels
from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.descriptors import aligned, made_like
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.common.tensors import sum_shared
from tflabench.kernels.delta import hopper_plan as plans
from tflabench.kernels.scalar.hopper.chunkwise import refuses_hardware
from tflabench.kernels.scalar.hopper.state import States
from tflabench.kernels.state import State
from tflabench.kernels.types import Gating

from .backward_dqk import launch_queries_keys
from .backward_dv import launch_values
from .forward import launch_outputs
from .inverses import launch_inverses
from .tiles import DeltaGates


def kernels() -> Kernels:
    """Return the kernels. They are imported only where they can run: Gluon is part of Triton from 3.6 on."""
    return Kernels(
        forward=forward,
        backward=backward,
        empty_saved=empty_saved,
        refuses=refuses,
        default_chunk_size=default_chunk_size,
        shares_heads=True,
    )


def refuses(q: Tensor, v: Tensor, *, gate: Gating, chunk_size: int, config: object = None) -> str | None:
    """Return why these kernels cannot run on q (B, H, T, d_qk) and v (B, H, T, d_hv), or None if they can."""
    del gate, chunk_size  # all of them
    if reason := refuses_hardware(q, plans.DTYPES):
        return reason
    B, H, T, d_hv = v.shape
    if reason := plans.refuses_sizes(q.shape[-1], d_hv) or plans.refuses_steps(B * H, T):
        return reason
    return None if config is None else f"takes no config, not a {type(config).__name__}"


def default_chunk_size(q: Tensor, v: Tensor, *, gate: Gating, backward: bool = True) -> int:
    """Return all steps in whole tiles: no state is in memory between them."""
    del v, gate, backward
    return plans.TILE * cdiv(q.shape[2], plans.TILE)


def forward(arguments: Arguments, options: KernelOptions) -> tuple[Tensor, State | None, tuple[Tensor, ...]]:
    """Return o like v, the last state or None, and the inverses and errors, if there will be a backward."""
    plan = _planned(arguments, options)
    inputs, gates = _inputs(arguments)
    q, k, v = inputs
    gated = arguments.f is not None
    x = launch_inverses(k, gates, gated, plan)
    o = torch.empty_like(arguments.v)
    out = o if aligned(o) is o else torch.empty(v.shape, dtype=v.dtype, device=v.device)
    z = torch.empty(v.shape, dtype=v.dtype, device=v.device) if options.backward else None
    last = _empty_state(plan.sizes, v) if options.return_last_state else None
    states = States(_matrix(arguments.initial), last)
    launch_outputs((q, k, v, x), out, z, gates=gates, gated=gated, states=states, scale=options.scale, plan=plan)
    if out is not o:
        o.copy_(out)
    return o, None if last is None else State(last), () if z is None else (x, z)


def empty_saved(q: Tensor, v: Tensor, options: KernelOptions) -> tuple[Tensor, ...]:
    """Return what `forward` saves, uninitialised."""
    if not options.backward:
        return ()
    B, H, T, _ = v.shape
    tiles, parts = cdiv(T, plans.TILE), plans.parts(options.gate.beta_max)
    x = q.new_empty((B, H, tiles * plans.TILE, parts * plans.TILE))
    return x, torch.empty_like(v, memory_format=torch.contiguous_format)


def backward(
    do: Tensor, d_last: State | None, arguments: Arguments, saved: tuple[Tensor, ...], options: KernelOptions
) -> tuple[Tensor | None, ...]:
    """Return gradients (dq, dk, dv, dg, dbeta, dC, None); those of absent inputs are None."""
    plan, (x, z) = _planned(arguments, options), saved
    (q, k, _), gates = _inputs(arguments)
    gated, initial = arguments.f is not None, arguments.initial
    do = aligned(do)
    B, H, tiles, d_qk, d_hv = *do.shape[:2], plan.tiles, q.shape[-1], do.shape[-1]
    dv = torch.empty_like(arguments.v)
    dv = dv if aligned(dv) is dv else torch.empty(dv.shape, dtype=dv.dtype, device=dv.device)
    D = q.new_empty((1, B * H * tiles, d_hv, d_qk))
    d_initial = None if initial is None else _empty_state(plan.sizes, do)
    call = {"gates": gates, "gated": gated, "scale": options.scale, "plan": plan}
    launch_values((q, k, do, x), dv, D, states=States(_matrix(d_last), d_initial), **call)
    found = launch_queries_keys((q, k, do, z, dv, D), initial=_matrix(initial), **call)
    of_gates = (found.dg, found.dbeta) if options.gate_gradients else (None, None)
    given = (sum_shared(found.dq, arguments.q), sum_shared(found.dk, arguments.k), dv, *of_gates)
    grads = (made_like(y, like) for y, like in zip(given, arguments[:5], strict=True))
    return (*grads, None if initial is None else made_like(d_initial, initial.C), None)


def _planned(arguments: Arguments, options: KernelOptions) -> plans.DeltaPlan:
    q, v = arguments.q, arguments.v
    return plans.planned(Sizes.of(q, v), device.figures(q.device), options.gate.beta_max)


def _inputs(arguments: Arguments) -> tuple[tuple[Tensor, Tensor, Tensor], DeltaGates]:
    """Return q, k and v as TMA takes them, and the gates as kernels do."""
    g, beta = (None if x is None else x.float().contiguous() for x in (arguments.f, arguments.i))
    assert beta is not None
    return (aligned(arguments.q), aligned(arguments.k), aligned(arguments.v)), DeltaGates(
        beta if g is None else g, beta
    )


def _matrix(state: State | None) -> Tensor | None:
    return None if state is None else state.C.float().contiguous()


def _empty_state(sizes: Sizes, like: Tensor) -> Tensor:
    return like.new_empty((sizes.batch, sizes.heads, sizes.d_qk, sizes.d_hv), dtype=torch.float32)
