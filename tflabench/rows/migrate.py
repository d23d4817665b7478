"""Journals of older row schemas brought to the present one."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tflabench.problem import InputError
from tflabench.rows.journal import JOURNAL, TABLE, Store, described_runs, is_packed, packed_lines, write_whole
from tflabench.rows.schema import MIGRATED_VERSIONS, Row


def migrate(folder: Path, complete: Callable[[Row, Mapping[str, Any]], Row] = lambda row, run: row) -> int:
    """Rewrite the journal of a results folder with rows of the present schema, the last one of each point.

    Rows of schema 1 belong to no comparison: their `comparison_id` is None, so that no ratio is taken of them. The
    `percent_of_roofline` of schemas 1 and 2 is `percent_of_own_roofline`. The `node` of schemas 1 to 3 is "unknown".
    Nothing is written unless every line is a row. A packed folder is unpacked.

    Args:
        complete: fills in what a row of schema 1 or 2 lacks, from it and what environment.json says of its run.

    Returns:
        How many rows were of an older schema.

    Raises:
        InputError: the folder has no journal, a line of it is no row, or environment.json is damaged.
    """
    journal = folder / JOURNAL
    runs = described_runs(folder)
    last: dict[str, Row] = {}
    migrated = 0
    for number, line in _whole_lines(journal):
        try:
            fields: dict[str, Any] = json.loads(line)
            run = runs.get(fields["run_id"], {})
            older = fields["schema_version"] in MIGRATED_VERSIONS
            lacking = older and fields["schema_version"] < 3
            if fields["schema_version"] == 1:
                fields = _from_schema_1(fields, run)
            if fields["schema_version"] == 2:
                fields = _from_schema_2(fields)
            if fields["schema_version"] == 3:
                fields = _from_schema_3(fields)
            row = Row.model_validate(fields)
        except (ValueError, TypeError, LookupError):
            raise InputError(f"{journal} line {number} is no row of schema 1 to 4: mend or delete that line") from None
        last[row.point] = complete(row, run) if lacking else row
        migrated += older
    if migrated:
        write_whole(journal, "".join(row.model_dump_json(by_alias=True) + "\n" for row in last.values()))
        Store(folder, next(iter(last.values())).device).export()
    return migrated


def _whole_lines(journal: Path) -> list[tuple[int, str]]:
    """Return the lines of a journal with their numbers, without one that a crash has cut off."""
    if is_packed(journal.parent):
        return list(enumerate(packed_lines(journal.parent / TABLE), 1))
    try:
        *lines, rest = journal.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise InputError(f"{journal} is no journal of rows ({error}): name a folder that a sweep wrote") from None
    if rest:
        warnings.warn(f"{journal}: the last line was cut off while it was written; it is dropped", stacklevel=3)
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _from_schema_1(row: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    measured = row["ms_median"] is not None
    return row | {
        "schema_version": 2,
        "comparison_id": None,
        "closed": False,
        "rounds": int(measured),
        "commit": run.get("commit"),
        "source_hash": None,
        "driver": run.get("driver"),
    }


def _from_schema_2(row: dict[str, Any]) -> dict[str, Any]:
    new = {"percent_of_roofline": "percent_of_own_roofline"}
    return {new.get(name, name): value for name, value in row.items()} | {"schema_version": 3}


def _from_schema_3(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"node": "unknown", "schema_version": 4}
