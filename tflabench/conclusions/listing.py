"""All points of a sweep as text for other programs: a Markdown table, or CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from tflabench.rows.schema import Row
from tflabench.rows.table import frame

Format = Literal["markdown", "csv"]

# Of the columns of a row, those that say what a point is and what came of it.
COLUMNS = (
    "implementation", "pass", "dtype", "gates", "batch", "heads", "seq_len", "d_qk", "d_hv", "chunk_size", "status",
    "ms_median", "ms_p20", "ms_p80", "peak_bytes", "percent_of_bound", "percent_of_own_roofline", "rel_error", "noisy",
    "throttled", "device", "node", "reason",
)  # fmt: skip


def listing(rows: Sequence[Row], format_: Format) -> str:
    """Return a table of rows, a line each under the names of COLUMNS; times in ms, memory in bytes.

    Numbers are whole in CSV and have four digits in Markdown. What is not known is empty.
    """
    if format_ == "csv":
        return frame(rows)[list(COLUMNS)].to_csv(index=False)
    cells = [[row.columns()[name] for name in COLUMNS] for row in rows]
    numeric = [any(isinstance(line[n], (int, float)) for line in cells) for n in range(len(COLUMNS))]
    lines = [COLUMNS, ["---:" if right else "---" for right in numeric], *(map(_cell, line) for line in cells)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else " ".join(str(value).replace("|", "\\|").split())
