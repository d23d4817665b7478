"""Spread of times: within an occasion, from its rounds, and between occasions. The one place for it. No torch.

The unit is a round: samples of one round share what the GPU and its memory happened to be like. The mean of n rounds is
known to t s / sqrt(n) with 95%, s being their standard deviation and t the quantile of Student's distribution.

On another occasion, in another process and mostly on another GPU of its kind, logarithms of ratios differ by more, with
heavy tails: as Student's t of 4 degrees of freedom, of which OCCASION is the 95% quantile. It is fitted on
Fig. 4 of two H100s. `docs/results.md` says how often its intervals hold on others.
"""

from __future__ import annotations

import base64
import zlib
from array import array
from collections.abc import Sequence
from functools import cache
from math import atan, cos, hypot, log, pi, sin, sqrt
from statistics import median, quantiles, stdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tflabench.rows.schema import Row

LEVEL = 0.95
OCCASION = 0.0093
SHOWN = 0.045  # more than any kernel has moved from one occasion to an equal one: 3.9%, of 551 medians
OF_SAMPLES = 11  # degrees of freedom that the spread of some ten samples is taken to have
MEDIAN = 0.93  # standard error of a median over IQR / sqrt(n): 1.25 sigma, with sigma = IQR / 1.35
FIFTHS = 0.8  # IQR over the distance from the 20th to the 80th percentile, of a normal distribution


def standard_error(rounds: Sequence[float]) -> float:
    """Return the standard error of the mean of rounds, in their unit; 0 for a single one."""
    return stdev(rounds) / sqrt(len(rounds)) if len(rounds) > 1 else 0.0


def error_of_median(samples: Sequence[float]) -> float:
    """Return the standard error of the median of samples, relative to it."""
    return MEDIAN * relative_spread(samples) / sqrt(len(samples))


def relative_spread(samples: Sequence[float]) -> float:
    """Return the interquartile range over the median; 0 for a single sample."""
    if len(samples) < 2:
        return 0.0
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return (high - low) / median(samples)


@cache
def quantile(degrees: int, points: int = 1) -> float:
    """Return how many standard errors wide half an interval is that holds a mean with LEVEL, by Student's distribution.

    Args:
        degrees: of freedom: one less than there are rounds.
        points: whose intervals hold all means together with LEVEL (by Bonferroni's inequality).
    """

    def within(t: float) -> float:  # the part of the distribution between -t and t: Abramowitz and Stegun, 26.7.3, 4
        angle, odd = atan(t / sqrt(degrees)), degrees % 2
        term, total = cos(angle) if odd else 1.0, 0.0
        for k in range(1, degrees // 2 + 1):
            total += term
            term *= cos(angle) ** 2 * ((2 * k) / (2 * k + 1) if odd else (2 * k - 1) / (2 * k))
        return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total

    low, high = 0.0, 1e9
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - within(middle) > (1 - LEVEL) / points else (low, middle)
    return high


def half_width(rounds: Sequence[float], points: int = 1) -> float:
    """Return half the 95% interval of the mean of several rounds, in their unit, within their occasion.

    Args:
        points: that are judged together, so that all lie within their intervals with 95%.
    """
    return quantile(len(rounds) - 1, points) * standard_error(rounds)


def of_row(row: Row, points: int = 1) -> float:
    """Return half the 95% interval of a row's median within its occasion, relative to it; 0 where nothing tells."""
    rounds = row.details.get("ms_by_round", ())
    if len(rounds) > 1:
        return half_width([log(ms) for ms in rounds], points)
    of_samples = quantile(OF_SAMPLES, points)
    if row.samples_ms:
        return of_samples * error_of_median([ms for part in unpacked(row.samples_ms) for ms in part])
    if row.ms_median and row.ms_p20 and row.ms_p80 and row.samples:
        return of_samples * MEDIAN * FIFTHS * (row.ms_p80 - row.ms_p20) / row.ms_median / sqrt(row.samples)
    return 0.0


def of_pair(a: Row, b: Row, points: int = 1) -> float:
    """Return half the 95% interval of log(time of a / time of b), within the occasion of each.

    What their rounds share cancels where both took turns. `points` as in `half_width`.
    """
    rounds = [row.details.get("ms_by_round", ()) for row in (a, b)]
    if a.comparison_id == b.comparison_id and len(rounds[0]) == len(rounds[1]) > 1:
        return half_width([log(x / y) for x, y in zip(*rounds, strict=True)], points)
    return hypot(of_row(a, points), of_row(b, points))


def on_another_occasion(half: float) -> float:
    """Return half the interval in which a logarithm lies on another occasion, of that within its own."""
    return hypot(half, OCCASION)


def moved(points: int) -> float:
    """Return the logarithm by which the time of one of several equal points may differ between two occasions."""
    return max(log(1 + SHOWN), OCCASION * quantile(4, points) / quantile(4))


def packed(rounds: Sequence[Sequence[float]]) -> str:
    """Return the samples of rounds in ms as a column of a row has them: float32, compressed, a word a round."""
    return " ".join(base64.b64encode(zlib.compress(array("f", part).tobytes(), 9)).decode() for part in rounds)


def unpacked(text: str) -> list[list[float]]:
    """Return the samples of each round in ms of what `packed` made."""
    return [array("f", zlib.decompress(base64.b64decode(word))).tolist() for word in text.split()]
