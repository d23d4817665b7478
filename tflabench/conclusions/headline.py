"""The generated results/README.md: a table a figure, the strongest peer first, from stored rows only. No torch."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from math import inf
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

from tflabench.conclusions.campaigns import Campaign, campaigns, conditions_of
from tflabench.conclusions.markdown import plain, write_page
from tflabench.conclusions.occasions import NEAR, Agreement, agreement
from tflabench.conclusions.peer_table import cell, in_order, table, title
from tflabench.conclusions.ratio import fastest
from tflabench.conclusions.standings import Chosen, Question, Ranking, Size, at_sizes, choose, preset_of, subject
from tflabench.implementations.registry import is_current, nearest, our_kernels, split
from tflabench.problem import InputError
from tflabench.rows.journal import TIMES, is_packed
from tflabench.rows.labels import PASS_TITLES, THROTTLED
from tflabench.rows.load import find_results
from tflabench.rows.schema import Row
from tflabench.selection.presets import load_preset, preset_names
from tflabench.theory.hardware import short_devices

MOST_WORDS = 1500
LONGEST_REASON = 120  # characters
FEW_COMMITS = 2  # more are counted
VERSIONS = ("threads", "torch", "triton")  # the driver and all else are in environment.json


class Detail(NamedTuple):
    """The length of tables, where ratios may be taken and where not: their sizes, and their peers at most.

    Attributes:
        uncompared: whether rows have a table that were measured in no comparison.
        reasons: whether failures have their reasons.
        other_sweeps: whether sweeps have a table that are neither a figure of the paper nor the quick look.
    """

    sizes_with_ratios: int
    other_sizes: int
    peers_with_ratios: int | None
    other_peers: int | None
    uncompared: bool = True
    reasons: bool = True
    other_sweeps: bool = True


# The first that makes a page of at most MOST_WORDS words holds.
DETAILS = (
    Detail(2, 2, None, None), Detail(2, 1, None, None), Detail(1, 1, None, None),
    *(Detail(1, 1, *peers) for peers in ((10, 10), (10, 3), (8, 2))),
    *(Detail(1, 1, peers, 1, uncompared=False) for peers in (10, 8, 6)),
    Detail(1, 1, 10, 1, uncompared=False, reasons=False),
    *(Detail(1, 1, peers, 1, uncompared=False, reasons=False, other_sweeps=False) for peers in range(10, 3, -1)),
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
            return our_kernels()
        names = dict.fromkeys(row.implementation for campaign in self.every for row in campaign.rows)
        found = frozenset(name for name in names if any(fnmatchcase(name, each) for each in split(self.subject)))
        if not found:
            raise InputError(f"--subject is {self.subject!r}, which no row is of; {nearest(self.subject, names)}")
        return found

    @cached_property
    def shared(self) -> list[str]:
        """Return the versions that more than half of several campaigns with their package have, of those with ours."""
        tabled = [each for each in self.every if any(row.implementation in self.kernels for row in each.rows)]
        count = Counter(version for campaign in tabled for version in _versions(campaign))
        packages = Counter(version.split()[0] for version in count.elements())
        usual = [version for version in count if 2 * count[version] > packages[version.split()[0]]]
        return usual if len(tabled) > 1 else []

    def link(self, campaign: Campaign, *others: Campaign) -> str:
        """Return a link to a campaign's rows: its folder, and how it differs from others, of this folder and given."""
        rows = TIMES if is_packed(Path(campaign.folder)) else "rows.csv"
        target = Path(os.path.relpath(campaign.folder, self.linked_from)) / rows
        folder = Path(os.path.relpath(campaign.folder, self.root))
        name = self.root.resolve().name if folder == Path() else folder.as_posix()
        siblings = [other for other in self.every if other.folder == campaign.folder]
        return f"[{plain(', '.join([name, *campaign.apart_from(*siblings, *others)]))}]({target.as_posix()})"


def write(root: Path, out: Path, subject: str | None = None) -> Path:
    """Write the page about all results at and below `root`; arguments and errors as of `markdown`.

    Raises:
        InputError: also a file that cannot be written.
    """
    options = [] if subject is None else ["--subject", subject]
    command = ["tflabench", "headline", str(root), *options, "--out", str(out)]
    return write_page(out, markdown(root, command, out.parent, subject))


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
        text = "\n".join([*_opening(page, command, detail), *_sections(page, chosen, detail)]) + "\n"
        if len(text.split()) <= MOST_WORDS:
            break
    return text


