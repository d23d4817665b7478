"""The distance between ratios that were measured on two occasions. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tflabench.conclusions.standings import Pair, Question, Ranking

NEAR = 0.02  # two occasions are expected to agree within this


@dataclass(frozen=True)
class Change:
    """One ratio, or bound, on a first and a second occasion."""

    question: Question
    first: Pair
    change: float


@dataclass(frozen=True)
class Agreement:
    """The ratios that two occasions have in common."""

    changes: tuple[Change, ...]

    @property
    def near(self) -> int:
        """Return how many agree within NEAR."""
        return sum(abs(each.change) <= NEAR for each in self.changes)

    @property
    def farthest(self) -> Change:
        """Return the ratio that changed most."""
        return max(self.changes, key=lambda each: abs(each.change))


def agreement(first: Ranking, second: Ranking) -> Agreement | None:
    """Return how the ratios of a second occasion agree with those of a first; None where it is none.

    The same source must have measured both, under the same conditions: device, driver, versions.
    """
    if not _same_source(first, second):
        return None
    changes = tuple(_changes(first, second))
    return Agreement(changes) if changes else None


def _same_source(first: Ranking, second: Ranking) -> bool:
    sources = first.campaign.sources | second.campaign.sources
    return len(sources) == 1 and None not in sources and first.campaign.decisive == second.campaign.decisive


def _changes(first: Ranking, second: Ranking) -> Iterator[Change]:
    again = {(question.size, question.pass_): question.pairs for question in second.questions}
    for question in first.questions:
        for name, pair in question.pairs.items():
            other = again.get((question.size, question.pass_), {}).get(name)
            if other and pair.ratio and other.ratio and _same_points(pair, other):
                yield Change(question, pair, other.ratio / pair.ratio - 1)


def _same_points(pair: Pair, other: Pair) -> bool:
    return [row and row.point for row in pair] == [row and row.point for row in other]
