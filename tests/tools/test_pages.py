"""The numbers in pages are those of the stored rows, and the page of results takes ratios by the one rule."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import headline
import operations
import pages
import pytest
from committed import committed_checkout
from repository import ROOT
from synthetic import APART, IN_PART, RUN, row, write

from tflabench.figures.model import Bars
from tflabench.rows import journal
from tflabench.rows.schema import Row

RUN = RUN | {"arguments": ["sweep", "--preset", "paper-fig4", "--impl", "tfla*"], "commit": "0123456789ab"}
ATTENTION = {"family": "attention", "gate": None, "heads": 32, "d_qk": 128, "d_hv": 128, "chunk_size": None}
THROTTLED = {"throttled": True}
H100 = {"device": "NVIDIA H100 80GB HBM3"}


def test_pages_are_what_the_stored_rows_make(monkeypatch):
    monkeypatch.setattr(journal, "packed_lines", cache(journal.packed_lines))  # which several pages read
    texts = pages.pages(ROOT, committed_checkout() / "results")
    stale = [name for name, text in texts.items() if text != (ROOT / name).read_text()]
    assert not stale, "rows or pages have changed: run `python tools/pages.py`"


def page(folder: Path, rows: list[Row] | None = None, **runs) -> str:
    """Return the page of a folder, with these rows in it where they are given."""
    if rows is not None:
        write(folder / "fig4", rows, **({"run": RUN} | runs))
    return headline.markdown(folder)


def table(text: str) -> dict[str, list[str]]:
    """Return the cells of all tables by the first of their line, in order."""
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if re.match(r"\|[^-]", line)]
    return {first: rest for first, *rest in lines}


def at(name: str, T: int, ms: float | None, **changes) -> Row:
    return row(name, ms, **({"seq_len": T, "batch": 65536 // T} | changes))


BESIDE = [at("fla_gla", 512, 3.0, comparison_id="beside"), at("hopper_sig", 512, 1.5, comparison_id="beside")]


@pytest.mark.parametrize(("of_ours", "of_theirs"), APART.values(), ids=APART)
def test_times_that_are_not_comparable_stand_without_a_ratio(tmp_path, of_ours, of_theirs):
    rows = [at("tfla_sig_xl", 512, 1.0, **of_ours), at("sdpa_cudnn", 512, 0.5, **ATTENTION, **of_theirs), *BESIDE]
    assert table(page(tmp_path, rows))["sdpa_cudnn"] == ["tfla_sig_xl", "0.500/1.00"]


@pytest.mark.parametrize(
    ("of_ours", "of_theirs", "ms", "cell"),
    [
        (THROTTLED, {}, 0.5, "0.500/1.00†"),
        ({}, THROTTLED, 0.5, "0.500†/1.00 ≤ **0.500**"),
        ({}, {}, 0.5, "0.500/1.00 = **0.500**"),
        (THROTTLED, {}, 2.0, "2.00/1.00† ≥ 2.00"),
        ({}, THROTTLED, 2.0, "2.00†/1.00"),
    ],
)
def test_a_throttled_time_is_marked_and_has_a_bound_if_it_is_the_shorter(tmp_path, of_ours, of_theirs, ms, cell):
    rows = [at("tfla_sig_xl", 512, 1.0, **of_ours), at("sdpa_cudnn", 512, ms, **ATTENTION, **of_theirs), *BESIDE]
    assert table(page(tmp_path, rows))["sdpa_cudnn"] == ["tfla_sig_xl", cell]


def test_a_peer_is_held_against_ours_that_computes_the_same(tmp_path):
    """Attention meets mLSTM, here of its own comparison; plain PyTorch and failures meet nobody."""
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
        at("sdpa_cudnn", 512, 2.2, **ATTENTION),
        at("mamba2", 512, 2.0, **linear),
        at("sdpa", 512, None, **ATTENTION),
        at("reference_sig", 512, 0.1),
    ]
    text = page(tmp_path, rows)
    assert table(text) == {
        "peer": ["ours", "H200, forward"],
        "*% of bound (not recorded)*": ["hopper_sig", "0.900 (30%)"],
        "nxai_exp_xl": ["tfla_exp_xl", "2.40/1.20 = 2.00"],
        "sdpa_cudnn": ["tfla_sig_xl", "2.20/1.00 = 2.20"],
        "fla_simple_gla": ["hopper_simple_gla", "1.50/0.500 = 3.00"],
        "fla_retention": ["hopper_retention", "1.60/0.400 = 4.00"],
        "mamba2": ["", "2.00"],
    }
    assert "- Failures, oom: sdpa\n" in text


def test_kernels_that_changed_after_they_were_measured_are_named(tmp_path):
    rows = [at("hopper_sig", 512, 1.0, kernel_version=0), at("fla_gla", 512, 3.0)]
    assert "- Kernels of ours that changed after this was measured: hopper_sig.\n" in page(tmp_path, rows)


def test_of_several_folders_the_table_is_of_the_one_with_todays_kernels(tmp_path):
    older = [row.model_copy(update={"kernel_version": 25}) for row in BESIDE]
    more = [at("fla_gla", 512, 9.0, comparison_id="beside"), at("nxai_sig_xl", 512, 8.0, comparison_id="beside")]
    write(tmp_path / "older", [*older, *more], run=RUN)
    assert table(page(tmp_path, BESIDE))["fla_gla"] == ["hopper_sig", "3.00/1.50 = 2.00"]


def test_the_page_says_that_fig_13_has_no_peer_at_its_fastest_chunk_size():
    alike = {"implementation": "nxai_sig_xl", "heads": 32, "seq_len": 4096, "pass_": "fw"}
    ms = {
        folder: {
            each.chunk_size: each.ms_median or 0.0
            for each in pages.ok_rows(ROOT / "results" / "h100" / folder)
            if all(getattr(each, name) == value for name, value in alike.items())
        }
        for folder in ("paper-fig13", "peers")
    }
    assert list(ms["paper-fig13"]) == [256]
    assert min(ms["peers"], key=ms["peers"].__getitem__) == 128
    assert "L = 256 of it alone, where [128 is faster]" in headline.HEAD


def test_devices_with_other_versions_of_our_kernels_or_the_protocol_have_tables_of_their_own(tmp_path):
    def heads_of(version: int, protocol: int) -> list[str]:
        measured = [at("hopper_sig", 512, 1.0, kernel_version=version), at("nxai_sig_xl", 512, 2.0)]
        measured = [each.model_copy(update={"protocol_version": protocol}) for each in measured]
        other = [each.model_copy(update=H100 | {"kernel_version": 26, "protocol_version": 2}) for each in measured]
        write(tmp_path / "h100", other, run=RUN)
        return [line for line in page(tmp_path, measured).splitlines() if line.startswith(("|peer", "H100,", "H200,"))]

    assert len(heads_of(26, 2)) == 1
    for version, protocol in ((25, 2), (26, 1)):
        lines = heads_of(version, protocol)
        assert f"H200, protocol {protocol}, kernels of ours hopper {version}:" in lines
        assert "H100, protocol 2, kernels of ours hopper 26:" in lines
        assert sum("forward" in line and "H100" in line and "H200" in line for line in lines) == 0


def compared(name: str, ours: float, peer: dict[int, float], triton: str = "3.6.0", **of_peer) -> list[Row]:
    """Return our mLSTMsig and a peer of it that takes this long at each T, both passes, as of one occasion."""
    rows = []
    for T, ms in peer.items():
        for pass_ in ("fw", "fwbw"):
            beside = {"pass_": pass_, "host_ms": 0.5, "run_id": triton, "comparison_id": f"{name} {pass_} {T}"}
            rows += [at("hopper_sig", T, ours, **beside), at("nxai_sig_xl", T, ms, **beside, **of_peer)]
    return rows


def quoted(folder: Path, *rows: Row) -> list[str]:
    """Return what README says of mLSTMsig's forward pass, from rows in the folder of Fig. 4."""
    runs = {triton: RUN | {"packages": {"torch": "2.11.0", "triton": triton}} for triton in ("3.6.0", "3.7.1")}
    write(folder / "h100" / "paper-fig4", list(rows), **runs)
    measured = operations.Comparisons.below(folder)
    lines = {
        line.split(" | ")[0]: line.split(" | ")[2:6]
        for line in operations.table(measured, "operation", operations.OPERATIONS, "rows")
    }
    return lines.get("| mLSTMsig", [])


