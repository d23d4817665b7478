"""The numbers in pages are those of the stored rows, and the page of results takes ratios by the one rule."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import headline
import pages
import pytest
from committed import committed_checkout
from repository import ROOT
from synthetic import APART, RUN, row, write

from tflabench.problem import InputError
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


def test_devices_with_other_versions_of_our_kernels_have_tables_of_their_own(tmp_path):
    def heads_of(version: int) -> list[str]:
        measured = [at("hopper_sig", 512, 1.0, kernel_version=version), at("nxai_sig_xl", 512, 2.0)]
        other = [each.model_copy(update=H100 | {"kernel_version": 26}) for each in measured]
        write(tmp_path / "h100", other, run=RUN)
        return [line for line in page(tmp_path, measured).splitlines() if line.startswith(("|peer", "Kernels"))]

    assert len(heads_of(26)) == 1
    words, first, more_words, second = heads_of(25)
    assert {words, more_words} == {"Kernels of ours: hopper 25.", "Kernels of ours: hopper 26."}
    assert {"H100" in first, "H200" in first} == {"H100" in second, "H200" in second} == {True, False}


def test_the_table_of_the_readme_refuses_two_versions_of_a_kernel(tmp_path):
    rows = [at("hopper_sig", 4096, 1.0, kernel_version=26), at("hopper_exp", 4096, 1.0, kernel_version=25)]
    for name in ("paper-fig4", "paper-fig4-triton-3.7.1"):
        write(tmp_path / "h100" / name, rows, run=RUN)
    with pytest.raises(InputError, match="versions"):
        list(pages.readme_table(tmp_path))


OURS = {
    "hopper_sig": "sig",
    "hopper_exp": "exp",
    "hopper_mamba2": None,
    "hopper_simple_gla": None,
    "hopper_retention": None,
}


def of_fig4(folder: Path, ours: float, peer: dict[int, float]) -> None:
    """Write our kernels and a peer of mLSTMsig that takes this long at each T, as of one occasion."""
    rows = []
    for pass_ in ("fw", "fwbw"):
        beside = {"pass_": pass_, "host_ms": 0.5}
        for T, ms in peer.items():
            of_size = {**beside, "comparison_id": f"{folder.name} {pass_} {T}"}
            rows += [at(name, T, ours, gate=gate, **of_size) for name, gate in OURS.items()]
            rows.append(at("nxai_sig_xl", T, ms, **of_size))
    write(folder, rows, run=RUN)


def test_the_table_of_the_readme_takes_the_fastest_peer_in_any_triton_and_ours_beside_it(tmp_path):
    of_fig4(tmp_path / "h100" / "paper-fig4", 1.0, {512: 4.0, 4096: 3.0})
    of_fig4(tmp_path / "h100" / "paper-fig4-triton-3.7.1", 1.1, {4096: 2.2})
    cells = {line.split(" | ")[0]: line.split(" | ")[1:6] for line in pages.readme_table(tmp_path)}
    assert cells["| mLSTMsig"][1:] == ["1.10", "2.20‡", "2.0", "2.0 to 4.0"]
    assert cells["| mLSTMexp"] == ["none", "1.00", "", "", ""]
