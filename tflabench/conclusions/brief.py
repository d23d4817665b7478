"""The ending of a sweep in 80 columns and 30 lines, however many points it has."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from tflabench.conclusions.columns import ELLIPSIS, Column, cut, plain, table_lines
from tflabench.conclusions.contests import beaten, bound_sign, contests, timed
from tflabench.conclusions.summary import Swept, full_lines, measured_line, notes, percent
from tflabench.implementations.registry import owner
from tflabench.rows.labels import THROTTLED, heads, mark
from tflabench.rows.schema import Row
from tflabench.theory.hardware import slug

WIDTH, LINES = 80, 30
MOST_FAILURES = 4
MOST_NAMES = 3
NAME = 12  # characters that an implementation is known by
TIE = "~"  # after a ratio of which the rounds do not agree that it is above 1
GRAVEST = ("wrong", "crashed", "error", "compile_error", "timeout", "oom", "unsupported")


class Rival(NamedTuple):
    """The rival of the fastest row: a row of the same comparison, how many times as long it took, and ±."""

    row: Row
    ratio: float
    by: float


class Contest(NamedTuple):
    """Measured rows of one problem, the fastest first, and what that is held against."""

    rows: Sequence[Row]
    rival: Rival | None

    @property
    def best(self) -> Row:
        """Return the fastest row."""
        return self.rows[0]

    @property
    def tied(self) -> bool:
        """Return whether the rounds disagree about which is faster, the fastest or its rival."""
        return self.rival is not None and self.rival.ratio - self.rival.by < 1

    @property
    def told(self) -> str:
        """The ratio and the rival, or why there is none."""
        if self.rival:
            times = f"{bound_sign(self.best)}{self.rival.ratio:.2f}x{TIE if self.tied else ''}"
            return f"{times} {plain(self.rival.row.implementation)}"
        return f"{THROTTLED} no ratio" if any(row.throttled for row in self.rows[1:]) else ""


class BriefEnding:
    """The short ending of a sweep, cut to `WIDTH` columns (fewer on a narrower terminal) and `LINES` lines."""

    def __init__(self, swept: Swept) -> None:
        self.swept = swept

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from brief_lines(self.swept, console, min(WIDTH, options.max_width))


def brief_lines(swept: Swept, console: Console, width: int) -> list[Text]:
    """Return the lines of the brief ending: the table, what was not measured, what was written, how to see more."""
    groups = contests(swept.rows)
    middle = _paragraph(Text(measured_line(swept) + _tally(swept.rows), "bold"), console, width)
    middle += [cut(f"  {line}", width) for line in (*_failures(swept.rows), *_notes(swept.rows))]
    written = _written(swept.files)
    below = [*middle, *(_paragraph(f"written: {written}", console, width) if written else [])]
    below += _paragraph(f"draw again: {plain(swept.redraw)}", console, width)
    room = LINES - len(below) - len(_paragraph(_more(LINES**3, swept), console, width))
    table = _table(groups, swept.rows, room, width) if groups else []
    more = _full_length(swept, len(groups)) - len(table) - len(below) - 1
    return [*table, *below, *_paragraph(_more(more, swept), console, width)]


def _more(lines: int, swept: Swept) -> str:
    told = f"about {lines} more lines" if lines > 1 else "more columns"
    return f"{told}: the same command with {swept.for_all} (measures nothing)"


# --- The table


def _table(groups: Sequence[Sequence[Row]], rows: Sequence[Row], room: int, width: int) -> list[Text]:
    """Return a title, the fastest kernel of as many problems as `room` lines have room for, and an empty line."""
    others = len({owner(row.implementation) for row in rows if timed(row)}) > 1
    found = [Contest(group, _rival(group, others)) for group in groups]
    shown = [found[number] for number in chosen(groups, max(1, room - 3))]
    if tied := any(contest.tied for contest in shown):
        shown = [found[number] for number in chosen(groups, max(1, room - 4))]
    whole = f"{len(groups)} problems" if len(groups) > 1 else "1 problem"
    counted = f"{len(shown)} of {whole}" if len(shown) < len(groups) else whole
    said = ", ".join([*_common([group[0] for group in groups]), *sorted({plain(row.device) for row in rows})])
    columns = [*_sizes([contest.best for contest in shown], groups), *_times(shown, others)]
    lines = [cut(Text(f"Fastest kernels, {counted}: {said}", "bold"), width), *table_lines(columns, width)]
    if tied:
        lines.append(cut(f"{TIE} a tie: its rounds do not agree on which is faster", width))
    return [*lines, Text("")]


def chosen(groups: Sequence[Sequence[Row]], most: int) -> list[int]:
    """Return which of many problems to show: the largest of each pass first, then the others, large ones first.

    Args:
        groups: rows of one problem each, small problems first.
        most: how many to choose at most; those left out lie evenly between those shown.
    """
    by_pass: dict[str, list[int]] = defaultdict(list)
    for number in reversed(range(len(groups))):
        by_pass[groups[number][0].pass_].append(number)
    order = sorted(by_pass)
    if len(groups) > most > len(order) and len({len(numbers) for numbers in by_pass.values()}) == 1:
        most -= most % len(order)  # the same sizes of every pass
    quota = Counter[str]()
    while quota.total() < min(most, len(groups)):
        quota[min((name for name in order if quota[name] < len(by_pass[name])), key=lambda name: quota[name])] += 1
    spread = {name: _spread(by_pass[name], quota[name]) for name in order}
    first = [numbers[0] for numbers in spread.values() if numbers]
    rest = [number for numbers in spread.values() for number in numbers[1:]]
    return first + sorted(rest, key=lambda number: _extent(groups[number][0]), reverse=True)


def _spread(numbers: Sequence[int], most: int) -> list[int]:
    """Return `most` of them, the first, the last and evenly between."""
    if most < 2:
        return list(numbers[:most])
    return [numbers[round(n * (len(numbers) - 1) / (most - 1))] for n in range(most)]


def _extent(row: Row) -> tuple[int, int, int]:
    return row.seq_len, row.batch, row.heads * row.d_hv


def _rival(group: Sequence[Row], others: bool) -> Rival | None:
    """Return the next best row, of another owner if `others`, that was not throttled."""
    best = group[0]
    whose = owner(best.implementation)
    rivals = (Rival(*found) for found in beaten(best, group))
    return next((rival for rival in rivals if not others or owner(rival.row.implementation) != whose), None)


SIZES = ("B", "T", "heads", "dtype", "inputs")


def _size(row: Row) -> tuple[str, ...]:
    return str(row.batch), str(row.seq_len), heads(row), row.dtype, row.inputs


def _varied(rows: Sequence[Row]) -> list[int]:
    """Return which of `SIZES` differ between rows."""
    sizes = [_size(row) for row in rows]
    return [number for number in range(len(SIZES)) if len({size[number] for size in sizes}) > 1]


def _common(rows: Sequence[Row]) -> list[str]:
    """Return what all problems have in common, in words; inputs as most sweeps have them go without saying."""
    words = [f"{name}={value}" if name in "BT" else value for name, value in zip(SIZES, _size(rows[0]), strict=True)]
    words[2] = f"heads {words[2]}"
    words[4] = "" if words[4] == "normal" else f"{words[4]} inputs"
    varied = _varied(rows)
    return [plain(word) for number, word in enumerate(words) if word and number not in varied]


def _sizes(shown: Sequence[Row], groups: Sequence[Sequence[Row]]) -> list[Column]:
    columns = [Column("pass", [Text(row.pass_) for row in shown])]
    for number in _varied([group[0] for group in groups]):
        cells = [Text(_size(row)[number]) for row in shown]
        columns.append(Column(SIZES[number], cells, right=number < 2))
    if len({group[0].device for group in groups}) > 1:
        columns.append(Column("device", [Text(slug(row.device)) for row in shown]))
    return columns


def _times(shown: Sequence[Contest], others: bool) -> list[Column]:
    rows = [contest.best for contest in shown]
    names = [Text(plain(row.implementation), "" if row.throttled else "bold") for row in rows]
    columns = [Column("fastest", names, least=NAME)]
    if any(row.chunk_size for row in rows):
        columns.append(Column("chunk", [Text(str(row.chunk_size or "")) for row in rows], right=True, spare=True))
    columns.append(Column("ms", [Text(_milliseconds(row) + mark(row)) for row in rows], right=True))
    columns.append(Column("of bound", [Text(percent(row.percent_of_bound)) for row in rows], right=True))
    cells = [Text(contest.told) for contest in shown]
    return [*columns, Column("next best of others" if others else "next best", cells, least=7 + NAME)]


def _milliseconds(row: Row) -> str:
    ms = row.ms_median or 0.0
    return f"{ms:.3g}" if ms < 1000 else f"{ms:.0f}"


# --- Below the table


def _tally(rows: Sequence[Row]) -> str:
    """Return how many points came to which other end: "; 2 wrong, 6 unsupported"."""
    counts = Counter(row.status for row in rows if row.status != "ok")
    told = [f"{count} {status}" for status in GRAVEST if (count := counts[status])]
    if count := sum(row.status == "ok" and not timed(row) for row in rows):
        told.append(f"{count} without a time")
    return f"; {', '.join(told)}" if told else ""


def _failures(rows: Sequence[Row]) -> list[str]:
    """Return failures, a line a kind, the gravest and most frequent first; those beyond a few are counted."""
    kinds = sorted(_kinds(rows), key=lambda kind: (GRAVEST.index(kind.status), -kind.count))
    shown = kinds if len(kinds) <= MOST_FAILURES + 1 else kinds[:MOST_FAILURES]  # the count takes a line too
    lines = [kind.line for kind in shown]
    if rest := kinds[len(shown) :]:
        lines.append(f"and {sum(kind.count for kind in rest)} points that failed in other ways")
    return lines


class _Kind(NamedTuple):
    """Failures that are one to a reader: of one reason, or of one implementation."""

    status: str
    count: int
    names: str
    reason: str

    @property
    def line(self) -> str:
        return f"{self.status} ({self.count}x)  {self.names}: {self.reason}"


def _kinds(rows: Iterable[Row]) -> list[_Kind]:
    """Merge failures of several implementations for one reason, then those of one implementation for several."""
    by_reason: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        if row.status != "ok":
            by_reason[row.status, plain(row.reason or "no reason given")][plain(row.implementation)] += 1
    alone: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    kinds: list[_Kind] = []
    for (status, reason), names in by_reason.items():
        if len(names) > 1:
            kinds.append(_Kind(status, names.total(), _named(names), reason))
        else:
            alone[status, next(iter(names))][reason] = names.total()
    for (status, name), reasons in alone.items():
        told, _ = reasons.most_common(1)[0]
        several = f"{len(reasons)} reasons, such as {told}" if len(reasons) > 1 else told
        kinds.append(_Kind(status, reasons.total(), name, several))
    return kinds


def _named(names: Counter[str]) -> str:
    first = [name for name, _ in names.most_common(MOST_NAMES)]
    rest = len(names) - len(first)
    return ", ".join(first) + (f" and {rest} more" if rest else "")


def _notes(rows: Sequence[Row]) -> list[str]:
    return [plain(f"{note.head}: {note.short}") for note in notes(rows)]


def _written(files: Iterable[Path]) -> str:
    """Return the folders that files are in, each with how many: "out/ (4 files, 24 in figures/)"; "" for none."""
    counts = Counter(file.parent for file in files)
    told: dict[Path, list[str]] = {}
    for folder, count in counts.items():
        if root := next((root for root in told if root in folder.parents), None):
            told[root].append(f"{count} in {folder.relative_to(root)}/")
        else:
            told[folder] = [f"{count} file{'s' if count > 1 else ''}"]
    return plain(", ".join(f"{folder}/ ({', '.join(words)})" for folder, words in told.items()))


def _paragraph(text: Text | str, console: Console, width: int, most: int = 2) -> list[Text]:
    """Return text wrapped to at most `most` lines; where there is more, an ellipsis stands for it."""
    whole = text if isinstance(text, Text) else Text(text)
    lines = list(whole.wrap(console, width, overflow="fold"))
    for line in lines:
        line.no_wrap = True
        line.rstrip()
    if len(lines) > most:
        lines[most - 1] = cut(lines[most - 1], width - 1).append(ELLIPSIS)
    return lines[:most]


def _full_length(swept: Swept, problems: int) -> int:
    """Return how many lines the full ending has where none of them wraps."""
    below = sum(bool(title) + len(lines) + (not title and bool(lines)) for title, lines in full_lines(swept))
    throttled = any(row.throttled for row in swept.rows if timed(row))
    return below + (problems + 2 + throttled if problems else 0)
