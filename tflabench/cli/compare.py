"""The command that holds one measurement against another: compare."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tflabench.cli.common.app import app
from tflabench.problem import InputError

if TYPE_CHECKING:
    from tflabench.conclusions.compare import Comparison, Match
    from tflabench.rows.load import Results
    from tflabench.rows.schema import Row

WIDTH = 160  # of tables where nobody's terminal limits them
STYLES = {"faster": "green", "slower": "red", "broken": "bold red", "ambiguous": "yellow", "missing": "dim"}


@app.command()
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A results folder; with --in, an implementation.")],
    b: Annotated[str, typer.Argument(metavar="B", help="What is held against A.")],
    inside: Annotated[
        Path | None, typer.Option("--in", metavar="DIR", help="Compare two implementations of this results folder.")
    ] = None,
    impl: Annotated[str, typer.Option(metavar="PATTERN", help="Of two folders, only these implementations.")] = "*",
    threshold: Annotated[str, typer.Option(help="How much slower B may be without a regression: 5% or 0.05.")] = "5%",
    min_samples: Annotated[int, typer.Option(min=1, help="Fewer samples than this are ambiguous.")] = 30,
    allow_throttled: Annotated[bool, typer.Option(help="Judge throttled rows like others.")] = False,
    out: Annotated[Path, typer.Option(help="File of the plot of ratios: .png, .svg or .pdf.")] = Path("compare.png"),
    plot: Annotated[bool, typer.Option(help="Draw the ratios.")] = True,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Match two results folders (or two implementations) point by point; exit code 1 where B is a regression.

    A point is faster or slower where the medians are at least 1% apart, the intervals from minimum to 80th percentile
    do not overlap, both have enough samples and neither was throttled; else it is the same, or ambiguous. A point that
    ran in A and fails in B is broken, which is a regression too.
    """
    from rich.console import Console

    from tflabench.conclusions import compare as comparison
    from tflabench.conclusions.campaigns import conditions_of, differences

    allowed = _fraction(threshold)
    if inside and impl != "*":
        raise InputError("--impl is for two folders: with --in, A and B are the implementations")
    left, right = _implementations(inside, a, b) if inside else _folders(Path(a), Path(b), impl)
    conditions = [conditions_of(side.rows, side.runs) for side in (left, right)]
    differing = differences(*conditions)
    note = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    for line in _warnings(differing):
        note.print(line, style="bold yellow")
    match = comparison.match_implementations if inside else comparison.match_points
    matching = match(left.rows, right.rows)
    if not matching.pairs:
        sides = f"{a} ({len(left.rows)} points) and {b} ({len(right.rows)} points)"
        if inside:
            why = "no point was measured of both in one comparison, tuned in full"
            raise InputError(f"{sides}: {why}; sweep both into {inside} at once")
        raise InputError(f"{sides} have none in common: sweep the same axes for both")
    rules = comparison.Rules(min_samples=min_samples, allow_throttled=allow_throttled)
    found = comparison.compare(matching, rules, allowed)
    files = []
    if plot:
        from tflabench.figures import ratios

        files = ratios.draw_all(found, (ratios.Side(a, left.runs), ratios.Side(b, right.runs)), out)
    if json_:
        head = {
            "a": {"name": a, **conditions[0]},
            "b": {"name": b, **conditions[1]},
            "differences": {name: {"a": in_a, "b": in_b} for name, (in_a, in_b) in differing.items()},
            "rules": asdict(rules) | {"threshold": allowed},
        }
        print(json.dumps({**head, **_as_json(found), "files": [str(file) for file in files]}, indent=2))
    else:
        _print(found, f"A = {a}, B = {b}")
    if not allow_throttled and any("throttled" in (match.reason or "") for match in found.matches):
        note.print("Rows measured while the GPU held its clock back are ambiguous; --allow-throttled judges them too.")
    for file in files:
        note.print(f"wrote {file}")
    if found.regressions:
        worst = max(found.regressions, key=lambda match: match.ratio or inf)
        note.print(
            f"{len(found.regressions)} of {len(found.matches)} points regress beyond {100 * allowed:g}%, the worst: "
            f"{worst.b.point} {f'takes {worst.ratio:.2f} times as long' if worst.ratio else worst.reason}",
            style="bold red",
        )
        raise typer.Exit(1)


