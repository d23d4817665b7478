"""`tflabench rows` merge, recount and migrate: which row of a point counts, what comes along, changes, is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT
from synthetic import IN_FULL, RUN, row, write
from typer.testing import CliRunner

from tflabench.bench import theory_columns
from tflabench.cli.main import app
from tflabench.conclusions.compare import comparable
from tflabench.conclusions.model_error import is_of_other_launches
from tflabench.implementations import registry
from tflabench.problem import InputError, Problem
from tflabench.rows.load import read_results
from tflabench.rows.migrate import migrate as migrate_folder
from tflabench.rows.schema import Row
from tflabench.theory.hardware import Ceilings

EARLIER, LATER = "2026-11-20T12:00:00+00:00", "2026-11-22T12:00:00+00:00"


def merge(*arguments, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["rows", "merge", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def folders(tmp_path):
    """One with a row of T = 4096, and one to add to it, of another run."""
    arguments = ["sweep", "--preset", "paper-fig4", "--out", "/elsewhere/rows"]
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
    assert found.runs["b"]["arguments"] == ["sweep", "--preset", "paper-fig4", "--out", str(into)]
    assert (into / "rows.csv").read_text().count("\n") == 3
    assert (into / "rows.parquet").exists()


def test_twice_is_as_good_as_once(folders):
    into, source = folders
    merge(source, "--into", into)
    before = (into / "journal.jsonl").read_bytes()
    assert "0 new points, 0 measured again, 2 left out for what was there" in merge(source, "--into", into)
    assert (into / "journal.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "counts"), [({"started_at": EARLIER}, 1.0), ({"ms": None, "started_at": LATER}, 1.0)]
)
def test_neither_an_older_row_nor_a_failure_replaces_a_measurement(tmp_path, changes, counts):
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


CEILINGS = {"flops_per_s": 782e12, "bytes_per_s": 4.26e12, "provenance": "measured", "source": "calibrate"}


def counted(row: Row) -> Row:
    return theory_columns.recounted(row, Ceilings(**CEILINGS))  # type: ignore[arg-type]


def recount(folder: Path, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["rows", "recount", str(folder)])
    assert done.exit_code == code, done.output
    return done.output


def test_theory_is_counted_anew_and_times_stay(tmp_path):
    right, stale = counted(row(seq_len=512)), row(ms=3.0, model_bytes=1.0, percent_of_own_roofline=140.0)
    gone, unknown = row("no_longer_there", seq_len=1024), row(seq_len=2048, run_id="older")
    folder = write(tmp_path, [right, stale, gone, unknown], run={**RUN, "ceilings": {"bfloat16": CEILINGS}})
    assert "1 of 4 rows changed, 2 left as they are" in recount(folder)
    found = {r.seq_len: r for r in read_results(folder).rows}
    assert found[4096] == counted(stale)
    assert found[4096].ms_median == 3.0
    assert (
        found[4096].model_bytes
        == theory_columns.modelled(
            registry.get("tfla_sig_xl"),
            Problem(16, 16, 4096, 128, 256, 128),
            Ceilings(**CEILINGS),
            None,  # type: ignore[arg-type]
        )["model_bytes"]
    )
    assert [found[T] for T in (512, 1024, 2048)] == [right, gone, unknown]
    assert "0 of 4 rows changed" in recount(folder)
    assert "does not exist" in recount(tmp_path / "nowhere", code=2)


def test_a_recount_leaves_rows_of_kernels_that_have_changed_since(tmp_path):
    sizes: dict[str, Any] = {"heads": 128, "d_qk": 32, "d_hv": 32, "chunk_size": 4096, "model_bytes": 1.0}
    before, since = "2026-11-26T20:00:00+00:00", "2026-11-27T20:00:00+00:00"
    rows = [row("hopper_sig", pass_=pass_, started_at=at, **sizes) for pass_, at in (("fwbw", before), ("fw", since))]
    folder = write(tmp_path, rows, run={**RUN, "ceilings": {"bfloat16": CEILINGS}})
    assert "1 of 2 rows changed, 1 left as they are" in recount(folder)
    stored = {found.pass_: found.model_bytes for found in read_results(folder).rows}
    assert stored["fwbw"] == 1.0
    assert (stored["fw"] or 0) > 1e9


NEW = ("comparison_id", "closed", "rounds", "tune_s", "check_s", "measure_s", "tuned", "gpu_kernels", "commit",
       "source_hash", "gpu_uuid", "driver")  # fmt: skip
NEWER = ("node", "mixed_versions")  # than version 3


def of_schema_1(made: Row) -> str:
    """A row as version 1 wrote it."""
    columns = {name: value for name, value in of_schema_2(made).items() if name not in NEW}
    return json.dumps(columns | {"schema_version": 1}) + "\n"


def of_schema_2(made: Row) -> dict:
    """The columns of a row as version 2 had them."""
    columns = of_schema_3(made) | {"schema_version": 2}
    del columns["percent_of_bound"]
    columns["percent_of_roofline"] = columns.pop("percent_of_own_roofline")
    return columns


def of_schema_3(made: Row) -> dict:
    """The columns of a row as version 3 had them."""
    return {name: value for name, value in made.columns().items() if name not in NEWER} | {"schema_version": 3}


def old_folder(folder: Path, rows: list[Row], **runs) -> Path:
    write(folder, rows, **runs)
    (folder / "journal.jsonl").write_text("".join(map(of_schema_1, rows)))
    return folder


def migrate(folder: Path, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["rows", "migrate", str(folder)])
    assert done.exit_code == code, done.output
    return done.output


def test_rows_of_schema_1_become_rows_without_a_comparison(tmp_path):
    again = {"commit": "0123456789ab", "driver": "575.5"}
    rows = [
        row(ms=9.0),
        row(ms=None, seq_len=512),
        row(ms=1.0, run_id="again", started_at=LATER, details={"kernel": "x"}),
        row("sdpa", ms=2.0, run_id="nobody knows"),
    ]
    folder = old_folder(tmp_path, rows, again=again)
    assert migrate(folder).split("\n")[0] == f"{folder}: 4 rows migrated"
    unknown = {
        "node": "unknown",
        "percent_of_bound": None,
        "comparison_id": None,
        "closed": False,
        "commit": None,
        "driver": None,
    }
    assert list(read_results(folder).rows) == [
        rows[2].model_copy(update={**unknown, **again, "rounds": 1}),
        rows[1].model_copy(update={**unknown, "driver": RUN["driver"], "rounds": 0}),
        rows[3].model_copy(update={**unknown, "rounds": 1}),
    ]
    lines = (folder / "journal.jsonl").read_text().splitlines()
    assert [json.loads(line)["schema_version"] for line in lines] == [4] * 3, "the last row of each point"
    assert (folder / "rows.csv").read_text().count("\n") == 4
    assert (folder / "rows.parquet").exists()
    assert not comparable(*read_results(folder).rows[::2])


def test_rows_of_schema_2_keep_all_but_the_name_of_a_percentage_and_get_the_one_of_the_bound(tmp_path):
    rows = [
        counted(row(ms=2.0)),
        counted(row("fla_delta_net", seq_len=512)),
        counted(row(ms=None, seq_len=1024)),
        row("no_longer_there", seq_len=2048),
        row(seq_len=256, run_id="without ceilings"),
    ]
    assert rows[0].percent_of_bound
    assert rows[1].percent_of_bound is None
    folder = write(tmp_path, rows, run={**RUN, "ceilings": {"bfloat16": CEILINGS}})
    (folder / "journal.jsonl").write_text("".join(json.dumps(of_schema_2(each)) + "\n" for each in rows))
    assert migrate(folder).split("\n")[0] == f"{folder}: 5 rows migrated"
    percents = [*(each.percent_of_bound for each in rows[:2]), None, None, None]
    wanted = [
        each.model_copy(update={"node": "unknown", "percent_of_bound": percent})
        for each, percent in zip(rows, percents, strict=True)
    ]
    assert list(read_results(folder).rows) == wanted
    assert "percent_of_roofline" not in (folder / "rows.csv").read_text()
    assert "0 of 5 rows changed, 2 left as they are" in recount(folder)


def test_rows_of_schema_3_keep_everything_and_get_a_node_that_is_not_known(tmp_path):
    rows = [row(ms=2.0, gpu_uuid="GPU-1", commit="abc"), row(ms=None, seq_len=512)]
    folder = write(tmp_path, rows)
    (folder / "journal.jsonl").write_text("".join(json.dumps(of_schema_3(each)) + "\n" for each in rows))
    assert migrate(folder).split("\n")[0] == f"{folder}: 2 rows migrated"
    assert list(read_results(folder).rows) == [each.model_copy(update={"node": "unknown"}) for each in rows]
    assert "node" in (folder / "rows.csv").read_text().split("\n")[0].split(",")


def test_migrated_once_is_migrated(tmp_path):
    folder = old_folder(tmp_path, [row()])
    migrate(folder)
    before = (folder / "journal.jsonl").read_bytes()
    assert "0 rows migrated" in migrate(folder)
    assert (folder / "journal.jsonl").read_bytes() == before


def test_rows_of_both_schemas_and_several_folders(tmp_path):
    old, new = row(seq_len=512), row()
    folder = old_folder(tmp_path / "mixed", [old])
    with open(folder / "journal.jsonl", "a") as journal:
        journal.write(new.model_dump_json(by_alias=True) + "\n")
    write(tmp_path / "new", [new])
    told = migrate(tmp_path)
    assert "mixed: 1 rows migrated" in told
    assert "new: 0 rows migrated" in told
    assert [r.comparison_id for r in read_results(folder).rows] == [None, new.comparison_id]


def test_without_a_description_of_the_run_there_is_neither_commit_nor_driver(tmp_path):
    folder = old_folder(tmp_path, [row()])
    (folder / "environment.json").unlink()
    migrate(folder)
    assert [(r.commit, r.driver) for r in read_results(folder).rows] == [(None, None)]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nonsense", "line 2 is no row of schema 1 to 4"),
        ("[]", "line 2 is no row of schema 1 to 4"),
        ('{"schema_version": 1}', "line 2 is no row of schema 1 to 4"),
        ('{"schema_version": 1, "point": "a", "run_id": "run", "ms_median": 1.0}', "line 2 is no row of schema 1 to 4"),
        (
            of_schema_1(row()).replace('"schema_version": 1', '"schema_version": 99'),
            "line 2 is no row of schema 1 to 4",
        ),
    ],
)
def test_a_broken_line_is_one_line_and_2_and_changes_nothing(tmp_path, line, says):
    folder = old_folder(tmp_path, [row()])
    journal = folder / "journal.jsonl"
    journal.write_text(journal.read_text() + line.strip() + "\n" + journal.read_text())
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    told = migrate(folder, code=2)
    (only,) = told.strip().splitlines()
    assert f"{journal} {says}" in only
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_last_line_cut_off_by_a_crash_is_dropped(tmp_path):
    folder = old_folder(tmp_path, [row(), row(seq_len=512)])
    journal = folder / "journal.jsonl"
    journal.write_text(journal.read_text()[:-100])
    with pytest.warns(UserWarning, match="last line was cut off"):
        told = migrate(folder)
    assert "1 rows migrated" in told
    assert [r.seq_len for r in read_results(folder).rows] == [4096]


def test_what_cannot_be_migrated_is_one_line_and_2(tmp_path):
    assert "does not exist" in migrate(tmp_path / "nowhere", code=2)
    folder = old_folder(tmp_path, [row()])
    (folder / "environment.json").write_text("{")
    (only,) = migrate(folder, code=2).strip().splitlines()
    assert "environment.json is not what `tflabench sweep` writes" in only
    with pytest.raises(InputError, match="is no journal of rows"):
        migrate_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "command",
    [
        "headline {old}",
        "claims {old}",
        "report {old}",
        "plot {old}",
        "rows recount {old}",
        "model-error {old}",
        "theory fig17 --gate sig --pass fw --overlay {old} --out {old}",
        "reproduce fig4 --results {old} --out {old}",
        "compare {old} {new}",
        "compare {new} {old}",
        "compare sdpa tfla_sig_xl --in {old}",
        "rows merge {old} --into {new}",
        "rows merge {new} --into {old}",
    ],
)
def test_other_commands_name_it_when_they_meet_schema_1(tmp_path, command):
    old, new = old_folder(tmp_path / "old", [row(), row("sdpa")]), write(tmp_path / "new", [row()])
    before = (old / "journal.jsonl").read_bytes(), (new / "journal.jsonl").read_bytes()
    done = CliRunner().invoke(app, command.format(old=old, new=new).split())
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    (line,) = (each for each in done.stderr.splitlines() if each.startswith("tflabench: "))
    assert f"was written with row schema 1 and this version reads 4: run `tflabench rows migrate {old}`" in line
    assert ((old / "journal.jsonl").read_bytes(), (new / "journal.jsonl").read_bytes()) == before
    migrate(old)
    again = CliRunner().invoke(app, command.format(old=old, new=new).split())
    assert "row schema" not in again.output


def published() -> list[Path]:
    """The results folders of this repository; what a sweep has left beside them is its user's."""
    listed = subprocess.run(
        ["git", "ls-files", "results"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    return [ROOT / Path(line).parent for line in listed.splitlines() if line.endswith("rows.parquet")]


@pytest.mark.parametrize("kind", ["h100", "h200"])
def test_rows_of_a_kind_of_gpu_are_closed_comparisons_of_one_source(kind):
    rows = [each for folder in published() if folder.parent.name == kind for each in read_results(folder).rows]
    assert rows
    assert len({stored.source_hash for stored in rows}) == 1
    for stored in rows:
        assert stored.source_hash and stored.comparison_id and stored.closed, stored.point  # noqa: PT018
        assert stored.ms_median or stored.reason, stored.point


@pytest.mark.parametrize("folder", published(), ids=lambda folder: folder.name)
def test_stored_rows_have_the_counts_of_this_version_and_none_is_faster_than_its_bounds(folder):
    results = read_results(folder)
    for stored in results.rows:
        ceilings = results.runs[stored.run_id]["ceilings"][stored.dtype]
        found = theory_columns.recounted(stored, Ceilings(**ceilings))
        if not is_of_other_launches(stored):
            assert (found.model_flops, found.model_bytes) == (stored.model_flops, stored.model_bytes), stored.point
        assert (stored.percent_of_own_roofline or 0) <= 100, stored.point
        assert (stored.percent_of_bound or 0) <= 100, stored.point
        assert found.percent_of_bound == stored.percent_of_bound, stored.point
