"""The generated results/README.md: a table a figure, the strongest peer first, from stored rows only. No torch."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

from tflabench.conclusions.campaigns import DECISIVE, Campaign, campaigns, conditions_of
from tflabench.conclusions.compare import fastest
from tflabench.conclusions.standings import Chosen, Pair, Question, Standing, choose, preset_of
from tflabench.implementations.registry import bundled_kernels, nearest, split
from tflabench.problem import InputError
from tflabench.rows.labels import PASS_TITLES, THROTTLED, mark
from tflabench.rows.load import find_results
from tflabench.rows.schema import Row
from tflabench.selection.presets import load_preset, preset_names

MOST_WORDS = 1500
TIE = 0.01  # nearer to each other than this, nobody wins
LONGEST_REASON = 120  # characters
FEW_COMMITS = 2  # more are counted
VERSIONS = ("threads", "torch", "triton")  # the driver and all else are in environment.json


class Detail(NamedTuple):
    """The length of tables, where ratios may be taken and where not: their sizes, and their peers at most.

    Attributes:
        uncompared: whether rows have a table that were measured in no comparison.
    """

    sizes_with_ratios: int
    other_sizes: int
    peers_with_ratios: int | None
    other_peers: int | None
    uncompared: bool = True


# The first that makes a page of at most MOST_WORDS words holds.
DETAILS = (
    Detail(2, 2, None, None), Detail(2, 1, None, None), Detail(1, 1, None, None),
    Detail(1, 1, 10, 10), Detail(1, 1, 10, 3),
    Detail(1, 1, 5, 5), Detail(1, 1, 5, 3), Detail(1, 1, 5, 2), Detail(1, 1, 5, 1),
    Detail(1, 1, 10, 1, uncompared=False), Detail(1, 1, 5, 1, uncompared=False),
)  # fmt: skip


@dataclass(frozen=True)
class Page:
    """The subject of the page: all results at and below `root`. Links are relative to the folder `linked_from`.

    Attributes:
        subject: pattern of the implementations that are ours; None for this project's kernels.
    """

    root: Path
    linked_from: Path
    every: tuple[Campaign, ...]
    subject: str | None = None

    @property
    def kernels(self) -> frozenset[str]:
        """Return the names of ours.

        Raises:
            InputError: the pattern of them matches no row, with the nearest names.
        """
        if self.subject is None:
            return bundled_kernels()
        names = dict.fromkeys(row.implementation for campaign in self.every for row in campaign.rows)
        found = frozenset(name for name in names if any(fnmatchcase(name, each) for each in split(self.subject)))
        if not found:
            raise InputError(f"--subject is {self.subject!r}, which no row is of; {nearest(self.subject, names)}")
        return found

    def link(self, campaign: Campaign) -> str:
        """Return a campaign's folder, linked to its rows, with what tells these from others in the folder."""
        rows = Path(campaign.folder) / "rows.csv"
        target = Path(os.path.relpath(rows if rows.exists() else campaign.folder, self.linked_from))
        folder = Path(os.path.relpath(campaign.folder, self.root))
        name = self.root.resolve().name if folder == Path() else folder.as_posix()
        siblings = [_decisive(other) for other in self.every if other.folder == campaign.folder]
        telling = [f"{key} {own}" for key, own in _decisive(campaign).items() if any(x[key] != own for x in siblings)]
        return f"[{_plain(', '.join([name, *telling]))}]({target.as_posix()})"


def write(root: Path, out: Path, subject: str | None = None) -> Path:
    """Write the page about all results at and below `root`; arguments and errors as of `markdown`.

    Raises:
        InputError: also a file that cannot be written.
    """
    options = [] if subject is None else ["--subject", subject]
    text = markdown(root, ["tflabench", "headline", str(root), *options, "--out", str(out)], out.parent, subject)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text)
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}): give another file with --out") from None
    return out


def markdown(root: Path, command: Sequence[str], linked_from: Path = Path(), subject: str | None = None) -> str:
    """Return the page about all results at and below `root`, made by `command`, links relative to `linked_from`.

    Args:
        subject: pattern of the implementations that are ours; None for this project's kernels.

    Raises:
        InputError: no results, results that cannot be read, or a subject that matches no row.
    """
    page = Page(root, linked_from, tuple(campaigns(find_results(root))), subject)
    chosen = choose(page.every, page.kernels)
    for detail in DETAILS:
        text = "\n".join([*_opening(page, command), *_sections(page, chosen, detail)]) + "\n"
        if len(text.split()) <= MOST_WORDS:
            break
    return text


