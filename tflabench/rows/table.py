"""Rows as a pandas table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast, get_args, get_origin

from tflabench.problem import InputError
from tflabench.rows.schema import Row

if TYPE_CHECKING:
    import pandas as pd


COLUMNS = {field.alias or name: field for name, field in Row.model_fields.items()}
JSON_COLUMNS = [  # which files hold as JSON
    name
    for name, field in COLUMNS.items()
    if any(get_origin(part) in (list, dict) for part in (field.annotation, *get_args(field.annotation)))
]


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Return rows as a table: columns as `Row` names them, of one type also where every value is missing."""
    import pandas as pd

    attributes = zip(COLUMNS, Row.model_fields, strict=True)
    table = pd.DataFrame(
        {column: [row.__dict__[attribute] for row in rows] for column, attribute in attributes},
        dtype=None if rows else object,  # of no rows too, words are words
    )
    for name, field in COLUMNS.items():
        if dtype := {int | None: "Int64", float | None: "float64", bool | None: "boolean"}.get(field.annotation):  # type: ignore[call-overload]
            table[name] = table[name].astype(dtype)  # type: ignore[call-overload]
    return table


def rows_of(table: pd.DataFrame) -> list[Row]:
    """Return the rows of a table that `frame` made, or of a part of one; columns that rows lack are left out.

    Raises:
        InputError: a column that every row has is missing, or one holds what no row can.
    """
    from pydantic import ValidationError

    require_columns(table, "the table", "it must have those that tflabench.load gives")
    try:
        return [Row.model_validate(record) for record in records(table[table.columns.intersection(list(COLUMNS))])]
    except ValidationError as error:
        first = error.errors()[0]
        column = first["loc"][0] if first["loc"] else "row"
        raise InputError(f"the table's {column} is {first['input']!r}: {first['msg']}") from None


def require_columns(table: pd.DataFrame, name: str, remedy: str) -> None:
    """Raise InputError where a table lacks a column of every row, or that of the time; `name` is what it is called."""
    required = ["ms_median", *(column for column, field in COLUMNS.items() if field.is_required())]
    if missing := [column for column in required if column not in table.columns]:
        raise InputError(f"{name} has no column {missing[0]!r}: {remedy}")


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table, or of a file made by `flat`, as Python has them: None where a value is missing."""
    table = table.astype(object).where(table.notna(), None)
    for name in table.columns.intersection(JSON_COLUMNS):
        table[name] = [json.loads(value) if isinstance(value, str) else value for value in table[name]]
    return cast("list[dict[str, Any]]", table.to_dict("records"))


def flat(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table for files: a copy whose columns of lists and dicts hold them as JSON."""
    table = table.copy()
    for name in table.columns.intersection(JSON_COLUMNS):
        values = table[name].tolist()
        table[name] = [json.dumps(x, sort_keys=True) if isinstance(x, (list, dict)) else None for x in values]
        table[name] = table[name].astype(object)
    return table
