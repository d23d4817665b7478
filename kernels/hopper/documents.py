"""Documents that lie end to end along T, each with its states, in one launch of each walk.

A walk takes a document as it takes a segment, from its first step on. So tiles begin where documents do, and the last
tile of a document goes on into the documents behind it. Its steps there have exponents of -inf: they read nothing,
write nothing, and get an output of 0, which is added to what is there.

Gates, exponents and row sums have places of their own for the steps of such tiles, and behind each document a tile more
that no walk meets:

    packed   | document 0      | document 1 | ...
    places   | tile | tile | gap | tile | gap | ...

The last step of a gap shuts the forget gate and writes the stabiliser of the next document's state. The first one has,
in backward, what the gradient of a document's last state adds to the sums over its steps (`crossings`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from tflabench.kernels import gates
from tflabench.kernels.backends import Arguments, KernelOptions
from tflabench.kernels.cover import cdiv
from tflabench.kernels.gates import GradientSums, LogGates, RowSums
from tflabench.kernels.packed import split
from tflabench.kernels.plan import hopper as plans
from tflabench.kernels.plan.hopper_shapes import TILE
from tflabench.kernels.plan.sizes import Sizes
from tflabench.kernels.reference import shared, sum_shared
from tflabench.kernels.state import State
from tflabench.kernels.tfla.device import figures
from tflabench.kernels.tfla.tiles import aligned, made_like
from tflabench.kernels.types import Gate

from .backward import output, through_last_n
from .backward_dqk import RowSumTensors, launch_dk, launch_dq
from .backward_dv import launch_dv
from .crossings import through_tiles
from .exponents import exponents
from .forward import initial_matrices, launch_walk, restored
from .launch import Inputs
from .normaliser import NormaliserTensors
from .state import Matrices, States

OPEN = {"sigmoid": float("inf"), "log_decay": 0.0}  # what keeps a state as it is
NOTHING = {"step": 0.0}  # what writes nothing; else -inf


class Places(NamedTuple):
    """Where the steps of documents lie among gates, exponents and row sums, int64.

    Attributes:
        table: (documents, 4) int32, see `Inputs`.
        of_steps: (T,), the place of each step.
        gaps: (documents,), the tile behind each document.
        added: the steps, of T, of first and last tiles: outputs are added there.
        tiles: how many there are, with gaps.
    """

    table: Tensor
    of_steps: Tensor
    gaps: Tensor
    added: Tensor
    tiles: int

    @classmethod
    def of(cls, bounds: list[int], device: torch.device) -> Places:
        """Return the places of documents that lie between bounds, [0, ..., T]; the host makes one copy."""
        count, T = len(bounds) - 1, bounds[-1]
        edges = torch.tensor(bounds)
        starts, lengths = edges[:-1], edges.diff()
        tiles = (lengths + TILE - 1) // TILE
        gaps = (tiles + 1).cumsum(0) - 1
        first_tiles = gaps - tiles
        shifts = first_tiles * TILE - starts
        longest_first = lengths.argsort(descending=True, stable=True)
        table = torch.stack([torch.arange(count), first_tiles, gaps, shifts], 1)[longest_first]
        within = torch.stack([torch.zeros_like(tiles), (tiles - 1).clamp(min=1) * TILE])[..., None] + torch.arange(TILE)
        added = (starts[:, None] + within)[within < lengths[:, None]]
        sent = torch.cat([edges[1:], shifts, gaps, table.flatten(), added]).to(device, non_blocking=True)
        ends, shifts, gaps, table, added = sent.split([count, count, count, 4 * count, len(added)])
        step = torch.arange(T, device=device)
        of_steps = step + shifts[torch.bucketize(step, ends, right=True)]
        return cls(table.int(), of_steps, gaps, added, sum(cdiv(b - a, TILE) + 1 for a, b in pairwise(bounds)))

    def spread(self, x: Tensor, elsewhere: float) -> Tensor:
        """Return x (1, H, T) in its places, (1, H, tiles * 64), with a number elsewhere."""
        return x.new_full((*x.shape[:2], self.tiles * TILE), elsewhere).index_copy_(2, self.of_steps, x)

    def of_gates(
        self, f: Tensor, i: Tensor | None, gate: Gate, m_0: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return f and i in their places, and m before the first document.

        Args:
            f, i: (1, H, T), of a gate that has a forget gate a step.
            m_0: (documents, H), or None for 0.
        """
        last_of_gaps = self.gaps * TILE + (TILE - 1)
        f = self.spread(f, OPEN[gate.forget]).index_fill_(2, last_of_gaps, float("-inf"))
        if i is None:
            return f, None, None
        i = self.spread(i, NOTHING.get(gate.input, float("-inf")))
        if not gate.stabilized:
            return f, i, None
        if m_0 is None:
            return f, i.index_fill_(2, last_of_gaps, 0.0), None
        return f, i.float().index_copy_(2, last_of_gaps[:-1], m_0[1:].T[None].float()), m_0[:1]