def _sections(page: Page, chosen: Sequence[Chosen], detail: Detail) -> Iterator[str]:
    """Yield a section a figure and device, then what has none."""
    told: set[tuple[str, ...]] = set()
    uncompared: list[Campaign] = []
    for each in chosen:
        if each.best.has_ours and (detail.uncompared or each.best.has_comparisons):
            yield from _section(page, each, detail, told)
        elif each.best.has_ours:
            uncompared += [each.best.campaign, *each.others]
    if uncompared:
        yield from ("", f"Not measured in comparisons, so without a ratio: {_folders(page, uncompared)}.")
    if without := [each.best.campaign for each in chosen if not each.best.has_ours]:
        yield from ("", f"No kernel of ours was measured in {_folders(page, without)}.")


def _folders(page: Page, found: Sequence[Campaign]) -> str:
    return ", ".join(f"{page.link(campaign)} ({_plain(campaign.rows[0].device)})" for campaign in found)


def _opening(page: Page, command: Sequence[str]) -> list[str]:
    ours, theirs = "the kernels of this project", "those of other libraries"
    if page.subject is not None:
        ours, theirs = f"what `--subject {shlex.quote(page.subject)}` names", "all others"
    return [
        "# Results",
        "",
        f"Made by `{shlex.join(command)}` from stored rows; do not edit.",
        "",
        f"A table compares {ours} (*ours*) with {theirs} (*peers*), for a figure",
        "of the paper or another sweep on one device. Names are those that `--impl` takes.",
        "",
        "- A cell has median milliseconds: `peer/ours = ratio`. Above 1 ours is faster; **bold**: the peer is.",
        "- A ratio is taken only where both took turns in one closed comparison with their tuners done. Of a",
        f"  throttled time ({THROTTLED}: the GPU held its clock back) it is a bound, ≥ or ≤, if that is the shorter;",
        "  else there is none. Never divide the others.",
        "- The strongest peer comes first. It meets our fastest kernel that computes the same, or else our fastest",
        "  mLSTM, each at its best chunk size.",
        "- *% of bound*: the least time of any kernel, which reads inputs and writes outputs once, over that of our",
        "  fastest mLSTM.",
        "- Empty: not asked for. *wrong* and the like: see below. (1/4): at 1 of 4 points.",
        "",
        "A table shows the folder with most ratios, at a large size with many of them. All else is in the linked rows",
        f"and in `tflabench report {shlex.quote(str(page.root))}`. *Again* measures into a folder `again`.",
    ]


def _section(page: Page, chosen: Chosen, detail: Detail, told: set[tuple[str, ...]]) -> Iterator[str]:
    best = chosen.best
    name = preset_of(best.campaign)
    title = load_preset(name).title if name in preset_names() else name
    sizes, most = detail.sizes_with_ratios, detail.peers_with_ratios
    if not best.has_ratios:
        sizes, most = detail.other_sizes, detail.other_peers
    columns = best.at_sizes(sizes)
    peers = _in_order(columns)
    yield from ("", f"## {_plain(f'{title} ({best.campaign.rows[0].device})')}", "")
    yield from (*_table(columns, peers[:most]), "")
    if more := len(peers[most:]) if most else 0:
        yield f"- {more} more peers: in the rows."
    yield from _refusals(columns)
    yield from _missing(best, told)
    yield f"- Rows: {page.link(best.campaign)}, {_origin(best.campaign)}."
    if chosen.others:
        yield f"- Other rows: {', '.join(map(page.link, chosen.others))}."
    yield f"- Again: {_again(best.campaign)}"


def _table(columns: Sequence[Question], peers: Iterable[str]) -> Iterator[str]:
    """Yield what all columns share, then the table of these peers."""
    facts = [question.size.facts for question in columns]
    shared = [fact for fact in facts[0] if all(fact in own for own in facts)]
    heads = [
        ", ".join([PASS_TITLES[question.pass_], *(fact for fact in own if fact not in shared)])
        for question, own in zip(columns, facts, strict=True)
    ]
    yield from (
        f"{', '.join(shared)}:",
        "",
        f"| peer | ours | {' | '.join(heads)} |",
        "|---|---|" + "---:|" * len(heads),
    )
    own = [question.best() for question in columns]
    ceilings = {row.ceilings.partition(":")[0] for row in own if row and row.ceilings}
    bound = f"*% of bound ({', '.join(sorted(ceilings)) or 'not recorded'})*"
    lines = [[bound, _names(own), *map(_bound, own)]]
    for name in peers:
        pairs = [question.pairs.get(name) for question in columns]
        lines.append([_plain(name), _names(pair.ours for pair in pairs if pair and pair.timed), *map(_cell, pairs)])
    yield from (f"| {' | '.join(cells)} |" for cells in lines)


def _names(rows: Iterable[Row | None]) -> str:
    """Return the implementations of rows, each once."""
    return ", ".join(dict.fromkeys(row.implementation for row in rows if row))


