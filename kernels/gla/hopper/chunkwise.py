"""Run forward and backward of the fused kernels of Gated Linear Attention, by the names of `backends`.

forward:  o, and which sequences of a head have closed (columns) -> P of these (kda.hopper.operands) -> their o
backward: dv and gradients of states (columns) -> dq, dk and dg (channels), pairs of steps of what has closed (pairs)

What has closed is walked a second time, exactly: each walk is launched twice, and a program finds on the device whether
a sequence of a head is its own. Where there are segments the walks for o and dv come before as passes that write states
alone, which `joined` makes into those that segments start from.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from tflabench.kernels.common import device
from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.descriptors import aligned, made_like
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.delta.hopper_plan import refuses_steps
from tflabench.kernels.gla import hopper_plan as plans
from tflabench.kernels.gla.joins import joined
from tflabench.kernels.kda.hopper.operands import launch_scores
from tflabench.kernels.scalar.hopper.chunkwise import refuses_hardware
from tflabench.kernels.scalar.plan.hopper_segments import Segments
from tflabench.kernels.state import State, float_matrix
from tflabench.kernels.types import Gating

from .channels import launch_channels
from .columns import launch_columns
from .gates import sample_gates
from .pairs import launch_pairs
from .walk import GlaTensors


def refuses(q: Tensor, v: Tensor, *, gate: Gating, chunk_size: int, config: object = None) -> str | None:
    """Return why these kernels cannot run on q (B, H, T, d_qk) and v (B, H, T, d_hv), or None if they can."""
    del gate, chunk_size  # all of them
    if reason := refuses_hardware(q, plans.DTYPES):
        return reason
    B, H, T, d_hv = v.shape
    if reason := plans.refuses_sizes(q.shape[-1], d_hv) or refuses_steps(B * H, T):
        return reason
    return None if config is None else f"takes no config, not a {type(config).__name__}"


def default_chunk_size(q: Tensor, v: Tensor, *, gate: Gating, backward: bool = True) -> int:
    """Return the steps of segments that fill the chip."""
    if refuses(q, v, gate=gate, chunk_size=plans.TILE):
        return plans.TILE
    return plans.default_chunk_size(Sizes.of(q, v), device.figures(q.device))


def forward(arguments: Arguments, options: KernelOptions) -> tuple[Tensor, State | None, tuple[Tensor, ...]]:
    """Return o like v, the last state or None, and what `backward` needs, if there will be one (`empty_saved`)."""
    plan, inputs = _planned(arguments, options), _inputs(arguments)
    q, k, g, v = inputs
    scale_log2 = math.log2(options.scale)
    seen, closed = sample_gates(g)
    starts, of_segments = float_matrix(arguments.initial), ()
    if plan.states is not None:
        of_each, decays = _empty_states(plan, v, v.shape[-1]), _empty_states(plan, v)
        tensors = GlaTensors(seen, closed, None, of_each, decays)
        launch_columns(plan.states, inputs, None, None, tensors, scale_log2=scale_log2)
        tensors = GlaTensors(closed, final=of_each, decays=decays)
        launch_columns(plan.states, inputs, None, None, tensors, scale_log2=scale_log2, exact=True)
        join = partial(joined, of_each, decays, reverse=False)
        starts = join(starts)
        if options.exchange is not None:
            end = of_each[:, :, -1] + decays[:, :, -1, :, None] * starts[:, :, -1]
            starts = join(float_matrix(options.exchange(State(end))))
        of_segments = starts, decays
    o = torch.empty_like(arguments.v)
    out = o if aligned(o) is o else torch.empty(v.shape, dtype=v.dtype, device=v.device)
    last = _empty_state(plan.sizes, v) if options.return_last_state else None
    launch_columns(plan.outputs, inputs, None, out, GlaTensors(seen, closed, starts, last), scale_log2=scale_log2)
    p = launch_scores(q, k, g, closed, sizes=plan.sizes, scale=options.scale)
    tensors = GlaTensors(closed, initial=starts, final=last)
    launch_columns(plan.outputs, inputs, p, out, tensors, scale_log2=scale_log2, exact=True)
    if out is not o:
        o.copy_(out)
    saved = (closed, *of_segments) if options.backward else ()
    if last is None:
        return o, None, saved
    return o, State(last), (*saved, last.clone()) if options.backward else ()


def empty_saved(q: Tensor, v: Tensor, options: KernelOptions) -> tuple[Tensor, ...]:
    """Return what `forward` saves, uninitialised: which sequences have closed, states and decays of segments, the last.

    The last two if there are segments, and if the last state is asked for.
    """
    if not options.backward:
        return ()
    (B, H, T, d_hv), d_qk = v.shape, q.shape[-1]
    count = Segments.of(T, options.chunk_size).count
    shapes = [(B, H, count, d_qk, d_hv), (B, H, count, d_qk)] if count > 1 else []
    shapes += [(B, H, d_qk, d_hv)] if options.return_last_state else []
    return q.new_empty(B * H, dtype=torch.int32), *(q.new_empty(shape, dtype=torch.float32) for shape in shapes)


def backward(
    do: Tensor, d_last: State | None, arguments: Arguments, saved: tuple[Tensor, ...], options: KernelOptions
) -> tuple[Tensor | None, ...]:
    """Return gradients (dq, dk, dv, dg, None, dC, None); those of absent inputs are None."""
    plan, (closed, *others) = _planned(arguments, options), saved
    q, k, g, v = _inputs(arguments)
    do, initial, scale_log2 = aligned(do), arguments.initial, math.log2(options.scale)
    inputs, sizes = (q, k, g, do), plan.sizes
    starts, ends = float_matrix(initial), float_matrix(d_last)
    if plan.state_gradients is not None:
        starts, decays = others[:2]
        of_each = _empty_states(plan, do, do.shape[-1])
        tensors = GlaTensors(closed, final=of_each)
        for exact in (False, True):
            launch_columns(
                plan.state_gradients, inputs, None, None, tensors, scale_log2=scale_log2, reverse=True, exact=exact
            )
        join = partial(joined, of_each, decays, reverse=True)
        ends = join(ends)
        if options.exchange is not None:
            start = of_each[:, :, 0] + decays[:, :, 0, :, None] * ends[:, :, 0]
            d_last = options.exchange(State(start))
            ends = join(float_matrix(d_last))
    dv = torch.empty_like(arguments.v)
    dv = dv if aligned(dv) is dv else torch.empty(dv.shape, dtype=dv.dtype, device=dv.device)
    d_initial = None if initial is None else _empty_state(sizes, do)
    tensors = GlaTensors(closed, initial=ends, final=d_initial)
    p = launch_scores(q, k, g, closed, sizes=sizes, scale=options.scale)
    for exact in (False, True):
        launch_columns(
            plan.outputs, inputs, p if exact else None, dv, tensors, scale_log2=scale_log2, reverse=True, exact=exact
        )

    dq, dk = (torch.empty_like(x) for x in (q, k))
    dg = torch.empty_like(g)
    terms = q.new_empty((sizes.rows, plan.cut.tiles, plans.LARGEST_D_QK, plans.TILE), dtype=torch.float32)
    crossing = _crossing(starts, ends, None if d_last is None else others[-1], d_last)
    for out, states, reverse in ((dq, starts, False), (dk, ends, True)):
        tensors = GlaTensors(closed, initial=states, terms=terms, crossing=crossing if reverse else None)
        for exact in (False, True):
            launch_channels(
                plan.channels, (q, k, g, v, do), out, dg, tensors, scale_log2=scale_log2, reverse=reverse, exact=exact,
                pieces=plans.pieces_of(v.shape[-1]),
            )  # fmt: skip
    launch_pairs((q, k, g, do, v), dq, dk, dg, closed, sizes=sizes, scale=options.scale)
    given = dq, dk, dv, dg if options.gate_gradients else None
    grads = (made_like(y, like) for y, like in zip(given, arguments[:4], strict=True))
    return (*grads, None, None if initial is None else made_like(d_initial, initial.C), None)


def _crossing(starts: Tensor | None, ends: Tensor | None, last: Tensor | None, d_last: State | None) -> Tensor | None:
    """Return <S, D> over columns at the ends of segments, (B, H, segments, d_qk), None for zero.

    Args:
        starts, ends: the states before segments, and the gradients after them, if there are several.
        last, d_last: the last state and its gradient, None for zero.
    """
    at_end = None if last is None or d_last is None else (last * d_last.C).sum(-1, keepdim=True).mT
    if starts is None or ends is None or starts.dim() == 4:
        return at_end
    if at_end is None:
        at_end = torch.zeros_like(starts[:, :, :1, :, 0])
    return torch.cat([(starts[:, :, 1:] * ends[:, :, :-1]).sum(-1), at_end], 2)


def _planned(arguments: Arguments, options: KernelOptions) -> plans.GlaWalks:
    q = arguments.q
    sizes = Sizes.of(q, arguments.v)
    return plans.planned(
        sizes, device.figures_of(q, options), options.chunk_size, backward=options.backward,
        exchanges=options.exchange is not None,
    )  # fmt: skip


def _inputs(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return q, k, g and v as TMA takes them."""
    g = arguments.f
    g = g if g.element_size() < 8 else g.float()
    return aligned(arguments.q), aligned(arguments.k), aligned(g), aligned(arguments.v)


def _empty_state(sizes: Sizes, like: Tensor) -> Tensor:
    return like.new_empty((sizes.batch, sizes.heads, sizes.d_qk, sizes.d_hv), dtype=torch.float32)


def _empty_states(plan: plans.GlaWalks, like: Tensor, *columns: int) -> Tensor:
    """Return room for a matrix (d_qk, columns) of every segment, or a value for each channel."""
    sizes = plan.sizes
    return like.new_empty((sizes.batch, sizes.heads, plan.cut.count, sizes.d_qk, *columns), dtype=torch.float32)
