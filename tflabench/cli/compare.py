"""The command that holds one measurement against another: compare."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tflabench.cli.common import app
from tflabench.cli.common.console import RenderableType, emit, stderr
from tflabench.cli.common.options import Json, option
from tflabench.cli.common.paths import ROWS
from tflabench.conclusions.tables import FittedTable, TableColumn
from tflabench.problem import InputError

if TYPE_CHECKING:
    from tflabench.conclusions.compare import Judgement, Match
    from tflabench.rows.schema import Row

LARGEST_THRESHOLD = 100.0  # times
COMPARED, JUDGED = "What to compare", "How to judge"  # panels of --help
STYLES = {"faster": "green", "slower": "red", "broken": "bold red", "ambiguous": "yellow", "missing": "dim"}


Inside = Annotated[Path | None, option(COMPARED, "DIR", "Compare the implementations A and B in this folder.", "--in")]
PATTERNS = "Take only these implementations of two folders."
Patterns = Annotated[list[str] | None, option(COMPARED, "PATTERN", PATTERNS, "--impl", show_default="all")]
NEARER = "Call medians nearer than this the same, and slower ones a regression: 5% or 0.05."
USUAL = "1% within a comparison, 4.5% and more between occasions"
GivenThreshold = Annotated[str | None, option(JUDGED, "PART", NEARER, "--threshold", show_default=USUAL)]
AllowThrottled = Annotated[bool, option(JUDGED, None, "Judge throttled rows like others.")]


@app.command("compare")
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=f"{ROWS} With --in, an implementation.")],
    b: Annotated[str, typer.Argument(metavar="B", help="What is held against A.")],
    inside: Inside = None,
    impl: Patterns = None,
    threshold: GivenThreshold = None,
    allow_throttled: AllowThrottled = False,
    json_: Json = False,
) -> None:
    """Match two results folders (or two implementations) point by point; exit code 1 where B is a regression.

    A point is faster or slower where the medians are further apart than a threshold, and than the precision to which
    their ratio is known. Both must have three rounds and be tuned whole, and neither be throttled. Else it is the
    same, or ambiguous. The threshold is 1% where both sides took turns in one comparison. Between two occasions it is
    4.5%, more than any kernel moved from a stored folder to its repeat, and grows with the number of points, so that
    equal folders have no regression in 95% of cases. Between hosts that differ kernels moved by up to 4.9%. A point
    that is slower, or ran in A and fails in B, is a regression.
    """
    from tflabench.conclusions import compare as comparison
    from tflabench.conclusions.campaigns import differences

    tolerance = comparison.Tolerance(None if threshold is None else _fraction(threshold), allow_throttled)
    if inside and impl:
        raise InputError("--impl is for two folders: with --in, A and B are the implementations")
    side_a, side_b = comparison.sides(a, b, inside, ",".join(impl) if impl else "*")
    note = stderr()
    differing = differences(side_a.conditions, side_b.conditions)
    if machines := differing.get("device"):
        line = "Different machines: A ran on {}, B on {}. Ratios compare the machines as much as the kernels."
        note.print(line.format(*machines), style="bold yellow")
    settings = [f"{name} {in_a} in A, {in_b} in B" for name, (in_a, in_b) in differing.items() if name != "device"]
    if settings:
        note.print(f"Different versions or settings: {'; '.join(settings)}.", style="bold yellow")
    judgement = comparison.compare(comparison.matched(side_a, side_b, inside), tolerance)
    document = {
        "a": {"name": side_a.name, **side_a.conditions},
        "b": {"name": side_b.name, **side_b.conditions},
        "differences": {name: {"a": in_a, "b": in_b} for name, (in_a, in_b) in differing.items()},
        "rules": asdict(tolerance),
        "thresholds": [
            {"threshold": threshold.value, "why": threshold.why, "points": count}
            for threshold, count in judgement.thresholds.items()
        ],
        "counts": judgement.counts,
        "geometric_mean_ratio": judgement.geometric_mean,
        "points": judgement.points,
        "only_a": [row.point for row in judgement.only_a],
        "only_b": [row.point for row in judgement.only_b],
    }
    emit(document, _text(judgement, f"A = {a}, B = {b}"), json_)
    if not allow_throttled and any("throttled" in (match.reason or "") for match in judgement.matches):
        note.print("Rows measured while the GPU held its clock back are ambiguous; --allow-throttled judges them too.")
    if slower := [match for match in judgement.matches if match.regressed]:
        worst = max(slower, key=lambda match: match.ratio or math.inf)
        slowdown = f"takes {worst.ratio:.2f} times as long" if worst.ratio else worst.reason
        line = f"{len(slower)} of {len(judgement.matches)} points regress, the worst: {worst.b.point} {slowdown}"
        note.print(line, style="bold red")
        raise typer.Exit(1)


def _fraction(text: str) -> float:
    """Return 0.05 for "5%" and for "0.05"."""
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if rest or math.copysign(1, value) < 0 or not 0 <= value < (LARGEST_THRESHOLD if percent else 1):
        raise InputError(f"--threshold is {text!r}: it must be a percentage such as 5%, or a fraction such as 0.05")
    return value


def _text(judgement: Judgement, title: str) -> Iterator[RenderableType]:
    """Yield a line a point, then counts and the mean."""
    from rich.text import Text

    from tflabench.rows.labels import heads, label, size

    def time(row: Row) -> str:
        return f"{row.ms_median:.4g} ms" if row.ms_median is not None else row.status

    def sizes(match: Match) -> str:
        return size(match.a) + (f" and {heads(match.b)}" if heads(match.a) != heads(match.b) else "")

    yield Text(title, style="italic")
    columns = [
        TableColumn("pass", lambda match: match.a.pass_),
        TableColumn("size", sizes, enough=24),
        TableColumn("dtype", lambda match: match.a.dtype, drop=4),
        TableColumn("implementation", lambda pair: " | ".join({label(pair.a): 0, label(pair.b): 0}), enough=24),
        TableColumn("A", lambda match: time(match.a), ">", 2),
        TableColumn("B", lambda match: time(match.b), ">", 3),
        TableColumn("B / A", lambda match: match.ratio, ".3f"),
        TableColumn("memory", lambda match: match.memory_ratio, ".2f", 5),
        TableColumn("verdict", lambda match: f"{match.verdict}{' !' if match.regressed else ''}", "<"),
        TableColumn("why", lambda match: match.reason or "", drop=1, enough=24),
    ]
    measured = [match for match in judgement.matches if "ok" in (match.a.status, match.b.status)]
    yield FittedTable(columns, measured, lambda match: STYLES.get(match.verdict, ""))
    for threshold, count in judgement.thresholds.items():
        yield f"Threshold {100 * threshold.value:g}%: {count} point{'s' * (count > 1)} {threshold.why}"
    yield Text(", ".join(f"{count} {verdict}" for verdict, count in judgement.counts.items() if count), style="bold")
    if judgement.geometric_mean:
        yield f"B took {judgement.geometric_mean:.3f} times as long as A (geometric mean of {judgement.judged} points)"
    if neither := [match for match in judgement.matches if match not in measured]:
        yield f"{len(neither)} points ran on neither side, among them {neither[0].a.point}"
    for side, rows in (("A", judgement.only_a), ("B", judgement.only_b)):
        if rows:
            yield f"{len(rows)} points only in {side}, among them {rows[0].point}"
