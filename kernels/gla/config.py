"""Choose tiles of the kernels, for any shape. Imports neither torch nor triton: what they need can be told anywhere."""

from __future__ import annotations

from dataclasses import dataclass

from tflabench.kernels.cover import next_power_of_2
from tflabench.kernels.plan.tfla import StateTiles, buffered, has_asynchronous_products, largest_tile


@dataclass(frozen=True)
class Blocks:
    """Say how the kernels cut a call.

    Attributes:
        tile: steps of a tile, a power of two from 16 on that divides the chunk size.
        block: channels of q and k at a time, where tiles of scores and their gradients are made.
        inner, outer: columns of q and k at a time, and of v, in the kernels of o and dv.
        u, v: rows and columns of the tile of a state that a program walks with.
        hidden: columns of v at a time where gradients of scores are made.
    """

    tile: int
    block: int
    inner: int
    outer: int
    u: int
    v: int
    hidden: int

    def shared_bytes(self, size: int, architecture: int) -> int:
        """Return what Triton allots a program of shared memory, at most, for elements of `size` bytes."""
        stages = 2 if size == 2 else 1
        loop = buffered(stages, architecture) * self.tile * (self.inner + self.outer)
        scores = 0 if has_asynchronous_products(architecture) else 2 * self.tile * self.tile
        outputs = size * (self.tile * self.inner + loop + scores)
        states = StateTiles(self.tile, self.u, self.v, warps=4, stages=stages + 1 if size == 2 else 1)
        return max(outputs, states.shared_bytes(size, architecture))

    @staticmethod
    def for_shape(d_qk: int, d_hv: int, size: int, chunk_size: int) -> Blocks:
        """Return blocks for elements of `size` bytes. IEEE float32 has no tensor cores: its tiles lie in registers."""
        if size == 4:
            tile, qk, hv = 32, 32, 64
            return Blocks(
                largest_tile(chunk_size, tile), _block(d_qk, qk), _block(d_qk, qk), _block(d_hv, hv),
                _block(d_qk, qk), _block(d_hv, hv), _block(d_hv, qk),
            )  # fmt: skip
        return Blocks(
            largest_tile(chunk_size, 64), _block(d_qk, 64), _block(d_qk, 128), _block(d_hv, 256),
            _block(d_qk, 64), _block(d_hv, 128), _block(d_hv, 128),
        )  # fmt: skip


def default_chunk_size(d_qk: int, d_hv: int, T: int) -> int:
    """Return the chunk size where none is given: states cost bytes, long chunks cost FLOPs. T may be a symbol."""
    best = 128 if d_qk * d_hv <= 128 * 128 else 256
    size = 16
    while best > size and size < T:  # comparisons: torch.compile then does so once for all long sequences
        size *= 2
    return size


def refuses_sizes(d_qk: int, d_hv: int, chunk_size: int | None) -> str | None:
    """Return why the kernels do not take these sizes, or None if they do; a chunk size of None is left to them."""
    for name, d in (("d_qk", d_qk), ("d_hv", d_hv)):
        if d % 16 or not 16 <= d <= 1024:
            return f"takes a {name} that is a multiple of 16 up to 1024, not {d}"
    if chunk_size is not None and (chunk_size < 16 or chunk_size % 16):
        return f"takes a chunk_size that is a multiple of 16, its smallest tile, not {chunk_size}"
    return None


def _block(d: int, limit: int) -> int:
    """Return the block for a dimension d: a power of two from 16 up to `limit`."""
    return min(limit, max(16, next_power_of_2(d)))
