"""Backward pass: with several segments their dC, then a walk each for dq, dk and dv, and gate gradients from row sums.

docs/kernels.md says which kernels make what.

The denominator and m are constants (TFLA, B.3), so the gradient of h before division is dh / denominator. That factor
belongs to a step i, as x does, and forward has taken its log2 from x: dh itself is what the walks read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.descriptors import aligned, made_like
from tflabench.kernels.common.device import figures_of
from tflabench.kernels.common.packed import split
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.common.tensors import floats, shared, sum_shared
from tflabench.kernels.scalar import gates
from tflabench.kernels.scalar.gates import GradientSums, LogGates, RowSums
from tflabench.kernels.scalar.plan import hopper as plans
from tflabench.kernels.scalar.plan.hopper_segments import Segments
from tflabench.kernels.scalar.plan.hopper_shapes import TILE
from tflabench.kernels.state import State

from .backward_dkdv import launch_dkdv
from .backward_dqk import RowSumTensors, empty_row_sums, launch_dqk
from .backward_dv import launch_dv
from .crossings import Starts, through_tiles, tile_sums
from .documents import WalkPlaces, places_of
from .forward import columns_of, exchange_of, initial_matrices, restored
from .launch import WalkInputs
from .segment_states import StateInputs, launch_kept_states, launch_segment_states
from .state import Matrices, States
from .tile_gradients import GradientOutputs, launch_gradients


class WalkStates(NamedTuple):
    """States (B, H, segments, d_qk, d_hv) float32 that segments start from, None for zero, and where dC goes.

    Attributes:
        C: before the first step of a segment.  dC: after its last step.
        dC_0: of dC before the first step of the only segment, None if nobody asks for it.
    """

    C: Tensor | None
    dC: Tensor | None
    dC_0: Tensor | None


class KernelResults(NamedTuple):
    """Results of the kernels of a backward pass.

    Attributes:
        dq, dk, dv: (B, heads, T, d); of dq and dk the sum over all heads that share one of q and k is wanted.
        qdq, kdk: row sums, None without gate gradients.
        through: (B, H, tiles), what passes whole tiles; None if it is to be had from row sums.
    """

    dq: Tensor
    dk: Tensor
    dv: Tensor
    qdq: RowSums | None
    kdk: RowSums | None
    through: Tensor | None
    dskip: Tensor | None


def backward(
    dh: Tensor, d_last: State | None, arguments: Arguments, saved: tuple[Tensor, ...], options: KernelOptions
) -> tuple[Tensor | None, ...]:
    """Return gradients (dq, dk, dv, df, di, dC_0, dn_0), None for what is absent, and dskip if there is a skip."""
    q, k, v, f, i, initial, skip = arguments
    gate, scale, gate_gradients = options.gate, options.scale, options.gate_gradients
    n_0, dn = (None if state is None or state.n is None else state.n.float() for state in (initial, d_last))
    places = places_of(options, q.device)
    plan = _plan(q, v, places, options, end=initial is not None, of_last_n=dn is not None)
    sizes = plan.kernels[0].sizes
    log_f, e, C_starts = restored(gate, saved)
    q, k, v, dh = aligned(-q if scale < 0 else q), aligned(k), aligned(v), aligned(dh)
    # Skip before the walks: those for dk and dv wait for nothing that is launched after dq.
    inputs = WalkInputs(q, k, v, e, floats(skip))
    C_0, _ = initial_matrices(initial, sizes)
    dC, _ = initial_matrices(d_last, sizes)
    states, dC_0 = _walk_states(inputs, dh, plan, C_starts, C_0, dC, exchange_of(options, q, v, sizes))
    if plan.by_tiles:
        made_by_kernels = _tile_by_tile(inputs, dh, plan, states, gate_gradients=gate_gradients)
    else:
        made_by_kernels = _in_walks(inputs, dh, plan.walks, states, places, gate_gradients=gate_gradients)
    dq, dk, dv, qdq, kdk, through, dskip = made_by_kernels
    shape, m_0, cut = (v.shape[0], v.shape[1], v.shape[2]), None if initial is None else initial.m, plan.cut
    if places:
        shape, m_0, cut, (f, i) = (1, v.shape[1], places.count), None, places.cut, places.gates(f, i, gate, m_0)
    dn_0 = dots = None
    if dn is not None:
        every = gates.log_gates(f, i, gate, shape, m_0)
        dn_0, dk, dots = _through_last_n(dn, shared(k, v.shape[1]), dk, every, places)
    elif n_0 is not None:
        dn_0 = torch.zeros_like(n_0)
    df = di = None
    if qdq and kdk:
        if through is None:
            if dots is not None:
                added = dots.new_zeros(shape).index_copy_(2, places.of_steps, dots) if places else dots
                kdk = RowSums(torch.cat([added[None], kdk.every]), kdk.within)
            starts = None
            if states.dC is not None:
                of_segments = (None, None) if places or cut.count == 1 else (states.C, states.dC)
                more = None if n_0 is None or dn_0 is None else (n_0 * dn_0).sum(-1)
                starts = Starts(C_0, dC_0, *of_segments, more if places else _more(more, dots, cut))
            sums = tile_sums(qdq, kdk, cut, starts, documents=places is not None)
            through = through_tiles(sums, e.g, cut, places.gaps if places else None)
        df, di = gates.gate_gradients(f, i, gate, log_f, GradientSums(qdq, kdk, through, TILE), overlap=True)
        if places:
            df, di = places.of_gates((df, di))
    dC_0, _ = columns_of(Matrices(dC_0), q, v)
    made = (sum_shared(-dq if scale < 0 else dq, q), sum_shared(dk, k), dv, df, di, dC_0, dn_0)
    inputs_given = (*arguments[:5], *((None, None) if initial is None else initial[:2]))
    grads = tuple(made_like(x, like) for x, like in zip(made, inputs_given, strict=True))
    return grads if skip is None or dskip is None else (*grads, dskip.to(skip.dtype))


def _plan(
    q: Tensor, v: Tensor, places: WalkPlaces | None, options: KernelOptions, *, end: bool, of_last_n: bool
) -> plans.Backward:
    """Return what backward launches."""
    sizes, device = Sizes.of(q, v), figures_of(q, options)
    if places:
        sizes = sizes._replace(steps=places.count)
        return plans.of_documents(sizes, device, places.documents, gate_gradients=options.gate_gradients)[1]
    return plans.backward(
        sizes, device, options.chunk_size,
        gate_gradients=options.gate_gradients, end=end, of_last_n=of_last_n, exchanges=options.exchange is not None,
    )  # fmt: skip


def _walk_states(
    inputs: WalkInputs, dh: Tensor, plan: plans.Backward, C_starts: Tensor | None, C_0: Tensor | None,
    dC: Tensor | None, exchange: Callable[[Matrices], Matrices] | None,
) -> tuple[WalkStates, Tensor | None]:  # fmt: skip
    """Return what segments start from, and dC before the first step, which a walk may have yet to write.

    Args:
        C_starts: C before each of several segments.
        C_0, dC: (B, H, d_qk, d_hv): C before the first step, dC after the last one; None for zero.
        exchange: is given dC before the first step, and returns the dC to start from.
    """
    if plan.state_pass is None:
        dC_0 = None if C_0 is None else torch.empty_like(C_0)
        return WalkStates(C_0, dC, dC_0), dC_0
    made = launch_segment_states(
        StateInputs(inputs.q, dh, inputs.exponents), plan.state_pass, before=Matrices(dC), exchange=exchange
    )
    C, dC_0 = (C_0 if C_starts is None else C_starts), (None if C_0 is None else made.end.C)
    return WalkStates(C, made.starts.C, None), dC_0


def _tile_by_tile(
    inputs: WalkInputs, dh: Tensor, plan: plans.Backward, states: WalkStates, *, gate_gradients: bool
) -> KernelResults:
    """Make gradients from states of at most 64 by 64 before and after every tile."""
    q, k, v, e, skip, _ = inputs
    B, H, T = v.shape[:3]
    assert plan.by_tiles
    of_C, of_dC, of_tiles = plan.by_tiles
    heads = H // of_tiles.together
    dq, dk, dv = output(q, heads), output(k, heads), output(v, H)
    C = q.new_empty((B, H, plan.cut.tiles, q.shape[-1], v.shape[-1]))
    dC = torch.empty_like(C) if T % TILE else _in_tiles(dv, q.shape[-1])  # of a tile it is read before dv is written
    launch_kept_states(StateInputs(k, v, e), C, of_C, initial=states.C)
    launch_kept_states(StateInputs(q, dh, e), dC, of_dC, initial=states.dC, final=states.dC_0)
    sums = q.new_empty((2, 2, B, H, T), dtype=torch.float32) if gate_gradients else None
    through = torch.empty_like(e.g) if gate_gradients else None
    skip_dots = None if skip is None else torch.empty_like(e.g)
    launch_gradients(
        WalkInputs(q, k, v, e, skip), dh, (C, dC), GradientOutputs(dq, dk, dv), of_tiles,
        skip_dots=skip_dots, row_sums=sums, through=through,
    )  # fmt: skip
    qdq, kdk = (None, None) if sums is None else (RowSums(x, x[1:]) for x in sums)
    return KernelResults(dq, dk, dv, qdq, kdk, through, None if skip_dots is None else skip_dots.sum(-1).sum(0))


def _in_tiles(x: Tensor, rows: int) -> Tensor:
    """Return the first rows of every tile of x (B, H, T, d), T a multiple of a tile: (B, H, tiles, rows, d)."""
    B, H, T, d = x.shape
    b, h, t, column = x.stride()
    return x.as_strided((B, H, T // TILE, rows, d), (b, h, TILE * t, t, column))


def _in_walks(
    inputs: WalkInputs, dh: Tensor, walks: tuple[plans.Walk, ...], states: WalkStates, places: WalkPlaces | None, *,
    gate_gradients: bool,
) -> KernelResults:  # fmt: skip
    """Make gradients in walks: dq, then dk and dv, together or apart."""
    q, k, v, _, skip, _ = inputs
    H = v.shape[1]
    of_dq, *rest = walks
    qdq = kdk = of_q = of_k = skip_dots = None
    if of_dq.sums:
        qdq, kdk = empty_row_sums(q, v) if places is None else places.row_sums(of_dq)
    if qdq and kdk:
        of_q, of_k = RowSumTensors(qdq.every, qdq.within, kdk.within), RowSumTensors(kdk.every)
    if skip is not None:
        skip_dots = q.new_empty((of_dq.column_pieces, *v.shape[:3]), dtype=torch.float32)
    dq, dk, dv = output(q, H), output(k, H), output(v, H)
    if places:
        for x in (dq, dk, dv):
            places.clear(x)

    def of(walk: plans.Walk) -> WalkInputs:
        return inputs if places is None else inputs._replace(documents=places.table(H, walk.programs // walk.pieces))

    launch_dqk(of(of_dq), dh, dq, of_dq, states=States(states.C), reverse=False, sums=of_q, diagonal=skip_dots)
    if len(rest) == 1:
        row_sums = kdk.every if kdk else None
        launch_dkdv(of(*rest), dh, dk, dv, *rest, initial=states.dC, final=states.dC_0, row_sums=row_sums)
    else:
        of_dk, of_dv = rest
        launch_dqk(of(of_dk), dh, dk, of_dk, states=States(states.dC, states.dC_0), reverse=True, sums=of_k)
        launch_dv(of(of_dv), dh, dv, of_dv, initial=states.dC)
    dskip = None if skip_dots is None else skip_dots.sum(-1).sum((0, 1))
    return KernelResults(dq, dk, dv, *((qdq, kdk) if gate_gradients else (None, None)), None, dskip)


def _more(of_n_0: Tensor | None, dots: Tensor | None, cut: Segments) -> Tensor | None:
    """Return what the gradient of the last n adds to X before segments (`Starts`), (segments, B, H), or None.

    Args:
        of_n_0: n_0 . dn_0 (B, H), or None.
        dots: of that gradient, k.dk (B, H, T), or None.
    """
    if dots is None:
        return None
    begins = [TILE * cut.tiles_of(range(segment)) for segment in range(cut.count)]
    made = torch.nn.functional.pad(dots.cumsum(-1), (1, 0))[..., begins].movedim(-1, 0)
    return (made if of_n_0 is None else made + of_n_0).contiguous()


def _through_last_n(
    dn: Tensor, k: Tensor, dk: Tensor, log_gates: LogGates, places: WalkPlaces | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dn_0, dk and k.dk (B, H, T) with what the gradient dn of n_last = sum_j w_j k_j + w_0 n_0 adds.

    It is plain PyTorch, for it is rare, of documents one after the other.
    """
    log_f, log_i = log_gates[:2]
    if places:
        log_gates_of = (x.index_select(2, places.of_steps) for x in (log_f, log_i))
        of_each = zip(*(split(x, places.lengths, 2) for x in (k, dk, *log_gates_of)), strict=True)
        parts = [
            _through_last_n(dn[n : n + 1], k_n, dk_n, LogGates(f_n, i_n, None), None)
            for n, (k_n, dk_n, f_n, i_n) in enumerate(of_each)
        ]
        of_n, of_k, dots = zip(*parts, strict=True)
        return torch.cat(of_n), torch.cat(of_k, 2), torch.cat(dots, 2)
    reach = log_f.flip(-1).cumsum(-1).flip(-1)  # from before each step to the end
    weight = (torch.nn.functional.pad(reach[..., 1:], (0, 1)) + log_i).exp()
    dots = weight * torch.einsum("bhtd,bhd->bht", k.float(), dn)
    dk = (dk.float() + weight[..., None] * dn[:, :, None]).to(dk.dtype)
    return log_f.sum(-1, keepdim=True).exp() * dn, dk, dots


def output(like: Tensor, heads: int) -> Tensor:
    """Return an empty tensor with the strides of torch.empty_like(like).

    It is contiguous where TMA cannot take these, or where heads share one of `like` and each has its own.
    """
    B, _, T, d = like.shape
    out = torch.empty_like(like)
    return out if out.shape[1] == heads and aligned(out) is out else like.new_empty((B, heads, T, d))
