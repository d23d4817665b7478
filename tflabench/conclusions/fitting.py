"""The constant of the calibrated model that is fitted, fitted anew on some measured rows and judged on the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tflabench.theory.calibrated import Judged, median_and_worst, predict

SHORTEST, LONGEST = 1e-8, 1e-5  # seconds between which a round trip is looked for
PRECISION = 1e-3  # relative, to which it is found


@dataclass(frozen=True)
class Crossed:
    """A round trip fitted on some rows and judged on others.

    Attributes:
        fitted_on, judged_on: which rows, in words.
        round_trip_s: fitted, in seconds.
        rows: how many are judged.
        median, worst: of their errors, as `median_and_worst` gives them.
    """

    fitted_on: str
    judged_on: str
    round_trip_s: float
    rows: int
    median: float
    worst: float


class _Lines:
    """Predicted times as functions of the round trip, in which all of them are straight lines."""

    def __init__(self, rows: Iterable[Judged]) -> None:
        self.lines = []
        for row in rows:
            at_0, at_1 = (
                sum(predict(row.problem, row.kernel, replace(row.chip, round_trip_s=seconds)).values())
                for seconds in (0.0, 1.0)
            )
            self.lines.append((at_0, at_1 - at_0, row.measured))

    def errors(self, round_trip_s: float) -> list[float]:
        return [(start + slope * round_trip_s) / measured - 1 for start, slope, measured in self.lines]

    def loss(self, round_trip_s: float) -> float:
        """Mean absolute logarithm of predicted over measured time."""
        return sum(abs(math.log1p(error)) for error in self.errors(round_trip_s)) / len(self.lines)


def fit(rows: Sequence[Judged]) -> float:
    """Return the round trip in seconds that makes the mean absolute logarithm of predicted over measured time least.

    Found by golden section on a logarithmic scale, to PRECISION.

    Args:
        rows: at least one.
    """
    lines = _Lines(rows)
    low, high = math.log(SHORTEST), math.log(LONGEST)
    ratio = (math.sqrt(5) - 1) / 2
    while high - low > PRECISION:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if lines.loss(math.exp(left)) < lines.loss(math.exp(right)):
            high = right
        else:
            low = left
    return math.exp((low + high) / 2)


def cross(judged: Sequence[Judged]) -> list[Crossed]:
    """Fit on the rows that the stored constant was fitted on, and on all rows of each GPU; judge on the others.

    The first is judged on every other head size of its GPU and on every other GPU, each of the rest on the other GPUs.
    """
    by_gpu: dict[str, list[Judged]] = {}
    for row in judged:
        by_gpu.setdefault(row.gpu.name, []).append(row)
    found = []
    if stored := [row for row in judged if not row.held_out]:
        name = stored[0].gpu.name
        sizes: dict[str, list[Judged]] = {_size(stored[0]): stored}
        for row in by_gpu[name]:
            if row.held_out:
                sizes.setdefault(_size(row), []).append(row)
        others = {gpu: rows for gpu, rows in by_gpu.items() if gpu != name}
        found += _judged_on(
            f"{name}, {_size(stored[0])}", stored, {f"{name}, {k}": v for k, v in sizes.items()} | others
        )
    if len(by_gpu) > 1:
        for gpu, rows in by_gpu.items():
            found += _judged_on(gpu, rows, {gpu: rows} | by_gpu)
    return found


def _judged_on(name: str, rows: Sequence[Judged], groups: dict[str, list[Judged]]) -> list[Crossed]:
    round_trip_s = fit(rows)
    found = []
    for group, own in groups.items():
        median, worst = median_and_worst(_Lines(own).errors(round_trip_s))
        found.append(Crossed(name, group, round_trip_s, len(own), median, worst))
    return found


def _size(row: Judged) -> str:
    return f"{row.problem.d_qk}/{row.problem.d_hv}"
