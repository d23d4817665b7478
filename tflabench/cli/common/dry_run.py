"""The form of a dry run, which `sweep` and `reproduce` share: what would be measured, in its order, and how long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflabench.cli.common.console import emit
from tflabench.conclusions.tables import FittedTable, TableColumn
from tflabench.problem import size_in_words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tflabench.bench.estimate import Target
    from tflabench.bench.protocol import Protocol
    from tflabench.rows.schema import Row
    from tflabench.selection.points import Comparison

MOST_COMPARISONS, MOST_REASONS = 20, 5  # that are printed without --full


def print_selection(
    comparisons: Sequence[Comparison],
    target: Target,
    folder: Path,
    stored: Mapping[str, Row],
    rules: Protocol,
    timeout_s: float,
    *,
    full: bool = False,
    json: bool = False,
) -> None:
    """Print what a sweep would measure, about how long that takes, and how much memory.

    Args:
        stored: the rows that its folder has, by point.
        timeout_s: no point takes longer.
        full: a line a point, where there is one a comparison otherwise.
        json: one JSON object in place of text.
    """
    from tflabench.bench.estimate import estimate
    from tflabench.bench.sweep import pending, warn_too_big

    points = [(number, point) for number, compared in enumerate(comparisons, 1) for point in compared.points]
    estimates = {point.id: estimate(point, target, rules) for _, point in points}
    warn_too_big(estimates, target.memory_bytes)
    selection = [
        {
            "comparison": number,
            "implementation": point.implementation.name,
            "family": point.implementation.family,
            "gate": point.implementation.gate,
            **point.problem.columns(),
            "seconds": round(min(estimates[point.id].seconds, timeout_s), 1),
            "bytes": estimates[point.id].bytes,
            "refused": target.refusal(point),
        }
        for number, point in points
    ]
    lacking = {point.id for compared in pending(comparisons, stored, rules, target.kind) for point in compared.points}
    due = [row for (_, point), row in zip(points, selection, strict=True) if point.id in lacking]
    seconds, seconds_left = (round(sum(row["seconds"] for row in rows)) for rows in (selection, due))
    totals = {"seconds": seconds, "seconds_left": seconds_left, "points_left": len(due)}
    document = {"device": target.name, "folder": str(folder), **totals, "points": selection}
    emit(document, _text(document, full), json)


def _text(document: dict[str, Any], full: bool) -> Iterator[RenderableType]:
    """Yield a table of comparisons, or of points if `full`, what it leaves out, and what all takes."""
    selection, folder = document["points"], document["folder"]
    if full:
        yield _points_table(selection)
    else:
        yield _comparisons_table(selection)
        yield from _lines_below(selection)
    runnable = sum(not row["refused"] for row in selection)
    most = max(row["bytes"] for row in selection)
    yield (
        f"{len(selection)} points in {selection[-1]['comparison']} comparisons, {runnable} can run on "
        f"{document['device']}: about {max(1, round(document['seconds'] / 60))} min; at least {size_in_words(most)} of "
        f"memory; rows go to {folder}"
    )
    if lacking := len(selection) - document["points_left"]:
        minutes = max(1, round(document["seconds_left"] / 60))
        rest = f"about {minutes} min are left" if document["points_left"] else "nothing is left"
        yield f"{folder} has {lacking} of them: {rest}"


def _points_table(selection: Sequence[dict[str, Any]]) -> FittedTable:
    """Return a line a point; those that cannot run are dim and say why."""
    later = {"inputs": 4, "gates": 4, "heads_qk": 4, "family": 3, "gate": 3, "seconds": 1, "refused": 1}
    columns = [
        TableColumn("memory", lambda row: size_in_words(row["bytes"]), ">", drop=2)
        if name == "bytes"
        else TableColumn(name, name, drop=later.get(name, 0))
        for name in selection[0]
        if name != "seed"
    ]
    return FittedTable(columns, selection, lambda row: "dim" if row["refused"] else "")


def _comparisons_table(selection: Sequence[dict[str, Any]]) -> FittedTable:
    """Return a line a comparison, of the first MOST_COMPARISONS."""
    numbers = range(1, min(selection[-1]["comparison"], MOST_COMPARISONS) + 1)
    by_comparison = [[row for row in selection if row["comparison"] == number] for number in numbers]

    def column(head: str, name: str, drop: int = 0) -> TableColumn:
        return TableColumn(head, lambda rows: _range([row[name] for row in rows]), ">", drop)

    columns = [
        column("", "comparison"),
        column("pass", "pass"),
        column("batch", "batch"),
        column("heads", "heads"),
        column("T", "seq_len"),
        column("d_qk", "d_qk"),
        column("d_hv", "d_hv"),
        column("dtype", "dtype", drop=2),
        TableColumn("run", lambda rows: f"{sum(not row['refused'] for row in rows)}/{len(rows)}", ">"),
        TableColumn("min", lambda rows: sum(row["seconds"] for row in rows) / 60, ".1f", drop=1),
        TableColumn("memory", lambda rows: size_in_words(max(row["bytes"] for row in rows)), ">", drop=1),
    ]
    return FittedTable(columns, by_comparison)


def _range(values: Sequence[Any]) -> str:
    """Return the one value of a column, or the least and the most of several."""
    least, most = min(values), max(values)
    return str(least) if least == most else f"{least}-{most}"


def _lines_below(selection: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Give what the table of comparisons leaves out: comparisons beyond the first, and why points cannot run."""
    if (more := selection[-1]["comparison"] - MOST_COMPARISONS) > 0:
        yield f"... and {more} more comparisons"
    reasons: dict[str, str] = {}
    for row in selection:
        if row["refused"]:
            reasons.setdefault(row["implementation"], row["refused"])
    for name, reason in list(reasons.items())[:MOST_REASONS]:
        yield f"cannot run: {name}: {reason}"
    if (more := len(reasons) - MOST_REASONS) > 0:
        yield f"... and {more} more implementations that cannot run"
    yield "--full prints every point."
