"""Two sides, of folders or of implementations: their points matched and judged, as same, faster, slower or ambiguous.

No torch.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tflabench.conclusions.campaigns import conditions_of
from tflabench.conclusions.ratio import comparable, fastest, questions, ratio
from tflabench.implementations.registry import nearest, split
from tflabench.problem import InputError
from tflabench.rows import spread
from tflabench.rows.load import Results, find_results

if TYPE_CHECKING:
    from tflabench.rows.schema import Row

Verdict = Literal["same", "faster", "slower", "ambiguous", "broken", "missing"]
WITHIN_COMPARISON = 0.01  # medians that differ by less are the same; between occasions `spread.moved` says it
ENOUGH_ROUNDS = 3  # for the spread between them to be known
JUDGED: tuple[Verdict, ...] = ("faster", "same", "slower")  # with a ratio that says something
VERDICTS: tuple[Verdict, ...] = ("faster", "same", "slower", "ambiguous", "broken", "missing")


@dataclass(frozen=True)
class Tolerance:
    """When two times count as different.

    Attributes:
        threshold: medians nearer to each other than this are the same (0.05: 5%). None: what the two rows share says
            it (see `threshold_of`).
        allow_throttled: whether rows count that were measured while the GPU held its clock back.
        points: that are judged together: limits are such that equal kernels pass at all of them in 95% of cases.
    """

    threshold: float | None = None
    allow_throttled: bool = False
    points: int = 1


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
        over = ratio(self.b, self.a, allow_throttled=True)
        return over and over.value

    @property
    def memory_ratio(self) -> float | None:
        """Return the peak memory of b over that of a; None where one was not measured, or is wrong."""
        if self.ratio is None or not (self.a.peak_bytes and self.b.peak_bytes):
            return None
        return self.b.peak_bytes / self.a.peak_bytes

    @property
    def regressed(self) -> bool:
        """Return whether b is slower, or failed where a ran."""
        return self.verdict in ("broken", "slower")


class Matching(NamedTuple):
    """Pairs of rows of the same point, and the rows without a partner."""

    pairs: list[tuple[Row, Row]]
    only_a: list[Row]
    only_b: list[Row]


def threshold_of(a: Row, b: Row, tolerance: Tolerance = Tolerance()) -> Threshold:
    """Return how far apart the medians of two rows must be to count as different."""
    if tolerance.threshold is not None:
        return Threshold(tolerance.threshold, "as --threshold says")
    if a.comparison_id is not None and a.comparison_id == b.comparison_id and a.closed and b.closed:
        return Threshold(WITHIN_COMPARISON, "within one comparison")
    return Threshold(exp(spread.moved(tolerance.points)) - 1, "between two occasions")


def match_folders(a: Sequence[Results], b: Sequence[Results], roots: tuple[Path, Path]) -> Matching:
    """Return pairs of rows of two sets of results folders, which lie in and below one folder each.

    Folders of the same name below their roots meet. Of the points of all others, each counts once on either side: as it
    was measured last. There, rows of a device that both sides have meet each other alone; devices that only one side
    has meet those that only the other has.
    """
    rows_a, rows_b = (
        {results.folder.relative_to(root): results.rows for results in side}
        for side, root in zip((a, b), roots, strict=True)
    )
    shared = [name for name in rows_a if name in rows_b]
    rest = [
        sorted((row for name in side if name not in shared for row in side[name]), key=lambda row: row.started_at)
        for side in (rows_a, rows_b)
    ]
    devices = [{row.device for row in rows} for rows in rest]
    both = devices[0] & devices[1]
    groups = [{device} for device in sorted(both)] + [(devices[0] | devices[1]) - both]
    apart = [match_points(*([row for row in rows if row.device in group] for rows in rest)) for group in groups]
    return joined([*(match_points(rows_a[name], rows_b[name]) for name in shared), *apart])


def joined(matchings: Sequence[Matching]) -> Matching:
    """Return several matchings, one at least, as one."""
    return Matching(*([*chain(*parts)] for parts in zip(*matchings, strict=True)))


def match_points(a: Iterable[Row], b: Iterable[Row]) -> Matching:
    """Return pairs of rows of two results folders by the identity of their points, in the order of `a`."""
    rows_a, rows_b = ({row.point: row for row in side} for side in (a, b))
    return Matching(
        [(row, rows_b[point]) for point, row in rows_a.items() if point in rows_b],
        only_a=[row for point, row in rows_a.items() if point not in rows_b],
        only_b=[row for point, row in rows_b.items() if point not in rows_a],
    )


def match_implementations(a: Sequence[Row], b: Sequence[Row]) -> Matching:
    """Return pairs of rows of two implementations that were measured in one comparison.

    They are at the same chunk sizes where the two share some, else each is at its fastest one.
    """
    matching = Matching([], [], [])
    names = {row.implementation for row in a}
    for group in questions([*a, *b]):
        of_a = [row for row in group if row.implementation in names]
        of_b = [row for row in group if row.implementation not in names]
        if not (of_a and of_b):
            matching.only_a.extend(of_a)
            matching.only_b.extend(of_b)
            continue
        in_a, in_b = ({row.chunk_size: row for row in side if row.chunk_size} for side in (of_a, of_b))
        shared = [(in_a[size], in_b[size]) for size in in_a if size in in_b]
        for pair in shared or [(fastest(of_a), fastest(of_b))]:
            if comparable(*pair) or any(row.status != "ok" for row in pair):
                matching.pairs.append(pair)
            else:
                matching.only_a.append(pair[0])
                matching.only_b.append(pair[1])
    return matching


def judge(a: Row, b: Row, tolerance: Tolerance = Tolerance()) -> Match:
    """Say what two rows of the same point say of `b`, and why where that is not clear.

    - missing: not measured on one side; broken: ran in `a` and failed in `b`;
    - ambiguous: too few rounds, a throttled clock or a tuner that tried a part, on either side; or medians that are
      known less well than the threshold, or than they differ;
    - same: medians nearer than the threshold;  faster, slower: further apart than that, and than they are known to.
    """
    threshold = threshold_of(a, b, tolerance)

    def match(verdict: Verdict, reason: str | None = None) -> Match:
        return Match(a, b, verdict, reason, threshold)

    if a.status != "ok" or b.status != "ok":
        broken = a.status == "ok" and b.status != "unsupported"
        failed = [f"{row.status} in {side}: {row.reason}" for side, row in (("A", a), ("B", b)) if row.status != "ok"]
        return match("broken" if broken else "missing", "; ".join(failed))
    if doubts := _doubts(a, b, tolerance):
        return match("ambiguous", "; ".join(doubts))
    over = ratio(b, a, allow_throttled=True)
    if over is None:
        return match("ambiguous", "no time was recorded")
    apart, limit = abs(log(over.value)), log(1 + threshold.value)
    certainty = spread.of_pair(a, b, tolerance.points)
    if max(apart, limit) < certainty:
        return match("ambiguous", f"B / A is {over.value:.3g} ± {100 * certainty:.2g}%")
    if apart <= limit:
        return match("same")
    return match("faster" if over.value < 1 else "slower")


def _doubts(a: Row, b: Row, tolerance: Tolerance) -> list[str]:
    """Return why the times of two measured rows must not be compared."""
    doubts = []
    rounds = min(row.rounds or 0 for row in (a, b))
    if rounds < ENOUGH_ROUNDS:  # samples of one share what the GPU happened to be like
        doubts.append(f"{rounds} round{'s' * (rounds != 1)}, {ENOUGH_ROUNDS} needed")
    if in_part := [side for side, row in (("A", a), ("B", b)) if not row.tuned_fully]:
        doubts.append(f"tuned in part in {' and '.join(in_part)}")
    throttled = [side for side, row in (("A", a), ("B", b)) if row.throttled]
    if throttled and not tolerance.allow_throttled:
        doubts.append(f"throttled in {' and '.join(throttled)}")
    return doubts


@dataclass(frozen=True)
class Judgement:
    """All points of two sides, each with its verdict, and rows that met no other."""

    matches: tuple[Match, ...]
    only_a: Sequence[Row]
    only_b: Sequence[Row]

    @property
    def thresholds(self) -> dict[Threshold, int]:
        """Return the thresholds that points were judged by, small ones first, and how many by each."""
        return dict(sorted(Counter(match.threshold for match in self.matches if match.ratio).items()))

    @property
    def counts(self) -> dict[Verdict, int]:
        """Return how many points have each verdict."""
        counts = Counter(match.verdict for match in self.matches)
        return {verdict: counts[verdict] for verdict in VERDICTS}

    @property
    def judged(self) -> int:
        """Return how many points are faster, the same or slower."""
        return sum(match.verdict in JUDGED for match in self.matches)

    @property
    def geometric_mean(self) -> float | None:
        """Return the geometric mean of the time ratios of the points that are judged."""
        ratios = [match.ratio for match in self.matches if match.ratio and match.verdict in JUDGED]
        return exp(sum(map(log, ratios)) / len(ratios)) if ratios else None

    @property
    def points(self) -> list[dict[str, Any]]:
        """Return each match in plain values."""
        shared = ("batch", "seq_len", "dtype", "inputs", "gates")
        apart = (
            "implementation", "chunk_size", "heads", "d_qk", "d_hv", "status", "ms_median", "ms_min", "ms_p80",
            "samples", "peak_bytes", "throttled",
        )  # fmt: skip
        return [
            {
                "pass": match.a.pass_,
                **{name: getattr(match.a, name) for name in shared},
                "a": {name: getattr(match.a, name) for name in apart},
                "b": {name: getattr(match.b, name) for name in apart},
                "ratio": match.ratio,
                "memory_ratio": match.memory_ratio,
                "verdict": match.verdict,
                "reason": match.reason,
                "threshold": match.threshold.value,
                "threshold_why": match.threshold.why,
                "regression": match.regressed,
            }
            for match in self.matches
        ]


def compare(matching: Matching, tolerance: Tolerance) -> Judgement:
    """Judge every pair of a matching."""
    tolerance = replace(tolerance, points=max(len(matching.pairs), 1))
    matches = tuple(judge(*pair, tolerance) for pair in matching.pairs)
    return Judgement(matches, matching.only_a, matching.only_b)


@dataclass(frozen=True)
class Side:
    """One side of the comparison: its name, its results folders and the rows compared; some folders may have none."""

    name: str
    folders: list[Results]

    @property
    def rows(self) -> list[Row]:
        """Return the rows of all folders."""
        return [row for folder in self.folders for row in folder.rows]

    @property
    def conditions(self) -> dict[str, list[str]]:
        """Return the conditions under which the rows were measured."""
        return conditions_of(self.rows, dict(ChainMap(*(dict(folder.runs) for folder in self.folders))))


def sides(a: str, b: str, inside: Path | None, patterns: str) -> tuple[Side, Side]:
    """Return two sides: folders a and b with all below, or, inside a folder and all below, implementations a and b.

    Args:
        patterns: of the implementations whose rows of two folders count, comma-separated.

    Raises:
        InputError: no such folder or implementation, or twice the same implementation.
    """
    if inside is None:
        if missing := [side for side in (a, b) if not Path(side).exists()]:
            wanted = "give a results folder, or add --in DIR to compare two implementations of one"
            raise InputError(f"{missing[0]} does not exist: {wanted}")
        return _only(find_results(a), Path(a), patterns, a), _only(find_results(b), Path(b), patterns, b)
    if a == b:
        raise InputError(f"A and B are both {a!r}: they must be two implementations")
    folders = find_results(inside)
    return _only(folders, inside, a, a), _only(folders, inside, b, b)


def matched(a: Side, b: Side, inside: Path | None) -> Matching:
    """Return the pairs of rows of the same point; InputError where there are none."""
    if inside:
        pairs = zip(a.folders, b.folders, strict=True)
        matching = joined([match_implementations(x.rows, y.rows) for x, y in pairs])
    else:
        matching = match_folders(a.folders, b.folders, (Path(a.name), Path(b.name)))
    if matching.pairs:
        return matching
    sizes = f"{a.name} ({len(a.rows)} points) and {b.name} ({len(b.rows)} points)"
    if inside:
        why = "no point was measured of both in one comparison, tuned in full"
        raise InputError(f"{sizes}: {why}; sweep both into {inside} at once")
    raise InputError(f"{sizes} have none in common: sweep the same axes for both")


def _only(folders: list[Results], root: Path, pattern: str, name: str) -> Side:
    side = Side(name, [results.only(split(pattern)) for results in folders])
    if not side.rows:
        names = dict.fromkeys(row.implementation for results in folders for row in results.rows)
        raise InputError(f"{root} has no rows of {pattern!r}; {nearest(pattern, names)}")
    return side
