"""Describe what the fused kernels of the delta rule are compiled for: one constexpr argument, as for other gates."""

from __future__ import annotations

from dataclasses import dataclass

from tflabench.kernels.delta.hopper_plan import DeltaWalkShape, pieces_of
from tflabench.kernels.scalar.hopper.config import KernelConfig


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DeltaWalkConfig(KernelConfig, DeltaWalkShape):
    """Describe what the walks for o and dv are compiled for, see `walk`.

    Attributes:
        gated: there is a decay.
        channels: it is one a channel, and what a tile makes of it is read, see `kda.hopper.operands`.
        reverse: backward in time.
        keeps_errors: write errors for backward.  keeps_states: write the states before tiles for it, in 16 bits.
        states_only: nothing but what segments add to a state is written and, forward, their transitions.
        loads, stores: the states before segments are given, and the one after the last of them is written.
        documents: they lie end to end along T, and each has states of its own.
        spans: a pass leaves out tiles that have decayed, see `joins.spans_of`.
        normalizes: q and k come as they are, and count as divided by their norms; forward without backward alone.
    """

    d_qk: int
    d_hv: int
    gated: bool
    channels: bool = False
    reverse: bool = False
    keeps_errors: bool = False
    keeps_states: bool = False
    states_only: bool = False
    loads: bool = False
    stores: bool = False
    documents: bool = False
    spans: bool = False
    normalizes: bool = False
    num_slots: int = 2
    num_outputs: int = 2  # blocks of o of a partition in flight

    @property
    def reads_queries(self) -> bool:
        """Tell whether q is read, and scores are made."""
        return self.reverse or not self.states_only

    @property
    def value_pieces(self) -> int:
        """Programs that share the columns of v."""
        return pieces_of(self.d_hv)

    @property
    def pieces(self) -> int:
        """Programs that share a segment of a head: one has its transition."""
        return self.value_pieces + (self.states_only and not self.reverse)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DeltaGradientsConfig(KernelConfig):
    """Describe what the walk for dq and dk is compiled for, see `backward_dqk`.

    Attributes:
        gated, loads, documents: see `DeltaWalkConfig`.
        piece: which 128 columns of v.
        members: see `DeltaWalk`.
        adds: dq and dk are added to what is there.
        of_each: they have the heads of v, not those of q and k.
        num_stages: tiles in flight.  num_slots: of scores.
        state_registers, score_registers: of a thread of a partition, as of `DeltaWalkShape`.
    """

    d_qk: int
    d_hv: int
    gated: bool
    piece: int
    members: int
    adds: bool
    of_each: bool
    loads: bool = False
    documents: bool = False
    num_stages: int = 2
    num_slots: int = 1
    state_registers: int = 200
    score_registers: int = 88
