"""Results folders as they are read: the last row of every point, and the environments behind the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflabench.problem import PASSES, InputError
from tflabench.rows.journal import JOURNAL, TABLE, described_runs, is_packed, whole_lines
from tflabench.rows.schema import Row
from tflabench.rows.table import frame

if TYPE_CHECKING:
    import pandas as pd


def read_rows(folder: Path | str) -> pd.DataFrame:
    """Return the last row of every point of all results folders at and below `folder`, `details` as dicts.

    Columns are as `Row` names them.
    """
    return frame([row for results in find_results(folder) for row in results.rows])


@dataclass(frozen=True)
class Results:
    """A results folder as it was read.

    Attributes:
        folder: where it lies.
        rows: the last row of every point, in the order in which points were first measured.
        runs: run_id -> what environment.json says of that run; empty where there is no such file.
    """

    folder: Path
    rows: tuple[Row, ...]
    runs: Mapping[str, Any]

    def only(self, patterns: Sequence[str], passes: Sequence[object] = PASSES) -> Results:
        """Return the rows of these passes whose implementation matches one of the patterns; there may be none."""

        def wanted(row: Row) -> bool:
            return row.pass_ in passes and any(fnmatchcase(row.implementation, pattern) for pattern in patterns)

        return replace(self, rows=tuple(filter(wanted, self.rows)))


def read_results(folder: Path | str) -> Results:
    """Read a results folder: its rows, and the environments behind them; InputError where it has none, or others."""
    folder = Path(folder)
    rows = rows_by_point(folder)
    if not rows:
        raise InputError(f"{folder} holds no rows yet: run `tflabench sweep --out {folder}` first")
    return Results(folder, tuple(rows.values()), described_runs(folder))


def rows_by_point(folder: Path) -> dict[str, Row]:
    """Return the rows that a sweep into a folder would find there, none where there is no such folder."""
    there = (folder / JOURNAL).is_file() or is_packed(folder)
    return {row.point: row for row in whole_lines(folder)[0]} if there else {}


def results_folders(root: Path | str) -> list[Path]:
    """Return every results folder at and below `root`, sorted; a sweep that stopped before its first row has none."""
    begun = {path.parent for path in Path(root).rglob(JOURNAL) if path.stat().st_size}
    return sorted(begun | {path.parent for path in Path(root).rglob(TABLE) if is_packed(path.parent)})


def folders_below(root: Path | str) -> list[Path]:
    """Return every results folder at and below `root`, sorted: what a path means to commands. InputError without."""
    root = Path(root)
    wanted = "give a results folder written by `tflabench sweep`, or a folder above several"
    if not root.exists():
        raise InputError(f"{root} does not exist: {wanted}")
    if not root.is_dir():
        raise InputError(f"{root} is a file: {wanted}")
    folders = results_folders(root)
    if not folders and any(root.rglob(JOURNAL)):
        raise InputError(f"{root} holds no rows yet (its journal.jsonl is empty): {wanted}")
    if not folders:
        raise InputError(f"{root} holds no results (no journal.jsonl or rows.parquet in it or below): {wanted}")
    return folders


def find_results(root: Path | str) -> list[Results]:
    """Read every results folder at and below `root`, sorted by path."""
    return [read_results(folder) for folder in folders_below(root)]
