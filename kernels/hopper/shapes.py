"""Divide work on Hopper: sequences into segments, shared memory and registers between the partitions of a program.

These are plain numbers, known before anything is launched.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

from tflabench.kernels.cover import cdiv

if TYPE_CHECKING:
    from torch import Tensor

TILE = 64  # steps in shared memory at a time
SHARED_MEMORY = 227 * 1024  # of one program on sm_90
SMALL_BUFFERS = 4 * 1024  # barriers, factors, parts of n, what reductions and captured arguments take
PACK = 4  # heads of a program where they share q and k
D_QK = (64, 128, 192, 256)
D_HV = (64, 128, 256, 512)


def refuses_sizes(d_qk: int, d_hv: int, chunk_size: int | None) -> str | None:
    """Return why no walk takes these sizes, or None if one does; a chunk_size of None is left to the kernels."""
    for name, d, known in (("d_qk", d_qk, D_QK), ("d_hv", d_hv, D_HV)):
        if d not in known:
            return f"takes a {name} of {', '.join(map(str, known))}, not {d}"
    if chunk_size is not None and chunk_size % TILE:
        return f"takes a chunk_size that is a multiple of {TILE}, its tile, not {chunk_size}"
    return None


def heads_together(q: Tensor, v: Tensor) -> int:
    """Return how many heads of v (B, H, T, d_hv) share a program that makes h without a normaliser."""
    return PACK if q.shape[-1] == v.shape[-1] == 64 and v.shape[1] % (PACK * q.shape[1]) == 0 else 1


class Segments(NamedTuple):
    """The segments of a sequence, which programs walk over side by side.

    Attributes:
        tiles: tiles of the sequence.
        segment_tiles: tiles of every segment but the first, which has the remainder.
        count: number of segments.
    """

    tiles: int
    segment_tiles: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  (tuple.count, which nobody calls)

    @classmethod
    def of(cls, steps: int, chunk_size: int) -> Segments:
        """Return the segments of a sequence of `steps` steps, `chunk_size` each."""
        tiles = cdiv(steps, TILE)
        return cls.of_tiles(tiles, min(tiles, chunk_size // TILE))

    @classmethod
    def of_tiles(cls, tiles: int, segment_tiles: int) -> Segments:
        """Return the segments of a sequence of `tiles` tiles."""
        return cls(tiles, segment_tiles, cdiv(tiles, segment_tiles))

    @property
    def first_tiles(self) -> int:
        """Tiles of the first segment."""
        return self.tiles - (self.count - 1) * self.segment_tiles


@dataclass(frozen=True)
class WalkShape:
    """Compile-time shape of a walk; for h U is Q, W is K and Z is V.

    Attributes:
        WB, ZB: blocks of U and W, and blocks of Z for 64 rows of state.
        STAGES, SLOTS, OUTS: tiles, scores and outputs that shared memory holds at a time.
        MATH_REGISTERS: registers of a thread that holds the state.
        GROUPS: warp groups of a partition that holds the state: two partitions of one, or one of two.
    """

    WB: int
    ZB: int
    STAGES: int
    SLOTS: int
    OUTS: int
    MATH_REGISTERS: int
    GROUPS: int

    @classmethod
    @cache
    def of(cls, w: int, z: int, *, sums: bool, norm: bool, halved: bool = False) -> WalkShape:
        """Return the shape for a state of z rows and w <= 256 columns that measured best on the H200.

        Args:
            sums: with row sums.
            norm: with a normaliser.
            halved: half as many rows in a program (see `filling`).

        A state partition's accumulators are WB * ZB <= 4 blocks; with row sums one block of rows. Two slots let `score`
        run ahead of the state partitions, where shared memory has room (with a normaliser, up to 128 columns, a third
        stage comes first). It gets the registers that the state partitions do not need.
        """
        WB = w // 64
        ZB = 1 if sums else max(1, min(4 // WB, z // 128) // (2 if halved else 1))
        slots = 1 if sums or (norm and WB < 3) else 2
        stage = 2 * WB + 2 * ZB * (1 + sums)
        blocks = (SHARED_MEMORY - SMALL_BUFFERS) // (TILE * TILE * 2)
        stages = min(4, (blocks - 3 * slots) // stage)
        registers = 168 if WB * ZB <= 2 else 208
        return cls(WB, ZB, stages, SLOTS=slots, OUTS=slots, MATH_REGISTERS=registers, GROUPS=2 if sums else 1)

    @classmethod
    def filling(cls, w: int, z: int, heads: int, chip: int, *, sums: bool, norm: bool) -> WalkShape:
        """Return the shape for the states of `heads` heads and segments side by side, on `chip` multiprocessors.

        A program has half as many rows where less than half of the chip would be taken, but not with a normaliser,
        which every program of a state carries.
        """
        whole = cls.of(w, z, sums=sums, norm=norm)
        if norm or whole.ZB == 1 or 2 * heads * whole.pieces(z) > chip:
            return whole
        return cls.of(w, z, sums=sums, norm=norm, halved=True)

    def pieces(self, z: int) -> int:
        """Return how many programs share a state of z rows."""
        return cdiv(z, 128 * self.ZB)


@dataclass(frozen=True)
class StatePassShape:
    """Compile-time shape of `segment_states.accumulate`.

    Of a state of 64 rows each state partition has half of the columns. States of 64 by 64 would be half padding, so a
    program takes those of several heads.

    Attributes:
        blocks_qk, blocks_hv: blocks of 64 columns of k or q, and of v or dh, in a tile.
        num_heads: heads of a program.
        num_stages: tiles that shared memory holds at a time.
    """

    blocks_qk: int
    blocks_hv: int
    num_heads: int
    num_stages: int

    @classmethod
    @cache
    def of(cls, d_qk: int, d_hv: int, *, heads: int, heads_per_qk: int) -> StatePassShape:
        """Return the shape for a number of heads, of which heads_per_qk consecutive ones share a head of q and k."""
        num_heads = gcd(PACK, heads) if d_qk == d_hv == TILE else 1
        if num_heads > 1:
            blocks_qk, blocks_hv = 1 if heads_per_qk % num_heads == 0 else num_heads, num_heads
        else:
            blocks_hv = min(d_hv, 256) // 64
            blocks_qk = 1 if d_qk == TILE and blocks_hv > 1 else 2
        return cls(blocks_qk, blocks_hv, num_heads, num_stages=min(4, 24 // (blocks_qk + blocks_hv)))

    def programs(self, rows: int, d_qk: int, d_hv: int) -> int:
        """Return how many programs go over one segment of `rows` rows of batch and heads."""
        return rows // self.num_heads * cdiv(d_qk, 128) * cdiv(d_hv, 256)
