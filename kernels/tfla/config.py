"""How the kernels are tiled: one frozen value, and a heuristic for any shape and chip, measured on Hopper."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from tflabench.kernels.cover import cdiv, next_power_of_2

SHARED_MEMORY = {80: 166_912, 90: 232_448, 100: 232_448, 103: 232_448}  # bytes a program can use, by architecture
SMALLEST_SHARED_MEMORY = 101_376


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


@dataclass(frozen=True)
class StateTiles:
    """Tiling of the state walk (see `states`): steps at a time, and the tile (u, v) of the state (d_qk, d_hv)."""

    rows: int
    u: int
    v: int
    warps: int
    stages: int


@dataclass(frozen=True)
class TileConfig:
    """Everything that can be tuned; any value that compiles gives the same result up to rounding.

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

    @staticmethod
    def for_shape(d_qk: int, d_hv: int, dtype: torch.dtype, chunk_size: int, architecture: int) -> TileConfig:
        """Return what measured best, or nearest.

        Args:
            d_qk, d_hv, dtype: head dimensions, and the type of q.
            chunk_size: L, a multiple of 16.
            architecture: 90 is compute capability 9.0.
        """
        return _for_shape(d_qk, d_hv, dtype.itemsize, chunk_size, architecture)


@cache
def _for_shape(d_qk: int, d_hv: int, size: int, chunk_size: int, architecture: int) -> TileConfig:
    narrow = _parallel_tiles(d_hv, d_qk, size, chunk_size, architecture)
    wide = _parallel_tiles(d_qk, d_hv, size, chunk_size, architecture)
    states = _state_tiles(d_qk, d_hv, size, chunk_size, architecture)
    return TileConfig(h=wide, dq=narrow, dk=narrow, dv=wide, forward_states=states, backward_states=states)


@cache
def architecture(device: torch.device) -> int:
    """Return the compute capability as in sm_90; Triton's interpreter (no GPU) is taken for Hopper."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@cache
def multiprocessors(device: torch.device) -> int:
    """Return how many this device has; 132, Hopper's, where there is none."""
    if device.type != "cuda":
        return 132
    cuda: Any = torch.cuda
    return cuda.get_device_properties(device).multi_processor_count


def _parallel_tiles(d_in: int, d_out: int, size: int, chunk_size: int, architecture: int) -> Tiles:
    """Return the first tiling below that fits the chunk and the shared memory; the best stand first (MEASURED.md)."""
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
        cols = min(cols, rows)
        loop = rows * inner + stages * cols * (inner + outer)
        state = (rows + outer) * min(inner, 64)
        if size * max(loop, state) <= most:
            return Tiles(rows, cols, inner, outer, warps=8 if rows == 128 else 4, stages=stages)
    raise AssertionError(f"no tiling of d_in={d_in}, d_out={d_out} fits {limit} bytes of shared memory")


def _state_tiles(d_qk: int, d_hv: int, size: int, chunk_size: int, architecture: int) -> StateTiles:
    rows = largest_tile(chunk_size, 64)
    if size == 4:
        return StateTiles(min(rows, 32), _block(d_qk, 32), _block(d_hv, 64), warps=4, stages=1)
    if architecture < 90:
        return StateTiles(rows, _block(d_qk, 64), _block(d_hv, 64), warps=4, stages=2)
    return StateTiles(rows, _block(d_qk, 64), _block(d_hv, 128), warps=4, stages=3)


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
