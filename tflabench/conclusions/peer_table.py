"""A Markdown table of peers and our kernels, with a column for each device, size and pass. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf

from tflabench.conclusions.markdown import plain
from tflabench.conclusions.standings import Pair, Question
from tflabench.rows.labels import PASS_TITLES, mark
from tflabench.rows.schema import Row
from tflabench.theory.hardware import short_devices

TIE = 0.01  # nearer to each other than this, nobody wins


def table(columns: Sequence[Question], peers: Iterable[str]) -> Iterator[str]:
    """Yield what all columns share, then the table of these peers."""
    facts = [question.size.facts for question in columns]
    shared = [fact for fact in facts[0] if all(fact in own for own in facts)]
    heads = [
        ", ".join([*device, title(question, columns)])
        for device, question in zip(_devices(columns), columns, strict=True)
    ]
    yield from (f"{', '.join(shared)}:", "", _line(["peer", "ours", *heads]), "|---|---|" + "---:|" * len(heads))
    own = [question.best() for question in columns]
    ceilings = {row.ceilings.partition(":")[0] for row in own if row and row.ceilings}
    bound = f"*% of bound ({', '.join(sorted(ceilings)) or 'not recorded'})*"
    lines = [[bound, _names(own), *map(_bound, own)]]
    for name in peers:
        pairs = [question.pairs.get(name) for question in columns]
        lines.append([plain(name), _names(pair.ours for pair in pairs if pair and pair.timed), *map(cell, pairs)])
    yield from map(_line, lines)


def title(question: Question, columns: Iterable[Question]) -> str:
    """Return the pass of a column, and what of its size the others do not share."""
    apart = [fact for fact in question.size.facts if any(fact not in other.size.facts for other in columns)]
    return ", ".join([PASS_TITLES[question.pass_], *apart])


def _line(cells: Iterable[str]) -> str:
    return f"|{'|'.join(cells)}|"


def _devices(columns: Sequence[Question]) -> list[list[str]]:
    """Return the device of each column, where there are several."""
    names = [question.device for question in columns]
    short = short_devices(names)
    return [[short[name]] if len(short) > 1 else [] for name in names]


def _names(rows: Iterable[Row | None]) -> str:
    """Return the implementations of rows, each once."""
    return ", ".join(dict.fromkeys(row.implementation for row in rows if row))


def _bound(row: Row | None) -> str:
    """Return the time of a kernel of ours, and the bound of its problem as a percentage of that."""
    if row is None:
        return ""
    return _time(row) + ("" if row.percent_of_bound is None else f" ({row.percent_of_bound:.0f}%)")


def in_order(columns: Sequence[Question]) -> list[str]:
    """Return the peers that have a time, the strongest first.

    Those with a ratio are ordered by their smallest. The others follow by time over the least time of a column.
    """
    found: dict[str, tuple[float, float]] = {}
    for question in columns:
        timed = {name: pair for name, pair in question.pairs.items() if pair.timed}
        least = min((pair.peer.ms_median or inf for pair in timed.values()), default=inf)
        for name, pair in timed.items():
            ratio, time = found.get(name, (inf, inf))
            found[name] = min(ratio, pair.ratio or inf), min(time, (pair.peer.ms_median or inf) / least)
    return sorted(found, key=lambda name: found[name])


def cell(pair: Pair | None) -> str:
    """Return "peer/ours = ratio", or a bound with "≥"; the times alone where there is no ratio; a status; or ""."""
    if pair is None:
        return ""
    if not pair.timed:
        return f"*{pair.peer.status}*"
    times = "/".join(_time(row) for row in pair if row)
    if pair.ratio is None:
        return times
    bold = "**" if pair.ratio < 1 - TIE else ""
    return f"{times} {pair.sign} {bold}{_number(pair.ratio)}{bold}"


def _time(row: Row) -> str:
    return _number(row.ms_median or 0.0) + mark(row)


def _number(value: float) -> str:
    return f"{value:#.3g}".rstrip(".") if value < 1000 else f"{value:.0f}"
