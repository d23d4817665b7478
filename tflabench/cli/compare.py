"""The command that holds one measurement against another: compare."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tflabench.cli.common import app
from tflabench.cli.common.console import print_json, stderr
from tflabench.cli.common.options import MOST_CHOICES, Json
from tflabench.cli.common.paths import ROWS, figure_to_write, out_file
from tflabench.problem import InputError

if TYPE_CHECKING:
    from tflabench.conclusions.compare import Comparison, Match, Matching, Rules
    from tflabench.rows.load import Results
    from tflabench.rows.schema import Row

LARGEST_THRESHOLD = 100.0  # times
WIDTH = 160  # of tables where nobody's terminal limits them
COMPARED, JUDGED = "What to compare", "How to judge"  # panels of --help
STYLES = {"faster": "green", "slower": "red", "broken": "bold red", "ambiguous": "yellow", "missing": "dim"}


Inside = Annotated[
    Path | None,
    typer.Option(
        "--in", metavar="DIR", rich_help_panel=COMPARED, help="Compare the implementations A and B in this folder."
    ),
]
Patterns = Annotated[
    list[str] | None,
    typer.Option(
        "--impl",
        metavar="PATTERN",
        rich_help_panel=COMPARED,
        help="Take only these implementations of two folders.",
        show_default="all",
    ),
]
GivenThreshold = Annotated[
    str | None,
    typer.Option(
        "--threshold",
        metavar="PART",
        rich_help_panel=JUDGED,
        help="Call medians nearer than this the same, and slower ones a regression: 5% or 0.05.",
        show_default="1% within a comparison, 2% between runs on one GPU, 3% between GPUs",
    ),
]
MinSamples = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST_CHOICES,
        metavar="N",
        rich_help_panel=JUDGED,
        help="Call points of fewer samples than this ambiguous.",
        show_default="30, or fewer where three rounds or more all say the same",
    ),
]
AllowThrottled = Annotated[bool, typer.Option(rich_help_panel=JUDGED, help="Judge throttled rows like others.")]


@dataclass(frozen=True)
class _Side:
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
        from tflabench.conclusions.campaigns import conditions_of

        return conditions_of(self.rows, self.runs)


@app.command("compare")
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=f"{ROWS} With --in, an implementation.")],
    b: Annotated[str, typer.Argument(metavar="B", help="What is held against A.")],
    inside: Inside = None,
    impl: Patterns = None,
    threshold: GivenThreshold = None,
    min_samples: MinSamples = None,
    allow_throttled: AllowThrottled = False,
    out: Annotated[Path | None, out_file("compare.png", "nothing is drawn")] = None,
    json_: Json = False,
) -> None:
    """Match two results folders (or two implementations) point by point; exit code 1 where B is a regression.

    A point is faster or slower where the medians are further apart than the threshold, the intervals from minimum to
    80th percentile do not overlap, both have enough samples and neither was throttled; else it is the same, or
    ambiguous. The threshold is what two measurements of one kernel differ by: 1% where both sides took turns in one
    comparison, 2% between two runs on one GPU, 3% between GPUs of one kind or where the GPU is not recorded. Enough are
    30 samples; slow points have fewer, which do where three rounds or more each give the same verdict. A point that is
    slower, or ran in A and fails in B, is a regression.
    """
    from tflabench.conclusions import compare as comparison
    from tflabench.conclusions.campaigns import differences

    rules = comparison.Rules(None if threshold is None else _fraction(threshold), min_samples, allow_throttled)
    if inside and impl:
        raise InputError("--impl is for two folders: with --in, A and B are the implementations")
    patterns = ",".join(impl) if impl else "*"
    left, right = _implementations(inside, a, b) if inside else [_side(folder, patterns) for folder in (a, b)]
    note = stderr()
    differing = differences(left.conditions, right.conditions)
    for line in _warnings(differing):
        note.print(line, style="bold yellow")
    found = comparison.compare(_matched(left, right, inside), rules)
    files = _draw(found, left, right, out) if out else []
    if json_:
        head = _head(left, right, differing) | _rules(rules, found)
        print_json({**head, **_as_json(found), "files": [str(file) for file in files]})
    else:
        _print(found, f"A = {a}, B = {b}")
    if not allow_throttled and any("throttled" in (match.reason or "") for match in found.matches):
        note.print("Rows measured while the GPU held its clock back are ambiguous; --allow-throttled judges them too.")
    for file in files:
        note.print(f"wrote {file}")
    if found.regressions:
        note.print(_worst(found), style="bold red")
        raise typer.Exit(1)


def _matched(left: _Side, right: _Side, inside: Path | None) -> Matching:
    """Return the pairs of rows of the same point.

    Raises:
        InputError: there are none.
    """
    from tflabench.conclusions import compare as comparison

    if inside:
        pairs = zip(left.folders, right.folders, strict=True)
        matching = comparison.joined(comparison.match_implementations(x.rows, y.rows) for x, y in pairs)
    else:
        matching = comparison.match_folders(left.folders, right.folders, (Path(left.name), Path(right.name)))
    if matching.pairs:
        return matching
    sizes = f"{left.name} ({len(left.rows)} points) and {right.name} ({len(right.rows)} points)"
    if inside:
        why = "no point was measured of both in one comparison, tuned in full"
        raise InputError(f"{sizes}: {why}; sweep both into {inside} at once")
    raise InputError(f"{sizes} have none in common: sweep the same axes for both")


def _draw(found: Comparison, left: _Side, right: _Side, out: Path) -> list[Path]:
    """Draw the ratios, and return the files."""
    from tflabench.figures import ratios
    from tflabench.figures.files import write_figure

    path = figure_to_write(out, "compare.png")
    drawn = ratios.draw(found, (ratios.Side(left.name, left.runs), ratios.Side(right.name, right.runs)), path.stem)
    return [file for figure in drawn for file in write_figure(figure, path.with_stem(figure.stem))]


def _head(left: _Side, right: _Side, differing: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """Return what is compared, and in what the conditions differ."""
    return {
        "a": {"name": left.name, **left.conditions},
        "b": {"name": right.name, **right.conditions},
        "differences": {name: {"a": in_a, "b": in_b} for name, (in_a, in_b) in differing.items()},
    }


def _rules(rules: Rules, found: Comparison) -> dict[str, Any]:
    """Return the rules, and the thresholds that followed from them."""
    thresholds = [
        {"threshold": held.value, "why": held.why, "points": count} for held, count in found.thresholds.items()
    ]
    return {"rules": asdict(rules), "thresholds": thresholds}


def _worst(found: Comparison) -> str:
    """Return in words how many points regress, and the worst of them."""
    worst = max(found.regressions, key=lambda match: match.ratio or inf)
    how = f"takes {worst.ratio:.2f} times as long" if worst.ratio else worst.reason
    return f"{len(found.regressions)} of {len(found.matches)} points regress, the worst: {worst.b.point} {how}"


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


def _side(folder: str, pattern: str) -> _Side:
    """All results folders at and below a folder, each with the rows whose implementation matches the pattern."""
    from tflabench.rows.load import find_results

    return _only(find_results(folder), Path(folder), pattern, folder)


def _implementations(folder: Path, a: str, b: str) -> list[_Side]:
    """Return the results folders at and below a folder twice, each time with the rows of one implementation."""
    from tflabench.rows.load import find_results

    if a == b:
        raise InputError(f"A and B are both {a!r}: they must be two implementations")
    found = find_results(folder)
    return [_only(found, folder, name, name) for name in (a, b)]


def _only(folders: list[Results], root: Path, pattern: str, name: str) -> _Side:
    from tflabench.implementations.registry import nearest, split

    side = _Side(name, [results.only(split(pattern)) for results in folders])
    if not side.rows:
        known = dict.fromkeys(row.implementation for results in folders for row in results.rows)
        raise InputError(f"{root} has no rows of {pattern!r}; {nearest(pattern, known)}")
    return side


def _warnings(differing: dict[str, tuple[str, str]]) -> list[str]:
    """Return what to know before any ratio is read, a line each."""
    lines = []
    if "device" in differing:
        a, b = differing["device"]
        lines.append(f"Different machines: A ran on {a}, B on {b}. Ratios compare the machines as much as the kernels.")
    others = [f"{name} {a} in A, {b} in B" for name, (a, b) in differing.items() if name != "device"]
    return lines + [f"Different versions or settings: {'; '.join(others)}."] * bool(others)


def _print(found: Comparison, title: str) -> None:
    """Print a line a point, then counts and the mean."""
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
            f"{match.verdict}{' !' if match.regressed else ''}",
            match.reason or "",
            style=STYLES.get(match.verdict, ""),
        )
    console.print(table)
    for held, count in found.thresholds.items():
        console.print(f"Threshold {100 * held.value:g}%: {count} point{'s' * (count > 1)} {held.why}")
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
            "threshold": match.threshold.value,
            "threshold_why": match.threshold.why,
            "regression": match.regressed,
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
