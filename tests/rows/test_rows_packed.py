"""`tflabench rows` pack: small folders that hold the same rows, and are read and added to like others."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pandas as pd
import pytest
from synthetic import row, write
from typer.testing import CliRunner

from tflabench.cli.main import app
from tflabench.problem import InputError
from tflabench.rows.journal import Store, is_packed
from tflabench.rows.load import read_results, results_folders
from tflabench.rows.upkeep import pack

TUNED = {"choices": {"kernel": {"BLOCK": 64, "num_warps": 4}}, "tried": 1, "configurations": 3}
ROWS = [
    row(ms=2.0, tuned=TUNED, gpu_kernels=["a", "b"], noisy=True, throttled=False, rel_error=0.1 + 0.2),
    row("sdpa", ms=1 / 3, details={"ms_by_round": [0.1, 1e-300, 2.5], "note": 'a "word", ä\n'}, samples=30),
    row("mamba2", ms=None, seq_len=512, reason="no\nroom", peak_bytes=2**60, chunk_size=None),
]


def rows(*words, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["rows", *map(str, words)])
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def folder(tmp_path):
    folder = write(tmp_path / "results", [row(ms=9.0), *ROWS])
    Store(folder, ROWS[0].device).export()
    return folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_packed_folder_has_the_same_rows_in_one_file(folder):
    before = read_results(folder)
    assert "kB before" in rows("pack", folder)
    assert names(folder) == {"rows.parquet", "times.csv", "environment.json"}
    assert read_results(folder) == before
    assert list(before.rows) == ROWS
    assert results_folders(folder.parent) == [folder]
    assert list(pd.read_parquet(folder / "rows.parquet")["ms_median"].dropna()) == [2.0, 1 / 3]


def test_times_are_there_to_look_at(folder):
    rows("pack", folder)
    times = pd.read_csv(folder / "times.csv")
    assert list(times["implementation"]) == [each.implementation for each in ROWS]
    assert list(times["ms_median"].dropna()) == [2.0, 0.33333]
    assert list(times["reason"].dropna()) == ["no\nroom"]
    assert not set(times.columns) - set(pd.read_parquet(folder / "rows.parquet").columns)
    (folder / "times.csv").unlink()
    rows("pack", folder)
    assert list(pd.read_csv(folder / "times.csv")["status"]) == list(times["status"])


def test_packed_twice_is_packed_and_merge_unpacks_it(folder, tmp_path):
    before, files = read_results(folder), names(folder)
    rows("pack", folder)
    packed = (folder / "rows.parquet").read_bytes()
    rows("pack", folder)
    assert (folder / "rows.parquet").read_bytes() == packed
    rows("merge", folder, "--into", tmp_path / "unpacked")
    assert names(tmp_path / "unpacked") == files
    assert read_results(tmp_path / "unpacked").rows == before.rows


@pytest.mark.parametrize("packed", [False, True])
def test_only_rows_of_closed_comparisons_are_kept_if_asked(tmp_path, packed):
    ended, begun = row(closed=True), row("sdpa", closed=False)
    folder = write(tmp_path / "results", [ended, begun])
    if packed:
        rows("pack", folder)
        assert list(read_results(folder).rows) == [ended, begun]
    rows("pack", "--closed", folder)
    assert list(read_results(folder).rows) == [ended]
    assert is_packed(folder)


def test_a_folder_without_a_closed_comparison_is_left_as_it_is(tmp_path):
    folder = write(tmp_path / "results", [row(closed=False)])
    before = names(folder)
    assert "has no comparison that ended" in rows("pack", "--closed", folder, code=2)
    assert names(folder) == before


def test_rows_that_are_added_stand_behind_those_that_were_packed(folder):
    rows("pack", folder)
    store = Store(folder, ROWS[0].device)
    store.append(row(seq_len=64))
    assert not is_packed(folder)
    assert "times.csv" not in names(folder)  # it would lack the new row
    assert list(read_results(folder).rows) == [*ROWS, row(seq_len=64)]


def test_rows_of_another_device_leave_a_packed_folder_as_it_is(folder):
    rows("pack", folder)
    with pytest.raises(InputError, match="holds rows of"):
        Store(folder, "another device")
    assert is_packed(folder)


def test_merge_reads_packed_folders_and_adds_to_them(folder, tmp_path):
    other = write(tmp_path / "other", [row(seq_len=64)])
    rows("pack", folder)
    rows("pack", other)
    rows("merge", other, "--into", folder)
    assert list(read_results(folder).rows) == [*ROWS, row(seq_len=64)]
    assert is_packed(other)


@pytest.mark.parametrize("content", [b"PAR1 no table", b""])
def test_a_table_that_cannot_be_read_is_one_line(folder, content):
    rows("pack", folder)
    (folder / "rows.parquet").write_bytes(content)
    assert f"{folder / 'rows.parquet'} cannot be read" in rows("pack", folder, code=2)


def test_a_table_without_an_optional_column_is_read(folder):
    rows("pack", folder)
    table = pd.read_parquet(folder / "rows.parquet").drop(columns=["kernel_version", "gpu_kernels"])
    table.to_parquet(folder / "rows.parquet", index=False)
    assert list(read_results(folder).rows) == [
        each.model_copy(update={"kernel_version": None, "gpu_kernels": None}) for each in ROWS
    ]


def test_a_table_of_something_else_is_no_row(folder):
    rows("pack", folder)
    pd.DataFrame({"a": [1]}).to_parquet(folder / "rows.parquet")
    with pytest.raises(InputError, match=r"rows\.parquet has no column 'ms_median': name a folder that a sweep wrote"):
        read_results(folder)


def test_a_table_without_times_is_refused(folder):
    rows("pack", folder)
    pd.read_parquet(folder / "rows.parquet").drop(columns="ms_median").to_parquet(folder / "rows.parquet")
    with pytest.raises(InputError, match=r"rows\.parquet has no column 'ms_median'"):
        read_results(folder)


def test_nothing_is_deleted_where_the_table_lacks_something(folder, monkeypatch):
    monkeypatch.setattr("tflabench.rows.upkeep.packed_lines", lambda table: [])
    before = names(folder)
    with pytest.raises(InputError, match="does not hold all that its journal does"):
        pack(folder)
    assert names(folder) == before


def test_nothing_is_deleted_where_the_disk_is_full(folder, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", full)
    before = names(folder)
    with pytest.raises(InputError, match="No space left on device"):
        pack(folder)
    assert names(folder) == before


def test_a_read_only_file_system_is_one_line(folder, monkeypatch):
    def read_only(*_, **__) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(pd.DataFrame, "to_parquet", read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(InputError, match="Read-only file system"):
        pack(folder)
