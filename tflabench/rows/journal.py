"""The journal of results: one line a finished point, flushed to disk at once; parquet and CSV made from it.

A results folder holds `journal.jsonl` (append-only, the truth), `rows.parquet` and `rows.csv` (the last row of every
point) and `environment.json` (the machine and versions behind each `run_id`). A packed one (see `packed`) has no
journal, and its rows are those of `rows.parquet`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import tempfile
import warnings
from pathlib import Path
from typing import Any

from tflabench.problem import InputError
from tflabench.rows.schema import SCHEMA_VERSION, Row
from tflabench.rows.table import flat, frame, records, require_columns

JOURNAL, TABLE = "journal.jsonl", "rows.parquet"
TIMES = "times.csv"  # only of packed folders


class Store:
    """A results folder opened for writing. The journal survives SIGKILL: a row is on disk when `append` returns.

    Raises:
        InputError: the folder cannot be written, or holds rows of another schema version or of another device, or an
            environment.json that no sweep wrote.
    """

    def __init__(self, folder: Path, device: str) -> None:
        self.folder = folder
        self.rows: dict[str, Row] = {}
        self.unsaved: str | None = None  # where rows are that the folder had no room for, and how they come back
        self._unwritten = b""
        self._warned: set[str] = set()  # of which consequences of a full disk
        described_runs(folder)  # what cannot be added to is refused before anything is written
        packed = is_packed(folder)
        lines, whole = whole_lines(folder) if packed or (folder / JOURNAL).exists() else ([], 0)
        for row in lines:
            if row.device != device:
                raise InputError(f"{folder} holds rows of {row.device}, and this is {device}: give another folder")
            self.rows[row.point] = row
        if not lines and not packed and (folder / TABLE).exists() and (kept := len(packed_lines(folder / TABLE))):
            raise InputError(
                f"{folder / JOURNAL} has no row, and {TABLE} beside it {kept}: delete the journal to go on from these, "
                "or give another folder"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if packed:
                text = "".join(row.model_dump_json(by_alias=True) + "\n" for row in lines)
                write_whole(folder / JOURNAL, text)
                whole = len(text.encode())
                (folder / TIMES).unlink(missing_ok=True)
            self._journal = open(folder / JOURNAL, "ab+", buffering=0)  # noqa: SIM115  lives as long as the store
        except OSError as error:
            raise InputError(f"{folder} cannot be written ({error.strerror}): give another folder") from error
        if b"\n" not in os.pread(self._journal.fileno(), 1 << 20, whole):  # else another sweep has added rows since
            self._journal.truncate(whole)

    def append(self, row: Row) -> None:
        """Add a row; the last row of a point is the one that counts.

        Where the disk is full it stays in memory, with a warning, until there is room at a later call of this or of
        `export`.
        """
        self.rows[row.point] = row
        self._unwritten += row.model_dump_json(by_alias=True).encode() + b"\n"
        self._write()

    def _write(self) -> None:
        if not self._unwritten:
            return
        whole = os.fstat(self._journal.fileno()).st_size
        try:
            if self._journal.write(self._unwritten) != len(self._unwritten):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._journal.fileno())
            self._unwritten = b""
        except OSError as error:
            self._journal.truncate(whole)
            self._warn(error, "rows stay in memory until it can")

    def _warn(self, error: OSError, consequence: str) -> None:
        if consequence not in self._warned:
            warnings.warn(f"{self.folder} cannot be written ({error.strerror}): {consequence}", stacklevel=4)
        self._warned.add(consequence)

    def describe_run(self, run_id: str, environment: dict[str, Any]) -> None:
        """Add the environment behind a run's rows to environment.json, which keeps those of earlier runs."""
        path = self.folder / "environment.json"
        runs = described_runs(self.folder)
        try:
            write_whole(path, json.dumps({"runs": {**runs, run_id: environment}}, indent=2) + "\n")
        except OSError as error:
            self._warn(error, "its rows will lack a description of the machine")

    def save_unwritten(self) -> None:
        """Write rows that the disk still has no room for into the system's folder for temporary files.

        A warning says where they are, and how they come back.
        """
        self._write()
        self.unsaved = None
        if not self._unwritten:
            return
        count, journal = self._unwritten.count(b"\n"), self.folder / JOURNAL
        lack = f"{journal} has no room for {count} rows"
        try:
            descriptor, name = tempfile.mkstemp(prefix="tflabench-rows-", suffix=".jsonl")
            with open(descriptor, "wb") as file:
                file.write(self._unwritten)
            back = f"cat {shlex.quote(name)} >> {shlex.quote(str(journal))}"
            self.unsaved = f"{lack}, which are in {name}: make room, then `{back}`"
        except OSError as error:
            nor = f"nor has the folder for temporary files ({error.strerror})"
            self.unsaved = f"{lack}, {nor}: they are lost"
        warnings.warn(self.unsaved, stacklevel=3)

    def export(self) -> list[Path]:
        """Write rows.parquet and rows.csv, with a warning where the disk is full; return the files that exist now."""
        self.save_unwritten()
        table = flat(frame(list(self.rows.values())))
        for name, write in {TABLE: table.to_parquet, "rows.csv": table.to_csv}.items():
            part = self.folder / f"{name}.part"
            try:
                write(part, index=False)
                os.replace(part, self.folder / name)
            except OSError as error:
                with contextlib.suppress(OSError):
                    part.unlink(missing_ok=True)
                self._warn(error, f"{name} is as it was before")
        names = (JOURNAL, TABLE, "rows.csv", "environment.json")
        return [path for name in names if (path := self.folder / name).exists()]


