"""Rows that answer the same question, and how much faster one is than another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import hypot, isfinite

from tflabench.conclusions.compare import comparable, questions
from tflabench.rows.schema import Row


def timed(row: Row) -> bool:
    """Return whether a row is right and its time is a number."""
    return row.status == "ok" and row.ms_median is not None and isfinite(row.ms_median) and row.ms_median > 0


def contests(rows: Iterable[Row]) -> list[list[Row]]:
    """Return measured rows that answer the same question, fastest first in each list, small problems first."""
    measured = (row for row in rows if timed(row))
    return [sorted(group, key=lambda row: row.ms_median or 0) for group in questions(measured)]


def faster(best: Row, other: Row) -> tuple[float, float] | None:
    """Return how many times as fast `best` ran as `other`, and its uncertainty; None where the two are not comparable.

    The uncertainty is half the range of the ratio over the rounds, which both took together; of a single round it is
    from half the spread of 20% to 80%.
    """
    if not comparable(best, other):
        return None
    ratio = other.ms_median / best.ms_median  # type: ignore[operator]
    rounds = [row.details.get("ms_by_round", ()) for row in (best, other)]
    if len(rounds[0]) == len(rounds[1]) > 1:
        by_round = [slow / quick for quick, slow in zip(*rounds, strict=True)]
        return ratio, (max(by_round) - min(by_round)) / 2
    spreads = [(row.ms_p80 - row.ms_p20) / 2 / row.ms_median for row in (best, other)]  # type: ignore[operator]
    return ratio, ratio * hypot(*spreads)


def beaten(best: Row, rows: Iterable[Row]) -> Iterator[tuple[Row, float, float]]:
    """Yield the rows of other implementations that a fastest row may be compared with, each with what `faster` says.

    None of them was throttled: a throttled time is longer than it need be.
    """
    for row in rows:
        if row.implementation != best.implementation and not row.throttled and (ratio := faster(best, row)):
            yield row, *ratio


def bound_sign(best: Row) -> str:
    """Return what stands before a ratio to a fastest row: "≥" where it was throttled, and would be faster yet."""
    return "≥" if best.throttled else ""
