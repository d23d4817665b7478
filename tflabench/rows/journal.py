"""Where results live: one journal line a finished point, flushed to disk at once; parquet and CSV made from it.

A results folder holds `journal.jsonl` (append-only, the truth), `rows.parquet` and `rows.csv` (the last row of every
point) and `environment.json` (the machine and versions behind each `run_id`).
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tflabench.problem import InputError
from tflabench.rows.schema import SCHEMA_VERSION, Row
from tflabench.rows.table import frame


class Store:
    """A results folder opened for writing. The journal survives SIGKILL: a row is on disk when `append` returns.

    Raises:
        InputError: the folder cannot be written, or holds rows of another schema version or of another device.
    """

    def __init__(self, folder: Path, device: str) -> None:
        self.folder = folder
        self.rows: dict[str, Row] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._journal = open(folder / "journal.jsonl", "ab+")  # noqa: SIM115  lives as long as the store
        except OSError as error:
            raise InputError(
                f"{folder} cannot be written ({error.strerror}): give another folder with --out"
            ) from error
        lines, whole = whole_lines(folder)
        for row in lines:
            if row.device != device:
                raise InputError(f"{folder} holds rows of {row.device}, and this is {device}: give another --out")
            self.rows[row.point] = row
        self._journal.truncate(whole)

    def append(self, row: Row) -> None:
        """Add a row; the last row of a point is the one that counts."""
        self._journal.write(row.model_dump_json(by_alias=True).encode() + b"\n")
        self._journal.flush()
        os.fsync(self._journal.fileno())
        self.rows[row.point] = row

    def describe_run(self, run_id: str, environment: dict[str, Any]) -> None:
        """Record the environment behind a run's rows in environment.json, beside those of earlier runs."""
        path = self.folder / "environment.json"
        runs: dict[str, Any] = json.loads(path.read_text())["runs"] if path.exists() else {}
        write_whole(path, json.dumps({"runs": {**runs, run_id: environment}}, indent=2) + "\n")

    def export(self) -> list[Path]:
        """Write rows.parquet and rows.csv; returns all files of the folder that exist now."""
        table = frame(list(self.rows.values()))
        table["details"] = [json.dumps(details, sort_keys=True) for details in table["details"]]
        for name, write in {"rows.parquet": table.to_parquet, "rows.csv": table.to_csv}.items():
            write(self.folder / f"{name}.part", index=False)
            os.replace(self.folder / f"{name}.part", self.folder / name)
        names = ("journal.jsonl", "rows.parquet", "rows.csv", "environment.json")
        return [path for name in names if (path := self.folder / name).exists()]


def whole_lines(folder: Path) -> tuple[list[Row], int]:
    """The journal's rows, and how many of its bytes are whole lines (a crash can cut the last one)."""
    path = folder / "journal.jsonl"
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        warnings.warn(f"{path}: the last line was cut off while it was written; it is dropped", stacklevel=3)
    return [_row(line, path, number) for number, line in _numbered(data[:whole])], whole


def _numbered(data: bytes) -> Iterator[tuple[int, bytes]]:
    return ((number, line) for number, line in enumerate(data.splitlines(), 1) if line.strip())


def _row(line: bytes, path: Path, number: int) -> Row:
    try:
        fields = json.loads(line)
        version = fields["schema_version"]
        if version == SCHEMA_VERSION:
            return Row.model_validate(fields)
    except (ValueError, TypeError, LookupError) as error:
        raise InputError(f"{path} line {number} is no row: mend or delete that line, or give another --out") from error
    raise InputError(
        f"{path} was written with row schema {version} and this version reads {SCHEMA_VERSION}: "
        "give another --out, or move the folder away and sweep again"
    )


def write_whole(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)
