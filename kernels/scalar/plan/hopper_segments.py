"""Cut sequences into segments, so that the programs of the fused kernels fill a GPU: the L of "auto".

With n segments a walk takes (rounds of programs) * (tiles a segment) times of a tile, at one program a multiprocessor,
and a state pass over all segments but one goes before it. n depends on the next power of two of tiles: torch.compile,
for which T may be a symbol, compiles once for each. Forward has more programs than backward where two share a state
(`WalkShape.filling`), so it is cut into fewer segments where no backward is to come, and before one where that is worth
it (`chosen_for_forward`).

Costs are in us, and follow to the bit from ratios of programs to multiprocessors: `Device.times` changes no choice. A
tile takes as long as a program waits for itself, as measured on sm_90, or as the memory takes for
its bytes (docs/decisions/2026-11-23-choice-of-segments.md, 2026-11-25-segments-by-bandwidth.md).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.sizes import Device, Sizes

from .hopper_shapes import HEIGHT, TILE, WIDTH, StatePassShape, WalkShape, heads_together


class Segments(NamedTuple):
    """The segments of a sequence, which programs walk over side by side.

    Attributes:
        segment_tiles: tiles of every segment but the first, which has the remainder.
    """

    tiles: int
    segment_tiles: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  (tuple.count, which nobody calls)

    @classmethod
    def of(cls, steps: int, chunk_size: int) -> Segments:
        """Return the segments of a sequence of `steps` steps, `chunk_size` each."""
        tiles = cdiv(steps, TILE)
        return cls.of_tiles(tiles, min(tiles, max(1, chunk_size // TILE)))

    @classmethod
    def of_tiles(cls, tiles: int, segment_tiles: int) -> Segments:
        """Return the segments of a sequence of `tiles` tiles."""
        return cls(tiles, segment_tiles, cdiv(tiles, segment_tiles))

    @property
    def first_tiles(self) -> int:
        """Tiles of the first segment."""
        return self.tiles - (self.count - 1) * self.segment_tiles

    def tiles_of(self, segments: range) -> int:
        """Return the tiles of consecutive segments."""
        lacking = self.segment_tiles - self.first_tiles
        return len(segments) * self.segment_tiles - lacking * (0 in segments)


class Parts(NamedTuple):
    """The parts into which a state pass cuts segments, for more programs.

    Attributes:
        per_segment: parts of every segment but the first, which has what remains.
        added: the parts whose states are added up.
    """

    cut: Segments
    per_segment: int
    added: range

    @classmethod
    def of(cls, cut: Segments, per_segment: int, *, reverse: bool, end: bool, resumed: bool) -> Parts:
        """Return the parts of segments.

        Args:
            end: the state after the last segment of the walk is asked for.
            resumed: the state after the first segment is made elsewhere.
        """
        parts = Segments.of_tiles(cut.tiles, cut.segment_tiles // per_segment)
        of_first = parts.count - per_segment * (cut.count - 1)
        begin = of_first if resumed or (reverse and not end) else 0
        return cls(parts, per_segment, range(begin, parts.count - (0 if end or reverse else per_segment)))

    @property
    def tiles(self) -> int:
        """Tiles of the parts whose states are added up."""
        return self.cut.tiles_of(self.added)


def first_segment_programs(sizes: Sizes, cut: Segments, chip: int, *, normalise: bool) -> int:
    """Return how many programs make h of the first segment while a state pass goes over those between it and the last.

    0 where it is too long for that, where there is no room, or where heads share a program.
    """
    if cut.count < 3 or 2 * cut.first_tiles > cut.segment_tiles or (not normalise and heads_together(sizes) > 1):
        return 0
    rows, d_qk, d_hv = sizes.rows, sizes.d_qk, sizes.d_hv
    programs = rows * WalkShape.filling(d_qk, d_hv, rows, chip, sums=False).pieces_of(d_hv)
    between = rows * cdiv(d_qk, HEIGHT) * cdiv(d_hv, WIDTH) * (cut.count - 2)
    return programs if programs + between <= chip else 0


def parts_per_segment(cut: Segments, programs: int, chip: int) -> int:
    """Return into how many parts a state pass cuts a segment.

    Twice as many where less than half of the chip would be taken, as long as joining them takes less time than walking
    over them.

    Args:
        programs: of uncut segments.
    """
    parts = 1
    while (
        2 * parts * programs <= chip
        and cut.segment_tiles % (2 * parts) == 0
        and (2 * parts * cut.count) ** 2 <= cut.tiles
    ):
        parts *= 2
    return parts


# us that a program takes for a tile if it only waits for itself:
OUTPUT, PRODUCT = 0.8, 0.31  # of a walk, for a block of rows of the state; and for each block of columns of that
ROW_SUMS = 1.5  # times as long, with row sums
MORE = 1.2  # of the memory's time, with row sums (`TileTimes.more`)
NORMALISER = 0.3  # more, if it carries one
GRADIENTS = 2.2  # times as long as dq take dq, dk and dv
TOGETHER = 2.9  # of four heads
STATE = 1.0  # of a state pass
# us besides tiles, where there are segments:
JOINING = 1.0  # for a part of a segment
BESIDES = 30.0  # for two launches more, and programs that start and end

ELEMENT_BYTES = 2  # of the inputs
OF_BANDWIDTH = 0.79  # that a walk over memory attains, of what `Device` has

# --- Choice -----------------------------------------------------------------------------------------------------------


class Cut(NamedTuple):
    """A number of half segments of a sequence.

    An odd number leaves half a segment or less for the first. The walk over that may then run while the state pass goes
    over the others (`first_segment_programs`).
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
        sizes: with the next power of two of a sequence's tiles. The batch may be a symbol.
        bandwidth: of memory, TB/s.
    """

    sizes: Sizes
    norm: bool
    chip: int
    bandwidth: float

    @classmethod
    def of(cls, sizes: Sizes, device: Device, *, norm: bool) -> Shape:
        """Return the numbers of a call."""
        tiles = 1
        while TILE * tiles < sizes.steps:
            tiles *= 2
        fixed = map(int, (sizes.heads, sizes.group, TILE * tiles, sizes.d_qk, sizes.d_hv))
        return cls(Sizes(sizes.batch, *fixed), norm, device.multiprocessors, device.bandwidth)

    @property
    def tiles(self) -> int:
        """Tiles of a sequence."""
        return self.sizes.steps // TILE

    @property
    def together(self) -> int:
        """Heads that share a program for h."""
        return 1 if self.norm else heads_together(self.sizes)

    def segments(self, cut: Cut) -> Segments:
        """Return the segments of a cut."""
        return Segments.of_tiles(self.tiles, cut.segment_tiles(self.tiles))


class TileTimes(NamedTuple):
    """Times that programs take for a tile, us.

    Attributes:
        alone: of a tile of each, if programs only wait for themselves.
        memory: the same, if they only wait for memory, and the chip is full of them.
        more: by what fewer programs take more than their share of that.
    """

    programs: int
    alone: float
    memory: float
    more: float = 1.0

    def on(self, chip: int) -> float:
        """Return the time of a tile of every round of programs."""
        return cdiv(self.programs, chip) * max(self.alone, self.memory * min(1.0, self.more * (self.programs / chip)))


def memory_time(shape: Shape, elements: float) -> float:
    """Return the time in which a chip full of programs moves the elements of a step of each, us a tile."""
    return shape.chip / shape.bandwidth * (TILE * ELEMENT_BYTES * elements / (1e6 * OF_BANDWIDTH))


def walk_times(shape: Shape, segments: int, *, sums: bool) -> TileTimes:
    """Return the times of h, or with row sums of dq or dk, over a number of segments of every row."""
    rows, d_qk, d_hv = shape.sizes.rows * segments, shape.sizes.d_qk, shape.sizes.d_hv
    of_qk, of_hv = d_qk / shape.sizes.group, d_hv  # elements a step and head of q or k, and of v or h
    if shape.together > 1:
        return TileTimes(rows // shape.together, TOGETHER, memory_time(shape, shape.together * 2 * (of_qk + of_hv)))
    columns, height = (d_hv, d_qk) if sums else (d_qk, d_hv)
    column_pieces, columns = cdiv(columns, WIDTH), min(columns, WIDTH)
    filling = WalkShape.filling(columns, height, rows, shape.chip, sums=sums)
    pieces = column_pieces * filling.pieces_of(height)
    alone = filling.blocks_value * (OUTPUT + PRODUCT * filling.blocks_key)
    alone = ROW_SUMS * alone if sums else alone + NORMALISER * shape.norm
    moved = 2 * of_hv + 2 * of_qk + d_qk * sums
    return TileTimes(rows * pieces, alone, memory_time(shape, moved / pieces), MORE if sums else 1.0)


def state_pass_cost(shape: Shape, segments: Segments, concurrent: int = 0) -> float:
    """Return the cost of a pass that makes what segments start from, us.

    Args:
        concurrent: programs that make h of the first segment at the same time.
    """
    if segments.count == 1:
        return 0.0
    sizes = shape.sizes
    of_pass = StatePassShape.of(sizes.d_qk, sizes.d_hv, heads=sizes.heads, heads_per_qk=sizes.group)
    programs = of_pass.programs(sizes) * (segments.count - 1 - bool(concurrent))
    parts = parts_per_segment(segments, programs, shape.chip - concurrent)
    moved = (sizes.d_qk / sizes.group + sizes.d_hv) * (sizes.rows / of_pass.programs(sizes))
    of_states = TileTimes(programs * parts, STATE, memory_time(shape, moved))
    walked = segments.segment_tiles / parts * of_states.on(shape.chip)
    if concurrent:
        first = walk_times(shape, 1, sums=False)
        memory = segments.segment_tiles * (programs / shape.chip) * of_states.memory
        memory += segments.first_tiles * (first.programs / shape.chip) * first.memory
        walked = max(walked, segments.first_tiles * first.alone, memory)
    return walked + parts * segments.count * JOINING + BESIDES


def forward_cost(shape: Shape, cut: Cut) -> float:
    """Return the cost of a state pass and h, us."""
    segments = shape.segments(cut)
    concurrent = first_segment_programs(shape.sizes, segments, shape.chip, normalise=shape.norm)
    of_h = walk_times(shape, segments.count - bool(concurrent), sums=False)
    return segments.segment_tiles * of_h.on(shape.chip) + state_pass_cost(shape, segments, concurrent)


def training_cost(shape: Shape, cut: Cut) -> float:
    """Return the cost of forward, and of a state pass and dq, dk and dv backward, us.

    A backward tile by tile (`hopper_shapes.takes_tile_gradients`) has two state passes in place of walks, half a tile
    time each: the same cost where heads share a program. Elsewhere it costs less, which is not modelled.
    """
    segments = shape.segments(cut)
    of_dq = walk_times(shape, segments.count, sums=True)
    backward = state_pass_cost(shape, segments) + GRADIENTS * segments.segment_tiles * of_dq.on(shape.chip)
    return forward_cost(shape, cut) + backward


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
    is_number = type(shape.sizes.batch) is int  # a symbol, as torch.compile traces with, has no hash
    return (_remembered if is_number else _chosen)(shape, backward)


@lru_cache(1024)
def chosen_for_forward(shape: Shape) -> Cut:
    """Return the cut of forward before a backward that has the cut of `chosen`.

    It is the same one, unless another saves forward a sixteenth, and more than h takes to write down what segments of
    backward start from. The shape has no symbols: forward asks when it runs.
    """
    both, alone = chosen(shape, backward=True), chosen(shape, backward=False)
    of_h = walk_times(shape, shape.segments(alone).count, sums=False)
    kept = of_h.alone * cdiv(shape.segments(both).count, shape.segments(alone).count)  # a tile's time a state at most
    cost = forward_cost(shape, both)
    return alone if forward_cost(shape, alone) + max(kept, cost / 16) < cost else both
