"""Describe what kernels are compiled for: frozen dataclasses that host and device share, as one constexpr argument.

A config has the fields of a planned shape (`plan.hopper_shapes`), and those that a call decides.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any, Self, cast

from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.scalar.plan.hopper_shapes import (
    HEIGHT,
    WIDTH,
    DkdvShape,
    PackedHeadsShape,
    StatePassShape,
    TileGradientsShape,
    WalkShape,
)

from . import state, tiles
from .workarounds import HOISTS

# What Triton's decorators return has no types that a Python checker knows.
_accumulators: Any = cast("Any", state).accumulators
_score_operands: Any = cast("Any", tiles).score_operands


class KernelConfig:
    """Make a frozen dataclass a constexpr argument: Triton's cache knows a kernel by its text.

    Configs are made once (`of`) and told apart by identity: to hash fields at every launch would take the host longer.
    """

    __eq__, __hash__ = object.__eq__, object.__hash__

    @classmethod
    @cache
    def of(cls, shape: Any = None, **others: Any) -> Self:
        """Return the config with the fields of a planned shape, if there is one, and these others."""
        return cls(**({} if shape is None else vars(shape)), **others)

    def __repr__(self) -> str:
        """Return fields and properties, so that a kernel is compiled anew where what is derived changes."""
        names = [field.name for field in fields(cast("Any", self))]
        names += [name for name, x in vars(type(self)).items() if isinstance(x, (property, cached_property))]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class WalkConfig(KernelConfig, WalkShape):
    """Describe what a walk for h, dv, dq or dk is compiled for, see `state_walk`.

    Attributes:
        defer_decay: multiply the state by its decay only once that is due, see `state.split_decay`.
        transposed: the state is C^T or dC^T (h, dv), not C or dC (dq, dk).
        reverse: walk backward in time (dv, dk).
        row_sums: write the row sums of dq or dk too, see `backward_dqk`.
        skip: add skip V to H, or skip dH to dV, a number a head.
        store_diagonal: write the products of query and key of the same step.
        keep_states: store the states that the segments of another cut start from.
        documents: walk over documents that lie end to end, see `documents`.
    """

    d_qk: int
    d_hv: int
    defer_decay: bool
    transposed: bool = True
    reverse: bool = False
    row_sums: bool = False
    normalise: bool = False
    skip: bool = False
    store_diagonal: bool = False
    keep_states: bool = False
    documents: bool = False

    @classmethod
    @cache
    def of(cls, shape: WalkShape, *, bfloat16: bool, **others: Any) -> Self:
        """Return the config with the fields of a planned shape, and these others.

        Decay of h and dv is deferred at d_qk = 256, where there is most to multiply: not in float16, which has no range
        for what stays pending, and on Triton 3.7 and later not with a normaliser (ptxas C7512). Row sums of dq and dk
        need the weights that the other walk rounds by, and products of dq would be serialised.
        """
        deferred = shape.blocks_key == 4 and bfloat16 and others.get("transposed", True)
        deferred = deferred and not (others.get("normalise") and HOISTS)
        return cls(**vars(shape), defer_decay=deferred, **others)

    @property
    def num_rows(self) -> int:
        """Rows of the state, columns of value and output."""
        return self.d_hv if self.transposed else self.d_qk

    @property
    def row_stride(self) -> int:
        """Elements from a row of the state to the next in memory, where states are (d_qk, d_hv)."""
        return 1 if self.transposed else self.d_hv

    @property
    def column_stride(self) -> int:
        """Elements from a column of the state to the next in memory."""
        return self.d_hv if self.transposed else 1

    @cached_property
    def row_pieces(self) -> int:
        """Programs that share the rows of a state."""
        return cdiv(self.num_rows, 64 * self.halves * self.blocks_value)

    @cached_property
    def column_pieces(self) -> int:
        """Programs that share the columns of a state, and add up their outputs; two only with row sums."""
        return cdiv(self.d_qk if self.transposed else self.d_hv, WIDTH)

    @cached_property
    def pieces(self) -> int:
        """Programs that share a state."""
        return self.row_pieces * self.column_pieces

    @property
    def state_partitions(self) -> int:
        """Partitions of a program that carry its state: one of 4 warps for each half, with row sums one of 8."""
        return 1 if self.row_sums else self.halves

    @property
    def score_registers(self) -> int:
        """Registers of a thread of `score`, which has what state partitions and `load` leave of those at launch.

        With two halves these are 128 for each of 16 warps, with one 80 for each of 12.
        """
        return 488 - 2 * self.state_registers if self.halves == 2 else 216 - self.state_registers

    @property
    def state_rows(self) -> int:
        """Rows of the state that a state partition has at a time."""
        return 128 if self.row_sums else 64

    @property
    def score_operands(self) -> int:
        """Operands into which a tile of query or key is cut for its product."""
        return int(_score_operands(self.blocks_key))

    @property
    def accumulators(self) -> int:
        """Accumulators into which rows of the state are cut for their update."""
        return int(_accumulators(self.blocks_key))

    @property
    def shares_decay(self) -> bool:
        """Tell whether state partitions read the decay of a tile from shared memory, rather than load it.

        With two blocks of rows Triton 3.9 would serialise products for it (C7512).
        """
        return self.blocks_value == 1

    @property
    def hands_on(self) -> bool:
        """Tell whether the walk hands states on to memory: of h and dk, dq and dv go the same way."""
        return self.transposed != self.reverse

    @property
    def load_early(self) -> bool:
        """Tell whether tiles are loaded before the kernel before this one has ended.

        It does not make q, k and v of h. Partitions that read what it does make wait for it.
        """
        of_h = self.transposed and not self.reverse
        return of_h and not self.normalise


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DkdvConfig(KernelConfig, DkdvShape):
    """Describe what the walk for dk and dv is compiled for.

    Attributes:
        d_qk, d_hv: head dimensions, at most 128 and 256.
        row_sums: sum K * dK over its columns, as far as dK comes through dC.
        skip: add skip dH to dV, a number a head.
        load_initial_state, store_final_state: dC of each segment, in the order of the walk.
        documents: walk over documents that lie end to end, see `documents`.
    """

    d_qk: int
    d_hv: int
    row_sums: bool = False
    skip: bool = False
    load_initial_state: bool = False
    store_final_state: bool = False
    documents: bool = False

    @property
    def blocks_hv(self) -> int:
        """Blocks of 64 columns of V, dH and dC."""
        return self.d_hv // 64

    @property
    def accumulators(self) -> int:
        """Accumulators into which dC is cut for its update."""
        return int(_accumulators(self.blocks_hv))

    @property
    def copies_ahead(self) -> int:
        """Copies of dC that are handed over together with the one after them."""
        return min(self.num_copies, self.blocks_hv) - 1

    @property
    def value_registers(self) -> int:
        """Registers of a thread of `value`: what `state` and the three partitions of one warp do not have."""
        return 488 - 2 * self.state_registers


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TileGradientsConfig(KernelConfig, TileGradientsShape):
    """Describe what the kernel for all gradients of a tile is compiled for.

    Attributes:
        row_sums: write what gradients of gates are made of.
        skip: add skip dH to dV, a number a head, and sum dh_t . v_t over the tile.
    """

    row_sums: bool = False
    skip: bool = False


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PackedHeadsConfig(KernelConfig, PackedHeadsShape):
    """Describe what the walk for h with several heads in a program is compiled for; skip as of `WalkConfig`."""

    skip: bool = False
    load_initial_state: bool = False
    store_final_state: bool = False

    @property
    def num_pairs(self) -> int:
        """Pairs of heads, of which either state partition has one."""
        return self.num_heads // 2

    @property
    def pieces(self) -> int:
        """Programs that share a state."""
        return 1

    @property
    def reverse(self) -> bool:
        """Go forward in time."""
        return False


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SegmentStatesConfig(KernelConfig, StatePassShape):
    """Describe what the pass over the states of segments is compiled for, see `segment_states.accumulate`.

    With several heads a program d_qk and d_hv are 64, and a block of hv is a head's.

    Attributes:
        normalise: add up n too.
        keep_states: store the state before every tile in 16 bits; d_qk and d_hv are then 64.
    """

    d_qk: int
    d_hv: int
    reverse: bool = False
    normalise: bool = False
    keep_states: bool = False
    load_initial_state: bool = False
    store_final_state: bool = False

    @property
    def divide_rows(self) -> bool:
        """Give each state partition 64 rows of the state, all columns of them; else half of the columns, or heads."""
        return self.num_heads == 1 and self.blocks_qk == 2

    @property
    def accumulators(self) -> int:
        """Accumulators [64, 64] of a state partition, one for each block of hv that it takes."""
        return self.blocks_hv if self.divide_rows else self.blocks_hv // 2

    @property
    def operands(self) -> int:
        """Heads of a state partition: left operands of its products in a tile."""
        return 1 if self.num_heads == 1 else self.accumulators

    @property
    def pieces_qk(self) -> int:
        """Programs that share the columns of a state."""
        return cdiv(self.d_qk, HEIGHT)

    @property
    def pieces(self) -> int:
        """Programs that share a state."""
        return self.pieces_qk * cdiv(self.d_hv, WIDTH)


@dataclass(frozen=True, eq=False, repr=False)
class CarryConfig(KernelConfig):
    """Describe what the kernel that joins the states of segments is compiled for, see `segment_states.carry`.

    Attributes:
        tiles: a power of two, at least the tiles of a part.
        block: elements of a state in a program, a power of two.
        resumed: what the second segment starts from is there, and what the first one does unless it is zero.
        load_initial_state: the first segment does not start from zero.
        store_final_state: store the state after the last segment of the walk; only then what that segment adds is read.
        overlap: launched while the kernel before may still run, see `pipeline.begin_kernel`.
    """

    tiles: int
    block: int
    reverse: bool = False
    resumed: bool = False
    load_initial_state: bool = False
    store_final_state: bool = False
    overlap: bool = True
