"""Name the gates of Kimi Delta Attention. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from tflabench.kernels.delta.gating import DeltaGate
from tflabench.kernels.types import ForgetOf


@dataclass(frozen=True)
class KdaGate(DeltaGate):
    """A writing strength beta a step and head, and a given log decay a step and channel of q and k."""

    family = "kda"

    @property
    def forget_of(self) -> ForgetOf:
        """A channel."""
        return "channel"


KDA = KdaGate()
