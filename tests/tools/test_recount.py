"""Theory of stored rows filled in anew: which rows change, and which stay as they are."""

from __future__ import annotations

import sys
from pathlib import Path

import recount
from committed import committed_checkout
from synthetic import RUN, row, write

from tflabench.bench.rows_of_run import modelled
from tflabench.implementations import registry
from tflabench.rows.load import find_results, read_results
from tflabench.rows.schema import Row
from tflabench.rows.upkeep import pack
from tflabench.theory.hardware import Ceilings

ROOFS = {"flops_per_s": 782e12, "bytes_per_s": 4.26e12, "provenance": "measured", "source": "calibrate"}
MEASURED = {"run": {**RUN, "ceilings": {"bfloat16": ROOFS}}}


def counted(row: Row) -> Row:
    columns = modelled(registry.get(row.implementation), row.problem, Ceilings(**ROOFS), row.ms_median)  # type: ignore[arg-type]
    return row.model_copy(update=columns)


def run(folder: Path, monkeypatch, capsys) -> str:
    monkeypatch.setattr(sys, "argv", ["recount.py", str(folder)])
    recount.main()
    return capsys.readouterr().out


def test_theory_is_counted_anew_and_times_stay(tmp_path, monkeypatch, capsys):
    right, stale = counted(row(seq_len=512)), row(ms=3.0, model_bytes=1.0, percent_of_own_roofline=140.0)
    rows = [
        right,
        stale,
        row("no_longer_there", seq_len=1024),
        row(seq_len=2048, run_id="without roofs"),
        row("hopper_sig", kernel_version=0),
    ]
    folder = write(tmp_path, rows, **MEASURED)
    assert "1 of 5 rows changed, 3 left as they are" in run(folder, monkeypatch, capsys)
    assert list(read_results(folder).rows) == [right, counted(stale), *rows[2:]]
    assert "0 of 5 rows changed" in run(folder, monkeypatch, capsys)


def test_without_a_change_a_packed_folder_stays_as_it_is(tmp_path, monkeypatch, capsys):
    folder = write(tmp_path, [counted(row())], **MEASURED)
    pack(folder)
    assert "0 of 1 rows changed" in run(folder, monkeypatch, capsys)
    assert not (folder / "journal.jsonl").exists()


def test_stored_rows_have_the_counts_of_this_version_and_none_is_faster_than_its_bounds():
    for results in find_results(committed_checkout() / "results"):
        for stored in results.rows:
            assert recount.recounted(results, stored) in (None, stored), stored.point
            assert (stored.percent_of_own_roofline or 0) <= 100, stored.point
            assert (stored.percent_of_bound or 0) <= 100, stored.point
