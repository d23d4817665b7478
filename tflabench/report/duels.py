"""The headline: our best kernel against each baseline, from measured rows only."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from tflabench.conclusions.campaigns import campaigns
from tflabench.conclusions.compare import comparable
from tflabench.conclusions.contests import contests, faster
from tflabench.conclusions.standings import answers
from tflabench.implementations.registry import bundled_kernels
from tflabench.rows.labels import PASS_TITLES
from tflabench.rows.load import Results
from tflabench.rows.schema import Row


class Duel(NamedTuple):
    """Our fastest row at a point and a baseline's; `ratio` > 1 where ours is faster, +- `uncertainty`."""

    ours: Row
    baseline: Row
    ratio: float
    uncertainty: float


@dataclass(frozen=True)
class Comparison:
    """Our best kernel against one baseline in one pass, on one device, at one data type; duels by sequence length."""

    baseline: str
    title: str
    duels: tuple[Duel, ...]

    @property
    def median(self) -> float:
        return median(duel.ratio for duel in self.duels)

    @property
    def low(self) -> float:
        return min(duel.ratio for duel in self.duels)

    @property
    def high(self) -> float:
        return max(duel.ratio for duel in self.duels)

    @property
    def won(self) -> int:
        return sum(duel.ratio > 1 for duel in self.duels)


@dataclass(frozen=True)
class Verdict:
    """The comparisons of one pass, on one device, at one data type: the strongest baseline first."""

    device: str
    dtype: str
    pass_: str
    comparisons: tuple[Comparison, ...]

    @property
    def slower(self) -> int:
        """How many baselines are slower than ours in the median."""
        return sum(comparison.median > 1 for comparison in self.comparisons)


@dataclass(frozen=True)
class Headline:
    """What is said first.

    Attributes:
        stand_in: the PyTorch forms stand for our kernels, because none of these was measured.
        left_out: the points that do not count because a side was measured on a throttled GPU: a line a device and pass.
    """

    verdicts: tuple[Verdict, ...]
    stand_in: bool
    left_out: tuple[str, ...] = ()


def compare(results: Iterable[Results]) -> Headline:
    """Our fastest row of every point against the fastest of each baseline there, within one comparison.

    Which of ours: see `tflabench.conclusions.standings.answers`. Points of which a side was measured on a throttled GPU
    do not count.
    """
    kernels = bundled_kernels()
    found = campaigns(results)
    measured = [row for campaign in found for row in campaign.rows if row.status == "ok"]
    stand_in = not any(row.implementation in kernels for row in measured)
    duels: dict[tuple[str, str, str], dict[str, list[Duel]]] = defaultdict(lambda: defaultdict(list))
    throttled: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for campaign in found:
        for contest in contests(campaign.rows):  # the fastest first
            ours = [row for row in contest if (_plain(row) if stand_in else row.implementation in kernels)]
            baselines = {row.implementation: row for row in reversed(contest)}
            for name, row in baselines.items():
                best = next((each for each in answers(ours, row) if comparable(each, row)), None)
                if best and name not in kernels and not _plain(row) and (ratio := faster(best, row)):
                    kind = row.device, row.dtype, row.pass_
                    if best.throttled or row.throttled:
                        throttled[kind][row.title] += 1
                    else:
                        duels[kind][name].append(Duel(best, row, *ratio))
    verdicts = []
    for (device, dtype, pass_), fought in duels.items():
        comparisons = [
            Comparison(name, own[0].baseline.title, tuple(sorted(own, key=_size))) for name, own in fought.items()
        ]
        verdicts.append(Verdict(device, dtype, pass_, tuple(sorted(comparisons, key=lambda one: one.median))))
    left_out = [
        f"{device}, {dtype}, {PASS_TITLES[pass_]}: "
        + ", ".join(f"{title} ({count} point{'s' * (count > 1)})" for title, count in counts.items())
        for (device, dtype, pass_), counts in throttled.items()
    ]
    return Headline(tuple(verdicts), stand_in, tuple(left_out))


def _plain(row: Row) -> bool:
    """Whether it is a PyTorch form of our kernels: neither a kernel nor a baseline."""
    return row.implementation.startswith("reference_")


def _size(duel: Duel) -> tuple[int, int]:
    return duel.ours.seq_len, duel.ours.batch
