"""Rows of one results folder added to another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tflabench.problem import InputError
from tflabench.rows.journal import JOURNAL, Store, is_packed, whole_lines
from tflabench.rows.load import Results
from tflabench.rows.schema import Row


@dataclass(frozen=True)
class Merged:
    """Counts of points that `merge` added, measured again, and left out because what was there counts."""

    new: int
    replaced: int
    kept: int


def merge(results: Results, folder: Path) -> Merged:
    """Add rows to another folder: of a point that both have, what was measured last, but a time before any failure.

    The runs behind the rows that are added are described as they were, with `folder` for their --out.

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
            into.describe_run(run_id, _written_into(folder, results.runs[run_id]))
    into.export()
    return Merged(new, replaced, kept)


def _counts(row: Row) -> tuple[bool, str]:
    """Return a key that is larger for the one of two rows of a point that counts, whichever is merged into which."""
    return row.status == "ok", row.started_at


def _written_into(folder: Path, environment: dict[str, Any]) -> dict[str, Any]:
    """Return the environment of a run with this folder in its command's --out."""
    arguments = list(environment.get("arguments", ()))
    for place, argument in enumerate(arguments):
        if argument == "--out" and place + 1 < len(arguments):
            arguments[place + 1] = str(folder)
        elif argument.startswith("--out="):
            arguments[place] = f"--out={folder}"
    return {**environment, "arguments": arguments} if arguments else environment
