"""`tflabench compare`: every verdict, which rows meet, what is said before, and when a regression ends with 1.

And of which rows any ratio may be taken.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic import APART, IN_FULL, RUN, row, write
from typer.testing import CliRunner

from tflabench.cli.main import app
from tflabench.conclusions import compare as comparison
from tflabench.conclusions.campaigns import campaigns
from tflabench.conclusions.compare import (
    Tolerance,
    judge,
    match_implementations,
    match_points,
    threshold_of,
)
from tflabench.conclusions.ratio import comparable, fastest, questions
from tflabench.rows.load import find_results
from tflabench.rows.spread import SHOWN

runner = CliRunner()


def compare(*arguments, code: int = 0):
    done = runner.invoke(app, ["compare", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


def judged(a: Path, b: Path, *options) -> dict:
    return json.loads(runner.invoke(app, ["compare", str(a), str(b), "--json", *options]).stdout)


@pytest.mark.parametrize(
    ("b", "verdict", "reason"),
    [
        (row(ms=1.005), "same", None),
        (row(ms=0.9), "faster", None),
        (row(ms=1.1), "slower", None),
        (row(ms=1.1, ms_p20=0.7, ms_p80=1.5), "ambiguous", "B / A is 1.1 ± 22%"),
        (row(ms=2.0, rounds=2), "ambiguous", "2 rounds, 3 needed"),
        (row(ms=2.0, rounds=1, samples=300), "ambiguous", "1 round, 3 needed"),
        (row(ms=2.0, tuned={"tried": 149, "configurations": 314}), "ambiguous", "tuned in part in B"),
        (row(ms=2.0, throttled=True), "ambiguous", "throttled in B"),
        (row(ms=None), "broken", "oom in B: no memory"),
        (row(ms=0.1, status="wrong", reason="dq is off"), "broken", "wrong in B: dq is off"),
        (row(ms=None, status="unsupported", reason="not here"), "missing", "unsupported in B: not here"),
    ],
)
def test_verdicts(b, verdict, reason):
    found = judge(row(), b)
    assert (found.verdict, found.reason) == (verdict, reason)


def test_what_is_different_between_occasions_is_more_than_within_one_and_more_among_many_points():
    other = row(comparison_id="another")
    apart = [threshold_of(row(), b, Tolerance(points=n)).value for b, n in ((row(), 1), (other, 1), (other, 10_000))]
    assert 0 < apart[0] < apart[1] < apart[2]


def few(*ms_by_round: float, **changes) -> Any:
    """A row of 18 samples in rounds of these medians."""
    details = {"ms_by_round": list(ms_by_round)}
    shared = {"samples": 18, "rounds": len(ms_by_round), "details": details}
    return row(ms=sorted(ms_by_round)[len(ms_by_round) // 2], **shared, **changes)


@pytest.mark.parametrize(
    ("b", "verdict", "reason"),
    [
        (few(2.0, 2.01, 2.02), "slower", None),
        (few(0.5, 0.51, 0.52), "faster", None),
        (few(1.0, 1.003, 1.004), "same", None),
        (few(2.0, 2.01), "ambiguous", "2 rounds, 3 needed"),
        (few(0.99, 2.0, 2.01), "ambiguous", "B / A is 2 ± 1e+02%"),
        (few(1.0, 1.001, 1.3), "ambiguous", "B / A is 1 ± 37%"),
    ],
)
def test_few_samples_do_where_rounds_agree(b, verdict, reason):
    a = few(1.0, 1.0, 1.002)
    found = judge(a, b)
    assert (found.verdict, found.reason) == (verdict, reason)


def test_a_few_noisy_rounds_say_little_of_one_of_many_points():
    """Student's quantile of 2 degrees of freedom is 4.3 for one point, and 45 for one of a hundred."""
    pair = few(1.0, 1.01, 1.02), few(1.1, 1.14, 1.15)
    assert [judge(*pair, Tolerance(points=points)).verdict for points in (1, 100)] == ["slower", "ambiguous"]
    quiet = few(1.0, 1.0, 1.001), few(1.1, 1.1, 1.102)
    assert judge(*quiet, Tolerance(points=100)).verdict == "slower"


