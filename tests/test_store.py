"""The journal: what is on disk survives, what cannot be read is said."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from tflabench.problem import InputError
from tflabench.rows.journal import Store
from tflabench.rows.load import read_rows
from tflabench.rows.schema import Row

DEVICE = "a CPU, 2 cores"


def row(point: str, **changes) -> Row:
    fields = {
        "run_id": "r1",
        "point": point,
        "implementation": "sdpa",
        "title": "SDPA",
        "family": "attention",
        "formulation": "attention",
        "package": "torch",
        "pass": "fw",
        "batch": 1,
        "heads": 2,
        "seq_len": 64,
        "d_qk": 16,
        "d_hv": 16,
        "dtype": "float32",
        "inputs": "normal",
        "seed": 0,
        "device": DEVICE,
        "status": "ok",
        "protocol": "short",
        "started_at": "2026-01-01T00:00:00+00:00",
        "details": {"kernel": "x"},
    }
    return Row.model_validate({**fields, **changes})


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
    journal.write_bytes(whole + b'{"schema_version":1,"run_id":"r')
    with pytest.warns(UserWarning, match="last line was cut off"):
        assert len(read_rows(folder)) == 2
    with pytest.warns(UserWarning, match="last line was cut off"):
        store = Store(folder, DEVICE)
    store.append(row("c"))
    assert journal.read_bytes().startswith(whole)
    assert set(read_rows(folder)["point"]) == {"a", "b", "c"}


def test_rows_of_another_schema_version_are_refused(folder):
    journal = folder / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"schema_version":1', '"schema_version":0'))
    for read in (read_rows, lambda folder: Store(folder, DEVICE)):
        with pytest.raises(InputError, match="row schema 0 and this version reads 1: give another --out"):
            read(folder)


def test_a_broken_line_in_the_middle_is_not_skipped(folder):
    journal = folder / "journal.jsonl"
    journal.write_text("nonsense\n" + journal.read_text())
    with pytest.raises(InputError, match="line 1 is no row"):
        read_rows(folder)
    journal.write_text('{"schema_version": 1}\n')
    with pytest.raises(InputError, match="line 1 is no row"):
        read_rows(folder)


def test_rows_of_another_device_are_refused(folder):
    with pytest.raises(InputError, match="holds rows of a CPU, 2 cores, and this is NVIDIA H200"):
        Store(folder, "NVIDIA H200")


def test_an_unwritable_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        Store(tmp_path / "file" / "results", DEVICE)


def test_a_folder_without_rows_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no journal"):
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
