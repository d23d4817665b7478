"""What a claim is, and the one rule by which rows decide it: holds, does not hold, not measurable here. No torch.

What a claim states is an interval. A printed number stands for all that round to it: 25% is 24.5 to 25.5%. A bound
("over 2x", "within 15%") is itself. Words such as "about" add nothing.

What was measured is an interval too. A ratio or a difference is of two rows of one closed comparison, with half its
range over their rounds; of a single round, and of the time of one row, half the spread from the 20th to the 80th
percentile. Memory, errors against float64 and modelled times have no spread. What lies between two chunk sizes that
were tried is not known, so a best one reaches to its neighbours where the claim is about all chunk sizes.

A claim does not hold where a number that it is about misses what is stated with its whole interval. Else it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from math import hypot, inf
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tflabench.conclusions.compare import comparable, fastest
from tflabench.conclusions.contests import faster

if TYPE_CHECKING:
    from tflabench.conclusions.campaigns import Campaign
    from tflabench.rows.errors import ErrorLine
    from tflabench.rows.schema import Row

Verdict = Literal["holds", "does not hold", "not measurable"]
Point = Mapping[str, "Row"]  # role -> row
AXIS_SYMBOLS = {"seq_len": "T", "chunk_size": "L"}


class Span(NamedTuple):
    """A number with the interval in which it lies."""

    low: float
    value: float
    high: float


Values = Mapping[int, Span]  # value of the axis -> number there, ascending


def exactly(value: float) -> Span:
    return Span(value, value, value)


def around(value: float, by: float) -> Span:
    return Span(value - by, value, value + by)


@dataclass(frozen=True)
class Stated:
    """What a claim states: a number lies between `low` and `high`; infinite where it states only one of them."""

    low: float = -inf
    high: float = inf

    def reached(self, span: Span) -> bool:
        return span.high > self.low and span.low < self.high

    def __str__(self) -> str:
        if self.low == -inf:
            return f"below {self.high:.4g}"
        return f"above {self.low:.4g}" if self.high == inf else f"{self.low:.4g} to {self.high:.4g}"


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


def memory(over: str, under: str) -> Callable[[Point], Span]:
    """Return the peak memory of one role over that of another."""
    return lambda point: exactly((point[over].peak_bytes or 0) / (point[under].peak_bytes or 1))


def time(role: str) -> Callable[[Point], Span]:
    """Return the time of a role in milliseconds."""
    return lambda point: around(point[role].ms_median or 0, _half_spread(point[role]))


def rate(role: str) -> Callable[[Point], Span]:
    """Return counted FLOPs over measured time, in TFLOP/s."""

    def value(point: Point) -> Span:
        row = point[role]
        found = row.tflops or 0
        return around(found, found * _half_spread(row) / (row.ms_median or 1))

    return value


def column(role: str, name: str, unit: float = 1.0) -> Callable[[Point], Span]:
    """Return a column without a spread, divided by `unit`."""
    return lambda point: exactly((getattr(point[role], name) or 0) / unit)


def _half_spread(row: Row) -> float:
    return ((row.ms_p80 or 0) - (row.ms_p20 or 0)) / 2 if row.ms_p20 and row.ms_p80 else 0.0


# --- Of which numbers a claim is


def every(values: Values) -> list[Span]:
    return list(values.values())


def middle(values: Values) -> list[Span]:
    """Return the median over the axis."""
    return [Span(*(median(part) for part in zip(*values.values(), strict=True)))]


def last(values: Values) -> list[Span]:
    """Return the number at the greatest value of the axis."""
    return [values[max(values)]]


def last_over_first(values: Values) -> list[Span]:
    return [_over(values[max(values)], values[min(values)])]


def greatest_over_least(values: Values) -> list[Span]:
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
    """Return where the least number lies, of all places: as near as those tried beside it."""
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


# --- Claims


@dataclass(frozen=True)
class Need:
    """Rows that a claim takes: of an implementation, `{}` in its name being the kernels, where columns are as given.

    Besides columns: `tokens` is batch * seq_len, `cut` (heads, d_qk, d_hv), `dims` (d_qk, d_hv), `auto` whether the
    implementation chose L.
    """

    name: str
    where: Mapping[str, Any]

    def fits(self, row: Row | ErrorLine, kernels: str) -> bool:
        return row.implementation == self.name.format(kernels) and all(
            _column(row, name) == value for name, value in self.where.items()
        )


@dataclass(frozen=True)
class Verified:
    """Lines of an errors.csv that can decide a claim, a line a chunk size, and which number of them."""

    need: Need
    column: Literal["error", "mean_absolute"]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the rows it needs, and when they bear it out.

    Attributes:
        says: the claim, short.
        source: where the paper says so.
        needs: rows by role; empty where no row can tell.
        value: the number at one point, from the row of each role.
        form: how the number is written.
        about, of: of which numbers along `over` it is, in words and as a function.
        stated: in which interval they all lie.
        over: the column whose values the roles must share to make a point; the chunk sizes that are held against each
            other are of one comparison, the lengths of one each.
        tells: what of the numbers is shown.
        at_least: points without which nothing can be said.
        kind: "modelled" where the number comes from a model, "counted" where it does not depend on the occasion.
        verified: what of errors.csv decides it, before any row.
        command: what measures the rows, without --impl.
        unmeasurable: why neither rows nor errors can tell.
    """

    says: str
    source: str
    needs: Mapping[str, Need] = field(default_factory=dict)
    value: Callable[[Point], Span] = lambda point: exactly(0.0)
    form: str = "{:.2f}x"
    about: str = ""
    of: Callable[[Values], list[Span]] = every
    stated: Stated = Stated()
    over: str = "seq_len"
    tells: Callable[[Values, str, str], str] = spread
    at_least: int = 2
    kind: Literal["measured", "modelled", "counted"] = "measured"
    verified: Verified | None = None
    command: str = ""
    unmeasurable: str | None = None

    @property
    def criterion(self) -> str:
        """What is required of the numbers, in words."""
        return f"{self.about}: {self.stated}" if self.about else ""


