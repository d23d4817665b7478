"""`tflabench rows merge`: which row of a point counts, what comes along, what is refused."""

from __future__ import annotations

import json

import pytest
from synthetic import IN_FULL, RUN, row, write
from typer.testing import CliRunner

from tflabench.cli.main import app
from tflabench.conclusions.ratio import comparable
from tflabench.rows.load import read_results

EARLIER, LATER = "2026-11-20T12:00:00+00:00", "2026-11-22T12:00:00+00:00"


def merge(*arguments, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["rows", "merge", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def folders(tmp_path):
    """One with a row of T = 4096, and one to add to it, of another run."""
    arguments = ["sweep", "--preset", "paper-fig4"]
    source = [row(seq_len=512, run_id="b"), row(ms=2.0, run_id="b", started_at=LATER)]
    return (
        write(tmp_path / "into", [row(ms=1.0)]),
        write(tmp_path / "source", source, b={**RUN, "arguments": arguments}, unused=RUN),
    )


def test_what_was_measured_last_counts_and_its_run_comes_along(folders):
    into, source = folders
    told = merge(source, "--into", into)
    assert "1 new points, 1 measured again, from" in told
    found = read_results(into)
    assert {r.seq_len: (r.ms_median, r.run_id) for r in found.rows} == {4096: (2.0, "b"), 512: (1.0, "b")}
    assert set(found.runs) == {"run", "b"}  # not the one whose rows nobody took
    assert found.runs["b"]["arguments"] == ["sweep", "--preset", "paper-fig4"]
    assert (into / "rows.csv").read_text().count("\n") == 3
    assert (into / "rows.parquet").exists()


def test_twice_is_as_good_as_once(folders):
    into, source = folders
    merge(source, "--into", into)
    before = (into / "journal.jsonl").read_bytes()
    assert "0 new points, 0 measured again, 2 left out for what was there" in merge(source, "--into", into)
    assert (into / "journal.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({"started_at": EARLIER}, 1.0),
        ({"ms": None, "started_at": LATER}, 1.0),
        ({"ms": 2.0, "started_at": LATER, "closed": False}, 1.0),
    ],
)
def test_neither_an_older_row_nor_a_failure_nor_a_provisional_one_replaces_a_measurement(tmp_path, changes, counts):
    into, source = write(tmp_path / "into", [row(ms=1.0)]), write(tmp_path / "source", [row(**changes)])
    assert "1 left out" in merge(source, "--into", into)
    assert [r.ms_median for r in read_results(into).rows] == [1.0]


@pytest.mark.parametrize("started_at", [EARLIER, LATER])
def test_a_measurement_replaces_a_failure(tmp_path, started_at):
    into = write(tmp_path / "into", [row(ms=None)])
    merge(write(tmp_path / "source", [row(ms=3.0, started_at=started_at)]), "--into", into)
    assert [r.status for r in read_results(into).rows] == ["ok"]


def test_folders_of_a_folder_go_to_those_of_the_same_name(tmp_path):
    write(tmp_path / "from" / "paper-fig4", [row()])
    write(tmp_path / "from" / "paper-fig12", [row(seq_len=512)])
    merge(tmp_path / "from", "--into", tmp_path / "into")
    assert [r.seq_len for r in read_results(tmp_path / "into" / "paper-fig4").rows] == [4096]
    assert [r.seq_len for r in read_results(tmp_path / "into" / "paper-fig12").rows] == [512]


def test_only_some_implementations_and_one_pass(tmp_path):
    source = write(tmp_path / "source", [row("sdpa"), row("sdpa_flash"), row("sdpa", pass_="fwbw"), row("fla_gla")])
    merge(source, "--into", tmp_path / "into", "--impl", "sdpa*", "--pass", "fw")
    found = {(r.implementation, r.pass_) for r in read_results(tmp_path / "into").rows}
    assert found == {("sdpa", "fw"), ("sdpa_flash", "fw")}
    told = merge(source, "--into", tmp_path / "into", "--impl", "x*", code=2)
    assert "--impl 'x*' and --pass both name no implementation" in told
    assert "pass" in merge(source, "--into", tmp_path / "into", "--pass", "bw", code=2)


def test_rows_of_another_device_and_a_folder_into_itself_are_refused(tmp_path, folders):
    into, source = folders
    other = write(tmp_path / "other", [row(device="NVIDIA A100")])
    before = (into / "journal.jsonl").read_bytes()
    told = merge(other, "--into", into, code=2)
    assert "NVIDIA A100" in told
    assert "holds rows of one device, so merge into another one" in told
    assert "SOURCE must be another folder" in merge(into, source, "--into", into, code=2)
    assert "does not exist" in merge(tmp_path / "nowhere", "--into", into, code=2)
    assert (into / "journal.jsonl").read_bytes() == before
    assert json.loads((into / "environment.json").read_text())["runs"].keys() == {"run"}


def test_rows_keep_their_comparison_wherever_they_go(tmp_path):
    ours, theirs = row(comparison_id="first"), row("sdpa", comparison_id="first", tuned=IN_FULL)
    later = row("sdpa", comparison_id="second", started_at=LATER)
    into = write(tmp_path / "into", [ours, theirs])
    merge(write(tmp_path / "source", [later]), "--into", into)
    found = read_results(into).rows
    assert [r.comparison_id for r in found] == ["first", "second"]
    assert not comparable(*found), "one side of the comparison is gone"


@pytest.mark.parametrize(
    "command",
    [
        "plot {old}",
        "reproduce fig4 --results {old} --out {old}",
        "compare {old} {new}",
        "rows merge {old} --into {new}",
        "rows merge {new} --into {old}",
    ],
)
def test_an_older_schema_is_refused_in_one_line_by_every_command(tmp_path, command):
    old, new = write(tmp_path / "old", [row(), row("sdpa")]), write(tmp_path / "new", [row()])
    older = (old / "journal.jsonl").read_text().replace('"schema_version":4', '"schema_version":3')
    (old / "journal.jsonl").write_text(older)
    before = (old / "journal.jsonl").read_bytes(), (new / "journal.jsonl").read_bytes()
    done = CliRunner().invoke(app, command.format(old=old, new=new).split())
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    (line,) = (each for each in done.stderr.splitlines() if each.startswith("tflabench: "))
    assert "was written with row schema 3 and this version reads 4: use the version of tflabench that wrote it" in line
    assert ((old / "journal.jsonl").read_bytes(), (new / "journal.jsonl").read_bytes()) == before
