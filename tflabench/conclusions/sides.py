"""The two sides of a comparison: rows of two folders, or of two implementations in one. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflabench.conclusions.campaigns import conditions_of
from tflabench.conclusions.compare import Matching, joined, match_folders, match_implementations
from tflabench.implementations.registry import nearest, split
from tflabench.problem import InputError
from tflabench.rows.load import find_results

if TYPE_CHECKING:
    from tflabench.rows.load import Results
    from tflabench.rows.schema import Row


@dataclass(frozen=True)
class Side:
    """One side of the comparison: its name, its results folders and the rows compared; some folders may have none."""

    name: str
    folders: list[Results]

    @property
    def rows(self) -> list[Row]:
        """Return the rows of all folders."""
        return [row for folder in self.folders for row in folder.rows]

    @property
    def runs(self) -> dict[str, Any]:
        """Return the environments of all runs."""
        return {run: described for folder in self.folders for run, described in folder.runs.items()}

    @property
    def conditions(self) -> dict[str, list[str]]:
        """Return the conditions under which the rows were measured."""
        return conditions_of(self.rows, self.runs)


def sides(a: str, b: str, inside: Path | None, patterns: str) -> tuple[Side, Side]:
    """Return two sides: folders a and b with all below, or, inside a folder and all below, implementations a and b.

    Args:
        patterns: of the implementations whose rows of two folders count, comma-separated.

    Raises:
        InputError: no such folder or implementation, or twice the same implementation.
    """
    if inside is None:
        return _only(find_results(a), Path(a), patterns, a), _only(find_results(b), Path(b), patterns, b)
    if a == b:
        raise InputError(f"A and B are both {a!r}: they must be two implementations")
    folders = find_results(inside)
    return _only(folders, inside, a, a), _only(folders, inside, b, b)


def matched(a: Side, b: Side, inside: Path | None) -> Matching:
    """Return the pairs of rows of the same point.

    Raises:
        InputError: there are none.
    """
    if inside:
        pairs = zip(a.folders, b.folders, strict=True)
        matching = joined([match_implementations(x.rows, y.rows) for x, y in pairs])
    else:
        matching = match_folders(a.folders, b.folders, (Path(a.name), Path(b.name)))
    if matching.pairs:
        return matching
    sizes = f"{a.name} ({len(a.rows)} points) and {b.name} ({len(b.rows)} points)"
    if inside:
        why = "no point was measured of both in one comparison, tuned in full"
        raise InputError(f"{sizes}: {why}; sweep both into {inside} at once")
    raise InputError(f"{sizes} have none in common: sweep the same axes for both")


def _only(folders: list[Results], root: Path, pattern: str, name: str) -> Side:
    side = Side(name, [results.only(split(pattern)) for results in folders])
    if not side.rows:
        names = dict.fromkeys(row.implementation for results in folders for row in results.rows)
        raise InputError(f"{root} has no rows of {pattern!r}; {nearest(pattern, names)}")
    return side
