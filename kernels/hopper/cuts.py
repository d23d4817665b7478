"""Into how many segments a sequence is cut so that their programs fill the chip: the L of "auto".

One segment where batch * heads does, else segments of which each is a program or several. With n of them a walk takes
(rounds of programs) * (tiles a segment) tile times, at one program a multiprocessor; a state pass goes before it over
all segments but one. n is that of the next power of two of tiles: torch.compile, for which T may be a symbol, compiles
once for each. Forward has more programs than backward where two share a state (`WalkShape.filling`), so it is cut into
fewer segments where no backward is to come, and before one where that is worth it (`chosen_beside_backward`).

Costs are in times of a tile of h, dv, dq or dk, as they measured on an H200 (MEASURED.md).
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

from .launch import first_beside, parts_of_a_segment
from .shapes import TILE, Segments, StatePassShape, WalkShape, heads_together


class Cut(NamedTuple):
    """Half segments of a sequence. An odd number leaves half a segment or less for the first, which may then be walked
    beside the state pass over the others (`launch.first_beside`).
    """

    halves: int

    def segment_tiles(self, tiles: int) -> int:
        found = cdiv(2 * tiles, self.halves)
        return found if found < 32 else found + found % 2  # long ones so that a state pass can cut them in two

    def chunk_size(self, steps: int) -> int:
        return TILE * self.segment_tiles(cdiv(steps, TILE))


class Shape(NamedTuple):
    """What a cut depends on: rows of batch and heads, their heads, of which `group` share q and k and `together` a
    program, head dimensions, tiles (a power of two), a normaliser or none, multiprocessors.
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
        B, T = v.shape[0], v.shape[2]
        groups, H, d_qk, d_hv = map(int, (q.shape[1], v.shape[1], q.shape[-1], v.shape[-1]))
        together = 1 if gate.normalize else heads_together(q, v)
        tiles = 1
        while TILE * tiles < T:
            tiles *= 2
        return cls(B * H, H, H // groups, together, d_qk, d_hv, tiles, gate.normalize, multiprocessors(q.device))

    def segments(self, cut: Cut) -> Segments:
        return Segments.of_tiles(self.tiles, cut.segment_tiles(self.tiles))


class TileTimes(NamedTuple):
    """Of programs: a tile of each takes `alone` if they only wait for themselves, `shared` if the chip is full of them
    and they wait for memory.
    """

    programs: int
    alone: float
    shared: float

    def on(self, chip: int) -> float:
        """Of a tile, every round's."""
        return cdiv(self.programs, chip) * max(self.alone, self.shared * min(1.0, self.programs / chip))


def of_walk(shape: Shape, segments: int, *, sums: bool) -> TileTimes:
    """Of h, or with row sums of dq and dk, of so many segments of every row; a launch for each 256 columns."""
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


def of_forward(shape: Shape, cut: Cut) -> float:
    """Cost of a state pass and h."""
    segments = shape.segments(cut)
    beside = 0
    if shape.together == 1:
        beside = first_beside(shape.d_qk, shape.d_hv, shape.rows, segments, shape.chip, norm=shape.norm)
    found = segments.segment_tiles * of_walk(shape, segments.count - bool(beside), sums=False).on(shape.chip)
    if segments.count == 1:
        return found
    of_pass = StatePassShape.of(shape.d_qk, shape.d_hv, heads=shape.heads, z_sharing=shape.group)
    programs = of_pass.programs(shape.rows, shape.d_qk, shape.d_hv) * (segments.count - 1 - bool(beside))
    parts = parts_of_a_segment(segments, programs, shape.chip - beside)
    state_pass = segments.segment_tiles / parts * TileTimes(programs * parts, 0.3, 0.5).on(shape.chip)
    if beside:
        first = of_walk(shape, 1, sums=False)
        memory = segments.segment_tiles * programs * 0.5 + segments.first_tiles * first.programs * first.shared
        state_pass = max(state_pass, segments.first_tiles * first.alone, memory / shape.chip)
    return found + state_pass + 0.3 * parts * segments.count  # joining parts


def of_both(shape: Shape, cut: Cut) -> float:
    """Cost of forward, and of dq or dk.

    A backward tile by tile (`launch.takes_tilewise`) has two state passes in place of walks, half a tile time each: as
    much where heads are together, less (not modelled) where not.
    """
    segments = shape.segments(cut)
    return of_forward(shape, cut) + segments.segment_tiles * of_walk(shape, segments.count, sums=True).on(shape.chip)


def _chosen(shape: Shape, backward: bool) -> Cut:
    cuts = [Cut(2 * n) for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if n <= shape.tiles]
    if not backward:  # for which a segment that is not as long would be one more
        cuts += [Cut(2 * n + 1) for n in (2, 3, 4, 6, 8, 12, 16) if 32 * n <= shape.tiles]
    cost: Callable[[Shape, Cut], float] = of_both if backward else of_forward
    return min(cuts, key=lambda cut: cost(shape, cut))  # of as good ones the fewest


_remembered = lru_cache(1024)(_chosen)


def chosen(shape: Shape, *, backward: bool) -> Cut:
    """The cut of forward and backward, or of forward where no backward is to come."""
    rows: Any = shape.rows
    return (_chosen if isinstance(rows, torch.SymInt) else _remembered)(shape, backward)  # a symbol has no hash


@lru_cache(1024)
def chosen_beside_backward(shape: Shape) -> Cut:
    """The cut of forward where backward's is `chosen`: the same one, unless another saves forward a sixteenth and more
    than h takes to write down what segments of backward start from. Of no symbols: nobody asks before it runs.
    """
    both, alone = chosen(shape, backward=True), chosen(shape, backward=False)
    kept = cdiv(shape.segments(both).count, shape.segments(alone).count)  # by a program, a tile time or less each
    cost = of_forward(shape, both)
    return alone if of_forward(shape, alone) + max(kept, cost / 16) < cost else both
