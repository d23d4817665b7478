"""The source of figures of measured rows: the rows of one results folder, and the looks of its implementations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tflabench.figures.looks import Look, looks
from tflabench.figures.quantities import Rows, drawable
from tflabench.rows.load import Results
from tflabench.rows.table import frame


@dataclass(frozen=True)
class Source:
    """Rows as figures draw them.

    Attributes:
        rows: as `quantities.drawable` gives them, and in the column `record` as they are stored.
        runs: run_id -> what environment.json says of that run.
        looks: of every implementation, by name.
        highlight: patterns of the implementations to highlight; empty leaves the choice to the figure.
    """

    rows: Rows
    runs: Mapping[str, Any]
    looks: dict[str, Look]
    highlight: tuple[str, ...] = ()

    @classmethod
    def of(cls, results: Results, highlight: Sequence[str] = ()) -> Source:
        """Return the rows of a results folder."""
        in_part = [not row.tuned_fully for row in results.rows]
        rows = drawable(frame(results.rows)).assign(tuned_in_part=in_part, record=list(results.rows))
        return cls(rows, results.runs, looks(rows), tuple(highlight))
