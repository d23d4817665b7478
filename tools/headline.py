"""The page results/README.md: a table a figure, our fastest kernel against every peer, from stored rows alone.

`tools/pages.py` writes it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import NamedTuple

from tflabench.conclusions.campaigns import Campaign, campaigns, conditions_of
from tflabench.conclusions.ratio import Ratio, comparable, fastest, questions, ratio
from tflabench.implementations.registry import get, is_current, operation, our_kernels, owner
from tflabench.problem import PASS_TITLES
from tflabench.rows.journal import TIMES, is_packed
from tflabench.rows.labels import heads, mark
from tflabench.rows.load import find_results
from tflabench.rows.schema import Row
from tflabench.selection.presets import load_preset, preset_names
from tflabench.theory.hardware import short_devices

MOST_PEERS = 10  # in a table
NEARLY = 0.8  # of the most ratios that one size has
TIE = 0.01  # nearer to each other than this, nobody wins
HEAD = """\
# Results

Made by `python tools/pages.py` from stored rows; do not edit.

A table compares the kernels of this project (*ours*) with those of other libraries (*peers*), for a figure
of the paper or another sweep. Names are those that `--impl` takes.

- A cell has median milliseconds: `peer/ours = ratio`. Above 1 ours is faster; **bold**: the peer is.
- A ratio is taken only where both took turns in one closed comparison with their tuners done. Do not divide
  other times.
- †: the GPU held its clock back, so the time is longer than it need be. Where that is the shorter
  time, the ratio is a bound (≥, or ≤ where the peer is faster); where it is the longer one, there is none.
- The strongest peer comes first. It meets our fastest kernel that computes the same, or else our fastest
  mLSTM, each at the fastest chunk size that was measured. Tiles of mlstm_kernels are as published, not tuned, and
  Fig. 13 has the paper's L = 256 of it alone, where [128 is faster](../docs/how-it-measures.md#peers-at-their-best).
- Times are of the GPU with a cold L2, without what the host adds.
- *% of bound*: the least time of any kernel, which reads inputs and writes outputs once, over that of our
  fastest mLSTM.
- Empty: not asked for. *wrong* and the like: the rows say why. (1/4): at 1 of 4 points.

