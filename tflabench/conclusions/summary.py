"""The text of a sweep: a line a point while it runs, then its table, its failures and its files. No torch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import exp, isfinite, log
from pathlib import Path
from statistics import median

from rich.console import Group, RenderableType
from rich.text import Text

from tflabench.conclusions.compare import Tolerance, judge, threshold_of
from tflabench.conclusions.ratio import Ratio, questions, ratio, timed
from tflabench.conclusions.tables import FittedTable, TableColumn, plain
from tflabench.implementations.registry import operation, owner
from tflabench.problem import PASS_TITLES
from tflabench.rows.labels import (
    THROTTLED,
    heads,
    label,
    mark,
    milliseconds,
    on_datasheet,
    percentages,
    size,
    waits_for_host,
)
from tflabench.rows.schema import Row
from tflabench.rows.spread import of_row

MOST_PROBLEMS = 16  # in the table, and
MOST_FAILURES = 5  # kinds of failure below it, without --full
MOST_NAMES = 3  # of implementations that fail alike
MOST_CHANGES = 8  # of times since a kernel or a package has changed
GRAVEST = ("wrong", "crashed", "error", "compile_error", "timeout", "oom", "unsupported")


def line(row: Row) -> str:
    """Return one point in one line, for people who watch: provisional while its comparison is open."""
    head = f"{label(row)}  {row.pass_}  {size(row)}  {row.dtype}"
    if row.ms_median is None:
        return f"{head}  {row.status}: {row.reason}"
    wrong = f"  WRONG: {row.reason}" if row.status == "wrong" else ""
    flags = "".join(f"  {flag}" for flag in ("noisy", "throttled") if getattr(row, flag))
    flags += "" if row.closed else "  provisional"
    host = f"  host {row.host_ms:.3g} ms" if waits_for_host(row) else ""
    tuned = "" if row.tuned_fully or row.tuned is None else "  tuned with {tried} of {configurations} configurations"
    tuned = tuned.format(**row.tuned or {})
    return f"{head}  {milliseconds(row)}{host}  {percentages(row)}{flags}{tuned}{wrong}"


def contests(rows: Iterable[Row]) -> list[list[Row]]:
    """Return measured rows that answer the same question, fastest first in each list, small problems first."""
    return [sorted(group, key=lambda row: row.ms_median or 0) for group in questions(filter(timed, rows))]


def beaten(best: Row, rows: Iterable[Row]) -> Iterator[tuple[Row, Ratio]]:
    """Yield the rows of other implementations that a fastest row may be compared with, and their times over its."""
    for row in rows:
        if row.implementation != best.implementation and (over := ratio(row, best)):
            yield row, over


def closing(rows: Sequence[Row]) -> str | None:
    """Return what a closed comparison says: its fastest implementation, and by how much; None of one.

    What computes the same has a line of its own, where there are several that do. Throttled rows that were slower are
    left out by name.
    """
    measured = sorted(filter(timed, rows), key=lambda row: row.ms_median or 0.0)
    alike: dict[str, list[Row]] = defaultdict(list)
    for row in measured:
        alike[operation(row.implementation, row.gate) or row.implementation].append(row)
    several = [group for group in (*alike.values(), measured) if len({row.implementation for row in group}) > 1]
    lines = []
    for best, *slower in several[:-1] or several:
        parts = []
        if rival := next(beaten(best, slower), None):
            row, over = rival
            times = f"{'at least ' if over.bound else ''}{over.value:.2f} ± {over.margin:.2f}"
            parts.append(f"{label(best)} {milliseconds(best)}, {times} times faster than {label(row)}{_noise(over)}")
        if throttled := ", ".join(dict.fromkeys(label(row) for row in slower if row.throttled)):
            parts.append(f"left out, throttled: {throttled}")
        lines += [f"{PASS_TITLES[best.pass_]}, {size(best)}: {'; '.join(parts)}"] if parts else []
    return "\n".join(lines) or None


def ending(
    rows: Sequence[Row],
    files: Iterable[Path],
    redraw: str,
    *,
    left: int = 0,
    before: Mapping[str, Row] = {},
    full: bool = False,
) -> RenderableType:
    """Return what a sweep says at its end: the largest problems and most failures, or all of them if `full`.

    Args:
        rows: of all its points.
        files: that it wrote.
        redraw: the command that draws its figures again.
        left: points that it had no time for.
        before: the rows that its points had, by point.
    """
    over = [row for row in rows if row.closed or not left]
    groups = contests(over)
    shown = groups if full else groups[-MOST_PROBLEMS:]
    failures = _failures(over)
    listed = failures if full else failures[:MOST_FAILURES]
    ok, provisional = sum(row.status == "ok" for row in over), len(rows) - len(over)
    counts = Counter(row.status for row in over)
    remaining = f", {left} left: the same command measures them" if left else ""
    remaining += f" ({provisional} of these have provisional rows)" if provisional else ""
    failed = ", ".join(f"{counts[status]} {status}" for status in GRAVEST if counts[status])
    parts: list[RenderableType] = []
    if shown:
        parts += _fastest(shown, len(groups), rows)
        if any(row.throttled for group in shown for row in group):
            parts.append(Text(f"{THROTTLED} the GPU held its clock back: a ratio of such a time is a bound, or none"))
        parts.append("")
    parts.append(Text(f"{ok} of {len(over) + left} points measured{remaining}{failed and f'; {failed}'}", "bold"))
    since = changes(before, rows)
    parts += [Text(f"  {line}") for line in (*listed, *(since if full else since[-MOST_CHANGES:]), *notes(rows))]
    if folders := Counter(file.parent for file in files):
        written = (f"{folder}/ ({count} file{'s' * (count > 1)})" for folder, count in folders.items())
        parts.append(Text(f"written: {plain(', '.join(written))}"))
    parts.append(Text(f"draw again: {plain(redraw)}"))
    if len(shown) < len(groups) or len(listed) < len(failures):
        parts.append(Text(f"all {len(groups)} problems and kinds of failure: add --full"))
    return Group(*parts)


def _fastest(groups: Sequence[Sequence[Row]], problems: int, rows: Iterable[Row]) -> Iterator[RenderableType]:
    """Yield a title, and a table with the fastest row of each group of `contests` and its rival.

    Args:
        problems: how many there are, with those that are not shown.
        rows: all that were measured; where they have several owners, a rival is of another than the fastest.
    """
    by_others = len({owner(row.implementation) for row in rows if timed(row)}) > 1
    sizes: dict[str, tuple[str, Callable[[Row], object]]] = {
        "device": ("", lambda row: row.device),
        "pass": ("", lambda row: row.pass_),
        "B": ("d", lambda row: row.batch),
        "T": ("d", lambda row: row.seq_len),
        "ranks": ("", lambda row: str(row.ranks or 1)),
        "heads": ("", heads),
        "dtype": ("", lambda row: row.dtype),
        "inputs": ("", lambda row: row.inputs),
        "gates": ("", lambda row: row.gates or ""),
    }
    best = [group[0] for group in groups]
    values = {name: {value(row) for row in best} for name, (_, value) in sizes.items()}
    shared = [
        f"{name} {value_of_all}"
        for name, (value_of_all, *more) in values.items()
        if not more and value_of_all not in ("normal", "usual", "1", "")
    ]
    count = f"{len(groups)} of " * (len(groups) < problems) + f"{problems} problem{'s' * (problems > 1)}"
    yield Text(plain(f"Fastest kernels, {count}: {', '.join(shared)}"), "bold")
    columns = [
        TableColumn(name, lambda group, value=value: value(group[0]), form)
        for name, (form, value) in sizes.items()
        if len(values[name]) > 1
    ]
    yield FittedTable(
        [
            *columns,
            TableColumn("fastest", lambda group: group[0].implementation, enough=24),
            TableColumn("chunk", lambda group: group[0].chunk_size, "d", 4),
            TableColumn("ms", lambda group: f"{group[0].ms_median:.3g}{mark(group[0])}", ">"),
            TableColumn("of bound", lambda group: _percent(group[0].percent_of_bound), ">", 2),
            TableColumn("of roofline", lambda group: _percent(group[0].percent_of_own_roofline), ">", 5),
            TableColumn("GiB", lambda group: group[0].peak_bytes and group[0].peak_bytes / 2**30, ".2f", 3),
            TableColumn(
                f"next best{' of others' * by_others}", lambda group: _rival(group, by_others), drop=1, enough=16
            ),
        ],
        groups,
    )


def _rival(group: Sequence[Row], by_others: bool) -> str:
    """Return how many times as long the next best row takes, of another owner if `others`; or why there is no ratio."""
    best = group[0]
    for row, over in beaten(best, group):
        if not by_others or owner(row.implementation) != owner(best.implementation):
            return f"{over.bound}{over.value:.2f} ± {over.margin:.2f}x {row.implementation}{_noise(over)}"
    return f"{THROTTLED} no ratio" if any(row.throttled for row in group[1:]) else ""


def _noise(over: Ratio) -> str:
    """Return what stands behind the ratio of a slower row that may be the faster one on another occasion."""
    return ", within noise" if over.value - over.margin < 1 else ""


def _percent(value: float | None) -> str:
    return "-" if value is None or not isfinite(value) else f"{value:.0f}%"


def _failures(rows: Iterable[Row]) -> list[str]:
    """Return a line a kind of failure, the gravest and most frequent first.

    A kind has one reason, or is of one implementation.
    """
    by_reason: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        if row.status != "ok":
            by_reason[row.status, plain(row.reason or "no reason given")][plain(row.implementation)] += 1
    alone: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    kinds: list[tuple[str, int, str]] = []
    for (status, reason), names in by_reason.items():
        if len(names) == 1:
            alone[status, next(iter(names))][reason] = names.total()
            continue
        first = [name for name, _ in names.most_common(MOST_NAMES)]
        rest = f" and {len(names) - len(first)} more" * (len(names) > len(first))
        kinds.append((status, names.total(), f"{', '.join(first)}{rest}: {reason}"))
    for (status, name), reasons in alone.items():
        reason = reasons.most_common(1)[0][0]
        several = f"{len(reasons)} reasons, such as " * (len(reasons) > 1)
        kinds.append((status, reasons.total(), f"{name}: {several}{reason}"))
    kinds.sort(key=lambda kind: (GRAVEST.index(kind[0]), -kind[1]))
    return [f"{status} ({count}x)  {text}" for status, count, text in kinds]


def changes(before: Mapping[str, Row], rows: Sequence[Row]) -> list[str]:
    """Return a line for each row of a plugin or packages that have changed: its time before and now, and a verdict.

    What has not changed, and was measured again in the same comparison, shows how far two occasions differ: no verdict
    is given below that.
    """
    again = [(before[now.point], now) for now in filter(timed, rows) if now.point in before]
    again = [(was, now) for was, now in again if timed(was) and was.comparison_id != now.comparison_id]
    ratios = [ratio(now, was, allow_throttled=True) for was, now in again]
    drifts: dict[str | None, float] = defaultdict(float)
    for (was, now), over in zip(again, ratios, strict=True):
        if over and _sources(was) == _sources(now):
            drifts[now.comparison_id] = max(drifts[now.comparison_id], exp(abs(log(over.value))) - 1)
    lines = []
    for (was, now), over in zip(again, ratios, strict=True):
        if over and _sources(was) != _sources(now):
            spread = max(threshold_of(was, now).value, drifts[now.comparison_id])
            verdict = judge(was, now, Tolerance(spread)).verdict
            text = f"within the {100 * spread:.2g}% by which occasions differ" if verdict == "same" else verdict
            times = f"{milliseconds(was)} before, {milliseconds(now)} now"
            lines.append(f"{label(now)}  {now.pass_}  {size(now)}: {times}, {over.value:.2f} times: {text}")
    return lines


def _sources(row: Row) -> object:
    return row.plugin_hash, row.packages, row.kernel_version


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what the numbers of rows must be read with: noise, throttled GPUs, waiting hosts, ceilings."""
    if count := sum(bool(row.noisy) for row in rows):
        yield f"noisy ({count}x): the standard error of the median is above 5%"
    if apart := [2**0.5 * of_row(row) for row in rows if timed(row) and row.timer == "perf_counter"]:
        yield f"on a CPU, kernels that differ by less than {median(apart):.0%} mostly do not show it: measure longer"
    if part := [row for row in rows if row.verified_steps and row.verified_steps < row.seq_len]:
        least = min(part, key=lambda row: (row.verified_steps or 0) / row.seq_len)
        steps = f"{least.verified_steps:,} of {least.seq_len:,} steps"
        yield f"checked in part ({len(part)}x, such as {steps}): `tflabench verify` takes more time for it"
    if count := sum(bool(row.throttled) for row in rows):
        yield f"throttled ({count}x): the GPU held its clock back"
    if slow := [row for row in rows if waits_for_host(row)]:
        most = max((row.host_ms or 0.0) / (row.ms_median or 1.0) for row in slow)
        names = ", ".join(f"{name} ({n}x)" for name, n in Counter(plain(row.implementation) for row in slow).items())
        yield f"enqueued slower than run (up to {most:.1f} times): {names}: eager PyTorch waits for the host"
    for roof, column in (("the bound", "percent_of_bound"), ("their own roofline", "percent_of_own_roofline")):
        if above := [percent for row in rows if (percent := getattr(row, column) or 0.0) > 100]:
            yield (
                f"above {roof} ({len(above)}x, up to {max(above):.0f}%): the stored ceilings are too low, as of a busy "
                "machine (`tflabench calibrate` measures them anew), the kernel skips work, data stayed in a cache, or "
                "a plugin has no `cost` of its own"
            )
    if count := sum(on_datasheet(row.ceilings) for row in rows if row.ms_median is not None):
        yield f"datasheet ceilings ({count}x): no machine reaches them; `tflabench calibrate` measures this one's"
