"""Errors against float64 as a file: errors.csv, a line for each tensor of each point."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tflabench.problem import InputError
from tflabench.rows.journal import write_whole


def write_errors(folder: Path, results: Sequence[Mapping[str, Any]], environment: Mapping[str, Any]) -> Path:
    """Errors against float64 as errors.csv, a line for each tensor of each point, beside their environment.json.

    Args:
        results: as `tflabench.bench.runner.Bench.verify` gives them.

    Raises:
        InputError: the folder cannot be written.
    """
    import pandas as pd

    lines: list[dict[str, Any]] = [
        {name: value for name, value in result.items() if name != "errors"} | error
        for result in results
        for error in result["errors"] or [dict[str, Any]()]
    ]
    path = folder / "errors.csv"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(lines).to_csv(path, index=False)
        write_whole(folder / "environment.json", json.dumps({"runs": {"verify": environment}}, indent=2) + "\n")
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}): give another folder with --out") from error
    return path
