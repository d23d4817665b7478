"""What a sweep says while it runs and at its end: which ratios, and which rows cannot be trusted as they are."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text
from synthetic import APART, IN_FULL, IN_PART, row

from tflabench.conclusions.contests import contests, faster
from tflabench.conclusions.summary import (
    NOISY_MEANS,
    Swept,
    best_table,
    closing,
    failures,
    full_ending,
    line,
    verdicts,
)
from tflabench.rows.schema import Row


def said(rows: list[Row]) -> str:
    """Return what a terminal shows at the end of a sweep with these rows and --full."""
    console = Console(file=io.StringIO(), width=200)
    console.print(full_ending(Swept(rows, [], "tflabench plot out")))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_fastest_row_of_a_comparison_meets_the_others():
    rows = [row(ms=1.0), row(ms=1.5, chunk_size=64), row("sdpa", ms=2.0), row("fla_gla", ms=3.0, tuned=IN_FULL)]
    text = said(rows)
    assert "2.00x sdpa" in text
    assert "forward, B=16 T=4096 heads 16x128/256: tfla_sig_xl (L=128) ran" in text
    assert "2.00 ± 0.00 times faster than sdpa (L=128)" in text
    assert "3.00 ± 0.00 times faster than fla_gla (L=128)" in text
    assert closing(rows) == (
        "forward, B=16 T=4096 heads 16x128/256: tfla_sig_xl (L=128) 1 ms, 2.00 ± 0.00 times faster than sdpa (L=128)"
    )


@pytest.mark.parametrize(("of_ours", "of_theirs"), APART.values(), ids=APART)
def test_rows_that_are_not_comparable_have_times_and_no_ratio(of_ours, of_theirs):
    rows = [row(ms=1.0, **of_ours), row("sdpa", ms=2.0, **of_theirs)]
    assert faster(*rows) is None
    assert closing(rows) is None
    text = said(rows)
    assert "1 ms" in text
    assert "2 of 2 points measured" in text
    assert "times faster" not in text
    assert "sdpa" not in text  # neither the best nor the next best


def test_a_row_apart_leaves_the_ratios_of_the_others():
    rows = [row(ms=1.0), row("sdpa", ms=2.0, tuned=IN_PART), row("fla_gla", ms=3.0)]
    text = said(rows)
    assert "3.00x fla_gla" in text
    assert "3.00 ± 0.00 times faster than fla_gla (L=128)" in text
    assert "sdpa" not in text
    assert "3.00 ± 0.00 times faster than fla_gla (L=128)" in (closing(rows) or "")


def test_a_comparison_of_one_implementation_closes_without_a_word():
    assert closing([row(), row(chunk_size=64), row("sdpa", ms=None)]) is None
    assert closing([row(ms=None)]) is None


def test_the_uncertainty_is_half_the_range_of_the_ratio_over_the_rounds():
    """A drift that both had in common is no uncertainty of their ratio; a single round has only its spread."""
    drifting = (
        row(ms=1.0, details={"ms_by_round": [1.0, 1.1, 1.2]}),
        row(ms=2.0, details={"ms_by_round": [2.0, 2.2, 2.4]}),
    )
    assert faster(*drifting) == (2.0, pytest.approx(0.0))
    apart = drifting[0], row(ms=2.0, details={"ms_by_round": [2.0, 2.2, 2.64]})
    assert faster(*apart) == (2.0, pytest.approx(0.1))
    single = [row(ms=ms, ms_p20=0.9 * ms, ms_p80=1.1 * ms, details={"ms_by_round": [ms]}) for ms in (1.0, 2.0)]
    assert faster(*single) == (2.0, pytest.approx(2 * (0.1**2 + 0.1**2) ** 0.5))


def test_wrong_results_take_part_in_no_contest_however_fast_they_came():
    rows = [row(ms=1.0), row("sdpa", ms=0.1, status="wrong", reason="forward is off by 0.3")]
    assert contests(rows) == [[rows[0]]]
    assert faster(*rows) is None
    assert "wrong (1x)  sdpa: forward is off by 0.3" in said(rows)


def test_a_line_says_what_to_know_of_a_time():
    assert (
        line(row(ms=2.0))
        == "tfla_sig_xl (L=128)  fw  B=16 T=4096 heads 16x128/256  bfloat16  2 ms  30% of the bound (own roofline 40%)"
    )
    assert line(row(ms=2.0, noisy=True, tuned=IN_FULL)).endswith("2 ms  30% of the bound (own roofline 40%)  noisy")
    assert line(row(ms=2.0, tuned=IN_PART)).endswith("(own roofline 40%)  tuned with 3 of 9 configurations")
    assert line(row(ms=2.0, status="wrong", reason="dq is off")).endswith("(own roofline 40%)  WRONG: dq is off")
    assert line(row(ms=None)).endswith("oom: no memory")


def test_a_line_leads_with_the_bound_and_says_where_the_ceilings_are_a_datasheets():
    assert line(row(percent_of_bound=None)).endswith("1 ms  own roofline 40%")
    assert line(row(ceilings="measured: calibrate")).endswith("1 ms  30% of the bound (own roofline 40%)")
    paper = row(ceilings="datasheet: NVIDIA")
    assert line(paper).endswith("1 ms  30% of the bound (own roofline 40%, datasheet ceilings)")
    (found,) = failures([paper, row(), row(ms=None, status="ok", ceilings="datasheet: NVIDIA")])
    assert found.startswith("datasheet ceilings (1x): the percentages are of rates that no machine reaches")


def test_the_table_has_both_percentages():
    text = said([row(seq_len=512), row(percent_of_bound=None)])
    head, first, second = (line.split() for line in text.splitlines()[:3])
    assert " ".join(head).startswith("pass size dtype best time of the bound own roofline memory")
    assert "30%" in first
    assert "40%" in first
    assert "30%" not in second


def test_flags_and_failures_are_counted():
    rows = [row(noisy=True), row(noisy=True, throttled=True), row(ms=None)]
    assert failures(rows) == [
        "oom (1x)  tfla_sig_xl: no memory",
        f"noisy (2x): {NOISY_MEANS}",
        "throttled (1x): the GPU held its clock back",
    ]


def test_rows_above_a_bound_are_named():
    assert failures([row(percent_of_own_roofline=99.9), row(percent_of_own_roofline=None)]) == []
    assert failures([row(percent_of_bound=130.0)])[0].startswith("above the bound (1x, up to 130%): the ceilings were")
    (found,) = failures([row(percent_of_own_roofline=101.0), row(percent_of_own_roofline=138.2), row()])
    assert found.startswith(
        "above their own roofline (2x, up to 138%): the ceilings were measured while the machine was busy"
    )
    assert "`tflabench calibrate` measures them again" in found


def test_calls_that_wait_for_the_host_are_named():
    """What the host needs is no part of a time, and hides behind it only where it is shorter."""
    rows = [row(ms=1.0, host_ms=0.5), row(ms=0.2, host_ms=0.5), row(ms=0.4, host_ms=0.5), row(ms=None, host_ms=None)]
    assert [line(one).count("host 0.5 ms") for one in rows] == [0, 1, 1, 0]
    assert failures(rows)[1:] == [
        "enqueued slower than run (2x, up to 2.5 times): tfla_sig_xl (2x): eager PyTorch waits for the host, a CUDA "
        "graph does not"
    ]


def test_the_note_on_the_host_names_the_implementations_of_the_rows_at_hand():
    rows = [
        row("hopper_sig", ms=0.2, host_ms=0.5),
        row("fla_gla", ms=0.2, host_ms=0.5),
        row("nxai_sig_xl", host_ms=0.5),
    ]
    (note,) = failures([*rows, row("hopper_sig", ms=0.4, host_ms=0.5, seq_len=512)])
    assert "hopper_sig (2x), fla_gla: eager" in note
    assert "nxai" not in note


# --- Throttled rows


SLOW, CLEAR, CLEARER = row("sdpa", ms=2.0, throttled=True), row("fla_gla", ms=3.0), row("fla_retention", ms=6.0)


def test_what_is_said_of_who_ran_faster_leaves_throttled_rows_out_by_name():
    ours = row(ms=1.0)
    assert verdicts([ours, SLOW, CLEAR]) == [
        "forward, B=16 T=4096 heads 16x128/256: tfla_sig_xl (L=128) ran",
        "  3.00 ± 0.00 times faster than fla_gla (L=128)",
        "  left out, throttled: sdpa (L=128)",
    ]
    assert (closing([ours, SLOW, CLEAR]) or "").endswith(
        "tfla_sig_xl (L=128) 1 ms, 3.00 ± 0.00 times faster than fla_gla (L=128); left out, throttled: sdpa (L=128)"
    )
    fast = row(ms=1.0, throttled=True)
    assert verdicts([fast, CLEAR, CLEARER]) == [
        "forward, B=16 T=4096 heads 16x128/256: tfla_sig_xl (L=128) ran",
        "  at least 3.00 ± 0.00 times faster than fla_gla (L=128)",
        "  at least 6.00 ± 0.01 times faster than fla_retention (L=128)",
    ]
    only = "forward, B=16 T=4096 heads 16x128/256: left out, throttled: sdpa (L=128)"
    assert verdicts([fast, SLOW]) == [only]
    assert closing([fast, SLOW]) == only
    assert (closing([fast, CLEAR]) or "").endswith("1 ms, at least 3.00 ± 0.00 times faster than fla_gla (L=128)")


def test_the_table_marks_throttled_times_once_explained_and_does_not_make_them_bold():
    text = said([row(ms=1.0, throttled=True), CLEAR, row(ms=2.0, seq_len=512), row("sdpa", ms=4.0, seq_len=512)])
    assert "1 ms†" in text
    assert "≥3.00x fla_gla" in text
    assert "2.00x sdpa" in text
    assert text.count("† the GPU held its clock back") == 1
    for throttled, style in ((True, ""), (False, "bold")):
        (best,) = best_table([row(ms=1.0, throttled=throttled)]).columns[3].cells
        assert isinstance(best, Text)
        assert best.style == style
    assert "†" not in said([row(ms=1.0), CLEAR])


def test_a_time_that_is_no_number_is_in_no_contest():
    rows = [row(ms=1.0), row("sdpa", ms=2.0, ms_median=float("nan")), row("fla_gla", ms=3.0, ms_median=None)]
    assert contests(rows) == [[rows[0]]]
    assert closing(rows) is None
    assert "nan" not in said([row(percent_of_bound=float("nan"), peak_bytes=None), *rows[1:]])


def test_names_in_the_full_ending_are_no_markup():
    text = said([row("[bold]x[/bold]"), row("[/red]", ms=2.0)])
    assert "[bold]x[/bold] (L=128)" in text
    assert "2.00x [/red] (L=128)" in text
