"""Turns of a point within its comparison, and what follows: median, spread, whether more rounds are needed.

No torch: the process that runs the sweep sums up what workers sampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median, quantiles
from typing import Any

from tflabench.bench.protocol import Protocol

NOISY = 0.02  # ratios are shown with two decimals: a median known better than this is never flagged
NOISY_ALONE = 0.05  # where there is nothing to compare with


@dataclass(frozen=True)
class Turn:
    """The samples of one turn of a point.

    Attributes:
        samples: milliseconds of single calls.
        warmup: calls before the first sample.
        timer: "cuda_events" or "perf_counter".
        host_ms: what the host needed to enqueue one call, the least of the warm-up; None where the host does the work.
    """

    samples: Sequence[float]
    warmup: int
    timer: str
    host_ms: float | None = None

    @property
    def ms(self) -> float:
        """The median sample."""
        return median(self.samples)


def columns_of(turns: Sequence[Turn]) -> dict[str, Any]:
    """Return the columns of a row that follow from its turns, of which there is at least one."""
    samples = sorted(sample for turn in turns for sample in turn.samples)
    fifths = quantiles(samples, n=5, method="inclusive") if len(samples) > 1 else samples * 4
    host = [turn.host_ms for turn in turns if turn.host_ms is not None]
    return {
        "ms_median": median(samples),
        "ms_min": samples[0],
        "ms_p20": fifths[0],
        "ms_p80": fifths[3],
        "host_ms": min(host, default=None),
        "samples": len(samples),
        "warmup": sum(turn.warmup for turn in turns),
        "timer": turns[0].timer,
        "rounds": len(turns),
    }


def noisy(turns: Sequence[Turn], others: Iterable[Sequence[Turn]]) -> bool:
    """Return whether the median of an implementation is known less well than its place among the others needs.

    That is less well than half of the relative distance to the nearest of them, and than NOISY.
    """
    middle = median(sample for turn in turns for sample in turn.samples)
    medians = [median(sample for turn in other for sample in turn.samples) for other in others if other]
    nearest = min((abs(other / middle - 1) for other in medians), default=2 * NOISY_ALONE)
    return uncertainty(turns) > max(NOISY, nearest / 2)


def uncertainty(turns: Sequence[Turn]) -> float:
    """Return how well the median is known, relative to it.

    It is the larger of half the range of the turns' medians and the standard error of the median of all samples.
    """
    samples = [sample for turn in turns for sample in turn.samples]
    middle = median(samples)
    medians = [turn.ms for turn in turns]
    between = (max(medians) - min(medians)) / 2
    within = 0.93 * relative_spread(samples) * middle / sqrt(len(samples))  # 1.25 sigma / sqrt(n), sigma = IQR / 1.35
    return max(between, within) / middle


def relative_spread(samples: Sequence[float]) -> float:
    """Return the interquartile range over the median; 0 for a single sample."""
    if len(samples) < 2:
        return 0.0
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return (high - low) / median(samples)


def settled(turns: Sequence[Turn], others: Iterable[Sequence[Turn]], protocol: Protocol) -> bool:
    """Return whether an implementation needs no further round.

    Its medians agree, or they do as well as its place among the others needs, or it has had all rounds there may be.
    """
    if len(turns) < protocol.min_rounds:
        return False
    medians = [turn.ms for turn in turns]
    agree = max(medians) - min(medians) <= protocol.settled_rounds * median(medians)
    return agree or not noisy(turns, others) or len(turns) >= protocol.max_rounds
