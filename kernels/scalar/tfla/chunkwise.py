"""Run forward and backward of the chunkwise algorithm, kernel by kernel; `kernels.api` wraps them for autograd.

forward:  gates -> chunk states C, n (states) -> H (outputs)
backward: gates, C again -> dC, and sum(C * dC) at every chunk's edge (states) -> dQ, dK, dV (grads) -> gate gradients

The denominator and m are constants in backward (paper, B.3). Chunk states are stored in the dtype of q unless that or
`state_dtype` says wider: the products that read them take operands of q's dtype, so wider states would change no bit.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from tflabench.kernels.common import device
from tflabench.kernels.common.contract import Arguments, KernelOptions, Kernels
from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.descriptors import aligned, made_like
from tflabench.kernels.common.device import float32_precision
from tflabench.kernels.common.places import Places, places_of_chunks, tiles_of
from tflabench.kernels.common.places import fitting as fitting_documents
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.common.tensors import floats, sum_shared, unflatten
from tflabench.kernels.scalar import gates
from tflabench.kernels.scalar.gates import GradientSums
from tflabench.kernels.scalar.plan import tfla as plans
from tflabench.kernels.scalar.plan.tfla import TileConfig, largest_tile
from tflabench.kernels.state import State
from tflabench.kernels.types import Gate

from .call import Call, EdgeStates, Inputs
from .outputs import d_keys, d_queries, d_values, hidden
from .states import ChunkInputs, SequenceStates, walk


def kernels(levels: int) -> Kernels:
    """Return the kernels as `backends` names them: xl_chunk (two levels) or limit_chunk (the chunk is a tile)."""
    return Kernels(
        forward=forward,
        backward=backward,
        empty_saved=empty_saved,
        refuses=functools.partial(refuses, levels=levels),
        default_chunk_size=functools.partial(default_chunk_size, levels=levels),
        shares_heads=True,
        adds_skip=True,
        takes_documents=functools.partial(takes_documents, levels=levels),
    )


def refuses(q: Tensor, v: Tensor, *, gate: Gate, chunk_size: int, config: object = None, levels: int = 2) -> str | None:
    """Return why these kernels cannot run on q (B, H, T, d_qk) and v (B, H, T, d_hv), or None if they can."""
    del gate  # all of them
    if config is not None and not isinstance(config, TileConfig):
        return f"takes a TileConfig as config, not a {type(config).__name__}"
    return device.refuses_tensors(q, v, chunk_size, None, functools.partial(plans.refuses_sizes, levels=levels))


def default_chunk_size(q: Tensor, v: Tensor, *, gate: Gate, backward: bool = True, levels: int = 2) -> int:
    """Return the chunk size that measured best."""
    del gate, backward
    return plans.default_chunk_size(Sizes.of(q, v), levels)


def takes_documents(bounds: list[int], q: Tensor, v: Tensor, *, states: bool, levels: int) -> bool:
    """Return whether one launch of each kernel is the fastest way for documents of q, v (1, H, T, d) between bounds.

    Their rows stay where they are, end to end along T. Gates and row sums, and so chunks, are by places
    (`common.places`): each document starts a new chunk. A kernel finds the document of a chunk in a `Table`, and the
    walk over states takes each document as a segment with states of its own.
    """
    lengths = [end - begin for begin, end in pairwise(bounds)]
    return plans.takes_documents(Sizes.of(q, v), device.figures(q.device), lengths, states=states, levels=levels)


def empty_saved(q: Tensor, v: Tensor, options: KernelOptions) -> tuple[Tensor, ...]:
    """Return what `forward` saves, uninitialised: of a normalised gate 1 / denominator."""
    if not options.gate.normalize:
        return ()
    steps = v.shape[2]
    if options.bounds:
        L = fitting_documents(options.bounds, options.chunk_size)
        steps = L * tiles_of(options.bounds, L)
    return (q.new_empty((*v.shape[:2], steps), dtype=torch.float32),)


def forward(arguments: Arguments, options: KernelOptions) -> tuple[Tensor, State | None, tuple[Tensor, ...]]:
    """Return H, the last state or None, and what `backward` needs and does not get as inputs.

    The last state costs nothing: the walk over chunk states ends with it.
    """
    q, k, v = aligned(arguments.q), aligned(arguments.k), aligned(arguments.v)
    inputs = Inputs(q, k, v, floats(arguments.skip))

    def walked(initial: State | None, dtype: torch.dtype | None) -> tuple[Call, SequenceStates, State]:
        placed = placed_gates(arguments._replace(initial=initial), options)
        call = call_of(q, v, placed, options)
        states = walk(call, call.plan.forward_states, ChunkInputs(k, v, *_matrices(initial)), dtype)
        m_last = call.gates.m
        if m_last is not None:
            m_last = placed.places.last_stabilisers(m_last) if placed.places else m_last[:, :, -1].contiguous()
        return call, states, State(states.last, states.n_last, m_last)

    initial = arguments.initial
    if options.exchange is not None:
        initial = options.exchange(walked(initial, None)[2])
    call, states, last = walked(initial, _stored(q.dtype, options.state_dtype))
    h, inverse = hidden(call, inputs, EdgeStates(states.states, states.n_states, initial is not None))
    h = made_like(h, arguments.v)
    assert h is not None
    return h, last if options.return_last_state else None, () if inverse is None else (inverse,)


def backward(
    dh: Tensor, d_last: State | None, arguments: Arguments, saved: tuple[Tensor, ...], options: KernelOptions
) -> tuple[Tensor | None, ...]:
    """Return gradients (dq, dk, dv, df, di, dC_0, dn_0), and dskip if there is a skip.

    Those of an absent gate or initial state are None.
    """
    q, k, v, _, _, initial, skip = arguments
    gate = options.gate
    q, k, v, dh = aligned(q), aligned(k), aligned(v), aligned(dh)
    placed = placed_gates(arguments, options)
    call = call_of(q, v, placed, options)
    plan = call.plan
    C_0, n_0 = _matrices(initial)
    dtype = _stored(q.dtype, options.state_dtype)
    inputs = Inputs(q, k, v, floats(skip), dh, inverse=saved[0] if gate.normalize else None)
    states, n_states, *_ = walk(call, plan.forward_states, ChunkInputs(k, v, C_0, n_0), dtype)
    side = ChunkInputs(q, dh, inverse_denominator=inputs.inverse, other=states, reverse=True)
    dC, dn = _matrices(d_last)
    if options.exchange is not None:
        of_start = walk(call, plan.backward_states, side._replace(C=dC), None).last
        dn_start = None if n_0 is None else torch.zeros_like(n_0)
        if dn is not None:
            dn_start = _n_gradients(call, dn, placed.places)[2]
        dC, dn = _matrices(options.exchange(State(of_start, dn_start)))
    back = walk(call, plan.backward_states, side._replace(C=dC), dtype)
    del side
    skip_dots = None if skip is None else q.new_empty(v.shape[:3], dtype=torch.float32)
    dq, qdq = d_queries(call, inputs, EdgeStates(states, n_states, initial is not None), skip_dots)
    through = back.through
    assert through is not None
    dn_states = dn_0 = None
    if dn is not None:
        assert n_states is not None
        g, dn_states, dn_0 = _n_gradients(call, dn, placed.places)
        through = through + g.exp() * (n_states * dn_states).sum(-1)
    del states, n_states
    dk, kdk = d_keys(call, inputs, EdgeStates(back.states, dn_states, dC is not None or dn is not None))
    dv = d_values(call, inputs, EdgeStates(back.states, None, dC is not None))
    df = di = None
    if options.gate_gradients:
        sums = GradientSums(qdq, kdk, through, plan.chunk_size)
        df, di = gates.gate_gradients(placed.f, placed.i, gate, call.gates.log_f, sums)
        if placed.places:
            df, di = placed.places.of_gates((df, di))
    dq, dk = sum_shared(dq, q), sum_shared(dk, k)
    grads = [made_like(x, like) for x, like in zip((dq, dk, dv, df, di), arguments[:5], strict=True)]
    dskip = () if skip is None or skip_dots is None else (skip_dots.sum(-1).sum(0).to(skip.dtype),)
    if initial is None:
        return (*grads, None, None, *dskip)
    if n_0 is not None and dn_0 is None:
        dn_0 = torch.zeros_like(n_0)
    return (*grads, made_like(back.last, initial.C), made_like(dn_0, initial.n), *dskip)


class GatesOfCall(NamedTuple):
    """The gates of a call as kernels take them.

    Attributes:
        m_0: the stabilisers before the first step, None for none; of documents they are in the gaps of i.
        places: of documents, None for sequences.
    """

    f: Tensor
    i: Tensor | None
    m_0: Tensor | None
    places: Places | None


def placed_gates(arguments: Arguments, options: KernelOptions) -> GatesOfCall:
    """Return the gates of a call, those of documents by places."""
    f, i = arguments.f, arguments.i
    m_0 = None if arguments.initial is None else arguments.initial.m
    if options.bounds is None:
        return GatesOfCall(f, i, m_0, None)
    places = places_of_chunks(options.bounds, options.chunk_size, f.device)
    return GatesOfCall(*places.gates(f, i, options.gate, m_0), None, places)


def call_of(q: Tensor, v: Tensor, placed: GatesOfCall, options: KernelOptions) -> Call:
    """Return what launchers are told of a call with q and v, as kernels take them."""
    f, i, m_0, places = placed
    sizes, chunk_size, table = Sizes.of(q, v), options.chunk_size, None
    if places:
        sizes, chunk_size, table = sizes._replace(steps=places.count), places.tile, places.chunks
    return Call(
        plans.planned(sizes, chunk_size, q.dtype.itemsize, device.figures_of(q, options), options.config),
        options.gate,
        gates.log_gates(f, i, options.gate, (v.shape[0], v.shape[1], sizes.steps), m_0),
        options.scale,
        float32_precision(q.dtype),
        table,
    )


def _stored(dtype: torch.dtype, state_dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.itemsize <= state_dtype.itemsize else state_dtype


def _matrices(state: State | None) -> tuple[Tensor | None, Tensor | None]:
    """Return C and n as the kernels take them."""
    if state is None:
        return None, None
    return aligned(state.C.float().contiguous()), floats(state.n)


def _n_gradients(call: Call, dn: Tensor, places: Places | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return what reaches every chunk of the gradient dn of the last n, which is forgotten backward.

    Returns:
        Log gates of chunks (B, H, chunks), dn after every chunk (B, H, chunks, d_qk) and before the first (B, H, d_qk),
        of documents before the first of each.
    """
    g = log_gates_of_chunks(call, largest_tile(call.plan.chunk_size, 64))
    if places is None:
        return g, *_forgotten(g, dn)
    dn_states = g.new_zeros((*g.shape, dn.shape[-1]))
    of_documents: list[Tensor] = []
    first = 1
    for number, length in enumerate(places.lengths):
        behind = first + cdiv(length, places.tile)
        dn_states[:, :, first:behind], dn_0 = _forgotten(g[..., first:behind], dn[number : number + 1])
        of_documents.append(dn_0)
        first = behind + 1
    return g, dn_states, torch.cat(of_documents)


def log_gates_of_chunks(call: Call, tile: int) -> Tensor:
    """Return the sums of log gates over chunks, (B, H, chunks), of those over tiles of so many steps."""
    plan, g = call.plan, call.tile_gates(tile).g
    g = torch.nn.functional.pad(g, (0, plan.chunks * (plan.chunk_size // tile) - g.shape[-1]))
    return unflatten(g, -1, (plan.chunks, -1)).sum(-1)


def _forgotten(g: Tensor, dn: Tensor) -> tuple[Tensor, Tensor]:
    """Return dn (B, H, d_qk) as it reaches back to the end of each chunk, and to the first chunk's start.

    Args:
        g: log gates of chunks, (B, H, chunks).
    """
    reach = torch.nn.functional.pad(g.flip(-1).cumsum(-1).flip(-1), (0, 1))  # from before each chunk to the end
    return reach[..., 1:, None].exp() * dn[:, :, None], reach[..., :1].exp() * dn
