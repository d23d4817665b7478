"""The full ending of a sweep: the best implementation a point, how much faster it ran, and what failed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tflabench.conclusions.contests import beaten, bound_sign, contests, timed
from tflabench.rows.labels import (
    PASS_TITLES,
    THROTTLED,
    label,
    mark,
    milliseconds,
    on_datasheet,
    percentages,
    size,
    waits_for_host,
)
from tflabench.rows.schema import Row

NOISY_MEANS = "its median is known less well than its place among the others needs"


def line(row: Row) -> str:
    """Return one point in one line, for people who watch: provisional while its comparison is open."""
    what = f"{label(row)}  {row.pass_}  {size(row)}  {row.dtype}"
    if row.ms_median is None:
        return f"{what}  {row.status}: {row.reason}"
    wrong = f"  WRONG: {row.reason}" if row.status == "wrong" else ""
    flags = "".join(f"  {flag}" for flag in ("noisy", "throttled") if getattr(row, flag))
    host = f"  host {row.host_ms:.3g} ms" if waits_for_host(row) else ""
    tuned = "" if row.tuned_fully else f"  {tuning(row)}"
    return f"{what}  {milliseconds(row)}{host}  {percentages(row)}{flags}{tuned}{wrong}"


def tuning(row: Row) -> str:
    """Return how far the autotuners of a row got, for rows of which not every configuration was tried."""
    assert row.tuned is not None
    return f"tuned with {row.tuned['tried']} of {row.tuned['configurations']} configurations"


def closing(rows: Sequence[Row]) -> str | None:
    """Return what a closed comparison says in one line: its fastest implementation, and by how much; None of one."""
    measured = sorted((row for row in rows if timed(row)), key=lambda row: row.ms_median or 0.0)
    if len({row.implementation for row in measured}) < 2:
        return None
    best, *others = measured
    said = [f"left out, {out}"] if (out := left_out(others)) else []
    if rival := next(beaten(best, others), None):
        other, ratio, by = rival
        said.insert(0, f"{label(best)} {milliseconds(best)}, {_times(best, ratio, by)} {label(other)}")
    return f"{PASS_TITLES[measured[0].pass_]}, {size(measured[0])}: {'; '.join(said)}" if said else None


def _times(best: Row, ratio: float, by: float) -> str:
    return f"{'at least ' if best.throttled else ''}{ratio:.2f} ± {by:.2f} times faster than"


def left_out(rows: Iterable[Row]) -> str:
    """Name the rows that no statement about who is faster uses: "throttled: hopper_sig (L=4096), sdpa_cudnn"."""
    names = ", ".join(dict.fromkeys(label(row) for row in rows if row.throttled))
    return f"throttled: {names}" if names else ""


def best_table(rows: Iterable[Row]) -> Table:
    """Return the best implementation a point, and what it beat; what was measured on a throttled GPU is marked."""
    rows = list(rows)
    table = Table(
        "pass",
        "size",
        "dtype",
        "best",
        "time",
        "of the bound",
        "own roofline",
        "memory",
        "next best",
        box=None,
        header_style="bold",
    )
    for column in (4, 5, 6, 7):
        table.columns[column].justify = "right"
    devices = {row.device for row in rows}
    if len(devices) > 1:
        table.add_column("device")
    for group in contests(rows):
        best = group[0]
        rival = next(beaten(best, group), None)
        table.add_row(
            Text(best.pass_),
            Text(size(best)),
            Text(best.dtype),
            Text(label(best), "" if best.throttled else "bold"),
            f"{milliseconds(best)}{mark(best)}",
            percent(best.percent_of_bound),
            percent(best.percent_of_own_roofline),
            "" if best.peak_bytes is None else f"{best.peak_bytes / 2**20:.0f} MiB",
            Text(f"{bound_sign(best)}{rival[1]:.2f}x {label(rival[0])}" if rival else ""),
            *([Text(best.device)] if len(devices) > 1 else []),
        )
    if any(row.throttled for row in rows if row.status == "ok"):
        table.caption = f"{THROTTLED} the GPU held its clock back, so the ratio is a bound"
        table.caption_justify = "left"
    return table


def percent(value: float | None) -> str:
    """Return a percentage in words; "" for none."""
    return "" if value is None or not isfinite(value) else f"{value:.0f}%"


def verdicts(rows: Iterable[Row]) -> list[str]:
    """Say for the largest problem of every pass and device how much faster its best implementation ran than the others.

    Of a throttled GPU the fastest row is compared alone, the others are left out by name.
    """
    largest = {(group[0].pass_, group[0].device): group for group in contests(rows)}
    several = len({device for _, device in largest}) > 1
    lines = []
    for group in largest.values():
        best, ratios = group[0], dict[str, str]()
        for other, ratio, by in beaten(best, group):
            ratios.setdefault(other.implementation, f"  {_times(best, ratio, by)} {label(other)}")
        head = f"{PASS_TITLES[group[0].pass_]}, {size(group[0])}{f', {group[0].device}' if several else ''}:"
        if ratios:
            lines.append(f"{head} {label(best)} ran")
            lines += ratios.values()
        if (out := left_out(group[1:])) and len({row.implementation for row in group}) > 1:
            lines.append(f"  left out, {out}" if ratios else f"{head} left out, {out}")
    return lines


class Note(NamedTuple):
    """Something that rows have in common and that their numbers must be read with.

    Attributes:
        head: what it is, and of how many rows: "noisy (38x)".
        told: what it means.
        short: the same in a few words.
    """

    head: str
    told: str
    short: str


def failures(rows: Iterable[Row]) -> list[str]:
    """Return what was not measured, and what was measured in bad conditions, counted: a line each."""
    rows = list(rows)
    kinds = Counter((row.status, row.implementation, row.reason) for row in rows if row.status != "ok")
    lines = [f"{status} ({count}x)  {name}: {reason}" for (status, name, reason), count in kinds.most_common()]
    return lines + [f"{note.head}: {note.told}" for note in notes(rows)]


def notes(rows: Sequence[Row]) -> list[Note]:
    """Return what the numbers of rows must be read with: noise, throttled GPUs, waiting hosts, ceilings."""
    found = [*_flagged(rows), *_waiting(rows), *_above(rows)]
    if count := sum(on_datasheet(row.ceilings) for row in rows if row.ms_median is not None):
        told = (
            "the percentages are of rates that no machine reaches; `tflabench calibrate` measures this one's, for the "
            "rows to come"
        )
        found.append(Note(f"datasheet ceilings ({count}x)", told, "`tflabench calibrate` measures this machine's"))
    return found


def _flagged(rows: Sequence[Row]) -> Iterator[Note]:
    short = "the median is less certain than the ranking needs"
    if count := sum(bool(row.noisy) for row in rows):
        yield Note(f"noisy ({count}x)", NOISY_MEANS, short)
    if count := sum(bool(row.throttled) for row in rows):
        told = "the GPU held its clock back"
        yield Note(f"throttled ({count}x)", told, f"{told}: a ratio of the faster is a bound ({THROTTLED})")


def _waiting(rows: Sequence[Row]) -> Iterator[Note]:
    slow = [row for row in rows if waits_for_host(row)]
    if not slow:
        return
    times = max(row.host_ms / row.ms_median for row in slow)  # type: ignore[operator]
    names = Counter(row.implementation for row in slow)
    told = ", ".join(f"{name} ({count}x)" if count > 1 else name for name, count in names.most_common())
    head = f"enqueued slower than run ({len(slow)}x, up to {times:.1f} times)"
    yield Note(head, f"{told}: eager PyTorch waits for the host, a CUDA graph does not", told)


def _above(rows: Sequence[Row]) -> Iterator[Note]:
    for what, column in (("the bound", "percent_of_bound"), ("their own roofline", "percent_of_own_roofline")):
        if above := [percent for row in rows if (percent := getattr(row, column) or 0.0) > 100]:
            told = (
                "the ceilings were measured while the machine was busy, or data stayed in a cache; `tflabench "
                "calibrate` measures them again"
            )
            head = f"above {what} ({len(above)}x, up to {max(above):.0f}%)"
            yield Note(head, told, "ceilings are off, `tflabench calibrate`")


def grouped(files: Iterable[Path]) -> list[str]:
    """Paths with those that differ in their ending only on one line: figures/memory-seq_len.{png,svg}."""
    endings = defaultdict(list)
    for path in files:
        endings[path.with_suffix("")].append(path.suffix)
    return [
        f"{stem}{found[0]}" if len(found) == 1 else f"{stem}.{{{','.join(end.removeprefix('.') for end in found)}}}"
        for stem, found in endings.items()
    ]


@dataclass(frozen=True)
class Swept:
    """The results of a sweep, for the text at its end.

    Attributes:
        rows: of all its points.
        files: that it wrote.
        redraw: the command that draws its figures again.
        left: points that it had no time for.
        for_all: the options that, added to its command, show the full ending and measure nothing.
    """

    rows: Sequence[Row]
    files: Sequence[Path]
    redraw: str
    left: int = 0
    for_all: str = "--full"


def measured_line(swept: Swept) -> str:
    """Return how many points were measured, and how many are left."""
    ok = sum(row.status == "ok" for row in swept.rows)
    rest = f", {swept.left} left: the same command measures them" if swept.left else ""
    return f"{ok} of {len(swept.rows)} points measured{rest}"


def full_ending(swept: Swept) -> RenderableType:
    """Return everything a sweep has to say at its end, however long and wide."""
    parts: list[RenderableType] = [best_table(swept.rows), ""] if any(map(timed, swept.rows)) else []
    for title, lines in full_lines(swept):
        if title:
            parts.append(Text(title, "bold"))
        if lines:
            parts.append(Text("\n".join(f"  {line}" if title else line for line in lines) + ("" if title else "\n")))
    return Group(*parts)


def full_lines(swept: Swept) -> list[tuple[str, list[str]]]:
    """Return what the full ending says below its table: titles, which may be empty, with their lines."""
    return [
        ("", verdicts(swept.rows)),
        (measured_line(swept), failures(swept.rows)),
        ("written", grouped(swept.files)),
        ("draw again with", [swept.redraw]),
    ]
