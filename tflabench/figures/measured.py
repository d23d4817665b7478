"""A figure of a table of rows: what the Python API draws."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tflabench.figures import curves, facets
from tflabench.figures.highlights import require
from tflabench.figures.model import Figure
from tflabench.figures.quantities import AXES, MEMORY, RUNTIME, Rows
from tflabench.figures.source import Source
from tflabench.implementations.registry import nearest
from tflabench.problem import InputError
from tflabench.rows.load import Results
from tflabench.rows.table import rows_of

QUANTITIES = {"runtime": RUNTIME, "memory": MEMORY}


def source(table: Rows, highlight: Sequence[str] = ()) -> Source:
    """Return what figures start from, of a table that `rows.table.frame` made; of every point the last row.

    Raises:
        InputError: no rows, rows of several devices, missing columns, or a pattern to highlight that matches nothing.
    """
    last = {row.point: row for row in sorted(rows_of(table), key=lambda row: row.started_at)}
    if not last:
        raise InputError("the table has no rows: give some that tflabench.load or tflabench.sweep returned")
    devices = sorted({row.device for row in last.values()})
    if len(devices) > 1:
        raise InputError(f"the table has rows of {' and '.join(devices)}: give those of one, df[df['device'] == ...]")
    names = dict.fromkeys(row.implementation for row in last.values())
    require(highlight, names, "highlight")
    return Source.of(Results(Path(), tuple(last.values()), {}), highlight)


def largest(rows: Source, axis: str, quantity: str) -> Figure:
    """Return the figure of a quantity over an axis that shows most rows.

    Raises:
        InputError: an unknown axis or quantity, or an axis that no row has.
    """
    for name, value, known in (("axis", axis, AXES), ("quantity", quantity, QUANTITIES)):
        if value not in known:
            raise InputError(f"{name} is {value!r}: it must be one of {', '.join(known)}")
    if rows.rows[axis].isna().all():
        raise InputError(f"axis is {axis!r}, which no row has: {nearest(axis, facets.swept_axes(rows.rows))}")
    part = max(facets.split(rows.rows, axis), key=lambda part: len(part.rows))
    return curves.draw(f"{quantity}-{part.stem}", rows, part, QUANTITIES[quantity])
