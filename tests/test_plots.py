"""Figures say what the rows say: every point, band, missing point, unit and origin. Content is checked, not pixels."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from tflabench import figures
from tflabench.figures import facets, layout, roofline, style
from tflabench.figures.captions import compact, provenance
from tflabench.figures.style import looks
from tflabench.problem import InputError
from tflabench.rows.load import read_rows
from tflabench.theory import hardware

sys.path.insert(0, str(Path(__file__).parent))
from figure_rows import SWEEPS, curves_of, drawn, framed, legend_words, lengths, row, stays_on_the_page, words, write


@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_makes_figures_with_units_whose_words_stay_on_the_page(name):
    for stem, (figure, shown) in drawn(SWEEPS[name]).items():
        assert len(shown), stem
        assert figure.get_size_inches()[0] in (layout.COLUMN_WIDTH, layout.PAGE_WIDTH)
        labels = [label for ax in figure.axes for label in (ax.xaxis.label, ax.yaxis.label) if label.get_text()]
        assert all("[" in label.get_text() or label.get_text() == "data type" for label in labels), stem
        assert len(labels) >= len(figure.axes), stem
        stays_on_the_page(figure)


def test_runtime_draws_each_measured_point_once_where_the_rows_say():
    figure, shown = drawn(SWEEPS["lengths"], ["runtime"])["runtime-seq_len"]
    assert [ax.get_title() for ax in figure.axes] == ["forward", "forward + backward"]
    for ax, pass_ in zip(figure.axes, ("fw", "fwbw"), strict=True):
        for name, look in looks(shown).items():
            own = shown[(shown["implementation"] == name) & (shown["pass"] == pass_)].sort_values("seq_len")
            times = own["ms_median"].where(own["timed"]).reset_index(drop=True)
            matches = [
                line
                for line in curves_of(ax, look.colour)
                if len(line.get_xdata()) == 8 and line.get_marker() == look.marker
                and pd.Series(line.get_ydata()).equals(times)
            ]  # fmt: skip
            assert len(matches) == 1, name
            assert list(matches[0].get_xdata()) == list(own["seq_len"])


def test_theory_is_a_band_from_lower_to_upper_and_says_whose_ceilings():
    figure, shown = drawn(SWEEPS["one_pass"], ["runtime"])["runtime-seq_len"]
    (ax,) = figure.axes
    bands = [
        path.vertices[:, 1]
        for band in ax.collections
        if "FillBetween" in type(band).__name__
        for path in band.get_paths()
    ]
    assert len(bands) == 2, "exp and sig have the same counts here and share a band; attention has its own"
    for name, band in (("tfla_exp_xl", bands[0]), ("sdpa_flash", bands[1])):
        own = shown[shown["implementation"] == name]
        assert band.min() == pytest.approx(own["model_ms_lower"].min())
        assert band.max() == pytest.approx(own["model_ms_upper"].max())
    assert "theory, lower to upper bound (datasheet ceilings)" in legend_words(figure)


def test_bounds_that_differ_make_bands_of_their_own():
    slower = [r.model_copy(update={"model_ms_lower": 7.0, "model_ms_upper": 8.0}) for r in lengths(("tfla_exp_xl",))]
    figure, _ = drawn([*slower, *lengths(("tfla_sig_xl",))], ["runtime"])["runtime-seq_len"]
    assert sum("FillBetween" in type(band).__name__ for band in figure.axes[0].collections) == 2


def test_missing_points_are_marked_named_and_break_the_line():
    figure, shown = drawn(SWEEPS["lengths"], ["runtime"])["runtime-seq_len"]
    forward, backward = figure.axes
    crosses = [[line for line in ax.lines if line.get_marker() == "x"] for ax in (forward, backward)]
    assert [sorted(float(line.get_xdata()[0]) for line in of) for of in crosses] == [
        [2**14, 2**15, 2**16],
        [2**13, 2**14, 2**15, 2**16],
    ]
    assert "× oom: sdpa math at 16Ki–64Ki (fw); sdpa math at 8Ki–64Ki (fwbw)" in words(figure)
    assert "○ wrong: mamba2 at 4Ki (fwbw)" in words(figure)
    look = looks(shown)["sdpa_math"]
    own = [line for line in curves_of(backward, look.colour) if line.get_marker() == look.marker]
    (line,) = [line for line in own if len(line.get_xdata()) == 8]
    assert pd.isna(line.get_ydata()).tolist() == [False] * 4 + [True] * 4


def test_many_missing_points_leave_the_curves_their_height():
    names = [f"kernel_{n}" for n in range(16)]
    rows = [
        row(name, seq_len=2**power, batch=2 ** (16 - power), status="oom" if power == 16 else "ok")
        for name in names
        for power in range(9, 17)
    ]
    figure, _ = drawn(rows, ["runtime"])["runtime-seq_len"]
    ax = figure.axes[0]
    crosses = sorted(line.get_ydata()[0] for line in ax.lines if line.get_marker() == "x")
    assert len(set(crosses)) == len(names)
    highest = max(
        np.nanmax(line.get_ydata()) for line in ax.lines if line.get_marker() != "x" and len(line.get_xdata())
    )
    top = ax.transAxes.inverted().transform(ax.transData.transform((ax.get_xlim()[1], highest)))[1]
    assert 2 / 3 < top < crosses[0]


def test_wrong_results_share_a_line_however_wrong_they_are():
    reasons = {12: "forward is off by 0.008, 0.0049 allowed", 13: "forward is off by 0.012, 0.0048 allowed; dq is off"}
    failed = [
        row("mamba2", seq_len=2**power, batch=2 ** (16 - power), status="wrong", reason=reason)
        for power, reason in reasons.items()
    ]
    figure, _ = drawn([*failed, *lengths(("tfla_sig_xl",), ("fw",))], ["runtime"])["runtime-seq_len"]
    said = " ".join(words(figure).split())
    assert "○ wrong: mamba2 everywhere (forward is off by 0.008 to 0.012, 0.0048 to 0.0049 allowed)" in said


def test_noisy_points_are_open():
    figure, _ = drawn(SWEEPS["lengths"], ["runtime"])["runtime-seq_len"]
    open_ = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "white" and len(line.get_xdata())]
    assert [list(line.get_xdata()) for line in open_] == [[1024]]
    assert "noisy or wrong" in legend_words(figure)


def test_wrong_results_that_were_timed_are_open_and_those_that_were_not_are_crosses():
    wrong = row("mamba2", seq_len=4096, batch=16, status="wrong", reason="forward is off by 0.008, 0.0049 allowed")
    untimed = row("mamba2", seq_len=8192, batch=8, status="wrong", reason="not repeatable", ms_median=None)
    rows = [wrong, untimed, row("mamba2", seq_len=16384, batch=4), *lengths(("tfla_sig_xl",), ("fw",))]
    figure, _ = drawn(rows, ["runtime"])["runtime-seq_len"]
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata())]
    open_ = [line for line in lines if line.get_markerfacecolor() == "white"]
    assert [4096] in [list(line.get_xdata()) for line in open_]
    assert [list(line.get_xdata()) for line in lines if line.get_marker() == "x"] == [[8192]]
    assert any("wrong" in words for words in legend_words(figure))


def test_nothing_measured_is_said():
    for stem, (figure, _) in drawn(SWEEPS["failed"]).items():
        assert "no point was measured" in [text.get_text() for text in figure.axes[0].texts], stem
        assert "unsupported" in words(figure), stem


def test_a_single_point_is_ranked_with_its_values_and_statuses():
    rows = [*SWEEPS["one_point"][:-1], row("simple_gla", status="timeout")]
    figure, _ = drawn(rows, ["runtime"])["runtime-seq_len"]
    (ax,) = figure.axes
    texts = [text.get_text() for text in ax.texts]
    assert texts[0] == "timeout" or "timeout" in texts
    assert {f"{r.ms_median:.3g}" for r in rows if r.ms_median} <= set(texts)
    assert len(ax.get_yticks()) == len(rows)


def test_a_ranking_has_the_percentage_of_the_bound_and_says_what_its_ceilings_are():
    rows = [row("mamba2"), row(percent_of_bound=43.6), row("simple_gla", percent_of_bound=20.0)]
    drawings = drawn(rows, ["runtime", "memory"])
    texts = [text.get_text() for text in drawings["runtime-seq_len"][0].axes[0].texts]
    assert {f"{rows[0].ms_median:.3g}", f"{rows[1].ms_median:.3g} (44%)"} <= set(texts)
    note = "In brackets: percent of the problem's bound, with datasheet ceilings."
    assert note in words(drawings["runtime-seq_len"][0])
    assert note not in words(drawings["memory-seq_len"][0])
    measured = [row(percent_of_bound=43.6, ceilings="measured: calibrate")]
    assert "of the problem's bound." in words(drawn(measured, ["runtime"])["runtime-seq_len"][0])


def test_sweeps_of_other_axes_at_one_length_make_no_figures_of_their_own():
    """A sweep of T, one of d_hv and one of L have T = 8192 in common: one figure an axis, with its curves alone."""
    over_t = lengths(("tfla_sig_xl", "sdpa_flash"), ("fw",))
    over_d = [
        row(asked="auto", heads=4096 // d, d_hv=d, d_qk=d, chunk_size=size) for d, size in ((64, 128), (512, 256))
    ]
    over_l = [row(heads=8, d_hv=512, d_qk=256, chunk_size=size) for size in (64, 128, 1024)]
    alone = row("tfla_exp_xl", seq_len=4096, batch=16)
    frame = framed([*over_t, *over_d, *over_l, alone])
    curves = {axis: facets.split(frame, axis) for axis in ("seq_len", "chunk_size")}
    (over_lengths,), (over_sizes,) = curves.values()
    points = {row.point for row in [*over_t, alone]}
    assert set(over_lengths.rows["point"]) == points, "one point of its own may stand beside curves"
    assert {row.point for row in over_l} <= set(over_sizes.rows["point"])
    assert set(over_sizes.rows["seq_len"]) == {8192}


def test_axes_that_follow_from_another_make_no_figures():
    frame = framed(SWEEPS["lengths"])
    assert facets.swept_axes(frame) == ["seq_len"], "batch follows from 65,536 tokens"
    frame = framed(SWEEPS["linear"])
    assert facets.swept_axes(frame) == ["d_hv"], "d_qk and heads follow"


def test_a_star_of_sweeps_makes_a_figure_an_axis():
    """As the quick preset: lengths at the chosen L, and chunk sizes at one length, one of them what was chosen."""
    rows = [row(seq_len=2**n, asked="auto") for n in range(10, 14)]
    rows += [row(chunk_size=size) for size in (64, 128, 256)]
    rows += [row("sdpa_flash", seq_len=2**n) for n in range(10, 14)]
    found = drawn(rows, ["runtime", "chunk"])
    assert set(found) == {"runtime-seq_len", "runtime-chunk_size", "chunk-tfla_sig_xl"}
    assert sorted(found["runtime-seq_len"][1]["seq_len"]) == sorted([2**n for n in range(10, 14)] * 2)
    assert sorted(found["chunk-tfla_sig_xl"][1]["chunk_size"]) == [64, 128, 256]
    figure, _ = found["runtime-chunk_size"]
    assert any(list(line.get_xdata()) == [0, 1] for line in figure.axes[0].lines), "attention has no L: a level line"


def test_settings_become_files_of_their_own():
    assert {"runtime-seq_len-dtype_bfloat16", "runtime-dtype-seq_len_512"} <= set(drawn(SWEEPS["dtypes"], ["runtime"]))


def test_the_tradeoff_has_runtime_left_memory_right_and_rings_the_least_runtime():
    figure, shown = drawn(SWEEPS["chunks"], ["chunk"])["chunk-tfla_sig_xl"]
    left, right = figure.axes[0], figure.axes[2]
    assert left.get_ylabel() == "median runtime [ms]"
    assert right.get_ylabel() == "peak memory [GiB]"
    forward = shown[shown["pass"] == "fw"].sort_values("chunk_size")
    (memory,) = right.lines
    assert list(memory.get_ydata()) == pytest.approx(list(forward["peak_bytes"] / 2**30))
    (ring,) = [line for line in left.lines if line.get_markersize() == 8]
    assert ring.get_ydata()[0] == forward["ms_median"].min()


def test_the_roofline_has_both_roofs_every_point_and_names_its_regions():
    figure, shown = drawn(SWEEPS["lengths"], ["roofline"])["roofline-bfloat16"]
    ax = figure.axes[0]
    points = {(float(x), float(y)) for line in ax.lines if line.get_linestyle() == "None" for x, y in line.get_xydata()}
    done = shown[(shown["pass"] == "fw") & (shown["status"] == "ok")]
    expected = {
        (f / b, f / ms / 1e9)
        for f, b, ms in zip(done["model_flops"], done["model_bytes"], done["ms_median"], strict=True)
    }
    assert sorted(points) == [pytest.approx(point) for point in sorted(expected)]
    roofs = [line for line in ax.lines if line.get_color() == style.ROOF_COLOUR]
    assert [line.get_ydata()[1:] for line in roofs] == [pytest.approx([989, 989]), pytest.approx([807, 807])]
    assert [line.get_xdata()[1] for line in roofs] == pytest.approx([989 / 4.8, 807 / 4.2]), "ridges alpha / beta"
    texts = [text.get_text() for text in ax.texts]
    assert "memory-bound" in texts
    assert "compute-bound" in texts
    assert legend_words(figure)[-2:] == ["datasheet: 989 TFLOP/s, 4,800 GB/s", "measured: 807 TFLOP/s, 4,200 GB/s"]


@pytest.mark.parametrize("ridge", [3.0, 200.0, 30_000.0])
def test_the_names_of_regions_lie_within_the_axes(ridge):
    """Also where all points are on one side of the ridge, as on a CPU."""
    roof = hardware.Ceilings(ridge * 30e9, 30e9, "measured", "here")
    figure = roofline.draw(framed(SWEEPS["lengths"]), [roof], {}, "")
    figure.canvas.draw()
    for ax in figure.axes:
        inside = ax.get_window_extent()
        names = {text.get_text(): text.get_window_extent() for text in ax.texts}
        assert names["memory-bound"].x0 > inside.x0
        assert names["compute-bound"].x1 < inside.x1


def test_a_roofline_without_known_ceilings_says_how_to_get_them():
    rows = [row(device="some CPU", seq_len=2**n) for n in (9, 10)]
    figure, _ = drawn(rows, ["roofline"], runs={})["roofline-bfloat16"]
    assert "tflabench calibrate" in words(figure)


def test_an_implementation_looks_the_same_whatever_else_was_measured():
    some = framed([row("sdpa"), row("reference_exp")])
    more = framed([row("reference_exp"), row("mamba2")])
    assert looks(some)["reference_exp"] == looks(more)["reference_exp"]


def test_thirty_implementations_are_told_apart():
    frame = framed(SWEEPS["many"])
    table = looks(frame)
    assert len({(look.colour, look.marker, str(look.dashes)) for look in table.values()}) == len(table) == 30


def test_colours_are_those_of_okabe_and_ito():
    okabe_ito = "#000000 #E69F00 #56B4E9 #009E73 #F0E442 #0072B2 #D55E00 #CC79A7".split()
    used = [*style.COLOURS.values(), style.OTHER_COLOUR]
    assert {to_rgb(colour) for colour in used} <= {to_rgb(colour) for colour in okabe_ito}
    assert len(set(used)) == len(used)


@pytest.mark.parametrize(("value", "text"), [(512, "512"), (1024, "1Ki"), (65536, "64Ki"), (3000, "3000")])
def test_counts_are_written_in_binary_thousands(value, text):
    assert compact(value) == text


def test_draw_all_writes_figures_and_the_rows_of_each(tmp_path):
    folder = write(tmp_path / "results", SWEEPS["chunks_one_pass"])
    files = figures.draw_all(folder)
    assert all(file.parent == folder / "figures" and file.stat().st_size for file in files)
    stems = {"runtime-chunk_size", "memory-chunk_size", "chunk-tfla_sig_xl", "roofline-bfloat16"}
    assert {file.name for file in files} == {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg", "csv")}
    data = pd.read_csv(folder / "figures" / "chunk-tfla_sig_xl.csv")
    rows = read_rows(folder)
    assert list(data.columns) == list(rows.columns)
    for column in ("chunk_size", "ms_median", "peak_bytes", "model_ms_upper"):
        assert list(data[column]) == list(rows[column])


def test_the_same_rows_give_the_same_svg(tmp_path):
    folder = write(tmp_path, SWEEPS["single"])
    first, second = (
        figures.draw_all(folder, tmp_path / name, ["svg"], ["runtime"])[0].read_bytes() for name in ("one", "two")
    )
    assert first == second


def test_the_footer_tells_device_day_and_versions():
    figure, _ = drawn(SWEEPS["single"], ["runtime"])["runtime-seq_len"]
    assert "NVIDIA H200 · 2026-11-21 · torch 2.13.0 · triton 3.9.0 · tflabench 0.1.0 (0123456789ab)" in words(figure)


def test_the_footer_names_a_version_once_with_all_its_commits():
    rows = pd.DataFrame({"run_id": list("abc"), "started_at": "2026-11-21", "device": "H200", "status": "error"})
    rows["package"] = rows["package_version"] = "torch"
    made = [("0.1.0", "2222222222222"), ("0.1.0", "1111111111111"), ("0.2.0", "3333333333333")]
    runs = {run: {"tflabench": version, "commit": commit} for run, (version, commit) in zip("abc", made, strict=True)}
    assert provenance(rows, runs).endswith("tflabench 0.1.0 (111111111111, 222222222222), 0.2.0 (333333333333)")


def test_rows_without_a_description_of_their_run_are_drawn(tmp_path):
    folder = write(tmp_path, SWEEPS["single"])
    (folder / "environment.json").unlink()
    assert figures.draw_all(folder, formats=["svg"], what=["runtime"])


def test_a_damaged_description_is_the_users_to_mend(tmp_path):
    folder = write(tmp_path, SWEEPS["single"])
    (folder / "environment.json").write_text("{")
    with pytest.raises(InputError, match=r"environment\.json"):
        figures.draw_all(folder)
