"""Run forward and backward of the fused kernels of the delta rule, by the names of `backends`.

forward:  inverses of tiles (inverses) -> o and errors (forward)
backward: dv and gradients of states (backward_dv) -> dq, dk, sums (backward_dqk) -> dg, dbeta (gates)

Where there are segments, the walk for o, and that for dv, come twice: first as a pass that writes states alone, which
`joined` makes into those that segments start from.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tflabench.kernels.common import device
from tflabench.kernels.common.contract import Arguments, KernelOptions, Kernels
from tflabench.kernels.common.descriptors import aligned, made_like
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.common.tensors import sum_shared
from tflabench.kernels.delta import hopper_plan as plans
from tflabench.kernels.scalar.hopper.chunkwise import RARE_STATES, refuses_hardware
from tflabench.kernels.scalar.plan.hopper_segments import Segments
from tflabench.kernels.state import State
from tflabench.kernels.types import Gating

from .backward_dqk import launch_queries_keys
from .backward_dv import launch_values
from .forward import launch_outputs
from .inverses import launch_inverses
from .joins import joined
from .tiles import DeltaGates
from .walk import DeltaWalkStates


def kernels() -> Kernels:
    """Return the kernels. They are imported only where they can run: Gluon is part of Triton from 3.6 on."""
    return Kernels(
        forward=forward,
        backward=backward,
        empty_saved=empty_saved,
        refuses=refuses,
        default_chunk_size=default_chunk_size,
        shares_heads=True,
        auto_from=RARE_STATES,
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
    """Return the steps of segments that fill the chip."""
    if refuses(q, v, gate=gate, chunk_size=plans.TILE):
        return plans.TILE
    return plans.default_chunk_size(Sizes.of(q, v), device.figures(q.device))


def forward(arguments: Arguments, options: KernelOptions) -> tuple[Tensor, State | None, tuple[Tensor, ...]]:
    """Return o like v, the last state or None, and what `backward` needs, if there will be one (`empty_saved`)."""
    plan = _planned(arguments, options)
    (q, k, v), gates = _inputs(arguments)
    call: dict[str, Any] = {
        "gates": gates, "gated": arguments.f is not None, "scale": options.scale, "parts": plan.parts,
    }  # fmt: skip
    inputs = q, k, v, launch_inverses(k, gates, call["gated"], plan)
    starts, of_segments = _matrix(arguments.initial), ()
    if plan.states is not None:
        of_each, transitions = (_empty_states(plan, v, columns) for columns in (v.shape[-1], q.shape[-1]))
        launch_outputs(plan.states, inputs, None, None, states=DeltaWalkStates(None, of_each, transitions), **call)
        starts = joined(of_each, transitions, starts, reverse=False)
        of_segments = starts, transitions
    o = torch.empty_like(arguments.v)
    out = o if aligned(o) is o else torch.empty(v.shape, dtype=v.dtype, device=v.device)
    z = torch.empty(v.shape, dtype=v.dtype, device=v.device) if options.backward else None
    last = _empty_state(plan.sizes, v) if options.return_last_state else None
    launch_outputs(plan.outputs, inputs, out, z, states=DeltaWalkStates(starts, last), **call)
    if out is not o:
        o.copy_(out)
    saved = () if z is None else (inputs[3], z, *of_segments)
    return o, None if last is None else State(last), saved


def empty_saved(q: Tensor, v: Tensor, options: KernelOptions) -> tuple[Tensor, ...]:
    """Return what `forward` saves, uninitialised: inverses, errors, and of segments states and transitions."""
    if not options.backward:
        return ()
    (B, H, T, d_hv), d_qk = v.shape, q.shape[-1]
    cut = Segments.of(T, options.chunk_size)
    x = q.new_empty((B, H, cut.tiles * plans.TILE, plans.parts(options.gate.beta_max) * plans.TILE))
    saved = x, torch.empty_like(v, memory_format=torch.contiguous_format)
    if cut.count == 1:
        return saved
    return *saved, *(q.new_empty((B, H, cut.count, d_qk, d), dtype=torch.float32) for d in (d_hv, d_qk))


def backward(
    do: Tensor, d_last: State | None, arguments: Arguments, saved: tuple[Tensor, ...], options: KernelOptions
) -> tuple[Tensor | None, ...]:
    """Return gradients (dq, dk, dv, dg, dbeta, dC, None); those of absent inputs are None."""
    plan, (x, z, *of_segments) = _planned(arguments, options), saved
    (q, k, _), gates = _inputs(arguments)
    gated, initial, do = arguments.f is not None, arguments.initial, aligned(do)
    call: dict[str, Any] = {"gates": gates, "gated": gated, "scale": options.scale, "parts": plan.parts}
    inputs = q, k, do, x
    starts, ends = _matrix(initial), _matrix(d_last)
    if plan.state_gradients is not None:
        starts, transitions = of_segments
        of_each = _empty_states(plan, do, do.shape[-1])
        launch_values(plan.state_gradients, inputs, None, None, states=DeltaWalkStates(None, of_each), **call)
        ends = joined(of_each, transitions, ends, reverse=True)
    dv = torch.empty_like(arguments.v)
    dv = dv if aligned(dv) is dv else torch.empty(dv.shape, dtype=dv.dtype, device=dv.device)
    D = q.new_empty((1, plan.sizes.rows * plan.cut.tiles, do.shape[-1], q.shape[-1]))
    d_initial = None if initial is None else _empty_state(plan.sizes, do)
    launch_values(plan.values, inputs, dv, D, states=DeltaWalkStates(ends, d_initial), **call)
    found = launch_queries_keys(
        (q, k, do, z, dv, D), gates=gates, gated=gated, initial=starts, scale=options.scale, plan=plan
    )
    of_gates = (found.dg, found.dbeta) if options.gate_gradients else (None, None)
    given = sum_shared(found.dq, q), sum_shared(found.dk, k), dv, *of_gates
    grads = (made_like(y, like) for y, like in zip(given, arguments[:5], strict=True))
    return (*grads, None if initial is None else made_like(d_initial, initial.C), None)


def _planned(arguments: Arguments, options: KernelOptions) -> plans.DeltaPlan:
    q, v = arguments.q, arguments.v
    sizes, beta_max = Sizes.of(q, v), options.gate.beta_max
    return plans.planned(
        sizes, device.figures(q.device), options.chunk_size, beta_max, backward=options.backward
    )  # fmt: skip


def _inputs(arguments: Arguments) -> tuple[tuple[Tensor, Tensor, Tensor], DeltaGates]:
    """Return q, k and v as TMA takes them, and the gates as kernels do."""
    g, beta = (None if x is None else x.float().contiguous() for x in (arguments.f, arguments.i))
    assert beta is not None
    inputs = aligned(arguments.q), aligned(arguments.k), aligned(arguments.v)
    return inputs, DeltaGates(beta if g is None else g, beta)


def _matrix(state: State | None) -> Tensor | None:
    return None if state is None else state.C.float().contiguous()


def _empty_state(sizes: Sizes, like: Tensor) -> Tensor:
    return like.new_empty((sizes.batch, sizes.heads, sizes.d_qk, sizes.d_hv), dtype=torch.float32)


def _empty_states(plan: plans.DeltaPlan, like: Tensor, columns: int) -> Tensor:
    """Return room for a matrix (d_qk, columns) of every segment."""
    sizes = plan.sizes
    return like.new_empty((sizes.batch, sizes.heads, plan.cut.count, sizes.d_qk, columns), dtype=torch.float32)
