"""Numbers that claims are about, with the interval in which each lies: of rows, and of several along an axis. No torch.

A ratio or a difference is of two rows of one closed comparison, with half its range over their rounds; of a single
round, and of the time of one row, with half the spread from the 20th to the 80th percentile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from math import hypot, inf
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tflabench.conclusions.contests import faster

if TYPE_CHECKING:
    from tflabench.rows.schema import Row

Point = Mapping[str, "Row"]  # role -> row
AXIS_SYMBOLS = {"seq_len": "T", "chunk_size": "L"}


class Span(NamedTuple):
    """A number with the interval in which it lies."""

    low: float
    value: float
    high: float


Values = Mapping[int, Span]  # value of the axis -> number there, ascending


def exactly(value: float) -> Span:
    """Return the interval that is one value."""
    return Span(value, value, value)


def around(value: float, by: float) -> Span:
    """Return the interval of `by` on both sides of a value."""
    return Span(value - by, value, value + by)


@dataclass(frozen=True)
class Stated:
    """The statement of a claim: a number lies between `low` and `high`; infinite where it states only one of them."""

    low: float = -inf
    high: float = inf

    def reached(self, span: Span) -> bool:
        """Return whether an interval reaches into what is stated."""
        return span.high > self.low and span.low < self.high

    @property
    def words(self) -> str:
        """The interval after "is not": "above 2", "within 0 to 1"."""
        return str(self) if inf in (-self.low, self.high) else f"within {self}"

    def __str__(self) -> str:
        if self.low == -inf:
            return f"below {self.high:.4g}"
        return f"above {self.low:.4g}" if self.high == inf else f"{self.low:.4g} to {self.high:.4g}"


ANYTHING = Stated()


def printed(number: str, last: str | None = None) -> Stated:
    """Return what a printed number stands for, or a printed range: "7.86e-4" for 7.855e-4 to 7.865e-4."""
    return Stated(_rounded(number)[0], _rounded(last or number)[1])


def percent_faster(number: str) -> Stated:
    """Return the ratios of times that a printed "25% faster" stands for: 1.245 to 1.255."""
    low, high = _rounded(number)
    return Stated(1 + low / 100, 1 + high / 100)


def _rounded(number: str) -> tuple[float, float]:
    exact = Decimal(number)
    half = Decimal((0, (5,), int(exact.as_tuple().exponent) - 1))
    return float(exact - half), float(exact + half)


# --- Numbers of rows


def ratio(over: str, under: str) -> Callable[[Point], Span]:
    """Return the time of one role over that of another, both of one comparison."""

    def value(point: Point) -> Span:
        found = faster(point[under], point[over])
        assert found is not None, "roles of a point are of one comparison"
        return around(*found)

    return value


def difference(of: str, minus: str) -> Callable[[Point], Span]:
    """Return the time of one role minus that of another, both of one comparison, in milliseconds."""

    def value(point: Point) -> Span:
        one, other = point[of], point[minus]
        apart = (one.ms_median or 0) - (other.ms_median or 0)
        rounds = [row.details.get("ms_by_round", ()) for row in (one, other)]
        if len(rounds[0]) == len(rounds[1]) > 1:
            by_round = [a - b for a, b in zip(*rounds, strict=True)]
            return around(apart, (max(by_round) - min(by_round)) / 2)
        return around(apart, hypot(_half_spread(one), _half_spread(other)))

    return value


def memory(over: str, under: str) -> Callable[[Point], Span | None]:
    """Return the peak memory of one role over that of another."""

    def value(point: Point) -> Span | None:
        sizes = point[over].peak_bytes, point[under].peak_bytes
        return exactly(sizes[0] / sizes[1]) if sizes[0] and sizes[1] else None

    return value


def time(role: str) -> Callable[[Point], Span]:
    """Return the time of a role in milliseconds."""
    return lambda point: around(point[role].ms_median or 0, _half_spread(point[role]))


def rate(role: str) -> Callable[[Point], Span | None]:
    """Return counted FLOPs over measured time, in TFLOP/s."""

    def value(point: Point) -> Span | None:
        row = point[role]
        if not (row.tflops and row.ms_median):
            return None
        return around(row.tflops, row.tflops * _half_spread(row) / row.ms_median)

    return value


def column(role: str, name: str, unit: float = 1.0) -> Callable[[Point], Span | None]:
    """Return a column without a spread, divided by `unit`."""

    def value(point: Point) -> Span | None:
        found = getattr(point[role], name)
        return exactly(found / unit) if found else None

    return value


def _half_spread(row: Row) -> float:
    return ((row.ms_p80 or 0) - (row.ms_p20 or 0)) / 2 if row.ms_p20 and row.ms_p80 else 0.0


# --- Of which numbers a claim is


def every(values: Values) -> list[Span]:
    """Return all numbers."""
    return list(values.values())


def middle(values: Values) -> list[Span]:
    """Return the median over the axis."""
    return [Span(*(median(part) for part in zip(*values.values(), strict=True)))]


def last(values: Values) -> list[Span]:
    """Return the number at the greatest value of the axis."""
    return [values[max(values)]]


def last_over_first(values: Values) -> list[Span]:
    """Return the number at the largest place over the one at the smallest."""
    return [_over(values[max(values)], values[min(values)])]


def greatest_over_least(values: Values) -> list[Span]:
    """Return the largest number over the smallest."""
    by_size = sorted(values.values(), key=lambda span: span.value)
    return [_over(by_size[-1], by_size[0])]


def last_over_least_before(values: Values) -> list[Span]:
    """Return the number at the greatest value of the axis over the least of all others."""
    *before, end = values.values()
    return [_over(end, min(before, key=lambda span: span.value))]


def steps(values: Values) -> list[Span]:
    """Return each number over the one before it."""
    return [_over(after, before) for before, after in pairwise(values.values())]


def least_at(values: Values) -> list[Span]:
    """Return where along the axis the least number lies, of the places that were tried: all within its spread."""
    best = min(values, key=lambda at: values[at].value)
    tied = [at for at, span in values.items() if span.low <= values[best].high]
    return [Span(min(tied), best, max(tied))]


def least_between(values: Values) -> list[Span]:
    """Return where the least number lies, of all places: as near as its tried neighbours."""
    ((low, best, high),) = least_at(values)
    return [
        Span(
            max((at for at in values if at < low), default=0),
            best,
            min((at for at in values if at > high), default=inf),
        )
    ]


def _over(span: Span, under: Span) -> Span:
    return around(span.value / under.value, span.value / under.value * hypot(*map(_relative, (span, under))))


def _relative(span: Span) -> float:
    return (span.high - span.low) / 2 / span.value if span.value else 0.0


def spread(values: Values, form: str, axis: str) -> str:
    """Say the least, greatest and median value: "1.18x to 1.31x, median 1.25x (± 0.4%), T = 512 to 65536"."""
    numbers = [span.value for span in values.values()]
    low, high, ends = min(numbers), max(numbers), [str(at) for at in (min(values), max(values))]
    where = f"{AXIS_SYMBOLS[axis]} = {' to '.join(dict.fromkeys(ends))}"
    widest = max(map(_relative, values.values()))
    known = f" (± {100 * abs(widest):.1f}%)" if abs(widest) >= 5e-4 else ""
    if len(values) == 1:
        return f"{form.format(low)}{known}, {where}"
    return f"{form.format(low)} to {form.format(high)}, median {form.format(median(numbers))}{known}, {where}"


def along(values: Values, form: str, axis: str) -> str:
    """Say the least value and those at both ends: "least 14.1 ms at L = 128; 15.4 ms at 64, 71.9 ms at 4096"."""
    best = min(values, key=lambda at: values[at].value)
    ends = ", ".join(f"{form.format(values[at].value)} at {at}" for at in dict.fromkeys((min(values), max(values))))
    return f"least {form.format(values[best].value)} at {AXIS_SYMBOLS[axis]} = {best}; {ends}"
