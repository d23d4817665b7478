"""Which figures the rows make: one an axis and setting of everything else that varies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tflabench.figures.quantities import AXES, Rows, plain


@dataclass(frozen=True)
class Slice:
    """The rows of one figure: `axis` varies, `setting` is what tells this figure from its siblings."""

    axis: str
    setting: dict[str, Any]
    rows: Rows

    @property
    def tags(self) -> list[str]:
        return [
            f"{'L' if column == 'chunk_asked' else column}_{plain(value)}" for column, value in self.setting.items()
        ]

    @property
    def stem(self) -> str:
        return "-".join([self.axis, *self.tags])


def swept_axes(rows: Rows) -> list[str]:
    """The axes that vary within an implementation, without those that only follow another (batch at fixed tokens)."""

    def most_values(axis: str, fixed: Sequence[str]) -> int:
        return int(rows.groupby(["implementation", "pass", *fixed], dropna=False)[axis].nunique().max())

    axes: list[str] = []
    for axis in AXES:
        alone = most_values(axis, [other for other in AXES if other != axis]) > 1
        if alone or most_values(axis, axes) > 1:
            axes.append(axis)
    return axes


def split(rows: Rows, axis: str) -> list[Slice]:
    """One Slice a setting of the columns that vary while `axis` stays; rows without such a column join all of them.

    Settings with fewer than two values of `axis` make no figure, unless there is nothing else.
    """
    if axis == "chunk_size":  # an L that was asked for and also chosen is one point here
        rows = rows.drop_duplicates(["implementation", "pass", *AXES], keep="last")
        others = [column for column in AXES if column != axis]
    else:
        others = [*(column for column in AXES if column not in (axis, "chunk_size")), "chunk_asked"]
    spread = rows.groupby(["implementation", "pass", axis], dropna=False)[others].nunique().max()
    split = [column for column in others if spread[column] > 1]
    if not split:
        return [Slice(axis, {}, rows)]
    owned = rows[rows[split].notna().all(axis=1)]
    found = []
    for setting in owned[split].drop_duplicates().sort_values(split).to_dict("records"):
        match = np.logical_and.reduce(
            [(rows[column] == value) | rows[column].isna() for column, value in setting.items()]
        )
        found.append(Slice(axis, {str(column): value for column, value in setting.items()}, rows[match]))
    curves = [part for part in found if part.rows.loc[part.rows.index.isin(owned.index), axis].nunique() > 1]
    return _shortest_settings(curves or found)


def _shortest_settings(parts: list[Slice]) -> list[Slice]:
    """The same slices, each setting cut down to the columns needed to tell them apart."""
    kept: list[str] = []

    def distinct(columns: list[str]) -> int:
        return len({tuple(part.setting[column] for column in columns) for part in parts})

    for column in parts[0].setting:
        if distinct([*kept, column]) > distinct(kept):
            kept.append(column)
    return [Slice(part.axis, {column: part.setting[column] for column in kept}, part.rows) for part in parts]
