"""The fused Hopper kernels without a GPU: their algebra in float64, tile by tile, and what they compile to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tflabench.kernels import reference
from tflabench.kernels.state import State
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG, Gate

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported

pytest.importorskip("triton.experimental.gluon")

from tflabench.kernels.hopper import backward as hopper_backward
from tflabench.kernels.hopper import chunkwise as hopper_chunkwise
from tflabench.kernels.hopper import forward as hopper_forward
from tflabench.kernels.hopper import launch as hopper_launch
from tflabench.kernels.hopper.cuts import Shape, chosen_beside_backward
from tflabench.kernels.hopper.exponents import TILE
from tflabench.kernels.hopper.launch import PACK, Beside, Normaliser, Segments
from tflabench.kernels.hopper.segments import carry

ROOT = Path(__file__).parents[1]
OLD_TRITON = Path(os.environ.get("TFLABENCH_OLD_TRITON", ".triton-3.6.0"))
SHARED_BYTES = 232_448
SPILLED_BYTES = 256  # stores and loads, outside the loops over tiles but for a few in the normalised h of 256/512
SPILLED_BYTES_NEWER = {"128/256": 160, "256/512": 320, "64/64": 128}  # on Triton 3.9
# Its roles fill their registers, and a few in a loop cost much: without row sums there is 0, with them 32 to 48.
SPILLED_BYTES_OF_PAIR, SPILLED_BYTES_OF_PAIR_WITH_SUMS = 16, 48
GATES = {
    "exp": MLSTM_EXP,
    "sig": MLSTM_SIG,
    "sig_normalized": Gate("sigmoid", "sigmoid", normalize=True),
    "exp_unnormalized": Gate("sigmoid", "exp"),
    "retention": Gate("fixed", "none"),
    "mamba2": Gate("log_decay", "step"),
}


# --- The kernels of walk.py, pair.py, segments.py and tilewise.py, in PyTorch -----------------------------------------


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
    within: tuple[Tensor, Tensor] | None = None, norm: Normaliser | None = None, skip: Tensor | None = None,
    diagonal: Tensor | None = None, independent: bool = False, walked: range | None = None,
    kept: tuple[Tensor, Segments] | None = None,
) -> None:  # fmt: skip
    given = (u, w, z, x, *exponents, first, skip, norm and norm.m, norm and norm.first)
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
        if norm is not None and norm.first is not None:
            n = norm.first.reshape(*n.shape[:2], cut.count, -1)[:, :, segment].double()
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
                norm.back[:, :, t * TILE : (t + 1) * TILE] = au - denominator.log2()
                P, r = P / denominator[..., None], r / denominator
                n = n * g.exp2() + (s[..., None] * W[:, :, t]).sum(-2)
            from_state = r[..., None] * (U[:, :, t] @ S.mT)
            O[:, :, t] = P @ Z[:, :, t] + from_state
            if X is not None:
                through[:, :, t] = (X[:, :, t] * from_state).sum(-1)
                M = P * (X[:, :, t] @ Z[:, :, t].mT)
                pairs[0, :, :, t], pairs[1, :, :, t] = M.sum(-1), M.sum(-2)
            S = g[..., None].exp2() * S + (s[..., None] * Z[:, :, t]).mT @ W[:, :, t]
        for place, found in ((last, S.mT if transposed else S), (norm and norm.last, n)):
            if place is not None and place.ndim == 1:  # `after_first`
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


def emulate_pair(
    q: Tensor, k: Tensor, v: Tensor, dh: Tensor, dk: Tensor, dv: Tensor, exponents: Any, cut: Segments, *,
    first: Tensor | None = None, last: Tensor | None = None, skip: Tensor | None = None, sums: Tensor | None = None,
) -> None:  # fmt: skip
    start((q, k, v, dh, *exponents, first, skip), (dk, dv, last, sums), independent=True)
    H, T = dv.shape[1:3]
    Q, K, V, dH = (tiles_of(reference.shared(y, H)) for y in (q, k, v, dh))
    dK, dV = torch.full_like(K, torch.nan), torch.full_like(V, torch.nan)
    through = torch.zeros_like(K[..., 0])
    x, y = (e.double().unflatten(2, (-1, TILE)) for e in exponents[:2])
    keep = torch.ones(TILE, TILE, dtype=torch.bool).triu()  # [j, i]
    for segment in range(cut.count):
        dC = Q.new_zeros(*Q.shape[:2], Q.shape[-1], V.shape[-1])
        if first is not None:
            dC = first.reshape(*dC.shape[:2], cut.count, *dC.shape[2:])[:, :, segment].double()
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
        if last is not None:
            last.copy_(dC.reshape(last.shape))
    for kept, found in ((dk, dK), (dv, dV)):
        kept.copy_(found.flatten(2, 3)[:, :, :T])
    if sums is not None:
        sums[0] = through.flatten(2)[:, :, :T]


def emulate_segments(
    z: Tensor, w: Tensor, exponents: Any, cut: Segments, *, reverse: bool, start: tuple[Tensor | None, Tensor | None],
    norm: bool, end: bool = True, beside: Beside | None = None,
) -> Any:  # fmt: skip
    B, H = w.shape[:2]
    states: tuple[Tensor, Tensor | None] = (
        torch.full((B, H, cut.count, z.shape[-1], w.shape[-1]), torch.nan),
        torch.full((B, H, cut.count, z.shape[-1]), torch.nan) if norm else None,
    )
    if beside:
        for state, first in zip(states, start, strict=True):
            if state is not None and first is not None:
                state[:, :, 0] = first
    unfinished.clear()  # the state pass waits at once
    if beside:
        unfinished.append(torch.empty(0))
        beside.walk(*states)
        after_first_segment = [None if state is None else state[:, :, 1].clone() for state in states]
    unfinished.clear()
    Z, W = tiles_of(reference.shared(z, H)), tiles_of(w)
    a = (exponents.x if reverse else exponents.y).double().unflatten(2, (-1, TILE))
    C = Z.new_zeros(B, H, Z.shape[-1], W.shape[-1]) if start[0] is None else start[0].double()
    n = Z.new_zeros(B, H, Z.shape[-1]) if start[1] is None else start[1].double()
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
    if beside:
        for found, exact in zip(after_first_segment, (stacked, n_stacked), strict=True):
            if found is not None:
                torch.testing.assert_close(found, exact[:, :, 1])
    after = (C.float(), n.float() if norm else None) if end else (None, None)
    return (stacked, n_stacked if norm else None), after


def emulate_kept_states(
    z: Tensor, w: Tensor, kept: Tensor, exponents: Any, cut: Segments, *,
    reverse: bool, first: Tensor | None = None, last: Tensor | None = None,
) -> None:  # fmt: skip
    start((z, w, *exponents, first), (kept, last), independent=False)
    B, H = w.shape[:2]
    Z, W = tiles_of(reference.shared(z, H)), tiles_of(w)
    a = (exponents.x if reverse else exponents.y).double().unflatten(2, (-1, TILE))
    found = torch.full((B, H, cut.tiles, TILE, TILE), torch.nan)
    for segment in range(cut.count):
        C = Z.new_zeros(B, H, TILE, TILE)
        if first is not None:
            C = first.reshape(B, H, cut.count, TILE, TILE)[:, :, segment].double()
        for t in walk_tiles(cut, segment, reverse):
            found[:, :, t] = C
            g = exponents.g.double()[:, :, t, None]
            s = (a[:, :, t] if reverse else a[:, :, t] + g).exp2()[..., None] * Z[:, :, t]
            C = g[..., None].exp2() * C + s.mT @ W[:, :, t]
        if last is not None:
            last.view(B, H, cut.count, TILE, TILE)[:, :, segment] = C
    kept.copy_(found.flatten(2, 3))


def emulate_gradients(
    q: Tensor, k: Tensor, v: Tensor, dh: Tensor, C: Tensor, dC: Tensor, dq: Tensor, dk: Tensor, dv: Tensor,
    exponents: Any, *,
    skip: Tensor | None = None, skip_dots: Tensor | None = None, sums: Tensor | None = None,
    through: Tensor | None = None,
) -> None:  # fmt: skip
    start((q, k, v, dh, C, dC, *exponents, skip), (dq, dk, dv, skip_dots, sums, through), independent=False)
    H, T = v.shape[1:3]
    Q, K, V, dH = (tiles_of(reference.shared(x, H)) for x in (q, k, v, dh))
    before, after = tiles_of(C), tiles_of(dC)
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
    if sums is not None and through is not None:
        every = ((Q * through_q).sum(-1), pairs.sum(-2), (K * through_k).sum(-1), pairs.sum(-1))
        sums.copy_(torch.stack([found.flatten(2)[:, :, :T] for found in every]).view(sums.shape))
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
    monkeypatch.setattr(hopper_backward, "launch_pair", emulate_pair)
    monkeypatch.setattr(hopper_backward, "launch_kept_states", emulate_kept_states)
    monkeypatch.setattr(hopper_backward, "launch_gradients", emulate_gradients)
    monkeypatch.setattr(hopper_launch, "multiprocessors", lambda _: 3)  # a sum of dq and dk over fewer heads than share
    monkeypatch.setattr(hopper_forward, "multiprocessors", lambda _: 132)
    of_64 = partial(hopper_launch.first_beside, 64)  # the heads here are smaller than any that a kernel takes
    monkeypatch.setattr(hopper_forward, "first_beside", lambda _d_qk, *sizes, norm: of_64(*sizes, norm=norm))
    for module in (hopper_forward, hopper_backward):
        monkeypatch.setattr(module, "launch_walk", emulate_walk)
        monkeypatch.setattr(module, "launch_segments", emulate_segments)
        monkeypatch.setattr(module, "aligned", lambda x: x)


def inputs(gate: Gate, T: int, with_state: bool, hard: bool = False, sharing: int = 1) -> dict[str, Any]:
    torch.manual_seed(T)
    B, H, d_qk, d_hv = 1, max(2, 2 * sharing), 64 if sharing == PACK else 16, 64
    f = {"sigmoid": torch.randn(B, H, T) + 2, "log_decay": -torch.rand(B, H, T), "fixed": -torch.rand(H) / 9}[
        gate.forget
    ]
    i = {"step": torch.rand(B, H, T) + 0.1, "none": None}.get(gate.input, torch.randn(B, H, T))
    if hard and gate.forget == "sigmoid":
        f = torch.where(torch.rand(B, H, T) < 0.3, 30 * torch.sign(f), f)
        f[:, :, 40::97] = -torch.inf
        i = None if i is None or gate.input == "step" else torch.where(torch.rand(B, H, T) < 0.3, 30 * torch.sign(i), i)
    state = State(
        torch.randn(B, H, d_qk, d_hv),
        torch.randn(B, H, d_qk) if gate.normalize else None,
        torch.randn(B, H) if gate.stabilized else None,
    )
    return {
        "q": torch.randn(B, H // sharing, T, d_qk),
        "k": torch.randn(B, H // sharing, T, d_qk),
        "v": torch.randn(B, H, T, d_hv),
        "f": f,
        "i": i,
        "initial": state if with_state else None,
    }


def double(x: Any) -> Any:
    return None if x is None else State(*map(double, x)) if isinstance(x, State) else x.double().requires_grad_()


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES.keys())
@pytest.mark.parametrize(
    ("T", "chunk_size", "own", "with_state", "hard", "sharing"),
    [
        (200, 512, None, False, True, 1),
        (330, 128, None, True, False, 1),
        (330, 128, None, True, False, 2),
        (330, 128, 192, True, False, PACK),  # where heads are together forward keeps to backward's cut
        (2100, 4096, None, True, False, 1),
        (560, 256, None, False, False, 1),  # the first of three segments beside the state pass, where there is room
        (560, 256, None, True, False, 1),
        (560, 128, 256, True, False, 2),
        (330, 128, 384, False, False, 1),
    ],
)
@pytest.mark.parametrize("gate_gradients", [True, False], ids=["", "no gate gradients"])
@pytest.mark.usefixtures("emulated")
def test_walks_compute_the_recurrence_and_its_gradients(
    gate: Gate, T: int, chunk_size: int, own: int | None, with_state: bool, hard: bool, sharing: int,
    gate_gradients: bool, monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """Roles, exponents with denominators, segments, states, gate gradients; no rounding to bfloat16."""
    x = inputs(gate, T, with_state, hard, sharing)
    options: dict[str, Any] = {"gate": gate, "scale": -0.3 if with_state else 0.25, "chunk_size": chunk_size}
    if sharing > 1 and not gate.normalize:
        options["skip"] = torch.randn(x["v"].shape[1])
    saved: tuple[Tensor, ...]
    monkeypatch.setattr(hopper_forward, "chosen_beside_backward", lambda _: SimpleNamespace(chunk_size=lambda _T: own))
    h, last, saved = hopper_forward.forward(**x, **options, cut_freely=own is not None)
    assert last is not None
    shapes = hopper_forward.empty_saved(x["q"], x["v"], gate=gate, chunk_size=chunk_size)
    assert [y.shape for y in saved] == [y.shape for y in shapes]

    exact = {name: double(y) for name, y in x.items()}
    h_exact, last_exact = reference.chunkwise(**exact, gate=gate, scale=options["scale"], chunk_size=64)
    skip = double(options.get("skip"))
    if skip is not None:
        h_exact = h_exact + skip[:, None, None] * exact["v"]
    dh = torch.randn_like(h)
    d_last = (
        State(torch.randn_like(last.C), None if last.n is None else torch.randn_like(last.n)) if with_state else None
    )
    loss = (h_exact * dh).sum()
    for state, gradient in zip(last_exact[:2], d_last or (), strict=False):
        if state is not None and gradient is not None:
            loss = loss + (state * gradient).sum()
    C_0, n_0 = (exact["initial"] or (None, None))[:2]
    given = (exact["q"], exact["k"], exact["v"], exact["f"], exact["i"], C_0, n_0, skip)
    gradients = torch.autograd.grad(loss, [y for y in given if y is not None])

    got = hopper_backward.backward(dh, d_last, **x, saved=saved, gate_gradients=gate_gradients, **options)
    pairs = [("h", h, h_exact), ("C", last.C, last_exact.C), ("n", last.n, last_exact.n), ("m", last.m, last_exact.m)]
    names = ("dq", "dk", "dv", "df", "di", "dC", "dn", "dskip")
    left = iter(gradients)
    true = [None if y is None else next(left) for y in given]
    for name, y, y_exact in zip(names, got, true, strict=False):
        assert (y is None) == (y_exact is None or (name in ("df", "di") and not gate_gradients)), name
        pairs.append((name, y, y_exact))
    for name, y, y_exact in pairs:
        if y is None:
            continue
        error = (y.double() - y_exact).norm() / y_exact.norm().clamp(min=1e-30)
        # An exponential gate of +-30 leaves denominators near 0, which blow the rounding of float32 exponents up.
        assert error < (5e-2 if hard and gate.normalize else 2e-5), (name, error.item())


@pytest.mark.usefixtures("emulated")
def test_what_h_reads_before_it_waits_is_copied_before_the_kernel_it_waits_for(monkeypatch: pytest.MonkeyPatch):
    """q, k and v that TMA cannot take: h may fetch the copies as soon as the kernel before it has begun."""
    launched: list[str] = []

    def record(name: str, call: Any) -> Any:
        return lambda *args, **options: (launched.append(name), call(*args, **options))[1]

    monkeypatch.setattr(hopper_forward, "aligned", record("copy", torch.clone))
    monkeypatch.setattr(hopper_forward, "exponents", record("exponents", hopper_forward.exponents))
    monkeypatch.setattr(hopper_forward, "launch_walk", record("h", emulate_walk))
    x = inputs(GATES["sig"], 200, with_state=False)
    hopper_forward.forward(**x, gate=GATES["sig"], scale=-0.3, chunk_size=512)
    assert launched[:4] == ["copy", "copy", "copy", "exponents"]
    assert launched[-1] == "h"


# --- What they compile to ---------------------------------------------------------------------------------------------


TOGETHER = ":" + ";".join(f"{name} of heads together" for name in ("h", "h of segments", "C"))
TILEWISE = (
    ";C of every tile;dC of every tile;C of every tile, of heads of their own;dC of every tile, of heads of their own"
    ";dC of every tile, of one head a program;gradients;gradients of a head;gradients of float16"
    ";gradients with a skip connection;gradients without row sums;gradients without row sums with a skip connection"
)
MAIN = (
    ":h;h normalised;h without the last state;h normalised without the last state;h of segments"
    ";h of a first segment;h normalised of a first segment;h of segments for others;h normalised of segments for others"
    ";dq;dq without row sums;dk;dv;C, n;dC"
)


@pytest.fixture(
    scope="module",
    params=[
        ("oldest", ["128/256", "256/512" + MAIN, "64/64" + TOGETHER + TILEWISE]),
        (
            "installed",
            [
                "128/256"
                + MAIN
                + ";h of segments of half the rows;h for segments;dk and dv;dk and dv without row sums",
                "256/512" + MAIN,
                "64/64" + TOGETHER + TILEWISE,
            ],
        ),
    ],
    ids=lambda param: param[0],
)
def compiled(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The Triton that ran and what each kernel uses, compiled in a process of its own (this one interprets)."""
    triton, shapes = request.param
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if triton == "oldest":
        old = ROOT / OLD_TRITON
        if not (old / "triton").is_dir():
            pytest.skip(f"no Triton in {old}: `make test` puts the oldest supported there")
        environment["PYTHONPATH"] = os.pathsep.join(map(str, (old, ROOT)))
    command = [sys.executable, "-P", str(ROOT / "tests" / "compile_hopper.py"), *shapes]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Warning" not in done.stderr, done.stderr[-2000:]  # Triton 3.9 warns of what 3.10 will do by default
    found = json.loads(done.stdout)
    assert (triton == "oldest") == (found["triton"] == "3.6.0")
    return found