Where several folders have a figure, its table is of the one with most ratios of today's kernels. It is at
one large size with many ratios, the same on all devices where they share one. Devices whose rows differ in the version
of the [protocol](../docs/results.md#sources) or of our kernels have tables of their own. All else is in the linked rows
and in `tflabench report results`. *Again* measures into a folder `again`. Gated DeltaNet, KDA and others at the shapes
of models have [tables of their own](../docs/results.md#models).
"""


class Size(NamedTuple):
    """The size that a question asks for, without the pass; `cut` is (d_hv, d_qk, heads) where there are several."""

    seq_len: int
    batch: int
    embedding: int
    dtype: str
    inputs: str
    cut: tuple[int, int, str] | tuple[()] = ()

    def __str__(self) -> str:
        parts = [f"T = {self.seq_len}", f"{self.batch * self.seq_len:,} tokens", f"embedding {self.embedding}"]
        parts += [self.dtype, *([] if self.inputs == "normal" else [f"{self.inputs} inputs"])]
        return ", ".join([*parts, *([f"heads {self.cut[-1]}"] if self.cut else [])])


class Pair(NamedTuple):
    """A peer's fastest row at one size and pass, which may have failed, and our fastest that answers it."""

    peer: Row
    ours: Row | None

    @property
    def ratio(self) -> Ratio | None:
        """Return the peer's time over ours, None where none may be taken."""
        return ratio(self.peer, self.ours) if self.ours else None

    @property
    def cell(self) -> str:
        """Return "peer/ours = ratio", or a bound with its sign; the times alone where there is none; or a status."""
        if self.peer.status != "ok":
            return f"*{self.peer.status}*"
        times = "/".join(milliseconds(row) for row in self if row)
        if not (over := self.ratio):
            return times
        bold = "**" if over.value < 1 - TIE else ""
        return f"{times} {over.bound or '='} {bold}{digits(over.value)}{bold}"


@dataclass(frozen=True)
class Question:
    """The rows of one device, size and pass."""

    size: Size
    rows: Sequence[Row]

    @property
    def pass_(self) -> str:
        """Return the pass."""
        return self.rows[0].pass_

    def ours(self, peer: Row | None = None) -> Row | None:
        """Return our fastest row that answers a peer, or of mLSTM; those of the peer's comparison come first.

        It is of the peer's operation where we have a kernel for that, measured here or not. Else it is of mLSTM, what
        this project is about, or of all of ours where no mLSTM was measured.
        """
        ours = [row for row in self.rows if row.status == "ok" and row.implementation in our_kernels()]
        wanted = operation(peer.implementation, peer.gate) if peer else None
        if peer and wanted and (peer.family == "mlstm" or wanted in map(operation, our_kernels())):
            ours = [row for row in ours if operation(row.implementation, row.gate) == wanted]
        else:
            ours = [row for row in ours if row.family == "mlstm"] or ours
        beside = [row for row in ours if peer and comparable(row, peer)]
        return fastest(beside or ours) if ours else None

    @cached_property
    def pairs(self) -> dict[str, Pair]:
        """Return every peer's fastest row with ours, by implementation."""
        by_name: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows:
            if owner(row.implementation).role == "peer":
                by_name[row.implementation].append(row)
        peers = {name: fastest(rows) for name, rows in by_name.items()}
        return {name: Pair(peer, self.ours(peer)) for name, peer in peers.items()}


@dataclass(frozen=True)
class HeadlineOccasion:
    """A campaign and its questions, forward first, small problems first."""

    campaign: Campaign

    @cached_property
    def questions(self) -> list[Question]:
        """Return the questions that its rows answer, without those of plain PyTorch."""
        rows = [row for row in self.campaign.rows if owner(row.implementation).role != "reference"]
        groups = questions(row for row in rows if row.pass_ in PASS_TITLES)
        sizes = [Size(r.seq_len, r.batch, r.heads * r.d_hv, r.dtype, r.inputs) for r, *_ in groups]
        cuts = Counter((size, group[0].pass_) for size, group in zip(sizes, groups, strict=True))
        made = []
        for size, group in zip(sizes, groups, strict=True):
            row = group[0]
            cut = (row.d_hv, row.d_qk, heads(row)) if cuts[size, row.pass_] > 1 else ()
            made.append(Question(size._replace(cut=cut), group))
        return sorted(made, key=lambda question: (list(PASS_TITLES).index(question.pass_), question.size))

    @cached_property
    def pairs(self) -> dict[tuple[Size, str, str], Pair]:
        """Return all pairs by size, pass and peer."""
        return {
            (question.size, question.pass_, name): pair
            for question in self.questions
            for name, pair in question.pairs.items()
        }

    @cached_property
    def rank(self) -> tuple[bool, bool, int, int]:
        """Return how much its table says: whether it has ours, and as they are today, its ratios and measured rows."""
        has_ours = any(row.implementation in our_kernels() for row in self.campaign.rows)
        ratios = sum(pair.ratio is not None for pair in self.pairs.values())
        return has_ours, self.campaign.is_current, ratios, sum(row.status == "ok" for row in self.campaign.rows)

    @property
    def preset(self) -> str:
        """Return the preset that all its sweeps measured; the folder's name where they do not say one."""
        commands = [" ".join(run.get("arguments", ())).replace("=", " ").split() for run in self.campaign.runs.values()]
        names = {
            arguments[arguments.index("--preset") + 1] if "--preset" in arguments else "quick"
            for arguments in commands
            if arguments[:1] == ["sweep"]
        }
        return names.pop() if len(names) == 1 else Path(self.campaign.folder).resolve().name

    @property
    def figure(self) -> tuple[float, str]:
        """Return the number of the paper's figure with what is behind it, or inf and the preset."""
        number = re.match(r"(?:paper-)?fig(\d+)(?!\d)(-matched)?", self.preset)
        return (float(number[1]), number[2] or "") if number else (inf, self.preset)


def command(sweeps: Iterable[Sequence[str]]) -> str:
    """Return the command of sweeps by their arguments, with the options that all share and that decide rows."""
    options = [_options(arguments) for arguments in sweeps]
    shared = [option for option in options[0] if all(option in of_sweep for of_sweep in options)]
    return " ".join(["tflabench sweep", *shared])


def _options(arguments: Sequence[str]) -> list[str]:
    """Return the options of a sweep, each with its value, but for those that decide no row."""
    options: list[list[str]] = []
    for word in arguments[1:]:
        if word.startswith("-") or not options:
            options.append([])
        options[-1].append(word)
    idle = ("--full", "--gpus", "--jobs", "--no-plots", "--out", "--stop-after", "--timeout", "--tuned-from")
    return [shlex.join(option) for option in options if option[0].partition("=")[0] not in idle]


def plain(text: str) -> str:
    """Return words that Markdown shows as they are, in one line."""
    return " ".join(re.sub(r"([\\`*|<\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", text).split())


def milliseconds(row: Row) -> str:
    """Return the median time with three digits, marked where the GPU was throttled."""
    return digits(row.ms_median or 0.0) + mark(row)


def digits(value: float) -> str:
    """Return a number with three digits."""
    return f"{value:#.3g}".rstrip(".") if value < 999.5 else f"{value:.0f}"


def markdown(root: Path) -> str:
    """Return the page about all results at and below `root`, where it lies."""
    subjects: dict[tuple[float, str, str], list[HeadlineOccasion]] = defaultdict(list)
    for campaign in campaigns(find_results(root)):
        occasion = HeadlineOccasion(campaign)
        subjects[*occasion.figure, campaign.device].append(occasion)
    figures: dict[tuple[float, str], list[list[HeadlineOccasion]]] = defaultdict(list)
    untabled: list[Campaign] = []
    for (number, name, _), occasions in sorted(subjects.items()):
        occasions.sort(key=lambda occasion: occasion.rank, reverse=True)
        tabled = number < inf or name == "quick"
        if tabled and occasions[0].rank[-2]:
            figures[number, name].append(occasions)
        else:
            untabled += [occasion.campaign for occasion in occasions]
    lines = [HEAD, *(line for devices in figures.values() for line in _section(devices, root))]
    if untabled:
        names = (f"{_link(root, campaign)} ({plain(campaign.device)})" for campaign in untabled)
        lines += [f"Without a table here: {', '.join(names)}.", ""]
    shown = [row for devices in figures.values() for occasions in devices for row in occasions[0].campaign.rows]
    packages = dict.fromkeys(f"{row.package} {row.package_version}" for row in shown if row.package_version)
    lines.append(f"Packages in the tables: {plain(', '.join(packages))}.")
    return "\n".join(lines) + "\n"


def _link(root: Path, campaign: Campaign, *others: Campaign) -> str:
    """Return a link to a campaign's rows: its folder, and its conditions that others do not share."""
    folder = Path(os.path.relpath(campaign.folder, root)).as_posix()
    rows = TIMES if is_packed(Path(campaign.folder)) else "rows.csv"
    conditions = [f"{name} {x}" for name, x in campaign.decisive.items() if any(y.decisive[name] != x for y in others)]
    return f"[{plain(', '.join([folder, *conditions]))}]({folder}/{rows})"


def _section(devices: Sequence[Sequence[HeadlineOccasion]], root: Path) -> Iterator[str]:
    """Yield the section of a figure: one table of all devices that it was measured on, and where its rows are."""
    shown = [occasions[0] for occasions in devices]
    name = shown[0].preset
    title = load_preset(name).title if name in preset_names() else name
    columns = _columns(shown)
    tables = _of_one_source(columns)
    names = ", ".join(dict.fromkeys(row.device for question in columns for row in question.rows[:1]))
    peers = _strongest_first(columns)
    yield from (f"## {plain(f'{title} ({names})')}", "", f"{columns[0].size}:", "")
    for part in tables:
        yield from (f"{_source_in_words(part)}:", "") if len(tables) > 1 else ()
        yield from (*_table(part, peers[:MOST_PEERS]), "")
    if len(peers) > MOST_PEERS:
        yield f"- {len(peers) - MOST_PEERS} more peers: in the rows."
    timed = [pair for question in columns for pair in question.pairs.values() if pair.peer.status == "ok" and pair.ours]
    apart = sum(pair.ratio is None for pair in timed)
    if apart:
        yield f"- No ratio: {apart} of {len(timed)} pairs, throttled or not compared."
    ours = [pair.ours for question in columns for pair in question.pairs.values() if pair.ours]
    changed = [row.implementation for row in ours if not is_current(row.implementation, row.kernel_version)]
    if changed:
        yield f"- Kernels of ours that changed after this was measured: {plain(', '.join(dict.fromkeys(changed)))}."
    if failures := _failures(shown):
        yield f"- Failures, {failures}"
    for best, *others in devices:
        yield f"- Rows: {_link(root, best.campaign)}, {_origin(best.campaign)}."
        yield from _others(best, others, columns[0].size, root)
    short = short_devices([occasion.campaign.device for occasion in shown])
    for occasion in shown:
        again = command([run.get("arguments", ()) for run in occasion.campaign.runs.values()] or [()])
        yield f"- Again, {short[occasion.campaign.device]}: `{again} --out again`"
    yield ""


def kernel_versions(rows: Iterable[Row]) -> dict[tuple[str, int | None], set[int]]:
    """Return the versions among rows by family of our kernels: the first word of its names, and today's version."""
    versions: dict[tuple[str, int | None], set[int]] = defaultdict(set)
    for row in rows:
        if row.implementation in our_kernels():
            family = row.implementation.partition("_")[0], get(row.implementation).version
            versions[family].add(row.kernel_version or 0)
    return versions


def _shown_versions(questions: Iterable[Question]) -> dict[tuple[str, int | None], set[int]]:
    best = [(question.ours(), *(pair.ours for pair in question.pairs.values())) for question in questions]
    return kernel_versions(row for rows in best for row in rows if row)


def _protocols(questions: Iterable[Question]) -> set[int]:
    return {row.protocol_version for question in questions for row in question.rows}


def _source_in_words(questions: Sequence[Question]) -> str:
    """Return "H200, protocol 1, kernels of ours hopper 26 and tfla 5"; "changed" for what launches something else."""
    devices = " and ".join(short_devices([question.rows[0].device for question in questions]).values())
    protocols = " and ".join(map(str, sorted(_protocols(questions))))
    kernels = " and ".join(
        f"{_family(*family)} {' and '.join(str(version or 'changed') for version in sorted(versions))}"
        for family, versions in _shown_versions(questions).items()
    )
    return f"{devices}, protocol {protocols}, kernels of ours {kernels}"


def _family(word: str, version: int | None) -> str:
    """Return the first word of a family's names, or its only name."""
    names = [name for name in our_kernels() if name.partition("_")[0] == word and get(name).version == version]
    return names[0] if len(names) == 1 else word


def _of_one_source(columns: Sequence[Question]) -> list[list[Question]]:
    """Return columns apart where devices have other versions of the protocol or of our kernels."""
    tables: list[list[Question]] = []
    for device in dict.fromkeys(question.rows[0].device for question in columns):
        part = [question for question in columns if question.rows[0].device == device]
        of_part = _shown_versions(part)
        alike = (
            table
            for table in tables
            if _protocols(table) == _protocols(part)
            and all(of_part.get(name, versions) == versions for name, versions in _shown_versions(table).items())
        )
        if table := next(alike, None):
            table += part
        else:
            tables.append(part)
    return tables


def _columns(occasions: Sequence[HeadlineOccasion]) -> list[Question]:
    """Return the questions of one size: with most ratios or NEARLY as many, with most peers, and the largest."""
    sizes = [{question.size for question in occasion.questions} for occasion in occasions]
    shared = set.intersection(*sizes) or sizes[0]
    candidates = [question for occasion in occasions for question in occasion.questions if question.size in shared]
    peers: dict[Size, set[tuple[str, str]]] = defaultdict(set)
    ratios = Counter[Size]()
    for question in candidates:
        timed = (pair.peer for pair in question.pairs.values() if pair.peer.status == "ok")
        peers[question.size] |= {(row.device, row.implementation) for row in timed}
        ratios[question.size] += sum(pair.ratio is not None for pair in question.pairs.values())
    least = NEARLY * max(ratios.values())
    size = max(shared, key=lambda size: (ratios[size] >= least, len(peers[size]), size))
    return [question for question in candidates if question.size == size]


def _strongest_first(columns: Sequence[Question]) -> list[str]:
    """Return the peers that have a time: by their smallest ratio, the others behind by their least time."""
    ranks: dict[str, tuple[float, float]] = {}
    for name, pair in (item for question in columns for item in question.pairs.items()):
        if pair.peer.status == "ok":
            over, ms = ranks.get(name, (inf, inf))
            ranks[name] = (min(over, pair.ratio.value if pair.ratio else inf), min(ms, pair.peer.ms_median or inf))
    return sorted(ranks, key=lambda name: ranks[name])


def _table(columns: Sequence[Question], peers: Iterable[str]) -> Iterator[str]:
    """Yield the table of these peers, a column a device and pass; our fastest mLSTM stands first."""
    short = short_devices([question.rows[0].device for question in columns])
    titles = [f"{short[question.rows[0].device]}, {PASS_TITLES[question.pass_]}" for question in columns]
    best = [question.ours() for question in columns]
    roofs = ", ".join(sorted({row.ceilings.partition(":")[0] for row in best if row and row.ceilings}))
    bounds = [f"{milliseconds(row)} ({row.percent_of_bound or 0:.0f}%)" if row else "" for row in best]
    yield _line("peer", "ours", *titles)
    yield "|---|---|" + "---:|" * len(columns)
    yield _line(f"*% of bound ({roofs or 'not recorded'})*", _names(best), *bounds)
    for name in peers:
        pairs = [question.pairs.get(name) for question in columns]
        if not any(pairs):
            continue
        ours = _names(pair.ours for pair in pairs if pair and pair.peer.status == "ok")
        yield _line(plain(name), ours, *(pair.cell if pair else "" for pair in pairs))


def _line(*cells: str) -> str:
    return f"|{'|'.join(cells)}|"


def _names(rows: Iterable[Row | None]) -> str:
    return ", ".join(dict.fromkeys(row.implementation for row in rows if row))


def _failures(occasions: Sequence[HeadlineOccasion]) -> str:
    """Return who failed at all chunk sizes of a problem, by status: "wrong: a, b (1/4)"."""
    points, failed = Counter[str](), Counter[tuple[str, str]]()
    for question in (question for occasion in occasions for question in occasion.questions):
        for name in dict.fromkeys(row.implementation for row in question.rows):
            row = fastest([row for row in question.rows if row.implementation == name])
            points[name] += 1
            failed[row.status, name] += row.status != "ok"
    by_status: dict[str, list[str]] = defaultdict(list)
    for (status, name), count in failed.items():
        if count:
            by_status[status].append(name + (f" ({count}/{points[name]})" if count < points[name] else ""))
    return plain("; ".join(f"{status.replace('_', ' ')}: {', '.join(names)}" for status, names in by_status.items()))


def _origin(campaign: Campaign) -> str:
    """Return the days on which a campaign was measured, what it ran with, and its commit."""
    days = sorted({row.started_at[:10] for row in campaign.rows})
    conditions = conditions_of(campaign.rows, campaign.runs)
    versions = [f"{name} {' and '.join(conditions[name])}" for name in ("torch", "triton") if name in conditions]
    commits = [f"commit {commit[:7]}" for commit in conditions.get("commit", [])]
    return plain(", ".join([" to ".join(dict.fromkeys((days[0], days[-1]))), *versions, *commits[:2]]))


def _others(best: HeadlineOccasion, others: Sequence[HeadlineOccasion], size: Size, root: Path) -> Iterator[str]:
    """Yield where other rows of a figure are, and what was timed only there."""
    missing = {key for key, pair in best.pairs.items() if key[0] == size and pair.peer.status != "ok"}
    for other in others:
        link = _link(root, other.campaign, best.campaign)
        only_here = {key: pair for key, pair in other.pairs.items() if key in missing and pair.ratio}
        if only_here:
            cells = [
                f"{PASS_TITLES[pass_]} {name}/{pair.ours.implementation} {pair.cell}"
                for (_, pass_, name), pair in only_here.items()
                if pair.ours
            ]
            missing -= only_here.keys()
            yield f"- Timed elsewhere: {plain(', '.join(cells))}: {link}."
        else:
            yield f"- Other rows: {link}."
