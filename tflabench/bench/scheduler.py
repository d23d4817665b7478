"""The order of work on one GPU: comparisons one after the other, while points to come are warmed up.

One process drives. It hands jobs to worker processes and hears which points are warm: their kernels are compiled. Jobs
that are not timed (build, first call, check, memory) may overlap; a job that is timed (a turn, and a first call that
tunes) has the GPU for itself. Within a comparison:

1. points that are warm are prepared, and beside them those of the next comparisons;
2. where nothing more can be prepared yet, these take a brief turn each for a provisional row;
3. when all are prepared, they take turns in rounds until their medians agree; then the rows are final. Nothing else
   begins meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from tflabench.bench.comparison_run import ComparisonRun, PointRun, State
from tflabench.bench.estimate import CONTEXT_BYTES, first_call_bytes
from tflabench.bench.events import Activity, Task, Work
from tflabench.bench.protocol import Rules
from tflabench.bench.tuning import TuningStore
from tflabench.bench.warm import WarmUp
from tflabench.bench.workers import SHARED, Workers
from tflabench.problem import DeviceKind
from tflabench.selection.points import Point

log = logging.getLogger("tflabench.bench")

AT_ONCE = 6  # preparations that overlap
ACTIVE = 4  # comparisons that are begun and not closed: each keeps a process for every point of a library that tunes
PROCESSES = 48  # of active comparisons: each takes memory of the host, too
NAMES_IN_TURN = 2  # its kernels are looked at then: the first row comes sooner


class Scheduler:
    """Measures the comparisons of tasks, one after the other.

    Args:
        device: "cuda" or "cpu".
        memory_bytes: of the device. Preparations, and processes that wait for their turns, are held below half of it;
            the warm-up has the other half.
        workers: the processes that measure.
        warm_up: makes first calls before; None where nothing is compiled, as on a CPU.
        tuning: choices of autotuners made before.
        on_point: called with a point whenever its row has changed.
        on_end: called with a task when nothing more comes of it: its comparison is closed, or the time is up.
        clock: tells the time as `rules.stop_at` has it.
    """

    def __init__(
        self,
        device: DeviceKind,
        memory_bytes: int,
        rules: Rules,
        workers: Workers,
        warm_up: WarmUp | None,
        tuning: TuningStore,
        on_point: Callable[[ComparisonRun, PointRun], None],
        on_end: Callable[[Task], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._device, self._memory_bytes, self._rules = device, memory_bytes, rules
        self._workers, self._warm_up, self._tuning = workers, warm_up, tuning
        self._on_point, self._on_end, self._clock = on_point, on_end, clock
        self._waiting: deque[ComparisonRun] = deque()
        self._active: list[ComparisonRun] = []
        self._working: dict[str, tuple[ComparisonRun, PointRun]] = {}  # by slot
        self._tickets: dict[int, PointRun] = {}
        self._timed_out: list[Point] = []
        self._any_row = False
        self._last_has_begun = False  # whether a comparison has gone into its rounds after the time was up
        self._short_of_memory: ComparisonRun | None = None  # until it is closed, one comparison after the other

    @property
    def idle(self) -> bool:
        """Return whether no worker has a job."""
        return not self._working

    @property
    def activity(self) -> Activity:
        """Return what is worked on, and what is compiled."""
        works = [Work(run.point, run.doing, of.task.number, len(run.turns) + 1) for of, run in self._working.values()]
        return Activity(tuple(works), self._warm_up.at_work if self._warm_up else ())

    def advance(self) -> None:
        """Start every job that may start now; once the time is up and nothing works, leave what is not measured.

        Rounds under way are finished then. One of the comparisons that are prepared and wait still has its rounds.
        """
        while True:
            at_once = 1 if self._short_of_memory else ACTIVE
            while len(self._active) < at_once and self._waiting and not self._time_is_up():
                self._begin(self._waiting.popleft())
            if not self._start_one():
                break
        if not self._gpu_is_taken:
            self._workers.resume()
            if self._warm_up:
                self._warm_up.resume()
        if self.idle and self._time_is_up():
            self._leave_the_rest()

    def receive(self, timeout_s: float) -> None:
        """Take in results, and points that are warm; wait at most `timeout_s` seconds for the first result."""
        if self._working or self._tickets:
            for slot, result in self._workers.wait(timeout_s):
                self._received(slot, result)
        self._hear_warm_up()

    def _time_is_up(self) -> bool:
        return self._clock() >= self._rules.stop_at

    def _leave_the_rest(self) -> None:
        for begun in (*self._active, *self._waiting):
            self._end_processes(begun)
            self._on_end(begun.task)
        for left in (self._active, self._waiting, self._tickets):
            left.clear()

    # --- Warming up

    def admit(self, task: Task) -> None:
        """Take the comparison of a task on; from now on its points are warmed up."""
        runs: list[PointRun] = []
        for number, point in enumerate(task.comparison.points):
            impl = point.implementation
            on_gpu = self._device == "cuda"
            slot = f"{impl.package}/{id(task)}/{number}" if impl.own_process and on_gpu else SHARED
            tuned_before = self._tuning.look_up(point, self._rules.tune_s) if impl.tunes and on_gpu else None
            run = PointRun(point, slot, alone=impl.tunes and on_gpu and tuned_before is None, tuned_before=tuned_before)
            runs.append(run)
            if reason := impl.refuses(point.problem, self._device):
                run.fail("unsupported", reason)
            elif self._warm_up and impl.compiles:
                self._tickets[self._warm_up.submit(point, tuned_before and tuned_before["choices"])] = run
            else:
                run.state = "ready"
        self._waiting.append(ComparisonRun(task, runs, self._rules.protocol))

    def _hear_warm_up(self) -> None:
        for warmed in self._warm_up.poll() if self._warm_up else ():
            run = self._tickets.pop(warmed.ticket, None)
            if run is None:
                continue
            log.debug("%s of %s", warmed, run.point.id)
            run.compile_s += warmed.cpu_seconds
            if run.state != "compiling":  # it was not waited for
                continue
            run.state = "ready"
            # Nothing is in place of a kernel that cannot be compiled, unless it is one of a tuner's.
            if warmed.status in ("crashed", "timeout", "compile_error") and not run.point.implementation.tunes:
                begun = next(other for other in (*self._active, *self._waiting) if run in other.runs)
                run.fail(warmed.status, warmed.reason)
                if begun in self._active:
                    self._on_point(begun, run)

    # --- Whose turn it is

    def _begin(self, begun: ComparisonRun) -> None:
        self._active.append(begun)
        for run in begun.runs:
            if run.state == "over":
                self._on_point(begun, run)

    def _start_one(self) -> bool:
        """Start one job; False where none can start now."""
        if self._gpu_is_taken:
            return False
        # The first rule that applies to a comparison decides whether something has started.
        for rule in (self._close_if_all_failed, self._take_turn, self._prepare_next, self._take_brief_turn):
            for begun in self._active[:1] if self._short_of_memory else list(self._active):
                if (started := rule(begun)) is not None:
                    return started
        return False

    @property
    def _gpu_is_taken(self) -> bool:
        """Return whether a point in work is timed or tuned, or needs all memory: nothing else may use the GPU then."""

        def takes_it(run: PointRun) -> bool:
            alone = run.alone and (run.short_of_memory or self._workers.pausable(run.slot))
            return run.state == "sampling" or (run.state == "preparing" and alone)

        return any(takes_it(run) for _, run in self._working.values())

    def _close_if_all_failed(self, begun: ComparisonRun) -> bool | None:
        if begun.alive:
            return None
        self._close(begun)
        return True

    def _take_turn(self, begun: ComparisonRun) -> bool | None:
        """Go on with the rounds of all, or close the comparison where no further one is needed."""
        if not begun.gathered:
            return None
        if self._time_is_up() and not begun.in_rounds:
            if self._last_has_begun:
                return None
            self._last_has_begun = True
        if (run := begun.next_turn()) is None:
            self._close(begun)
            return True
        if not self._sample(begun, run):
            return False
        begun.begin_turn(run)
        return True

    def _prepare_next(self, begun: ComparisonRun) -> bool | None:
        """Prepare a point that is compiled; of the very first row, one of the first point's family, and no more."""
        ready = [run for run in begun.runs if run.state == "ready"]
        if not self._any_row:
            if any(run.state == "prepared" for other in self._active for run in other.runs):
                return None
            ready = begun.leading(ready) or ([] if self._working else begun.leading_compiling())
        if not ready or self._time_is_up():
            return None
        return self._prepare_one(begun, ready)

    def _take_brief_turn(self, begun: ComparisonRun) -> bool | None:
        """Time a prepared point for its provisional row while nothing else can be done."""
        if begun.gathered:
            return None
        first = next((run for run in begun.runs if run.state == "prepared" and not run.turns), None)
        return first and self._sample(begun, first, brief=True)

    def _prepare_one(self, begun: ComparisonRun, ready: Sequence[PointRun]) -> bool | None:
        waits = False
        for run in ready:
            if not self._may_overlap(begun, run):
                return False if self._working else None
            if self._workers.busy(run.slot):
                continue
            if not self._workers.has(run.slot):
                self._give(begun, run, "starting", None)
                return True
            slower = next((of for of in self._timed_out if asks_no_less(run.point, of)), None)
            if slower is not None:
                limit = f"{self._rules.timeout_s:g} s at T = {slower.problem.seq_len}"
                run.fail("timeout", f"not tried: it took over {limit}")
                self._on_point(begun, run)
                return True
            if run.alone and not self._clear_gpu(run):
                waits = True
                continue
            job: dict[str, Any] = {"kind": "prepare", "verify_s": self._rules.protocol.verify_s}
            job |= {"tune_s": self._rules.tune_s, "replay": run.tuned_before and run.tuned_before["choices"]}
            self._give(begun, run, "preparing", job)
            return True
        return False if waits else None

    def _may_overlap(self, begun: ComparisonRun, run: PointRun) -> bool:
        """Return whether a point may be prepared beside what is at work, and beside processes that wait."""
        if begun is self._active[0] and not self._working:
            return True
        if len(self._working) >= (AT_ONCE if self._any_row else 1):  # the first row comes before anything else
            return False
        slots = {of.slot for each in self._active for of in each.runs if self._workers.has(of.slot)} - {SHARED}
        idle = slots - self._working.keys() - {run.slot}
        at_work = [run, *(of for _, of in self._working.values())]
        held = CONTEXT_BYTES * len(idle) + sum(first_call_bytes(of.point) for of in at_work)
        return len(slots) < PROCESSES and held <= self._memory_bytes // 2

    def _sample(self, begun: ComparisonRun, run: PointRun, *, brief: bool = False) -> bool:
        """Start a turn; nothing else may use the GPU."""
        if not self._clear_gpu(run):
            return False
        protocol = self._rules.protocol
        names = not brief and len(run.turns) + 1 == min(NAMES_IN_TURN, protocol.min_rounds)
        job = {"kind": "turn", "protocol": asdict(protocol.brief if brief else protocol), "names": names}
        self._give(begun, run, "sampling", job)
        return True

    def _clear_gpu(self, run: PointRun) -> bool:
        """Leave the GPU to a point; False where another process has more to do there than can be paused."""
        others = [slot for slot in self._working if slot != run.slot]
        if run.slot in self._working or not all(map(self._workers.pausable, others)):
            return False
        if run.short_of_memory and others:  # paused, they would keep theirs
            return False
        self._workers.pause(others)
        if self._warm_up:
            self._warm_up.pause()
            if run.short_of_memory:
                self._warm_up.give_way()
        return True

    def _give(self, begun: ComparisonRun, run: PointRun, state: State, job: dict[str, Any] | None) -> None:
        point = run.point
        if job is not None:
            job |= {"implementation": point.implementation.name, "problem": asdict(point.problem)}
        run.state = state
        log.debug("%s %s, slot %s", state, point.id, run.slot)
        self._working[run.slot] = (begun, run)
        self._workers.send(run.slot, job, self._rules.timeout_s)

    # --- What comes back

    def _received(self, slot: str, result: dict[str, Any]) -> None:
        begun, run = self._working.pop(slot)
        log.debug("%s of %s is over: %s", run.state, run.point.id, result.get("seconds", result["status"]))
        if run.state == "starting" and result["status"] == "ok":
            run.state = "ready"
            return
        if result["status"] == "oom" and self._may_have_more_memory(begun, run):
            begun.prepare_again(run)
            run.alone = True
            if run.slot != SHARED:  # its autotuners would keep what they chose, and not say it again
                self._workers.end_all([run.slot])
            return
        if run.state in ("starting", "preparing"):
            if result["status"] == "timeout" and run.state == "preparing":
                self._timed_out.append(run.point)
            run.prepared(result)
            if run.state == "prepared" and run.columns.get("tuned"):
                self._tuning.keep(run.point, run.columns["tuned"], self._rules.tune_s)
        else:
            run.sampled(result)
        if run.state == "over" or (run.turns and not run.has_row):
            self._any_row = run.has_row = True
            self._on_point(begun, run)

    def _may_have_more_memory(self, begun: ComparisonRun, run: PointRun) -> bool:
        """Make room for a point that is out of memory; return whether others held some while it was tried.

        Others are jobs in work, points that are warmed up, and processes that wait for the rounds of other comparisons.
        Comparisons before this one close first. The processes of those behind it end, and their points are prepared
        again in their turn.
        """
        place = self._active.index(begun)
        idle = [
            (other, waiting)
            for other in (*self._active[:place], *self._active[place + 1 :])
            for waiting in other.runs
            if waiting.slot != SHARED and self._workers.has(waiting.slot) and waiting.slot not in self._working
        ]
        if idle:
            self._short_of_memory = begun
        later = [(other, waiting) for other, waiting in idle if other in self._active[place + 1 :]]
        self._workers.end_all(waiting.slot for _, waiting in later)
        for other, waiting in later:
            if waiting.state != "over":
                waiting.tuned_before = waiting.columns.get("tuned") or waiting.tuned_before
                other.prepare_again(waiting)
        beside, run.short_of_memory = (
            self._warm_up is not None and not run.short_of_memory and self._warm_up.give_way(),
            True,
        )
        return bool(beside or idle or self._working)

    def _close(self, begun: ComparisonRun) -> None:
        begun.closed = True
        self._active.remove(begun)
        if begun is self._short_of_memory:
            self._short_of_memory = None
        self._end_processes(begun)
        for run in begun.runs:
            self._on_point(begun, run)
        self._on_end(begun.task)

    def _end_processes(self, begun: ComparisonRun) -> None:
        for run in begun.runs:
            if run.slot != SHARED:
                self._workers.end(run.slot)


def asks_no_less(point: Point, of: Point) -> bool:
    """Return whether a point differs only by its size, and has at least as many steps a sequence and in all.

    Other head dimensions, dtypes and chunk sizes are other kernels, and shorter sequences may be faster.
    """
    this, that = point.problem, of.problem
    heads = {"heads": that.heads, "heads_qk": that.heads_qk}
    alike = this.with_(batch=that.batch, seq_len=that.seq_len, seed=that.seed, **heads) == that
    no_smaller = this.seq_len >= that.seq_len and this.tokens * this.heads >= that.tokens * that.heads
    return point.implementation == of.implementation and alike and no_smaller
