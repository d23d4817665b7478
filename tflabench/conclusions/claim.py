"""Claims, and the one rule by which rows decide them: holds, does not hold, not measurable here. No torch.

What a claim states is an interval. A printed number stands for all that round to it: 25% is 24.5 to 25.5%. A bound
("over 2x", "within 15%") is itself. "About" is a fifth more or less: about 25% faster is 20 to 30%.

What was measured is an interval too, that of another occasion (`rows.spread`). A ratio or a difference of times is of
two rows of one closed comparison, and a throttled time says nothing. Memory, errors against float64 and modelled times
have no spread. What lies between two chunk sizes that were tried is not known, so a best one reaches to its neighbours
where the claim is about all chunk sizes.

A claim does not hold where a number that it is about misses what is stated with its whole interval. Else it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot, inf
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tflabench.conclusions.ratio import comparable, fastest, ratio
from tflabench.rows.spread import of_row, on_another_occasion

if TYPE_CHECKING:
    from tflabench.conclusions.campaigns import Campaign
    from tflabench.rows.schema import Row

APART = "measured, but nowhere in one comparison without throttling"
AXIS_SYMBOLS = {"seq_len": "T", "chunk_size": "L", "d_hv": "d_hv"}
# What Triton 3.6 miscompiles or aborts on, by implementation and pass (docs/getting-started.md).
OTHER_TRITON = {("nxai_exp_xl", "fw"), ("nxai_exp_xl", "fwbw"), ("fla_simple_gla", "fwbw")}


class Interval(NamedTuple):
    """A number with the interval in which it lies; intervals are ordered by their numbers."""

    value: float
    low: float
    high: float

    @classmethod
    def around(cls, value: float, margin: float = 0.0) -> Interval:
        """Return the interval of `margin` on both sides of a value."""
        return cls(value, value - margin, value + margin)

    @property
    def relative(self) -> float:
        """Return half its width over its number."""
        return (self.high - self.low) / 2 / self.value if self.value else 0.0

    def __truediv__(self, divisor: Interval) -> Interval:
        quotient = self.value / divisor.value
        return Interval.around(quotient, quotient * hypot(self.relative, divisor.relative))


Numbers = Mapping[int, Interval]  # value of the axis -> number there, ascending


class Stated(NamedTuple):
    """The statement of a claim: a number lies between `low` and `high`; infinite where it states only one of them."""

    low: float = -inf
    high: float = inf

    def __str__(self) -> str:
        if self.low == -inf:
            return f"below {self.high:.4g}"
        return f"above {self.low:.4g}" if self.high == inf else f"{self.low:.4g} to {self.high:.4g}"


ANYTHING = Stated()


def about(low: float, high: float) -> Stated:
    """Return the statement that a number is about `low` to `high`."""
    return Stated(0.8 * low, 1.2 * high)


def times(over: Row, under: Row) -> Interval | None:
    """Return the time of one row over that of another, both of one comparison; None where one was throttled."""
    quotient = None if over.throttled or under.throttled else ratio(over, under)
    return quotient and Interval.around(quotient.value, quotient.margin)


def milliseconds(row: Row) -> Interval | None:
    """Return the time of a row in ms; None where it was throttled."""
    if row.throttled or not row.ms_median:
        return None
    return Interval.around(row.ms_median, row.ms_median * on_another_occasion(of_row(row)))


def milliseconds_more(row: Row, less: Row) -> Interval | None:
    """Return the time of one row minus that of another, both of one comparison, in ms; None as for `times`."""
    over, ms = times(less, row), row.ms_median or 0.0
    return over and Interval.around(ms * (1 - over.value), ms * (over.high - over.low) / 2)


def exactly(over: float | None, under: float | None = 1.0) -> Interval | None:
    """Return a quotient without a spread; None where a side is missing or 0."""
    return Interval.around(over / under) if over and under else None


def rate(row: Row) -> Interval | None:
    """Return counted FLOPs over the time of a row, in TFLOP/s; None where it was throttled, or nothing was counted."""
    ms = milliseconds(row)
    return Interval.around(row.tflops, row.tflops * ms.relative) if ms and row.tflops else None


def gigabytes_more(row: Row, less: Row) -> Interval | None:
    """Return the peak memory of one row minus that of another, in 1e9 bytes; None where a side is missing."""
    both = row.peak_bytes and less.peak_bytes
    return Interval.around(((row.peak_bytes or 0) - (less.peak_bytes or 0)) / 1e9) if both else None


def middle(numbers: Numbers) -> list[Interval]:
    """Return the median over the axis."""
    return [Interval(*(median(part) for part in zip(*numbers.values(), strict=True)))]


def spread(numbers: Numbers, form: str, axis: str) -> str:
    """Return the least, greatest and median number: "1.18x to 1.31x, median 1.25x (± 0.4%), T = 512 to 65536"."""
    values = [number.value for number in numbers.values()]
    ends = dict.fromkeys((min(numbers), max(numbers)))
    widest = max(abs(number.relative) for number in numbers.values())
    margin = f" (± {100 * widest:.1f}%)" if widest >= 5e-4 else ""
    place = margin + (f", {AXIS_SYMBOLS[axis]} = {' to '.join(map(str, ends))}" if axis in AXIS_SYMBOLS else "")
    if len(values) == 1:
        return f"{form.format(values[0])}{place}"
    return f"{form.format(min(values))} to {form.format(max(values))}, median {form.format(median(values))}{place}"


def along(numbers: Numbers, form: str, axis: str) -> str:
    """Return the least number and those at both ends: "least 14.1 ms at L = 128; 15.4 ms at 64, 71.9 ms at 4096"."""
    best = min(numbers, key=lambda at: numbers[at].value)
    ends = dict.fromkeys((min(numbers), max(numbers)))
    at_ends = ", ".join(f"{form.format(numbers[at].value)} at {at}" for at in ends)
    return f"least {form.format(numbers[best].value)} at {AXIS_SYMBOLS[axis]} = {best}; {at_ends}"


@dataclass(frozen=True)
class Need:
    """Rows that a claim takes: of an implementation, `{}` in its name being the kernels, where columns are as given.

    Besides columns: `tokens` is batch * seq_len, `cut` (heads, d_qk, d_hv), `auto` whether the
    implementation chose L.
    """

    name: str
    where: Mapping[str, Any]

    def fits(self, row: Row, kernels: str) -> bool:
        """Return whether a row is one of these, for a set of kernels."""
        return row.implementation == self.name.format(kernels) and all(
            _column(row, name) == value for name, value in self.where.items()
        )

    @property
    def setting(self) -> str:
        """Return the columns in words: "fwbw, T = 8192, 16 heads of 128/256"."""
        *heads, d_qk, d_hv = self.where.get("cut", ("", ""))
        templates = {
            "pass_": "{}", "seq_len": "T = {}", "chunk_size": "L = {}", "inputs": "{} inputs", "tokens": "{} tokens"
        }  # fmt: skip
        parts = [templates[name].format(value) for name, value in self.where.items() if name in templates]
        return ", ".join([*parts, f"{''.join(f'{count} ' for count in heads)}heads of {d_qk}/{d_hv}"])


def _column(row: Row, name: str) -> Any:
    made = {"tokens": row.batch * row.seq_len, "cut": (row.heads, row.d_qk, row.d_hv), "auto": "/Lauto/" in row.point}
    return made[name] if name in made else getattr(row, name)


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the rows it needs, and when they bear it out.

    Attributes:
        says: the claim, short.
        source: where the paper says so.
        needs: rows by role.
        value: the number at one point, of the rows of all roles by name; None where a row lacks it.
        form: how the number is written.
        about: which numbers along `over` it is about, in words.
        of: the same as a function.
        stated: in which interval they all lie.
        over: the column whose values the roles must share to make a point; the chunk sizes that are held against each
            other are of one comparison, the lengths of one each.
        tells: what of the numbers is shown.
        at_least: points without which nothing can be said.
        kind: "modelled" where the number comes from a model, "counted" where it does not depend on the occasion.
        theory: what makes the numbers, of formulas alone; None where rows have them.
        command: what measures the rows, without --impl.
        unmeasurable: why rows cannot tell.
    """

    says: str
    source: str
    needs: Mapping[str, Need] = field(default_factory=dict)
    value: Callable[..., Interval | None] = lambda **rows: None
    form: str = "{:.2f}x"
    about: str = ""
    of: Callable[[Numbers], Iterable[Interval]] = lambda numbers: numbers.values()
    stated: Stated = ANYTHING
    over: str = "seq_len"
    tells: Callable[[Numbers, str, str], str] = spread
    at_least: int = 2
    kind: Literal["measured", "modelled", "counted"] = "measured"
    theory: Callable[[], Numbers] | None = None
    command: str = ""
    unmeasurable: str | None = None

    @property
    def criterion(self) -> str:
        """Return in words what is required of the numbers."""
        return f"{self.about}: {self.stated}" if self.about else ""

    def decided_by(self, kernels: str) -> str:
        """Return the command that makes what the claim needs of one set of kernels."""
        names = list(dict.fromkeys(need.name.format(kernels) for need in self.needs.values()))
        refused = [
            name for name in names for need in self.needs.values() if (name, need.where["pass_"]) in OTHER_TRITON
        ]
        note = f"  # {refused[0]} needs another Triton: pip install triton==3.7.1" if refused else ""
        return f"{self.command} --impl {','.join(names)}{note}"


