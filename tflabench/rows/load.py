"""Results folders as they are read: the last row of every point, and the environments behind the rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflabench.problem import PASSES, InputError
from tflabench.rows.journal import whole_lines
from tflabench.rows.schema import Row
from tflabench.rows.table import frame

if TYPE_CHECKING:
    import pandas as pd


def read_rows(folder: Path | str) -> pd.DataFrame:
    """The last row of every point of a results folder, columns as `Row` names them, `details` as dicts.

    Raises:
        InputError: no such folder, no rows in it, or rows of another schema version.
    """
    return frame(_last_rows(Path(folder)))


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
        """The rows of implementations that match one of the patterns, and of these passes; there may be none left."""

        def wanted(row: Row) -> bool:
            return row.pass_ in passes and any(fnmatchcase(row.implementation, each) for each in patterns)

        return replace(self, rows=tuple(filter(wanted, self.rows)))


def read_results(folder: Path | str) -> Results:
    """A results folder with its rows and the environments behind them.

    Raises:
        InputError: as `read_rows`, or an environment.json that no sweep wrote.
    """
    folder = Path(folder)
    path = folder / "environment.json"
    rows = tuple(_last_rows(folder))
    try:
        return Results(folder, rows, json.loads(path.read_text())["runs"] if path.exists() else {})
    except (ValueError, TypeError, KeyError):
        raise InputError(f"{path} is not what `tflabench sweep` writes: mend it, or delete it to go without") from None


def results_folders(root: Path | str) -> list[Path]:
    """Every results folder at and below `root`, sorted; a sweep that was stopped before its first row left none."""
    return sorted(path.parent for path in Path(root).rglob("journal.jsonl") if path.stat().st_size)


def find_results(root: Path | str) -> list[Results]:
    """Every results folder at and below `root`, sorted by path.

    Raises:
        InputError: there is none, or one of them cannot be read (see `read_results`).
    """
    folders = results_folders(root)
    if not folders and any(Path(root).rglob("journal.jsonl")):
        raise InputError(f"{root} holds no rows yet: run `tflabench sweep` first")
    if not folders:
        raise InputError(f"{root} holds no results (no journal.jsonl in it or below): run `tflabench sweep` first")
    return [read_results(folder) for folder in folders]


def _last_rows(folder: Path) -> list[Row]:
    if not (folder / "journal.jsonl").is_file():
        raise InputError(f"{folder} holds no journal.jsonl: it must be a results folder written by `tflabench sweep`")
    rows = {row.point: row for row in whole_lines(folder)[0]}
    if not rows:
        raise InputError(f"{folder} holds no rows yet: run `tflabench sweep --out {folder}` first")
    return list(rows.values())
