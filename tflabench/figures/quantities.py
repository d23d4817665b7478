"""Rows as figures use them: plain columns, the axes they can vary along, and the quantities drawn over these."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tflabench.problem import GATES, PASSES

Rows = Any  # a pandas DataFrame, columns as store.Row: pandas infers the types of columns too loosely to check

# Column of a row -> axis label. In this order axes are drawn; one that follows from those before it is not.
AXES = {
    "seq_len": "sequence length T [tokens]",
    "ranks": "devices that a sequence lies on",
    "d_hv": "head dimension d_hv [channels]",
    "d_qk": "head dimension d_qk [channels]",
    "chunk_size": "chunk size L [tokens]",
    "heads": "number of heads",
    "batch": "batch size [sequences]",
    "dtype": "data type",
    "gates": "strength of the forget gates",
}
WARY = ("noisy", "tuned in part", "wrong")  # why a point is hollow: the first two are of times
WORDS = {"dtype": (), "gates": GATES}  # axes of words, which have no order of numbers: the order of those that have one


def drawable(rows: Rows) -> Rows:
    """Return rows as figures draw them: plain floats where integers can be missing, and two columns more.

    `chunk_asked` is the chunk size asked for, or "auto": two rows that differ only in whether L was asked for or chosen
    by the implementation belong to different curves. `timed` says whether there is a time to draw: of every measured
    row, and of a wrong one that was timed all the same.
    """
    rows = rows.reset_index(drop=True)
    numbers = [name for name in rows.columns if pd.api.types.is_numeric_dtype(rows[name])]
    flags = {name: rows[name].astype("boolean").fillna(False).astype(bool) for name in ("noisy", "throttled")}
    rows = rows.astype({name: float for name in numbers if rows[name].dtype not in (bool, "boolean")})
    rows = rows.replace([np.inf, -np.inf], np.nan)
    if rows["ranks"].notna().any():
        rows["ranks"] = rows["ranks"].fillna(1)
    auto = rows["point"].str.contains("/Lauto/") & rows["chunk_size"].notna()
    chunk_asked = rows["chunk_size"].map(plain, na_action="ignore").astype(object).mask(auto, "auto")
    timed = (rows["status"] == "ok") | ((rows["status"] == "wrong") & rows["ms_median"].notna())
    gate = rows["gate"].astype(object).where(rows["gate"].notna(), None)
    rows = rows.assign(**flags, timed=timed, gate=gate, chunk_asked=chunk_asked)
    return rows.astype(
        {name: object for name in rows.columns if rows[name].dtype not in (float, bool)}
    )  # words: faster


class Quantity(NamedTuple):
    """A measured column as figures show it, with the columns of its spread and of its theory where it has them.

    `better`: how a value equal to, below and above another is called.
    """

    name: str
    column: str
    label: str
    units: tuple[tuple[str, float], ...]  # (unit, size), smallest first
    better: tuple[str, str, str]
    spread: tuple[str, str] | None = None
    theory: tuple[str, str] | None = None

    def unit(self, rows: Rows) -> tuple[str, float]:
        """Return the largest unit in which the median point is at least 1."""
        values = rows[self.column].to_numpy(float)
        measured = values[rows["timed"].to_numpy() & np.isfinite(values)]
        if not len(measured):
            return self.units[len(self.units) // 2]
        return [self.units[0], *(unit for unit in self.units if np.median(measured) >= unit[1])][-1]


RUNTIME = Quantity(
    "Runtime",
    "ms_median",
    "median runtime",
    (("µs", 1e-3), ("ms", 1.0), ("s", 1e3)),
    ("fast", "faster than", "slower than"),
    spread=("ms_p20", "ms_p80"),
    theory=("model_ms_lower", "model_ms_upper"),
)
MEMORY = Quantity(
    "Peak memory",
    "peak_bytes",
    "peak memory",
    (("KiB", 2.0**10), ("MiB", 2.0**20), ("GiB", 2.0**30)),
    ("small in memory", "less memory than", "more memory than"),
)
ERROR = Quantity(
    "Error", "rel_error", "largest error", (("relative", 1.0),), ("exact", "closer than", "farther off than")
)
QUANTITIES = {"runtime": RUNTIME, "memory": MEMORY, "error": ERROR}


def by_pass(rows: Rows) -> dict[str, Rows]:
    """Return the rows of each pass they have, in the order of panels."""
    return {pass_: part for pass_ in PASSES if len(part := rows[rows["pass"] == pass_])}


def flagged(rows: Rows, quantity: Quantity = RUNTIME) -> pd.Series:
    """Return of which rows the quantity is to be wary of: wrong results, and times that are noisy or tuned in part."""
    return reduce(or_, _flags(rows, quantity).values())


def flags(rows: Rows, quantity: Quantity) -> list[str]:
    """Return why values of these rows are to be wary of, for the legend: a word a reason."""
    return [flag for flag, mask in _flags(rows, quantity).items() if mask.any()]


def _flags(rows: Rows, quantity: Quantity) -> dict[str, pd.Series]:
    masks = dict(zip(WARY, (rows["noisy"], rows["tuned_in_part"], rows["status"] == "wrong"), strict=True))
    return {flag: mask & rows["timed"] for flag, mask in masks.items() if quantity.spread or flag == "wrong"}


def plain(value: Any) -> str:
    """Return a value as words and file names have it: whole numbers without a point."""
    return str(int(value)) if isinstance(value, (float, np.number)) and float(value).is_integer() else str(value)


def days(rows: Rows) -> str:
    """Return the day or days on which rows were measured: "2026-11-21 to 2026-11-26"."""
    dates = sorted({str(started)[:10] for started in rows["started_at"]})
    return " to ".join(dict.fromkeys((dates[0], dates[-1])))