def test_equal_times_are_the_same_by_any_threshold():
    same = few(1.0, 1.01, 1.02)
    assert judge(same, same, Tolerance(threshold=0.0)).verdict == "same"


def test_a_point_that_failed_before_is_missing_and_no_regression():
    found = judge(row(ms=None), row())
    assert found.verdict == "missing"
    assert found.ratio is None
    assert not found.regressed


def test_wrong_results_have_a_time_and_no_ratio():
    wrong = row(ms=0.1, status="wrong", reason="dq is off")
    for pair in ((row(), wrong), (wrong, row())):
        found = comparison.compare(match_points([pair[0]], [pair[1]]), Tolerance())
        assert (found.matches[0].ratio, found.matches[0].memory_ratio, found.geometric_mean) == (None, None, None)
    assert fastest([wrong, row()]) == row()
    assert fastest([wrong]) == wrong
    assert fastest([row(ms=None, status="unsupported"), wrong]) == wrong


def test_rows_of_one_closed_comparison_are_comparable():
    assert comparable(row(), row("sdpa"), row("fla_gla", tuned=IN_FULL))
    assert comparable(row(), row(chunk_size=64))
    assert not comparable(row(), row(seq_len=512))
    assert not comparable(row(), row("sdpa", ms=None))
    assert not comparable(row(), row("sdpa", status="wrong"))


@pytest.mark.parametrize(("of_ours", "of_theirs"), APART.values(), ids=APART)
def test_rows_apart_are_not_comparable(of_ours, of_theirs):
    ours, theirs = row(**of_ours), row("sdpa", **of_theirs)
    assert not comparable(ours, theirs)
    assert not comparable(theirs, ours)
    assert match_implementations([ours], [theirs]) == ([], [ours], [theirs])


def test_rules_can_be_relaxed():
    throttled = row(ms=2.0, throttled=True)
    assert judge(row(), throttled, Tolerance(allow_throttled=True)).verdict == "slower"
    assert judge(row(), row(ms=1.005), Tolerance(threshold=0.001)).verdict == "slower"


@pytest.mark.parametrize(("ms", "threshold", "regression"), [(1.04, 0.05, False), (1.06, 0.05, True), (None, 9, True)])
def test_regressions_are_slower_than_the_threshold_or_broken(ms, threshold, regression):
    assert judge(row(), row(ms=ms), Tolerance(threshold)).regressed == regression


UUIDS: tuple[dict[str, Any], ...] = ({"gpu_uuid": "GPU-1"}, {"gpu_uuid": "GPU-2"})
LATER: dict[str, Any] = {"comparison_id": "later"}
RELATIONS = {
    "turns in one comparison": ({}, {}, 0.01),
    "turns in one comparison on one GPU": (UUIDS[0], UUIDS[0], 0.01),
    "a comparison that is not closed": (UUIDS[0], {**UUIDS[0], "closed": False}, SHOWN),
    "two runs on one GPU": (UUIDS[0], {**UUIDS[0], **LATER}, SHOWN),
    "two GPUs": (UUIDS[0], {**UUIDS[1], **LATER}, SHOWN),
    "rows of no comparison": ({"comparison_id": None}, {"comparison_id": None}, SHOWN),
}


@pytest.mark.parametrize(("of_a", "of_b", "threshold"), RELATIONS.values(), ids=RELATIONS)
def test_the_threshold_is_what_two_measurements_of_one_kernel_differ_by(of_a, of_b, threshold):
    for percent in (0.5, 1.5, 4.0, 5.0):
        verdicts = ("same", "same") if percent / 100 < threshold else ("slower", "faster")
        a, b = row(**of_a), row(ms=1 + percent / 100, **of_b)
        assert (judge(a, b).verdict, judge(b, a).verdict) == verdicts
        assert judge(a, b).threshold.value == pytest.approx(threshold)


def test_an_own_threshold_holds_everywhere():
    assert judge(row(), row(ms=1.005), Tolerance(threshold=0.0)).verdict == "slower"
    for of_a, of_b, _ in RELATIONS.values():
        a, b = row(**of_a), row(ms=1.06, **of_b)
        assert [judge(a, b, Tolerance(threshold)).verdict for threshold in (0.05, 0.07)] == ["slower", "same"]


