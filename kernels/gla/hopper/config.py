"""Describe what the fused kernels of Gated Linear Attention are compiled for: one constexpr argument."""

from __future__ import annotations

from dataclasses import dataclass

from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.gla.hopper_plan import BLOCK, GlaWalkShape, blocks_of, pieces_of
from tflabench.kernels.scalar.hopper.config import KernelConfig


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class GlaWalkConfig(KernelConfig, GlaWalkShape):
    """Describe what the walks for o and dv are compiled for, see `columns`.

    Attributes:
        reverse: backward in time.
        exact: of sequences of a head that have closed, with given scores; else of the others.
        flags: write which ones close.
        states_only: nothing but what segments add to a state is written and, forward, their decays.
        loads, stores: the states before segments are given, and the one after the last of them is written.
    """

    d_qk: int
    d_hv: int
    reverse: bool = False
    exact: bool = False
    flags: bool = False
    states_only: bool = False
    loads: bool = False
    stores: bool = False

    @property
    def channel_blocks(self) -> int:
        """Blocks of channels."""
        return cdiv(self.d_qk, BLOCK)

    @property
    def blocks(self) -> int:
        """Blocks of columns of v of each half of a program."""
        return blocks_of(self.d_hv)

    @property
    def pieces(self) -> int:
        """Programs that share the columns of v."""
        return pieces_of(self.d_hv)

    @property
    def takes_queries(self) -> bool:
        """Tell whether q is read: by a state, or because a state is made of it."""
        return self.reverse or not self.states_only

    @property
    def takes_keys(self) -> bool:
        """Tell whether k is."""
        return not (self.reverse and self.states_only)

    @property
    def reads_scores(self) -> bool:
        """Tell whether P is given."""
        return self.exact and not self.states_only

    @property
    def makes_scores(self) -> bool:
        """Tell whether P is made."""
        return not (self.exact or self.states_only)

    @property
    def stores_decays(self) -> bool:
        """Tell whether the decays of segments are written."""
        return self.states_only and not self.reverse

    @property
    def finishes(self) -> bool:
        """Tell whether the state is to be as it stands after the last tile, see `walk`."""
        return (self.stores or self.states_only) and not self.exact


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class GlaGradientConfig(KernelConfig, GlaWalkShape):
    """Describe what the walks for dq and dk are compiled for, see `channels`.

    Attributes:
        reverse: backward in time, for dk.
        exact: of sequences of a head that have closed; else of the others.
        sums_terms: write dg; other walks write what it is made of.
        piece: which columns of v; all but the first add to dq and dk.
        loads: the states before segments are given.  crosses: the sums of terms after them are.
    """

    d_qk: int
    d_hv: int
    reverse: bool
    exact: bool
    sums_terms: bool
    piece: int
    loads: bool
    crosses: bool

    @property
    def pieces(self) -> int:
        """Programs that share a segment of a head."""
        return 1

    @property
    def blocks(self) -> int:
        """Accumulators of 128 columns of a state."""
        return blocks_of(self.d_hv)

    @property
    def adds_terms(self) -> bool:
        """Tell whether there are terms already."""
        return self.reverse or self.piece > 0
