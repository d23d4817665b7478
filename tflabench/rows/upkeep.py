"""Results folders as they are kept: rows of one added to another, and finished ones packed.

A packed folder has rows.parquet in place of a journal and a CSV, a tenth of the size. Whatever reads rows reads it too,
whatever adds rows unpacks it first. People look at times.csv, which has the columns that matter most.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from tflabench.problem import InputError
from tflabench.rows.journal import JOURNAL, TABLE, TIMES, Store, is_packed, packed_lines, whole_lines
from tflabench.rows.load import Results, read_results
from tflabench.rows.schema import Row
from tflabench.rows.table import flat, frame

READABLE = [
    "implementation", "pass", "batch", "heads", "seq_len", "ranks", "d_qk", "d_hv", "chunk_size", "dtype", "status",
    "ms_median", "ms_p20", "ms_p80", "peak_bytes", "percent_of_bound", "throttled", "rel_error", "comparison_id",
    "reason",
]  # fmt: skip


def merge(results: Results, folder: Path) -> tuple[int, int, int]:
    """Add rows to another folder: of a point that both have, what was measured last.

    A time counts before any failure, and one of a comparison that ended before a provisional one.

    The runs behind the rows that are added are described as they were.

    Returns:
        How many points were added, measured again, and left out because what was there counts.

    Raises:
        InputError: the folder cannot be written, or it would hold rows of two devices.
    """
    devices = {row.device: results.folder for row in results.rows}
    if (folder / JOURNAL).exists() or is_packed(folder):
        devices |= {row.device: folder for row in whole_lines(folder)[0]}
    if len(devices) > 1:
        sides = ", ".join(f"{at} has rows of {device}" for device, at in devices.items())
        raise InputError(f"{sides}: a results folder holds rows of one device, so merge into another one")
    into = Store(folder, *devices)
    new = replaced = kept = 0
    runs: dict[str, None] = {}
    for row in results.rows:
        there = into.rows.get(row.point)
        if there and _counts(there) >= _counts(row):
            kept += 1
            continue
        new, replaced = new + (there is None), replaced + (there is not None)
        runs[row.run_id] = None
        into.append(row)
    for run_id in runs:
        if run_id in results.runs:
            into.describe_run(run_id, results.runs[run_id])
    into.export()
    return new, replaced, kept


def _counts(row: Row) -> tuple[bool, bool, str]:
    """Return a key that is larger for the one of two rows of a point that counts, whichever is merged into which."""
    return row.status == "ok", row.closed, row.started_at


def pack(folder: Path, closed: bool = False) -> tuple[int, int]:
    """Keep the last row of every point in rows.parquet, write times.csv, and delete journal.jsonl and rows.csv.

    Nothing is deleted unless rows.parquet, read again, has the same rows.

    Args:
        closed: keep only rows of comparisons that ended as intended.

    Returns:
        The bytes of all four before and after.

    Raises:
        InputError: the folder cannot be written or read, rows.parquet does not hold what the journal does, or no
            comparison ended.
    """
    every = read_results(folder).rows
    rows = [row for row in every if row.closed or not closed]
    if not rows:
        raise InputError(f"{folder} has no comparison that ended: pack it without --closed, or repeat its sweep")
    before = _size(folder)
    part = folder / f"{TABLE}.part"
    try:
        table = flat(frame(rows))
        if not is_packed(folder) or len(rows) < len(every):
            table.to_parquet(part, index=False, compression="zstd")
            if [Row.model_validate_json(line) for line in packed_lines(part)] != rows:
                raise InputError(f"{folder} cannot be packed: a table does not hold all that its journal does")
            part.replace(folder / TABLE)
        table[READABLE].to_csv(folder / TIMES, index=False, float_format="%.5g")
        for name in (JOURNAL, "rows.csv"):
            (folder / name).unlink(missing_ok=True)
        return before, _size(folder)
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}): pack a copy of it") from None
    finally:
        with contextlib.suppress(OSError):  # of a file system that is read only
            part.unlink(missing_ok=True)


def _size(folder: Path) -> int:
    files = (folder / name for name in (JOURNAL, TABLE, TIMES, "rows.csv"))
    return sum(path.stat().st_size for path in files if path.exists())
