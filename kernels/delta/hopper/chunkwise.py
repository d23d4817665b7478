"""Run forward and backward of the fused kernels of the delta rule, by the names of `backends`.

forward:  inverses of tiles (inverses) -> o and errors (walks)
backward: dv and gradients of states (walks) -> dq, dk, sums (backward_dqk) -> dg, dbeta (gates)

Where there are segments, the walk for o, and that for dv, come twice: first as a pass that writes states alone, which
`joined` makes into those that segments start from.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from tflabench.kernels.common import device
from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.descriptors import aligned
from tflabench.kernels.common.places import tiles_of
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.delta import hopper_plan as plans
from tflabench.kernels.delta.call import as_gradients
from tflabench.kernels.scalar.hopper.chunkwise import refuses_hardware
from tflabench.kernels.scalar.hopper.documents import WalkPlaces, places_of
from tflabench.kernels.scalar.plan.hopper_segments import Segments
from tflabench.kernels.state import State, float_matrix
from tflabench.kernels.types import Gating

from .backward_dqk import launch_queries_keys
from .inverses import launch_inverses
from .joins import joined, spans_of
from .tiles import DeltaGates, NormalizedGates
from .walk import DeltaWalkStates
from .walks import launch_walk


def takes_documents(bounds: list[int], q: Tensor, v: Tensor, *, states: bool) -> bool:
    """Return whether one launch is the fastest way for documents of q, v (1, H, T, d) between bounds."""
    lengths = [end - begin for begin, end in pairwise(bounds)]
    return plans.takes_documents(Sizes.of(q, v), device.figures(v.device), lengths, states=states)


def refuses(q: Tensor, v: Tensor, *, gate: Gating, chunk_size: int, config: object = None) -> str | None:
    """Return why these kernels cannot run on q (B, H, T, d_qk) and v (B, H, T, d_hv), or None if they can."""
    del chunk_size  # all of them
    if reason := refuses_hardware(q, plans.DTYPES_OF_CHANNELS if gate.forget_of == "channel" else plans.DTYPES):
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
    plan, places = planned(arguments, options), _places(options, arguments.v)
    (q, k, v), gates = _inputs(arguments)
    gated = arguments.f is not None
    if options.gate.l2_normalize:
        gates = NormalizedGates(*gates, torch.empty_like(gates.beta))
    x, gains = launch_inverses(k, gates, gated, plan, places)
    spans = None if gains is None else spans_of(gains, plan.cut)
    launch = partial(
        launch_walk, inputs=(q, k, v, x), reverse=False, gates=gates, gated=gated, scale=options.scale,
        parts=plan.parts, places=places, spans=spans,
    )  # fmt: skip
    o, last, z, of_segments = walk_forward(launch, plan, arguments, options, places)
    return o, last, () if z is None else (x, z, *of_segments, *(() if spans is None else (spans,)))


def walk_forward(
    launch: Callable[..., None], plan: plans.DeltaPlan, arguments: Arguments, options: KernelOptions,
    places: WalkPlaces | None = None,
) -> tuple[Tensor, State | None, Tensor | None, tuple[Tensor, ...]]:  # fmt: skip
    """Return o, the last state and errors, where they are asked for, and states before segments and their transitions.

    Args:
        launch: takes a walk, o and Z, and the states, see `launch_walk`.
        places: of documents.
    """
    v, starts, of_segments = arguments.v, float_matrix(arguments.initial), ()
    if plan.states is not None:
        of_each, transitions = (_empty_states(plan, v, columns) for columns in (v.shape[-1], plan.sizes.d_qk))
        launch(plan.states, (None, None), states=DeltaWalkStates(None, of_each, transitions))
        join = partial(joined, of_each, transitions, reverse=False)
        starts = join(starts)
        if options.exchange is not None:
            end = of_each[:, :, -1] + transitions[:, :, -1] @ starts[:, :, -1]
            starts = join(float_matrix(options.exchange(State(end))))
        of_segments = starts, transitions
    o = torch.empty_like(v)
    out = o if aligned(o) is o else torch.empty(v.shape, dtype=v.dtype, device=v.device)
    z = torch.empty(v.shape, dtype=v.dtype, device=v.device) if options.backward else None
    last = _empty_state(plan, v) if options.return_last_state else None
    if places is not None:
        for x in (out,) if z is None else (out, z):
            places.clear(x)
    launch(plan.outputs, (out, z), states=DeltaWalkStates(starts, last))
    if out is not o:
        o.copy_(out)
    return o, None if last is None else State(last), z, of_segments


def empty_saved(q: Tensor, v: Tensor, options: KernelOptions) -> tuple[Tensor, ...]:
    """Return what `forward` saves, uninitialised: inverses, errors, and of segments states, transitions and spans."""
    if not options.backward:
        return ()
    (B, H, T, d_hv), d_qk = v.shape, q.shape[-1]
    cut = Segments.of(T, options.chunk_size)
    tiles = cut.tiles if options.bounds is None else tiles_of(options.bounds, plans.TILE)
    x = q.new_empty((B, H, tiles * plans.TILE, plans.parts(options.gate.beta_max) * plans.TILE))
    saved = x, torch.empty_like(v, memory_format=torch.contiguous_format)
    if cut.count == 1 or options.bounds is not None:
        return saved
    states = (q.new_empty((B, H, cut.count, d_qk, d), dtype=torch.float32) for d in (d_hv, d_qk))
    return *saved, *states, q.new_empty((B, H, cut.count, 2), dtype=torch.int32)


def backward(
    do: Tensor, d_last: State | None, arguments: Arguments, saved: tuple[Tensor, ...], options: KernelOptions
) -> tuple[Tensor | None, ...]:
    """Return gradients (dq, dk, dv, dg, dbeta, dC, None); those of absent inputs are None."""
    plan, (x, z, *of_segments), places = planned(arguments, options), saved, _places(options, do)
    (q, k, _), gates = _inputs(arguments)
    gated, do = arguments.f is not None, aligned(do)
    starts, transitions, spans = of_segments or (float_matrix(arguments.initial), None, None)
    launch = partial(
        launch_walk, inputs=(q, k, do, x), reverse=True, gates=gates, gated=gated, scale=options.scale,
        parts=plan.parts, places=places, spans=spans,
    )  # fmt: skip
    dv, D, d_initial = walk_back(launch, plan, arguments, d_last, transitions, options.exchange, places)
    dq, dk, dg, dbeta = launch_queries_keys(
        (q, k, do, z, dv, D), gates=gates, gated=gated, initial=starts, scale=options.scale, plan=plan, places=places
    )
    if dv.dtype == torch.float16:
        dv.mul_(gates.beta.clamp(min=plans.LEAST_STRENGTH).sqrt()[..., None])
    return as_gradients(arguments, options, (dq, dk, dv, dg, dbeta), d_initial)


def walk_back(
    launch: Callable[..., None], plan: plans.DeltaPlan, arguments: Arguments, d_last: State | None,
    transitions: Tensor | None, exchange: Callable[[State], State | None] | None, places: WalkPlaces | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Return dv, the gradients D of states after tiles, and that of the initial state if there is one.

    Args:
        launch: takes a walk, dv and D, and the states, see `launch_walk`.
        transitions: of segments, if there are any.
        exchange: see `KernelOptions`.  places: of documents.
    """
    v, ends = arguments.v, float_matrix(d_last)
    if plan.state_gradients is not None:
        assert transitions is not None
        of_each = _empty_states(plan, v, v.shape[-1])
        launch(plan.state_gradients, (None, None), states=DeltaWalkStates(None, of_each))
        join = partial(joined, of_each, transitions, reverse=True)
        ends = join(ends)
        if exchange is not None:
            start = of_each[:, :, 0] + transitions[:, :, 0].mT @ ends[:, :, 0]
            ends = join(float_matrix(exchange(State(start))))
    dv = torch.empty_like(v)
    dv = dv if aligned(dv) is dv else torch.empty(dv.shape, dtype=dv.dtype, device=dv.device)
    if places is not None:
        places.clear(dv)
    D = empty_tile_states(plan, v)
    d_initial = None if arguments.initial is None else _empty_state(plan, v)
    launch(plan.values, (dv, D), states=DeltaWalkStates(ends, d_initial))
    return dv, D, d_initial


