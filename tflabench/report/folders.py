"""The results folders that a report is about."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tflabench.figures.quantities import Rows, drawable
from tflabench.rows.load import Results, find_results
from tflabench.rows.table import frame


@dataclass(frozen=True)
class Part:
    """One results folder.

    Attributes:
        name: as the page calls it: relative to the folder that the report is about.
        results: its rows and what is known of their runs.
        start: the index of its first row in the report.
    """

    name: str
    results: Results
    start: int

    @cached_property
    def rows(self) -> Rows:
        """As `plots.rows.drawable` gives them, under indices that are unique within the report."""
        rows = drawable(frame(self.results.rows))
        return rows.set_index(rows.index + self.start)

    @property
    def runs(self) -> Mapping[str, Any]:
        return self.results.runs

    def commands(self) -> list[tuple[str, str, int]]:
        """(run_id, the command that made its rows or "", how many rows are its), in the order of the rows."""
        found = []
        for run_id, own in self.rows.groupby("run_id", sort=False):
            arguments = self.runs.get(str(run_id), {}).get("arguments")
            found.append((str(run_id), shlex.join(["tflabench", *arguments]) if arguments else "", len(own)))
        return found


def find(directory: Path) -> list[Part]:
    """The results folder `directory` and all below it, sorted by path.

    Raises:
        InputError: no folder, no results in it, or results that cannot be read (see `store.find_results`).
    """
    parts: list[Part] = []
    for results in find_results(directory):
        name = (
            results.folder.relative_to(directory).as_posix()
            if results.folder != directory
            else directory.resolve().name
        )
        parts.append(Part(name, results, sum(len(part.results.rows) for part in parts)))
    return parts
