"""Forward: gates, exponents, with several segments their states, and a walk for h; of a short first segment beside the
pass that makes the states of the others. Where backward is cut otherwise h writes down what its segments start from.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tflabench.kernels.gates import Exponents
from tflabench.kernels.state import State
from tflabench.kernels.tfla.device import multiprocessors
from tflabench.kernels.tfla.tiles import aligned
from tflabench.kernels.types import Gate

from .cuts import Shape, chosen_beside_backward
from .exponents import exponents
from .launch import (
    Beside,
    Normaliser,
    after_first,
    first_beside,
    heads_together,
    launch_segments,
    launch_walk,
)
from .shapes import TILE, Segments

Matrices = tuple[Tensor | None, Tensor | None]  # C and n of a state, or where they go


def forward(
    q: Tensor, k: Tensor, v: Tensor, f: Tensor, i: Tensor | None, initial: State | None, *,
    gate: Gate, scale: float, chunk_size: int, state_dtype: torch.dtype = torch.float32, config: Any = None,
    skip: Tensor | None = None, return_last_state: bool = True, cut_freely: bool = False,
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
        cut_freely: chunk_size is that of backward, for which states are saved; forward may cut the sequence otherwise.
    """
    del state_dtype, config
    B, H, T, d_hv = v.shape
    d_qk = q.shape[-1]
    together = not gate.normalize and heads_together(q, v) > 1
    cut = of_backward = Segments.of(T, chunk_size)
    kept, states = None, ()
    if cut_freely and cut.count > 1 and not together:
        cut = Segments.of(T, chosen_beside_backward(Shape.of(q, v, gate)).chunk_size(T))
        if cut != of_backward:
            states = (torch.empty((B, H, of_backward.count, d_qk, d_hv), dtype=torch.float32, device=q.device),)
            kept = *states, of_backward
    # First, for h may read them before it waits for a kernel (`walk.walk`).
    q, k, v_aligned, skip = aligned(-q if scale < 0 else q), aligned(k), aligned(v), weights(skip)
    log_f, m, e = exponents(f, i, gate, (B, H, T), None if initial is None else initial.m, abs(scale))
    h = torch.empty_like(v)
    out = h if aligned(h) is h else torch.empty(v.shape, dtype=v.dtype, device=v.device)
    bound = back = None
    if gate.normalize:
        bound = torch.zeros((B, H, T), dtype=torch.float32, device=q.device) if m is None else m
        back = torch.empty_like(e.x)

    def walk(first: Matrices, last: Matrices, **how: Any) -> None:
        norm = None if bound is None or back is None else Normaliser(bound, first[1], back, last[1])
        launch_walk(
            q, k, v_aligned, out, e, cut, reverse=False, transposed=True,
            first=first[0], last=last[0], norm=norm, skip=skip, kept=kept, **how,
        )  # fmt: skip

    start, last, ends, walked = initial_matrices(initial), (None, None), (None, None), range(cut.count)

    def walk_first(C: Tensor, n: Tensor | None) -> None:
        after = after_first(C), None if n is None else after_first(n)
        walk((None, None) if initial is None else (C, n), after, walked=range(1), independent=True)

    if cut.count > 1:
        programs = 0
        if not together:
            programs = first_beside(d_qk, d_hv, B * H, cut, multiprocessors(q.device), norm=gate.normalize)
        starts, ends = launch_segments(
            k, v_aligned, e, cut, reverse=False, start=start, norm=gate.normalize, end=return_last_state,
            beside=Beside(programs, walk_first) if programs else None,
        )  # fmt: skip
        start, states, walked = starts, states or starts[:1], walked[bool(programs) :]
    elif return_last_state:
        C_last = torch.empty((B, H, d_qk, d_hv), dtype=torch.float32, device=q.device)
        n_last = torch.empty((B, H, d_qk), dtype=torch.float32, device=q.device) if gate.normalize else None
        ends = last = C_last, n_last
    walk(start, last, walked=walked)
    if out is not h:
        h.copy_(out)
    state = None
    if return_last_state:
        C_last, n_last = ends
        assert C_last is not None
        state = State(C_last, n_last, None if m is None else m[:, :, -1].contiguous())
    return h, state, (*(() if log_f is None else (log_f,)), e.x if back is None else back, e.y, e.g, *states)


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


def initial_matrices(state: State | None) -> Matrices:
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
