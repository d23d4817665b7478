"""What a kernel is compiled for: frozen dataclasses that host and device share, one constexpr argument each."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any, cast

from . import state, tiles
from .shapes import PACK, WalkShape
from .workarounds import HOISTS

# What Triton's decorators return has no types that a Python checker knows.
_accumulators: Any = cast("Any", state).accumulators
_score_operands: Any = cast("Any", tiles).score_operands


class KernelConfig:
    """Make a frozen dataclass a constexpr argument: a kernel compiled for one config is found again by its text."""

    def __repr__(self) -> str:
        """Return fields and properties, so that a kernel is compiled anew where what is derived changes."""
        names = [field.name for field in fields(cast("Any", self))]
        names += [name for name, x in vars(type(self)).items() if isinstance(x, property)]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


@dataclass(frozen=True, repr=False)
class WalkConfig(KernelConfig):
    """What the walk for h is compiled for.

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
        stays pending, and on Triton 3.7 and later not beside a normaliser (ptxas C7512).
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
        """Whether the state partitions read the decay of a tile from shared memory or load it themselves."""
        return self.blocks_qk == 4

    @property
    def divide_late(self) -> bool:
        """Divide H in the state partitions, so that `score` runs ahead; with one slot it divides P and q_decay."""
        return self.normalise and self.num_slots > 1

    @property
    def load_zeros(self) -> bool:
        """Whether a state that starts from zero takes its zeros from a load, see `forward.load_state`."""
        return self.defer_decay or (self.normalise and self.blocks_qk == 4)

    @property
    def load_early(self) -> bool:
        """Whether tiles of Q, K and V are loaded before the kernel before this one has ended, which does not make them;
        partitions that read what it does make wait for it.
        """
        return not (self.normalise or self.independent)


@dataclass(frozen=True, repr=False)
class PackedHeadsConfig(KernelConfig):
    """What the walk for h with several heads in a program is compiled for.

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
        """Whether heads of V share a head of Q and K."""
        return True
