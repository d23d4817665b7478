"""The journal: what is on disk survives, what cannot be read is said."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import tempfile
import warnings

import pandas as pd
import pytest
import synthetic

from tflabench.problem import InputError
from tflabench.rows import journal
from tflabench.rows.journal import Store
from tflabench.rows.load import read_rows
from tflabench.rows.schema import Row

DEVICE = "a CPU, 2 cores"


def row(point: str, **changes) -> Row:
    usual = {"device": DEVICE, "status": "ok", "reason": None, "details": {"kernel": "x"}}
    return synthetic.row("sdpa", None, point=point, **{**usual, **changes})


@pytest.fixture
def folder(tmp_path):
    store = Store(tmp_path / "results", DEVICE)
    store.append(row("a", status="crashed", reason="SIGABRT"))
    store.append(row("b", ms_median=2.0, samples=30))
    store.append(row("a", ms_median=1.0, samples=40, noisy=True))
    return store.folder


def test_the_last_row_of_a_point_counts(folder):
    frame = read_rows(folder)
    assert list(frame["point"]) == ["a", "b"]
    assert list(frame["status"]) == ["ok", "ok"]
    assert list(frame["ms_median"]) == [1.0, 2.0]
    assert len((folder / "journal.jsonl").read_text().splitlines()) == 3


def test_columns_keep_their_types_where_values_are_missing(folder):
    frame = read_rows(folder)
    assert frame["chunk_size"].dtype == "Int64"
    assert list(frame["peak_bytes"].dropna()) == []
    assert frame["gbps"].dtype == "float64"
    assert frame["noisy"].dtype == "boolean"


def test_exports_hold_what_the_journal_holds(folder):
    files = Store(folder, DEVICE).export()
    parquet = pd.read_parquet(folder / "rows.parquet")
    assert list(parquet["ms_median"]) == list(pd.read_csv(folder / "rows.csv")["ms_median"]) == [1.0, 2.0]
    assert list(parquet["details"]) == ['{"kernel": "x"}'] * 2
    assert all(path.exists() for path in files)


def test_a_last_line_cut_off_is_dropped_with_a_warning(folder):
    journal = folder / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"schema_version":4,"run_id":"r')
    with pytest.warns(UserWarning, match="last line was cut off"):
        assert len(read_rows(folder)) == 2
    with pytest.warns(UserWarning, match="last line was cut off"):
        store = Store(folder, DEVICE)
    store.append(row("c"))
    assert journal.read_bytes().startswith(whole)
    assert set(read_rows(folder)["point"]) == {"a", "b", "c"}


@pytest.mark.parametrize("version", [1, 3, 5])
def test_rows_of_another_schema_version_are_refused(folder, version):
    journal = folder / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"schema_version":4', f'"schema_version":{version}'))
    said = f"row schema {version} and this version reads 4: use the version of tflabench that wrote it"
    for read in (read_rows, lambda folder: Store(folder, DEVICE)):
        with pytest.raises(InputError, match=re.escape(said)):
            read(folder)


def test_a_broken_line_in_the_middle_is_not_skipped(folder):
    journal = folder / "journal.jsonl"
    journal.write_text("nonsense\n" + journal.read_text())
    with pytest.raises(InputError, match="line 1 is no row"):
        read_rows(folder)
    journal.write_text('{"schema_version": 4}\n')
    with pytest.raises(InputError, match="line 1 is no row"):
        read_rows(folder)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("batch", "0"), ("seq_len", "-1"), ("d_qk", str(2**63)), ("chunk_size", "0"), ("pass", '"bw"'),
        ("implementation", '""'), ("ms_median", "0"), ("ms_median", "1e308"),
        ("host_ms", "-1"), ("details", "[" * 100_000),
    ],
)  # fmt: skip
def test_a_line_with_values_that_no_sweep_writes_is_no_row(folder, column, value):
    path = folder / "journal.jsonl"
    fields = json.loads(path.read_text().splitlines()[-1]) | {column: "@"}
    path.write_text(json.dumps(fields).replace('"@"', value) + "\n")
    with pytest.raises(InputError, match="line 1 is no row: mend or delete that line"):
        Store(folder, DEVICE)


def test_an_environment_nested_too_deep_is_refused(folder):
    (folder / "environment.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="is not what `tflabench sweep` writes"):
        Store(folder, DEVICE)


def test_rows_that_another_sweep_adds_while_a_folder_is_opened_stay(folder, monkeypatch):
    path = folder / "journal.jsonl"
    stale = journal.whole_lines(folder)
    added = row("c").model_dump_json(by_alias=True) + "\n"
    with path.open("a") as file:
        file.write(added)
    monkeypatch.setattr(journal, "whole_lines", lambda folder: stale)
    Store(folder, DEVICE)
    assert path.read_text().endswith(added)


@pytest.mark.parametrize("text", ["", '{"schema'])
def test_a_journal_that_lost_its_rows_does_not_empty_the_table(folder, text):
    Store(folder, DEVICE).export()
    table = (folder / "rows.parquet").read_bytes()
    (folder / "journal.jsonl").write_text(text)
    with pytest.raises(
        InputError, match=r"journal\.jsonl has no row, and rows\.parquet beside it 2: delete the journal"
    ):
        Store(folder, DEVICE)
    assert (folder / "rows.parquet").read_bytes() == table
    (folder / "journal.jsonl").unlink()
    assert len(Store(folder, DEVICE).rows) == 2


def test_rows_of_another_device_are_refused(folder):
    with pytest.raises(InputError, match="holds rows of a CPU, 2 cores, and this is NVIDIA H200"):
        Store(folder, "NVIDIA H200")


def test_an_unwritable_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        Store(tmp_path / "file" / "results", DEVICE)


def test_a_folder_without_rows_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no results"):
        read_rows(tmp_path)
    Store(tmp_path, DEVICE)
    with pytest.raises(InputError, match="holds no rows yet"):
        read_rows(tmp_path)


def test_every_run_keeps_its_environment(folder):
    store = Store(folder, DEVICE)
    store.describe_run("r1", {"torch": "2.9"})
    store.describe_run("r2", {"torch": "2.13"})
    assert json.loads((folder / "environment.json").read_text())["runs"] == {
        "r1": {"torch": "2.9"},
        "r2": {"torch": "2.13"},
    }


class Full:
    """A journal on a disk that takes so many more bytes, which may end within a row."""

    def __init__(self, journal, room: int) -> None:
        self.journal, self.room = journal, room

    def __getattr__(self, name: str):
        return getattr(self.journal, name)

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self.journal.write(data[: self.room])
        self.room -= written
        return written


@pytest.mark.parametrize("room", [0, 1, 100, 700], ids="{} bytes left".format)
def test_a_full_disk_keeps_rows_in_memory_until_there_is_room(folder, monkeypatch, room):
    store = Store(folder, DEVICE)
    before = (folder / "journal.jsonl").read_bytes()
    with monkeypatch.context() as full:
        full.setattr(store, "_journal", Full(store._journal, room))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for point in ("c", "d", "a"):
                store.append(row(point, ms_median=5.0))
        (warning,) = told
        assert "(No space left on device): rows stay in memory until it can" in str(warning.message)
        on_disk = (folder / "journal.jsonl").read_bytes()
        assert on_disk == before, "not a part of a row"
        assert list(store.rows) == ["a", "b", "c", "d"]
        assert store.rows["a"].ms_median == 5.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.append(row("e"))
        frame = read_rows(folder)
    assert list(frame["point"]) == ["a", "b", "c", "d", "e"]
    assert list(frame["ms_median"])[:4] == [5.0, 2.0, 5.0, 5.0]
    lines = (folder / "journal.jsonl").read_text().splitlines()
    assert [json.loads(line)["point"] for line in lines] == ["a", "b", "a", "c", "d", "a", "e"], (
        "in order, and once each"
    )
    store.append(row("f"))
    assert len((folder / "journal.jsonl").read_text().splitlines()) == len(lines) + 1


def test_a_row_that_did_not_reach_the_disk_is_written_again(folder, monkeypatch):
    store = Store(folder, DEVICE)
    with monkeypatch.context() as failing:
        failing.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, os.strerror(errno.EIO))))
        with pytest.warns(UserWarning, match="rows stay in memory"):
            store.append(row("c"))
    store.append(row("d"))
    points = [json.loads(line)["point"] for line in (folder / "journal.jsonl").read_text().splitlines()]
    assert points == ["a", "b", "a", "c", "d"]


def test_a_full_disk_at_the_end_of_a_sweep_loses_no_row_of_the_exports(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = Store(folder, DEVICE)
    monkeypatch.setattr(store, "_journal", Full(store._journal, 0))
    with pytest.warns(UserWarning, match="rows stay in memory"):
        store.append(row("c", ms_median=5.0))
    with pytest.warns(UserWarning, match="has no room for 1 rows"):
        store.export()
    assert list(pd.read_parquet(folder / "rows.parquet")["point"]) == ["a", "b", "c"]


def test_a_full_disk_at_the_end_of_a_sweep_leaves_the_exports_as_they_were(folder, monkeypatch):
    store = Store(folder, DEVICE)
    store.export()
    before = (folder / "rows.csv").read_bytes()
    store.append(row("c"))

    def full(self, path, **_) -> None:
        path.write_text("a part of a table")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    with pytest.warns(UserWarning, match="rows.csv is as it was before"):
        store.export()
    assert (folder / "rows.csv").read_bytes() == before
    assert not list(folder.glob("*.part"))


def test_a_full_disk_at_the_start_of_a_run_costs_its_description_only(folder, monkeypatch):
    store = Store(folder, DEVICE)

    def full(*_) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(UserWarning, match="lack a description of the machine"):
        store.describe_run("run", {"device": DEVICE})


def test_rows_that_a_full_disk_kept_in_memory_are_written_at_the_end(folder, monkeypatch):
    store = Store(folder, DEVICE)
    with monkeypatch.context() as full:
        full.setattr(store, "_journal", Full(store._journal, 0))
        with pytest.warns(UserWarning, match="rows stay in memory"):
            store.append(row("c"))
    store.export()
    assert list(read_rows(folder)["point"]) == ["a", "b", "c"]


@pytest.mark.parametrize("elsewhere", [True, False], ids=["room elsewhere", "no room at all"])
def test_rows_that_never_get_room_are_saved_elsewhere_and_come_back(folder, monkeypatch, tmp_path, elsewhere):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path if elsewhere else tmp_path / "nowhere"))
    store = Store(folder, DEVICE)
    with monkeypatch.context() as full:
        full.setattr(store, "_journal", Full(store._journal, 0))
        with pytest.warns(UserWarning, match="rows stay in memory"):
            store.append(row("c", ms_median=4.0))
        store.append(row("d"))
        with pytest.warns(UserWarning, match="has no room for 2 rows") as told:
            store.save_unwritten()
    (said,) = (str(each.message) for each in told)
    assert said.startswith(str(folder / "journal.jsonl"))
    if not elsewhere:
        assert said.endswith("they are lost")
        return
    subprocess.run(["sh", "-c", said.split("`")[1]], check=True)
    assert list(read_rows(folder)["point"]) == ["a", "b", "c", "d"]
    again = Store(folder, DEVICE)
    again.save_unwritten()
    assert again.unsaved is None


def test_what_autotuners_chose_is_json_in_the_exports(folder):
    store = Store(folder, DEVICE)
    tuned = {"choices": {"kernel": "BLOCK: 64"}, "tried": 2, "configurations": 2}
    store.append(row("c", tuned=tuned, gpu_kernels=["one", "two"]))
    store.export()
    found = pd.read_parquet(folder / "rows.parquet").iloc[-1]
    assert (json.loads(found["tuned"]), json.loads(found["gpu_kernels"])) == (tuned, ["one", "two"])
    assert pd.read_parquet(folder / "rows.parquet")["tuned"].isna().tolist() == [True, True, False]


def test_a_row_of_before_gates_were_an_axis_has_those_that_were_drawn_then():
    old = {name: value for name, value in row("a").columns().items() if name != "gates"}
    assert Row.model_validate(old).gates == "usual"
    assert Row.model_validate(old | {"inputs": "standard"}).gates == "medium"
    assert Row.model_validate(old | {"inputs": "extreme"}).gates is None
    assert Row.model_validate(old | {"gates": "weak"}).problem.gates == "weak"
