"""Rows that answer the same question, and how much faster one is than another."""

from __future__ import annotations

from collections.abc import Iterable
from math import hypot

from tflabench.conclusions.compare import questions
from tflabench.rows.schema import Row


def contests(rows: Iterable[Row]) -> list[list[Row]]:
    """Measured rows that answer the same question, fastest first in each list, small problems first."""
    measured = (row for row in rows if row.status == "ok")
    return [sorted(group, key=lambda row: row.ms_median or 0) for group in questions(measured)]


def faster(best: Row, other: Row) -> tuple[float, float]:
    """How many times as fast `best` ran as `other`, and its uncertainty from half the spread of 20% to 80%."""
    ratio = other.ms_median / best.ms_median  # type: ignore[operator]
    spreads = [(row.ms_p80 - row.ms_p20) / 2 / row.ms_median for row in (best, other)]  # type: ignore[operator]
    return ratio, ratio * hypot(*spreads)
