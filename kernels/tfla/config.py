"""Choose how the kernels are tiled: one frozen value, by a heuristic for any shape and chip, measured on Hopper.

Imports no torch, so that what a launch needs can be told for a GPU that is not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tflabench.kernels.cover import cdiv, next_power_of_2

if TYPE_CHECKING:
    import torch

SHARED_MEMORY = {80: 166_912, 90: 232_448, 100: 232_448, 103: 232_448}  # bytes a program can use, by architecture
SMALLEST_SHARED_MEMORY = 101_376
SMALL_BUFFERS = 2048  # bytes: barriers, and what sums over rows and columns pass between warps
ONE_LEVEL_CHUNK_SIZES = (16, 32, 64, 128)  # the tiles of the parallel kernels


def has_asynchronous_products(architecture: int) -> bool:
    """Return whether warp groups or a core of its own multiply out of shared memory: sm_90 and sm_100, not sm_120."""
    return 90 <= architecture < 120


def buffered(stages: int, architecture: int) -> int:
    """Return how many of a loop's stages lie in shared memory: where warps multiply themselves, one is in registers."""
    return stages if has_asynchronous_products(architecture) else max(1, stages - 1)


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

    def _loop(self, buffers: int) -> int:
        return self.rows * self.inner + buffers * self.cols * (self.inner + self.outer)

    def _state(self) -> int:
        return (self.rows + self.outer) * min(self.inner, self.narrow)


@dataclass(frozen=True)
class StateTiles:
    """Tiling of the state walk (see `states`): steps at a time, and the tile (u, v) of the state (d_qk, d_hv)."""

    rows: int
    u: int
    v: int
    warps: int
    stages: int

    def shared_bytes(self, size: int, architecture: int) -> int:
        """Return what Triton allots a program of shared memory, at most: tiles in flight, and two states in and out."""
        tiles = buffered(self.stages, architecture) * self.rows * (self.u + self.v)
        return size * (tiles + 2 * self.u * self.v) + SMALL_BUFFERS


@dataclass(frozen=True)
class TileConfig:
    """Hold everything that can be tuned; any value that compiles gives the same result up to rounding.

    Attributes:
        h, dq, dk, dv: tiling of the four parallel kernels.
        forward_states, backward_states: tiling of the state walks.
        programs: the state walk is cut into segments of the sequence until it has about this many programs.
        keep_states: keep the chunk states for backward instead of computing them again.
    """

    h: Tiles
    dq: Tiles
    dk: Tiles
    dv: Tiles
    forward_states: StateTiles
    backward_states: StateTiles
    programs: int = 264
    keep_states: bool = False

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
    limit = SHARED_MEMORY.get(architecture, SMALLEST_SHARED_MEMORY)
    if size == 4:  # IEEE float32 has no tensor cores: operands live in registers
        rows = min(tile, 32)
        return Tiles(rows, rows, _block(d_in, 32), _block(d_out, 64), warps=4, stages=1)
    if architecture >= 90:
        outer = _block(d_out, 256)
        half = limit // 2 - 1024  # two programs a multiprocessor hide each other's latencies
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
            (64, 64, whole, 3, limit // 2 - 1024),
            (64, 64, whole, 2, limit),
            (64, 32, whole, 2, limit),
            (64, 32, _block(d_in, 128), 2, limit),
            (64, 32, _block(d_in, 64), 1, limit),
        ]
    for rows, cols, inner, stages, most in options:
        rows = min(rows, tile)
        tiles = Tiles(rows, min(cols, rows), inner, outer, warps=8 if rows == 128 else 4, stages=stages)
        if tiles.tile_bytes(size) <= most:
            return tiles
    raise AssertionError(f"no tiling of d_in={d_in}, d_out={d_out} fits {limit} bytes of shared memory")


def _state_tiles(d_qk: int, d_hv: int, size: int, chunk_size: int, architecture: int) -> StateTiles:
    rows = largest_tile(chunk_size, 64)
    if size == 4:
        return StateTiles(min(rows, 32), _block(d_qk, 32), _block(d_hv, 64), warps=4, stages=1)
    if architecture < 90:
        return StateTiles(rows, _block(d_qk, 64), _block(d_hv, 64), warps=4, stages=2)
    return StateTiles(rows, _block(d_qk, 64), _block(d_hv, 128), warps=4, stages=3)


def refuses_sizes(d_qk: int, d_hv: int, chunk_size: int | None, levels: int) -> str | None:
    """Return why no tiling takes these sizes, or None if one does.

    Args:
        chunk_size: L; None where it is left to the kernels.
        levels: 2 for xl_chunk; 1 for limit_chunk, whose chunk is one tile.
    """
    for name, d in (("d_qk", d_qk), ("d_hv", d_hv)):
        if d % 16 or not 16 <= d <= 1024:
            return f"takes a {name} that is a multiple of 16 up to 1024, not {d}"
    if chunk_size is None:
        return None
    if levels == 1 and chunk_size not in ONE_LEVEL_CHUNK_SIZES:
        return f"takes a chunk_size that is one tile, 16, 32, 64 or 128, not {chunk_size}"
    if chunk_size < 16 or chunk_size % 16:
        return f"takes a chunk_size that is a multiple of 16, its smallest tile, not {chunk_size}"
    return None


def fitting(chunk_size: int, T: int) -> int:
    """Return the chunk size, of a chunk longer than the sequence the next power of two: its tiles may be larger."""
    return min(chunk_size, max(16, next_power_of_2(T))) if chunk_size > T else chunk_size


def largest_tile(chunk_size: int, limit: int) -> int:
    """Return the largest power of two up to `limit` that divides the chunk size."""
    return min(chunk_size & -chunk_size, limit)


def _block(d: int, limit: int) -> int:
    """Return the block for a dimension d: all of it up to `limit`, else the largest that pads d by at most a third."""
    whole = max(16, next_power_of_2(d))
    if whole <= limit:
        return whole
    block = limit
    while block > 64 and cdiv(d, block) * block * 3 > 4 * d:
        block //= 2
    return block
