"""The progress of a sweep, for people who watch it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tflabench.bench.comparison_run import ComparisonRun, PointRun, State
from tflabench.selection.points import Point


@dataclass(frozen=True)
class Work:
    """A point that is worked on now.

    Attributes:
        state: what is done to it: its process starts, it is prepared, or a turn is timed.
        comparison: the number of its comparison in the order of the sweep, from 1.
        turn: the number of the turn that is timed, from 1; of the first one until then.
    """

    point: Point
    state: State
    comparison: int
    turn: int


@dataclass(frozen=True)
class Compiling:
    """A point whose kernels are compiled now: how many are done of those that the cache lacks."""

    point: Point
    done: int
    kernels: int


@dataclass(frozen=True)
class Standing:
    """The progress of a sweep at one moment. Counts are of points.

    Attributes:
        comparisons: how many there are; closed: how many of them are over.
        points: how many there are.
        compiles: points of which kernels are compiled ahead; compiled: those for which that is over.
        tunes: points that time configurations of autotuners; tuned: those that have chosen.
        timed: points that have a time, provisional or final.
        refused: points that cannot run here; failed: other points that ended without a time.
        working, compiling: what is done now.
    """

    comparisons: int
    closed: int
    points: int
    compiles: int
    compiled: int
    tunes: int
    tuned: int
    timed: int
    refused: int
    failed: int
    working: tuple[Work, ...]
    compiling: tuple[Compiling, ...]


@dataclass
class Watched:
    """Everything that a sweep has taken on, from which its standing is read.

    Attributes:
        begun: comparisons in their order.
        compiling: points by ticket of the compile pool, with kernels that the cache lacks.
        ahead: points of which kernels are compiled ahead.
    """

    begun: list[ComparisonRun] = field(default_factory=list[ComparisonRun])
    compiling: dict[int, Compiling] = field(default_factory=dict[int, Compiling])
    ahead: list[PointRun] = field(default_factory=list[PointRun])

    def listed(self, ticket: int, point: Point, kernels: int) -> None:
        """Note how many kernels of a point are to be compiled."""
        if kernels:
            self.compiling[ticket] = Compiling(point, 0, kernels)

    def compiled(self, ticket: int) -> None:
        """Note that one kernel more of a point is compiled, or cannot be."""
        if known := self.compiling.get(ticket):
            self.compiling[ticket] = replace(known, done=min(known.done + 1, known.kernels))

    def standing(self, working: Iterable[tuple[ComparisonRun, PointRun]]) -> Standing:
        """Return where the sweep stands while these points are worked on."""
        runs = [run for begun in self.begun for run in begun.runs]
        tuners = [run for run in runs if run.alone and run.point.implementation.tunes]
        over = [run for run in runs if run.state == "over"]
        failed = sum(run.columns.get("status") != "unsupported" for run in over)
        numbers = {begun.id: number for number, begun in enumerate(self.begun, 1)}
        works = [Work(run.point, run.state, numbers[begun.id], len(run.turns) + 1) for begun, run in working]
        return Standing(
            comparisons=len(self.begun),
            closed=sum(begun.closed for begun in self.begun),
            points=len(runs),
            compiles=len(self.ahead),
            compiled=sum(run.state != "compiling" for run in self.ahead),
            tunes=len(tuners),
            tuned=sum(bool(run.columns.get("tuned")) for run in tuners),
            timed=sum(bool(run.turns) for run in runs),
            refused=len(over) - failed,
            failed=failed,
            working=tuple(works),
            compiling=tuple(self.compiling.values()),
        )
