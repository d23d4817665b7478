"""Which rows answer the same question, and what two times of the same point say: same, faster, slower or ambiguous."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import TYPE_CHECKING, Literal, NamedTuple

from tflabench.implementations.registry import owner

if TYPE_CHECKING:
    from pathlib import Path

    from tflabench.rows.load import Results
    from tflabench.rows.schema import Row

Verdict = Literal["same", "faster", "slower", "ambiguous", "broken", "missing"]
# How far apart two medians of one kernel may lie without a difference between kernels, by what the rows share.
# Within a comparison they took turns: what is left is the spread of the samples, which `judge` looks at too. Of two
# sweeps on one H100 104 of 105 ratios agree within 2% (docs/decisions/archive/2026-11-24-main-job.md). GPUs of one
# kind differ by 2 to 3% (docs/decisions/archive/2026-11-22-rows-of-the-h200.md).
WITHIN_COMPARISON = 0.01
BETWEEN_RUNS = 0.02
BETWEEN_GPUS = 0.03
ENOUGH_SAMPLES = 30  # for the spread of the samples alone to tell two kernels apart
ENOUGH_ROUNDS = 3  # for fewer samples to do, if every round says the same
VERDICTS: tuple[Verdict, ...] = ("faster", "same", "slower", "ambiguous", "broken", "missing")


@dataclass(frozen=True)
class Rules:
    """When two times count as different.

    Attributes:
        threshold: medians nearer to each other than this are the same (0.05: 5%). None: what the two rows share says
            it (see `threshold_of`).
        min_samples: with fewer on either side nothing is said. None: ENOUGH_SAMPLES, or fewer in ENOUGH_ROUNDS rounds
            or more on both sides, of which each must then say the same (see `judge`).
        allow_throttled: whether rows count that were measured while the GPU held its clock back.
    """

    threshold: float | None = None
    min_samples: int | None = None
    allow_throttled: bool = False


class Threshold(NamedTuple):
    """The distance from which on medians count as different (0.02: 2%), and why."""

    value: float
    why: str


@dataclass(frozen=True)
class Match:
    """Two measurements of one point: `b` as held against `a`, by a threshold."""

    a: Row
    b: Row
    verdict: Verdict
    reason: str | None
    threshold: Threshold

    @property
    def ratio(self) -> float | None:
        """Time of b over time of a: above 1 where b is slower; None where one was not measured, or is wrong."""
        return ratio(self.b.ms_median, self.a.ms_median) if self._measured else None

    @property
    def memory_ratio(self) -> float | None:
        """Peak memory of b over that of a; None where one was not measured, or is wrong."""
        return ratio(self.b.peak_bytes, self.a.peak_bytes) if self._measured else None

    @property
    def _measured(self) -> bool:
        return self.a.status == self.b.status == "ok"

    @property
    def regressed(self) -> bool:
        """Return whether b is slower, or failed where a ran."""
        return self.verdict in ("broken", "slower")


class Matching(NamedTuple):
    """Pairs of rows of the same point, and the rows without a partner."""

    pairs: list[tuple[Row, Row]]
    only_a: list[Row]
    only_b: list[Row]


def comparable(*rows: Row) -> bool:
    """Return whether ratios of rows may be taken: all were measured, with full tuning, in one closed comparison.

    None is taken of a kernel of ours to one that is published to be read.
    """
    ids = {row.comparison_id if row.closed else None for row in rows}
    if {"ours", "published"} <= {owner(row.implementation).role for row in rows}:
        return False
    return len(ids) == 1 and None not in ids and all(row.status == "ok" and row.tuned_fully for row in rows)


def divisible(quicker: Row, slower: Row) -> bool:
    """Return whether the ratio of two times may be taken: they are comparable, and the slower was not throttled.

    Where the quicker was throttled it would be quicker yet, so the ratio is a bound.
    """
    return comparable(quicker, slower) and not slower.throttled


def ratio(over: float | None, under: float | None) -> float | None:
    """Return a quotient; None where a side is missing or the divisor is 0."""
    return None if over is None or not under else over / under


def questions(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows that answer the same question, small problems first.

    That is the same device, batch, length and embedding heads * d_hv (attention with 32 heads of 128 meets mLSTM with
    16 of 256), unless an implementation ran with heads cut in several ways: then those are questions of their own.
    """
    by_embedding = defaultdict(list)
    for row in rows:
        size = (row.seq_len, row.batch, row.heads * row.d_hv)
        by_embedding[*size, row.dtype, row.inputs, row.pass_, row.device].append(row)
    found: list[list[Row]] = []
    for _, group in sorted(by_embedding.items()):
        cuts = defaultdict(set)
        by_heads = defaultdict(list)
        for row in group:
            cuts[row.implementation].add((row.heads, row.d_qk, row.d_hv))
            by_heads[row.heads, row.d_qk, row.d_hv].append(row)
        found += [group] if max(map(len, cuts.values())) == 1 else by_heads.values()
    return found


