"""Forward: gates, exponents, with several segments their states, then one walk for h."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from tflabench.kernels.gates import Exponents
from tflabench.kernels.tfla.config import multiprocessors
from tflabench.kernels.tfla.tiles import aligned
from tflabench.kernels.types import Gate, State

from .exponents import TILE, exponents
from .launch import Normaliser, Segments, first_beside, heads_together, launch_segments, launch_walk


def forward(
    q: Tensor, k: Tensor, v: Tensor, f: Tensor, i: Tensor | None, initial: State | None, *,
    gate: Gate, scale: float, chunk_size: int, state_dtype: torch.dtype = torch.float32, config: Any = None,
    skip: Tensor | None = None, return_last_state: bool = True,
) -> tuple[Tensor, State | None, tuple[Tensor, ...]]:  # fmt: skip
    """h, the last state or None, and what `backward` needs besides the inputs (see `empty_saved`).

    Args:
        q, k: (B, H, T, d_qk), or fewer heads, each for consecutive ones of v: (B, H, T, d_hv); bfloat16 or float16, any
            strides (copied where TMA cannot take them).
        f, i: gates as `Gate` describes them; initial: state before the first step, float32.
        chunk_size: L, a multiple of 64: steps between two states in memory; nothing below T materialises none at all.
        state_dtype: without effect: states are float32, one every L steps.
        skip: (H,), for a gate without normaliser: h_t has skip v_t added.
        return_last_state: a pass less over it without.
    """
    del state_dtype, config
    B, H, T, d_hv = v.shape
    d_qk = q.shape[-1]
    cut = Segments.of(T, chunk_size)
    q, k, v_aligned = aligned(-q if scale < 0 else q), aligned(k), aligned(v)  # first: h reads them early (`walk.walk`)
    log_f, m, e = exponents(f, i, gate, (B, H, T), None if initial is None else initial.m, abs(scale))
    C_0, n_0 = initial_matrices(initial)
    h = torch.empty_like(v)
    out = h if aligned(h) is h else torch.empty(v.shape, dtype=v.dtype, device=v.device)
    walk = partial(
        launch_walk, q, k, v_aligned, out, e, cut, reverse=False, transposed=True, skip=weights(skip)
    )  # fmt: skip
    states, walked = (), range(cut.count)
    if cut.count > 1:
        beside = 0
        if not (gate.normalize or return_last_state or heads_together(q, v) > 1) and C_0 is None:
            beside = first_beside(d_qk, d_hv, B * H, cut, multiprocessors(q.device))
        (C, n), (C_last, n_last) = launch_segments(
            k, v_aligned, e, cut, reverse=False, start=(C_0, n_0), norm=gate.normalize, end=return_last_state,
            beside=(lambda after: walk(last=after, walked=range(1), independent=True)) if beside else None,
            beside_programs=beside,
        )  # fmt: skip
        walked = walked[1:] if beside else walked
        last, states = None, (C,)
    else:
        C, n, C_last, n_last = C_0, n_0, None, None
        if return_last_state:
            C_last = torch.empty((B, H, d_qk, d_hv), dtype=torch.float32, device=q.device)
            n_last = torch.empty((B, H, d_qk), dtype=torch.float32, device=q.device) if gate.normalize else None
        last = C_last
    norm, back = None, e.x
    if gate.normalize:
        back = torch.empty_like(e.x)
        bound = torch.zeros((B, H, T), dtype=torch.float32, device=q.device) if m is None else m
        norm = Normaliser(bound, n, back, n_last)
    walk(first=C, last=last, norm=norm, walked=walked)
    if out is not h:
        h.copy_(out)
    state = None
    if return_last_state:
        assert C_last is not None
        state = State(C_last, n_last, None if m is None else m[:, :, -1].contiguous())
    return h, state, (*(() if log_f is None else (log_f,)), back, e.y, e.g, *states)


def empty_saved(
    q: Tensor, v: Tensor, *, gate: Gate, chunk_size: int, state_dtype: torch.dtype = torch.float32, config: Any = None
) -> tuple[Tensor, ...]:
    """What `forward` saves, uninitialised: log f of a stabilised gate, exponents of backward (x less log2 of the
    denominator, y, g), and with several segments the state each starts from; all float32.
    """
    del state_dtype, config
    B, H, T, d_hv = v.shape
    d_qk = q.shape[-1]
    cut = Segments.of(T, chunk_size)
    shapes = [*[(B, H, T)] * gate.stabilized, *[(B, H, cut.tiles * TILE)] * 2, (B, H, cut.tiles)]
    states = [(B, H, cut.count, d_qk, d_hv)] if cut.count > 1 else []
    return tuple(q.new_empty(shape, dtype=torch.float32) for shape in (*shapes, *states))


def initial_matrices(state: State | None) -> tuple[Tensor | None, Tensor | None]:
    """C and n as the kernels take them."""
    if state is None:
        return None, None
    C, n = (None if x is None else x.float().contiguous() for x in state[:2])
    return C, n


def weights(skip: Tensor | None) -> Tensor | None:
    """skip (H,) as the kernels take it."""
    return None if skip is None else skip.float().contiguous()


def restored(gate: Gate, saved: tuple[Tensor, ...]) -> tuple[Tensor | None, Exponents, Tensor | None]:
    """log f, the exponents of backward and the states of segments out of what `forward` saved."""
    log_f, (x, y, g, *states) = (saved[0], saved[1:]) if gate.stabilized else (None, saved)
    return log_f, Exponents(x, y, g), states[0] if states else None