def test_the_table_of_the_readme_takes_the_fastest_peer_in_any_triton_and_ours_beside_it(tmp_path):
    usual = compared("first", 1.0, {512: 4.0, 4096: 3.0})
    ours, peer, over, span = quoted(tmp_path, *usual, *compared("other", 1.1, {4096: 2.2}, "3.7.1"))
    assert (ours, peer, over[:5], span) == ("1.10", "mlstm_kernels 2.20‡", "[2.00", "2.00 to 4.00")


def test_occasions_are_held_against_each_other_where_kernels_are_the_same(tmp_path):
    def measured(*times: float, **changes) -> list[Row]:
        names = ("hopper_sig", "tfla_sig_xl", "nxai_sig_xl")
        rows = [at(name, 512, ms, comparison_id="one") for name, ms in zip(names, times, strict=True)]
        return [rows[0].model_copy(update=changes), *rows[1:]]

    write(tmp_path / "first", measured(1.0, 2.0, 3.0), run=RUN)
    write(tmp_path / "again", measured(1.0, 2.1, 3.0), run=RUN)
    write(tmp_path / "newer", measured(0.5, 2.0, 3.0, kernel_version=0), run=RUN)
    assert str(pages.Moves.between(tmp_path / "first", tmp_path / "again")) == "3 | 33.3% | 3 | 5.0%"
    assert str(pages.Moves.between(tmp_path / "first", tmp_path / "newer")) == "1 | 100.0% | 2 | 0.0%"


