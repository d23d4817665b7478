"""The Gluon kernels of hopper/ in PyTorch: what their host code launches on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tflabench.kernels.scalar import reference

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported

pytest.importorskip("triton.experimental.gluon")

from tflabench.kernels.common.sizes import Device
from tflabench.kernels.scalar.hopper import backward as hopper_backward
from tflabench.kernels.scalar.hopper import forward as hopper_forward
from tflabench.kernels.scalar.hopper.backward_dqk import RowSumTensors
from tflabench.kernels.scalar.hopper.exponents import TILE
from tflabench.kernels.scalar.hopper.launch import WalkInputs
from tflabench.kernels.scalar.hopper.normaliser import NormaliserTensors
from tflabench.kernels.scalar.hopper.segment_states import SegmentStates, StateInputs
from tflabench.kernels.scalar.hopper.state import Matrices, States
from tflabench.kernels.scalar.hopper.tile_gradients import GradientOutputs
from tflabench.kernels.scalar.plan import hopper as plans
from tflabench.kernels.scalar.plan.hopper_segments import Segments


def tiles_of(x: Tensor) -> Tensor:
    """(B, H, T, d) -> (B, H, tiles, 64, d) float64, zeros beyond T."""
    T = x.shape[2]
    return torch.nn.functional.pad(x.double(), (0, 0, 0, -T % TILE)).unflatten(2, (-1, TILE))


def walk_tiles(cut: Segments, segment: int, reverse: bool) -> list[int]:
    after = cut.tiles - (cut.count - 1 - segment) * cut.segment_tiles
    tiles = range(max(0, after - cut.segment_tiles), after)
    return list(reversed(tiles)) if reverse else list(tiles)


def strides_of(state: Tensor, cut: Segments) -> tuple[int, ...]:
    """Of (B, H, segments, *state): of a state (B, H, ...) for each segment."""
    a_segment, H = state[0, 0].numel(), state.shape[1]
    return (H * cut.count * a_segment, cut.count * a_segment, a_segment, *state[0, 0].contiguous().stride())


unfinished: list[Tensor] = []  # what kernels write that may still run when the next one of the walks starts


def start(given: tuple[Tensor | None, ...], made: tuple[Tensor | None, ...], independent: bool) -> None:
    """A kernel that does not wait for those before it must not read what they write."""
    if not independent:
        unfinished.clear()
    memory = {x.untyped_storage().data_ptr() for x in unfinished}
    assert not memory & {x.untyped_storage().data_ptr() for x in given if x is not None}
    unfinished.extend(x for x in made if x is not None)


def emulate_walk(
    u: Tensor, w: Tensor, z: Tensor, out: Tensor, exponents: Any, cut: Segments, *, reverse: bool, transposed: bool,
    first: Tensor | None = None, last: Tensor | None = None, x: Tensor | None = None, sums: Tensor | None = None,
    within: tuple[Tensor, ...] | None = None, norm: NormaliserTensors | None = None, skip: Tensor | None = None,
    diagonal: Tensor | None = None, independent: bool = False, walked: range | None = None,
    kept: tuple[Tensor, Segments] | None = None,
) -> None:  # fmt: skip
    given = (u, w, z, x, *exponents, first, skip, norm and norm.m, norm and norm.initial)
    start(given, (out, last, sums, *(within or ()), diagonal), independent)
    H, T = exponents.x.shape[1], out.shape[2]
    U, W, Z = (tiles_of(reference.shared(y, H)) for y in (u, w, z))
    O = torch.full_like(Z, torch.nan)  # noqa: E741
    through = torch.zeros_like(Z[..., 0])
    pairs = torch.zeros(2, *through.shape)
    X = None if x is None else tiles_of(reference.shared(x, H))
    a_u, a_z = (e.double().unflatten(2, (-1, TILE)) for e in (exponents.x, exponents.y)[:: -1 if reverse else 1])
    g_all = exponents.g.double()
    keep = torch.ones(TILE, TILE, dtype=torch.bool)
    keep = keep.triu() if reverse else keep.tril()
    written = torch.zeros(T, dtype=torch.bool)
    starts = {}
    if kept is not None:
        starts = {walk_tiles(kept[1], n, False)[0]: kept[0][:, :, n] for n in range(kept[1].count)}
    for segment in walked or range(cut.count):
        S = U.new_zeros(*U.shape[:2], Z.shape[-1], U.shape[-1])
        n = U.new_zeros(*U.shape[:2], U.shape[-1])
        if first is not None:
            S = first.reshape(*S.shape[:2], cut.count, *first.shape[-2:])[:, :, segment].double()
            S = S.transpose(-1, -2) if transposed else S
        if norm is not None and norm.initial is not None:
            n = norm.initial.reshape(*n.shape[:2], cut.count, -1)[:, :, segment].double()
        for t in walk_tiles(cut, segment, reverse):
            if t in starts:
                starts[t].copy_(S.mT if transposed else S)
            written[t * TILE : (t + 1) * TILE] = True
            g = g_all[:, :, t, None]
            au, az = a_u[:, :, t], a_z[:, :, t]
            r = (au + g if reverse else au).exp2()
            s = (az if reverse else az + g).exp2()
            D = (au[..., :, None] + az[..., None, :]).masked_fill(~keep, -torch.inf).exp2()
            P = U[:, :, t] @ W[:, :, t].mT * D
            if skip is not None:
                P = P + skip.double()[:, None, None] * torch.eye(TILE)
            if norm is not None:
                total = r * (U[:, :, t] @ n[..., None])[..., 0] + P.sum(-1)
                m = torch.nn.functional.pad(norm.m, (0, -T % TILE)).double()[:, :, t * TILE : (t + 1) * TILE]
                denominator = torch.maximum(total.abs(), (-m).exp())
                norm.x_backward[:, :, t * TILE : (t + 1) * TILE] = au - denominator.log2()
                P, r = P / denominator[..., None], r / denominator
                n = n * g.exp2() + (s[..., None] * W[:, :, t]).sum(-2)
            from_state = r[..., None] * (U[:, :, t] @ S.mT)
            O[:, :, t] = P @ Z[:, :, t] + from_state
            if X is not None:
                through[:, :, t] = (X[:, :, t] * from_state).sum(-1)
                M = P * (X[:, :, t] @ Z[:, :, t].mT)
                pairs[0, :, :, t], pairs[1, :, :, t] = M.sum(-1), M.sum(-2)
            S = g[..., None].exp2() * S + (s[..., None] * Z[:, :, t]).mT @ W[:, :, t]
        for place, found in ((last, S.mT if transposed else S), (norm and norm.final, n)):
            if place is not None and place.ndim == 1:  # `skip_first_segment`
                place.as_strided((*found.shape[:2], 1, *found.shape[2:]), strides_of(found, cut))[:, :, 0] = found
            elif place is not None:
                place.copy_(found.reshape(place.shape))
    made = O.flatten(2, 3)[:, :, :T].unflatten(1, (out.shape[1], -1)).sum(2)
    out[:, :, written] = made[:, :, written].to(out.dtype)
    if diagonal is not None:
        diagonal.copy_((U * W).sum(-1).flatten(2)[:, :, :T])
    for place, found in ((sums, through), *zip(within or (), pairs, strict=False)):
        if place is not None:
            place[:1] = found.flatten(2)[:, :, :T]


def emulate_walk_forward(
    inputs: WalkInputs, h: Tensor, walk: plans.Walk, *,
    states: States, norm: NormaliserTensors | None = None, independent: bool = False,
) -> None:  # fmt: skip
    q, k, v, exponents, skip, _ = inputs
    emulate_walk(
        q, k, v, h, exponents, walk.cut, reverse=False, transposed=True, first=states.initial, last=states.final,
        norm=norm, skip=skip, independent=independent, walked=walk.segments,
        kept=None if walk.kept is None else (states.kept, walk.kept),
    )  # fmt: skip


def emulate_dqk(
    inputs: WalkInputs, dh: Tensor, out: Tensor, walk: plans.Walk, *,
    states: States, reverse: bool, sums: RowSumTensors | None = None, diagonal: Tensor | None = None,
) -> None:  # fmt: skip
    q, k, v, exponents, *_ = inputs
    u, w, z, x = (v, dh, q, k) if reverse else (dh, v, k, q)
    through, *within = sums or (None,)
    emulate_walk(
        u, w, z, out, exponents, walk.cut, reverse=reverse, transposed=False, first=states.initial, last=states.final,
        x=x if sums else None, sums=through, within=tuple(within), diagonal=diagonal, independent=reverse,
    )  # fmt: skip


def emulate_dv(inputs: WalkInputs, dh: Tensor, dv: Tensor, walk: plans.Walk, *, initial: Tensor | None) -> None:
    q, k, _, exponents, skip, _ = inputs
    emulate_walk(
        k, q, dh, dv, exponents, walk.cut, reverse=True, transposed=True, first=initial, skip=skip, independent=True
    )  # fmt: skip


def emulate_packed_heads(inputs: WalkInputs, h: Tensor, walk: plans.Walk, states: States) -> None:
    emulate_walk_forward(inputs, h, walk, states=states)


def emulate_dkdv(
    inputs: WalkInputs, dh: Tensor, dk: Tensor, dv: Tensor, walk: plans.Walk, *,
    initial: Tensor | None = None, final: Tensor | None = None, row_sums: Tensor | None = None,
) -> None:  # fmt: skip
    q, k, v, exponents, skip, _ = inputs
    cut = walk.cut
    start((q, k, v, dh, *exponents, initial, skip), (dk, dv, final, row_sums), independent=True)
    H, T = dv.shape[1:3]
    Q, K, V, dH = (tiles_of(reference.shared(y, H)) for y in (q, k, v, dh))
    dK, dV = torch.full_like(K, torch.nan), torch.full_like(V, torch.nan)
    through = torch.zeros_like(K[..., 0])
    x, y = (e.double().unflatten(2, (-1, TILE)) for e in exponents[:2])
    keep = torch.ones(TILE, TILE, dtype=torch.bool).triu()  # [j, i]
    for segment in range(cut.count):
        dC = Q.new_zeros(*Q.shape[:2], Q.shape[-1], V.shape[-1])
        if initial is not None:
            dC = initial.reshape(*dC.shape[:2], cut.count, *dC.shape[2:])[:, :, segment].double()
        for t in walk_tiles(cut, segment, reverse=True):
            g = exponents.g.double()[:, :, t, None]
            D = (y[:, :, t, :, None] + x[:, :, t, None, :]).masked_fill(~keep, -torch.inf).exp2()
            r = (y[:, :, t] + g).exp2()[..., None]
            P, dP = K[:, :, t] @ Q[:, :, t].mT * D, V[:, :, t] @ dH[:, :, t].mT * D
            if skip is not None:
                P = P + skip.double()[:, None, None] * torch.eye(TILE)
            from_state = r * (V[:, :, t] @ dC.mT)
            dK[:, :, t] = dP @ Q[:, :, t] + from_state
            through[:, :, t] = (K[:, :, t] * from_state).sum(-1)
            dV[:, :, t] = P @ dH[:, :, t] + (r * K[:, :, t]) @ dC
            dC = g[..., None].exp2() * dC + (x[:, :, t].exp2()[..., None] * Q[:, :, t]).mT @ dH[:, :, t]
        if final is not None:
            final.copy_(dC.reshape(final.shape))
    for kept, found in ((dk, dK), (dv, dV)):
        kept.copy_(found.flatten(2, 3)[:, :, :T])
    if row_sums is not None:
        row_sums[0] = through.flatten(2)[:, :, :T]


def emulate_segment_states(
    inputs: StateInputs, of: plans.StatePass, *, before: Matrices, normalise: bool = False,
    first_segment: Callable[[Matrices], None] | None = None,
) -> SegmentStates:  # fmt: skip
    z, w, exponents = inputs
    cut, reverse, end = of.cut, of.reverse, of.end
    assert of.resumed == (first_segment is not None)
    B, H = w.shape[:2]
    states = Matrices(
        torch.full((B, H, cut.count, z.shape[-1], w.shape[-1]), torch.nan),
        torch.full((B, H, cut.count, z.shape[-1]), torch.nan) if normalise else None,
    )
    if first_segment:
        for state, first in zip(states, before, strict=True):
            if state is not None and first is not None:
                state[:, :, 0] = first
    unfinished.clear()  # the state pass waits at once
    if first_segment:
        unfinished.append(torch.empty(0))
        first_segment(states)
        after_first_segment = [None if state is None else state[:, :, 1].clone() for state in states]
    unfinished.clear()
    Z, W = tiles_of(reference.shared(z, H)), tiles_of(w)
    a = (exponents.x if reverse else exponents.y).double().unflatten(2, (-1, TILE))
    C = Z.new_zeros(B, H, Z.shape[-1], W.shape[-1]) if before.C is None else before.C.double()
    n = Z.new_zeros(B, H, Z.shape[-1]) if before.n is None else before.n.double()
    C_states, n_states = [], []
    for segment in reversed(range(cut.count)) if reverse else range(cut.count):
        C_states.append(C)
        n_states.append(n)
        for t in walk_tiles(cut, segment, reverse):
            g = exponents.g.double()[:, :, t, None]
            s = (a[:, :, t] if reverse else a[:, :, t] + g).exp2()[..., None] * Z[:, :, t]
            C, n = g[..., None].exp2() * C + s.mT @ W[:, :, t], g.exp2() * n + s.sum(-2)
    order = slice(None, None, -1) if reverse else slice(None)
    stacked, n_stacked = (torch.stack(x[order], 2).float() for x in (C_states, n_states))
    if first_segment:
        for found, exact in zip(after_first_segment, (stacked, n_stacked), strict=True):
            if found is not None:
                torch.testing.assert_close(found, exact[:, :, 1])
    after = Matrices(C.float(), n.float() if normalise else None) if end else Matrices()
    return SegmentStates(Matrices(stacked, n_stacked if normalise else None), after)


def emulate_kept_states(
    inputs: StateInputs, kept: Tensor, of: plans.StatePass, *,
    initial: Tensor | None = None, final: Tensor | None = None,
) -> None:  # fmt: skip
    z, w, exponents = inputs
    cut, reverse = of.cut, of.reverse
    start((z, w, *exponents, initial), (kept, final), independent=False)
    B, H = w.shape[:2]
    Z, W = tiles_of(reference.shared(z, H)), tiles_of(w)
    a = (exponents.x if reverse else exponents.y).double().unflatten(2, (-1, TILE))
    rows, columns = kept.shape[-2:]
    found = torch.full((B, H, cut.tiles, rows, columns), torch.nan)
    for segment in range(cut.count):
        C = Z.new_zeros(B, H, rows, columns)
        if initial is not None:
            C = initial.reshape(B, H, cut.count, rows, columns)[:, :, segment].double()
        for t in walk_tiles(cut, segment, reverse):
            found[:, :, t] = C
            g = exponents.g.double()[:, :, t, None]
            s = (a[:, :, t] if reverse else a[:, :, t] + g).exp2()[..., None] * Z[:, :, t]
            C = g[..., None].exp2() * C + s.mT @ W[:, :, t]
        if final is not None:
            final.view(B, H, cut.count, rows, columns)[:, :, segment] = C
    kept.copy_(found)


def emulate_gradients(
    inputs: WalkInputs, dh: Tensor, states: tuple[Tensor, Tensor], outputs: GradientOutputs, of: plans.TileGradients, *,
    skip_dots: Tensor | None = None, row_sums: Tensor | None = None, through: Tensor | None = None,
) -> None:  # fmt: skip
    q, k, v, exponents, skip, _ = inputs
    C, dC = states
    dq, dk, dv = outputs
    assert dq.shape[1] == v.shape[1] // of.together
    start((q, k, v, dh, C, dC, *exponents, skip), (dq, dk, dv, skip_dots, row_sums, through), independent=False)
    H, T = v.shape[1:3]
    Q, K, V, dH = (tiles_of(reference.shared(x, H)) for x in (q, k, v, dh))
    before, after = C.double(), dC.double()
    x, y = (e.double().unflatten(2, (-1, TILE)) for e in exponents[:2])
    g = exponents.g.double()[..., None]
    E = (y[..., :, None] + x[..., None, :]).masked_fill(~torch.ones(TILE, TILE, dtype=torch.bool).triu(), -torch.inf)
    S, D = K @ Q.mT * E.exp2(), V @ dH.mT
    if skip_dots is not None:
        skip_dots.copy_(D.diagonal(dim1=-2, dim2=-1).sum(-1))
    D = D * E.exp2()
    pairs = K @ Q.mT * D
    through_q = x.exp2()[..., None] * (dH @ before.mT)
    through_k, through_v = ((y + g).exp2()[..., None] * made for made in (V @ after.mT, K @ after))
    if skip is not None:
        S = S + skip.double()[:, None, None, None] * torch.eye(TILE)
    for out, found in ((dq, D.mT @ K + through_q), (dk, D @ Q + through_k), (dv, S @ dH + through_v)):
        out.copy_(found.flatten(2, 3)[:, :, :T].unflatten(1, (out.shape[1], -1)).sum(2))
    if row_sums is not None and through is not None:
        every = ((Q * through_q).sum(-1), pairs.sum(-2), (K * through_k).sum(-1), pairs.sum(-1))
        row_sums.copy_(torch.stack([found.flatten(2)[:, :, :T] for found in every]).view(row_sums.shape))
        through.copy_((g.exp2()[..., None] * before * after).sum((-2, -1)))


def made_by_a_kernel(skip: Tensor | None) -> Tensor | None:
    """What `weights` gives where it has to convert: PyTorch's kernel may still run too when the next one starts."""
    found = None if skip is None else skip.clone()
    if found is not None:
        unfinished.append(found)
    return found


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper_backward, "weights", made_by_a_kernel)
    monkeypatch.setattr(hopper_backward, "launch_dkdv", emulate_dkdv)
    monkeypatch.setattr(hopper_backward, "launch_kept_states", emulate_kept_states)
    monkeypatch.setattr(hopper_backward, "launch_gradients", emulate_gradients)
    monkeypatch.setattr(hopper_backward, "figures", lambda _: Device(90, 3))  # dq and dk are sums over fewer heads
    monkeypatch.setattr(hopper_forward, "figures", lambda _: Device(90, 132))
    monkeypatch.setattr(hopper_forward, "launch_walk", emulate_walk_forward)
    monkeypatch.setattr(hopper_forward, "launch_packed_heads", emulate_packed_heads)
    for name, emulate in (("launch_dqk", emulate_dqk), ("launch_dv", emulate_dv)):
        monkeypatch.setattr(hopper_backward, name, emulate)
    monkeypatch.setattr(plans, "held", lambda sizes: sizes)  # what is emulated has no blocks to fill
    for module in (hopper_forward, hopper_backward):
        monkeypatch.setattr(module, "launch_segment_states", emulate_segment_states)
        monkeypatch.setattr(module, "aligned", lambda x: x)