def _sections(page: Page, chosen: Sequence[Chosen], detail: Detail) -> Iterator[str]:
    """Yield a section a figure, then what has none."""
    told: set[tuple[str, ...]] = set()
    uncompared: list[Campaign] = []
    untold: list[Campaign] = []
    figures: dict[tuple[float, str], list[Chosen]] = defaultdict(list)
    for each in chosen:
        if each.best.has_comparisons and not detail.other_sweeps and _is_other_sweep(each.best.campaign):
            untold += [standing.campaign for standing in (each.best, *each.others)]
        elif each.best.has_ours and (detail.uncompared or each.best.has_comparisons):
            figures[subject(each.best.campaign)[:2]].append(each)
        elif each.best.has_ours:
            uncompared += [standing.campaign for standing in (each.best, *each.others)]
    for devices in figures.values():
        yield from _section(page, devices, detail, told)
    if untold:
        yield from ("", f"Beside the paper's figures, without a table here: {_folders(page, untold)}.")
    if uncompared:
        yield from ("", f"Not measured in comparisons, so without a ratio: {_folders(page, uncompared)}.")
    if without := [each.best.campaign for each in chosen if not each.best.has_ours]:
        yield from ("", f"No kernel of ours was measured in {_folders(page, without)}.")
    if page.shared:
        yield from ("", f"Versions, where nothing else is said: {plain(', '.join(page.shared))}.")


def _is_other_sweep(campaign: Campaign) -> bool:
    """Return whether a campaign is of a preset that is neither a figure of the paper nor the quick look."""
    figure, name, _ = subject(campaign)
    return figure == inf and name in preset_names() and name != "quick"


def _folders(page: Page, found: Sequence[Campaign]) -> str:
    return ", ".join(f"{page.link(campaign)} ({plain(campaign.device)})" for campaign in found)


def _opening(page: Page, command: Sequence[str], detail: Detail) -> list[str]:
    ours, theirs = "the kernels of this project", "those of other libraries"
    if page.subject is not None:
        ours, theirs = f"what `--subject {shlex.quote(page.subject)}` names", "all others"
    why = "see below" if detail.reasons else "the rows say why"
    return [
        "# Results",
        "",
        f"Made by `{shlex.join(command)}` from stored rows; do not edit.",
        "",
        f"A table compares {ours} (*ours*) with {theirs} (*peers*), for a figure",
        "of the paper or another sweep. Names are those that `--impl` takes.",
        "",
        "- A cell has median milliseconds: `peer/ours = ratio`. Above 1 ours is faster; **bold**: the peer is.",
        "- A ratio is taken only where both took turns in one closed comparison with their tuners done. Do not divide",
        "  other times.",
        f"- {THROTTLED}: the GPU held its clock back, so the time is longer than it need be. Where that is the shorter",
        "  time, the ratio is a bound (≥, or ≤ where the peer is faster); where it is the longer one, there is none.",
        "- The strongest peer comes first. It meets our fastest kernel that computes the same, or else our fastest",
        "  mLSTM, each at its best chunk size.",
        "- *% of bound*: the least time of any kernel, which reads inputs and writes outputs once, over that of our",
        "  fastest mLSTM.",
        f"- A second occasion is the same source measured again, and ratios are expected within {NEAR:.0%}.",
        f"- Empty: not asked for. *wrong* and the like: {why}. (1/4): at 1 of 4 points.",
        "",
        "Where several folders have a figure, its table is of the one with most ratios. It is at one large size with",
        "many ratios, the same on all devices where they share one. All else is in the linked rows and in",
        f"`tflabench report {shlex.quote(str(page.root))}`. *Again* measures into a folder `again`.",
    ]


def _section(page: Page, devices: Sequence[Chosen], detail: Detail, told: set[tuple[str, ...]]) -> Iterator[str]:
    """Yield the section of a figure: one table of all devices that it was measured on."""
    standings = [each.best for each in devices]
    name = preset_of(standings[0].campaign)
    about = load_preset(name).title if name in preset_names() else name
    sizes, most = detail.sizes_with_ratios, detail.peers_with_ratios
    if not any(standing.has_ratios for standing in standings):
        sizes, most = detail.other_sizes, detail.other_peers
    columns = at_sizes(standings, sizes)
    peers = in_order(columns)
    names = ", ".join(dict.fromkeys(question.device for question in columns))
    yield from ("", f"## {plain(f'{about} ({names})')}", "")
    yield from (*table(columns, peers[:most]), "")
    if more := len(peers[most:]) if most else 0:
        yield f"- {more} more peers: in the rows."
    yield from _refusals(columns)
    yield from _changed(columns)
    yield from _missing(standings, told, detail.reasons)
    for each in devices:
        yield from _rows(page, each, [question for question in columns if question.device == each.best.campaign.device])
    yield from _commands([standing.campaign for standing in standings])


