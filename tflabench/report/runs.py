"""The results folders that a report is about."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tflabench.plots import described_runs
from tflabench.plots.rows import Rows, drawable
from tflabench.problem import InputError
from tflabench.store import Row, read_rows


@dataclass(frozen=True)
class Results:
    """One results folder.

    Attributes:
        name: the folder as the page calls it: relative to the folder that the report is about.
        folder: where it lies.
        rows: as `plots.rows.drawable` gives them; the index is unique within a report.
        runs: run_id -> what environment.json says of that run.
    """

    name: str
    folder: Path
    rows: Rows
    runs: Mapping[str, Any]

    def as_rows(self) -> list[Row]:
        """The rows as `store.Row`, in the same order."""
        fields = self.rows[[field.alias or name for name, field in Row.model_fields.items()]].astype(object)
        return [Row.model_validate(row) for row in fields.where(fields.notna(), None).to_dict("records")]

    def commands(self) -> list[tuple[str, str, int]]:
        """(run_id, the command that made its rows, how many of the rows are its), runs in the order they were made."""
        found = []
        for run_id, own in self.rows.groupby("run_id", sort=False):
            arguments = self.runs.get(str(run_id), {}).get("arguments")
            found.append((str(run_id), shlex.join(["tflabench", *arguments]) if arguments else "", len(own)))
        return found


def find(directory: Path) -> list[Results]:
    """The results folder `directory`, or all those below it, sorted by name.

    Raises:
        InputError: no folder, no results in it, or results that cannot be read (see `store.read_rows`).
    """
    if not directory.is_dir():
        raise InputError(f"{directory} is no folder: give a results folder written by `tflabench sweep`, or one above")
    folders = sorted(path.parent for path in directory.rglob("journal.jsonl"))
    if not folders:
        raise InputError(
            f"{directory} holds no results, in it or below (no journal.jsonl): give what `tflabench sweep` wrote"
        )
    found, start = [], 0
    for folder in folders:
        rows = drawable(read_rows(folder))
        rows.index += start
        start += len(rows)
        name = folder.relative_to(directory).as_posix() if folder != directory else folder.resolve().name
        found.append(Results(name, folder, rows, described_runs(folder)))
    return found
