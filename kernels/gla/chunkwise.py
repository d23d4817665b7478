"""Run forward and backward of TFLA for Gated Linear Attention, kernel by kernel.

forward:  weighted q and k, scores of tiles (scores) -> states of chunks (states) -> o (outputs)
backward: the first two again -> gradients of states, backward in time (states) -> dv (outputs), dq, dk, dg (gradients)

States lie in memory every L steps, in the dtype of q: the products that read them take operands of it.
"""

from __future__ import annotations

from torch import Tensor

from tflabench.kernels.common import tiling
from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.descriptors import made_like
from tflabench.kernels.common.device import refuses_tensors
from tflabench.kernels.gla import plan as plans
from tflabench.kernels.state import State, float_matrix
from tflabench.kernels.types import Gating

from .call import GlaCall
from .gradients import StatePair, gradients_of_decays, gradients_of_inputs
from .outputs import d_values, outputs
from .scores import weigh
from .states import StateTerms, walk


def takes_documents(bounds: list[int], q: Tensor, v: Tensor, *, states: bool) -> bool:
    """Return whether one launch is the fastest way for documents: where they have states, of any lengths."""
    del bounds, q, v
    return states


def refuses(q: Tensor, v: Tensor, *, gate: Gating, chunk_size: int, config: object = None) -> str | None:
    """Return why these kernels cannot run on q (B, H, T, d_qk) and v (B, H, T, d_hv), or None if they can."""
    del gate
    return refuses_tensors(q, v, chunk_size, config, tiling.refuses_sizes)


def default_chunk_size(q: Tensor, v: Tensor, *, gate: Gating, backward: bool = True) -> int:
    """Return the chunk size that measured best."""
    del gate, backward
    return plans.default_chunk_size(q.shape[-1], v.shape[-1])


def forward(arguments: Arguments, options: KernelOptions) -> tuple[Tensor, State | None, tuple[Tensor, ...]]:
    """Return o like v, the last state or None, and nothing that `backward` needs."""
    q, k, v, g, _, initial, _ = arguments
    call = GlaCall.of(arguments, options)
    weighted = weigh(call, q, k, g)
    terms = StateTerms(weighted.k, v, weighted.totals, float_matrix(initial))
    if options.exchange is not None:
        initial = options.exchange(State(walk(call, terms).last))
        terms = terms._replace(first=float_matrix(initial))
    states = walk(call, terms)
    o = outputs(call, weighted, v, states.states, initial is not None)
    return o, State(states.last) if options.return_last_state else None, ()


def backward(
    do: Tensor, d_last: State | None, arguments: Arguments, saved: tuple[Tensor, ...], options: KernelOptions
) -> tuple[Tensor | None, ...]:
    """Return gradients (dq, dk, dv, dg, None, dC, None), without `options.gate_gradients` None for dg."""
    q, k, v, g, _, initial, _ = arguments
    call = GlaCall.of(arguments, options)
    weighted = weigh(call, q, k, g)
    first, last = float_matrix(initial), float_matrix(d_last)
    states = walk(call, StateTerms(weighted.k, v, weighted.totals, first)).states
    terms = StateTerms(weighted.q, do, weighted.totals, last, other=states, reverse=True)
    if options.exchange is not None:
        last = float_matrix(options.exchange(State(walk(call, terms).last)))
        terms = terms._replace(first=last)
    back = walk(call, terms)
    assert back.crossing is not None
    if first is not None:  # as it was given, where the walk has it rounded
        crossing = (first * back.last).sum(-1)
        if call.places:
            back.crossing[0].index_copy_(1, call.places.gaps[:-1] + 1, crossing.transpose(0, 1))
        else:
            back.crossing[:, :, 0] = crossing
    dv = d_values(call, weighted, v, do, back.states, last is not None)
    edges = first is not None or call.places is not None, last is not None or call.places is not None
    pair, gates = StatePair(states, back.states), options.gate_gradients
    dq, dk, sums = gradients_of_inputs(call, (q, k, v, g, do), weighted, pair, edges, gates=gates)
    dg = None if sums is None else gradients_of_decays(call, g, sums, back.crossing)
    dq, dk, dv, dg = (made_like(x, like) for x, like in ((dq, q), (dk, k), (dv, v), (dg, g)))
    return dq, dk, dv, dg, None, None if initial is None else made_like(back.last, initial.C), None
