"""Who wins among rows that answer the same question. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tflabench.conclusions.ratio import Ratio, questions, ratio, timed
from tflabench.rows.schema import Row


def contests(rows: Iterable[Row]) -> list[list[Row]]:
    """Return measured rows that answer the same question, fastest first in each list, small problems first."""
    return [sorted(group, key=lambda row: row.ms_median or 0) for group in questions(filter(timed, rows))]


def beaten(best: Row, rows: Iterable[Row]) -> Iterator[tuple[Row, Ratio]]:
    """Yield the rows of other implementations that a fastest row may be compared with, and their times over its."""
    for row in rows:
        if row.implementation != best.implementation and (over := ratio(row, best)):
            yield row, over
