"""Our kernels and their peers in stored rows, and which folder and sizes stand for a figure. No torch."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import NamedTuple

from tflabench.conclusions.campaigns import Campaign
from tflabench.conclusions.ratio import comparable, fastest, questions, ratio
from tflabench.implementations.registry import operation, our_kernels, owner
from tflabench.rows.labels import PASS_TITLES, heads
from tflabench.rows.schema import Row

NEARLY = 0.8  # of the most ratios that one size has


def answers(ours: Sequence[Row], rival: Row | None, kernels: frozenset[str] | None = None) -> list[Row]:
    """Return those of our rows that a peer is compared with.

    They are of the peer's operation where there is a kernel of ours for it, measured here or not. Else they are of
    mLSTM, what this project is about, or all of ours where no mLSTM was measured.

    Args:
        kernels: the names of ours; None for the bundled ones.
    """
    kernels = our_kernels() if kernels is None else kernels
    wanted = operation(rival.implementation, rival.gate) if rival else None
    if rival and wanted and (rival.family == "mlstm" or wanted in {operation(name) for name in kernels}):
        return [row for row in ours if operation(row.implementation, row.gate) == wanted]
    return [row for row in ours if row.family == "mlstm"] or list(ours)


class Pair(NamedTuple):
    """A peer's fastest row at one size and pass, which may have failed, and our fastest that answers it."""

    peer: Row
    ours: Row | None

    @property
    def timed(self) -> bool:
        """Return whether the peer was measured."""
        return self.peer.status == "ok"

    @property
    def compared(self) -> bool:
        """Return whether both took turns in one closed comparison, with all of their configurations tried."""
        return self.ours is not None and comparable(self.peer, self.ours)

    @property
    def ratio(self) -> float | None:
        """Return the peer's time over ours, a bound where `sign` says so; None where no ratio may be taken."""
        over = ratio(self.peer, self.ours) if self.ours else None
        return over and over.value

    @property
    def sign(self) -> str:
        """Return what stands before the ratio: "=", or "≥" or "≤" where the quicker side was throttled."""
        over = ratio(self.peer, self.ours) if self.ours else None
        return (over and over.bound) or "="


class Size(NamedTuple):
    """The size that a question asks for, without the pass.

    `cut` is (d_hv, d_qk, heads in words) where heads are cut in several ways.
    """

    seq_len: int
    batch: int
    embedding: int
    dtype: str
    inputs: str
    cut: tuple[int, int, str] | tuple[()] = ()

    @property
    def facts(self) -> tuple[str, ...]:
        """Return what tells sizes apart, in words."""
        words = [f"T = {self.seq_len}", f"{self.batch * self.seq_len:,} tokens", f"embedding {self.embedding}"]
        words += [self.dtype, *([] if self.inputs == "normal" else [f"{self.inputs} inputs"])]
        return (*words, *([f"heads {self.cut[-1]}"] if self.cut else ()))


@dataclass(frozen=True)
class Question:
    """The rows of one size and pass by implementation; `kernels` are the names of ours."""

    size: Size
    pass_: str
    rows: Mapping[str, Sequence[Row]]
    kernels: frozenset[str]

    @property
    def device(self) -> str:
        """Return the device that was asked."""
        return next(iter(self.rows.values()))[0].device

    @property
    def ours(self) -> list[Row]:
        """Return the rows of our kernels, failed ones too."""
        return [row for name, rows in self.rows.items() if name in self.kernels for row in rows]

    def best(self, rival: Row | None = None) -> Row | None:
        """Return our fastest row that answers a peer, or of mLSTM; rows of the peer's comparison come first."""
        rows = answers([row for row in self.ours if row.status == "ok"], rival, self.kernels)
        beside = [row for row in rows if rival and comparable(row, rival)]
        return fastest(beside or rows) if rows else None

    @cached_property
    def pairs(self) -> dict[str, Pair]:
        """Return every peer's fastest row with ours, by implementation."""
        peers = (name for name in self.rows if name not in self.kernels and owner(name).role != "published")
        rivals = {name: fastest(self.rows[name]) for name in peers}
        return {name: Pair(rival, self.best(rival)) for name, rival in rivals.items()}


@dataclass(frozen=True)
class Ranking:
    """All questions of a campaign, forward first, small problems first."""

    campaign: Campaign
    questions: tuple[Question, ...]

    @cached_property
    def rank(self) -> tuple[bool, int, int, int]:
        """Return how much its table says: whether it has ours, and how many ratios, pairs compared, rows measured."""
        pairs = [pair for question in self.questions for pair in question.pairs.values()]
        ratios = sum(pair.ratio is not None for pair in pairs)
        measured = sum(row.status == "ok" for row in self.campaign.rows)
        return any(question.ours for question in self.questions), ratios, sum(pair.compared for pair in pairs), measured

    @property
    def has_ours(self) -> bool:
        """Return whether a kernel of ours was asked for."""
        return self.rank[0]

    @property
    def has_ratios(self) -> bool:
        """Return whether a ratio may be taken anywhere."""
        return self.rank[1] > 0

    @property
    def has_comparisons(self) -> bool:
        """Return whether ours and another were compared anywhere, with a ratio or without."""
        return self.rank[2] > 0


