"""Which figures the rows make: one an axis and setting of everything else that varies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tflabench.figures.quantities import AXES, Rows, plain

# Axis -> the columns that change with it where tokens and embedding stay.
FOLLOWING = {"seq_len": ("batch",), "d_hv": ("heads", "d_qk"), "d_qk": ("heads", "d_hv"), "heads": ("d_hv", "d_qk")}


@dataclass(frozen=True)
class Slice:
    """The rows of one figure: `axis` varies, `setting` is what tells this figure from its siblings."""

    axis: str
    setting: dict[str, Any]
    rows: Rows

    @property
    def tags(self) -> list[str]:
        """Return the settings as parts of a file's name."""
        return [
            f"{'L' if column == 'chunk_asked' else column}_{plain(value)}" for column, value in self.setting.items()
        ]

    @property
    def single(self) -> bool:
        """Return whether it has a single point of T, at which implementations are ranked."""
        return self.axis == "seq_len" and self.rows["seq_len"].nunique() == 1

    @property
    def stem(self) -> str:
        """Return the name of a figure's files without their ending."""
        return "-".join([self.axis, *self.tags])


def swept_axes(rows: Rows) -> list[str]:
    """Return the axes that vary within an implementation, without those that follow another (batch at fixed tokens).

    Sizes of models, which have neither heads nor an embedding in common, are no sweep of a head dimension, and chunk
    sizes that an implementation chose for each size none of L.
    """
    codes = pd.DataFrame({name: pd.factorize(rows[name])[0] for name in ("implementation", "pass", *AXES)})
    codes["chunk_size"] = pd.factorize(rows["chunk_asked"])[0]
    codes["embedding"] = (rows["heads"] * rows["d_hv"]).to_numpy()

    def varies(axis: str, fixed: Sequence[str]) -> bool:
        present, keys = codes[codes[axis] >= 0], ["implementation", "pass", *fixed]
        return len(present.drop_duplicates([*keys, axis])) > len(present.drop_duplicates(keys))

    axes: list[str] = []
    for axis in [axis for axis in AXES if codes[axis].max() > 0]:
        apart = [name for name in AXES if name != axis]
        if any(varies(axis, fixed) for fixed in (apart, [*axes, "embedding"], [*axes, "heads"])):
            axes.append(axis)
    return axes


def slices(rows: Rows) -> list[Slice]:
    """Return the slices of every axis that was swept, and one a size of the rows that stand in none of them.

    An axis of two values is left out where its slices would be several figures of two points each, all of which the
    slices of other axes show too.
    """
    of_axes = {axis: split(rows, axis) for axis in swept_axes(rows) or ["seq_len"]}
    for axis, of_axis in list(of_axes.items()):
        of_rest = {index for name in of_axes if name != axis for part in of_axes[name] for index in part.rows.index}
        shown = rows.loc[[*{index for part in of_axis for index in part.rows.index}]]
        if len(of_axis) > shown[axis].nunique() == 2 and of_rest.issuperset(shown.index):
            del of_axes[axis]
    parts = [part for of_axis in of_axes.values() for part in of_axis]
    same = rows.groupby(["implementation", "pass", *AXES], dropna=False).ngroup()
    alone = rows[~same.isin(pd.concat([same[part.rows.index] for part in parts]))]
    sizes = {"T": alone["seq_len"], "batch": alone["batch"], "embedding": alone["heads"] * alone["d_hv"]}
    for size, of_size in alone.groupby(list(sizes.values())):
        if of_size.loc[of_size["timed"], "implementation"].nunique() > 1:
            parts.append(Slice("seq_len", dict(zip(sizes, size, strict=True)), of_size))
    return parts


def split(rows: Rows, axis: str) -> list[Slice]:
    """Return one Slice a setting of the columns that vary while `axis` stays; rows without that column join all.

    A setting makes a figure if some implementation has two values of `axis` in it, unless no setting does. Of
    implementations that have curves, points outside of these are left out: a sweep of T is no sweep of d_hv because it
    has two head sizes somewhere.
    """
    rows = _of_curves(rows, axis)
    if axis == "chunk_size":  # an L that was asked for and also chosen is one point here
        rows = rows.drop_duplicates(["implementation", "pass", *AXES], keep="last")
        columns = [column for column in AXES if column != axis]
    else:
        columns = [*(column for column in AXES if column not in (axis, "chunk_size")), "chunk_asked"]
    spread = rows.groupby(["implementation", "pass", axis], dropna=False)[columns].nunique().max()
    split = [column for column in columns if spread[column] > 1]
    if axis == "heads" and (rows["heads"] * rows["d_hv"]).groupby(rows["implementation"]).nunique().max() > 1:
        split = [*dict.fromkeys((*split, "d_hv", "d_qk"))]
    if not split:
        return _of_one_load(Slice(axis, {}, rows))
    owned = rows[rows[split].notna().all(axis=1)]
    values = owned.groupby([*split, "implementation", "pass"])[axis].nunique()
    parts, longest = [], values.groupby(split).max().reset_index()  # the most values that one implementation has
    for setting in longest[split].to_dict("records"):
        match = [(rows[column] == value) | rows[column].isna() for column, value in setting.items()]
        parts.append(Slice(axis, {str(c): value for c, value in setting.items()}, rows[np.logical_and.reduce(match)]))
    curves = [part for part, values in zip(parts, longest[axis], strict=True) if values > 1]
    return [of_load for part in _shortest_settings(curves or parts) for of_load in _of_one_load(part)]


def _of_one_load(part: Slice) -> list[Slice]:
    """Return a slice over T as it is where batch or tokens stay; else one for each number of tokens with a curve."""
    tokens = part.rows["batch"] * part.rows["seq_len"]
    if part.axis != "seq_len" or part.rows["batch"].nunique() == 1 or tokens.nunique() == 1:
        return [part]
    lengths = part.rows.groupby(tokens)["seq_len"].nunique()
    loads = [load for load in lengths.index if lengths[load] > 1] or [lengths.idxmax()]
    return [Slice(part.axis, part.setting | {"tokens": load}, part.rows[tokens == load]) for load in loads]


def _of_curves(rows: Rows, axis: str) -> Rows:
    """Return the rows of curves over `axis`, and those of implementations without one that fit to them.

    A point fits to a curve of its pass, embedding and dtype that has a point at the same sequence length, if it is
    the only one of its implementation there.
    """
    varying = {axis, "chunk_asked" if axis == "chunk_size" else "chunk_size", *FOLLOWING.get(axis, ())}
    fixed = [column for column in (*AXES, "chunk_asked") if column not in varying]
    values = rows.groupby(["implementation", "pass", *fixed], dropna=False)[axis].transform("nunique")
    curve = values > 1
    if not curve.any():
        return rows
    place = (rows["pass"], rows["heads"] * rows["d_hv"], rows["dtype"], rows["seq_len"])
    places = pd.Series(list(zip(*place, strict=True)), index=rows.index)
    alone = places.groupby([rows["implementation"], places]).transform("size") == 1
    single = ~rows["implementation"].isin(rows.loc[curve, "implementation"]) & places.isin(places[curve]) & alone
    return rows[curve | single]


def _shortest_settings(parts: list[Slice]) -> list[Slice]:
    """Return these slices, each setting cut down to the columns needed to tell them apart."""
    kept: list[str] = []

    def distinct(columns: list[str]) -> int:
        return len({tuple(part.setting[column] for column in columns) for part in parts})

    for column in parts[0].setting:
        if distinct([*kept, column]) > distinct(kept):
            kept.append(column)
    return [Slice(part.axis, {column: part.setting[column] for column in kept}, part.rows) for part in parts]