def _rows(page: Page, chosen: Chosen, columns: Sequence[Question]) -> Iterator[str]:
    """Yield where the rows of a device are, those of other occasions, and what is timed only under other conditions.

    Args:
        columns: the questions of the device that the table has.
    """
    best, others = chosen
    yield f"- Rows: {page.link(best.campaign)}, {_origin(best.campaign, page.shared)}."
    missing = {
        (question.size, question.pass_, name): title(question, columns)
        for question in columns
        for name, pair in question.pairs.items()
        if not pair.timed
    }
    rest = []
    for other in others:
        conditions = ", ".join(other.campaign.apart_from(best.campaign))
        if found := agreement(best, other):
            yield f"- A second occasion: {_agreement(found)}: {page.link(other.campaign)}."
        elif conditions and (timed := _timed(other, missing)):
            told = "; ".join(f"{column}: {', '.join(cells)}" for column, cells in timed.items())
            yield f"- With {plain(conditions)}, {told}: {page.link(other.campaign)}."
        else:
            rest.append(page.link(other.campaign, best.campaign))
    if rest:
        yield f"- Other rows: {', '.join(rest)}."


def _timed(other: Ranking, missing: dict[tuple[Size, str, str], str]) -> dict[str, list[str]]:
    """Return the peers that have a ratio here, by the title of a column, and take them from those `missing`.

    Args:
        missing: the column of each size, pass and peer that a table shows without a time.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for question in other.questions:
        for name, pair in question.pairs.items():
            asked = (question.size, question.pass_, name)
            if asked in missing and pair.ours and pair.ratio is not None:
                found[missing.pop(asked)].append(plain(f"{name}/{pair.ours.implementation} {cell(pair)}"))
    return found


def _agreement(found: Agreement) -> str:
    """Return how many ratios two occasions agree on, and the one that they are furthest apart on."""
    told = f"{found.near} of {len(found.changes)} ratios within {NEAR:.0%}"
    if found.near == len(found.changes):
        return told
    far = found.farthest
    where = ", ".join(
        [plain(far.first.peer.implementation), PASS_TITLES[far.question.pass_], far.question.size.facts[0]]
    )
    return f"{told}, the furthest {far.change:+.1%} ({where})"


def _refusals(columns: Iterable[Question]) -> Iterator[str]:
    """Yield for how many pairs of a table no ratio may be taken, and why."""
    pairs = [pair for question in columns for pair in question.pairs.values() if pair.timed and pair.ours]
    throttled = sum(pair.compared and pair.ratio is None for pair in pairs)
    apart = sum(not pair.compared for pair in pairs)
    counts = {"throttled": throttled, "not compared": apart}
    if why := [f"{count}/{len(pairs)} {reason}" for reason, count in counts.items() if count]:
        yield f"- No ratio: {', '.join(why)}."


def _changed(columns: Iterable[Question]) -> Iterator[str]:
    """Yield which of our kernels in a table have changed since, by device."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for question in columns:
        for pair in question.pairs.values():
            if pair.ours and not is_current(pair.ours.implementation, pair.ours.kernel_version):
                found[question.device][pair.ours.implementation] = None
    if found:
        told = "; ".join(f"{device}: {', '.join(names)}" for device, names in found.items())
        yield f"- Kernels of ours that changed after this was measured: {plain(told)}."


def _kind(row: Row) -> tuple[str, ...]:
    """Return what failures have in common that share a line: a kernel's wrong results, else the words of a reason."""
    if row.status == "wrong":
        return row.status, row.implementation
    return row.status, "", re.sub(r"\d[\d.,]*", "#", row.reason or "")