def at_sizes(standings: Sequence[Ranking], count: int) -> list[Question]:
    """Return the questions of the one or two sizes with most ratios, or NEARLY as many, and most peers measured.

    All standings are asked for the same sizes if they share any, and each for its own if not. Where several sizes are
    as good, the first is the largest. The second is then the furthest from it, with heads cut the same way.
    """
    sizes = sorted(set.intersection(*({question.size for question in each.questions} for each in standings)))
    if len(standings) > 1 and not sizes:
        return [question for each in standings for question in at_sizes([each], count)]
    asked = [question for each in standings for question in each.questions if question.size in sizes]
    peers: dict[Size, set[tuple[str, str]]] = defaultdict(set)
    ratios = Counter[Size]()
    for question in asked:
        peers[question.size] |= {(question.device, name) for name, pair in question.pairs.items() if pair.timed}
        ratios[question.size] += sum(pair.ratio is not None for pair in question.pairs.values())
    least = NEARLY * max(ratios.values())
    first = max(sizes, key=lambda size: (ratios[size] >= least, len(peers[size]), size))

    def merit(size: Size) -> tuple[bool, bool, int, bool, int]:
        away = abs(sizes.index(size) - sizes.index(first))
        return size != first, ratios[size] >= least, len(peers[size]), size.cut == first.cut, away

    shown = {first, max(sizes, key=merit)} if count > 1 else {first}
    return [question for question in asked if question.size in shown]


def standing(campaign: Campaign, kernels: frozenset[str]) -> Ranking:
    """Return the questions of a campaign.

    Where bundled kernels are measured, their PyTorch forms are neither ours nor peers; elsewhere they are both.
    """
    shown = not kernels & our_kernels()
    rows = (row for row in campaign.rows if shown or not row.implementation.startswith("reference_"))
    groups = questions(row for row in rows if row.pass_ in PASS_TITLES)
    cuts = Counter((_size(group[0]), group[0].pass_) for group in groups)
    found = []
    for group in groups:
        row, size = group[0], _size(group[0])
        if cuts[size, row.pass_] > 1:
            size = size._replace(cut=(row.d_hv, row.d_qk, heads(row)))
        by_name: dict[str, list[Row]] = defaultdict(list)
        for each in group:
            by_name[each.implementation].append(each)
        found.append(Question(size, row.pass_, by_name, kernels))
    order = list(PASS_TITLES)
    return Ranking(campaign, tuple(sorted(found, key=lambda each: (order.index(each.pass_), each.size))))


def _size(row: Row) -> Size:
    return Size(row.seq_len, row.batch, row.heads * row.d_hv, row.dtype, row.inputs)


def subject(campaign: Campaign) -> tuple[float, str, str]:
    """Return what a campaign is of: the number of the paper's figure, or inf and its sweep; and its device.

    A figure with matched heads is of its own, behind the figure.
    """
    name, device = preset_of(campaign), campaign.device
    figure = re.match(r"(?:paper-)?fig(\d+)(?!\d)(-matched)?", name)
    return (float(figure[1]), figure[2] or "", device) if figure else (inf, name, device)


def preset_of(campaign: Campaign) -> str:
    """Return the preset that all sweeps of a campaign measured; the folder's name where they do not say one."""
    found = set()
    for run in campaign.runs.values():
        words = " ".join(run.get("arguments", ())).replace("--preset=", "--preset ").split()
        if words[:1] == ["sweep"]:
            found.add(words[words.index("--preset") + 1] if "--preset" in words[:-1] else "quick")
    found = {Path(name).stem if name.endswith(".toml") else name for name in found}
    return found.pop() if len(found) == 1 else Path(campaign.folder).resolve().name


class Chosen(NamedTuple):
    """The standing whose table is shown, and others of the same subject."""

    best: Ranking
    others: tuple[Ranking, ...]


def choose(campaigns: Iterable[Campaign], kernels: frozenset[str]) -> list[Chosen]:
    """Return one standing a figure and device: subjects with ratios first, then by figure, sweep and device.

    Args:
        kernels: the names of ours.
    """
    subjects: dict[tuple[float, str, str], list[Ranking]] = defaultdict(list)
    for campaign in campaigns:
        subjects[subject(campaign)].append(standing(campaign, kernels))
    found = []
    for about, standings in subjects.items():
        best = max(standings, key=lambda each: each.rank)
        others = tuple(each for each in standings if each is not best)
        found.append((not best.has_ratios, about, Chosen(best, others)))
    return [chosen for *_, chosen in sorted(found, key=lambda each: each[:2])]
