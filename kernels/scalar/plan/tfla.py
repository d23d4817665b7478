"""Plan the Triton kernels of the paper's algorithm: tiles by a heuristic for any shape and GPU, segments, programs.

The heuristic was measured on sm_90.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tflabench.kernels.common import tiling
from tflabench.kernels.common.cover import cdiv, next_power_of_2
from tflabench.kernels.common.sizes import USUAL, Device, Sizes, shared_memory
from tflabench.kernels.common.tiling import (
    SMALL_BUFFERS,
    StateTiles,
    buffered,
    fitting,
    has_asynchronous_products,
    largest_tile,
)

if TYPE_CHECKING:
    import torch

BESIDE_TILES = 1024  # bytes of shared memory that a second program on a multiprocessor needs besides its tiles
ONE_LEVEL_CHUNK_SIZES = (16, 32, 64, 128)  # the tiles of the parallel kernels
STEPS_OF_LAUNCH = 4096  # of a walk over states, in less time than a host takes to launch what a pass takes
SUMMING_WAVES = 8  # programs add up heads while these are left that often, see `TileConfig.programs`


@dataclass(frozen=True)
class Tiles:
    """Tiling of the parallel kernel (see `outputs`), powers of two.

    Attributes:
        rows: steps of one program; divides the chunk size.
        cols: steps of the loop over the other side; divides rows.
        inner: block of the dimension summed in x . y.
        outer: block of the dimension of the output.
        warps, stages: warps a program, tiles in flight.
        narrow: block of the inner dimension in the product with the state, whose weighted x passes through registers.
    """

    rows: int
    cols: int
    inner: int
    outer: int
    warps: int
    stages: int
    narrow: int = 64

    def tile_bytes(self, size: int) -> int:
        """Return the bytes that tiles are chosen by, of `size` an element: all stages, or the state's product."""
        return size * max(self._loop(self.stages), self._state())

    def shared_bytes(self, size: int, architecture: int) -> int:
        """Return what Triton allots a program of shared memory, at most: scores too where warps multiply themselves."""
        buffers = buffered(self.stages, architecture)
        scores = 0 if has_asynchronous_products(architecture) else self.rows * self.cols
        return size * max(self._loop(buffers) + scores, self._state()) + SMALL_BUFFERS

    def resident(self, size: int, architecture: int) -> int:
        """Return how many programs a multiprocessor runs at once: two at most, for their registers."""
        return min(2, shared_memory(architecture) // (self.tile_bytes(size) + BESIDE_TILES))

    def _loop(self, buffers: int) -> int:
        return self.rows * self.inner + buffers * self.cols * (self.inner + self.outer)

    def _state(self) -> int:
        return (self.rows + self.outer) * min(self.inner, self.narrow)


@dataclass(frozen=True)
class TileConfig:
    """Hold everything that can be tuned; any value that compiles gives the same result up to rounding.

    Attributes:
        h, dq, dk, dv: tiling of the four parallel kernels.
        forward_states, backward_states: tiling of the state walks.
        programs: the state walk is cut into segments of the sequence until it has about this many programs.
    """

    h: Tiles
    dq: Tiles
    dk: Tiles
    dv: Tiles
    forward_states: StateTiles
    backward_states: StateTiles
    programs: int = 264

    def shared_bytes(self, size: int, architecture: int) -> int:
        """Return the shared memory of the program that takes most, for elements of `size` bytes."""
        tiles = (self.h, self.dq, self.dk, self.dv, self.forward_states, self.backward_states)
        return max(each.shared_bytes(size, architecture) for each in tiles)

    @staticmethod
    def for_shape(d_qk: int, d_hv: int, dtype: torch.dtype, chunk_size: int, architecture: int) -> TileConfig:
        """Return what measured best, or nearest.

        Args:
            d_qk, d_hv, dtype: head dimensions, and the type of q.
            chunk_size: L, a multiple of 16.
            architecture: 90 is compute capability 9.0.
        """
        return for_element_bytes(d_qk, d_hv, dtype.itemsize, chunk_size, architecture)


@cache
def for_element_bytes(d_qk: int, d_hv: int, size: int, chunk_size: int, architecture: int) -> TileConfig:
    """Return `TileConfig.for_shape` for elements of `size` bytes."""
    narrow = _parallel_tiles(d_hv, d_qk, size, chunk_size, architecture)
    wide = _parallel_tiles(d_qk, d_hv, size, chunk_size, architecture)
    states = _state_tiles(d_qk, d_hv, size, chunk_size, architecture)
    return TileConfig(h=wide, dq=narrow, dk=narrow, dv=wide, forward_states=states, backward_states=states)


def _parallel_tiles(d_in: int, d_out: int, size: int, chunk_size: int, architecture: int) -> Tiles:
    """Return the first tiling below that fits the chunk and the shared memory; the best first.

    They are those of docs/decisions/2026-11-23-triton-tilings.md.
    """
    tile = largest_tile(chunk_size, 128)
    whole = max(16, next_power_of_2(d_in))
    limit = shared_memory(architecture)
    if size == 4:  # IEEE float32 has no tensor cores: operands live in registers
        rows = min(tile, 32)
        return Tiles(rows, rows, _block(d_in, 32), _block(d_out, 64), warps=4, stages=1)
    if architecture >= 90:
        outer = _block(d_out, 256)
        half = limit // 2 - BESIDE_TILES  # two programs a multiprocessor hide each other's latencies
        short = [(64, 32, whole, 2, half), (64, 64, _block(d_in, 128), 2, half)]
        options = [  # rows, cols, inner, stages, bytes
            (64, 64, whole, 2, half),
            (64, 32, whole, 3, half),
            *(short if chunk_size < 1024 else []),
            (128, 64, whole, 2, limit),
            (128, 32, whole, 2, limit),
            (128, 64, _block(d_in, 128), 3, limit),
            (64, 32, _block(d_in, 64), 2, limit),
        ]
    else:
        outer = _block(d_out, 128)
        options = [
            (64, 64, whole, 3, limit // 2 - BESIDE_TILES),
            (64, 64, whole, 2, limit),
            (64, 32, whole, 2, limit),
            (64, 32, _block(d_in, 128), 2, limit),
            (64, 32, _block(d_in, 64), 1, limit),
        ]
    tilings = [
        (Tiles(min(rows, tile), min(cols, rows, tile), inner, outer, warps=8 if min(rows, tile) == 128 else 4,
               stages=stages), most)
        for rows, cols, inner, stages, most in options
    ]  # fmt: skip
    # The last one fits up to head dimensions of 1024.
    return next((tiles for tiles, most in tilings if tiles.tile_bytes(size) <= most), tilings[-1][0])


def _state_tiles(d_qk: int, d_hv: int, size: int, chunk_size: int, architecture: int) -> StateTiles:
    rows = largest_tile(chunk_size, 64)
    if size == 4:
        return StateTiles(min(rows, 32), _block(d_qk, 32), _block(d_hv, 64), warps=4, stages=1)
    if architecture < 90:
        return StateTiles(rows, _block(d_qk, 64), _block(d_hv, 64), warps=4, stages=2)
    return StateTiles(rows, _block(d_qk, 64), _block(d_hv, 128), warps=4, stages=3)


class StateWalk(NamedTuple):
    """The walk over a sequence that makes the states of chunks, or their gradients.

    Attributes:
        blocks: programs that share a state.
        segment_tiles: tiles of a segment.
        segments: of a sequence. With several there are two passes: what each adds, then the states.
    """

    tiles: StateTiles
    blocks: int
    tiles_per_chunk: int
    segment_tiles: int
    segments: int


class Outputs(NamedTuple):
    """A launch of the parallel kernel.

    Attributes:
        blocks: programs that share the rows of an output.
        members: heads whose outputs a program adds up.
    """

    tiles: Tiles
    blocks: int
    members: int
    programs: int


@dataclass(frozen=True)
class Plan:
    """Everything that forward and backward of a call launch.

    Attributes:
        chunk_size: that of `fitting`.
        element_bytes: of an element of q.
    """

    sizes: Sizes
    chunk_size: int
    element_bytes: int
    config: TileConfig
    device: Device
    forward_states: StateWalk = field(init=False)
    backward_states: StateWalk = field(init=False)
    h: Outputs = field(init=False)
    dq: Outputs = field(init=False)
    dk: Outputs = field(init=False)
    dv: Outputs = field(init=False)

    def __post_init__(self) -> None:
        for name in ("forward_states", "backward_states"):
            object.__setattr__(self, name, self.walk(getattr(self.config, name)))
        for name in ("h", "dq", "dk", "dv"):
            object.__setattr__(self, name, self.outputs(getattr(self.config, name), of_qk=name in ("dq", "dk")))

    @property
    def chunks(self) -> int:
        """Chunks of a sequence."""
        return cdiv(self.sizes.steps, self.chunk_size)

    @property
    def tma(self) -> bool:
        """Tell whether tiles travel by descriptors that the host makes."""
        return self.device.architecture >= 90

    @property
    def programs(self) -> int:
        """Programs that should run at once, at least."""
        return self.config.programs * self.device.multiprocessors // USUAL.multiprocessors

    def walk(self, tiles: StateTiles) -> StateWalk:
        """Return a walk over states."""
        sizes, chunks = self.sizes, self.chunks
        blocks = cdiv(sizes.d_qk, tiles.u) * cdiv(sizes.d_hv, tiles.v)
        segments = max(1, min(chunks, self.programs // (sizes.rows * blocks)))
        tiles_per_chunk, all_tiles = cdiv(self.chunk_size, tiles.rows), cdiv(sizes.steps, tiles.rows)
        segment_tiles = min(all_tiles, tiles_per_chunk * cdiv(chunks, segments))
        return StateWalk(tiles, blocks, tiles_per_chunk, segment_tiles, cdiv(all_tiles, segment_tiles))

    def outputs(self, tiles: Tiles, *, of_qk: bool) -> Outputs:
        """Return a launch of the parallel kernel for dq or dk, or for h or dv."""
        sizes = self.sizes
        blocks = cdiv(sizes.d_qk if of_qk else sizes.d_hv, tiles.outer)
        programs = sizes.rows * cdiv(sizes.steps, tiles.rows) * blocks
        sharing = sizes.group if of_qk and self.tma else 1  # without TMA addresses take the registers that a sum needs
        members = heads_added_up(sharing, programs, SUMMING_WAVES * self.programs)
        return Outputs(tiles, blocks, members, programs // members)


def heads_added_up(sharing: int, programs: int, enough: int) -> int:
    """Return how many of `sharing` heads a program adds up: the largest divisor that leaves `enough` programs."""
    divisors = [n for n in range(1, sharing + 1) if sharing % n == 0]
    return max([n for n in divisors if programs // n >= enough], default=1)


@lru_cache(4096)
def planned(
    sizes: Sizes, chunk_size: int, element_bytes: int, device: Device, config: TileConfig | None = None
) -> Plan:
    """Return the plan of a call, tiled as `for_element_bytes` says where no config is given."""
    size = fitting(chunk_size, sizes.steps)
    config = config or for_element_bytes(sizes.d_qk, sizes.d_hv, element_bytes, size, device.architecture)
    return Plan(sizes, size, element_bytes, config, device)


def refuses_sizes(d_qk: int, d_hv: int, chunk_size: int | None, levels: int) -> str | None:
    """Return why no tiling takes these sizes, or None if one does.

    Args:
        chunk_size: L; None where it is left to the kernels.
        levels: 2 for xl_chunk; 1 for limit_chunk, whose chunk is one tile.
    """
    if levels == 2:
        return tiling.refuses_sizes(d_qk, d_hv, chunk_size)
    refused = chunk_size is not None and chunk_size not in ONE_LEVEL_CHUNK_SIZES
    why = f"takes a chunk_size that is one tile, 16, 32, 64 or 128, not {chunk_size}" if refused else None
    return tiling.refuses_sizes(d_qk, d_hv, None) or why


def takes_documents(sizes: Sizes, device: Device, lengths: list[int], *, states: bool, levels: int) -> bool:
    """Return whether one launch of each kernel for all documents is the fastest way.

    The walk over states then takes as long as the longest document. The other way with states is a launch for each run
    of documents of one length. Without states it is one sequence.

    Args:
        sizes: of the documents end to end.
        lengths: their steps.
    """
    launches = 1 + sum(a != b for a, b in pairwise(lengths))
    if not states or launches == 1:
        return False
    plan = planned(sizes, default_chunk_size(sizes, levels), 2, device)
    at_once = max(1.0, plan.programs / (sizes.heads * plan.forward_states.blocks))  # documents that walk side by side
    return max(lengths) < sizes.steps / at_once + launches * STEPS_OF_LAUNCH


def default_chunk_size(sizes: Sizes, levels: int) -> int:
    """Return the chunk size that measured best: states cost bytes, long chunks cost FLOPs.

    It does not ask for the steps, which may be a symbol: torch.compile would compile anew for others. See `fitting`.
    """
    if levels == 1:
        return 64
    return 128 if sizes.d_qk * sizes.d_hv <= 128 * 128 else 256


def _block(d: int, limit: int) -> int:
    """Return the block for a dimension d: all of it up to `limit`, else the largest that pads d by at most a third."""
    whole = max(16, next_power_of_2(d))
    if whole <= limit:
        return whole
    block = limit
    while block > 64 and cdiv(d, block) * block * 3 > 4 * d:
        block //= 2
    return block