@dataclass(frozen=True)
class Outcome:
    """What the rows say of a claim for one set of kernels.

    `reason`: why it does not hold or is not measurable, else empty; `folder`: where the values are from; `command`:
    what would decide it, where it is not measurable and something would.
    """

    claim: Claim
    kernels: str
    verdict: Verdict
    spans: Values
    reason: str
    folder: str | None = None
    command: str | None = None

    @property
    def values(self) -> dict[int, float]:
        return {at: span.value for at, span in self.spans.items()}

    @property
    def measured(self) -> str:
        """The measured values in words; empty where there are none, or where they are modelled."""
        return "" if self.claim.kind == "modelled" else self._told

    @property
    def modelled(self) -> str:
        """The modelled values in words; empty where there are none, or where they are measured."""
        return self._told if self.claim.kind == "modelled" else ""

    @property
    def _told(self) -> str:
        return self.claim.tells(self.spans, self.claim.form, self.claim.over) if self.spans else ""


def check(claim: Claim, kernels: str, campaigns: Sequence[Campaign], errors: Sequence[ErrorLine] = ()) -> Outcome:
    """Decide a claim about one set of kernels: by errors.csv where it has what is needed, else by rows.

    Rows are those of the campaign that has most points of it (of several, the latest).
    """
    if claim.unmeasurable:
        return Outcome(claim, kernels, "not measurable", {}, claim.unmeasurable)
    found = [*_of_errors(claim, kernels, errors)]
    if not found and claim.needs:
        for campaign in sorted(campaigns, key=lambda one: max(row.started_at for row in one.rows)):
            if points := _points(claim, kernels, campaign.rows):
                found.append(({at: claim.value(points[at]) for at in sorted(points)}, campaign.folder))
    if not found:
        return Outcome(claim, kernels, "not measurable", {}, *lacking(claim, kernels, campaigns))
    values, folder = max(reversed(found), key=lambda one: len(one[0]))
    if len(values) < claim.at_least:
        reason = f"{len(values)} {AXIS_SYMBOLS[claim.over]} measured, {claim.at_least} needed"
        return Outcome(claim, kernels, "not measurable", values, reason, folder, deciding(claim, kernels))
    missed = [span for span in claim.of(values) if not claim.stated.reached(span)]
    if not missed:
        return Outcome(claim, kernels, "holds", values, "", folder)
    low, _, high = max(missed, key=lambda span: max(claim.stated.low - span.high, span.low - claim.stated.high))
    known = f"{low:.4g}" if f"{low:.4g}" == f"{high:.4g}" else f"{low:.4g} to {high:.4g}"
    return Outcome(claim, kernels, "does not hold", values, f"{known} is not {claim.stated}", folder)


