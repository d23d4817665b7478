"""Figures say what the rows say: every point, band, missing point, unit and origin, before any renderer draws them."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from figure_rows import RUN, SWEEPS, framed, items, lengths, lit, made, row
from matplotlib.text import Text
from synthetic import write

from tflabench import figures
from tflabench.figures import axes, facets, looks, matplotlib_renderer
from tflabench.figures.highlights import MOST
from tflabench.figures.model import Band, Bars, Circle, Cross, Curve
from tflabench.figures.quantities import AXES, WORDS
from tflabench.figures.roofline import inks_of_points
from tflabench.implementations import registry
from tflabench.problem import InputError
from tflabench.rows.load import read_rows


@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_makes_figures_with_units_and_few_highlights(name):
    words = [AXES[axis] for axis in WORDS]
    for stem, figure in made(SWEEPS[name]).items():
        assert len(figure.rows), stem
        assert figure.title, stem
        assert figure.caption[-1].startswith("NVIDIA H200"), stem
        for panel in figure.panels:
            labels = [axis.label for axis in (panel.x, panel.y) if axis.label]
            assert all("[" in label or label in words for label in labels), stem
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
    assert [key.label for key in figure.keys] == ["bounds of mLSTMsig TFLA xl_chunk"]
    assert any("ceilings datasheet: NVIDIA" in line for line in figure.caption)


def test_missing_points_are_marked_named_and_break_the_line():
    figure = made(SWEEPS["lengths"], ["runtime"], highlight=["sdpa_math", "mamba2"])["runtime-seq_len"]
    crosses = [sorted(cross.x for cross in items(panel, Cross)) for panel in figure.panels]
    assert crosses == [[2**14, 2**15, 2**16], [2**13, 2**14, 2**15, 2**16]]
    assert [key.label for key in figure.keys if key.kind == "cross"] == ["no time"]
    assert "× oom: sdpa math fw at 16Ki, 32Ki, 64Ki; sdpa math fwbw at 8Ki, 16Ki, 32Ki, 64Ki" in figure.caption
    assert "○ wrong: Mamba 2 SSD fwbw at 4Ki" in figure.caption
    assert np.isnan(lit(figure.panels[1])["sdpa_math"].y).tolist() == [False] * 4 + [True] * 4


def test_noisy_points_are_hollow():
    figure = made(SWEEPS["lengths"], ["runtime"])["runtime-seq_len"]
    hollow = {
        name: [x for x, open_ in zip(curve.x, curve.hollow, strict=True) if open_]
        for name, curve in lit(figure.panels[0]).items()
    }
    assert {name: at for name, at in hollow.items() if at} == {"simple_gla": [1024]}
    assert "noisy or wrong" in [key.label for key in figure.keys]


def test_wrong_results_that_were_timed_are_hollow_and_those_that_were_not_are_crosses():
    wrong = row("mamba2", seq_len=4096, batch=16, status="wrong", reason="forward is off by 0.008, 0.0049 allowed")
    untimed = row("mamba2", seq_len=8192, batch=8, status="wrong", reason="not repeatable", ms_median=None)
    rows = [wrong, untimed, row("mamba2", seq_len=16384, batch=4), *lengths(("tfla_sig_xl",), ("fw",))]
    panel = made(rows, ["runtime"], highlight=["mamba2"])["runtime-seq_len"].panels[0]
    assert list(lit(panel)["mamba2"].hollow) == [True, False, False]
    assert [cross.x for cross in items(panel, Cross)] == [8192]


def test_who_has_only_crosses_in_a_panel_is_named_by_the_first():
    rows = []
    for T in (4096, 8192):
        timed = row("mamba2", seq_len=T, batch=65536 // T)
        rows += [timed, timed.model_copy(update={"pass_": "fwbw", "ms_median": None, "status": "oom"})]
    figure = made([*rows, *lengths(("tfla_sig_xl",), ("fw", "fwbw"))], ["runtime"], highlight=["mamba2"])
    crosses = items(figure["runtime-seq_len"].panels[1], Cross)
    assert [cross.label for cross in crosses] == [looks.looks(figure["runtime-seq_len"].rows)["mamba2"].title, ""]


def test_grey_points_under_a_roof_are_in_legend_and_caption():
    figure = made(SWEEPS["many"], ["roofline"])["roofline-bfloat16"]
    assert [key.label for key in figure.keys] == ["others"]
    assert any(line.startswith("Grey: ") for line in figure.caption)


def test_rows_that_make_none_of_the_figures_are_refused(tmp_path):
    write(tmp_path, [row()])
    with pytest.raises(InputError, match="no figure of gates in "):
        figures.draw_all(tmp_path, what=["gates"])


def test_nothing_measured_is_said():
    for stem, figure in made(SWEEPS["failed"]).items():
        assert figure.panels[0].empty == "no point was measured", stem
        assert any("unsupported" in line for line in figure.caption), stem


def test_a_single_point_is_ranked_with_its_values_and_statuses():
    rows = [*SWEEPS["one_point"][:-1], row("simple_gla", status="timeout")]
    figure = made(rows, ["runtime"])["runtime-seq_len"]
    assert [key.label for key in figure.keys] == ["bounds of each"]
    (panel,) = figure.panels
    (bars,) = items(panel, Bars)
    assert list(bars.values)[:-1] == sorted(r.ms_median for r in rows if r.ms_median)
    assert bars.texts[-1] == "timeout"
    assert {f"{r.ms_median:#.3g}".rstrip(".") for r in rows if r.ms_median} <= set(bars.texts)
    assert len(bars.labels) == len(rows)


def test_bars_say_what_is_wary_and_have_whole_numbers_of_many_digits():
    wrong = row("nxai_sig_xl", status="wrong", ms_median=1.0, reason="dq is off by 0.02, 0.006 allowed")
    cut = row("simple_gla", ms_median=20.0, tuned={"choices": {}, "tried": 3, "configurations": 9})
    rows = [wrong, row(ms_median=1234.5, noisy=True), cut, row("mamba2", ms_median=1300.0, status="error")]
    figures_of = made(rows, ["runtime"])
    (bars,) = items(figures_of["runtime-seq_len"].panels[0], Bars)
    assert bars.texts == ("1.00, wrong", "20.0, tuned in part", "1,234, noisy", "error")
    assert bars.ranges[-1] is None, "no bound lies behind the word of what was not measured"


# --- what stands out


def test_the_best_of_each_owner_stands_out_and_all_others_are_grey():
    panel = made(SWEEPS["many"], ["runtime"])["runtime-seq_len"].panels[0]
    context = [curve for curve in items(panel, Curve) if curve.role == "context"]
    assert len(lit(panel)) == MOST
    assert len(context) == 25 - MOST
    assert {curve.ink.colour for curve in context} == {looks.GREY}
    assert not any(curve.label for curve in context)


def test_a_single_point_beside_lines_is_a_grey_dot():
    rows = [*lengths(("tfla_sig_xl", "sdpa_flash"), ("fw",)), row("simple_gla", seq_len=4096, batch=16)]
    panel = made(rows, ["runtime"])["runtime-seq_len"].panels[0]
    (dot,) = (curve for curve in items(panel, Curve) if curve.name == "simple_gla")
    assert (dot.role, dot.lone) == ("context", True)
    drawing = matplotlib_renderer.draw(made(rows, ["runtime"])["runtime-seq_len"])
    (line,) = (line for line in drawing.axes[0].get_lines() if len(line.get_xdata()) == 1)  # type: ignore[arg-type]
    assert line.get_marker() == "o"


def test_who_is_named_in_a_title_is_named_beside_the_panel_and_what_is_grey_in_the_legend():
    rows = [*lengths(("tfla_sig_xl", "sdpa_flash"), ("fw",)), row("nxai_sig_xl", seq_len=4096, batch=16)]
    rows = [r.model_copy(update={"comparison_id": str(r.seq_len), "closed": True}) for r in rows]
    figure = made([*rows, row("simple_gla", seq_len=4096, batch=16)], ["runtime"])["runtime-seq_len"]
    assert "mlstm_kernels at T" in figure.title
    assert lit(figure.panels[0])["nxai_sig_xl"].label.startswith("mlstm_kernels")
    assert [key.label for key in figure.keys if key.kind in ("line", "points")] == ["others"]


def test_throttled_points_are_named_in_the_caption_and_not_hollow():
    rows = [r.model_copy(update={"throttled": r.seq_len == 1024}) for r in lengths(("tfla_sig_xl",), ("fw",))]
    figure = made(rows, ["runtime"])["runtime-seq_len"]
    assert not any(lit(figure.panels[0])["tfla_sig_xl"].hollow)
    assert "Throttled (the GPU held its clock back): mLSTMsig TFLA xl_chunk fw at 1Ki." in figure.caption


def test_more_patterns_than_colours_are_said(tmp_path):
    write(tmp_path, [row(name) for name in (f"some_{n}" for n in range(MOST + 1))])
    with pytest.warns(UserWarning, match=f"highlight names {MOST + 1} implementations: a figure colours the best 7"):
        figures.largest(read_rows(tmp_path), None, "runtime", ["*"])


def test_a_ratio_over_the_chunk_size_says_at_which():
    same = {"comparison_id": "c", "closed": True}
    rows = [row("hopper_sig", chunk_size=size, ms_median=1.0 + size / 1e3, **same) for size in (64, 128)]
    rows += [row("nxai_sig_xl", chunk_size=size, ms_median=4.5, package="mlstm_kernels", **same) for size in (64, 128)]
    title = made(rows, ["runtime"])["runtime-chunk_size"].title
    assert title.endswith("faster than mlstm_kernels at L\u00a0=\u00a064")


def test_a_figure_as_it_is_has_1200_pixels_across(tmp_path):
    drawing = matplotlib_renderer.draw(made(SWEEPS["one_pass"], ["runtime"])["runtime-seq_len"])
    drawing.savefig(tmp_path / "mine.png")
    width = int.from_bytes((tmp_path / "mine.png").read_bytes()[16:20], "big")
    assert width >= 1200


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


@pytest.mark.parametrize(
    "changes", [{"throttled": True}, {"comparison_id": "other"}, {"closed": False}, {"status": "wrong"}]
)
def test_the_title_is_plain_where_no_ratio_may_be_taken(changes):
    rows = [r.model_copy(update=changes if r.implementation == "nxai_sig_xl" else {}) for r in compared()]
    assert made(rows, ["runtime"])["runtime-seq_len"].title == "Runtime forward, H200"


# --- which figures there are


def test_sweeps_of_other_axes_at_one_length_make_no_figures_of_their_own():
    """A sweep of T, one of d_hv and one of L have T = 8192 in common: one figure an axis, with its curves alone."""
    over_t = lengths(("tfla_sig_xl", "sdpa_flash"), ("fw",))
    over_d = [
        row(asked="auto", heads=4096 // d, d_hv=d, d_qk=d, chunk_size=size) for d, size in ((64, 128), (512, 256))
    ]
    over_l = [row(heads=8, d_hv=512, d_qk=256, chunk_size=size) for size in (64, 128, 1024)]
    alone = row("tfla_exp_xl", seq_len=4096, batch=16)
    without_curves = row("tfla_exp_xl", seq_len=4096, batch=16, **{"pass": "fwbw"})
    frame = framed([*over_t, *over_d, *over_l, alone, without_curves])
    curves = {axis: facets.split(frame, axis) for axis in ("seq_len", "chunk_size")}
    (over_lengths,), (over_sizes,) = curves.values()
    points = {row.point for row in [*over_t, alone]}
    assert set(over_lengths.rows["point"]) == points, "one point of its own may stand beside curves of its pass"
    assert {row.point for row in over_l} <= set(over_sizes.rows["point"])
    assert set(over_sizes.rows["seq_len"]) == {8192}


def test_axes_that_follow_from_another_make_no_figures():
    frame = framed(SWEEPS["lengths"])
    assert facets.swept_axes(frame) == ["seq_len"], "batch follows from 65,536 tokens"
    frame = framed(SWEEPS["linear"])
    assert facets.swept_axes(frame) == ["d_hv"], "d_qk and heads follow"


def test_a_chunk_size_that_was_chosen_is_no_axis():
    frame = framed([row(asked="auto", heads=h, heads_qk=2, chunk_size=64 * h) for h in (8, 16)])
    assert facets.swept_axes(frame) == ["heads"]
    twice = [row(asked="auto", heads_qk=n, chunk_size=size) for n, size in ((8, 1024), (4, 2048))]
    assert facets.swept_axes(framed(twice)) == [], "heads of q and k differ, and with them the L that is best"


def test_sizes_of_models_are_no_sweep_of_head_dimensions():
    names = ("tfla_sig_xl", "nxai_sig_xl")
    sizes = [{"heads": heads, "d_hv": d, "d_qk": d, "chunk_size": 128} for heads, d in ((30, 192), (24, 64), (64, 128))]
    models = [row(name, None, **size) for size in sizes for name in names]
    assert facets.swept_axes(framed(models)) == []
    assert [part.single for part in facets.slices(framed(models))] == [True] * 3, "each is ranked by itself"
    larger = [row(name, heads=96, d_hv=128, d_qk=128, chunk_size=128) for name in names]
    over_heads, *alone = facets.slices(framed([*models, *larger]))
    assert (over_heads.axis, set(over_heads.rows["heads"])) == ("heads", {64, 96})
    assert [part.stem for part in alone] == [
        "seq_len-T_8192-batch_8-embedding_1536", "seq_len-T_8192-batch_8-embedding_5760"
    ]  # fmt: skip
    of_one_width = [row(heads=8, d_hv=d, d_qk=d, chunk_size=128) for d in (64, 128)]
    assert facets.swept_axes(framed(of_one_width)) == ["d_hv"], "d_qk follows, though the embedding does not stay"
    both = framed([*(row("mamba2", seq_len=2**n, **{"pass": "fwbw"}) for n in range(9, 13)), *larger, *models])
    assert facets.swept_axes(both[both["pass"] == "fw"]) == ["heads"], "of a part of the rows too"


def test_bars_are_of_what_no_curve_shows_and_of_more_than_one_kernel():
    sizes = [row(chunk_size=size, **{"pass": "fwbw"}) for size in (64, 128)]
    chosen = row(asked="auto", chunk_size=128, **{"pass": "fwbw"})
    assert [part.axis for part in facets.slices(framed([*sizes, chosen]))] == ["chunk_size"], "it is in that curve"
    alone = [row("mamba2", heads=7, asked="auto", **{"pass": pass_}) for pass_ in ("fw", "fwbw")]
    assert [part.axis for part in facets.slices(framed([*sizes, *alone]))] == ["chunk_size"], "one kernel has no rank"


def test_an_axis_of_two_values_makes_no_figure_a_value_of_a_longer_one():
    grid = [
        row(seq_len=2**n, batch=2 ** (16 - n), d_qk=d, d_hv=d, heads=4096 // d) for n in (9, 10, 11) for d in (64, 128)
    ]
    assert facets.swept_axes(framed(grid)) == ["seq_len", "d_hv"]
    assert [part.axis for part in facets.slices(framed(grid))] == ["seq_len"] * 2
    assert {part.axis for part in facets.slices(framed(grid[:4]))} == {"seq_len", "d_hv"}, "a square has both"
    wider = row(seq_len=512, batch=128, d_qk=256, d_hv=256, heads=16)
    assert {part.axis for part in facets.slices(framed([*grid, wider]))} == {"seq_len", "d_hv"}


def test_a_curve_over_lengths_keeps_the_tokens_or_the_batch():
    at_tokens = [row(asked="auto", seq_len=t, batch=65536 // t) for t in (4096, 8192, 65536)]
    of_less_work = row(asked="auto", seq_len=32768, batch=1)
    (part,) = facets.split(framed([*at_tokens, of_less_work]), "seq_len")
    assert sorted(part.rows["seq_len"]) == [4096, 8192, 65536]
    assert part.stem == "seq_len-tokens_65536"
    of_one_batch = [row(asked="auto", seq_len=t, batch=1) for t in (4096, 8192)]
    (part,) = facets.split(framed(of_one_batch), "seq_len")
    assert part.stem == "seq_len"


def test_a_sequence_on_one_device_begins_the_curve_over_devices():
    frame = framed([row(ranks=n, asked="auto", chunk_size=1024 // (n or 1)) for n in (None, 2, 4)])
    assert facets.swept_axes(frame) == ["ranks"]
    assert [*facets.split(frame, "ranks")[0].rows["ranks"]] == [1, 2, 4]


def test_figures_of_as_many_devices_say_how_many():
    rows = [row(ranks=n, seq_len=2**t, batch=1, asked="auto") for n in (None, 4) for t in (16, 17, 18)]
    made_of = made(rows, ["runtime"])
    assert made_of["runtime-seq_len-ranks_4"].setting.endswith("ranks = 4, bfloat16")
    assert "ranks" not in made_of["runtime-seq_len-ranks_1"].setting, "that is what one expects"


def test_a_star_of_sweeps_makes_a_figure_an_axis():
    """As the quick preset: lengths at the chosen L, and chunk sizes at one length, one of them what was chosen."""
    rows = [row(seq_len=2**n, asked="auto") for n in range(10, 14)]
    rows += [row(chunk_size=size) for size in (64, 128, 256)]
    rows += [row("sdpa_flash", seq_len=2**n) for n in range(10, 14)]
    found = made(rows, ["runtime", "chunk"])
    assert set(found) == {"runtime-seq_len", "runtime-chunk_size", "chunk-tfla_sig_xl"}
    assert sorted(found["runtime-seq_len"].rows["seq_len"]) == sorted([2**n for n in range(10, 14)] * 2)
    assert sorted(found["chunk-tfla_sig_xl"].rows["chunk_size"]) == [64, 128, 256]
    panel = found["runtime-chunk_size"].panels[0]
    level = lit(panel)["sdpa_flash"]
    assert tuple(level.x) == panel.x.limits, "attention has no L: a level line"
    assert len(set(level.y)) == 1


def test_the_tradeoff_has_runtime_left_memory_right_and_rings_the_least_runtime():
    figure = made(SWEEPS["chunks"], ["chunk"])["chunk-tfla_sig_xl"]
    assert figure.columns == 2
    left, right = figure.panels[:2]
    assert left.y.label == "median runtime [ms]"
    assert right.y.label == "peak memory [GiB]"
    forward = figure.rows[figure.rows["pass"] == "fw"].sort_values("chunk_size")
    (memory,) = items(right, Curve)
    np.testing.assert_allclose(memory.y, forward["peak_bytes"] / 2**30)
    (ring,) = items(left, Circle)
    assert ring.y == forward["ms_median"].min()
    assert f"fastest forward at L\u00a0=\u00a0{ring.x:.0f}, forward + backward at L" in figure.title


def test_runtime_and_error_run_from_weak_gates_to_closing_ones():
    figure = made(SWEEPS["gates"], ["gates"])["gates-kda"]
    runtime, error = (lit(panel)["cudnn_kda"] for panel in figure.panels)
    assert list(runtime.y) == [5.0, 4.0, 3.0, 2.0, 1.0]
    np.testing.assert_allclose(error.y, [4e-3, 8e-3, 16e-3, 32e-3, 64e-3])
    assert list(runtime.x) == list(error.x) == sorted(runtime.x)
    assert runtime.joined
    assert re.search(r"KDA \(cuDNN.* up to 5 times", figure.title)


def test_the_roofline_has_every_point_and_the_measured_roof_alone():
    figure = made(SWEEPS["lengths"], ["roofline"])["roofline-bfloat16"]
    panel = figure.panels[0]
    points = {
        (float(x), float(y))
        for curve in items(panel, Curve)
        if curve.name
        for x, y in zip(curve.x, curve.y, strict=True)
    }
    done = figure.rows[(figure.rows["pass"] == "fw") & (figure.rows["status"] == "ok")]
    expected = {
        (f / b, f / ms / 1e9)
        for f, b, ms in zip(done["model_flops"], done["model_bytes"], done["ms_median"], strict=True)
    }
    assert sorted(points) == [pytest.approx(point) for point in sorted(expected)]
    (roof,) = [curve for curve in items(panel, Curve) if curve.role == "theory"]
    assert roof.label == "measured roof"
    assert list(roof.y)[1:] == pytest.approx([807, 807])
    assert roof.x[1] == pytest.approx(807 / 4.2), "the ridge, alpha / beta"
    assert any("807 TFLOP/s, 4,200 GB/s" in line for line in figure.caption)
    datasheet = made(SWEEPS["lengths"], ["roofline"], runs={})["roofline-bfloat16"]
    assert [c.label for c in items(datasheet.panels[0], Curve) if c.role == "theory"] == ["datasheet roof"]


def test_points_of_one_colour_have_markers_that_differ_at_a_glance():
    names = ("hopper_gla", "tfla_gla_xl", "hopper_lightning", "tfla_lightning_xl")
    markers = [ink.marker for ink in inks_of_points(names, looks.looks(framed([row(name) for name in names]))).values()]
    assert len(set(markers)) == len(names)
    assert len({"circle", "pentagon", "hexagon"}.intersection(markers)) == 1, "they look the same where they are small"


# --- looks and axes


def test_an_implementation_looks_the_same_whatever_else_was_measured():
    some = framed([row("sdpa"), row("reference_exp")])
    more = framed([row("reference_exp"), row("mamba2")])
    assert looks.looks(some)["reference_exp"] == looks.looks(more)["reference_exp"]


def test_thirty_implementations_are_told_apart():
    table = looks.looks(framed(SWEEPS["many"]))
    assert len({look.ink for look in table.values()}) == len(table) == 30


@pytest.mark.parametrize(
    ("name", "whose"),
    [
        ("hopper_sig", "ours"),
        ("nxai_sig_xl", "mlstm_kernels"),
        ("sdpa_cudnn", "softmax attention"),
        ("my_kernel", "others"),
    ],
)
def test_the_colour_says_whose_kernel_it_is(name, whose):
    owner = registry.owner(name)
    assert owner.name == whose
    table = looks.looks(framed([row("sdpa")]).assign(implementation=name))
    assert table[name].ink.colour == looks.COLOURS[owner.colour]


@pytest.mark.parametrize(("low", "high"), [(0.3, 0.4), (1, 7), (0.5, 60), (1e-3, 1e5), (99, 101), (1, 1e14)])
def test_logarithmic_axes_have_a_few_ticks_within_their_limits(low, high):
    axis = axes.logarithmic("x [y]", low, high)
    assert axis.limits[0] < low < high < axis.limits[1]
    assert 2 <= len(axis.ticks) <= 10
    assert all(axis.limits[0] <= value <= axis.limits[1] for value, _ in axis.ticks)
    assert len({words for _, words in axis.ticks}) == len(axis.ticks)


# --- files


def test_draw_all_writes_figures_their_captions_and_the_rows_of_each(tmp_path):
    folder = write(tmp_path / "results", SWEEPS["chunks_one_pass"], run=RUN)
    files = figures.draw_all(folder)
    assert all(file.parent == folder / "figures" and file.stat().st_size for file in files)
    stems = {"runtime-chunk_size", "memory-chunk_size", "chunk-tfla_sig_xl", "roofline-bfloat16"}
    kinds = ("png", "svg", "txt", "csv")
    assert {file.name for file in files} == {f"{stem}.{kind}" for stem in stems for kind in kinds}
    data = pd.read_csv(folder / "figures" / "chunk-tfla_sig_xl.csv")
    rows = read_rows(folder)
    assert list(data.columns) == list(rows.columns)
    for column in ("chunk_size", "ms_median", "peak_bytes", "model_ms_upper"):
        assert list(data[column]) == list(rows[column])
    caption = (folder / "figures" / "runtime-chunk_size.txt").read_text()
    assert "NVIDIA H200 · 2026-11-21 · torch 2.13.0 · triton 3.9.0 · tflabench 0.1.0 (0123456789ab)" in caption
    assert caption.startswith("Runtime forward + backward, H200\n")


def test_the_same_rows_give_the_same_svg(tmp_path):
    folder = write(tmp_path, SWEEPS["single"], run=RUN)
    first, second = (
        figures.draw_all(folder, tmp_path / name, ["svg"], ["runtime"])[0].read_bytes() for name in ("one", "two")
    )
    assert first == second


def test_rows_without_a_description_of_their_run_are_drawn(tmp_path):
    folder = write(tmp_path, SWEEPS["single"], run=RUN)
    (folder / "environment.json").unlink()
    assert figures.draw_all(folder, formats=["svg"], what=["runtime"])


def test_a_damaged_description_is_the_users_to_mend(tmp_path):
    folder = write(tmp_path, SWEEPS["single"], run=RUN)
    (folder / "environment.json").write_text("{")
    with pytest.raises(InputError, match=r"environment\.json"):
        figures.draw_all(folder)


# --- bad input


HOSTILE = {
    "markup": "<script>alert(1)</script><b>bold</b>",
    "formula": r"$\frac{1}{0$ \nonsense _{x}^{",
    "empty": "",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_words_whatever_they_hold(name, tmp_path):
    rows = [row("hostile", seq_len=2**n, title=HOSTILE[name]) for n in (10, 11)]
    for figure in made(rows).values():
        matplotlib_renderer.write(figure, tmp_path / "figure.svg")
    drawing = matplotlib_renderer.draw(made(rows, ["runtime"])["runtime-seq_len"])
    said = " ".join(text.get_text().replace("\n", " ") for text in drawing.findobj(Text))
    assert re.sub(r"\s+", " ", HOSTILE[name])[:15].strip() in said


def test_values_that_are_no_numbers_make_a_figure(tmp_path):
    rows = [row(seq_len=2**n, ms_median=float("nan") if n == 10 else 1.0, model_flops=None) for n in (10, 11, 12)]
    for figure in made(rows).values():
        matplotlib_renderer.write(figure, tmp_path / f"{figure.stem}.png")
        assert (tmp_path / f"{figure.stem}.png").stat().st_size > 1000