def empty_tile_states(plan: plans.DeltaPlan, like: Tensor) -> Tensor:
    """Return room for a transposed matrix of every tile, in the dtype of v."""
    return like.new_empty((1, plan.sizes.rows * plan.cut.tiles, plan.sizes.d_hv, plan.sizes.d_qk))


def planned(arguments: Arguments, options: KernelOptions) -> plans.DeltaPlan:
    """Return what a call launches."""
    q, v, bounds = arguments.q, arguments.v, options.bounds
    documents = None if bounds is None else plans.Documents(len(bounds) - 1, tiles_of(bounds, plans.TILE))
    return plans.planned(
        Sizes.of(q, v), device.figures_of(q, options), options.chunk_size, options.gate.beta_max,
        backward=options.backward, exchanges=options.exchange is not None, documents=documents,
    )  # fmt: skip


def _places(options: KernelOptions, like: Tensor) -> WalkPlaces | None:
    return None if options.bounds is None else places_of(options, like.device)


def _inputs(arguments: Arguments) -> tuple[tuple[Tensor, Tensor, Tensor], DeltaGates]:
    """Return q, k and v as TMA takes them, and the gates as kernels do."""
    g, beta = (None if x is None else x.float().contiguous() for x in (arguments.f, arguments.i))
    assert beta is not None
    inputs = aligned(arguments.q), aligned(arguments.k), aligned(arguments.v)
    return inputs, DeltaGates(beta if g is None else g, beta)


def _empty_state(plan: plans.DeltaPlan, like: Tensor) -> Tensor:
    sizes, count = plan.sizes, plan.sizes.batch if plan.documents is None else plan.documents.count
    return like.new_empty((count, sizes.heads, sizes.d_qk, sizes.d_hv), dtype=torch.float32)


def _empty_states(plan: plans.DeltaPlan, like: Tensor, columns: int) -> Tensor:
    """Return room for a matrix (d_qk, columns) of every segment."""
    sizes = plan.sizes
    return like.new_empty((sizes.batch, sizes.heads, plan.cut.count, sizes.d_qk, columns), dtype=torch.float32)