def described_runs(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what environment.json of a folder says, by run, if there is one; InputError where no sweep wrote it."""
    path = folder / "environment.json"
    if not path.exists():
        return {}
    try:
        runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
        if all(isinstance(described, dict) for described in runs.values()):
            return runs
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        pass
    raise InputError(f"{path} is not what `tflabench sweep` writes: mend it, or delete it to go without")


def is_packed(folder: Path) -> bool:
    """Return whether the rows of a folder are in rows.parquet alone."""
    return (folder / TABLE).exists() and not (folder / JOURNAL).exists()


def packed_lines(table: Path) -> list[str]:
    """Return the lines of a journal that a rows.parquet was made from, the last of every point; or InputError."""
    import pandas as pd

    try:
        stored = pd.read_parquet(table)
        require_columns(stored, str(table), "name a folder that a sweep wrote")
        lines = records(stored)
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{table} cannot be read ({error}): name a folder that a sweep wrote") from None
    return [json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in lines]


def whole_lines(folder: Path) -> tuple[list[Row], int]:
    """Return the rows of a folder, and the bytes of its journal that are whole lines (a crash can cut the last one)."""
    if is_packed(folder):
        lines = enumerate(packed_lines(folder / TABLE), 1)
        return [_row(line.encode(), folder / TABLE, number) for number, line in lines], 0
    path = folder / JOURNAL
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): name a folder that a sweep wrote") from None
    whole = data.rfind(b"\n") + 1
    if 0 < whole < len(data):
        warnings.warn(f"{path}: the last line was cut off while it was written; it is dropped", stacklevel=3)
    lines = enumerate(data[:whole].splitlines(), 1)
    return [_row(line, path, number) for number, line in lines if line.strip()], whole


def _row(line: bytes, path: Path, number: int) -> Row:
    try:
        row = Row.model_validate_json(line)
        if "schema_version" in row.model_fields_set:
            return row
    except ValueError:
        pass
    try:
        version = json.loads(line)["schema_version"]
    except (ValueError, TypeError, LookupError, RecursionError):
        version = SCHEMA_VERSION
    if version == SCHEMA_VERSION:
        raise InputError(f"{path} line {number} is no row: mend or delete that line, or give another folder")
    raise InputError(
        f"{path} was written with row schema {version} and this version reads {SCHEMA_VERSION}: "
        "use the version of tflabench that wrote it, or give another folder"
    )


def write_whole(path: Path, text: str) -> None:
    """Write a file at once: a reader finds the old text or the new one."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
