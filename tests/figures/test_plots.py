"""Figures say what the rows say: every point, band, missing point, unit and origin, before any renderer draws them."""

from __future__ import annotations

import numpy as np
import pytest
from figure_rows import RUN, SWEEPS, items, lengths, lit, made, row, source

from tflabench.figures import looks
from tflabench.figures.highlights import MOST
from tflabench.figures.model import Band, Bars, Cross, Curve


@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_makes_figures_with_units_and_few_highlights(name):
    for stem, figure in made(SWEEPS[name]).items():
        assert len(figure.rows), stem
        assert figure.title, stem
        assert figure.caption[-1].startswith("NVIDIA H200"), stem
        for panel in figure.panels:
            labels = [axis.label for axis in (panel.x, panel.y) if axis.label]
            assert all("[" in label or label == "data type" for label in labels), stem
            assert len({curve.name for curve in items(panel, Curve) if curve.label and curve.name}) <= MOST, stem


def test_runtime_draws_each_measured_point_once_where_the_rows_say():
    figure = made(SWEEPS["lengths"], ["runtime"])["runtime-seq_len"]
    for panel, pass_ in zip(figure.panels, ("fw", "fwbw"), strict=True):
        curves = items(panel, Curve)
        assert len(curves) == len({curve.name for curve in curves}) == 7
        for curve in curves:
            own = figure.rows[(figure.rows["implementation"] == curve.name) & (figure.rows["pass"] == pass_)]
            own = own.sort_values("seq_len")
            assert list(curve.x) == list(own["seq_len"])
            np.testing.assert_array_equal(curve.y, own["ms_median"].where(own["timed"]))
            assert list(curve.rows) == list(own.index)


def test_the_band_is_that_of_the_leading_kernel_and_named():
    figure = made(SWEEPS["one_pass"], ["runtime"])["runtime-seq_len"]
    (panel,) = figure.panels
    (band,) = items(panel, Band)
    own = figure.rows[figure.rows["implementation"] == "tfla_sig_xl"].sort_values("seq_len")
    np.testing.assert_array_equal(band.lower, own["model_ms_lower"])
    np.testing.assert_array_equal(band.upper, own["model_ms_upper"])
    assert [key.words for key in figure.keys] == ["bounds of tfla sig xl"]
    assert any("ceilings datasheet: NVIDIA" in line for line in figure.caption)


def test_missing_points_are_marked_named_and_break_the_line():
    figure = made(SWEEPS["lengths"], ["runtime"], highlight=["sdpa_math", "mamba2"])["runtime-seq_len"]
    crosses = [sorted(cross.x for cross in items(panel, Cross)) for panel in figure.panels]
    assert crosses == [[2**14, 2**15, 2**16], [2**13, 2**14, 2**15, 2**16]]
    assert [key.words for key in figure.keys if key.kind == "cross"] == ["no time"]
    assert "× oom: sdpa math fw at 16Ki, 32Ki, 64Ki; sdpa math fwbw at 8Ki, 16Ki, 32Ki, 64Ki" in figure.caption
    assert "○ wrong: mamba2 fwbw at 4Ki" in figure.caption
    assert np.isnan(lit(figure.panels[1])["sdpa_math"].y).tolist() == [False] * 4 + [True] * 4


def test_wrong_results_share_a_line_however_wrong_they_are():
    reasons = {12: "forward is off by 0.008, 0.0049 allowed", 13: "forward is off by 0.012, 0.0048 allowed; dq is off"}
    failed = [
        row("mamba2", seq_len=2**power, batch=2 ** (16 - power), status="wrong", reason=reason)
        for power, reason in reasons.items()
    ]
    figure = made([*failed, *lengths(("tfla_sig_xl",), ("fw",))], ["runtime"])["runtime-seq_len"]
    assert "○ wrong: mamba2 fw at 4Ki, 8Ki (forward is off by 0.008, 0.0049 allowed)" in figure.caption


def test_noisy_points_are_hollow():
    figure = made(SWEEPS["lengths"], ["runtime"])["runtime-seq_len"]
    hollow = {
        name: [x for x, open_ in zip(curve.x, curve.hollow, strict=True) if open_]
        for name, curve in lit(figure.panels[0]).items()
    }
    assert {name: at for name, at in hollow.items() if at} == {"simple_gla": [1024]}
    assert "noisy or wrong" in [key.words for key in figure.keys]


def test_wrong_results_that_were_timed_are_hollow_and_those_that_were_not_are_crosses():
    wrong = row("mamba2", seq_len=4096, batch=16, status="wrong", reason="forward is off by 0.008, 0.0049 allowed")
    untimed = row("mamba2", seq_len=8192, batch=8, status="wrong", reason="not repeatable", ms_median=None)
    rows = [wrong, untimed, row("mamba2", seq_len=16384, batch=4), *lengths(("tfla_sig_xl",), ("fw",))]
    panel = made(rows, ["runtime"], highlight=["mamba2"])["runtime-seq_len"].panels[0]
    assert list(lit(panel)["mamba2"].hollow) == [True, False, False]
    assert [cross.x for cross in items(panel, Cross)] == [8192]


def test_nothing_measured_is_said():
    for stem, figure in made(SWEEPS["failed"]).items():
        assert figure.panels[0].empty == "no point was measured", stem
        assert any("unsupported" in line for line in figure.caption), stem