def test_kernels_fit_the_chip(compiled: dict[str, Any]) -> None:
    names = {kernel["kernel"].removeprefix("128/256 ") for kernel in compiled["kernels"]}
    assert {"h", "h normalised", "h of segments", "dq", "dk", "dv", "dk and dv", "C, n", "dC"} <= names
    oldest = compiled["triton"] == "3.6.0"
    for kernel in compiled["kernels"]:
        assert kernel["shared_bytes"] <= SHARED_BYTES, kernel
        spilled_bytes = SPILLED_BYTES if oldest else SPILLED_BYTES_NEWER[kernel["kernel"].split()[0]]
        if oldest and "dk and dv" in kernel["kernel"]:
            without = "without row sums" in kernel["kernel"]
            spilled_bytes = SPILLED_BYTES_OF_PAIR if without else SPILLED_BYTES_OF_PAIR_WITH_SUMS
        if "of every tile" in kernel["kernel"] or "gradients" in kernel["kernel"]:
            spilled_bytes = 0
        assert kernel["spilled_bytes"] <= spilled_bytes, kernel


def test_products_are_asynchronous(compiled: dict[str, Any]) -> None:
    """C75xx: ptxas serialises them."""
    for kernel in compiled["kernels"]:
        assert not kernel["warnings"], kernel


