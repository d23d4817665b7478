"""Rows as a pandas table."""

from __future__ import annotations

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