def test_a_single_point_is_ranked_with_its_values_and_statuses():
    rows = [*SWEEPS["one_point"][:-1], row("simple_gla", status="timeout")]
    (panel,) = made(rows, ["runtime"])["runtime-seq_len"].panels
    (bars,) = items(panel, Bars)
    assert list(bars.values)[:-1] == sorted(r.ms_median for r in rows if r.ms_median)
    assert bars.words[-1] == "timeout"
    assert {f"{r.ms_median:.3g}" for r in rows if r.ms_median} <= set(bars.words)
    assert len(bars.labels) == len(rows)


def test_a_ranking_has_the_percentage_of_the_bound_and_says_what_it_is():
    rows = [row("mamba2"), row(percent_of_bound=43.6), row("simple_gla", percent_of_bound=20.0)]
    found = made(rows, ["runtime", "memory"])
    (bars,) = items(found["runtime-seq_len"].panels[0], Bars)
    assert {f"{rows[0].ms_median:.3g}", f"{rows[1].ms_median:.3g} (44%)"} <= set(bars.words)
    note = "In brackets: percent of the bound of the problem."
    assert note in found["runtime-seq_len"].caption
    assert note not in found["memory-seq_len"].caption


# --- what stands out


def test_the_best_of_each_owner_stands_out_and_all_others_are_grey():
    panel = made(SWEEPS["many"], ["runtime"])["runtime-seq_len"].panels[0]
    context = [curve for curve in items(panel, Curve) if curve.role == "context"]
    assert len(lit(panel)) == MOST
    assert len(context) == 25 - MOST
    assert {curve.ink.colour for curve in context} == {looks.GREY}
    assert not any(curve.label for curve in context)


def test_plain_pytorch_stays_in_the_background_of_kernels():
    kernels = [row(name, seq_len=2**n) for name in ("tfla_sig_xl", "reference_sig") for n in (10, 11)]
    assert set(lit(made(kernels, ["runtime"])["runtime-seq_len"].panels[0])) == {"tfla_sig_xl"}
    alone = [row("reference_sig", seq_len=2**n) for n in (10, 11)]
    assert set(lit(made(alone, ["runtime"])["runtime-seq_len"].panels[0])) == {"reference_sig"}


def test_what_is_asked_for_stands_out():
    panel = made(SWEEPS["lengths"], ["runtime"], highlight=["sdpa*"])["runtime-seq_len"].panels[0]
    assert set(lit(panel)) == {"sdpa_flash", "sdpa_math"}


def compared(ratio: float = 4.5, **changes) -> list:
    """Ours and mlstm_kernels at two lengths, each a closed comparison."""
    rows = []
    for n, T in enumerate((1024, 4096)):
        where = {"seq_len": T, "batch": 65536 // T, "comparison_id": f"c{n}", "closed": True}
        ours = row("hopper_sig", ms_median=1.0, **where)
        rows += [ours, row("nxai_sig_xl", ms_median=ratio, **where, **({"package": "mlstm_kernels"} | changes))]
    return rows


def test_the_title_is_a_ratio_of_one_comparison():
    figure = made(compared(), ["runtime"])["runtime-seq_len"]
    assert figure.title == "mLSTM forward, H200: 4.5x faster than mlstm_kernels at T\u00a0=\u00a04096"
    slower = made(compared(0.8), ["runtime"])["runtime-seq_len"]
    assert slower.title == "mLSTM forward, H200: 1.25x slower than mlstm_kernels at T\u00a0=\u00a04096"


def test_the_title_divides_what_computes_the_same():
    """Ours of the other gate is faster at T = 4096, where the peer of this one was throttled."""
    rows = [
        r.model_copy(update={"throttled": True}) if (r.implementation, r.seq_len) == ("nxai_sig_xl", 4096) else r
        for r in compared()
    ]
    where = {"seq_len": 4096, "batch": 16, "comparison_id": rows[-1].comparison_id, "closed": True}
    rows += [row("hopper_exp", gate="exp", ms_median=1.1, **where)]
    title = made(rows, ["runtime"])["runtime-seq_len"].title
    assert "4096" not in title
    assert "faster than mlstm_kernels at T" in title


@pytest.mark.parametrize(("throttled", "words"), [("hopper_sig", "at least 4.5x faster"), ("nxai_sig_xl", "")])
def test_no_slower_kernel_is_in_the_title_for_a_throttled_one(throttled, words):
    rows = compared()
    for r in compared():
        name = "tfla_sig_xl" if r.implementation == "hopper_sig" else "nxai_sig_limit"
        slower = row(name, ms_median=2 * (r.ms_median or 0), package=r.package, seq_len=r.seq_len, batch=r.batch)
        rows.append(slower.model_copy(update={"comparison_id": r.comparison_id, "closed": True}))
    assert ": 4.5x faster" in made(rows, ["runtime"])["runtime-seq_len"].title
    rows = [r.model_copy(update={"throttled": True}) if r.implementation == throttled else r for r in rows]
    title = made(rows, ["runtime"])["runtime-seq_len"].title
    assert words in title
    assert bool(words) == ("faster" in title)


def test_the_legend_has_no_band_that_is_not_drawn():
    figure = made([row("tfla_sig_xl", dtype=dtype) for dtype in ("bfloat16", "float32")], ["runtime"])["runtime-dtype"]
    assert not any(items(panel, Band) for panel in figure.panels)
    assert not [key for key in figure.keys if key.kind == "area"]
    assert not any(line.startswith("Shaded") for line in figure.caption)


def test_sources_have_rows_as_they_are_stored():
    held = source(SWEEPS["lengths"])
    part = held.rows[held.rows["implementation"] == "mamba2"]
    assert [record.point for record in part["record"]] == list(part["point"])
    assert held.runs == {"run": RUN}
