"""The calibrated model against the measured rows of results/: those its constant was fitted on, and those held out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from committed import committed_checkout

from tflabench.conclusions import fitting
from tflabench.conclusions.model_error import families, judge
from tflabench.kernels.scalar.plan import hopper as plans
from tflabench.kernels.scalar.plan.tfla import Plan
from tflabench.rows.load import find_results
from tflabench.theory import calibrated, tfla
from tflabench.theory.calibrated import Judged
from tflabench.theory.constants import ROUND_TRIP_S
from tflabench.theory.launches import Chip, Launch

RESULTS = committed_checkout() / "results"
# Median absolute error in percent, on rows that no constant has seen, as `model-error results/h200 results/h100` names
# and prints it: after new rows, take its numbers, and those of docs/theory.md.
HELD_OUT = {
    ("H200 SXM", "fused exp"): 7.5,
    ("H200 SXM", "fused sig"): 9.4,
    ("H200 SXM", "tfla exp"): 3.5,
    ("H200 SXM", "tfla sig"): 4.7,
    ("H200 SXM", "unpipelined sig"): 10.4,
    ("H200 SXM", "all"): 6.2,
    ("H100 SXM", "fused exp"): 4.8,
    ("H100 SXM", "fused sig"): 8.7,
    ("H100 SXM", "tfla exp"): 7.5,
    ("H100 SXM", "tfla sig"): 10.1,
    ("H100 SXM", "unpipelined exp"): 22.9,
    ("H100 SXM", "unpipelined sig"): 7.6,
    ("H100 SXM", "all"): 8.9,
}
# What the calibrated model's error may be of the published one's. Kernels of Fig. 4 on an H100 are so near the roofs,
# which both models have, that the published one is off by 12% only.
OF_PUBLISHED = {"H200 SXM": 0.5, "H100 SXM": 0.75}
MISSED = "missed since 26 November: docs/decisions/2026-11-24-model-held-out.md"
TOLERANCE = 0.08  # percentage points; every mutation below moves some median by five times as much


@cache
def rows() -> tuple[Judged, ...]:
    folders = [results for kind in ("h200", "h100") for results in find_results(RESULTS / kind)]
    return judge(folders).judged


def medians(judged: tuple[Judged, ...]) -> dict[tuple[str, str], float]:
    found = families(judged)
    return {(family.gpu, family.kernels): 100 * (family.held_out.median or 0) for family in found}


def test_errors_on_rows_that_no_constant_has_seen():
    assert medians(rows()) == pytest.approx(HELD_OUT, abs=TOLERANCE)


def test_a_second_occasion_of_the_same_source_counts_no_point_again():
    (first,) = find_results(RESULTS / "h100" / "paper-fig5")
    rows = [row.model_copy(update={"run_id": "again", "started_at": "2026-11-28"}) for row in first.rows]
    again, anew = (
        replace(first, rows=[row.model_copy(update={"source_hash": source}) for row in rows])
        for source in (rows[0].source_hash, "another")
    )
    assert len(judge([first, again]).judged) == len(judge([first]).judged)
    assert len(judge([first, anew]).judged) == 2 * len(judge([first]).judged)


def test_rows_are_known_by_gpu_and_head_size():
    for row in rows():
        seen = row.device == "NVIDIA H200" and (row.problem.d_qk, row.problem.d_hv) == (128, 256)
        assert row.held_out is not seen
    (h100,) = {row.device for row in rows() if row.gpu.name == "H100 SXM"}
    assert h100 == "NVIDIA H100 80GB HBM3"
    assert all(family.fitted.rows == 0 for family in families(rows()) if family.gpu == "H100 SXM")


@pytest.mark.parametrize("gpu", OF_PUBLISHED)
def test_the_calibrated_model_is_that_much_better_than_the_published_one_where_neither_has_seen_a_row(gpu):
    (family,) = [family for family in families(rows()) if (family.gpu, family.kernels) == (gpu, "all")]
    assert family.held_out.median is not None
    assert family.published.median is not None
    assert family.held_out.median < OF_PUBLISHED[gpu] * family.published.median


def test_how_much_better_the_calibrated_model_is():
    found = {
        each.gpu: (each.held_out.median, each.published.median) for each in families(rows()) if each.kernels == "all"
    }
    assert found == {
        "H200 SXM": (pytest.approx(0.062, abs=1e-3), pytest.approx(0.200, abs=1e-3)),
        "H100 SXM": (pytest.approx(0.089, abs=1e-3), pytest.approx(0.124, abs=1e-3)),
    }


def test_the_stored_constant_is_what_its_rows_say():
    assert fitting.fit([row for row in rows() if not row.held_out]) == pytest.approx(ROUND_TRIP_S, rel=0.01)


def worse_by() -> dict[str, float]:
    """By how many percentage points a constant fitted on the other kind of GPU is worse than one fitted on this."""
    found = {(each.fitted_on, each.judged_on): each for each in fitting.cross(rows())}
    return {
        judged: 100 * (found[fitted, judged].median - found[judged, judged].median)
        for fitted, judged in (("H200 SXM", "H100 SXM"), ("H100 SXM", "H200 SXM"))
    }


@pytest.mark.xfail(reason=MISSED, strict=True)
@pytest.mark.parametrize(("judged", "most"), [("H100 SXM", 1.2), ("H200 SXM", 0.7)])
def test_either_gpu_predicts_the_other(judged, most):
    assert worse_by()[judged] < most


def test_how_well_either_gpu_predicts_the_other():
    assert worse_by() == pytest.approx({"H100 SXM": 3.3, "H200 SXM": 2.2}, abs=TOLERANCE)
    found = {(each.fitted_on, each.judged_on): each for each in fitting.cross(rows())}
    assert found["H200 SXM", "H200 SXM"].round_trip_s == pytest.approx(0.705e-6, rel=0.02)
    assert found["H100 SXM", "H100 SXM"].round_trip_s == pytest.approx(0.43e-6, rel=0.02)


def test_a_fit_finds_the_least_loss():
    some = [row for row in rows() if not row.held_out][::7]
    lines, found = fitting._Lines(some), fitting.fit(some)
    assert lines.loss(found) <= min(lines.loss(seconds) for seconds in np.geomspace(1e-8, 1e-5, 300)) + 1e-4


def test_a_fit_recovers_the_constant_of_made_up_times():
    made_up = []
    for row in rows()[:200]:
        chip = replace(row.chip, round_trip_s=0.4e-6)
        made_up.append(replace(row, measured=sum(calibrated.predict(row.problem, row.kernel, chip).values())))
    assert fitting.fit(made_up) == pytest.approx(0.4e-6, rel=2e-3)


def _without(name: str) -> Callable[[Launch, Chip], dict[str, float]]:
    times = Launch.times
    return lambda launch, chip: times(launch, chip) | {name: 0.0}


def _nothing_overlaps(launch: Launch, chip: Chip) -> dict[str, float]:
    return TIMES(replace(launch, resident=1, roles=1), chip)


def _with_wide_products(plan: Plan, name: str, tiling=tfla.tiling) -> tfla.Tiles:
    return replace(tiling(plan, name), narrow=1 << 20)


TIMES = Launch.times


@pytest.mark.parametrize(
    ("where", "name", "wrong"),
    [
        (Launch, "times", _without("waiting")),
        (Launch, "times", _without("pointwise")),
        (Launch, "times", _without("idle multiprocessors")),
        (Launch, "times", _without("recomputation")),
        (Launch, "times", _without("causal waste")),
        (Launch, "times", _without("states")),
        (Launch, "times", _nothing_overlaps),
        (tfla, "tiling", _with_wide_products),  # the product with the state waits once
        (tfla, "ENDS", 20),
        (calibrated, "STATE_BYTES", {"tfla": 4, "unpipelined": 4}),
        (tfla, "EXP_LANES", 1),
        (plans.Walk, "pieces", 1),
        (tfla, "UNPIPELINED", replace(tfla.UNPIPELINED, outer=64)),
    ],
)
def test_a_wrong_model_shows_in_the_errors(where: Any, name: str, wrong: Any, monkeypatch):
    for remembered in ("forward", "backward"):  # no plan, which would keep what is wrong in it
        monkeypatch.setattr(plans, remembered, getattr(plans, remembered).__wrapped__)
    monkeypatch.setattr(where, name, wrong)
    again = tuple(replace(row, terms=calibrated.predict(row.problem, row.kernel, row.chip)) for row in rows())
    moved = {key: abs(median - HELD_OUT[key]) for key, median in medians(again).items()}
    assert max(moved.values()) > 5 * TOLERANCE
