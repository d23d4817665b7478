"""Where results live: one journal line a finished point, flushed to disk at once; parquet and CSV made from it.

A results folder holds `journal.jsonl` (append-only, the truth), `rows.parquet` and `rows.csv` (the last row of every
point) and `environment.json` (the machine and versions behind each `run_id`).
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tflabench.problem import PASSES, InputError, Problem

if TYPE_CHECKING:
    import pandas as pd

    from tflabench.adapter import Implementation

SCHEMA_VERSION = 1
Status = Literal["ok", "unsupported", "oom", "compile_error", "crashed", "timeout", "wrong", "error"]


class Row(BaseModel):
    """One measured point. Times in milliseconds, memory in bytes, rates in units of 1e12 FLOP/s and 1e9 B/s.

    `point` is the identity of what was asked for (see `point_id`); `chunk_size` the one that was used, also where the
    implementation chose it. `host_ms` is what the host needs to enqueue a call, no part of the other times; the longer
    of it and `ms_median` is what a program that enqueues one call after the other takes. `compile_s` is what the first
    call took beyond a settled one: compiling, tuning, loading. `extra_bytes` is the peak minus what was there before
    the call: inputs, and the output gradient. `rel_error` is the largest deviation from float64 over the output and the
    gradients, root mean square over root mean square, within the first `verified_steps` of the sequence. `details`
    holds what else the implementation and the gate had to say.
    """

    model_config = ConfigDict(populate_by_name=True, extra="forbid")

    schema_version: Literal[1] = SCHEMA_VERSION
    run_id: str
    point: str
    implementation: str
    title: str
    family: str
    gate: str | None = None
    formulation: str
    package: str
    package_version: str | None = None
    pass_: str = Field(alias="pass")
    batch: int
    heads: int
    seq_len: int
    d_qk: int
    d_hv: int
    chunk_size: int | None = None
    dtype: str
    inputs: str
    seed: int
    device: str
    status: Status
    reason: str | None = None
    ms_median: float | None = None
    ms_min: float | None = None
    ms_p20: float | None = None
    ms_p80: float | None = None
    host_ms: float | None = None
    samples: int | None = None
    warmup: int | None = None
    protocol: str
    timer: str | None = None
    compile_s: float | None = None
    peak_bytes: int | None = None
    extra_bytes: int | None = None
    model_flops: float | None = None
    model_bytes: float | None = None
    model_ms_lower: float | None = None
    model_ms_upper: float | None = None
    ceilings: str | None = None
    tflops: float | None = None
    gbps: float | None = None
    percent_of_roofline: float | None = None
    rel_error: float | None = None
    verified_steps: int | None = None
    sm_clock_mhz: float | None = None
    throttled: bool | None = None
    noisy: bool | None = None
    started_at: str
    details: dict[str, Any] = Field(default_factory=dict)

    def columns(self) -> dict[str, Any]:
        """The row under its column names: `pass`, not `pass_`."""
        return self.model_dump(by_alias=True)


def point_id(impl: Implementation, problem: Problem) -> str:
    """Identity of a point inside a results folder: the implementation and everything of the problem that was asked."""
    p = problem
    size = f"B{p.batch}/H{p.heads}/T{p.seq_len}/qk{p.d_qk}/hv{p.d_hv}/L{p.chunk_size or 'auto'}"
    return f"{impl.name}/{p.pass_}/{size}/{p.dtype}/{p.inputs}{p.seed}"


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
        lines, whole = _whole_lines(folder)
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
        runs = json.loads(path.read_text())["runs"] if path.exists() else {}
        _write_whole(path, json.dumps({"runs": {**runs, run_id: environment}}, indent=2) + "\n")

    def export(self) -> list[Path]:
        """Write rows.parquet and rows.csv; returns all files of the folder that exist now."""
        table = frame(list(self.rows.values()))
        table["details"] = [json.dumps(details, sort_keys=True) for details in table["details"]]
        for name, write in {"rows.parquet": table.to_parquet, "rows.csv": table.to_csv}.items():
            write(self.folder / f"{name}.part", index=False)
            os.replace(self.folder / f"{name}.part", self.folder / name)
        names = ("journal.jsonl", "rows.parquet", "rows.csv", "environment.json")
        return [path for name in names if (path := self.folder / name).exists()]


def write_errors(folder: Path, results: Sequence[Mapping[str, Any]], environment: Mapping[str, Any]) -> Path:
    """Errors against float64 as errors.csv, a line for each tensor of each point, beside their environment.json.

    Args:
        results: as `tflabench.bench.Bench.verify` gives them.

    Raises:
        InputError: the folder cannot be written.
    """
    import pandas as pd

    lines = [
        {name: value for name, value in result.items() if name != "errors"} | error
        for result in results
        for error in result["errors"] or [{}]
    ]
    path = folder / "errors.csv"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(lines).to_csv(path, index=False)
        _write_whole(folder / "environment.json", json.dumps({"runs": {"verify": environment}}, indent=2) + "\n")
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}): give another folder with --out") from error
    return path


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


@dataclass(frozen=True)
class Merged:
    """How many points `merge` added, measured again, and left out because what was there counts."""

    new: int
    replaced: int
    kept: int


def merge(results: Results, folder: Path) -> Merged:
    """Add rows to another folder: of a point that both have, what was measured last, but a time before any failure.

    The runs behind the rows that are added are described as they were, with `folder` for their --out.

    Raises:
        InputError: the folder cannot be written, or rows of one device would stand beside those of another.
    """
    devices = {row.device: results.folder for row in results.rows}
    if (folder / "journal.jsonl").exists():
        devices |= {row.device: folder for row in _whole_lines(folder)[0]}
    if len(devices) > 1:
        told = ", ".join(f"{where} has rows of {device}" for device, where in devices.items())
        raise InputError(f"{told}: a results folder holds rows of one device, so merge into another one")
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
    """What is larger for the one of two rows of a point that counts, whichever is merged into which."""
    return row.status == "ok", row.started_at


def _written_into(folder: Path, environment: dict[str, Any]) -> dict[str, Any]:
    """Of a run, with this folder in its command's --out."""
    arguments = list(environment.get("arguments", ()))
    for place, argument in enumerate(arguments):
        if argument == "--out" and place + 1 < len(arguments):
            arguments[place + 1] = str(folder)
        elif argument.startswith("--out="):
            arguments[place] = f"--out={folder}"
    return {**environment, "arguments": arguments} if arguments else environment


def _last_rows(folder: Path) -> list[Row]:
    if not (folder / "journal.jsonl").is_file():
        raise InputError(f"{folder} holds no journal.jsonl: it must be a results folder written by `tflabench sweep`")
    rows = {row.point: row for row in _whole_lines(folder)[0]}
    if not rows:
        raise InputError(f"{folder} holds no rows yet: run `tflabench sweep --out {folder}` first")
    return list(rows.values())


def _whole_lines(folder: Path) -> tuple[list[Row], int]:
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


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Rows as a table: columns as `Row` names them, of one type also where every value is missing."""
    import pandas as pd

    columns = [field.alias or name for name, field in Row.model_fields.items()]
    table = pd.DataFrame([row.columns() for row in rows], columns=columns)
    for name, field in Row.model_fields.items():
        dtype = {int | None: "Int64", float | None: "float64", bool | None: "boolean"}.get(field.annotation)  # type: ignore[call-overload]
        if dtype:
            table[field.alias or name] = table[field.alias or name].astype(dtype)  # type: ignore[call-overload]
    return table


def _write_whole(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)
