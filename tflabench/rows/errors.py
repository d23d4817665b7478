"""Errors against float64 as a file: errors.csv, a line for each tensor of each point."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from tflabench.problem import InputError
from tflabench.rows.journal import described_runs, write_whole

if TYPE_CHECKING:
    import pandas as pd


class ErrorLine(BaseModel):
    """One line of an errors.csv: how far a tensor of a point is from float64.

    Attributes:
        folder: that the file lies in.
        tensor: "forward", or which gradient.
        error: root mean square of the deviation over that of float64; None where the point has no result.
        mean_absolute: mean absolute deviation.
    """

    model_config = ConfigDict(populate_by_name=True, frozen=True)

    folder: str
    point: str
    implementation: str
    pass_: str = Field(alias="pass")
    batch: int
    heads: int
    seq_len: int
    d_qk: int
    d_hv: int
    chunk_size: int | None = None
    dtype: str
    inputs: str
    status: str
    tensor: str = Field(default="", alias="name")
    error: float | None = None
    mean_absolute: float | None = None


def find_errors(root: Path | str) -> list[ErrorLine]:
    """Read every errors.csv at and below `root`, sorted by path; there may be none.

    Raises:
        InputError: one that `tflabench verify` did not write.
    """
    errors: list[ErrorLine] = []
    for path in sorted(Path(root).rglob("errors.csv")):
        try:
            with path.open(newline="") as file:
                for line in csv.DictReader(file):
                    given = {name: value for name, value in line.items() if value}
                    errors.append(ErrorLine.model_validate(given | {"folder": str(path.parent)}))
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is not what `tflabench verify --out` writes ({error!r}): delete it") from None
    return errors


def table(results: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return errors against float64, a line for each tensor of each point, or for a point that has none.

    Args:
        results: as `tflabench.bench.verifier.verify` gives them.
    """
    import pandas as pd

    return pd.DataFrame(
        [
            {name: value for name, value in result.items() if name != "errors"} | error
            for result in results
            for error in result["errors"] or [dict[str, Any]()]
        ]
    )


def write_errors(folder: Path, results: Sequence[Mapping[str, Any]], environment: Mapping[str, Any]) -> Path:
    """Write the `table` of errors as errors.csv, and their environment.json.

    Raises:
        InputError: the folder cannot be written, or has an environment.json that no sweep wrote.
    """
    path = folder / "errors.csv"
    runs = described_runs(folder) | {"verify": environment}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, table(results).to_csv(index=False))
        write_whole(folder / "environment.json", json.dumps({"runs": runs}, indent=2) + "\n")
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}): give another folder with --out") from error
    return path
