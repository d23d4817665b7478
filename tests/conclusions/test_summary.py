"""What a sweep says while it runs and at its end: which ratios, and which rows cannot be trusted as they are."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from synthetic import APART, IN_FULL, IN_PART, row

from tflabench.conclusions.ratio import ratio
from tflabench.conclusions.summary import changes, closing, contests, ending
from tflabench.rows import spread
from tflabench.rows.labels import size
from tflabench.rows.schema import Row

FOLDER = Path("results") / "h200" / "quick"


def said(rows: list[Row], width: int = 160, full: bool = False) -> str:
    """Return what a console shows at the end of a sweep with these rows."""
    console = Console(file=io.StringIO(), width=width)
    files = [FOLDER / "rows.csv", FOLDER / "figures" / "runtime.png"]
    console.print(ending(rows, files, f"tflabench plot {FOLDER}", full=full))
    return console.file.getvalue()  # type: ignore[attr-defined]


def words(text: str) -> str:
    return " ".join(text.replace("─", "").split())


@pytest.mark.parametrize(("of_ours", "of_theirs"), APART.values(), ids=APART)
def test_rows_that_are_not_comparable_have_no_ratio(of_ours, of_theirs):
    ours, theirs = row(ms=1.0, **of_ours), row("sdpa", ms=2.0, **of_theirs)
    assert ratio(theirs, ours) is ratio(ours, theirs) is None
    assert closing([ours, theirs]) is None
    text = said([ours, theirs])
    assert "2 of 2 points measured" in text
    assert "sdpa" not in text  # neither the best nor the next best


def test_provisional_rows_of_an_interrupted_sweep_are_left():
    rows = [row(), row("sdpa", seq_len=8192, closed=False)]
    console = Console(file=io.StringIO(), width=160)
    console.print(ending(rows, [], "tflabench plot x", left=3))
    text = words(console.file.getvalue())  # type: ignore[attr-defined]
    assert "1 of 4 points measured, 3 left: the same command measures them (1 of these have provisional rows)" in text
    assert "sdpa" not in text


def test_gates_that_are_not_usual_are_part_of_the_size():
    assert size(row(gates="closing")) == f"{size(row())} closing gates"


def test_two_measurements_of_one_point_have_a_ratio_and_wrong_results_none():
    assert ratio(row(ms=2.0, comparison_id="later"), row(ms=1.0)) == (2.0, pytest.approx(0.02, abs=0.01), "")
    for wrong in (row("sdpa", ms=0.1, status="wrong"), row("sdpa", ms=None), row("sdpa", ms_median=float("nan"))):
        assert ratio(wrong, row()) is ratio(row(), wrong) is None
        assert contests([row(), wrong]) == [[row()]]


def test_a_throttled_row_has_a_bound_as_the_quicker_and_no_ratio_as_the_slower():
    throttled, clear = row(ms=1.0, throttled=True), row("sdpa", ms=2.0)
    assert (ratio(clear, throttled) or ())[::2] == (2.0, "≥")
    assert (ratio(throttled, clear) or ())[::2] == (0.5, "≤")
    slow = row("sdpa", ms=2.0, throttled=True)
    assert ratio(slow, row()) is ratio(row(), slow) is None
    assert (ratio(slow, row(), allow_throttled=True) or ())[::2] == (2.0, "")


def test_a_drift_that_both_had_in_common_is_no_uncertainty_of_their_ratio():
    first = row(ms=1.0, details={"ms_by_round": [1.0, 1.1, 1.2]})
    alike, apart = (row("sdpa", ms=2.0, details={"ms_by_round": [2.0, 2.2, last]}) for last in (2.4, 2.64))
    least, more = ratio(alike, first), ratio(apart, first)
    assert least == (2.0, pytest.approx(2 * spread.OCCASION), "")
    assert least
    assert more
    assert more.margin > 10 * least.margin


def test_a_single_round_has_only_the_spread_of_its_samples():
    one, other = (
        row(name, ms, ms_p20=0.9 * ms, ms_p80=1.1 * ms, details={"ms_by_round": [ms]})
        for name, ms in (("tfla_sig_xl", 1.0), ("sdpa", 2.0))
    )
    over = ratio(other, one)
    assert over
    assert 0.1 < over.margin < 0.3


def test_the_fastest_row_meets_the_next_best_of_another_owner():
    rows = [row("hopper_sig", ms=1.0), row("tfla_sig_xl", ms=1.5), row("fla_gla", ms=3.0, tuned=IN_FULL)]
    assert words(said(rows)).endswith(
        "chunk ms of bound of roofline GiB next best of others hopper_sig 128 1 30% 40% 1.00 3.00 ± 0.03x fla_gla "
        "3 of 3 points measured written: results/h200/quick/ (1 file), results/h200/quick/figures/ (1 file) "
        "draw again: tflabench plot results/h200/quick"
    )
    assert "1.50 ± 0.01x tfla_sig_xl" in said(rows[:2])
    assert closing(rows) == (
        "forward, B=16 T=4096 heads 16x128/256: hopper_sig (L=128) 1 ms, 1.50 ± 0.01 times faster than "
        "tfla_sig_xl (L=128)"
    )


def test_a_ratio_that_does_not_leave_one_is_called_noise():
    assert (closing([row(ms=1.0), row("sdpa", ms=1.001)]) or "").endswith(
        "times faster than sdpa (L=128), within noise"
    )
    assert (closing([row(ms=1.0), row("sdpa", ms=1.1)]) or "").endswith("times faster than sdpa (L=128)")
    assert "x sdpa, within noise" in words(said([row(ms=1.0), row("sdpa", ms=1.001)]))
    assert "within noise" not in said([row(ms=1.0), row("sdpa", ms=1.1)])


def test_a_sequence_on_one_device_and_on_two_are_told_apart():
    on_two = words(said([row(ms=2.0), row(ms=1.0, ranks=2)]))
    assert "ranks fastest" in on_two
    assert "1 tfla_sig_xl" in on_two
    assert "2 tfla_sig_xl" in on_two
    assert "ranks" not in said([row()])
    assert "gates" not in said([row(gates=None)])


def test_kernels_of_one_function_meet_each_other_where_a_comparison_has_several_functions():
    of_kda = [row(name, ms, gate=None, heads=32, d_hv=128) for name, ms in (("cudnn_kda", 2.0), ("fla_kda", 6.0))]
    first, second = (closing([row("hopper_sig", 1.0), *of_kda, row("tfla_sig_xl", 1.5)]) or "").splitlines()
    assert "1.50 ± 0.01 times faster than tfla_sig_xl" in first
    assert "heads 32x128: cudnn_kda" in second
    assert "3.00 ± 0.03 times faster than fla_kda" in second


def test_a_row_apart_or_throttled_leaves_the_ratios_of_the_others():
    for apart in ({"tuned": IN_PART}, {"throttled": True}):
        rows = [row(ms=1.0), row("sdpa", ms=2.0, **apart), row("fla_gla", ms=3.0)]
        assert "3.00 ± 0.03x fla_gla" in said(rows)
        assert "2.00" not in said(rows)
        assert "3.00 ± 0.03 times faster than fla_gla (L=128)" in (closing(rows) or "")
    assert (closing(rows) or "").endswith("; left out, throttled: sdpa (L=128)")
    assert "† no ratio" in said(rows[:2])
    bound = [row(ms=1.0, throttled=True), row("sdpa", ms=2.0)]
    assert "1†" in said(bound)
    assert "≥2.00 ± 0.02x sdpa" in said(bound)
    assert "within noise" not in said(bound)
    assert "x sdpa, within noise" in words(said([bound[0], row("sdpa", ms=1.001)]))
    assert (closing(bound) or "").endswith("1 ms, at least 2.00 ± 0.02 times faster than sdpa (L=128)")


@pytest.mark.parametrize("width", [40, 60, 100, 160])
def test_columns_are_dropped_and_no_number_is_cut(width):
    rows = [
        row(name, ms=12.3 + n, seq_len=65536 // batch, batch=batch)
        for n, name in enumerate(("hopper_sig", "fla_simple_gla_fused"))
        for batch in (1, 64)
    ]
    lines = said(rows, width).splitlines()
    assert max(map(len, lines)) <= width
    assert sum("12.3" in line.split() for line in lines) == 2
    assert ("1.08 ± 0.01x" in said(rows, width)) == (width > 40)


def test_names_and_reasons_are_no_markup_and_obey_no_terminal():
    text = said([row("[bold]x[/bold]"), row("esc\x1b[31m", ms=2.0), row("y\nz", ms=None, reason="[link=a]b\r[/link]")])
    assert "[bold]x[/bold]" in text
    assert "oom (1x)  y z: [link=a]b [/link]" in text
    assert "\x1b" not in text


def test_kinds_of_gpu_are_problems_of_their_own():
    """A sweep over two kinds: the slower one's rows are no rivals of the faster one's."""
    kinds = {"NVIDIA H100 80GB HBM3": 1.0, "NVIDIA H200": 0.5}
    rows = [
        row(name, ms=ms * speed, device=device, comparison_id=device)
        for device, speed in kinds.items()
        for name, ms in (("hopper_sig", 1.0), ("nxai_sig_xl", 3.0))
    ]
    lines = [line for line in said(rows).splitlines() if "hopper_sig" in line]
    assert [line.startswith(device) and "3.00 ±" in line for line, device in zip(lines, kinds, strict=True)] == [
        True
    ] * 2


def test_what_numbers_must_be_read_with_is_counted():
    rows = [
        row(noisy=True, throttled=True, percent_of_bound=130.0),
        row(ms=0.2, host_ms=0.5, percent_of_own_roofline=138.2),
        row(noisy=True, ceilings="datasheet: NVIDIA"),
    ]
    text = said(rows)
    for note in (
        "noisy (2x)",
        "throttled (1x)",
        "enqueued slower than run (up to 2.5 times): tfla_sig_xl (1x)",
        "above the bound (1x, up to 130%)",
        "above their own roofline (1x, up to 138%)",
        "datasheet ceilings (1x)",
    ):
        assert f"  {note}: " in text
    assert "x): " not in said([row()])


@pytest.mark.parametrize(
    ("now", "drift", "verdict"),
    [
        (0.9, 1.0, "0.90 times: faster"),
        (1.1, 1.0, "1.10 times: slower"),
        (0.9, 0.85, "0.90 times: within the 18% by which occasions differ"),
        (1.01, 1.0, "1.01 times: within the 4.5% by which occasions differ"),
    ],
)
def test_a_changed_kernel_has_a_verdict_beyond_what_occasions_differ_by(now, drift, verdict):
    """What has not changed, and took turns with it both times, shows that."""
    before = [row("mine", 1.0, plugin_hash="1"), row("sdpa", 2.0), row("reference_sig", 1.0, comparison_id="else")]
    after = [row("mine", now, plugin_hash="2"), row("sdpa", 2.0 * drift)]
    after = [each.model_copy(update={"comparison_id": "later"}) for each in after] + [before[2]]
    (line,) = changes({each.point: each for each in before}, after)
    assert line.startswith("mine")
    assert line.endswith(verdict)
    assert changes({}, after) == []