def _fraction(text: str) -> float:
    """0.05 of "5%" and of "0.05"."""
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if rest or not 0 <= value < (inf if percent else 1):
        raise InputError(f"--threshold is {text!r}: it must be a percentage such as 5%, or a fraction such as 0.05")
    return value


def _folders(a: Path, b: Path, pattern: str) -> list[Results]:
    """Two results folders, each with the rows whose implementation matches the pattern."""
    from tflabench.rows.load import read_results

    return [_only(read_results(folder), pattern) for folder in (a, b)]


def _implementations(folder: Path, a: str, b: str) -> list[Results]:
    """A results folder twice, each time with the rows of one implementation."""
    from tflabench.rows.load import read_results

    if a == b:
        raise InputError(f"A and B are both {a!r}: they must be two implementations")
    found = read_results(folder)
    return [_only(found, name) for name in (a, b)]


def _only(results: Results, pattern: str) -> Results:
    from tflabench.implementations.registry import nearest

    found = results.only([pattern])
    if not found.rows:
        known = dict.fromkeys(row.implementation for row in results.rows)
        raise InputError(f"{results.folder} has no rows of {pattern!r}; {nearest(pattern, known)}")
    return found


def _warnings(differing: dict[str, tuple[str, str]]) -> list[str]:
    """What to know before any ratio is read."""
    lines = []
    if "device" in differing:
        a, b = differing["device"]
        lines.append(f"Different machines: A ran on {a}, B on {b}. Ratios compare the machines as much as the kernels.")
    others = [f"{name} {a} in A, {b} in B" for name, (a, b) in differing.items() if name != "device"]
    return lines + [f"Different versions or settings: {'; '.join(others)}."] * bool(others)


def _print(found: Comparison, title: str) -> None:
    """A line a point, then what they come to."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDTH
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for column in ("pass", "size", "dtype", "implementation", "A", "B", "B / A", "memory", "verdict", ""):
        table.add_column(column, justify="right" if column in ("A", "B", "B / A", "memory") else "left")
    for match in found.matches:
        table.add_row(
            match.a.pass_,
            *_what(match),
            _time(match.a),
            _time(match.b),
            f"{match.ratio:.3f}" if match.ratio else "",
            f"{match.memory_ratio:.2f}" if match.memory_ratio else "",
            f"{match.verdict}{' !' if match.regressed(found.threshold) else ''}",
            match.reason or "",
            style=STYLES.get(match.verdict, ""),
        )
    console.print(table)
    console.print(", ".join(f"{count} {verdict}" for verdict, count in found.counts.items() if count), style="bold")
    if found.geometric_mean:
        console.print(f"B took {found.geometric_mean:.3f} times as long as A (geometric mean)")
    for side, rows in (("A", found.only_a), ("B", found.only_b)):
        if rows:
            console.print(f"{len(rows)} points only in {side}, among them {rows[0].point}")


def _what(match: Match) -> tuple[str, str, str]:
    """Size, dtype and implementation of a pair; heads and chunk sizes of both where they differ."""
    from tflabench.rows import labels as labels_

    a, b = match.a, match.b
    size = labels_.size(a)
    if labels_.heads(a) != labels_.heads(b):
        size += f" and {labels_.heads(b)}"
    labels = dict.fromkeys((labels_.label(a), labels_.label(b)))
    return size, a.dtype, " | ".join(labels)


def _time(row: Row) -> str:
    return f"{row.ms_median:.4g} ms" if row.ms_median is not None else row.status


def _as_json(found: Comparison) -> dict[str, Any]:
    own = ("implementation", "chunk_size", "heads", "d_qk", "d_hv", "status", "ms_median", "ms_min", "ms_p80")
    own = (*own, "samples", "peak_bytes", "throttled")
    points = [
        {
            "pass": match.a.pass_,
            **{name: getattr(match.a, name) for name in ("batch", "seq_len", "dtype", "inputs")},
            "a": {name: getattr(match.a, name) for name in own},
            "b": {name: getattr(match.b, name) for name in own},
            "ratio": match.ratio,
            "memory_ratio": match.memory_ratio,
            "verdict": match.verdict,
            "reason": match.reason,
            "regression": match.regressed(found.threshold),
        }
        for match in found.matches
    ]
    return {
        "counts": found.counts,
        "geometric_mean_ratio": found.geometric_mean,
        "points": points,
        "only_a": [row.point for row in found.only_a],
        "only_b": [row.point for row in found.only_b],
    }