def fastest(rows: Sequence[Row]) -> Row:
    """Return the measured row of least median time; where none was measured, the first wrong one, else the first row.

    Wrong results have a time, and are not measured. That a kernel ran says more than that it refused another size.
    """

    def rank(row: Row) -> tuple[int, float]:
        if row.status == "ok" and row.ms_median is not None:
            return 0, row.ms_median
        return 1 if row.status == "wrong" else 2, 0.0

    return min(rows, key=rank)


def threshold_of(a: Row, b: Row, rules: Rules = Rules()) -> Threshold:
    """Return how far apart the medians of two rows must be to count as different."""
    if rules.threshold is not None:
        return Threshold(rules.threshold, "as --threshold says")
    if a.comparison_id is not None and a.comparison_id == b.comparison_id and a.closed and b.closed:
        return Threshold(WITHIN_COMPARISON, "within one comparison")
    if a.gpu_uuid is not None and a.gpu_uuid == b.gpu_uuid:
        return Threshold(BETWEEN_RUNS, "between runs on one GPU")
    known = a.gpu_uuid is not None and b.gpu_uuid is not None
    return Threshold(BETWEEN_GPUS, "between two GPUs" if known else "where rows do not say which GPU they are from")


def match_folders(a: Sequence[Results], b: Sequence[Results], roots: tuple[Path, Path]) -> Matching:
    """Return pairs of rows of two sets of results folders, which lie in and below one folder each.

    Folders of the same name below their roots meet. Of the points of all others, each counts once on either side: as it
    was measured last. There, rows of a device that both sides have meet each other alone; devices that only one side
    has meet those that only the other has.
    """
    left, right = (
        {results.folder.relative_to(root): results.rows for results in side}
        for side, root in zip((a, b), roots, strict=True)
    )
    shared = left.keys() & right.keys()
    rest = [
        sorted((row for name in side if name not in shared for row in side[name]), key=lambda row: row.started_at)
        for side in (left, right)
    ]
    both = {row.device for row in rest[0]} & {row.device for row in rest[1]}
    kinds = [{device} for device in sorted(both)] + [{row.device for side in rest for row in side} - both]
    apart = [match_points(*([row for row in side if row.device in kind] for side in rest)) for kind in kinds]
    return joined([*(match_points(left[name], right[name]) for name in left if name in shared), *apart])


def joined(matchings: Iterable[Matching]) -> Matching:
    """Return several matchings as one."""
    found = Matching([], [], [])
    for one in matchings:
        for all_, own in zip(found, one, strict=True):
            all_.extend(own)  # type: ignore[arg-type]
    return found


def match_points(a: Iterable[Row], b: Iterable[Row]) -> Matching:
    """Rows of two results folders by the identity of their points, in the order of `a`."""
    left, right = ({row.point: row for row in side} for side in (a, b))
    pairs = [(row, right[point]) for point, row in left.items() if point in right]
    return Matching(
        pairs,
        only_a=[row for point, row in left.items() if point not in right],
        only_b=[row for point, row in right.items() if point not in left],
    )


def match_implementations(a: Sequence[Row], b: Sequence[Row]) -> Matching:
    """Return pairs of rows of two implementations that were measured in one comparison.

    They are at the same chunk sizes where the two share some, else each is at its fastest one.
    """
    found = Matching([], [], [])
    names = {row.implementation for row in a}
    for group in questions([*a, *b]):
        left = [row for row in group if row.implementation in names]
        right = [row for row in group if row.implementation not in names]
        if not (left and right):
            found.only_a.extend(left)
            found.only_b.extend(right)
            continue
        in_a, in_b = ({row.chunk_size: row for row in side if row.chunk_size} for side in (left, right))
        shared = [(in_a[size], in_b[size]) for size in in_a if size in in_b]
        for one, other in shared or [(fastest(left), fastest(right))]:
            if comparable(one, other) or "ok" not in (one.status, other.status) or one.status != other.status:
                found.pairs.append((one, other))
            else:
                found.only_a.append(one)
                found.only_b.append(other)
    return found


