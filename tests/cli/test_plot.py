"""`tflabench plot` on the command line: what it writes, and what it says of bad input."""

from __future__ import annotations

import json

import pytest
from commands import output, refused

from tflabench.rows.schema import Row

ROW = {
    "run_id": "run", "point": "sdpa/fw", "implementation": "sdpa", "title": "SDPA", "family": "attention",
    "formulation": "attention", "package": "torch", "pass": "fw", "batch": 1, "heads": 4, "d_qk": 64, "d_hv": 64,
    "dtype": "float32", "inputs": "normal", "seed": 0, "device": "a CPU", "status": "ok", "ms_median": 1.0,
    "ms_p20": 0.9, "ms_p80": 1.1, "peak_bytes": 2**20, "protocol": "short", "node": "here",
    "started_at": "2026-11-21T12:00:00+00:00",
}  # fmt: skip


@pytest.fixture
def results(tmp_path):
    """A results folder of three sequence lengths."""
    rows = [Row.model_validate(ROW | {"seq_len": n, "point": f"sdpa/fw/T{n}"}) for n in (256, 512, 1024)]
    (tmp_path / "journal.jsonl").write_text("".join(r.model_dump_json(by_alias=True) + "\n" for r in rows))
    return tmp_path


def test_prints_the_files_it_wrote(results):
    drawn = output("plot", str(results), "--format", "svg", "--what", "runtime,memory").split()
    stems = ("runtime", "memory")
    assert drawn == [
        str(results / "figures" / f"{stem}-seq_len.{kind}") for stem in stems for kind in ("svg", "txt", "csv")
    ]
    assert all((results / "figures" / path).exists() for path in drawn)


def test_writes_where_it_is_told(results, tmp_path):
    out = tmp_path / "elsewhere"
    output("plot", str(results), "--out", str(out), "--format", "png", "--what", "runtime")
    assert {path.name for path in out.iterdir()} == {f"runtime-seq_len.{kind}" for kind in ("png", "txt", "csv")}
    assert not (results / "figures").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--what", "runtme"], "no figure is called 'runtme'; did you mean runtime?"),
        (["--format", "gif"], "no format is called 'gif'"),
    ],
)
def test_unknown_words_are_named(results, words, reason):
    refused(["plot", str(results), *words], reason)


def test_rows_of_another_schema(results):
    (results / "journal.jsonl").write_text(json.dumps({"schema_version": 99}) + "\n")
    refused(["plot", str(results)], "row schema 99")
