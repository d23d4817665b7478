"""Errors against float64 as a file: errors.csv, a line for each tensor of each point."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflabench.problem import InputError
from tflabench.rows.journal import described_runs, write_whole

if TYPE_CHECKING:
    import pandas as pd


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
    """Write the `table` of errors as errors.csv, and their environment.json; InputError where a file cannot be."""
    path = folder / "errors.csv"
    runs = described_runs(folder) | {"verify": environment}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, table(results).to_csv(index=False))
        write_whole(folder / "environment.json", json.dumps({"runs": runs}, indent=2) + "\n")
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}): give another folder with --out") from error
    return path