def _bound(row: Row | None) -> str:
    """Return the time of a kernel of ours, and the bound of its problem as a percentage of that."""
    if row is None:
        return ""
    return _time(row) + ("" if row.percent_of_bound is None else f" ({row.percent_of_bound:.0f}%)")


def _in_order(columns: Sequence[Question]) -> list[str]:
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


def _cell(pair: Pair | None) -> str:
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


def _refusals(columns: Iterable[Question]) -> Iterator[str]:
    """Yield for how many pairs of a table no ratio may be taken, and why."""
    pairs = [pair for question in columns for pair in question.pairs.values() if pair.timed and pair.ours]
    throttled = sum(pair.compared and pair.ratio is None for pair in pairs)
    apart = sum(not pair.compared for pair in pairs)
    counts = {"throttled": throttled, "not compared": apart}
    if why := [f"{count}/{len(pairs)} {reason}" for reason, count in counts.items() if count]:
        yield f"- No ratio: {', '.join(why)}."


def _kind(row: Row) -> tuple[str, ...]:
    """Return what failures have in common that share a line: a kernel's wrong results, else the words of a reason."""
    if row.status == "wrong":
        return row.status, row.implementation
    return row.status, "", re.sub(r"\d[\d.,]*", "#", row.reason or "")


def _missing(best: Standing, told: set[tuple[str, ...]]) -> Iterator[str]:
    """Yield a line a kind of failure at all chunk sizes; kinds `told` in an earlier section share one line."""
    outcomes = [fastest(rows) for question in best.questions for rows in question.rows.values()]
    points = Counter(row.implementation for row in outcomes)
    failed: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in (row for row in outcomes if row.status != "ok"):
        failed[_kind(row)].append(row)
    before: dict[str, list[str]] = defaultdict(list)
    for kind, rows in failed.items():
        names = dict.fromkeys(row.implementation for row in rows)
        whole = sum(points[name] for name in names)
        share = f" ({len(rows)}/{whole})" if len(rows) < whole else ""
        who, status = _plain(", ".join(names)), kind[0].replace("_", " ")
        if kind in told:
            before[status].append(who + share)
        else:
            example = ", e.g." if len({row.reason for row in rows}) > 1 else ""
            yield f"- {who}: {status}{share}{example}: {_reason(rows[0])}"
    if before:
        kinds = (f"{status}: {', '.join(names)}" for status, names in before.items())
        yield f"- As above, {'; '.join(kinds)}"
    told.update(failed)


def _reason(row: Row) -> str:
    """Return the first of a row's reasons in one line."""
    first = re.split(r"; |\. ", row.reason or "no reason was given")[0]
    return _plain(shorten(first, LONGEST_REASON, placeholder=" ..."))


def _origin(campaign: Campaign) -> str:
    """Return the days on which a campaign was measured, its versions and its commits."""
    found = conditions_of(campaign.rows, campaign.runs)
    days = sorted({row.started_at[:10] for row in campaign.rows})
    packages = dict.fromkeys(
        f"{row.package} {row.package_version}"
        for row in campaign.rows
        if row.package_version and row.package not in VERSIONS
    )
    versions = [f"{name} {' and '.join(found[name])}" for name in VERSIONS if name in found]
    commits = sorted({commit[:7] for commit in found.get("commit", ["not recorded"])})
    code = f"commit {' and '.join(commits)}" if len(commits) <= FEW_COMMITS else f"{len(commits)} commits"
    return _plain(", ".join([" to ".join(dict.fromkeys((days[0], days[-1]))), *versions, *packages, code]))


def _again(campaign: Campaign) -> str:
    """Return the command that measures a campaign again; that of its whole preset where several commands did."""
    recorded = {tuple(run.get("arguments", ())) for run in campaign.runs.values()}
    command, preset = next(iter(recorded), ()), preset_of(campaign)
    if len(recorded) == 1 and command[:1] == ("sweep",):
        words = re.sub(r" --no-plots| --(out|timeout)[ =]('[^']*'|\S+)", "", shlex.join(["tflabench", *command]))
        return f"`{words} --out again`"
    if preset in preset_names():
        return f"`tflabench sweep --preset {preset} --out again`"
    return "the command was not recorded."


def _decisive(campaign: Campaign) -> dict[str, str]:
    """Return the conditions that decide the times of a campaign."""
    found = conditions_of(campaign.rows, campaign.runs)
    return {key: " ".join(found.get(key, ["not recorded"])) for key in DECISIVE}


def _plain(words: str) -> str:
    """Return words that Markdown shows as they are, in one line."""
    return " ".join(re.sub(r"([\\`*|<\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", words).split())
