"""How long to warm up, how many samples to take. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Protocol:
    """Rules of one measurement.

    Attributes:
        warmup_iterations, warmup_s: both are reached before the first sample.
        min_samples, max_samples: bounds of the sample count.
        settled_spread: stop once the relative interquartile range is below this ...
        budget_s: ... or stays the same, or once the samples have taken this long.
        verify_s: time that the float64 oracle of the correctness gate may take; `verified_steps` says how far it went.
    """

    name: str
    warmup_iterations: int = 10
    warmup_s: float = 0.15
    min_samples: int = 30
    max_samples: int = 300
    settled_spread: float = 0.005
    budget_s: float = 3.0
    verify_s: float = 10.0

    def verifying_within(self, seconds: float | None) -> Protocol:
        """The same rules with another `verify_s`, where one is given."""
        return self if seconds is None else replace(self, verify_s=seconds)


STANDARD = Protocol("standard")
PAPER = Protocol("paper", warmup_iterations=10, warmup_s=0.0, min_samples=30, max_samples=30)
SHORT = Protocol(
    "short", warmup_iterations=2, warmup_s=0.02, min_samples=7, max_samples=50, budget_s=0.25, verify_s=0.15
)
PROTOCOLS = {protocol.name: protocol for protocol in (STANDARD, PAPER, SHORT)}
