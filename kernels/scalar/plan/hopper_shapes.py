"""Divide a program of the fused kernels: shared memory and registers between its partitions, rings between stages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import gcd

from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.sizes import Sizes, shared_memory

ARCHITECTURE = 90
MAJORS = (9, 9)  # the lowest and the highest major compute capability that they are for
DTYPES = ("bfloat16", "float16")
TILE = 64  # steps in shared memory at a time
WIDTH = 256  # columns of a state that a program holds
HEIGHT = 128  # rows of a state that its two state partitions share
PACK = 4  # heads of a program where they share q and k
MOST_ADDED_UP = 64  # heads whose dq and dk a program adds up
SMALL_BUFFERS = 4 * 1024  # barriers, factors, parts of n, what reductions and captured arguments take
D_QK = (64, 128, 192, 256)  # of states in memory and on chip, see `held`
D_HV = (64, 128, 256, 512)
NARROWEST = 32  # head dimension; of less, most of a block would be empty


def refuses_sizes(d_qk: int, d_hv: int, chunk_size: int | None) -> str | None:
    """Return why no walk takes these sizes, or None if one does; a chunk_size of None is left to the kernels."""
    for name, d, known in (("d_qk", d_qk, D_QK), ("d_hv", d_hv, D_HV)):
        if d % 16 or not NARROWEST <= d <= known[-1]:
            return f"takes a {name} that is a multiple of 16 from {NARROWEST} to {known[-1]}, not {d}"
    if chunk_size is not None and chunk_size % TILE:
        return f"takes a chunk_size that is a multiple of {TILE}, its tile, not {chunk_size}"
    return None


def held(sizes: Sizes) -> Sizes:
    """Return sizes with the head dimensions of states in memory and on chip: the next of D_QK and of D_HV.

    Of tensors TMA reads zeros beyond the last column, and writes nothing there.
    """
    d_qk = next((d for d in D_QK if d >= sizes.d_qk), sizes.d_qk)
    return sizes._replace(d_qk=d_qk, d_hv=next((d for d in D_HV if d >= sizes.d_hv), sizes.d_hv))


def heads_together(sizes: Sizes) -> int:
    """Return how many heads of v share a program that makes h without a normaliser."""
    return PACK if sizes.d_qk == sizes.d_hv == TILE and sizes.group % PACK == 0 else 1


def takes_tile_gradients(sizes: Sizes) -> bool:
    """Return whether one kernel makes all gradients of a tile, of sizes as they are asked for.

    It does where heads share q and k, and states are 64 by 64; and where heads are so narrow that a tile of a walk is
    little work between many waits. Heads of 64 that share nothing are 5% faster in walks.
    """
    return heads_together(held(sizes)) > 1 or max(sizes.d_qk, sizes.d_hv) <= NARROWEST


def takes_dkdv(d_qk: int, d_hv: int) -> bool:
    """Return whether a program can hold the whole of dC: then one walk makes dk and dv."""
    return d_qk <= HEIGHT and d_hv <= WIDTH


def heads_added_up(sizes: Sizes, chip: int) -> int:
    """Return the number of heads whose dq and dk a program adds up: all that share q and k, MOST_ADDED_UP at most.

    It is halved until there are work items enough to fill `chip` multiprocessors.
    """
    heads = gcd(MOST_ADDED_UP, sizes.group)
    while heads > 1 and sizes.rows * cdiv(sizes.steps, TILE) // heads < 7 * chip:
        heads //= 2
    return heads


@dataclass(frozen=True)
class WalkShape:
    """Compile-time shape of a walk; the names are those of h.

    Attributes:
        blocks_key: blocks of 64 columns of query, key and state.
        blocks_value: blocks of rows of the state in a state partition.
        num_stages: tiles of query, key and value in shared memory.
        num_slots: tiles of scores in shared memory, and tiles of the output on their way out of a state partition.
        state_registers: registers of a thread that holds the state.
        halves: state partitions of 64 * blocks_value rows in a program; one where a state has 64 rows and columns.
    """

    blocks_key: int
    blocks_value: int
    num_stages: int
    num_slots: int
    state_registers: int
    halves: int = 2

    @classmethod
    @cache
    def of(cls, columns: int, rows: int, *, sums: bool, halved: bool = False, normalise: bool = False) -> WalkShape:
        """Return the shape for a state of these rows and up to 256 columns that measured best.

        A state partition's accumulators are up to 4 blocks; with row sums one block of rows, for there is one such
        partition (docs/decisions/2026-11-21-state-partitions.md). Two slots let `score` run
        ahead of the state partitions, but with row sums, where shared memory has no room. It gets the registers that
        the state partitions do not need. Of states of 64 by 64 two programs share a multiprocessor, so that one works
        while the other waits.
        """
        if not sums and max(columns, rows) <= TILE:
            return cls(1, 1, num_stages=2 if normalise else 3, num_slots=2, state_registers=120, halves=1)
        key = cdiv(columns, TILE)
        value = 1 if sums else max(1, min(4 // key, rows // HEIGHT) // (2 if halved else 1))
        stage = 2 * key + 2 * value * (1 + sums)
        blocks = (shared_memory(ARCHITECTURE) - SMALL_BUFFERS) // (TILE * TILE * 2)
        slots = 1 if sums else 2
        stages = min(4, (blocks - 3 * slots) // stage)
        return cls(key, value, stages, slots, state_registers=168 if key * value <= 2 else 208)

    @classmethod
    def filling(
        cls, columns: int, rows: int, heads: int, chip: int, *, sums: bool, normalise: bool = False
    ) -> WalkShape:
        """Return the shape for the states of `heads` heads and segments side by side, on `chip` multiprocessors.

        A program has half as many rows where less than half of the chip would be taken.
        """
        whole = cls.of(columns, rows, sums=sums, normalise=normalise)
        if whole.blocks_value == 1 or 2 * heads * whole.pieces_of(rows) > chip:
            return whole
        return cls.of(columns, rows, sums=sums, halved=True)

    def pieces_of(self, rows: int) -> int:
        """Return how many programs share a state of these rows."""
        return cdiv(rows, TILE * self.halves * self.blocks_value)

    @property
    def resident(self) -> int:
        """Programs that share a multiprocessor."""
        return 2 if self.halves == 1 else 1

    @property
    def launch_registers(self) -> int:
        """Registers of a thread at launch, when partitions have not divided them yet."""
        return 128 if self.halves == 2 else 80


@dataclass(frozen=True)
class DkdvShape:
    """Compile-time shape of the walk for dk and dv.

    Attributes:
        num_stages: tiles of Q, K and dH in shared memory.
        num_v_slots: blocks of 64 columns of V in shared memory.
        num_copies: copies of 64 columns of dC in shared memory.
        state_registers: registers of a thread that carries dC.
    """

    num_stages: int
    num_v_slots: int
    num_copies: int
    state_registers: int

    @classmethod
    @cache
    def of(cls, d_hv: int) -> DkdvShape:
        """Return the shape for a head dimension.

        At d_hv = 256 shared memory holds 27 blocks, with 4 of copies, P and dP, of the 28 that there is room for.
        """
        return cls(num_stages=2, num_v_slots=min(5, 2 * (d_hv // 64)), num_copies=2, state_registers=208)


@dataclass(frozen=True)
class PackedHeadsShape:
    """Compile-time shape of the walk for h with several heads in a program, an even number (see `WalkShape`)."""

    num_heads: int = PACK
    num_stages: int = 2
    state_registers: int = 176
    score_registers: int = 80


@dataclass(frozen=True)
class TileGradientsShape:
    """Compile-time shape of the kernel for all gradients of a tile.

    Attributes:
        num_heads: heads of a work item, of which dQ and dK are added up; they share Q and K.
        num_stages: heads of which shared memory has all else.
        num_slots: tiles of P and dP in shared memory.
    """

    num_heads: int
    num_stages: int = 4
    num_slots: int = 2


@dataclass(frozen=True)
class StatePassShape:
    """Compile-time shape of the pass that adds up states.

    States of 64 by 64 would be half padding, so a program takes those of several heads.

    Attributes:
        blocks_qk, blocks_hv: blocks of 64 columns of k or q, and of v or dh, in a tile.
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
            blocks_hv = cdiv(min(d_hv, WIDTH), TILE)
            blocks_qk = 1 if d_qk == TILE and blocks_hv > 1 else 2
        return cls(blocks_qk, blocks_hv, num_heads, num_stages=min(4, 24 // (blocks_qk + blocks_hv)))

    def programs(self, sizes: Sizes) -> int:
        """Return how many programs go over one segment of every row of batch and heads."""
        return sizes.rows // self.num_heads * cdiv(sizes.d_qk, HEIGHT) * cdiv(sizes.d_hv, WIDTH)
