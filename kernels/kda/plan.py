"""Plan the kernels of Kimi Delta Attention: what they take, their tiles, and those of their walks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tflabench.kernels.common import tiling
from tflabench.kernels.common.cover import cdiv, next_power_of_2
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.delta.plan import TILE, WalkTiles

LARGEST_D_QK = 128  # a program has all rows of a state
STAGES = 2  # of 16 bits: columns of values and states in flight, where gradients are made
COLUMNS = 32  # of a state that a program walks with


@dataclass(frozen=True)
class KdaPlan:
    """Say how a call is run.

    Attributes:
        tile: steps that are solved for together, and between two states in memory.
        channels: of q and k that a program of a tile has at a time.
        columns: of v at a time, where gradients are made.
        steps, floor: of a block of a tile, and the least log2 decay within one (`decays`).
        walk: tiles of either walk. With one tile in flight the ptxas of Triton 3.6 miscompiles them in 16 bits.
    """

    sizes: Sizes
    tile: int
    channels: int
    columns: int
    steps: int
    floor: float
    walk: WalkTiles

    @property
    def tiles(self) -> int:
        """Tiles of the sequence."""
        return cdiv(self.sizes.steps, self.tile)

    def shared_bytes(self, size: int, architecture: int) -> int:
        """Return what Triton allots a program of shared memory, at most, for elements of `size` bytes."""
        values = tiling.buffered(STAGES, architecture) * self.columns * (3 * self.tile + 2 * self.channels)
        of_tiles = max(size * values, 6 * 4 * self.tile * self.channels)  # of float16 six operands are float32
        return max(of_tiles + tiling.SMALL_BUFFERS, shared_bytes(self.walk, size, architecture))

    @staticmethod
    def of(sizes: Sizes, chunk_size: int, dtype: str, beta_max: int) -> KdaPlan:
        """Return the plan of a call."""
        wide = dtype == "float32"
        tile = tile_of(chunk_size, sizes.steps, wide=wide)
        most = 32 if wide else 64
        channels, columns = (min(most, max(16, next_power_of_2(d))) for d in (sizes.d_qk, sizes.d_hv))
        steps, floor = (8, -32.0) if wide else (16, -16.0)
        rows_of_state, parts = max(16, next_power_of_2(sizes.d_qk)), parts_of(beta_max, wide=wide)
        walk = WalkTiles(tile, rows_of_state, COLUMNS, warps=4, stages=1 if wide else 2, parts=parts)
        return KdaPlan(sizes, tile, channels, columns, min(steps, tile), floor, walk)


class KdaCall(NamedTuple):
    """Tell launchers of kernels of a call, but for its tensors: its plan, scale and input_precision of float32."""

    plan: KdaPlan
    scale: float
    precision: str


def refuses_sizes(d_qk: int, d_hv: int, chunk_size: int | None) -> str | None:
    """Return why the kernels do not take these sizes, or None if they do; a chunk size of None is left to them."""
    if d_qk > LARGEST_D_QK:
        return f"takes a d_qk up to {LARGEST_D_QK}, not {d_qk}"
    return tiling.refuses_sizes(d_qk, d_hv, chunk_size)


def tile_of(chunk_size: int, steps: int, *, wide: bool) -> int:
    """Return the steps of a tile: half as many where elements are float32."""
    return tiling.largest_tile(tiling.fitting(chunk_size, steps), TILE // 2 if wide else TILE)


def parts_of(beta_max: int, *, wide: bool) -> int:
    """Return of how many numbers an element of an inverse is the sum: above a beta of 1 it can be large."""
    return 2 if beta_max > 1 and not wide else 1


def shared_bytes(walk: WalkTiles, size: int, architecture: int) -> int:
    """Return what Triton allots a program of a walk of shared memory, at most, for elements of `size` bytes."""
    tile = walk.rows * (3 * walk.channels + 2 * walk.columns + (walk.parts + 1) * walk.rows)  # columns of do and R
    state = walk.channels * walk.columns
    return size * (tiling.buffered(walk.stages, architecture) * tile + state) + tiling.SMALL_BUFFERS
