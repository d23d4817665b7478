"""Choose into how many segments a sequence is cut so that their programs fill the chip: the L of "auto".

One segment where batch * heads programs fill it, else segments of which each is a program or several. With n of them a
walk takes (rounds of programs) * (tiles a segment) tile times, at one program a multiprocessor. A state pass over all
segments but one goes before it. n depends on the next power of two of tiles: torch.compile, for which T may be a
symbol, compiles once for each. Forward has more programs than backward where two share a state (`WalkShape.filling`),
so it is cut into fewer segments where no backward is to come, and before one where that is worth it
(`chosen_for_forward`).

Costs are in times of a tile of h, dv, dq or dk, as measured on an H200
(docs/decisions/2026-11-23-choice-of-segments.md).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tflabench.kernels.cover import cdiv
from tflabench.kernels.tfla.device import multiprocessors
from tflabench.kernels.types import Gate

from .segment_states import first_segment_programs, parts_per_segment
from .shapes import TILE, Segments, StatePassShape, WalkShape, heads_together


class Cut(NamedTuple):
    """A number of half segments of a sequence.

    An odd number leaves half a segment or less for the first. The walk over that may then run while the state pass goes
    over the others (`segment_states.first_segment_programs`).
    """

    halves: int

    def segment_tiles(self, tiles: int) -> int:
        """Return the tiles of a segment, from 32 on an even number, so that a state pass can cut it in two."""
        segment = cdiv(2 * tiles, self.halves)
        return segment if segment < 32 else segment + segment % 2

    def chunk_size(self, steps: int) -> int:
        """Return the steps of a segment."""
        return TILE * self.segment_tiles(cdiv(steps, TILE))


class Shape(NamedTuple):
    """Numbers that a cut depends on.

    Attributes:
        rows: batch * heads.
        heads: heads of v.
        group: heads that share a head of q and k.
        together: heads that share a program.
        d_qk, d_hv: head dimensions.
        tiles: the next power of two of a sequence's tiles.
        norm: with a normaliser.
        chip: multiprocessors.
    """

    rows: int
    heads: int
    group: int
    together: int
    d_qk: int
    d_hv: int
    tiles: int
    norm: bool
    chip: int

    @classmethod
    def of(cls, q: Tensor, v: Tensor, gate: Gate) -> Shape:
        """Return the numbers for q (B, heads, T, d_qk) and v (B, H, T, d_hv)."""
        B, T = v.shape[0], v.shape[2]
        groups, H, d_qk, d_hv = map(int, (q.shape[1], v.shape[1], q.shape[-1], v.shape[-1]))
        together = 1 if gate.normalize else heads_together(q, v)
        tiles = 1
        while TILE * tiles < T:
            tiles *= 2
        return cls(B * H, H, H // groups, together, d_qk, d_hv, tiles, gate.normalize, multiprocessors(q.device))

    def segments(self, cut: Cut) -> Segments:
        """Return the segments of a cut."""
        return Segments.of_tiles(self.tiles, cut.segment_tiles(self.tiles))


class TileTimes(NamedTuple):
    """Times that programs take for a tile.

    Attributes:
        programs: how many there are.
        alone: of a tile of each, if programs only wait for themselves.
        shared: the same, if the chip is full of programs and they wait for memory.
    """

    programs: int
    alone: float
    shared: float

    def on(self, chip: int) -> float:
        """Return the time of a tile of every round of programs."""
        return cdiv(self.programs, chip) * max(self.alone, self.shared * min(1.0, self.programs / chip))


def walk_times(shape: Shape, segments: int, *, sums: bool) -> TileTimes:
    """Return the times of h, or with row sums of dq or dk, over a number of segments of every row.

    A launch takes up to 256 columns of the state.
    """
    rows = shape.rows * segments
    if shape.together > 1:
        return TileTimes(rows // shape.together, 0.9, 1)
    w, z = (shape.d_hv, shape.d_qk) if sums else (shape.d_qk, shape.d_hv)
    launches, w = cdiv(w, 256), min(w, 256)
    norm = shape.norm and not sums
    filling = WalkShape.filling(w, z, rows, shape.chip, sums=sums, norm=norm)
    alone, shared = 1.0, 1.0
    if not sums:
        alone, shared = (0.9, 1.0) if filling == WalkShape.of(w, z, sums=sums, norm=norm) else (0.45, 0.5)
    return TileTimes(rows * filling.pieces(z), launches * alone, launches * shared)


def forward_cost(shape: Shape, cut: Cut) -> float:
    """Return the cost of a state pass and h."""
    segments = shape.segments(cut)
    concurrent = 0
    if shape.together == 1:
        concurrent = first_segment_programs(
            shape.d_qk, shape.d_hv, shape.rows, segments, shape.chip, normalise=shape.norm
        )  # fmt: skip
    of_h = walk_times(shape, segments.count - bool(concurrent), sums=False)
    walk = segments.segment_tiles * of_h.on(shape.chip)
    if segments.count == 1:
        return walk
    of_pass = StatePassShape.of(shape.d_qk, shape.d_hv, heads=shape.heads, heads_per_qk=shape.group)
    programs = of_pass.programs(shape.rows, shape.d_qk, shape.d_hv) * (segments.count - 1 - bool(concurrent))
    parts = parts_per_segment(segments, programs, shape.chip - concurrent)
    state_pass = segments.segment_tiles / parts * TileTimes(programs * parts, 0.3, 0.5).on(shape.chip)
    if concurrent:
        first = walk_times(shape, 1, sums=False)
        memory = segments.segment_tiles * programs * 0.5 + segments.first_tiles * first.programs * first.shared
        state_pass = max(state_pass, segments.first_tiles * first.alone, memory / shape.chip)
    return walk + state_pass + 0.3 * parts * segments.count  # joining parts


def training_cost(shape: Shape, cut: Cut) -> float:
    """Return the cost of forward, and of dq or dk.

    A backward tile by tile (`tile_gradients.takes_tile_gradients`) has two state passes in place of walks, half a tile
    time each: the same cost where heads share a program. Elsewhere it costs less, which is not modelled.
    """
    segments = shape.segments(cut)
    of_dq = walk_times(shape, segments.count, sums=True)
    return forward_cost(shape, cut) + segments.segment_tiles * of_dq.on(shape.chip)


def _chosen(shape: Shape, backward: bool) -> Cut:
    """Return the cut of least cost, of equal ones that of fewest segments."""
    cuts = [Cut(2 * n) for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if n <= shape.tiles]
    if not backward:  # there a shorter first segment would be one program more
        cuts += [Cut(2 * n + 1) for n in (2, 3, 4, 6, 8, 12, 16) if 32 * n <= shape.tiles]
    cost: Callable[[Shape, Cut], float] = training_cost if backward else forward_cost
    return min(cuts, key=lambda cut: cost(shape, cut))


_remembered = lru_cache(1024)(_chosen)


def chosen(shape: Shape, *, backward: bool) -> Cut:
    """Return the cut of forward and backward, or of forward where no backward is to come."""
    rows: Any = shape.rows
    return (_chosen if isinstance(rows, torch.SymInt) else _remembered)(shape, backward)  # a symbol has no hash


@lru_cache(1024)
def chosen_for_forward(shape: Shape) -> Cut:
    """Return the cut of forward before a backward that has the cut of `chosen`.

    It is the same one, unless another saves forward a sixteenth, and more than h takes to write down what segments of
    backward start from. The shape has no symbols: forward asks when it runs.
    """
    both, alone = chosen(shape, backward=True), chosen(shape, backward=False)
    kept = cdiv(shape.segments(both).count, shape.segments(alone).count)  # a program's states, a tile time each at most
    cost = forward_cost(shape, both)
    return alone if forward_cost(shape, alone) + max(kept, cost / 16) < cost else both
