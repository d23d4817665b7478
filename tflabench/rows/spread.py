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
from math import acos, cos, hypot, log, sqrt
from statistics import NormalDist, median, quantiles, stdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tflabench.rows.schema import Row

LEVEL = 0.95
OCCASION = 0.0093
SHOWN = 0.045  # more than any kernel has moved from one occasion to an equal one: 3.9%, of 551 medians
T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20)  # quantiles of 1, 2, ... degrees of freedom
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


def half_width(rounds: Sequence[float]) -> float:
    """Return half the 95% interval of the mean of several rounds, in their unit, within their occasion."""
    return T95[min(len(rounds) - 1, len(T95)) - 1] * standard_error(rounds)


def of_row(row: Row) -> float:
    """Return half the 95% interval of a row's median within its occasion, relative to it; 0 where nothing tells."""
    rounds = row.details.get("ms_by_round", ())
    if len(rounds) > 1:
        return half_width([log(ms) for ms in rounds])
    if row.samples_ms:
        return T95[-1] * error_of_median([ms for part in unpacked(row.samples_ms) for ms in part])
    if row.ms_median and row.ms_p20 and row.ms_p80 and row.samples:
        return T95[-1] * MEDIAN * FIFTHS * (row.ms_p80 - row.ms_p20) / row.ms_median / sqrt(row.samples)
    return 0.0


def of_pair(a: Row, b: Row) -> float:
    """Return half the 95% interval of log(time of a / time of b), within the occasion of each.

    What their rounds share cancels where both took turns.
    """
    rounds = [row.details.get("ms_by_round", ()) for row in (a, b)]
    if a.comparison_id == b.comparison_id and len(rounds[0]) == len(rounds[1]) > 1:
        return half_width([log(x / y) for x, y in zip(*rounds, strict=True)])
    return hypot(of_row(a), of_row(b))


def on_another_occasion(half: float) -> float:
    """Return half the interval in which a logarithm lies on another occasion, of that within its own."""
    return hypot(half, OCCASION)


def family(points: int) -> float:
    """Return by how much intervals widen so that all of several points lie within theirs with 95%."""
    normal = NormalDist()
    return normal.inv_cdf(1 - (1 - LEVEL) / 2 / points) / normal.inv_cdf(1 - (1 - LEVEL) / 2)


def moved(points: int) -> float:
    """Return the logarithm by which the time of one of several equal points may differ between two occasions."""

    def quantile(tail: float) -> float:  # of Student's t with 4 degrees of freedom
        root = sqrt(4 * tail * (1 - tail))
        return 2 * sqrt(cos(acos(root) / 3) / root - 1)

    tail = (1 - LEVEL) / 2
    return max(log(1 + SHOWN), OCCASION * quantile(tail / points) / quantile(tail))


def packed(rounds: Sequence[Sequence[float]]) -> str:
    """Return the samples of rounds in ms as a column of a row has them: float32, compressed, a word a round."""
    return " ".join(base64.b64encode(zlib.compress(array("f", part).tobytes(), 9)).decode() for part in rounds)


def unpacked(text: str) -> list[list[float]]:
    """Return the samples of each round in ms of what `packed` made."""
    return [array("f", zlib.decompress(base64.b64decode(word))).tolist() for word in text.split()]
