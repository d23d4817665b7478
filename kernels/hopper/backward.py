"""Backward: with several segments their dC, then one walk each for dq, dk and dv, and gate gradients from row sums; one
for dk and dv where a program can hold the whole of dC. States of 64 by 64 are written down before and after every tile
instead, and one kernel makes all gradients of a tile (`takes_tilewise`).

The denominator and m are constants (TFLA, B.3), so the gradient of h before division is dh / denominator. That factor
belongs to a step i, as x does, and forward has taken its log2 from x: dh itself is what the walks read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tflabench.kernels import gates
from tflabench.kernels.gates import Exponents, LogGates, RowSums
from tflabench.kernels.reference import shared, sum_shared
from tflabench.kernels.state import State
from tflabench.kernels.tfla.tiles import aligned, made_like
from tflabench.kernels.types import Gate

from .crossings import through_tiles
from .forward import initial_matrices, restored, weights
from .launch import (
    empty_row_sums,
    heads_added_up,
    launch_gradients,
    launch_pair,
    launch_walk,
    takes_pair,
    takes_tilewise,
)
from .segment_states import StateInputs, launch_kept_states, launch_segment_states
from .shapes import TILE, Segments
from .state import Matrices


def backward(
    dh: Tensor, d_last: State | None, q: Tensor, k: Tensor, v: Tensor, f: Tensor, i: Tensor | None,
    initial: State | None, saved: tuple[Tensor, ...], *,
    gate: Gate, scale: float, chunk_size: int, state_dtype: torch.dtype = torch.float32, config: Any = None,
    skip: Tensor | None = None, gate_gradients: bool = True,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients (dq, dk, dv, df, di, dC_0, dn_0), those of an absent gate or initial state None; dskip if there is one.

    Args:
        dh: gradient of h; d_last: of the last state's C and n, None or with None fields where there is none.
        saved: as `forward` returned it; the other arguments as given to it.
        gate_gradients: without them df and di are None, and the walks are faster by the row sums that these need.
    """
    del state_dtype, config
    given = (q, k, v, f, i)
    cut = Segments.of(q.shape[2], chunk_size)
    log_f, e, C_starts = restored(gate, saved)
    q, k, v, dh = aligned(-q if scale < 0 else q), aligned(k), aligned(v), aligned(dh)
    H, T = v.shape[1:3]
    C_0, n_0 = initial_matrices(initial)
    dC, dn = initial_matrices(d_last)
    first = dC
    dC_0 = None
    if cut.count > 1:
        states = launch_segment_states(
            StateInputs(q, dh, e, reverse=True), cut, before=Matrices(dC), end=C_0 is not None
        )
        first, dC_0 = states.starts.C, states.end.C
    elif C_0 is not None:
        C_starts = C_0
        dC_0 = torch.empty_like(C_0)

    D = weights(skip)  # before the walks: those for dk and dv wait for nothing that is launched after dq
    last = dC_0 if cut.count == 1 else None
    tilewise = dn is None and takes_tilewise(q, v, sums=gate_gradients)
    if tilewise:
        dq, dk, dv, qdq, kdk, through, skip_dots = _side_by_side(
            q, k, v, dh, e, cut, (C_starts, first), last, skip=D, gate_gradients=gate_gradients
        )
    else:
        dq, dk, dv, qdq, kdk, skip_dots = _in_walks(
            q, k, v, dh, e, cut, (C_starts, first), last, skip=D, gate_gradients=gate_gradients
        )
        through = None
    dn_0 = dots = None
    if dn is not None:
        m_0 = None if initial is None else initial.m
        every = gates.log_gates(f, i, gate, (k.shape[0], H, T), m_0)
        dn_0, dk, dots = _through_last_n(dn, shared(k, H), dk, every)
    elif n_0 is not None:
        dn_0 = torch.zeros_like(n_0)
    df = di = None
    if qdq and kdk:
        if through is None:
            x_last = None if dC is None else (_last_state(k, v, e, T, C_0) * dC).sum((-2, -1))
            if dots is not None:
                kdk = RowSums(torch.cat([dots[None], kdk.every]), kdk.within)
                x_last = dots.sum(-1) if x_last is None else x_last + dots.sum(-1)
                if n_0 is not None and dn_0 is not None:
                    x_last = x_last + (n_0 * dn_0).sum(-1)
            through = through_tiles(qdq, kdk, x_last, e.g)
        df, di = gates.gate_gradients(f, i, gate, log_f, qdq, kdk, through, TILE, overlap=True)
    if scale < 0:
        dq = -dq
    dq, dk = sum_shared(dq, given[0]), sum_shared(dk, given[1])
    C_given, n_given = (None, None) if initial is None else initial[:2]
    made = zip((dq, dk, dv, df, di, dC_0, dn_0), (*given, C_given, n_given), strict=True)
    found = tuple(made_like(x, like) for x, like in made)
    return found if skip is None or skip_dots is None else (*found, skip_dots.to(skip.dtype))


