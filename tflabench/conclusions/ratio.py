"""When a ratio of two rows may be taken, and which rows answer the same question. No torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import NamedTuple

from tflabench.implementations.registry import owner
from tflabench.problem import by_cut
from tflabench.rows import spread
from tflabench.rows.schema import Row


class Ratio(NamedTuple):
    """The time of one row over that of another.

    Attributes:
        value: the quotient of the medians.
        margin: half the interval in which it lies on another occasion with 95% (see `rows.spread`).
        bound: "≥" or "≤" where the quicker row was throttled and would be quicker yet, else "".
    """

    value: float
    margin: float
    bound: str = ""


def timed(row: Row) -> bool:
    """Return whether a row is right and its time is a number."""
    return row.status == "ok" and row.ms_median is not None and isfinite(row.ms_median) and row.ms_median > 0


def comparable(*rows: Row) -> bool:
    """Return whether rows took turns: all were measured, with full tuning, in one closed comparison.

    A kernel of ours is not held against one that is published to be read.
    """
    ids = {row.comparison_id if row.closed else None for row in rows}
    if {"ours", "published"} <= {owner(row.implementation).role for row in rows}:
        return False
    return len(ids) == 1 and None not in ids and all(row.status == "ok" and row.tuned_fully for row in rows)


def ratio(over: Row, under: Row, allow_throttled: bool = False) -> Ratio | None:
    """Return the time of one row over that of another; None where no ratio may be taken.

    Both must have a time, and be comparable (see `comparable`) or two measurements of the same point. The slower must
    not be throttled, as its time is longer than it need be, unless that is allowed.
    """
    if not (timed(over) and timed(under) and (comparable(over, under) or over.point == under.point)):
        return None
    assert over.ms_median is not None
    assert under.ms_median is not None
    quicker, slower = (under, over) if over.ms_median >= under.ms_median else (over, under)
    if slower.throttled and not allow_throttled:
        return None
    value = over.ms_median / under.ms_median
    margin = value * spread.on_another_occasion(spread.of_pair(over, under))
    return Ratio(value, margin, "" if not quicker.throttled else "≥" if quicker is under else "≤")


def questions(rows: Iterable[Row]) -> list[list[Row]]:
    """Return rows that answer the same question, small problems first.

    That is the same device, batch, length and embedding heads * d_hv: attention with 32 heads of 128 meets mLSTM with
    16 of 256. Where an implementation ran with heads cut in several ways, or with several strengths of gates, each of
    these is a question of its own.
    """
    by_embedding = defaultdict(list)
    for row in rows:
        size = (row.seq_len, row.batch, row.heads * row.d_hv)
        by_embedding[*size, row.dtype, row.inputs, row.pass_, row.device].append(row)
    groups: list[list[Row]] = []
    for _, group in sorted(by_embedding.items()):
        for part in by_cut(group, lambda row: row.implementation, _cut):
            groups += by_cut(part, lambda row: row.implementation, lambda row: row.gates)
    return groups


def _cut(row: Row) -> tuple[object, ...]:
    return row.heads_qk or row.heads, row.heads, row.d_qk, row.d_hv, row.ranks


def fastest(rows: Sequence[Row]) -> Row:
    """Return the measured row of least median time; where none was measured, the first wrong one, else the first row.

    Wrong results have a time, and are not measured. That a kernel ran says more than that it refused another size.
    """

    def rank(row: Row) -> tuple[int, float]:
        if row.status == "ok" and row.ms_median is not None:
            return 0, row.ms_median
        return 1 if row.status == "wrong" else 2, 0.0

    return min(rows, key=rank)
