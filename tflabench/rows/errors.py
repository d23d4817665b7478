"""Errors against float64 as a file: errors.csv, a line for each tensor of each point."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tflabench.problem import InputError
from tflabench.rows.journal import described_runs, write_whole


@dataclass(frozen=True)
class ErrorLine:
    """One line of an errors.csv: how far a tensor of a point is from float64.

    Attributes:
        folder: that the file lies in.
        tensor: "forward", or which gradient.
        error: root mean square of the deviation over that of float64; None where the point has no result.
        mean_absolute: mean absolute deviation.
    """

    folder: str
    point: str
    implementation: str
    pass_: str
    batch: int
    heads: int
    seq_len: int
    d_qk: int
    d_hv: int
    chunk_size: int | None
    dtype: str
    inputs: str
    status: str
    tensor: str
    error: float | None
    mean_absolute: float | None


def find_errors(root: Path | str) -> list[ErrorLine]:
    """Read every errors.csv at and below `root`, sorted by path; there may be none.

    Raises:
        InputError: one that `tflabench verify` did not write.
    """
    found: list[ErrorLine] = []
    for path in sorted(Path(root).rglob("errors.csv")):
        try:
            with path.open(newline="") as file:
                found += [_line(str(path.parent), line) for line in csv.DictReader(file)]
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{path} is not what `tflabench verify --out` writes ({error!r}): delete it") from None
    return found


def _line(folder: str, line: Mapping[str, str]) -> ErrorLine:
    return ErrorLine(
        folder=folder,
        point=line["point"],
        implementation=line["implementation"],
        batch=int(line["batch"]),
        heads=int(line["heads"]),
        seq_len=int(line["seq_len"]),
        d_qk=int(line["d_qk"]),
        d_hv=int(line["d_hv"]),
        dtype=line["dtype"],
        inputs=line["inputs"],
        status=line["status"],
        pass_=line["pass"],
        chunk_size=int(float(line["chunk_size"])) if line["chunk_size"] else None,
        tensor=line.get("name") or "",
        error=_number(line.get("error")),
        mean_absolute=_number(line.get("mean_absolute")),
    )


def _number(text: str | None) -> float | None:
    return float(text) if text else None


def write_errors(folder: Path, results: Sequence[Mapping[str, Any]], environment: Mapping[str, Any]) -> Path:
    """Write errors against float64 as errors.csv, a line for each tensor of each point, and their environment.json.

    Args:
        results: as `tflabench.bench.runner.Bench.verify` gives them.

    Raises:
        InputError: the folder cannot be written, or has an environment.json that no sweep wrote.
    """
    import pandas as pd

    lines: list[dict[str, Any]] = [
        {name: value for name, value in result.items() if name != "errors"} | error
        for result in results
        for error in result["errors"] or [dict[str, Any]()]
    ]
    path = folder / "errors.csv"
    runs = described_runs(folder) | {"verify": environment}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, pd.DataFrame(lines).to_csv(index=False))
        write_whole(folder / "environment.json", json.dumps({"runs": runs}, indent=2) + "\n")
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}): give another folder with --out") from error
    return path
