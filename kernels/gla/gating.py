"""Name the gates of Gated Linear Attention. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from tflabench.kernels.types import ForgetOf, Gating


@dataclass(frozen=True)
class ChannelGate(Gating):
    """A given log decay a step and channel of q and k, and no input gate: the state is C alone."""

    family = "gla"

    @property
    def forget_of(self) -> ForgetOf:
        """A channel."""
        return "channel"


GLA = ChannelGate()