def _missing(standings: Iterable[Ranking], told: set[tuple[str, ...]], reasons: bool) -> Iterator[str]:
    """Yield a line a kind of failure at all chunk sizes; kinds `told` in an earlier section share one line.

    Without `reasons` all kinds share it.
    """
    questions = [question for standing in standings for question in standing.questions]
    outcomes = [fastest(rows) for question in questions for rows in question.rows.values()]
    points = Counter(row.implementation for row in outcomes)
    failed: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in (row for row in outcomes if row.status != "ok"):
        failed[_kind(row)].append(row)
    before: dict[str, list[str]] = defaultdict(list)
    for kind, rows in failed.items():
        names = dict.fromkeys(row.implementation for row in rows)
        whole = sum(points[name] for name in names)
        share = f" ({len(rows)}/{whole})" if len(rows) < whole else ""
        who, status = plain(", ".join(names)), kind[0].replace("_", " ")
        if kind in told or not reasons:
            before[status].append(who + share)
        else:
            example = ", e.g." if len({row.reason for row in rows}) > 1 else ""
            yield f"- {who}: {status}{share}{example}: {_reason(rows[0])}"
    if before:
        kinds = (f"{status}: {', '.join(names)}" for status, names in before.items())
        yield f"- {'As above' if reasons else 'Failures'}, {'; '.join(kinds)}"
    told.update(failed)


def _reason(row: Row) -> str:
    """Return the first of a row's reasons in one line."""
    first = re.split(r"; |\. ", row.reason or "no reason was given")[0]
    return plain(shorten(first, LONGEST_REASON, placeholder=" ..."))


def _versions(campaign: Campaign) -> list[str]:
    """Return what a campaign ran with and the packages of its peers, each with its version."""
    found = conditions_of(campaign.rows, campaign.runs)
    packages = (f"{row.package} {row.package_version}" for row in campaign.rows if row.package_version)
    own = (f"{name} {' and '.join(found[name])}" for name in VERSIONS if name in found)
    return list(dict.fromkeys([*own, *(package for package in packages if package.split()[0] not in VERSIONS)]))


def _origin(campaign: Campaign, shared: Collection[str]) -> str:
    """Return the days on which a campaign was measured, its versions but for those `shared`, and its commits."""
    days = sorted({row.started_at[:10] for row in campaign.rows})
    found = conditions_of(campaign.rows, campaign.runs).get("commit", ["not recorded"])
    commits = sorted({commit[:7] for commit in found})
    code = f"commit {' and '.join(commits)}" if len(commits) <= FEW_COMMITS else f"{len(commits)} commits"
    versions = [version for version in _versions(campaign) if version not in shared]
    return plain(", ".join([" to ".join(dict.fromkeys((days[0], days[-1]))), *versions, code]))


def _commands(measured: Sequence[Campaign]) -> Iterator[str]:
    """Yield how campaigns are measured again; where that differs, on which device."""
    found: dict[str, list[str]] = {}
    for campaign in measured:
        found.setdefault(_again(campaign), []).append(campaign.device)
    short = short_devices([device for devices in found.values() for device in devices])
    for command, devices in found.items():
        where = f", {', '.join(short[device] for device in devices)}" if len(found) > 1 else ""
        yield f"- Again{where}: {command}"


def _again(campaign: Campaign) -> str:
    """Return the command that measures a campaign again; of several, what they share: the preset and other options."""
    recorded = dict.fromkeys(tuple(run.get("arguments", ())) for run in campaign.runs.values())
    preset = preset_of(campaign)
    if recorded and all(command[:1] == ("sweep",) for command in recorded):
        options = [_options(command) for command in recorded]
        shared = [option for option in options[0] if all(option in other for other in options[1:])]
        if len(recorded) == 1 or preset == "quick" or f"--preset {preset}" in shared:
            return f"`{' '.join(['tflabench', 'sweep', *shared, '--out', 'again'])}`"
    if preset in preset_names():
        return f"`tflabench sweep --preset {preset} --out again`"
    return "the command was not recorded."


def _options(command: Sequence[str]) -> list[str]:
    """Return the options of a sweep, each with its value, but for those that decide no row."""
    found: list[list[str]] = []
    for word in command[1:]:
        if word.startswith("-") or not found:
            found.append([])
        found[-1].append(word)
    needed = [
        words
        for words in found
        if words[0].partition("=")[0] not in ("--no-plots", "--out", "--timeout")
        and " ".join(words).replace("=", " ") != "--preset quick"
    ]
    return list(map(shlex.join, needed))
