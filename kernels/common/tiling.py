"""Cut a sequence and its states into tiles: what the plans of all Triton kernels share, in plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

from .cover import next_power_of_2

MAJORS = (8, 12)  # the lowest and the highest major compute capability that they are for
DTYPES = ("bfloat16", "float16", "float32")
SMALL_BUFFERS = 2048  # bytes: barriers, and what sums over rows and columns pass between warps


def has_asynchronous_products(architecture: int) -> bool:
    """Return whether warp groups or a core of its own multiply out of shared memory: sm_90 and sm_100, not sm_120."""
    return 90 <= architecture < 120


def buffered(stages: int, architecture: int) -> int:
    """Return how many of a loop's stages lie in shared memory: where warps multiply themselves, one is in registers."""
    return stages if has_asynchronous_products(architecture) else max(1, stages - 1)


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


def fitting(chunk_size: int, T: int) -> int:
    """Return the chunk size, of a chunk longer than the sequence the next power of two: its tiles may be larger."""
    return min(chunk_size, max(16, next_power_of_2(T))) if chunk_size > T else chunk_size


def refuses_sizes(d_qk: int, d_hv: int, chunk_size: int | None) -> str | None:
    """Return why Triton kernels do not take these sizes, or None if they do; a chunk size of None is left to them."""
    for name, d in (("d_qk", d_qk), ("d_hv", d_hv)):
        if d % 16 or not 16 <= d <= 1024:
            return f"takes a {name} that is a multiple of 16 up to 1024, not {d}"
    if chunk_size is not None and (chunk_size < 16 or chunk_size % 16):
        return f"takes a chunk_size that is a multiple of 16, its smallest tile, not {chunk_size}"
    return None


def largest_tile(chunk_size: int, limit: int) -> int:
    """Return the largest power of two up to `limit` that divides the chunk size."""
    return min(chunk_size & -chunk_size, limit)