def takes(bounds: list[int], v: Tensor) -> bool:
    """Return whether these kernels are the fastest for documents of v (1, H, T, d_hv) between bounds."""
    lengths = [end - begin for begin, end in pairwise(bounds)]
    return plans.takes_documents(lengths, v.shape[1], figures(v.device))


def forward(
    arguments: Arguments, options: KernelOptions, bounds: list[int]
) -> tuple[Tensor, State | None, tuple[Tensor, ...]]:
    """Return h, the last state of each document or None, and what `backward` needs in addition to the inputs.

    Args:
        arguments: as `backends.Kernels` has them, of a batch of one, without skip, with a forget gate a step; the
            initial state is one a document, (documents, H, ...).
        bounds: where documents begin and end, [0, ..., T].
    """
    q, k, v, f, i, initial, _ = arguments
    gate, scale = options.gate, options.scale
    places = Places.of(bounds, q.device)
    plan = plans.of_documents(
        _sizes(q, v, places), figures(q.device), len(bounds) - 1, normalise=gate.normalize
    )  # fmt: skip
    q, k, v_aligned = aligned(-q if scale < 0 else q), aligned(k), aligned(v)
    f, i, m_0 = places.of_gates(f, i, gate, None if initial is None else initial.m)
    shape = (1, v.shape[1], places.tiles * TILE)
    log_f, m, e = exponents(f, i, gate, shape, m_0, abs(scale))
    unused = torch.ones(f.shape[-1], dtype=torch.bool, device=f.device).index_fill_(0, places.of_steps, value=False)
    for x in (e.x, e.y):
        x.masked_fill_(unused, float("-inf"))
    h = torch.empty_like(v)
    out = h if aligned(h) is h else torch.empty(v.shape, dtype=v.dtype, device=v.device)
    out.index_fill_(2, places.added, 0)
    before, after = initial_matrices(initial), Matrices()
    if options.return_last_state:
        C = torch.empty((len(bounds) - 1, v.shape[1], q.shape[-1], v.shape[-1]), dtype=torch.float32, device=v.device)
        after = Matrices(C, C.new_empty(C.shape[:3]) if gate.normalize else None)
    norm = None
    if gate.normalize:
        lowest = torch.zeros_like(e.x) if m is None else m
        norm = NormaliserTensors(lowest, torch.empty_like(e.x), before.n, after.n)
    inputs = Inputs(q, k, v_aligned, e, None, places.table)
    launch_walk(inputs, out, plan.h, states=States(before.C, after.C), norm=norm)
    if out is not h:
        h.copy_(out)
    last = None
    if options.return_last_state:
        last = State(*after, None if m is None else m[0, :, places.gaps * TILE].T.contiguous())
    log_gates = () if log_f is None else (log_f,)
    return h, last, (*log_gates, e.x if norm is None else norm.x_backward, e.y, e.g)


