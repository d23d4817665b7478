"""Describe what kernels are compiled for: frozen dataclasses that host and device share, as one constexpr argument."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any, cast

from tflabench.kernels.cover import cdiv

from . import state, tiles
from .shapes import PACK, StatePassShape, WalkShape
from .workarounds import HOISTS

# What Triton's decorators return has no types that a Python checker knows.
_accumulators: Any = cast("Any", state).accumulators
_score_operands: Any = cast("Any", tiles).score_operands


class KernelConfig:
    """Make a frozen dataclass a constexpr argument: Triton knows a kernel by its text."""

    def __repr__(self) -> str:
        """Return fields and properties, so that a kernel is compiled anew where what is derived changes."""
        names = [field.name for field in fields(cast("Any", self))]
        names += [name for name, x in vars(type(self)).items() if isinstance(x, property)]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


@dataclass(frozen=True, repr=False)
class WalkConfig(KernelConfig):
    """Describe what the walk for h is compiled for.

    Attributes:
        d_qk, d_hv: head dimensions.
        blocks_qk: blocks of 64 columns of Q, K and C^T, 1 to 4.
        blocks_hv: blocks of 64 rows of C^T in a state partition.
        num_stages: tiles of Q, K and V in shared memory.
        num_slots: tiles of P in shared memory, and tiles of H on their way out of a state partition.
        state_registers: registers of a thread of a state partition.
        defer_decay: multiply the state by its decay only once that is due, see `state.split_decay`.
        shared_heads: heads of V share a head of Q and K.
        normalise: divide H by max(|n . q|, exp(-m)).
        skip: add skip V to H, a number a head.
        load_initial_state, store_final_state: of each segment.
        keep_states: store the states that the segments of another cut start from.
        independent: the kernel before makes nothing that this one reads, see `pipeline.begin_kernel`.
    """

    d_qk: int
    d_hv: int
    blocks_qk: int
    blocks_hv: int
    num_stages: int
    num_slots: int
    state_registers: int
    defer_decay: bool
    shared_heads: bool = False
    normalise: bool = False
    skip: bool = False
    load_initial_state: bool = False
    store_final_state: bool = False
    keep_states: bool = False
    independent: bool = False

    @classmethod
    @cache
    def of(cls, shape: WalkShape, d_qk: int, d_hv: int, *, bfloat16: bool, **branches: bool) -> WalkConfig:
        """Return the config of a shape, with the branches that are named.

        Decay is deferred at d_qk = 256, where there is most to multiply: not in float16, which has no range for what
        stays pending, and on Triton 3.7 and later not with a normaliser (ptxas C7512).
        """
        deferred = shape.WB == 4 and bfloat16 and not (branches.get("normalise") and HOISTS)
        return cls(
            d_qk,
            d_hv,
            blocks_qk=shape.WB,
            blocks_hv=shape.ZB,
            num_stages=shape.STAGES,
            num_slots=shape.SLOTS,
            state_registers=shape.MATH_REGISTERS,
            defer_decay=deferred,
            **branches,
        )

    @property
    def pieces(self) -> int:
        """Programs that share a state."""
        return -(-self.d_hv // (128 * self.blocks_hv))

    @property
    def score_operands(self) -> int:
        """Operands into which a tile of Q or K is cut for its product."""
        return int(_score_operands(self.blocks_qk))

    @property
    def accumulators(self) -> int:
        """Accumulators into which 64 rows of the state are cut for their update."""
        return int(_accumulators(self.blocks_qk))

    @property
    def shares_decay(self) -> bool:
        """Let the state partitions read the decay of a tile from shared memory, where each would load it else."""
        return self.blocks_qk == 4

    @property
    def divide_late(self) -> bool:
        """Divide H in the state partitions, so that `score` runs ahead; with one slot it divides P and q_decay."""
        return self.normalise and self.num_slots > 1

    @property
    def load_zeros(self) -> bool:
        """Take the zeros of a state that starts from zero from a load, see `forward.load_state`."""
        return self.defer_decay or (self.normalise and self.blocks_qk == 4)

    @property
    def load_early(self) -> bool:
        """Load tiles of Q, K and V before the kernel before this one has ended, which does not make them.

        Partitions that read what it does make wait for it.
        """
        return not (self.normalise or self.independent)


@dataclass(frozen=True, repr=False)
class PackedHeadsConfig(KernelConfig):
    """Describe what the walk for h with several heads in a program is compiled for.

    Attributes:
        num_heads: heads of a program, an even number.
        num_stages: tiles of Q, K and V in shared memory.
        state_registers, score_registers: registers of a thread of a state partition, and of `score`.
        one_segment: sequences have one segment each.
        skip: add skip V to H, a number a head.
        load_initial_state, store_final_state: of each segment.
    """

    num_heads: int = PACK
    num_stages: int = 2
    state_registers: int = 176
    score_registers: int = 80
    one_segment: bool = False
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
    def shared_heads(self) -> bool:
        """Let heads of V share a head of Q and K."""
        return True


@dataclass(frozen=True, repr=False)
class SegmentStatesConfig(KernelConfig):
    """Describe what the pass over the states of segments is compiled for, see `segment_states.accumulate`.

    Attributes:
        d_qk, d_hv: head dimensions.
        blocks_qk, blocks_hv: blocks of 64 columns of qk and of hv in a tile.
        num_heads: heads of a program; with several, d_qk and d_hv are 64 and a block of hv is a head's.
        num_stages: tiles of qk and hv in shared memory.
        reverse: go backward in time.
        shared_heads: heads of hv share a head of qk.
        normalise: add up n too.
        keep_states: store the state before every tile in 16 bits; d_qk and d_hv are then 64.
        load_initial_state, store_final_state: of each segment.
    """

    d_qk: int
    d_hv: int
    blocks_qk: int
    blocks_hv: int
    num_heads: int
    num_stages: int
    reverse: bool = False
    shared_heads: bool = False
    normalise: bool = False
    keep_states: bool = False
    load_initial_state: bool = False
    store_final_state: bool = False

    @classmethod
    @cache
    def of(cls, shape: StatePassShape, d_qk: int, d_hv: int, **branches: bool) -> SegmentStatesConfig:
        """Return the config of a shape, with the branches that are named."""
        return cls(d_qk, d_hv, **vars(shape), **branches)

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
        return cdiv(self.d_qk, 128)

    @property
    def pieces(self) -> int:
        """Programs that share a state."""
        return self.pieces_qk * cdiv(self.d_hv, 256)


@dataclass(frozen=True, repr=False)
class CarryConfig(KernelConfig):
    """Describe what the kernel that joins the states of segments is compiled for, see `segment_states.carry`.

    Attributes:
        tiles: a power of two, at least the tiles of a part.
        block: elements of a state in a program, a power of two.
        reverse: go backward in time.
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