def _of_errors(claim: Claim, kernels: str, errors: Iterable[ErrorLine]) -> Iterable[tuple[Values, str]]:
    """The numbers that errors.csv has along the axis, and its folder, for every folder that has enough of them."""
    if claim.verified is None:
        return
    by_folder: dict[str, dict[int, Span]] = {}
    for line in errors:
        value = getattr(line, claim.verified.column)
        if line.status == "ok" and line.tensor == "forward" and claim.verified.need.fits(line, kernels) and value:
            by_folder.setdefault(line.folder, {})[getattr(line, claim.over)] = exactly(value)
    for folder, values in by_folder.items():
        if len(values) >= claim.at_least:
            yield dict(sorted(values.items())), folder


def _points(claim: Claim, kernels: str, rows: Iterable[Row]) -> dict[int, Point]:
    """Value of the axis -> the row of each role.

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
        {
            at: {role: fastest(found) for role, found in roles.items()}
            for at, roles in points.items()
            if len(roles) == len(claim.needs)
        }
        for points in occasions.values()
    ]
    if claim.over == "chunk_size":
        return max(reversed(complete), key=len, default={})
    return {at: point for points in complete for at, point in points.items()}


def lacking(claim: Claim, kernels: str, campaigns: Sequence[Campaign]) -> tuple[str, str | None, str | None]:
    """Say why a claim has no point (not asked for, failed, nothing ran side by side), and what decides it."""
    if not claim.needs:
        assert claim.verified is not None
        return f"no errors.csv has enough of {claim.verified.need.name.format('*')}", None, deciding(claim, kernels)
    rows = [row for campaign in campaigns for row in campaign.rows]
    reasons, hopeless = [], False
    for need in claim.needs.values():
        asked = [row for row in rows if row.implementation == need.name.format(kernels)]
        fitting = [row for row in asked if need.fits(row, kernels)]
        name = need.name.format("*")
        if not fitting:
            reasons.append(f"no rows of {name}{f' with {setting(need.where)}' if asked else ''}")
        elif not any(row.status == "ok" for row in fitting):
            reasons.append(f"{name} {fitting[-1].status}: {fitting[-1].reason}")
            hopeless = hopeless or fitting[-1].status == "wrong"
    told = "; ".join(dict.fromkeys(reasons)) or "measured, but nowhere in one comparison"
    return told, None, None if hopeless else deciding(claim, kernels)


def deciding(claim: Claim, kernels: str) -> str:
    """Return the command that makes what a claim about one set of kernels needs."""
    needs = [*claim.needs.values(), *([claim.verified.need] if claim.verified else [])]
    names = ",".join(dict.fromkeys(need.name.format(kernels) for need in needs))
    return f"{claim.command} --impl {names}"


def needed(claim: Claim) -> str:
    """Say the rows a claim takes: "fwbw, 16 heads of 128/256: *_exp_xl (L 128), *_exp_limit (L 64)"."""
    if not claim.needs:
        return "" if claim.verified is None else f"errors.csv, {_named([claim.verified.need])}"
    return _named([*claim.needs.values()])


def _named(needs: Sequence[Need]) -> str:
    settings = [need.where.items() for need in needs]
    common = dict(item for item in settings[0] if all(item in others for others in settings))
    names = []
    for need in needs:
        own = setting({name: value for name, value in need.where.items() if common.get(name) != value})
        names.append(need.name.format("*") + (f" ({own})" if own else ""))
    return f"{setting(common)}: {', '.join(dict.fromkeys(names))}"


def setting(where: Mapping[str, Any]) -> str:
    """Say column values: "fwbw, T 8192, 16 heads of 128/256, L 64"."""
    words = [str(where["pass_"])] if "pass_" in where else []
    words += [f"T {where['seq_len']}"] if "seq_len" in where else []
    if "cut" in where or "dims" in where:
        *heads, d_qk, d_hv = where.get("cut", where.get("dims", ()))
        words.append(f"{''.join(f'{n} ' for n in heads)}heads of {'/'.join(dict.fromkeys((str(d_qk), str(d_hv))))}")
    words += [f"L {where['chunk_size']}"] if "chunk_size" in where else []
    words += ["L auto" if where["auto"] else "L swept"] if "auto" in where else []
    words += [f"{where['inputs']} inputs"] if "inputs" in where else []
    return ", ".join(words)


def _column(row: Row | ErrorLine, name: str) -> Any:
    if name == "tokens":
        return row.batch * row.seq_len
    if name == "cut":
        return row.heads, row.d_qk, row.d_hv
    if name == "dims":
        return row.d_qk, row.d_hv
    if name == "auto":
        return "/Lauto/" in row.point
    return getattr(row, name)