def backward(
    dh: Tensor, d_last: State | None, C_last: Tensor | None, arguments: Arguments, saved: tuple[Tensor, ...],
    options: KernelOptions, bounds: list[int],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Return gradients (dq, dk, dv, df, di, dC_0, dn_0), None for what is absent.

    Args:
        dh: gradient of h; d_last: of the last states' C and n, or None.
        C_last: as `forward` returned it, where d_last has a C.
        arguments, options, bounds: as given to `forward`; saved: as it returned it.
    """
    q, k, v, f, i, initial, _ = arguments
    gate, scale = options.gate, options.scale
    places, H = Places.of(bounds, q.device), v.shape[1]
    log_f, e, _ = restored(gate, saved)
    plan = plans.of_documents(
        _sizes(q, v, places), figures(q.device), len(bounds) - 1, gate_gradients=options.gate_gradients
    )  # fmt: skip
    q, k, v, dh = aligned(-q if scale < 0 else q), aligned(k), aligned(v), aligned(dh)
    dq, dk, dv = output(q, H), output(k, H), output(v, H)
    for x in (dq, dk, dv):
        x.index_fill_(2, places.added, 0)
    C_0, n_0 = initial_matrices(initial)
    dC, dn = initial_matrices(d_last)
    dC_0 = None if C_0 is None else torch.empty_like(C_0)
    inputs = Inputs(q, k, v, e, None, places.table)
    qdq = kdk = of_q = of_k = None
    if plan.dq.sums:
        qdq, kdk = _row_sums(plan.dq.pieces, H, places)
        of_q, of_k = RowSumTensors(qdq.every, qdq.within, kdk.within), RowSumTensors(kdk.every)
    launch_dq(inputs, dh, dq, plan.dq, initial=C_0, sums=of_q)
    launch_dk(inputs, dh, dk, plan.dk, states=States(dC, dC_0), sums=of_k)
    launch_dv(inputs, dh, dv, plan.dv, initial=dC)
    df = di = dn_0 = dots = None
    f_placed, i_placed, m_0 = places.of_gates(f, i, gate, None if initial is None else initial.m)
    if dn is not None:
        every = gates.log_gates(f_placed, i_placed, gate, (1, H, places.tiles * TILE), m_0)
        dn_0, dk, dots = _through_last_n(dn, shared(k, H), dk, every, places, bounds)
    elif n_0 is not None:
        dn_0 = torch.zeros_like(n_0)
    if options.gate_gradients:
        assert qdq
        assert kdk
        x_last = None
        if dC is not None:
            assert C_last is not None
            x_last = (C_last * dC).sum((-2, -1))
        if dots is not None:
            kdk = RowSums(torch.cat([places.spread(dots, 0.0)[None], kdk.every]), kdk.within)
            of_n = torch.stack([part.sum(-1) for part in split(dots[0], _lengths(bounds), 1)])
            x_last = of_n if x_last is None else x_last + of_n
            if n_0 is not None and dn_0 is not None:
                x_last = x_last + (n_0 * dn_0).sum(-1)
        if x_last is not None:
            qdq.every[0, 0].index_copy_(1, places.gaps * TILE, x_last.T)
        sums = GradientSums(qdq, kdk, through_tiles(qdq, kdk, None, e.g), TILE)
        df, di = (
            None if x is None else x.index_select(2, places.of_steps)
            for x in gates.gate_gradients(f_placed, i_placed, gate, log_f, sums, overlap=True)
        )  # fmt: skip
    if scale < 0:
        dq = -dq
    dq, dk = sum_shared(dq, arguments.q), sum_shared(dk, arguments.k)
    C_given, n_given = (None, None) if initial is None else initial[:2]
    pairs = zip((dq, dk, dv, df, di, dC_0, dn_0), (*arguments[:5], C_given, n_given), strict=True)
    return tuple(made_like(x, like) for x, like in pairs)


def saved_like(q: Tensor, v: Tensor, options: KernelOptions, bounds: list[int]) -> tuple[Tensor, ...]:
    """Return what `forward` saves, uninitialised."""
    H, tiles = v.shape[1], sum(cdiv(length, TILE) + 1 for length in _lengths(bounds))
    steps = (1, H, tiles * TILE)
    shapes = [*[steps] * (2 + options.gate.stabilized), (1, H, tiles)]
    return tuple(q.new_empty(shape, dtype=torch.float32) for shape in shapes)


def _sizes(q: Tensor, v: Tensor, places: Places) -> Sizes:
    return Sizes.of(q, v)._replace(steps=places.tiles * TILE)


def _lengths(bounds: list[int]) -> list[int]:
    return [end - begin for begin, end in pairwise(bounds)]


def _row_sums(parts: int, heads: int, places: Places) -> tuple[RowSums, RowSums]:
    """Return room for q.dq and k.dk, as `backward_dqk.empty_row_sums`, with zeros in gaps."""
    device = places.table.device
    made = torch.empty((2, 2 * parts, 1, heads, places.tiles, TILE), dtype=torch.float32, device=device)
    qdq, kdk = made.index_fill_(4, places.gaps, 0).flatten(-2)
    return RowSums(qdq, qdq[parts:]), RowSums(kdk, kdk[parts:])


def _through_last_n(
    dn: Tensor, k: Tensor, dk: Tensor, log_gates: LogGates, places: Places, bounds: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `through_last_n` does, of each document by itself."""
    log_f, log_i = (x.index_select(2, places.of_steps) for x in log_gates[:2])
    lengths = _lengths(bounds)
    of_n: list[Tensor] = []
    of_k: list[Tensor] = []
    dots: list[Tensor] = []
    parts = zip(dn.split(1), *(split(x, lengths, 2) for x in (k, dk, log_f, log_i)), strict=True)
    for dn_n, k_n, dk_n, log_f_n, log_i_n in parts:
        made = through_last_n(dn_n, k_n, dk_n, LogGates(log_f_n, log_i_n, None))
        for found, x in zip((of_n, of_k, dots), made, strict=True):
            found.append(x)
    return torch.cat(of_n), torch.cat(of_k, 2), torch.cat(dots, 2)
