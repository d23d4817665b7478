"""Constants of kernels: frozen dataclasses that host and device share, one constexpr argument each."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any, cast

from . import state, tiles
from .shapes import WalkShape
from .workarounds import HOISTS

# What Triton's decorators return has no types that a Python checker knows.
_accumulators: Any = cast("Any", state).accumulators
_score_operands: Any = cast("Any", tiles).score_operands


@dataclass(frozen=True, repr=False)
class WalkConfig:
    """Constants that a walk for h, dv, dq or dk is compiled for, see `state_walk`.

    Attributes:
        d_qk, d_hv: head dimensions.
        blocks_key: blocks of 64 columns of query, key and state, 1 to 4.
        blocks_value: blocks of rows of the state in a state partition.
        num_stages: tiles of query, key and value in shared memory.
        num_slots: tiles of P in shared memory, and tiles of the output on their way out of a state partition.
        state_registers: registers of a thread of a state partition.
        defer_decay: multiply the state by its decay only once that is due, see `state.split_decay`.
        transposed: the state is C^T or dC^T (h, dv), not C or dC (dq, dk).
        reverse: walk backward in time (dv, dk).
        row_sums: write the row sums of dq or dk too, see `backward_dqk`.
        first_column: of the state, if it has more columns than a launch takes.
        shared_heads: heads of V share a head of Q and K.
        normalise: divide H by max(|n . q|, exp(-m)).
        skip: add skip V to H, or skip dH to dV, a number a head.
        store_diagonal: write the products of query and key of the same step.
        load_initial_state, store_final_state: of each segment.
        keep_states: store the states that the segments of another cut start from.
        independent: the kernel before makes nothing that this one reads, see `pipeline.begin_kernel`.
    """

    d_qk: int
    d_hv: int
    blocks_key: int
    blocks_value: int
    num_stages: int
    num_slots: int
    state_registers: int
    defer_decay: bool
    transposed: bool = True
    reverse: bool = False
    row_sums: bool = False
    first_column: int = 0
    shared_heads: bool = False
    normalise: bool = False
    skip: bool = False
    store_diagonal: bool = False
    load_initial_state: bool = False
    store_final_state: bool = False
    keep_states: bool = False
    independent: bool = False

    @classmethod
    @cache
    def of(cls, shape: WalkShape, d_qk: int, d_hv: int, *, bfloat16: bool, **branches: Any) -> WalkConfig:
        """Return the config of a shape, with the branches that are named.

        Decay of h and dv is deferred at d_qk = 256, where there is most to multiply: not in float16, which has no range
        for what stays pending, and on Triton 3.7 and later not with a normaliser (ptxas C7512). Row sums of dq and dk
        need the weights that the other walk rounds by, and products of dq would be serialised.
        """
        deferred = shape.WB == 4 and bfloat16 and branches.get("transposed", True)
        return cls(
            d_qk,
            d_hv,
            blocks_key=shape.WB,
            blocks_value=shape.ZB,
            num_stages=shape.STAGES,
            num_slots=shape.SLOTS,
            state_registers=shape.MATH_REGISTERS,
            defer_decay=deferred and not (branches.get("normalise") and HOISTS),
            **branches,
        )

    def __repr__(self) -> str:
        """Return fields and properties: this text is what a compiled kernel is looked up by."""
        names = [field.name for field in fields(self)]
        names += [name for name, x in vars(type(self)).items() if isinstance(x, property)]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

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

    @property
    def add_to_output(self) -> bool:
        """Tell whether another launch has written its part of the output."""
        return self.first_column > 0

    @property
    def pieces(self) -> int:
        """Programs that share a state."""
        return -(-self.num_rows // (128 * self.blocks_value))

    def programs(self, rows: int, chip: int) -> int:
        """Return the number of programs that share `rows` of batch, heads and segments, on `chip` multiprocessors.

        The pieces of a state run side by side, for the L2: so they are to start together, not where another ends.
        """
        return min(rows * self.pieces, max(1, chip // self.pieces) * self.pieces)

    @property
    def state_partitions(self) -> int:
        """Partitions of a program that carry its state: two of 4 warps, with row sums one of 8."""
        return 1 if self.row_sums else 2

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
        """Tell whether state partitions read the decay of a tile from shared memory, rather than load it."""
        return self.row_sums or self.blocks_key == 4

    @property
    def divide_late(self) -> bool:
        """Divide H in the state partitions, so that `score` runs ahead; with one slot it divides P and query_decay."""
        return self.normalise and self.num_slots > 1

    @property
    def load_zeros(self) -> bool:
        """Tell whether a state that starts from zero takes its zeros from a load, see `state_walk.load_state`."""
        return self.defer_decay or (self.normalise and self.blocks_key == 4)

    @property
    def load_early(self) -> bool:
        """Tell whether tiles are loaded before the kernel before this one has ended.

        It does not make q, k and v of h. Partitions that read what it does make wait for it.
        """
        of_h = self.transposed and not self.reverse
        return of_h and not (self.normalise or self.independent)