def test_gpus_of_one_kind_stand_beside_each_other(tmp_path):
    run = RUN | {"packages": {"triton": "3.6.0"}, "ceilings": {"bfloat16": {"bytes_per_s": 3.02e12, "flops_per_s": 1}}}
    for uuid, ms in (("GPU-1", 1.0), ("GPU-2", 1.02)):
        rows = [at("hopper_sig", 4096, ms, gpu_uuid=uuid), at("nxai_sig_xl", 4096, 2.5, gpu_uuid=uuid)]
        write(tmp_path / "h100" / uuid, [*rows, at("hopper_sig", 4096, 0.5, gpu_uuid=uuid, heads=32)], run=run)
    _, _, *lines = pages.gpus(tmp_path)
    assert [line.split(" | ")[2:4] for line in lines] == [["3.020", "1.00"], ["3.020", "1.02"]]


def test_of_several_occasions_the_readme_has_the_last(tmp_path):
    last = [row.model_copy(update={"started_at": "2026-11-28"}) for row in compared("last", 1.0, {4096: 3.5})]
    write(tmp_path / "h100" / "chunk", last, **{"3.6.0": RUN})
    assert quoted(tmp_path, *compared("first", 1.0, {4096: 3.0}))[1] == "mlstm_kernels 3.50"


def test_a_peer_that_was_tuned_in_part_has_no_ratio_in_the_readme_and_hides_no_slower_one(tmp_path):
    slower = at("fla_mlstm_sig", 4096, 3.0, comparison_id="first fw 4096", run_id="3.6.0")
    rows = [*compared("first", 1.0, {4096: 4.0}, tuned=IN_PART), slower]
    assert quoted(tmp_path, *rows)[1:] == ["mlstm_kernels 4.00", "tuned in part", ""]


def test_the_readme_quotes_no_kernels_that_have_changed_since(tmp_path):
    older = [row.model_copy(update={"kernel_version": 25}) for row in compared("older", 0.5, {4096: 3.0})]
    slower = at("tfla_sig_xl", 4096, 2.0, comparison_id="older fw 4096", run_id="3.6.0")
    assert quoted(tmp_path, *older, slower, *compared("today", 1.0, {512: 3.0})) == []


def test_the_figure_of_the_readme_has_a_bar_for_each_time_of_its_table(tmp_path):
    quoted(tmp_path, *compared("first", 1.0, {4096: 3.0}))
    figure = operations.figure(operations.Comparisons.below(tmp_path))
    assert figure.columns == len(figure.panels) == 2
    for panel in figure.panels:
        (bars,) = (item for item in panel.items if isinstance(item, Bars))
        assert [value for value in bars.values if value > 0] == [1.0, 3.0]
        assert bars.labels[:2] == ("mLSTMsig", "mlstm_kernels")