def test_the_output_says_which_threshold_held_and_why(tmp_path):
    a = write(tmp_path / "a", [row(**UUIDS[0]), row(seq_len=512, **UUIDS[0]), row(seq_len=1024), row("sdpa", ms=None)])
    again = [row(ms=1.015, **UUIDS[0], **LATER), row(seq_len=512, ms=1.025, **UUIDS[1], **LATER)]
    b = write(tmp_path / "b", [*again, row(seq_len=1024, ms=1.015), row("sdpa")])
    found = judged(a, b)
    assert [(p["threshold"], p["verdict"]) for p in found["points"]] == [
        (pytest.approx(SHOWN), "same"),
        (pytest.approx(SHOWN), "same"),
        (0.01, "slower"),
        (0.01, "missing"),
    ]
    assert found["thresholds"][0] == {"threshold": 0.01, "why": "within one comparison", "points": 1}


def test_folders_above_several_meet_by_name_and_then_by_point(tmp_path):
    write(tmp_path / "before" / "fig4", [row()])
    write(tmp_path / "before" / "fig5", [row(seq_len=512)])
    write(tmp_path / "after" / "fig4", [row(ms=2.0)])
    write(tmp_path / "after" / "old", [row(seq_len=512, ms=3.0), row(ms=9.0)])
    write(tmp_path / "after" / "new" / "er", [row(seq_len=512, ms=4.0, started_at="2026-11-22T12:00:00+00:00")])
    found = judged(tmp_path / "before", tmp_path / "after")
    assert [(point["seq_len"], point["ratio"]) for point in found["points"]] == [(4096, 2.0), (512, 4.0)]
    one = judged(tmp_path / "before" / "fig4", tmp_path / "after" / "old")
    assert [(point["seq_len"], point["ratio"]) for point in one["points"]] == [(4096, 9.0)]
    assert [(p["seq_len"], p["ratio"]) for p in judged(tmp_path / "before", tmp_path / "after" / "old")["points"]] == [
        (4096, 9.0),
        (512, 3.0),
    ]


def test_kinds_of_gpu_meet_their_own_kind_and_another_only_where_that_is_all_there_is(tmp_path):
    h100, h200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
    for name, device, ms in (("h100", h100, 2.0), ("h200", h200, 1.0)):
        later = "2026-11-22T12:00:00+00:00" if device == h100 else "2026-11-21T12:00:00+00:00"
        write(tmp_path / "both" / name, [row(ms=ms, device=device, started_at=later)])
    write(tmp_path / "later", [row(ms=1.0, device=h200)])
    write(tmp_path / "one", [row(ms=2.0, device=h100)])
    (point,) = judged(tmp_path / "both", tmp_path / "later")["points"]
    assert (point["verdict"], point["ratio"]) == ("same", 1.0), "of the H200 alone, though the H100 came last"
    (asked,) = judged(tmp_path / "one", tmp_path / "later")["points"]
    assert asked["ratio"] == 0.5
    assert "Different machines" in compare(tmp_path / "one", tmp_path / "later").output


def test_two_implementations_below_a_folder_meet_within_each_results_folder(tmp_path):
    write(tmp_path / "one", [row(), row("nxai_sig_xl", ms=2.0)])
    write(tmp_path / "other", [row(seq_len=512), row("nxai_sig_xl", seq_len=512, ms=None)])
    write(tmp_path / "third", [row("nxai_sig_xl", seq_len=1024)])
    done = compare("tfla_sig_xl", "nxai_sig_xl", "--in", tmp_path, "--json", code=1)
    found = json.loads(done.stdout)
    assert [(p["seq_len"], p["verdict"]) for p in found["points"]] == [(4096, "slower"), (512, "broken")]
    assert len(found["only_b"]) == 1


def test_points_of_two_folders_meet_by_identity():
    a = [row(), row(seq_len=512), row("sdpa")]
    b = [row(ms=2), row(seq_len=1024)]
    pairs, only_a, only_b = match_points(a, b)
    assert [(left.ms_median, right.ms_median) for left, right in pairs] == [(1.0, 2.0)]
    assert [r.point for r in only_a] == [a[1].point, a[2].point]
    assert only_b == [b[1]]


