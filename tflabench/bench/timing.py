"""Turns of a point within its comparison, and what follows: median, spread, whether more rounds are needed.

No torch: the process that runs the sweep sums up what workers sampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from tflabench.bench.protocol import Protocol
from tflabench.rows import spread

NOISY = 0.05
CERTAIN = 4  # standard errors between two implementations whose order is certain
REMEMBERS = 2.0  # times as long, and in
SURE = 3  # turns: once, anything may have slowed it down


@dataclass(frozen=True)
class Turn:
    """The samples of one turn of a point.

    Attributes:
        samples: milliseconds of single calls.
        warmup: calls before the first sample.
        timer: "cuda_events" or "perf_counter".
        host_ms: what the host needed to enqueue one call, the least of the warm-up; None where the host does the work.
        unseen_ms: of a call with values that no call has had before; None where there was none.
    """

    samples: Sequence[float]
    warmup: int
    timer: str
    host_ms: float | None = None
    unseen_ms: float | None = None

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
        "samples_ms": spread.packed([turn.samples for turn in turns]),
        "warmup": sum(turn.warmup for turn in turns),
        "timer": turns[0].timer,
        "rounds": len(turns),
    }


def remembers(turns: Sequence[Turn]) -> str | None:
    """Return a reason where a kernel is slower with values that it has not seen, as what remembers results is.

    It is where it takes more than REMEMBERS times as long as the slowest sample, in each of SURE turns or more.
    """
    unseen = [turn.unseen_ms for turn in turns if turn.unseen_ms is not None]
    times = min(unseen, default=0.0) / max(max(turn.samples) for turn in turns)
    if len(unseen) < SURE or times <= REMEMBERS:
        return None
    return f"takes {times:.2g} times as long with values that it has not seen: it remembers results"


def standard_error(turns: Sequence[Turn]) -> float:
    """Return the standard error of the median relative to it: over turns, or of all samples where that is larger."""
    medians = [turn.ms for turn in turns]
    samples = [sample for turn in turns for sample in turn.samples]
    return max(spread.standard_error(medians) / median(medians), spread.error_of_median(samples))


def noisy(turns: Sequence[Turn]) -> bool:
    """Return whether the standard error of the median is above NOISY."""
    return standard_error(turns) > NOISY


def settled(turns: Sequence[Turn], others: Iterable[Sequence[Turn]], protocol: Protocol) -> bool:
    """Return whether an implementation needs no further round.

    Its median is known well, or as well as its place among the others needs, or it has had all rounds there may be.
    """
    if len(turns) < protocol.min_rounds:
        return False
    middle, error = median(turn.ms for turn in turns), standard_error(turns)
    nearest = min((abs(median(turn.ms for turn in other) / middle - 1) for other in others if other), default=0.0)
    return error <= protocol.settled_rounds or error <= nearest / CERTAIN or len(turns) >= protocol.max_rounds