def judge(a: Row, b: Row, rules: Rules = Rules()) -> Match:
    """Say what two rows of the same point say of `b`, and why where that is not clear.

    - missing: not measured on one side; broken: ran in `a` and failed in `b`;
    - ambiguous: too few samples or a throttled clock on either side, or medians that differ by the threshold or more
      while the intervals [min, 80th percentile] overlap;
    - same: medians nearer than that;  faster, slower: apart, and the intervals do too.

    Slow points have fewer samples than ENOUGH_SAMPLES, in several rounds. Their verdict takes more, not less: all that
    is above must hold, and the medians of any two rounds, one a side, must give the same verdict by the threshold.
    """
    threshold = threshold_of(a, b, rules)
    if a.status != "ok" or b.status != "ok":
        broken = a.status == "ok" and b.status != "unsupported"
        failed = [f"{row.status} in {side}: {row.reason}" for side, row in (("A", a), ("B", b)) if row.status != "ok"]
        return Match(a, b, "broken" if broken else "missing", "; ".join(failed), threshold)
    before, after, doubts = _span(a), _span(b), _doubts(a, b, rules)
    if not before or not after or doubts:
        return Match(a, b, "ambiguous", "; ".join(doubts) or "no spread was recorded", threshold)
    verdict = _verdict(after.median / before.median, threshold)
    if _samples(a, b) < ENOUGH_SAMPLES and rules.min_samples is None:
        ratios = [late / early for early in _rounds(a) for late in _rounds(b)]
        if {_verdict(ratio, threshold) for ratio in ratios} != {verdict}:
            few = f"{_samples(a, b)} samples, and B / A is {min(ratios):.3g} to {max(ratios):.3g} from round to round"
            return Match(a, b, "ambiguous", few, threshold)
    if verdict == "same":
        return Match(a, b, "same", None, threshold)
    if before.low <= after.high and after.low <= before.high:
        spans = (f"{span.low:.4g} to {span.high:.4g}" for span in (before, after))
        return Match(a, b, "ambiguous", f"[min, p80] overlap: {' and '.join(spans)} ms", threshold)
    return Match(a, b, verdict, None, threshold)


def _verdict(ratio: float, threshold: Threshold) -> Verdict:
    """Return what a ratio of times, B over A, says by a threshold alone."""
    if abs(log(ratio)) < log(1 + threshold.value):
        return "same"
    return "faster" if ratio < 1 else "slower"


def _samples(*rows: Row) -> int:
    return min(row.samples or 0 for row in rows)


def _rounds(row: Row) -> list[float]:
    """Return the medians of a row's rounds in ms; rows of before these were recorded have none."""
    return list(row.details.get("ms_by_round", ()))


class _Span(NamedTuple):
    low: float
    median: float
    high: float


def _span(row: Row) -> _Span | None:
    if row.ms_min is None or row.ms_median is None or row.ms_p80 is None:
        return None
    return _Span(row.ms_min, row.ms_median, row.ms_p80)


def _doubts(a: Row, b: Row, rules: Rules) -> list[str]:
    """Why the times of two measured rows must not be compared."""
    found = []
    samples, needed = _samples(a, b), rules.min_samples or ENOUGH_SAMPLES
    by_round = rules.min_samples is None and min(len(_rounds(row)) for row in (a, b)) >= ENOUGH_ROUNDS
    if samples < needed and not by_round:
        found.append(f"{samples} samples, {needed} needed")
    throttled = [side for side, row in (("A", a), ("B", b)) if row.throttled]
    if throttled and not rules.allow_throttled:
        found.append(f"throttled in {' and '.join(throttled)}")
    return found


@dataclass(frozen=True)
class Comparison:
    """All points of two sides, each with its verdict, and rows that met no other."""

    matches: tuple[Match, ...]
    only_a: Sequence[Row]
    only_b: Sequence[Row]

    @property
    def thresholds(self) -> dict[Threshold, int]:
        """The thresholds that points were judged by, small ones first, and how many by each."""
        return dict(sorted(Counter(match.threshold for match in self.matches if match.ratio).items()))

    @property
    def counts(self) -> dict[Verdict, int]:
        """Return how many points have each verdict."""
        found = Counter(match.verdict for match in self.matches)
        return {verdict: found[verdict] for verdict in VERDICTS}

    @property
    def geometric_mean(self) -> float | None:
        """Return the geometric mean of the time ratios of all points measured on both sides."""
        ratios = [match.ratio for match in self.matches if match.ratio]
        return exp(sum(map(log, ratios)) / len(ratios)) if ratios else None

    @property
    def regressions(self) -> list[Match]:
        """Return the pairs of which B is slower, or failed where A ran."""
        return [match for match in self.matches if match.regressed]


def compare(matching: Matching, rules: Rules) -> Comparison:
    """Judge every pair of a matching."""
    matches = tuple(judge(*pair, rules) for pair in matching.pairs)
    return Comparison(matches, matching.only_a, matching.only_b)