def test_heads_cut_differently_meet_where_each_has_one_cut():
    attention = [row("sdpa", heads=32, d_qk=128, d_hv=128, chunk_size=None)]
    assert match_implementations([row()], attention).pairs == [(row(), attention[0])]
    two_cuts = [row(), row(heads=32, d_qk=128, d_hv=128)]
    assert match_implementations(two_cuts, attention) == ([(two_cuts[1], attention[0])], [two_cuts[0]], [])


def test_shared_chunk_sizes_meet_else_the_fastest_ones():
    ours = [row(chunk_size=size, ms=ms) for size, ms in ((64, 3), (128, 1), (256, 2))]
    theirs = [row("nxai_sig_xl", chunk_size=size, ms=4) for size in (64, 128)]
    assert match_implementations(ours, theirs).pairs == [(ours[0], theirs[0]), (ours[1], theirs[1])]
    without = [row("sdpa", chunk_size=None)]
    assert match_implementations(ours, without).pairs == [(ours[1], without[0])]
    failed = [row("sdpa", chunk_size=None, ms=None)]
    assert match_implementations(ours, failed).pairs == [(ours[1], failed[0])]
    wrong = [row("sdpa", chunk_size=64, ms=0.1, status="wrong"), row("sdpa", chunk_size=512, ms=2)]
    assert match_implementations(ours[1:], wrong).pairs == [(ours[1], wrong[1])]


def test_another_length_pass_or_dtype_is_another_question():
    rows = [row(), row(seq_len=512), row(pass_="fwbw"), row(dtype="float32"), row(batch=1)]
    assert sorted(map(len, questions(rows))) == [1] * 5


def test_heads_of_q_that_others_share_are_a_question_of_their_own():
    rows = [row("reference_gla"), row("reference_gla", heads_qk=4), row("tfla_gla_xl")]
    assert sorted(map(len, questions(rows))) == [1, 2]


