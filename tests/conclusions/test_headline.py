"""The generated results/README.md: which ratios stand in it, who is first, what is missing and why, whose rows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from committed import committed_checkout
from synthetic import APART, RUN, row, write
from typer.testing import CliRunner

from tflabench.cli.main import app
from tflabench.conclusions import headline
from tflabench.conclusions.campaigns import campaigns
from tflabench.conclusions.standings import at_sizes, standing
from tflabench.implementations.registry import our_kernels
from tflabench.rows.load import find_results
from tflabench.rows.schema import Row
from tflabench.selection.presets import load_preset

RUN = RUN | {"arguments": ["sweep", "--preset", "paper-fig4", "--impl", "tfla*"], "commit": "0123456789ab"}
ATTENTION = {"family": "attention", "gate": None, "heads": 32, "d_qk": 128, "d_hv": 128, "chunk_size": None}
THROTTLED = {"throttled": True}


def page(folder: Path, rows: list[Row] | None = None, **runs) -> str:
    """The page of a folder, with these rows in it where they are given."""
    if rows is not None:
        write(folder, rows, **({"run": RUN} | runs))
    return headline.markdown(folder, ["tflabench", "headline", "results"], folder)


def table(text: str) -> dict[str, list[str]]:
    """The cells behind the first, by the first, in order, of all lines of tables."""
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if re.match(r"\|[^-]", line)]
    return {first: rest for first, *rest in lines}


def peers(text: str) -> list[str]:
    return list(table(text))[2:]


def sections(text: str) -> list[str]:
    return [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]


def at(name: str, T: int, ms: float | None, **changes) -> Row:
    return row(name, ms, **({"seq_len": T, "batch": 65536 // T} | changes))


@pytest.mark.parametrize(("of_ours", "of_theirs"), APART.values(), ids=APART)
def test_times_that_are_not_comparable_stand_without_a_ratio(tmp_path, of_ours, of_theirs):
    rows = [at("tfla_sig_xl", 512, 1.0, **of_ours), at("sdpa_cudnn", 512, 0.5, **ATTENTION, **of_theirs)]
    text = page(tmp_path, rows)
    assert table(text)["sdpa_cudnn"] == ["tfla_sig_xl", "0.500/1.00"]
    assert "- No ratio: 1/1 not compared." in text


@pytest.mark.parametrize(
    ("of_ours", "of_theirs", "ms", "cell"),
    [
        (THROTTLED, {}, 0.5, "0.500/1.00†"),
        ({}, THROTTLED, 0.5, "0.500†/1.00 ≤ **0.500**"),
        ({}, {}, 0.5, "0.500/1.00 = **0.500**"),
        (THROTTLED, {}, 2.0, "2.00/1.00† ≥ 2.00"),
        ({}, THROTTLED, 2.0, "2.00†/1.00"),
        (THROTTLED, THROTTLED, 2.0, "2.00†/1.00†"),
    ],
)
def test_a_throttled_time_is_marked_and_has_a_bound_if_it_is_the_shorter(tmp_path, of_ours, of_theirs, ms, cell):
    rows = [at("tfla_sig_xl", 512, 1.0, **of_ours), at("sdpa_cudnn", 512, ms, **ATTENTION, **of_theirs)]
    text = page(tmp_path, rows)
    assert table(text)["sdpa_cudnn"] == ["tfla_sig_xl", cell]
    assert ("- No ratio: 1/1 throttled." in text) == (" " not in cell)


def test_the_strongest_peer_is_first_and_those_without_a_ratio_or_a_time_last(tmp_path):
    rows = [
        *(at("tfla_sig_xl", T, 1.0) for T in (512, 4096)),
        *(at("sdpa", T, 3.0, **ATTENTION) for T in (512, 4096)),
        *(at("fla_gla", T, ms) for T, ms in ((512, 5.0), (4096, 2.0))),
        *(at("fla_linear", T, 0.4, comparison_id="other") for T in (512, 4096)),
        *(at("fla_kda", T, 1.3, **THROTTLED) for T in (512, 4096)),
        *(at("sdpa_flash", T, None, **ATTENTION) for T in (512, 4096)),
    ]
    text = page(tmp_path, rows)
    assert peers(text) == ["fla_gla", "sdpa", "fla_linear", "fla_kda"]
    assert table(text)["peer"] == ["ours", "forward, T = 512", "forward, T = 4096"]
    assert table(text)["fla_gla"] == ["tfla_sig_xl", "5.00/1.00 = 5.00", "2.00/1.00 = 2.00"]
    assert table(text)["*% of bound (not recorded)*"] == ["tfla_sig_xl", "1.00 (30%)", "1.00 (30%)"]


def test_a_peer_is_held_against_ours_that_computes_the_same(tmp_path):
    """Attention meets mLSTM, here of its own comparison."""
    linear = {"family": "linear_attention", "gate": None}
    rows = [
        at("hopper_simple_gla", 512, 0.5, **linear),
        at("hopper_retention", 512, 0.4, **linear),
        at("tfla_sig_xl", 512, 1.0),
        at("hopper_sig", 512, 0.9, comparison_id="later"),
        at("tfla_sig_xl", 512, 1.5, chunk_size=64),
        at("tfla_exp_xl", 512, 1.2, gate="exp"),
        at("fla_simple_gla", 512, 1.5, **linear),
        at("fla_retention", 512, 1.6, **linear),
        at("nxai_exp_xl", 512, 2.4, gate="exp"),
        at("sdpa_cudnn", 512, 2.0, **ATTENTION),
        at("mamba2", 512, 2.0, **linear),
        at("reference_sig", 512, 0.1),
    ]
    assert table(page(tmp_path, rows)) == {
        "peer": ["ours", "forward"],
        "*% of bound (not recorded)*": ["hopper_sig", "0.900 (30%)"],
        "nxai_exp_xl": ["tfla_exp_xl", "2.40/1.20 = 2.00"],
        "sdpa_cudnn": ["tfla_sig_xl", "2.00/1.00 = 2.00"],
        "fla_simple_gla": ["hopper_simple_gla", "1.50/0.500 = 3.00"],
        "fla_retention": ["hopper_retention", "1.60/0.400 = 4.00"],
        "mamba2": ["", "2.00"],
    }


def test_wrong_results_have_a_reason_and_no_time(tmp_path):
    wrong = {"status": "wrong", "reason": "dq is off by 0.3; dk is off by 0.4"}
    rows = [
        at("tfla_sig_xl", 512, 0.1, chunk_size=64, **wrong),
        at("tfla_sig_xl", 512, 1.0),
        at("sdpa_cudnn", 512, 0.1, **ATTENTION, **wrong),
        at("sdpa_cudnn", 1024, 0.1, **ATTENTION, **wrong | {"reason": "forward is off by 0.1"}),
        at("sdpa_cudnn", 512, 2.0, **ATTENTION, pass_="fwbw"),
        at("nxai_sig_xl", 512, None, chunk_size=64, status="unsupported"),
        at("nxai_sig_xl", 512, 0.1, chunk_size=128, **wrong),
    ]
    text = page(tmp_path, rows)
    assert "- nxai_sig_xl: wrong: dq is off by 0.3\n" in text  # at the only chunk size that ran
    assert table(text)["sdpa_cudnn"] == ["", "*wrong*", "*wrong*", "2.00"]
    assert "- sdpa_cudnn: wrong (2/3), e.g.: dq is off by 0.3\n" in text
    assert "tfla_sig_xl: wrong" not in text  # another chunk size is right


def test_failures_that_differ_in_numbers_are_one_line_and_told_once(tmp_path):
    def rows(device: str) -> list[Row]:
        unsupported = {"status": "unsupported", "device": device}
        return [
            *(at("tfla_sig_xl", T, 1.0, device=device) for T in (512, 4096)),
            *(at(name, T, None, reason=f"not {T}", **unsupported) for name in ("sdpa", "fla_gla") for T in (512, 4096)),
            at("fla_kda", 512, 1.0, device=device),
            at("fla_kda", 4096, None, device=device, reason="no\nmemory" + 99 * " at all"),
        ]

    write(tmp_path / "a", rows("NVIDIA H100"))
    write(tmp_path / "b", rows("NVIDIA H200"))
    text = page(tmp_path)
    assert text.count("- sdpa, fla_gla: unsupported, e.g.: not 512\n") == 1
    assert text.count("- fla_kda: oom (1/2): no memory at all") == 1
    assert "- As above, unsupported: sdpa, fla_gla; oom: fla_kda (1/2)\n" in text
    assert max(map(len, text.splitlines())) < 200


def test_markdown_in_names_and_reasons_is_shown_as_it_is(tmp_path):
    rows = [
        at("tfla_sig_xl", 512, 1.0),
        at("my|kernel_*2*", 512, 2.0),
        at("_b_", 512, None, reason="<b>[x](y) `z`", status="error"),
    ]
    text = page(tmp_path, rows)
    assert table(text)[r"my\|kernel\_\*2\*"] == ["tfla_sig_xl", "2.00/1.00 = 2.00"]
    assert r"- \_b\_: error: \<b>\[x\](y) \`z\`" in text


def test_a_figure_has_one_table_of_the_folders_with_most_ratios_and_names_the_others(tmp_path):
    apart = {"comparison_id": None}
    rows = [at("tfla_sig_xl", 512, 1.0), at("sdpa", 512, 2.0, **ATTENTION)]
    more = [at(name, T, 1.0, **apart) for name in ("tfla_sig_xl", "sdpa") for T in (512, 1024, 4096)]
    matched = RUN | {"arguments": ["sweep", "--preset=paper-fig4-matched"]}
    write(tmp_path / "few", rows, run=RUN)
    write(tmp_path / "many", more, run=RUN)
    write(tmp_path / "matched", rows, run=matched)
    write(tmp_path / "h100", [each.model_copy(update={"device": "NVIDIA H100"}) for each in more], run=RUN)
    write(tmp_path / "quick", more, run=RUN | {"arguments": ["sweep"]})
    (write(tmp_path / "mine", more) / "environment.json").unlink()
    text = page(tmp_path)
    fig4 = "runtime over sequence length, 65,536 tokens"
    assert sections(text) == [
        f"Fig. 4: {fig4} (NVIDIA H200, NVIDIA H100)",  # with ratios, and without
        f"Fig. 4 with matched heads: {fig4}, 32 heads of 128 (NVIDIA H200)",
        "mine (NVIDIA H200)",
        "Quick look: mLSTM and its rivals (NVIDIA H200)",
    ]
    assert "- Rows: [few](few/rows.csv), 2026-11-21, commit 0123456.\n" in text
    assert "- Other rows: [many](many/rows.csv).\n" in text


def test_devices_stand_side_by_side_and_a_peer_of_one_has_no_cell_at_the_other(tmp_path):
    h100 = {"device": "NVIDIA H100 80GB HBM3"}
    write(tmp_path / "h100", [at("tfla_sig_xl", 512, 2.0, **h100), at("sdpa", 512, 8.0, **ATTENTION, **h100)], run=RUN)
    write(tmp_path / "h200", [at("tfla_sig_xl", 512, 1.0), at("fla_gla", 512, 3.0)], run=RUN)
    assert table(page(tmp_path)) == {
        "peer": ["ours", "H100, forward", "H200, forward"],
        "*% of bound (not recorded)*": ["tfla_sig_xl", "2.00 (30%)", "1.00 (30%)"],
        "fla_gla": ["tfla_sig_xl", "", "3.00/1.00 = 3.00"],
        "sdpa": ["tfla_sig_xl", "8.00/2.00 = 4.00", ""],
    }


def test_devices_of_one_short_name_have_their_whole_names(tmp_path):
    names = ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe")
    for name in names:
        write(tmp_path / name, [at("tfla_sig_xl", 512, 2.0, device=name)], run=RUN)
    assert table(page(tmp_path))["peer"] == ["ours", *(f"{name}, forward" for name in names)]


def test_versions_of_most_tables_stand_once(tmp_path):
    def of(name: str, **versions) -> None:
        rows = [at("tfla_sig_xl", 512, 1.0), at("fla_gla", 512, 3.0, package="fla", package_version=versions["fla"])]
        packages = {"torch": versions["torch"], "triton": "3.6.0"}
        run = RUN | {"packages": packages, "arguments": ["sweep", "--preset", name]}
        write(tmp_path / name, rows, run=run)

    of("paper-fig4", fla="0.6.0", torch="2.11.0")
    of("paper-fig5", fla="0.6.0", torch="2.12.0")
    write(tmp_path / "none of ours", [at("sdpa", 512, 2.0)], run=RUN | {"packages": {"triton": "3.7.1"}})
    text = page(tmp_path)
    assert "[paper-fig4](paper-fig4/rows.csv), 2026-11-21, torch 2.11.0, commit 0123456.\n" in text
    assert "[paper-fig5](paper-fig5/rows.csv), 2026-11-21, torch 2.12.0, commit 0123456.\n" in text
    assert text.endswith("Versions, where nothing else is said: triton 3.6.0, fla 0.6.0.\n")
    of("paper-fig12", fla="0.6.0", torch="2.12.0")
    text = page(tmp_path)
    assert "[paper-fig4](paper-fig4/rows.csv), 2026-11-21, torch 2.11.0, commit 0123456.\n" in text
    assert "[paper-fig5](paper-fig5/rows.csv), 2026-11-21, commit 0123456.\n" in text
    assert text.endswith("Versions, where nothing else is said: torch 2.12.0, triton 3.6.0, fla 0.6.0.\n")


@pytest.mark.parametrize(
    ("again", "changes", "said"),
    [
        ((3.0, 4.0), {}, "- A second occasion: 2 of 2 ratios within 2%: [b](b/rows.csv).\n"),
        ((3.0, 4.2), {}, "1 of 2 ratios within 2%, the furthest +5.0% (fla_kda, forward, T = 512): [b]"),
        ((2.85, None), {}, "0 of 1 ratios within 2%, the furthest -5.0% (fla_gla, forward, T = 512): [b]"),
        ((3.0, 4.0), {"source_hash": "other"}, "- Other rows: [b](b/rows.csv).\n"),
        ((3.0, 4.0), {"source_hash": None}, "- Other rows: [b](b/rows.csv).\n"),
    ],
)
def test_a_second_occasion_of_the_same_source_says_how_far_ratios_are_apart(tmp_path, again, changes, said):
    def of(name: str, times: tuple[float | None, float | None], ours: float, **more) -> None:
        peers = [at(peer, 512, ms, **more) for peer, ms in zip(("fla_gla", "fla_kda"), times, strict=True)]
        write(tmp_path / name, [at("tfla_sig_xl", 512, ours, **more), *peers], run=RUN)

    of("a", (6.0, 8.0), 2.0, source_hash="same")
    of("b", again, 1.0, **{"source_hash": "same"} | changes)
    assert said in page(tmp_path)


@pytest.mark.parametrize(("changes", "told"), [({"kernel_version": 0}, True), ({}, False)])
def test_kernels_that_changed_after_they_were_measured_are_named(tmp_path, changes, told):
    rows = [at("hopper_sig", 512, 1.0, pass_="fwbw", **changes), at("fla_gla", 512, 3.0, pass_="fwbw")]
    said = "Kernels of ours that changed after this was measured: NVIDIA H100 80GB HBM3: hopper_sig."
    assert (said in page(tmp_path, [r.model_copy(update={"device": "NVIDIA H100 80GB HBM3"}) for r in rows])) == told


def test_rows_of_other_versions_in_a_folder_are_named_and_not_divided(tmp_path):
    newer = RUN | {"packages": {"torch": "2.12.0", "triton": "3.6.0"}}
    rows = [at("tfla_sig_xl", 512, 1.0), at("sdpa", 512, 2.0, **ATTENTION, run_id="newer")]
    write(tmp_path / "fig4", rows, run=RUN, newer=newer)
    text = page(tmp_path)
    assert peers(text) == []
    assert "- Rows: [fig4, torch 2.11.0](fig4/rows.csv), " in text
    assert "- Other rows: [fig4, torch 2.12.0](fig4/rows.csv)." in text


def test_rows_of_another_triton_are_no_second_occasion(tmp_path):
    rows = [at("tfla_sig_xl", 512, 1.0, source_hash="same"), at("fla_gla", 512, 3.0, source_hash="same")]
    write(tmp_path / "a", rows, run=RUN)
    write(tmp_path / "b", rows, run=RUN | {"packages": {"torch": "2.11.0", "triton": "3.7.1"}})
    text = page(tmp_path)
    assert "- Other rows: [b, triton 3.7.1](b/rows.csv).\n" in text
    assert "second occasion:" not in text


def test_peers_timed_only_with_another_triton_stand_below_the_table_with_ours_of_the_same_comparison(tmp_path):
    def of(folder: str, triton: str, gla: float | None, ours: float) -> None:
        rows = [at("tfla_sig_xl", T, ours, source_hash="same", pass_=p) for T in (512, 4096) for p in ("fw", "fwbw")]
        rows += [at("fla_gla", T, gla, source_hash="same", pass_=p) for T in (512, 4096) for p in ("fw", "fwbw")]
        others = ("fla_kda", "fla_linear", "fla_delta_net") if gla is None else ()
        rows += [at(name, T, 9.0, source_hash="same") for T in (512, 4096) for name in others]
        packages = {"torch": "2.11.0", "triton": triton}
        write(tmp_path / folder, rows, run=RUN | {"packages": packages})

    of("a", "3.6.0", None, 1.0)
    of("b", "3.7.1", 3.0, 2.0)
    of("c", "3.9.0", 4.0, 2.0)
    text = page(tmp_path)
    cell = "fla_gla/tfla_sig_xl 3.00/2.00 = 1.50"
    titles = [f"{pass_}, T = {T}: {cell}" for pass_ in ("forward", "forward + backward") for T in (512, 4096)]
    assert f"- With triton 3.7.1, {'; '.join(titles)}: [b](b/rows.csv).\n" in text
    assert "- Other rows: [c, triton 3.9.0](c/rows.csv).\n" in text


def test_two_sizes_have_heads_cut_the_same_way(tmp_path):
    cuts = [{"heads": 4096 // d, "d_qk": d, "d_hv": d} for d in (64, 128)]
    rows = [at(name, T, 1.0, **cut) for name in ("tfla_sig_xl", "sdpa") for T in (512, 4096) for cut in cuts]
    text = page(tmp_path, rows)
    assert "65,536 tokens, embedding 4096, bfloat16, heads 32x128:" in text
    assert table(text)["peer"] == ["ours", "forward, T = 512", "forward, T = 4096"]


def test_the_size_shown_is_the_largest_of_those_with_about_as_many_ratios(tmp_path):
    names = ["sdpa", *(f"peer{n}" for n in range(4))]
    throttled = {512: [], 4096: names[:1], 65536: names[:2]}  # 5, 4 and 3 ratios
    rows = [at(name, T, 2.0, throttled=name in held) for T, held in throttled.items() for name in names]
    folder = write(tmp_path / "fig4", [*rows, *(at("tfla_sig_xl", T, 1.0) for T in throttled)])
    (campaign,) = campaigns(find_results(folder))
    (question,) = at_sizes([standing(campaign, our_kernels())], 1)
    assert question.size.seq_len == 4096


@pytest.mark.parametrize(
    ("there", "shown"),
    [([512, 4096], [4096, 4096]), ([512], [512, 512]), ([512, 1024], [512, 512]), ([1024], [4096, 1024])],
)
def test_devices_side_by_side_are_shown_at_a_size_that_they_share(tmp_path, there, shown):
    """The first has most ratios at T = 4096."""
    names = ["tfla_sig_xl", "sdpa", "peer0", "peer1"]
    rows = [at(name, 4096, 2.0) for name in names] + [at(name, 512, 2.0) for name in names[:2]]
    write(tmp_path / "a", rows, run=RUN)
    write(tmp_path / "b", [at(name, T, 2.0, device="NVIDIA B200") for name in names[:2] for T in there], run=RUN)
    standings = [standing(campaign, our_kernels()) for campaign in campaigns(find_results(tmp_path))]
    found = at_sizes(standings, 1)
    assert [question.device for question in found] == ["NVIDIA H200", "NVIDIA B200"]
    assert [question.size.seq_len for question in found] == shown


@pytest.mark.parametrize(
    ("more", "heads", "shown"),
    [(0, ["forward, T = 512", "forward, T = 4096"], 1), (350, ["forward"], 351), (500, ["forward"], 10)],
)
def test_a_page_of_many_peers_has_fewer_sizes_then_fewer_peers_and_at_most_1500_words(tmp_path, more, heads, shown):
    names = ["tfla_sig_xl", "sdpa", *(f"peer{n:03}" for n in range(more))]
    text = page(tmp_path, [at(name, T, 1.0 + n) for n, name in enumerate(names) for T in (512, 4096)])
    assert table(text)["peer"] == ["ours", *heads]
    assert len(peers(text)) == shown
    assert ("T = 4096, 65,536 tokens, embedding 4096, bfloat16:" in text) == (len(heads) == 1)
    assert ("- 491 more peers: in the rows." in text) == (more == 500)
    assert len(text.split()) <= headline.MOST_WORDS == 1500


@pytest.mark.parametrize(("preset", "tabled"), [("headdim", False), ("paper-fig14", True)])
def test_a_page_that_is_too_long_has_no_table_of_a_sweep_beside_the_papers_figures(
    tmp_path, preset, tabled, monkeypatch
):
    few = [at(name, 512, 2.0) for name in ("tfla_sig_xl", "sdpa")]
    for name, measured in (("own", preset), ("fig4", "paper-fig4")):
        write(tmp_path / name, few, run={"arguments": ["sweep", "--preset", measured]})
    text = page(tmp_path)
    assert load_preset(preset).title in text
    monkeypatch.setattr(headline, "MOST_WORDS", len(text.split()) - 1)
    text = page(tmp_path)
    assert (load_preset(preset).title in text) == tabled
    listed = "Beside the paper's figures, without a table here: [own](own/rows.csv) (NVIDIA H200)."
    assert (listed in text) != tabled
    assert load_preset("paper-fig4").title in text


def test_a_page_that_is_too_long_has_no_table_of_rows_that_were_not_compared(tmp_path):
    peers = [f"peer{n:03}" for n in range(60)]
    write(tmp_path / "new", [at("tfla_sig_xl", 512, 1.0), *(at(name, 512, 2.0) for name in peers)])
    for n in range(30):
        rows = [at(name, 512, 1.0, comparison_id=None, device=f"NVIDIA H{n}") for name in ("tfla_sig_xl", *peers)]
        write(tmp_path / f"old{n}", rows)
    text = headline.markdown(tmp_path, ["tflabench", "headline"], tmp_path)
    assert len(sections(text)) == 1
    assert "[old29](old29/rows.csv) (NVIDIA H29)" in text.split("Not measured in comparisons, so without a ratio: ")[1]


@pytest.mark.parametrize(
    ("commands", "again"),
    [
        ("sweep --out 'a b' -a seq_len=512", "`tflabench sweep -a seq_len=512 --out again`"),
        ("sweep --out='a -b' -a seq_len=512", "`tflabench sweep -a seq_len=512 --out again`"),
        ("sweep -a seq_len=512 --timeout 9 --no-plots", "`tflabench sweep -a seq_len=512 --out again`"),
        ("sweep --preset quick", "`tflabench sweep --out again`"),
        ("sweep;sweep --jobs 2", "`tflabench sweep --out again`"),
        (
            "sweep --preset paper-fig4 -a seq_len=512 --tune-seconds 60;sweep --preset=paper-fig4 --tune-seconds 60",
            "`tflabench sweep --preset paper-fig4 --out again`",
        ),
        (
            "sweep --preset paper-fig4 -a seq_len=512 --tune-seconds 60;sweep --preset paper-fig4 --tune-seconds 60",
            "`tflabench sweep --preset paper-fig4 --tune-seconds 60 --out again`",
        ),
        ("sweep --preset paper-fig4;sweep --preset paper-fig12", "the command was not recorded."),
        ("reproduce fig4", "the command was not recorded."),
    ],
)
def test_the_last_line_measures_again(tmp_path, commands, again):
    runs = {str(n): RUN | {"arguments": shlex.split(command)} for n, command in enumerate(commands.split(";"))}
    rows = [at("tfla_sig_xl", 512 * 2 ** int(name), 1.0, run_id=name) for name in runs]
    assert page(tmp_path, rows, **runs).endswith(f"- Again: {again}\n")


def test_commands_that_differ_say_on_which_device(tmp_path):
    for name, options in {"H100 80GB HBM3": "--tune-seconds 60", "H200": ""}.items():
        rows = [at(each, 512, 1.0, device=f"NVIDIA {name}") for each in ("tfla_sig_xl", "nxai_sig_xl")]
        command = shlex.split(f"sweep --preset paper-fig4 {options}")
        write(tmp_path / name, rows, run=RUN | {"arguments": command})
    text = headline.markdown(tmp_path, ["tflabench", "headline"], tmp_path)
    assert "- Again, H100: `tflabench sweep --preset paper-fig4 --tune-seconds 60 --out again`\n" in text
    assert "- Again, H200: `tflabench sweep --preset paper-fig4 --out again`\n" in text


def test_where_nothing_of_ours_was_measured_a_line_says_so(tmp_path):
    text = page(tmp_path / "attention", [at("sdpa", 512, 2.0, **ATTENTION), at("reference_sig", 512, 9.0)])
    assert text.endswith("No kernel of ours was measured in [attention](rows.csv) (NVIDIA H200).\n")
    assert sections(text) == []


def test_the_command_prints_or_writes_the_page(tmp_path):
    write(tmp_path / "fig4", [at("tfla_sig_xl", 512, 1.0)])
    printed = CliRunner().invoke(app, ["headline", str(tmp_path)])
    assert printed.stdout.startswith("# Results\n")
    out = tmp_path / "README.md"
    done = CliRunner().invoke(app, ["headline", str(tmp_path), "--out", str(out)])
    assert (done.exit_code, done.stdout.strip()) == (0, str(out))
    assert f"`tflabench headline {tmp_path} --out {out}`" in out.read_text()
    assert CliRunner().invoke(app, ["headline", str(tmp_path), "--out", str(out / "below")]).exit_code == 2


def test_an_empty_folder_is_one_line_and_exit_code_2(tmp_path):
    done = CliRunner().invoke(app, ["headline", str(tmp_path)])
    assert (done.exit_code, done.stdout, len(done.stderr.strip().splitlines())) == (2, "", 1)
    assert f"{tmp_path} holds no results" in done.stderr


def test_the_committed_page_is_what_the_stored_rows_make(monkeypatch):
    monkeypatch.chdir(committed_checkout())
    results, command = Path("results"), ["tflabench", "headline", "results", "--out", "results/README.md"]
    made = headline.markdown(results, command, results)
    assert made == (results / "README.md").read_text(), f"rows have changed: run `{' '.join(command)}`"
    assert len(made.split()) <= 1500
    figures = [title.split(":")[0] for title in sections(made) if title.startswith("Fig.") and "H200" in title]
    assert figures == ["Fig. 4", "Fig. 4 with matched heads", "Fig. 5", "Fig. 12", "Fig. 13", "Fig. 14"]


def test_our_kernels_are_the_bundled_ones_without_the_pytorch_forms():
    kernels = our_kernels()
    assert {"tfla_sig_xl", "tfla_exp_limit"} <= kernels
    assert not any(name.startswith(("reference", "nxai", "sdpa", "fla_")) for name in kernels)


def test_the_subject_is_whose_kernels_are_ours(tmp_path):
    folder = write(tmp_path, [at("my_kernel", 512, 1.0), at("tfla_sig_xl", 512, 2.0), at("reference_sig", 512, 9.0)])
    assert table(page(folder))["my_kernel"] == ["tfla_sig_xl", "1.00/2.00 = **0.500**"]
    path = tmp_path / "page.md"
    done = CliRunner().invoke(app, ["headline", str(folder), "--subject", "my_*,other", "--out", str(path)])
    assert done.exit_code == 0, done.output
    text = path.read_text()
    assert table(text)["tfla_sig_xl"] == ["my_kernel", "2.00/1.00 = 2.00"]
    assert table(text)["reference_sig"] == ["my_kernel", "9.00/1.00 = 9.00"]
    assert "compares what `--subject 'my_*,other'` names (*ours*) with all others (*peers*)" in text
    assert f"`tflabench headline {folder} --subject 'my_*,other' --out {path}`" in text


def test_a_subject_that_no_row_is_of_is_refused(tmp_path):
    write(tmp_path, [at("my_kernel", 512, 1.0)])
    done = CliRunner().invoke(app, ["headline", str(tmp_path), "--subject", "my_kernal"])
    assert done.exit_code == 2
    assert "--subject is 'my_kernal', which no row is of; did you mean my_kernel?" in done.stderr
