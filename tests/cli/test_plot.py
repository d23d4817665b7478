"""`tflabench plot` on the command line: what it writes, and what it says of bad input."""

from __future__ import annotations

import json
import os

import pytest
from typer.testing import CliRunner

from tflabench.cli.main import app
from tflabench.rows.schema import Row

runner = CliRunner()
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
    done = runner.invoke(app, ["plot", str(results), "--format", "svg", "--what", "runtime,memory"])
    assert done.exit_code == 0, done.output
    expected = [
        results / "figures" / f"{stem}-seq_len.{kind}"
        for stem in ("runtime", "memory")
        for kind in ("svg", "txt", "csv")
    ]
    assert done.stdout.split() == [str(path) for path in expected]
    assert all(path.exists() for path in expected)


def test_writes_where_it_is_told(results, tmp_path):
    out = tmp_path / "elsewhere"
    done = runner.invoke(app, ["plot", str(results), "--out", str(out), "--format", "png", "--what", "runtime"])
    assert done.exit_code == 0, done.output
    assert {path.name for path in out.iterdir()} == {f"runtime-seq_len.{kind}" for kind in ("png", "txt", "csv")}
    assert not (results / "figures").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--what", "runtme"], "no figure is called 'runtme'; did you mean runtime?"),
        (["--what", ""], "--what is '': it must not be empty"),
        (["--format", "gif"], "no format is called 'gif'"),
    ],
)
def test_unknown_words_are_named(results, arguments, says):
    refused(runner.invoke(app, ["plot", str(results), *arguments]), says)


def test_a_folder_without_results(tmp_path):
    refused(runner.invoke(app, ["plot", str(tmp_path)]), "results folder")
    refused(runner.invoke(app, ["plot", str(tmp_path / "missing")]), "results folder")


def test_a_folder_without_rows(tmp_path):
    (tmp_path / "journal.jsonl").touch()
    refused(runner.invoke(app, ["plot", str(tmp_path)]), "no rows")


def test_rows_of_another_schema(results):
    (results / "journal.jsonl").write_text(json.dumps({"schema_version": 99}) + "\n")
    refused(runner.invoke(app, ["plot", str(results)]), "row schema 99")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(results, tmp_path):
    out = tmp_path / "locked"
    out.mkdir(mode=0o500)
    refused(runner.invoke(app, ["plot", str(results), "--out", str(out)]), "cannot be written")


def test_a_file_in_place_of_the_folder(results, tmp_path):
    (tmp_path / "file").touch()
    refused(runner.invoke(app, ["plot", str(results), "--out", str(tmp_path / "file")]), "cannot be written")


def refused(done, says: str) -> None:
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    assert says in line
