"""Intervals hold on another occasion, equal kernels are seldom told apart, and further rounds help.

`tests/data/two-occasions.csv` has the rounds of points that were measured on two GPUs of one kind, and of points on a
CPU. Figs. 12 of the paper on an H100 and an H200, its Fig. 4 on an H200, and 20 points of it on two H100s: OCCASION is
fitted on none of them. And points of two sweeps on one H100, which differ by less.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from itertools import combinations
from math import exp
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest
from repository import ROOT
from synthetic import row

from tflabench.bench.protocol import SHORT
from tflabench.bench.timing import Turn, noisy, settled
from tflabench.conclusions.compare import Tolerance, compare, judge, match_points
from tflabench.conclusions.ratio import ratio
from tflabench.rows import spread
from tflabench.rows.schema import Row

Rounds = list[float]


def stored() -> dict[str, list[tuple[Rounds, Rounds]]]:
    """The rounds of every point on both occasions, in ms, by comparison."""
    by_comparison = defaultdict(list)
    with (ROOT / "tests" / "data" / "two-occasions.csv").open() as file:
        for line in csv.DictReader(file):
            rounds = ([float(ms) for ms in line[name].split()] for name in ("ms_by_round", "again"))
            by_comparison[line["comparison"]].append(tuple(rounds))
    return by_comparison


POINTS = stored()
ON_A_CPU = [np.log(rounds) - np.mean(np.log(rounds)) for rounds, _ in POINTS.pop("cpu")]


def of_rounds(rounds: Rounds, implementation: str = "tfla_sig_xl", **changes: Any) -> Row:
    ms = median(rounds)
    return row(implementation, ms, samples=10 * len(rounds), details={"ms_by_round": rounds}, **changes)


@pytest.mark.parametrize(("on_one_gpu", "least", "most"), [(False, 0.90, 0.97), (True, 0.90, 1.0)])
def test_intervals_hold_on_another_occasion_in_90_to_97_of_100_ratios(on_one_gpu, least, most):
    holds = []
    for points in (points for name, points in POINTS.items() if (name == "one GPU") == on_one_gpu):
        for one, other in combinations(points, 2):
            occasions = [(of_rounds(over), of_rounds(under, "sdpa")) for over, under in zip(one, other, strict=True)]
            first, second = (ratio(*rows) for rows in occasions)
            assert first
            assert second
            holds += [abs(second.value - first.value) < each.margin for each in (first, second)]
    assert least <= fmean(holds) <= most


def test_a_sweep_against_its_repeat_has_no_regression():
    pairs = [pair for points in POINTS.values() for pair in points]
    sides = [
        [of_rounds(pair[side], point=f"{n}", comparison_id=f"occasion {side}") for n, pair in enumerate(pairs)]
        for side in (0, 1)
    ]
    for a, b in (sides, sides[::-1]):
        assert not any(match.regressed for match in compare(match_points(a, b), Tolerance()).matches)


@pytest.fixture
def drawn() -> Any:
    """A function that draws this many rounds of a kernel of 1 ms, as noisy as those on a CPU."""
    generator = np.random.default_rng(0)
    noise = np.concatenate(ON_A_CPU) * (3 / 2) ** 0.5  # deviations from the mean of three understate it by so much
    return lambda count: np.exp(generator.choice(noise, count)).tolist()


def turns(rounds: Rounds) -> list[Turn]:
    return [Turn([ms] * 10, 2, "perf_counter") for ms in rounds]


def test_equal_kernels_are_seldom_flagged_and_never_more_for_more_rounds(drawn):
    flagged = []
    for count in (3, 6, 12, 24):
        flagged.append(fmean(noisy(turns(drawn(count))) for _ in range(1500)))
    assert flagged == sorted(flagged, reverse=True)
    told_apart = fmean(
        judge(of_rounds(drawn(4)), of_rounds(drawn(4), "sdpa")).verdict in ("faster", "slower") for _ in range(1500)
    )
    assert told_apart <= 0.07


def test_a_brief_protocol_adds_rounds_until_few_points_are_noisy(drawn):
    def measured() -> list[Turn]:
        taken = turns(drawn(SHORT.min_rounds))
        while not settled(taken, [turns([1.0])], SHORT):
            taken += turns(drawn(1))
        return taken

    assert fmean(noisy(measured()) for _ in range(1500)) <= 0.07


def test_a_regression_is_told_from_what_occasions_differ_by():
    quiet = [1.0, 1.001, 0.999]
    for slower, regressions in ((1.03, 0), (1.08, 1)):
        a = [of_rounds(quiet, point=f"{n}", comparison_id="a") for n in range(20)]
        b = [of_rounds(quiet, point=f"{n}", comparison_id="b") for n in range(19)]
        b.append(of_rounds([slower * ms for ms in quiet], point="19", comparison_id="b"))
        assert sum(match.regressed for match in compare(match_points(a, b), Tolerance()).matches) == regressions


def test_occasions_have_heavy_tails():
    """As Student's t with 4 degrees of freedom, whose quantiles are 2.776 at 97.5% and 15.54 at 99.995%."""
    assert exp(spread.moved(1)) - 1 == pytest.approx(spread.SHOWN)
    assert spread.moved(500) == pytest.approx(spread.OCCASION / 2.776 * 15.54, rel=1e-3)
