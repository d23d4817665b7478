"""Run the walks over documents that lie end to end along T, all documents in one launch.

A walk treats a document as a segment with states of its own. The tiles of a document begin at its first step. Its last
tile can reach into the next documents. There its exponents x and y are -inf, so these steps change no state and have
an output of 0. Gates, exponents and row sums lie as `kernels.common.places` says.
docs/decisions/2026-11-25-documents-in-one-launch.md has what one launch gains.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapreplace
from itertools import accumulate, chain, pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.cover import cdiv, next_power_of_2
from tflabench.kernels.common.descriptors import aligned
from tflabench.kernels.common.device import figures
from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.common.packed import split
from tflabench.kernels.common.places import Places, stream, tiles_of
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.common.tensors import shared
from tflabench.kernels.scalar import gates
from tflabench.kernels.scalar.gates import GradientSums, LogGates, RowSums
from tflabench.kernels.scalar.plan import hopper as plans
from tflabench.kernels.scalar.plan.hopper_segments import Segments
from tflabench.kernels.scalar.plan.hopper_shapes import TILE, held
from tflabench.kernels.state import State

from .backward import WalkStates, as_given, in_walks, through_last_n
from .crossings import Starts, through_tiles, tile_sums
from .exponents import exponents
from .forward import columns_of, initial_matrices, launch_walk, restored
from .launch import WalkInputs
from .normaliser import NormaliserTensors
from .state import Matrices, States

STATE_TILES = 3  # tiles in the time in which a program reads and writes a state
ROWS = 16  # steps of a program of `_clear`


@triton.jit(do_not_specialize=["count", "heads"])
def _clear(out, out_h, out_t, steps, count, heads, d: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Write zeros to `count` steps of all heads of out (1, H, T, d)."""
    head = (tl.program_id(0) % heads).to(tl.int64)
    number = tl.program_id(0) // heads * ROWS + tl.arange(0, ROWS)
    step = tl.load(steps + number, mask=number < count, other=0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    at = out + head * out_h + step[:, None] * out_t + column[None, :]
    tl.store(at, tl.zeros([ROWS, BLOCK], out.dtype.element_ty), mask=(number < count)[:, None] & (column < d)[None, :])


@dataclass(frozen=True)
class WalkPlaces(Places):
    """Places in tiles of the walks.

    Attributes:
        added: int32, the steps of first and last tiles, to which outputs are added.
    """

    added: Tensor

    @classmethod
    def of_walks(cls, bounds: tuple[int, ...], device: torch.device) -> WalkPlaces:
        """Return the places of documents that lie between bounds."""
        edges = torch.tensor(bounds)
        starts, lengths = edges[:-1], edges.diff()
        last = ((lengths + TILE - 1) // TILE - 1).clamp(min=1) * TILE
        within = torch.stack([torch.zeros_like(last), last])[..., None] + torch.arange(TILE)
        added = (starts[:, None] + within)[within < lengths[:, None]].int()
        return cls(**vars(Places.of(bounds, TILE, device)), added=added.to(device))

    @property
    def cut(self) -> Segments:
        """Return the documents as segments, each as long as the longest."""
        return Segments(self.tiles, cdiv(max(self.lengths), TILE), self.documents)

    def clear(self, out: Tensor) -> None:
        """Write zeros to the steps of out (1, H, T, d) to which walks add."""
        H, d, count = out.shape[1], out.shape[-1], len(self.added)
        enqueue(
            _clear, H * cdiv(count, ROWS),
            out, *out.stride()[1:3], self.added, count, H, d=d, BLOCK=next_power_of_2(d), ROWS=ROWS,
        )  # fmt: skip

    def row_sums(self, walk: plans.Walk) -> tuple[RowSums, RowSums]:
        """Return room for q.dq and k.dk, as `backward_dqk.empty_row_sums`, with zeros in gaps."""
        parts, H = walk.pieces, walk.sizes.heads
        shape = (2, 2 * parts, 1, H, self.tiles, TILE)
        made = torch.empty(shape, dtype=torch.float32, device=self.steps.device)
        qdq, kdk = made.index_fill_(4, self.gaps, 0).flatten(-2)
        return RowSums(qdq, qdq[parts:]), RowSums(kdk, kdk[parts:])

    def table(self, heads: int, programs: int) -> Tensor:
        """Return what programs take that share no state, see `WalkInputs`."""
        return _table(self.bounds, heads, programs, self.steps.device, stream())


@lru_cache(16)  # layers of a model have the same documents
def _places(bounds: tuple[int, ...], device: torch.device, stream: int) -> WalkPlaces:
    del stream
    return WalkPlaces.of_walks(bounds, device)


def places_of(options: KernelOptions, device: torch.device) -> WalkPlaces:
    """Return the places of the documents of a call."""
    assert options.bounds
    return _places(options.bounds, device, stream())


@lru_cache(64)
def _table(bounds: tuple[int, ...], heads: int, programs: int, device: torch.device, stream: int) -> Tensor:
    """Return the table of `WalkInputs`: whichever program has the least to do takes the longest document that is left.

    A document costs what its tiles do, and STATE_TILES more for its states.
    """
    del stream
    tiles = [cdiv(end - begin, TILE) for begin, end in pairwise(bounds)]
    firsts = [*accumulate((n + 1 for n in tiles), initial=1)]
    todo: list[tuple[int, int]] = [(0, program) for program in range(programs)]
    taken: list[list[int]] = [[] for _ in range(programs)]
    for document in sorted(range(len(tiles)), key=lambda n: -tiles[n]):
        for head in range(heads):
            cost, program = todo[0]
            heapreplace(todo, (cost + tiles[document] + STATE_TILES, program))
            taken[program].append(document * heads + head)
    begins = [*accumulate(map(len, taken), initial=0)]
    found = [*begins, *chain(*taken)]
    for first, count, start in zip(firsts, tiles, bounds, strict=False):
        found += [first, first + count, first * TILE - start]
    return torch.tensor(found, dtype=torch.int32).to(device)


def takes(bounds: list[int], q: Tensor, v: Tensor, *, states: bool) -> bool:
    """Return whether these kernels are the fastest for documents of q, v (1, H, T, d) between bounds."""
    lengths = [end - begin for begin, end in pairwise(bounds)]
    return plans.takes_documents(Sizes.of(q, v), figures(v.device), lengths, states=states)


def forward(arguments: Arguments, options: KernelOptions) -> tuple[Tensor, State | None, tuple[Tensor, ...]]:
    """Return h, the last state of each document or None, and what `backward` needs in addition to the inputs."""
    q, k, v, f, i, initial, _ = arguments
    gate, scale = options.gate, options.scale
    places = places_of(options, q.device)
    plan = plans.of_documents(_sizes(q, v, places), figures(q.device), places.documents, normalise=gate.normalize)
    q, k, v_aligned = aligned(-q if scale < 0 else q), aligned(k), aligned(v)
    f, i = places.gates(f, i, gate, None if initial is None else initial.m)
    shape = (1, v.shape[1], places.count)
    log_f, m, e = exponents(f, i, gate, shape, None, abs(scale))
    for x in (e.x, e.y):
        x.index_fill_(2, places.empty, -math.inf)
    h = torch.empty_like(v)
    out = h if aligned(h) is h else torch.empty(v.shape, dtype=v.dtype, device=v.device)
    places.clear(out)
    sizes = held(Sizes.of(q, v))
    before, after = initial_matrices(initial, sizes), Matrices()
    if options.return_last_state:
        shape = (places.documents, sizes.heads, sizes.d_qk, sizes.d_hv)
        C = torch.empty(shape, dtype=torch.float32, device=v.device)
        after = Matrices(C, C.new_empty(C.shape[:3]) if gate.normalize else None)
    m_last = norm = None
    if m is not None:
        m_last = places.last_stabilisers(m)
        m.index_fill_(2, places.empty, 0.0)  # for a denominator of 1
    if gate.normalize:
        lowest = torch.zeros_like(e.x) if m is None else m
        norm = NormaliserTensors(lowest, torch.empty_like(e.x), before.n, after.n)
    inputs = WalkInputs(q, k, v_aligned, e, None, places.table(sizes.heads, plan.h.programs // plan.h.pieces))
    launch_walk(inputs, out, plan.h, states=States(before.C, after.C), norm=norm)
    if out is not h:
        h.copy_(out)
    last = State(*columns_of(after, q, v), m_last) if options.return_last_state else None
    log_gates = () if log_f is None else (log_f,)
    return h, last, (*log_gates, e.x if norm is None else norm.x_backward, e.y, e.g)


def backward(
    dh: Tensor, d_last: State | None, arguments: Arguments, saved: tuple[Tensor, ...], options: KernelOptions
) -> tuple[Tensor | None, ...]:
    """Return gradients (dq, dk, dv, df, di, dC_0, dn_0), None for what is absent."""
    q, k, v, f, i, initial, _ = arguments
    gate, scale = options.gate, options.scale
    places, H = places_of(options, q.device), v.shape[1]
    log_f, e, _ = restored(gate, saved)
    plan = plans.of_documents(
        _sizes(q, v, places), figures(q.device), places.documents, gate_gradients=options.gate_gradients
    )  # fmt: skip
    q, k, v, dh = aligned(-q if scale < 0 else q), aligned(k), aligned(v), aligned(dh)
    sizes = held(Sizes.of(q, v))
    C_0, _ = initial_matrices(initial, sizes)
    dC, _ = initial_matrices(d_last, sizes)
    n_0, dn = (None if state is None or state.n is None else state.n.float() for state in (initial, d_last))
    dC_0 = None if C_0 is None else torch.empty_like(C_0)
    dq, dk, dv, qdq, kdk, _, _ = in_walks(
        WalkInputs(q, k, v, e, None), dh, plan.walks, WalkStates(C_0, dC, dC_0),
        gate_gradients=options.gate_gradients, places=places,
    )  # fmt: skip
    df = di = dn_0 = dots = None
    f_placed, i_placed = places.gates(f, i, gate, None if initial is None else initial.m)
    if dn is not None:
        every = gates.log_gates(f_placed, i_placed, gate, (1, H, places.count), None)
        dn_0, dk, dots = _through_last_n(dn, shared(k, H), dk, every, places)
    elif n_0 is not None:
        dn_0 = torch.zeros_like(n_0)
    if options.gate_gradients:
        assert qdq
        assert kdk
        if dots is not None:
            spread = dots.new_zeros((1, H, places.count)).index_copy_(2, places.of_steps, dots)
            kdk = RowSums(torch.cat([spread[None], kdk.every]), kdk.within)
        starts = None
        if d_last is not None:
            of_n = None if n_0 is None or dn_0 is None else (n_0 * dn_0).sum(-1)
            starts = Starts(C_0, dC_0, more=of_n)
        of_tiles = tile_sums(qdq, kdk, places.cut, starts, documents=True)
        sums = GradientSums(qdq, kdk, through_tiles(of_tiles, e.g, places.cut, places.gaps), TILE)
        df, di = places.of_gates(gates.gate_gradients(f_placed, i_placed, gate, log_f, sums, overlap=True))
    return as_given((-dq if scale < 0 else dq, dk, dv, df, di, dC_0, dn_0), arguments)


def empty_saved(q: Tensor, v: Tensor, options: KernelOptions) -> tuple[Tensor, ...]:
    """Return what `forward` saves, uninitialised."""
    assert options.bounds
    H, tiles = v.shape[1], tiles_of(options.bounds, TILE)
    steps = (1, H, tiles * TILE)
    shapes = [*[steps] * (2 + options.gate.stabilized), (1, H, tiles)]
    return tuple(q.new_empty(shape, dtype=torch.float32) for shape in shapes)


def _sizes(q: Tensor, v: Tensor, places: WalkPlaces) -> Sizes:
    return Sizes.of(q, v)._replace(steps=places.count)


def _through_last_n(
    dn: Tensor, k: Tensor, dk: Tensor, log_gates: LogGates, places: WalkPlaces
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `through_last_n` does, of each document."""
    log_f, log_i = (x.index_select(2, places.of_steps) for x in log_gates[:2])
    lengths = places.lengths
    of_n: list[Tensor] = []
    of_k: list[Tensor] = []
    dots: list[Tensor] = []
    parts = zip(dn.split(1), *(split(x, lengths, 2) for x in (k, dk, log_f, log_i)), strict=True)
    for dn_n, k_n, dk_n, log_f_n, log_i_n in parts:
        made = through_last_n(dn_n, k_n, dk_n, LogGates(log_f_n, log_i_n, None))
        for found, x in zip((of_n, of_k, dots), made, strict=True):
            found.append(x)
    return torch.cat(of_n), torch.cat(of_k, 2), torch.cat(dots, 2)
