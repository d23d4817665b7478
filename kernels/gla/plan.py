"""Plan the kernels of Gated Linear Attention: the sizes that they take, their tiles, chunks and segments."""

from __future__ import annotations

from dataclasses import dataclass

from tflabench.kernels.common.cover import cdiv, next_power_of_2
from tflabench.kernels.common.sizes import USUAL, Sizes
from tflabench.kernels.common.tiling import StateTiles, buffered, fitting, has_asynchronous_products, largest_tile

# By dtype, the bits that a channel may close in a tile with one reference for all pairs of its steps.
REACH = {"bfloat16": 80.0, "float16": 16.0, "float32": 80.0}
NEAR = {"bfloat16": 16, "float16": 1, "float32": 1}  # steps whose pairs have one reference whatever their gates
DTYPES = tuple(REACH)
GRADIENT_STAGES = 3  # of 16 bits: tiles of v and do in flight where gradients are made
PROGRAMS = 264  # the walk over states is cut into segments until it has about this many, on `USUAL` multiprocessors


@dataclass(frozen=True)
class Blocks:
    """Say how the kernels cut a call.

    Attributes:
        tile: steps of a tile, a power of two from 16 on that divides the chunk size.
        channels: of q and k at a time, where tiles of scores are made.
        block: channels of a program that makes gradients of q, k and g.
        inner, outer: columns of q and k at a time, and of v, in the kernels of o and dv.
        u, v: rows and columns of the tile of a state that a program walks with.
        hidden: columns of v at a time where gradients of scores are made.
    """

    tile: int
    channels: int
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
        gradients = size * buffered(GRADIENT_STAGES if size == 2 else 1, architecture) * self.tile * 2 * self.hidden
        return max(outputs, gradients, states.shared_bytes(size, architecture))

    def workspace_bytes(self, d_qk: int, size: int, *, backward: bool) -> float:
        """Return the bytes a step and head of what is neither input nor output, nor a state or a gradient of these.

        These are weighted q and k and the scores of tiles in elements of `size` bytes, the decays of tiles in float32
        and, with backward, dg within tiles and two sums of tiles, in float32 too.
        """
        float32 = d_qk * (1 + 2 * backward) / self.tile + d_qk * backward
        return size * (2 * d_qk + self.tile) + 4 * float32

    @staticmethod
    def for_shape(d_qk: int, d_hv: int, size: int, chunk_size: int) -> Blocks:
        """Return blocks for elements of `size` bytes. IEEE float32 has no tensor cores: its tiles lie in registers."""
        if size == 4:
            tile, qk, hv = 32, 32, 64
            return Blocks(
                largest_tile(chunk_size, tile), _block(d_qk, qk), _block(d_qk, qk), _block(d_qk, qk), _block(d_hv, hv),
                _block(d_qk, qk), _block(d_hv, hv), _block(d_hv, qk),
            )  # fmt: skip
        return Blocks(
            largest_tile(chunk_size, 64), _block(d_qk, 32), _block(d_qk, 64), _block(d_qk, 128), _block(d_hv, 128),
            _block(d_qk, 64), _block(d_hv, 128), _block(d_hv, 128),
        )  # fmt: skip


@dataclass(frozen=True)
class GlaPlan:
    """Say how a call is run.

    Attributes:
        chunk_size: steps between two states in memory, a multiple of every tile.
        blocks: how kernels cut it.
        reach: bits that a channel may close in a tile with one reference for all pairs of its steps.
        near: steps of the blocks that another tile is halved down to: their pairs have one.
        programs: at least as many should run at once.
    """

    batch: int
    heads: int
    T: int
    d_qk: int
    d_hv: int
    chunk_size: int
    blocks: Blocks
    reach: float
    near: int
    programs: int

    @staticmethod
    def of(sizes: Sizes, chunk_size: int, dtype: str, multiprocessors: int) -> GlaPlan:
        """Return the plan of a call.

        Args:
            chunk_size: L as given; longer than the sequence it is that of one chunk.
        """
        batch, heads, _, T, d_qk, d_hv = sizes
        L = fitting(chunk_size, T)
        return GlaPlan(
            *(batch, heads, T, d_qk, d_hv),
            chunk_size=L,
            blocks=Blocks.for_shape(d_qk, d_hv, 4 if dtype == "float32" else 2, L),
            reach=REACH[dtype],
            near=NEAR[dtype],
            programs=PROGRAMS * multiprocessors // USUAL.multiprocessors,
        )

    @property
    def tiles(self) -> int:
        """Tiles of the sequence."""
        return cdiv(self.T, self.blocks.tile)

    @property
    def chunk_tiles(self) -> int:
        """Tiles of a chunk."""
        return self.chunk_size // self.blocks.tile

    @property
    def chunks(self) -> int:
        """Chunks of the sequence."""
        return cdiv(self.T, self.chunk_size)

    @property
    def levels(self) -> int:
        """Times that a tile is halved."""
        return self.blocks.tile.bit_length() - self.near.bit_length()

    def segments(self, programs: int) -> int:
        """Return how many segments to cut the sequence into, where each has this many programs."""
        return max(1, min(self.chunks, self.programs // programs))


def default_chunk_size(d_qk: int, d_hv: int) -> int:
    """Return the chunk size where none is given, of sequences that are as long: states cost bytes, chunks FLOPs."""
    return 128 if d_qk * d_hv <= 128 * 128 else 256


def _block(d: int, limit: int) -> int:
    """Return the block for a dimension d: a power of two from 16 up to `limit`."""
    return min(limit, max(16, next_power_of_2(d)))