@pytest.mark.skipif(torch.cuda.is_available(), reason="in Triton's interpreter")
@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize(("reverse", "resumed"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("end", [True, False])
def test_segments_start_from_what_those_before_added_and_the_last_is_read_only_for_the_end(
    split: int, reverse: bool, end: bool, resumed: bool
):
    """Of `split` parts each, of 2 tiles, and a first one of fewer; forward also from what the second starts from."""
    torch.manual_seed(0)
    rows, segments, elements = 2, 3, 48
    parts, tiles = {1: (3, 5), 2: (5, 9)}[split]
    added, g = torch.randn(rows, parts, elements), -torch.rand(rows, tiles)
    order = list(range(parts))[:: -1 if reverse else 1]
    segment_of = [segments - 1 - (parts - 1 - part) // split for part in range(parts)]
    of_the_last = [part for part in order if segment_of[part] == segment_of[order[-1]]]
    if not end:
        added[:, of_the_last] = torch.nan
    kept = [g[:, max(0, tiles - 2 * (parts - n)) : tiles - 2 * (parts - n - 1)].sum(1) for n in range(parts)]
    kept = torch.stack(kept, 1).exp2()[..., None]
    given = added.clone()
    state = given if split == 1 and not resumed else torch.full((rows, segments, elements), torch.nan)
    lowest = segment_of.index(1) if resumed or (reverse and not end) else 0
    if resumed:
        state[:, 1] = torch.zeros(rows, elements) + sum(
            added[:, n] * kept[:, n + 1 : lowest].prod(1) for n in range(lowest)
        )
        given[:, :lowest] = torch.nan
    after = torch.full((rows, elements), torch.nan)
    kernel: Any = carry
    accumulated = parts - lowest - (0 if end or reverse else len(of_the_last))
    kernel[(rows,)](
        given, state, g, state, after, elements, tiles, 2, parts, segments, split, lowest, accumulated, 1,
        START=False, END=end, RESUMED=resumed, REVERSE=reverse, TILES=2, BLOCK=64,
    )  # fmt: skip
    wanted, before = torch.zeros(rows, elements), None
    for n in order:
        if segment_of[n] != before:
            torch.testing.assert_close(state[:, segment_of[n]], wanted)
        before = segment_of[n]
        wanted = wanted * kept[:, n] + added[:, n]
    torch.testing.assert_close(after, wanted if end else torch.full_like(after, torch.nan), equal_nan=True)


@pytest.mark.parametrize(
    ("batch", "heads", "T", "d_qk", "d_hv", "training", "in_training", "forward"),
    [
        (16, 16, 4096, 128, 256, 1, (1, 1), (1, 1)),
        (4, 16, 16384, 128, 256, 2, (1, 2), (1, 3)),
        (1, 16, 65536, 128, 256, 8, (5, 8), (5, 9)),
        (8, 8, 8192, 256, 512, 1, (1, 1), (1, 1)),
        (4, 8, 16384, 256, 512, 2, (1, 1), (1, 1)),
        (1, 8, 65536, 256, 512, 8, (5, 5), (5, 5)),
        # 16 programs of half a state a head were a third slower (version 19), 47 in training a fifteenth (version 20).
        (1, 1, 65536, 128, 256, 64, (64, 64), (47, 64)),
        (2, 4, 1000, 128, 256, 8, (8, 8), (8, 8)),
    ],
)
def test_sequences_are_cut_where_programs_would_leave_multiprocessors_idle(
    batch: int, heads: int, T: int, d_qk: int, d_hv: int, training: int, in_training: tuple[int, int],
    forward: tuple[int, int], monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """Of 132. At T = 16384 dq and dk alone would: 64 programs, a half of a state each; h has two a state, but where it
    carries a normaliser. Segments of backward, of forward with a backward to come, and of forward alone (sig, exp).
    """
    monkeypatch.setattr(hopper_chunkwise, "refuses", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    q, v = (torch.empty(batch, heads, T, d, device="meta") for d in (d_qk, d_hv))

    def segments(gate: Gate, backward: bool) -> int:
        return -(-T // hopper_chunkwise.default_chunk_size(q, v, gate=gate, backward=backward))

    assert segments(MLSTM_SIG, backward=True) == segments(MLSTM_EXP, backward=True) == training
    assert (segments(MLSTM_SIG, backward=False), segments(MLSTM_EXP, backward=False)) == forward
    of_forward = (chosen_beside_backward(Shape.of(q, v, gate)).chunk_size(T) for gate in (MLSTM_SIG, MLSTM_EXP))
    assert tuple(-(-T // L) for L in of_forward) == in_training