def _side_by_side(
    q: Tensor, k: Tensor, v: Tensor, dh: Tensor, e: Exponents, cut: Segments,
    states: tuple[Tensor | None, Tensor | None], last: Tensor | None, *, skip: Tensor | None, gate_gradients: bool,
) -> tuple[Tensor, Tensor, Tensor, RowSums | None, RowSums | None, Tensor | None, Tensor | None]:  # fmt: skip
    """dq, dk and dv, row sums and what passes tiles, or None, and dskip (H,): from states before and after every tile.

    Args:
        states: (B, H, segments, 64, 64): C and dC that segments start from, None where that is zero.
        last: where dC before the first step goes, if anywhere.
    """
    B, H, T = v.shape[:3]
    together = heads_added_up(q, v)
    dq, dk, dv = _output(q, H // together), _output(k, H // together), _output(v, H)
    C = q.new_empty((B, H, cut.tiles * TILE, TILE))
    dC = dv if T % TILE == 0 else torch.empty_like(C)  # of a tile dC is read before dv is written
    launch_kept_states(StateInputs(k, v, e), C, cut, initial=states[0])
    launch_kept_states(StateInputs(q, dh, e, reverse=True), dC, cut, initial=states[1], final=last)
    sums = q.new_empty((2, 2, B, H, T), dtype=torch.float32) if gate_gradients else None
    through = torch.empty_like(e.g) if gate_gradients else None
    skip_dots = None if skip is None else torch.empty_like(e.g)
    launch_gradients(
        q, k, v, dh, C, dC, dq, dk, dv, e, skip=skip, skip_dots=skip_dots, sums=sums, through=through
    )  # fmt: skip
    qdq, kdk = (None, None) if sums is None else (RowSums(x, x[1:]) for x in sums)
    return dq, dk, dv, qdq, kdk, through, None if skip_dots is None else skip_dots.sum(-1).sum(0)


def _in_walks(
    q: Tensor, k: Tensor, v: Tensor, dh: Tensor, e: Exponents, cut: Segments,
    states: tuple[Tensor | None, Tensor | None], last: Tensor | None, *, skip: Tensor | None, gate_gradients: bool,
) -> tuple[Tensor, Tensor, Tensor, RowSums | None, RowSums | None, Tensor | None]:  # fmt: skip
    """dq, dk and dv, row sums or None, and dskip (H,): see `_side_by_side`."""
    H = v.shape[1]
    C, first = states
    qdq, kdk = empty_row_sums(q, v) if gate_gradients else (None, None)
    skip_dots = None if skip is None else q.new_empty((-(-v.shape[-1] // 256), *v.shape[:3]), dtype=torch.float32)
    q_sums: dict[str, Any] = {}
    k_sums: dict[str, Any] = {}
    if qdq and kdk:
        q_sums = {"x": q, "sums": qdq.every, "within": (qdq.within, kdk.within)}
        k_sums = {"x": k, "sums": kdk.every}
    dq = _output(q, H)
    launch_walk(dh, v, k, dq, e, cut, reverse=False, transposed=False, first=C, diagonal=skip_dots, **q_sums)
    dk, dv = _output(k, H), _output(v, H)
    if takes_pair(q.shape[-1], v.shape[-1], sums=gate_gradients):
        sums = kdk.every if kdk else None
        launch_pair(q, k, v, dh, dk, dv, e, cut, first=first, last=last, skip=skip, sums=sums)
    else:
        launch_walk(
            v, dh, q, dk, e, cut, reverse=True, transposed=False, first=first, last=last, independent=True, **k_sums
        )
        launch_walk(k, q, dh, dv, e, cut, reverse=True, transposed=True, first=first, skip=skip, independent=True)
    dskip = None if skip_dots is None else skip_dots.sum(-1).sum((0, 1))
    return dq, dk, dv, qdq, kdk, dskip


def _last_state(k: Tensor, v: Tensor, e: Exponents, T: int, C_0: Tensor | None) -> Tensor:
    """C after the last step, once more: it is large and rarely needed, so forward does not save it."""
    C_last = launch_segment_states(StateInputs(k, v, e), Segments.of(T, T + TILE), before=Matrices(C_0)).end.C
    assert C_last is not None
    return C_last


def _through_last_n(dn: Tensor, k: Tensor, dk: Tensor, log_gates: LogGates) -> tuple[Tensor, Tensor, Tensor]:
    """What the gradient of n_last = sum_j w_j k_j + w_0 n_0 adds: dn_0, dk with it, and its k.dk (B, H, T).

    Plain PyTorch, for it is rare.
    """
    reach = log_gates.log_f.flip(-1).cumsum(-1).flip(-1)  # from before each step to the end
    weight = (torch.nn.functional.pad(reach[..., 1:], (0, 1)) + log_gates.log_i).exp()
    dots = weight * torch.einsum("bhtd,bhd->bht", k.float(), dn)
    dk = (dk.float() + weight[..., None] * dn[:, :, None]).to(dk.dtype)
    return reach[..., :1].exp() * dn, dk, dots


def _output(like: Tensor, heads: int) -> Tensor:
    """An empty tensor with the strides of torch.empty_like(like), or contiguous where TMA cannot take these, or where
    heads share one of `like` and each has its own.
    """
    B, _, T, d = like.shape
    out = torch.empty_like(like)
    return out if out.shape[1] == heads and aligned(out) is out else like.new_empty((B, heads, T, d))
