"""Rows as a pandas table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tflabench.rows.schema import Row

if TYPE_CHECKING:
    import pandas as pd


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


def flat(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table for files: a copy whose columns of lists and dicts hold them as JSON."""
    table = table.copy()
    for name in table.columns.intersection(["details", "tuned", "gpu_kernels"]):
        table[name] = table[name].map(_json).astype(object)
    return table


def _json(value: object) -> str | None:
    return json.dumps(value, sort_keys=True) if isinstance(value, (list, dict)) else None
