"""Lay out documents that lie end to end along T, for walks over all of them in one launch.

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

from tflabench.kernels.common.contract import KernelOptions
from tflabench.kernels.common.cover import cdiv, next_power_of_2
from tflabench.kernels.common.device import figures
from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.common.places import Places, stream
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.scalar.gates import Exponents, RowSums
from tflabench.kernels.scalar.plan import hopper as plans
from tflabench.kernels.scalar.plan.hopper_segments import Segments
from tflabench.kernels.scalar.plan.hopper_shapes import TILE

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

    def close_gaps(self, exponents: Exponents, m: Tensor | None) -> None:
        """Let places without a step change no state and have an output of 0, and denominators of 1."""
        for x in exponents[:2]:
            x.index_fill_(2, self.empty, -math.inf)
        if m is not None:
            m.index_fill_(2, self.empty, 0.0)

    def row_sums(self, walk: plans.Walk) -> tuple[RowSums, RowSums]:
        """Return room for q.dq and k.dk (`backward_dqk.empty_row_sums`), with zeros in gaps."""
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


def places_of(options: KernelOptions, device: torch.device) -> WalkPlaces | None:
    """Return the places of the documents of a call; None for sequences."""
    return _places(options.bounds, device, stream()) if options.bounds else None


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
    numbers = [*begins, *chain(*taken)]
    for first, count, start in zip(firsts, tiles, bounds, strict=False):
        numbers += [first, first + count, first * TILE - start]
    return torch.tensor(numbers, dtype=torch.int32).to(device)


def takes(bounds: list[int], q: Tensor, v: Tensor, *, states: bool) -> bool:
    """Return whether these kernels are the fastest for documents of q, v (1, H, T, d) between bounds."""
    lengths = [end - begin for begin, end in pairwise(bounds)]
    return plans.takes_documents(Sizes.of(q, v), figures(v.device), lengths, states=states)
