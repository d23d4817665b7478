"""The headline: our best kernel against each baseline, from measured rows only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from tflabench import bundled
from tflabench.store import Row
from tflabench.summary import contests, faster

PYTORCH_FORMS = frozenset(impl.name for impl in bundled.IMPLEMENTATIONS if impl.name.startswith("reference_"))
KERNELS = frozenset(impl.name for impl in bundled.IMPLEMENTATIONS) - PYTORCH_FORMS


class Duel(NamedTuple):
    """Our fastest row at a point and a baseline's; `ratio` > 1 where ours is faster, +- `uncertainty`."""

    ours: Row
    baseline: Row
    ratio: float
    uncertainty: float


@dataclass(frozen=True)
class Comparison:
    """Our best kernel against one baseline in one pass, on one device, at one data type."""

    device: str
    dtype: str
    pass_: str
    baseline: str
    title: str
    duels: tuple[Duel, ...]  # by sequence length, then size

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
    """`stand_in`: whether the PyTorch forms stand for our kernels because none of these was measured."""

    verdicts: tuple[Verdict, ...]
    stand_in: bool


def compare(rows: Iterable[Row]) -> Headline:
    """Duels between our best row of a point and the best row of each baseline there, within a run (`run_id`)."""
    rows = [row for row in rows if row.status == "ok"]
    stand_in = not any(row.implementation in KERNELS for row in rows)
    ours = PYTORCH_FORMS if stand_in else KERNELS
    runs = defaultdict(list)
    for row in rows:
        runs[row.run_id].append(row)
    duels = defaultdict(list)
    for run in runs.values():
        for contest in contests(run):  # the fastest first
            best = next((row for row in contest if row.implementation in ours), None)
            rivals = {row.implementation: row for row in reversed(contest)}
            for name, rival in rivals.items() if best else ():
                if name not in KERNELS | PYTORCH_FORMS:
                    duels[rival.device, rival.dtype, rival.pass_, name].append(_duel(best, rival))  # type: ignore[arg-type]
    verdicts = defaultdict(list)
    for (device, dtype, pass_, name), fought in duels.items():
        title = fought[0].baseline.title
        verdicts[device, dtype, pass_].append(
            Comparison(device, dtype, pass_, name, title, tuple(sorted(fought, key=_size)))
        )
    found = [
        Verdict(device, dtype, pass_, tuple(sorted(group, key=lambda comparison: comparison.median)))
        for (device, dtype, pass_), group in verdicts.items()
    ]
    return Headline(tuple(found), stand_in)


def _size(duel: Duel) -> tuple[int, int]:
    return duel.ours.seq_len, duel.ours.batch


def _duel(ours: Row, rival: Row) -> Duel:
    return Duel(ours, rival, *faster(ours, rival))
