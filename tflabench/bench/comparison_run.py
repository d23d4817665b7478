"""One comparison while it is measured: what each of its points has had, and whose turn it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median
from typing import Any, Literal
from uuid import uuid4

from tflabench.bench.answers import changed
from tflabench.bench.events import Task
from tflabench.bench.protocol import Protocol
from tflabench.bench.timing import Turn, columns_of, noisy, remembers, settled
from tflabench.selection.points import Point

State = Literal["compiling", "ready", "starting", "preparing", "prepared", "sampling", "over"]
Columns = dict[str, Any]
LATE = "late"  # refused for a reason that only the device or the library could tell


@dataclass
class PointRun:
    """One point of a comparison.

    Attributes:
        slot: names the process that it runs in.
        alone: whether nothing else may use the GPU in its first call: it tunes, or memory was too small for two.
        tuned_before: what its autotuners chose before, as the column `tuned`; None where that is not known.
        state: "over" is where it has failed; a point that runs is "prepared" between its turns.
        columns: what its preparation, or its failure, says of its row.
        turns: what it has sampled: in the rounds of all, or before these a brief turn for the provisional row.
        has_row: whether its provisional row is written.
        short_of_memory: whether it was out of memory before: points that are warmed up then give way to its turns.
    """

    point: Point
    slot: str
    alone: bool
    tuned_before: Columns | None = None
    state: State = "compiling"
    columns: Columns = field(default_factory=dict[str, Any])
    turns: list[Turn] = field(default_factory=list[Turn])
    clocks: list[float] = field(default_factory=list[float])
    throttled_turns: list[bool] = field(default_factory=list[bool])
    throttle_reasons: set[str] = field(default_factory=set[str])
    compile_s: float = 0.0
    measure_s: float = 0.0
    digest: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    has_row: bool = False
    short_of_memory: bool = False
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def doing(self) -> str:
        """Return what is done to it, in a word for those who watch."""
        if self.state == "preparing" and self.alone and self.point.implementation.tunes:
            return "tuning"
        return "timing" if self.state == "sampling" else self.state

    @property
    def throttled(self) -> bool | None:
        """Return whether the GPU held its clock back in most of its turns; None where it did not tell."""
        return 2 * sum(self.throttled_turns) > len(self.throttled_turns) if self.throttled_turns else None

    def fail(self, status: str, reason: str | None) -> None:
        """End it without a time."""
        self.state = "over"
        self.turns.clear()
        self.columns |= {"status": status, "reason": reason}

    def prepared(self, result: Columns) -> None:
        """Take what the worker says after its preparation."""
        if "digest" not in result:
            self.fail(result["status"], result["reason"])
            self.columns["details"] = {"refused": LATE} if result["status"] == "unsupported" else {}
            return
        self.digest = result.pop("digest")
        self.columns |= result
        if self.tuned_before and result.get("tuned", {}).get("choices") == self.tuned_before["choices"]:
            self.columns["tuned"] = self.tuned_before
        self.state = "prepared"

    def begin_rounds(self) -> None:
        """Forget what was sampled before the rounds of all: it is of another time."""
        self.turns.clear()
        self.clocks.clear()
        self.throttle_reasons.clear()
        self.throttled_turns.clear()

    def sampled(self, result: Columns) -> None:
        """Take what the worker says after a turn."""
        if result["status"] != "ok":
            self.fail(result["status"], result["reason"])
            return
        self.state = "prepared"
        self.turns.append(Turn(**result["turn"]))
        self.measure_s += result["seconds"]
        columns = result.get("columns", {})
        self.columns["details"] |= {name: columns.pop(name) for name in ("times", "untimed") if name in columns}
        self.columns |= columns
        if result["sm_clock_mhz"]:
            self.clocks.append(result["sm_clock_mhz"])
        if result["throttled"] is not None:
            self.throttled_turns.append(result["throttled"])
        self.throttle_reasons |= set(result["throttle_reasons"])
        differs = changed(self.digest, result["digest"], self.columns["details"]["allowed"])
        if reason := differs or remembers(self.turns):
            self.columns |= {"status": "wrong", "reason": self.columns.get("reason") or reason}

    def row_columns(self) -> Columns:
        """Return what is known of its row so far."""
        columns = {**self.columns, "details": dict(self.columns.get("details", {}))}
        columns["compile_s"] = self.compile_s + columns.get("compile_s", 0.0)
        if not self.turns:
            return columns
        columns |= columns_of(self.turns)
        columns |= {"measure_s": self.measure_s, "throttled": self.throttled}
        columns["sm_clock_mhz"] = median(self.clocks) if self.clocks else None
        columns["details"]["ms_by_round"] = [turn.ms for turn in self.turns]
        if self.throttle_reasons:
            columns["details"]["throttle_reasons"] = sorted(self.throttle_reasons)
        return columns


@dataclass
class ComparisonRun:
    """The comparison of a task and its points, whose turns alternate.

    Attributes:
        id: of this occasion.
        closed: whether it has ended as intended.
        in_rounds: whether the rounds of all have begun.
    """

    task: Task
    runs: list[PointRun]
    protocol: Protocol
    id: str = field(default_factory=lambda: uuid4().hex[:12])
    closed: bool = False
    in_rounds: bool = False
    _due: list[PointRun] = field(default_factory=list[PointRun])

    @property
    def alive(self) -> list[PointRun]:
        """Points that have not failed."""
        return [run for run in self.runs if run.state != "over"]

    @property
    def gathered(self) -> bool:
        """Return whether every point is prepared or has failed, so that all take part in the rounds to come."""
        return all(run.state in ("prepared", "sampling", "over") for run in self.runs)

    def leading(self, ready: list[PointRun]) -> list[PointRun]:
        """Return those of `ready` that are of the first point's family, or all where none of that is alive."""
        family = self.runs[0].point.implementation.family
        if any(run.point.implementation.family == family for run in self.alive):
            return [run for run in ready if run.point.implementation.family == family]
        return ready

    def leading_compiling(self) -> list[PointRun]:
        """Return the first point that is still compiling: the very first row does not wait for the warm-up."""
        return [run for run in self.leading(self.runs) if run.state == "compiling" and not run.alone][:1]

    def prepare_again(self, run: PointRun) -> None:
        """Begin a point anew; rounds that have begun start over for all."""
        run.begin_rounds()
        run.state = "ready"
        self._due, self.in_rounds = [], False

    def noisy(self, run: PointRun) -> bool | None:
        """Return whether a point is noisy; None while the comparison is open."""
        if not (self.closed and run.turns):
            return None
        return noisy(run.turns)

    def _others(self, run: PointRun) -> list[list[Turn]]:
        """Return the turns of other implementations."""
        name = run.point.implementation.name
        return [other.turns for other in self.runs if other.turns and other.point.implementation.name != name]

    def next_turn(self) -> PointRun | None:
        """Return the point whose turn it is in the rounds of all; None, and `closed`, where no round is needed."""
        if not self._due:
            self._open_round()
        self._due = [run for run in self._due if run.state != "over"]
        if self._due:
            return self._due[0]
        self.closed = True
        return None

    def begin_turn(self, run: PointRun) -> None:
        """Take note that the point whose turn it is in the rounds of all has the GPU now."""
        self._due.remove(run)

    def _open_round(self) -> None:
        alive = self.alive
        if not self.in_rounds:
            self.in_rounds = True
            for run in alive:
                run.begin_rounds()
        for run in alive:  # no ratio uses a throttled time, however well it is known
            few = len(run.turns) < self.protocol.min_rounds
            if few or not (run.throttled or settled(run.turns, self._others(run), self.protocol)):
                self._due = alive
