"""Plan the kernels of the delta rule that are its own: what they take, and their tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tflabench.kernels.common.cover import cdiv, next_power_of_2
from tflabench.kernels.common.sizes import Device, Sizes
from tflabench.kernels.common.tiling import SMALL_BUFFERS, buffered, largest_tile
from tflabench.kernels.scalar.plan import tfla

LARGEST_D_QK = 256  # a program has all rows of a state
TILE = 64  # steps that are solved for together; 32 in float32


@dataclass(frozen=True)
class WalkTiles:
    """Tiling of the walks over states, and of what they read that is made tile by tile.

    Attributes:
        rows: steps at a time, which are solved for together; divides the chunk size.
        channels: rows of a state, a power of two that covers d_qk.
        columns: of a state and of v that a program has.
        warps, stages: warps a program, tiles in flight.
        parts: numbers in the dtype of q that an element of an inverse is the sum of.
    """

    rows: int
    channels: int
    columns: int
    warps: int
    stages: int
    parts: int

    @property
    def forward(self) -> WalkTiles:
        """Return the tiles of the walk forward, two programs of which fit with three tiles in flight."""
        return replace(self, stages=3) if self.stages > 1 and self.channels <= 128 else self

    @property
    def backward(self) -> WalkTiles:
        """Return the tiles of the walk backward, whose operands take as many registers as its state."""
        return replace(self, columns=max(16, min(self.columns, 2**12 // self.channels)))

    def shared_bytes(self, size: int, architecture: int) -> int:
        """Return what Triton allots a program of shared memory, at most, for elements of `size` bytes."""
        tile = self.rows * (2 * self.channels + self.columns + (self.parts + 1) * self.rows)
        return size * (buffered(self.stages, architecture) * tile + self.channels * self.columns) + SMALL_BUFFERS

    @staticmethod
    def of(sizes: Sizes, chunk_size: int, element_bytes: int, beta_max: int, device: Device) -> WalkTiles:
        """Return the tiles of a call: a state in registers, and a program for every multiprocessor if need be."""
        wide, d_qk = element_bytes == 4, max(16, next_power_of_2(sizes.d_qk))
        columns = min(max(16, next_power_of_2(sizes.d_hv)), max(16, min(64, 2**13 // d_qk) // (2 if wide else 1)))
        while columns > 32 and sizes.rows * cdiv(sizes.d_hv, columns) < device.multiprocessors:
            columns //= 2
        rows = largest_tile(chunk_size, TILE // 2 if wide else TILE)
        parts = 2 if beta_max > 1 and not wide else 1
        return WalkTiles(rows, d_qk, columns, warps=4, stages=1 if wide else 2, parts=parts)


def refuses_sizes(d_qk: int, d_hv: int, chunk_size: int | None) -> str | None:
    """Return why the kernels do not take these sizes, or None if they do; a chunk size of None is left to them."""
    if d_qk > LARGEST_D_QK:
        return f"takes a d_qk up to {LARGEST_D_QK}, not {d_qk}"
    return tfla.refuses_sizes(d_qk, d_hv, chunk_size, levels=2)