@dataclass(frozen=True)
class Outcome:
    """The verdict of the rows on a claim for one set of kernels.

    Attributes:
        reason: why it does not hold or is not measurable, else empty.
        folder: where the numbers are from.
        command: what would decide it, where it is not measurable and something would.
    """

    claim: Claim
    kernels: str
    verdict: Literal["holds", "does not hold", "not measurable"]
    numbers: Numbers
    reason: str
    folder: str | None = None
    command: str | None = None

    @property
    def decided(self) -> bool:
        """Return whether the claim holds or does not."""
        return self.verdict != "not measurable"

    @property
    def words(self) -> str:
        """Return the numbers, measured or modelled, in words; empty where there are none."""
        return self.claim.tells(self.numbers, self.claim.form, self.claim.over) if self.numbers else ""


def check(claim: Claim, kernels: str, campaigns: Sequence[Campaign]) -> Outcome:
    """Decide a claim about one set of kernels.

    Rows are those of the campaign that has most points of it; of several, of today's kernels and their first occasion.
    """
    if claim.unmeasurable:
        return Outcome(claim, kernels, "not measurable", {}, claim.unmeasurable)
    candidates: list[tuple[Numbers, str | None]]
    if claim.theory:
        candidates = [(claim.theory(), None)]
    else:
        in_order = sorted(campaigns, key=lambda c: (not c.is_current, min(row.started_at for row in c.rows)))
        candidates = [
            (numbers, campaign.folder) for campaign in in_order if (numbers := _numbers(claim, kernels, campaign.rows))
        ]
    if not candidates:
        reason, command = _lacking(claim, kernels, campaigns)
        return Outcome(claim, kernels, "not measurable", {}, reason, None, command)
    numbers, folder = max(candidates, key=lambda candidate: len(candidate[0]))
    if len(numbers) < claim.at_least:
        reason = f"{len(numbers)} {AXIS_SYMBOLS[claim.over]} measured, {claim.at_least} needed"
        return Outcome(claim, kernels, "not measurable", numbers, reason, folder, claim.decided_by(kernels))
    of_claim = list(claim.of(numbers))
    if not of_claim:
        return Outcome(claim, kernels, "not measurable", numbers, APART, folder, claim.decided_by(kernels))
    low, high = claim.stated
    missed = [number for number in of_claim if not (number.high > low and number.low < high)]
    if not missed:
        return Outcome(claim, kernels, "holds", numbers, "", folder)
    worst = max(missed, key=lambda number: max(low - number.high, number.low - high))
    measured = " to ".join(dict.fromkeys(f"{end:.4g}" for end in worst[1:]))
    within = "" if inf in (-low, high) else "within "
    return Outcome(claim, kernels, "does not hold", numbers, f"{measured} is not {within}{claim.stated}", folder)


