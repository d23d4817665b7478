"""Name the gates of the delta rule. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tflabench.kernels.types import ForgetOf, Gating


@dataclass(frozen=True)
class DeltaGate(Gating):
    """A writing strength beta a step and head, and a given log decay or none: the state is C alone.

    Attributes:
        gated: there is a log decay a step and head.
        beta_max: the largest beta, 1 or 2; above 1 the state may turn over (negative eigenvalues of I - beta k k^T),
            and in 16 bits kernels then multiply with more digits.
        l2_normalize: q and k come as they are, and are divided by their norms. Forward alone heeds it: where gradients
            flow, q and k are divided before.

    Raises:
        ValueError: beta_max is neither 1 nor 2.
    """

    family = "delta"
    gated: bool = True
    beta_max: int = 1
    l2_normalize: bool = False

    def __post_init__(self) -> None:
        if self.beta_max not in (1, 2):
            raise ValueError(f"beta_max is {self.beta_max!r}: it must be 1 or 2")

    @property
    def fields(self) -> tuple[Any, ...]:
        """Return whether it is gated, the largest beta, and whether q and k are divided by their norms."""
        return self.gated, self.beta_max, self.l2_normalize

    @property
    def forget_of(self) -> ForgetOf | None:
        """A step, or None without a decay."""
        return "step" if self.gated else None

    @property
    def writes(self) -> bool:
        """There is beta."""
        return True


DELTA_NET = DeltaGate(gated=False)
GATED_DELTA_NET = DeltaGate()
