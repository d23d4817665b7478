"""Run forward and backward of the fused kernels of Gated Linear Attention, by the names of `backends`.

forward: o, and which sequences of a head have closed (columns) -> P of these (scores) -> their o (columns, exact)

Where there are segments the walk for o comes twice: first as a pass that writes states alone, which `joined` makes into
those that segments start from.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from tflabench.kernels.common import device
from tflabench.kernels.common.contract import Arguments, KernelOptions, Kernels
from tflabench.kernels.common.descriptors import aligned
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.delta.hopper_plan import refuses_steps
from tflabench.kernels.gla import hopper_plan as plans
from tflabench.kernels.kda.hopper.operands import launch_scores
from tflabench.kernels.scalar.hopper.chunkwise import RARE_STATES, refuses_hardware
from tflabench.kernels.state import State
from tflabench.kernels.types import Gating

from .columns import launch_columns
from .walk import GlaTensors


def kernels() -> Kernels:
    """Return the kernels. They are imported only where they can run: Gluon is part of Triton from 3.6 on."""
    return Kernels(
        forward=forward,
        backward=backward,
        empty_saved=empty_saved,
        refuses=refuses,
        default_chunk_size=default_chunk_size,
        auto_from=RARE_STATES,
    )


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
    closed = torch.zeros(plan.sizes.rows, dtype=torch.int32, device=q.device)
    starts, of_segments = _matrix(arguments.initial), ()
    if plan.states is not None:
        of_each, decays = _empty_states(plan, v, v.shape[-1]), _empty_states(plan, v)
        to = GlaTensors(closed, None, of_each, decays)
        launch_columns(plan.states, inputs, None, None, to, scale_log2=scale_log2, flags=True)
        launch_columns(plan.states, inputs, None, None, to, scale_log2=scale_log2, exact=True)
        starts = joined(of_each, decays, starts, reverse=False)
        of_segments = starts, decays
    o = torch.empty_like(arguments.v)
    out = o if aligned(o) is o else torch.empty(v.shape, dtype=v.dtype, device=v.device)
    last = _empty_state(plan.sizes, v) if options.return_last_state else None
    to = GlaTensors(closed, starts, last)
    launch_columns(plan.outputs, inputs, None, out, to, scale_log2=scale_log2, flags=True)
    p = launch_scores(q, k, g, closed, sizes=plan.sizes, scale=options.scale)
    launch_columns(plan.outputs, inputs, p, out, to, scale_log2=scale_log2, exact=True)
    if out is not o:
        o.copy_(out)
    return o, None if last is None else State(last), ()


def joined(of_each: Tensor, decays: Tensor, edge: Tensor | None, *, reverse: bool) -> Tensor:
    """Return the states that segments start from, or if reversed the gradients of those that they end with.

    Args:
        of_each: what each segment adds to a state of zero, (B, H, segments, d_qk, d_hv) float32; what the last one in
            this direction adds is not read.
        decays: by what it multiplies the channels of the state before it, (B, H, segments, d_qk) float32.
        edge: the state before the first segment, or the gradient after the last, (B, H, d_qk, d_hv); None for zero.
    """
    states = torch.empty_like(of_each)
    order = range(of_each.shape[2])[:: -1 if reverse else 1]
    states[:, :, order[0]] = 0 if edge is None else edge
    for before, n in pairwise(order):
        factors = decays[:, :, before, :, None]
        torch.addcmul(of_each[:, :, before], factors, states[:, :, before], out=states[:, :, n])
    return states


def empty_saved(q: Tensor, v: Tensor, options: KernelOptions) -> tuple[Tensor, ...]:
    """Return what `forward` saves, uninitialised."""
    del q, v, options
    return ()


def backward(
    do: Tensor, d_last: State | None, arguments: Arguments, saved: tuple[Tensor, ...], options: KernelOptions
) -> tuple[Tensor | None, ...]:
    """Return gradients (dq, dk, dv, dg, None, dC, None); those of absent inputs are None."""
    raise NotImplementedError


def _planned(arguments: Arguments, options: KernelOptions) -> plans.GlaWalks:
    q = arguments.q
    sizes = Sizes.of(q, arguments.v)
    return plans.planned(sizes, device.figures(q.device), options.chunk_size, backward=options.backward)


def _inputs(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return q, k, g and v as TMA takes them."""
    g = arguments.f
    g = g if g.element_size() < 8 else g.float()
    return aligned(arguments.q), aligned(arguments.k), aligned(g), aligned(arguments.v)


def _matrix(state: State | None) -> Tensor | None:
    return None if state is None else state.C.float().contiguous()


def _empty_state(sizes: Sizes, like: Tensor) -> Tensor:
    return like.new_empty((sizes.batch, sizes.heads, sizes.d_qk, sizes.d_hv), dtype=torch.float32)


def _empty_states(plan: plans.GlaWalks, like: Tensor, *columns: int) -> Tensor:
    """Return room for a matrix (d_qk, columns) of every segment, or a value for each channel."""
    sizes = plan.sizes
    return like.new_empty((sizes.batch, sizes.heads, plan.cut.count, sizes.d_qk, *columns), dtype=torch.float32)