def _numbers(claim: Claim, kernels: str, rows: Iterable[Row]) -> Numbers:
    """Return the numbers along the axis, of the fastest row of each role at each point.

    Rows that are held against each other were measured in one comparison: all roles, and all chunk sizes.
    """
    occasions: dict[str | None, dict[int, dict[str, list[Row]]]] = {}
    free = claim.kind != "measured"
    for row in sorted(rows, key=lambda row: row.started_at):
        for role, need in claim.needs.items():
            if row.status == "ok" and need.fits(row, kernels) and (free or comparable(row)):
                points = occasions.setdefault(None if free else row.comparison_id, {})
                points.setdefault(getattr(row, claim.over), {}).setdefault(role, []).append(row)
    complete = [
        {at: roles for at, roles in points.items() if len(roles) == len(claim.needs)} for points in occasions.values()
    ]
    if claim.over == "chunk_size":
        complete = [max(reversed(complete), key=len, default={})]
    points = {
        at: {role: fastest(rows) for role, rows in roles.items()}
        for of_occasion in complete
        for at, roles in of_occasion.items()
    }
    return {at: value for at, point in sorted(points.items()) if (value := claim.value(**point))}


def _lacking(claim: Claim, kernels: str, campaigns: Sequence[Campaign]) -> tuple[str, str | None]:
    """Return why a claim has no point (not measured, failed, not side by side), and what decides it, if anything."""
    command = claim.decided_by(kernels)
    rows = [row for campaign in campaigns for row in campaign.rows]
    reasons, hopeless = [], False
    for need in claim.needs.values():
        of_name = [row for row in rows if row.implementation == need.name.format(kernels)]
        fitting = [row for row in of_name if need.fits(row, kernels)]
        name = need.name.format("*")
        if not fitting:
            reasons.append(f"no rows of {name}{f' with {need.setting}' if of_name else ''}")
        elif not any(row.status == "ok" for row in fitting):
            reasons.append(f"{name} {fitting[-1].status}: {fitting[-1].reason}")
            hopeless = hopeless or fitting[-1].status == "wrong"
    return "; ".join(dict.fromkeys(reasons)) or APART, None if hopeless else command
