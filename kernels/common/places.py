"""Lay out what documents have one number a step of: gates, exponents, row sums.

Documents lie end to end along T (`packed`). Kernels work tile by tile, and no tile may hold steps of two documents. So
in these vectors each document starts a new tile. A gap, a tile without steps, stands before the first document and
behind each one:

    steps          | document 0      | document 1  | ...
    places   | gap | tile | tile | gap | tile | gap | ...

The kernels for gates take that for one sequence. A place without a step keeps the state as it is. In the last place of
a gap the forget gate is shut, and the input gate sets the stabiliser of the next document's initial state.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.types import OPEN, SHUT, Gate

from . import tiling
from .cover import cdiv
from .launching import enqueue

BLOCK = 1024  # places that a program has at a time


class Given(NamedTuple):
    """A gate (1, H, T), or the stabilisers (documents, H) that documents start from, and strides."""

    data: Any
    head: Any
    next: Any  # of the next step, or document


class Placed(NamedTuple):
    """The gates by places, (1, H, tiles * tile)."""

    f: Any
    i: Any


@dataclass(frozen=True)
class SpreadConfig:
    """Tell what `_spread` is compiled for.

    Attributes:
        keep, nothing: f and i where there is no step: what keeps a state, and writes nothing.
        has_i, has_m: whether there is i, and stabilisers to start from.
        stabilised: whether there are stabilisers; they start from 0 if from none.
    """

    keep: float
    nothing: float
    has_i: bool
    has_m: bool
    stabilised: bool

    @classmethod
    @cache
    def of(cls, gate: Gate, *, has_m: bool) -> SpreadConfig:
        """Return that of a gate, with stabilisers that documents start from or without."""
        return cls(OPEN[gate.forget], SHUT[gate.input], gate.writes, has_m, gate.stabilized)


@triton.jit(do_not_specialize=["places", "blocks"])
def _spread(f, i, m_0, steps, placed, places, blocks, config: tl.constexpr, BLOCK: tl.constexpr):
    """Write the gates of steps to their places; the last one of a gap has what the next document starts from."""
    head = (tl.program_id(0) // blocks).to(tl.int64)
    place = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = place < places
    step = tl.load(steps + place, mask=inside, other=-1).to(tl.int64)
    is_step, is_start = step >= 0, step <= -2
    x = tl.load(f.data + head * f.head + step * f.next, mask=is_step, other=0.0).to(tl.float32)
    x = tl.where(is_step, x, tl.where(is_start, float("-inf"), config.keep))
    tl.store(placed.f + head * places + place, x.to(placed.f.dtype.element_ty), mask=inside)
    if config.has_i:
        y = tl.load(i.data + head * i.head + step * i.next, mask=is_step, other=0.0).to(tl.float32)
        y = tl.where(is_step, y, config.nothing)
        if config.stabilised:
            y = tl.where(is_start, 0.0, y)
        if config.has_m:
            m = tl.load(m_0.data + (-2 - step) * m_0.next + head * m_0.head, mask=is_start, other=0.0)
            y = tl.where(is_start, m, y)
        tl.store(placed.i + head * places + place, y.to(placed.i.dtype.element_ty), mask=inside)


class Table(NamedTuple):
    """Tell kernels where documents lie. A tile of their places is a chunk. All are int32.

    Attributes:
        of_chunk: (chunks,), the document of each chunk, -1 for a gap.
        order: (documents,), the longest document first.
        gaps: (documents + 1,), the chunks before documents and behind the last one.
        bounds: (documents + 1,), where documents begin and end, in steps.
    """

    of_chunk: Tensor
    order: Tensor
    gaps: Tensor
    bounds: Tensor

    @property
    def documents(self) -> int:
        """Return the number of documents."""
        return len(self.order)


@dataclass(frozen=True)
class Places:
    """Places of the steps of documents.

    Attributes:
        bounds: where documents begin and end, [0, ..., T].
        tile: places of a tile.
        steps: (tiles * tile,) int32, the step at each place, -1 for none; in the last place of the gap before document
            n -2 - n.
        of_steps: (T,) int64, the place of each step.
        empty: int64, places without a step.
        gaps: (documents + 1,) int64, the tiles before documents and behind the last one.
        chunks: where documents lie, for kernels.
    """

    bounds: tuple[int, ...]
    tile: int
    tiles: int
    steps: Tensor
    of_steps: Tensor
    empty: Tensor
    gaps: Tensor
    chunks: Table

    @classmethod
    def of(cls, bounds: tuple[int, ...], tile: int, device: torch.device) -> Places:
        """Return the places of documents that lie between bounds, in tiles of `tile`."""
        edges = torch.tensor(bounds)
        starts, lengths = edges[:-1], edges.diff()
        tiles = (lengths + tile - 1) // tile
        gaps = (tiles + 1).cumsum(0)
        of_steps = torch.arange(bounds[-1]) + ((gaps - tiles) * tile - starts).repeat_interleave(lengths)
        steps = torch.full(((int(gaps[-1]) + 1) * tile,), -1, dtype=torch.int32)
        steps[of_steps] = torch.arange(bounds[-1], dtype=torch.int32)
        empty = (steps == -1).nonzero().squeeze(1)
        steps[(gaps - tiles) * tile - 1] = -2 - torch.arange(len(gaps), dtype=torch.int32)
        gaps = torch.cat([gaps.new_zeros(1), gaps])
        of_chunk = torch.arange(len(gaps)).repeat_interleave(torch.cat([tiles + 1, tiles.new_ones(1)]))
        table = (of_chunk.index_fill(0, gaps, -1), lengths.argsort(descending=True, stable=True), gaps, edges)
        chunks = Table(*(x.to(device, torch.int32) for x in table))
        steps, of_steps, empty, gaps = (x.to(device) for x in (steps, of_steps, empty, gaps))
        return cls(bounds, tile, tiles_of(bounds, tile), steps, of_steps, empty, gaps, chunks)

    @property
    def documents(self) -> int:
        """Return the number of documents."""
        return len(self.bounds) - 1

    @property
    def lengths(self) -> list[int]:
        """Return the steps of each document."""
        return [end - begin for begin, end in pairwise(self.bounds)]

    @property
    def count(self) -> int:
        """Return the number of places."""
        return self.tiles * self.tile

    def gates(self, f: Tensor, i: Tensor | None, gate: Gate, m_0: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return f and i in their places.

        Args:
            f, i: (1, H, T), of a gate that has a forget gate a step.
            m_0: (documents, H), or None for 0.
        """
        shape, places = (1, f.shape[1], self.count), self.count
        m_0 = m_0 if gate.stabilized else None
        like = f if i is None else i
        made = f.new_empty(shape), like.new_empty(shape, dtype=torch.float32 if gate.stabilized else like.dtype)
        starts = like[0].T if m_0 is None else m_0
        enqueue(
            _spread, f.shape[1] * cdiv(places, BLOCK),
            Given(f, *f.stride()[1:]), Given(like, *like.stride()[1:]), Given(starts, *reversed(starts.stride())),
            self.steps, Placed(*made), places, cdiv(places, BLOCK),
            config=SpreadConfig.of(gate, has_m=m_0 is not None), BLOCK=BLOCK,
        )  # fmt: skip
        return made[0], None if i is None else made[1]

    def last_stabilisers(self, m: Tensor) -> Tensor:
        """Return m after the last step of each document, (documents, H), of the stabilisers m (1, H, places)."""
        return m[0, :, self.gaps[1:] * self.tile].T.contiguous()

    def of_gates(self, gradients: tuple[Tensor, Tensor | None]) -> tuple[Tensor | None, ...]:
        """Return gradients of gates by steps, (1, H, T), of those by places."""
        return tuple(None if x is None else x.index_select(2, self.of_steps) for x in gradients)


@lru_cache(16)  # layers of a model have the same documents
def _places(bounds: tuple[int, ...], tile: int, device: torch.device, stream: int) -> Places:
    del stream
    return Places.of(bounds, tile, device)


def places_of_chunks(bounds: tuple[int, ...], chunk_size: int, device: torch.device) -> Places:
    """Return the places of documents between bounds, in tiles of a chunk (`fitting`)."""
    return _places(bounds, fitting(bounds, chunk_size), device, stream())


def fitting(bounds: tuple[int, ...], chunk_size: int) -> int:
    """Return the steps of a chunk of documents between bounds: of a longer one, what takes the longest document."""
    return tiling.fitting(chunk_size, max(end - begin for begin, end in pairwise(bounds)))


def tiles_of(bounds: tuple[int, ...], tile: int) -> int:
    """Return how many tiles documents take, with gaps."""
    return 1 + sum(cdiv(end - begin, tile) + 1 for begin, end in pairwise(bounds))


def stream() -> int:
    """Return the stream that tensors are made on: where they are kept they are read on that one alone."""
    return torch.cuda.current_stream().cuda_stream if torch.cuda.is_available() else 0