def test_weaker_gates_of_another_operation_are_the_same_question_at_several_sizes():
    sizes = [{"heads": heads, "d_hv": 4096 // heads, "d_qk": 4096 // heads} for heads in (64, 128)]
    both = [
        row(name, gates=gates, **size)
        for size in sizes
        for name, gates in (("tfla_sig_xl", "usual"), ("fla_gla", "weak"))
    ]
    assert sorted(map(len, questions(both))) == [2, 2]
    stronger = row("fla_gla", gates="strong", **sizes[0])
    assert sorted(map(len, questions([*both, stronger]))) == [1, 1, 1, 2], "its strengths are questions of their own"


def test_rows_of_other_versions_are_other_campaigns(tmp_path):
    same, newer = {**RUN, "arguments": ["sweep"]}, {**RUN, "packages": {"torch": "2.12.0", "triton": "3.6.0"}}
    rows = [row(), row(seq_len=512, run_id="again"), row(seq_len=1024, run_id="newer")]
    write(tmp_path / "fig4", rows, again=same, newer=newer)
    found = campaigns(find_results(tmp_path))
    assert [[r.seq_len for r in campaign.rows] for campaign in found] == [[4096, 512], [1024]]
    assert [set(campaign.runs) for campaign in found] == [{"run", "again"}, {"newer"}]


def test_a_regression_ends_with_1_and_is_named(tmp_path):
    a = write(tmp_path / "a", [row(), row(seq_len=512)])
    b = write(tmp_path / "b", [row(ms=1.2), row(seq_len=512)])
    done = compare(a, b, code=1)
    assert "1 of 2 points regress, the worst" in done.stderr
    assert "takes 1.20 times as long" in done.stderr
    assert "1 same, 1 slower" in done.stdout
    compare(a, b, "--threshold", "25%")
    compare(a, b, "--threshold", "0.25")
    compare(b, a)


def test_json_has_every_point(tmp_path):
    a = write(tmp_path / "a", [row(), row(seq_len=512), row(seq_len=1024)])
    b = write(tmp_path / "b", [row(ms=0.5), row(seq_len=512, ms=None), row(seq_len=2048)])
    found = judged(a, b)
    assert [(p["seq_len"], p["verdict"], p["regression"]) for p in found["points"]] == [
        (4096, "faster", False),
        (512, "broken", True),
    ]
    assert found["points"][0]["ratio"] == found["geometric_mean_ratio"] == pytest.approx(0.5)
    assert found["counts"]["broken"] == 1
    assert found["differences"] == {}
    assert len(found["only_a"]) == len(found["only_b"]) == 1


def test_the_mean_is_over_what_is_judged_and_what_ran_nowhere_is_one_line(tmp_path):
    nowhere = [row(seq_len=n, ms=None, status="unsupported") for n in (8, 16)]
    a = write(tmp_path / "a", [row(), row(seq_len=512), *nowhere])
    b = write(tmp_path / "b", [row(ms=0.5), row(seq_len=512, ms=0.1, throttled=True), *nowhere])
    said = " ".join(compare(a, b).stdout.split())  # lines are as wide as the terminal
    assert "B took 0.500 times as long as A (geometric mean of 1 points)" in said
    assert f"2 points ran on neither side, among them {nowhere[0].point}" in said
    assert said.count("unsupported") == 0
    assert len(judged(a, b)["points"]) == 4


def test_other_gpus_and_versions_are_said_before_anything_is_compared(tmp_path):
    other = {**RUN, "device": "NVIDIA A100", "packages": {"torch": "2.11.0", "triton": "3.9.0"}}
    a = write(tmp_path / "a", [row()])
    b = write(tmp_path / "b", [row(ms=1.1, device="NVIDIA A100", run_id="other")], other=other)
    done = compare(a, b, "--threshold", "50%")
    assert "A ran on NVIDIA H200, B on NVIDIA A100" in done.stderr
    assert "triton 3.6.0 in A, 3.9.0 in B" in done.stderr
    assert "driver" not in done.stderr
    assert judged(a, b)["differences"]["triton"] == {"a": "3.6.0", "b": "3.9.0"}
    nothing_shared = write(tmp_path / "c", [row(seq_len=8, device="NVIDIA A100")])
    assert "A100" in compare(a, nothing_shared, code=2).stderr.splitlines()[0]


@pytest.mark.parametrize(("of_ours", "of_theirs"), APART.values(), ids=APART)
def test_two_implementations_that_are_apart_have_no_ratio(tmp_path, of_ours, of_theirs):
    apart = row(**of_ours), row("nxai_sig_xl", ms=2.0, **of_theirs)
    done = compare("tfla_sig_xl", "nxai_sig_xl", "--in", write(tmp_path / "apart", [*apart]), code=2)
    (line,) = done.stderr.strip().splitlines()
    assert "no point was measured of both in one comparison, tuned in full" in line
    beside = row(seq_len=512), row("nxai_sig_xl", ms=3.0, seq_len=512)
    folder = write(tmp_path / "some", [*apart, *beside])
    arguments = ["tfla_sig_xl", "nxai_sig_xl", "--in", str(folder)]
    assert "B took 3.000 times as long as A" in compare(*arguments, code=1).stdout
    found = json.loads(compare(*arguments, "--json", code=1).stdout)
    assert [(point["seq_len"], point["ratio"]) for point in found["points"]] == [(512, 3.0)]
    assert (found["only_a"], found["only_b"]) == ([apart[0].point], [apart[1].point])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{a}", "{old}"], "row schema 99 and this version reads 4: "),
        (["{a}", "{far}"], "none in common"),
        (["{a}", "{b}", "--threshold", "5"], "--threshold is '5'"),
        (["tfla_sig_xl", "tfla_sig_xl", "--in", "{a}"], "two implementations"),
        (["tfla_sig_xl", "sdpa", "--in", "{a}", "--impl", "tfla*"], "--impl is for two folders"),
    ],
)
def test_bad_input_is_one_line_and_2(tmp_path, arguments, says):
    places = {
        "a": write(tmp_path / "a", [row()]),
        "b": write(tmp_path / "b", [row()]),
        "far": write(tmp_path / "far", [row(seq_len=8)]),
        "empty": write(tmp_path / "empty", []),
        "old": write(tmp_path / "old", []),
        "missing": tmp_path / "missing",
    }
    (places["old"] / "journal.jsonl").write_text('{"schema_version": 99}\n')
    done = compare(*(word.format(**places) for word in arguments), code=2)
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    assert says in line
