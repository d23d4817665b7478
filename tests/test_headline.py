"""The generated results/README.md: ratios of one comparison, who wins, what is missing and why, whose rows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tflabench.cli.main import app
from tflabench.conclusions import headline
from tflabench.implementations.registry import bundled_kernels
from tflabench.rows.schema import Row

sys.path.insert(0, str(Path(__file__).parent))
from synthetic import APART, IN_FULL, IN_PART, RUN, row, write

RUN = RUN | {"arguments": ["sweep", "--preset", "paper-fig4", "--impl", "tfla*"], "commit": "0123456789ab"}
ATTENTION = {"family": "attention", "gate": None, "heads": 32, "d_qk": 128, "d_hv": 128, "chunk_size": None}


def page(folder: Path) -> str:
    return headline.markdown(folder, ["tflabench", "headline", "results"], folder)


def cells(text: str, label: str, n: int = 0) -> list[str]:
    """The cells of the n-th table line with this label."""
    lines = [line for line in text.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in lines[n].strip("|").split("|")][1:]


def at(name: str, T: int, ms: float | None, **changes) -> Row:
    return row(name, ms, **({"seq_len": T, "batch": 65536 // T} | changes))


@pytest.fixture
def fig4(tmp_path):
    """Ours is faster than attention at 4096 only; exp is slower than sig; flash ran out of memory at 4096."""
    rows = [
        *(at("tfla_sig_xl", T, ms, peak_bytes=3 * 2**30) for T, ms in ((512, 1.0), (4096, 1.0))),
        *(at("tfla_sig_xl", T, 1.5, chunk_size=64) for T in (512, 4096)),
        *(at("tfla_exp_xl", T, 1.2, gate="exp") for T in (512, 4096)),
        *(at("nxai_exp_xl", T, 2.4, gate="exp") for T in (512, 4096)),
        *(at("sdpa_cudnn", T, ms, **ATTENTION, package_version="2.11.0") for T, ms in ((512, 0.5), (4096, 4.0))),
        *(at("sdpa_flash", T, ms, **ATTENTION) for T, ms in ((512, 1.001), (4096, None))),
        *(at("reference_sig", T, 0.1) for T in (512, 4096)),
    ]
    folder = write(tmp_path / "fig4", rows, run=RUN)
    return folder.parent


@pytest.mark.parametrize(("of_ours", "of_theirs"), APART.values(), ids=APART)
def test_rows_that_are_not_comparable_stand_side_by_side_without_a_ratio(tmp_path, of_ours, of_theirs):
    rows = [
        *(at("tfla_sig_xl", T, 1.0, **of_ours) for T in (512, 4096)),
        *(at("sdpa_cudnn", T, 0.5, **ATTENTION, **of_theirs, peak_bytes=2**29) for T in (512, 4096)),
    ]
    text = page(write(tmp_path, rows, run=RUN))
    assert cells(text, "ours") == ["1 ms (30%)"] * 2
    assert cells(text, "sdpa cudnn") == ["0.5 ms (30%)"] * 2
    assert cells(text, "sdpa cudnn", 1) == ["0.50 GiB"] * 2
    assert "Baselines that are faster: none." in text
    assert "Baselines that are smaller: none." in text
    assert "no kernel of ours and a baseline in one comparison" in text  # in short
    assert "x (30%)" not in text


def test_only_the_points_apart_lose_their_ratio(tmp_path):
    rows = [
        *(at("tfla_sig_xl", T, 1.0) for T in (512, 4096)),
        at("sdpa_cudnn", 512, 2.0, **ATTENTION),
        at("sdpa_cudnn", 4096, 0.5, **ATTENTION, tuned=IN_PART),
        at("fla_gla", 512, 0.5, tuned=IN_FULL),
        at("fla_gla", 4096, 3.0, tuned=IN_FULL),
    ]
    text = page(write(tmp_path, rows, run=RUN))
    assert cells(text, "sdpa cudnn") == ["2.00x (30%)", "0.5 ms (30%)"]
    assert cells(text, "fla gla") == ["**0.50x** (30%)", "3.00x (30%)"]
    assert "faster than every baseline at 1 of 2; against the strongest one 0.50x at T = 512 (against fla gla)" in text
    assert "3.00x at T = 4096 (against fla gla)" in text


def test_a_baseline_meets_ours_of_its_comparison_before_a_faster_one_of_another(tmp_path):
    rows = [
        at("tfla_sig_xl", 512, 1.0),
        at("hopper_sig", 512, 0.5, comparison_id="later"),
        at("sdpa_cudnn", 512, 2.0, **ATTENTION),
    ]
    text = page(write(tmp_path, rows, run=RUN))
    assert cells(text, "ours") == ["0.5 ms (30%)"]
    assert cells(text, "sdpa cudnn") == ["2.00x (30%)"]


def test_wrong_results_are_neither_ours_nor_a_ratio(tmp_path):
    wrong = {"status": "wrong", "reason": "dq is off by 0.3"}
    rows = [
        at("tfla_sig_xl", 512, 0.1, chunk_size=64, **wrong),
        at("tfla_sig_xl", 512, 1.0),
        at("fla_gla", 512, 0.1, chunk_size=64, **wrong),
        at("fla_gla", 512, 2.0),
        at("sdpa_cudnn", 512, 0.1, **ATTENTION, **wrong),
    ]
    text = page(write(tmp_path, rows, run=RUN))
    assert cells(text, "ours") == ["1 ms (30%)"]
    assert cells(text, "fla gla") == ["2.00x (30%)"]
    assert cells(text, "sdpa cudnn") == ["*wrong*"]
    assert "- not measured: sdpa cudnn everywhere: wrong: dq is off by 0.3" in text
    assert "not measured: fla gla" not in text


def test_a_ratio_is_the_baseline_over_our_fastest(fig4):
    text = page(fig4)
    assert cells(text, "our fastest kernel") == ["tfla_sig_xl (L=128)"] * 2
    assert cells(text, "ours") == ["1 ms (30%)"] * 2
    assert cells(text, "sdpa cudnn (torch 2.11.0)") == ["**0.50x** (30%)", "4.00x (30%)"]
    assert cells(text, "ours", 1) == ["3.00 GiB"] * 2
    assert cells(text, "sdpa cudnn (torch 2.11.0)", 1) == ["**0.33x**"] * 2


def test_an_mlstm_is_held_against_ours_of_the_same_gate(fig4):
    assert cells(page(fig4), "nxai exp xl") == ["2.00x (30%)"] * 2


def test_a_baseline_is_held_against_ours_that_computes_the_same(tmp_path):
    """Retention, faster than Simple GLA, does not answer for it; attention meets mLSTM."""
    linear = {"family": "linear_attention", "gate": None}
    rows = [
        at("hopper_simple_gla", 512, 0.5, **linear),
        at("hopper_retention", 512, 0.4, **linear),
        at("tfla_sig_xl", 512, 1.0),
        at("fla_simple_gla", 512, 1.5, **linear),
        at("fla_retention", 512, 1.2, **linear),
        at("fla_gla", 512, 3.0, **linear),
        at("sdpa_cudnn", 512, 2.0, **ATTENTION),
        at("mamba2", 512, 2.0, **linear),
    ]
    text = page(write(tmp_path, rows, run=RUN))
    found = {name: cells(text, name)[0].split()[0] for name in ("fla simple gla", "fla retention", "fla gla")}
    assert found == {"fla simple gla": "3.00x", "fla retention": "3.00x", "fla gla": "3.00x"}
    assert cells(text, "sdpa cudnn")[0].split()[0] == "2.00x"
    assert cells(text, "mamba2")[0].split()[0] not in ("2.00x", "4.00x", "5.00x")  # ours was not measured


HELD_BACK = {"throttled": True}


def test_a_ratio_of_a_throttled_row_stands_in_the_table_and_in_no_sentence(tmp_path):
    rows = [
        *(at("tfla_sig_xl", T, 1.0) for T in (512, 4096)),
        at("sdpa_cudnn", 512, 0.5, **ATTENTION, **HELD_BACK),
        at("sdpa_cudnn", 4096, 4.0, **ATTENTION),
        *(at("fla_gla", T, ms) for T, ms in ((512, 3.0), (4096, 5.0))),
    ]
    text = page(write(tmp_path, rows, run=RUN))
    assert cells(text, "sdpa cudnn") == ["0.50x† (30%)", "4.00x (30%)"]
    assert cells(text, "sdpa cudnn", 1) == ["1.00x", "1.00x"]  # memory is what it is
    assert cells(text, "ours") == ["1 ms (30%)"] * 2
    out = "left out, throttled: sdpa cudnn at T = 512"
    assert f"Baselines that are faster: none; {out}." in text
    assert (
        "faster than every baseline at 2 of 2; against the strongest one 3.00x at T = 512 (against fla gla), "
        f"4.00x at T = 4096 (against sdpa cudnn); {out}"
    ) in text
    assert text.count("†: the GPU held its clock back") == 1


def test_ours_is_left_out_by_name_where_it_is_throttled(tmp_path):
    rows = [
        at("tfla_sig_xl", 512, 1.0, **HELD_BACK),
        at("tfla_sig_xl", 4096, 1.0),
        *(at("sdpa_cudnn", T, 0.5, **ATTENTION) for T in (512, 4096)),
    ]
    text = page(write(tmp_path, rows, run=RUN))
    assert cells(text, "ours") == ["1 ms† (30%)", "1 ms (30%)"]
    assert cells(text, "sdpa cudnn") == ["0.50x† (30%)", "**0.50x** (30%)"]
    assert (
        "sdpa cudnn at T = 4096 (ours takes up to 2.00 times as much); left out, throttled: tfla_sig_xl at T = 512."
        in text
    )
    assert "faster than every baseline at 0 of 1;" in text


def test_where_everything_is_throttled_nothing_is_said_but_that(tmp_path):
    rows = [at("tfla_sig_xl", 512, 1.0, **HELD_BACK), at("sdpa_cudnn", 512, 2.0, **ATTENTION, **HELD_BACK)]
    text = page(write(tmp_path, rows, run=RUN))
    out = "no ratio without throttling; left out, throttled: tfla_sig_xl everywhere, sdpa cudnn everywhere"
    assert text.count(out) == 2
    assert "faster than every baseline" not in text
    assert cells(text, "sdpa cudnn") == ["2.00x† (30%)"]


def test_memory_does_not_depend_on_the_clock(tmp_path):
    small = {"peak_bytes": 2**29}
    rows = [at("tfla_sig_xl", 512, 1.0), at("sdpa_cudnn", 512, 2.0, **ATTENTION, **HELD_BACK, **small)]
    text = page(write(tmp_path, rows, run=RUN))
    assert cells(text, "sdpa cudnn", 1) == ["**0.50x**"]
    assert "Baselines that are smaller: sdpa cudnn everywhere (ours takes up to 2.00 times as much)." in text


def test_throttled_values_without_a_ratio_are_marked_too(tmp_path):
    rows = [at("tfla_sig_xl", 512, 1.0), at("sdpa_cudnn", 512, 2.0, **ATTENTION, **HELD_BACK, comparison_id="other")]
    text = page(write(tmp_path, rows, run=RUN))
    assert cells(text, "sdpa cudnn") == ["2 ms† (30%)"]
    assert "left out, throttled" not in text


def test_where_a_baseline_wins_it_says_so(fig4):
    text = page(fig4)
    assert "Baselines that are faster: sdpa cudnn at T = 512 (ours takes up to 2.00 times as much)." in text
    assert "faster than every baseline at 1 of 2; against the strongest one 0.50x at T = 512" in text
    write(fig4 / "fig4", [at("tfla_sig_xl", 512, 1.0), at("sdpa_cudnn", 512, 2.0, **ATTENTION)], run=RUN)
    assert "Baselines that are faster: none." in page(fig4)


def test_missing_points_have_their_reason(fig4):
    text = page(fig4)
    assert cells(text, "sdpa flash")[1] == "*oom*"
    assert "- not measured: sdpa flash at T = 4096: oom: no memory" in text


def test_plain_pytorch_is_neither_kernel_nor_baseline(fig4):
    assert "reference" not in page(fig4)


def test_every_section_names_command_machine_and_versions(fig4):
    text = page(fig4)
    assert "- command: `tflabench sweep --preset paper-fig4 --impl 'tfla*'`" in text
    assert "- machine: NVIDIA H200; driver 580.1, cuda 13.0, torch 2.11.0, triton 3.6.0, commit 0123456789ab" in text
    assert "[rows](fig4/rows.csv)" in text


def test_without_a_kernel_of_ours_there_are_the_baselines_own_values(tmp_path):
    write(tmp_path / "attention", [at("sdpa_cudnn", 512, 2.0, **ATTENTION), at("reference_sig", 512, 9.0)])
    text = page(tmp_path)
    assert cells(text, "sdpa cudnn") == ["2 ms (30%)"]
    assert "No kernel of ours was measured here" in text
    assert "no kernel of ours and a baseline in one comparison" in text


def test_other_versions_make_a_section_of_their_own_and_no_ratio(tmp_path):
    newer = RUN | {"packages": {"torch": "2.12.0", "triton": "3.6.0"}}
    rows = [at("tfla_sig_xl", 512, 1.0), at("sdpa_cudnn", 512, 2.0, **ATTENTION, run_id="newer")]
    write(tmp_path / "fig4", [*rows, at("tfla_sig_xl", 1024, 1.0, run_id="newer")], newer=newer)
    text = page(tmp_path)
    assert [line for line in text.splitlines() if line.startswith("## ")][1:] == [
        "## fig4, torch 2.11.0",
        "## fig4, torch 2.12.0",
    ]
    assert "[fig4, torch 2.12.0](#fig4-torch-2120)" in text
    assert cells(text, "sdpa cudnn") == ["2 ms (30%)", ""]


def test_baselines_of_other_versions_with_none_of_ours_are_named_where_ours_are(tmp_path):
    newer = RUN | {"packages": {"torch": "2.12.0", "triton": "3.6.0"}}
    rows = [at("tfla_sig_xl", 512, 1.0), at("sdpa_cudnn", 512, 2.0, **ATTENTION, run_id="newer")]
    write(tmp_path / "fig4", rows, newer=newer)
    text = page(tmp_path)
    assert [line for line in text.splitlines() if line.startswith("## ")][1:] == ["## fig4"]
    assert "from torch 2.12.0 with no kernel of ours to divide by: sdpa cudnn (forward)" in text


def test_passes_and_head_dimensions_make_tables(tmp_path):
    fig13 = [
        at(name, T, 1.0, heads=4096 // d, d_qk=d, d_hv=d, pass_=pass_)
        for name in ("tfla_sig_xl", "lightning_attention_2")
        for T in (512, 4096)
        for d in (64, 128)
        for pass_ in ("fw", "fwbw")
    ]
    write(tmp_path / "fig13", fig13)
    titles = [line.split(",")[:2] for line in page(tmp_path).splitlines() if line.startswith("### ")]
    heads = [" heads 64x64", " heads 32x128"]
    assert titles == [[f"### {p}", h] for p in ("forward", "forward + backward") for h in heads]


def test_a_single_length_has_a_column_a_head_dimension(tmp_path):
    write(
        tmp_path / "fig14",
        [at("tfla_sig_xl", 8192, d / 64, heads=4096 // d, d_qk=d, d_hv=d, batch=4) for d in (256, 64, 128)],
    )
    text = page(tmp_path)
    assert cells(text, "time, heads =") == ["64x64", "32x128", "16x256"]
    assert cells(text, "ours") == ["1 ms (30%)", "2 ms (30%)", "4 ms (30%)"]


def test_brackets_have_the_bound_or_say_that_they_have_the_own_roofline(tmp_path):
    rows = [
        at("tfla_sig_xl", 512, 1.0, ceilings="measured: calibrate"),
        at("mamba2", 512, 2.0, family="ssm", percent_of_bound=None, ceilings="datasheet: NVIDIA"),
        at("fla_kda", 512, 3.0, family="linear_attention", percent_of_bound=None, percent_of_own_roofline=None),
    ]
    text = page(write(tmp_path, rows))
    assert cells(text, "ours") == ["1 ms (30%)"]
    assert cells(text, "mamba2")[0].endswith(" (own 40%)")
    assert "(" not in cells(text, "fla kda")[0]
    assert "protocol standard, ceilings: datasheet and measured; [rows]" in text


def test_rows_without_memory_leave_their_cell_empty(tmp_path):
    rows = [at("tfla_sig_xl", 512, 1.0, peak_bytes=None), at("sdpa_cudnn", 512, 2.0, **ATTENTION, peak_bytes=None)]
    text = page(write(tmp_path, rows))
    assert cells(text, "ours", 1) == cells(text, "sdpa cudnn", 1) == [""]


def test_failures_only_and_decode_steps_make_no_ratio(tmp_path):
    write(tmp_path / "failed", [at("tfla_sig_xl", 512, None), at("sdpa_cudnn", 512, None, **ATTENTION)])
    write(tmp_path / "decode", [row("step_sig", pass_="decode", seq_len=1)])
    text = page(tmp_path)
    assert "x (" not in text
    assert "- not measured: tfla sig xl everywhere: oom: no memory" in text
    assert "## decode" not in text


def test_the_command_prints_or_writes_the_page(fig4):
    printed = CliRunner().invoke(app, ["headline", str(fig4)])
    assert printed.stdout.startswith("# Results\n")
    out = fig4 / "README.md"
    done = CliRunner().invoke(app, ["headline", str(fig4), "--out", str(out)])
    assert (done.exit_code, done.stdout.strip()) == (0, str(out))
    assert f"`tflabench headline {fig4} --out {out}`" in out.read_text()
    assert CliRunner().invoke(app, ["headline", str(fig4), "--out", str(out / "below")]).exit_code == 2


def test_the_committed_page_is_what_the_stored_rows_make():
    results = Path(__file__).resolve().parent.parent / "results"
    command = ["tflabench", "headline", "results/h200", "--out", "results/README.md"]
    made = headline.markdown(results / "h200", command, results)
    assert made == (results / "README.md").read_text(), f"rows have changed: run `{' '.join(command)}`"


def test_our_kernels_are_the_bundled_ones_without_the_pytorch_forms():
    kernels = bundled_kernels()
    assert {"tfla_sig_xl", "tfla_exp_limit"} <= kernels
    assert not any(name.startswith(("reference", "nxai", "sdpa", "fla_")) for name in kernels)
