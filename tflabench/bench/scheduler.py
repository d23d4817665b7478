"""The sweep itself: comparisons in their order on one GPU, while other cores compile what is to come.

One process drives. It hands jobs to worker processes and hears of kernels that the compile pool has finished. Jobs that
are not timed (build, first call, check, memory) may overlap; a job that is timed (a turn, and a first call that tunes)
has the GPU for itself. Within a comparison:

1. a point whose kernels are compiled is prepared; while others are not, it takes a brief turn for a provisional row;
2. where a point still compiles, the next comparisons go on meanwhile;
3. when all are prepared, they take turns in rounds until their medians agree; then the rows are final.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from tflabench.bench.comparison_run import ComparisonRun, PointRun, State
from tflabench.bench.protocol import Protocol
from tflabench.bench.standing import Standing, Watched
from tflabench.bench.tuning_store import TuningStore
from tflabench.bench.workers import Workers
from tflabench.selection.comparisons import Comparison
from tflabench.selection.points import Point

if TYPE_CHECKING:
    from tflabench.bench.precompile.pool import CompilePool

log = logging.getLogger("tflabench.bench")

AT_ONCE = 3  # preparations that overlap
ACTIVE = 4  # comparisons that are begun and not closed: each keeps a process for every point of a library that tunes
WAIT_S = 0.5
SHOWN_EVERY_S = 0.25  # what the sweep is at is told no more often
NAMES_IN_TURN = 2  # its kernels are looked at then: the first row comes sooner
SHARED = "shared"  # the slot of points that need no process of their own


@dataclass(frozen=True)
class Rules:
    """The rules by which a sweep measures.

    Attributes:
        device: "cuda" or "cpu".
        protocol: rounds and samples.
        timeout_s: for one job of a point.
        tune_s: for the autotuners of one point; None for every configuration.
        stop_at: time of `time.monotonic` from which on no point is begun.
    """

    device: str
    protocol: Protocol
    timeout_s: float
    tune_s: float | None = None
    stop_at: float = inf


class Scheduler:
    """Measures comparisons one after the other.

    Args:
        workers: the processes that measure.
        pool: compiles ahead; None where nothing is compiled, as on a CPU.
        tuning: choices of autotuners made before.
        on_point: called with a point whenever its row has changed.
        after_first: called once, when the first row is told and nothing else works; no job starts until it returns.
        watch: called with where the sweep stands, at most every `SHOWN_EVERY_S` seconds.
    """

    def __init__(
        self,
        rules: Rules,
        workers: Workers,
        pool: CompilePool | None,
        tuning: TuningStore,
        on_point: Callable[[ComparisonRun, PointRun], None],
        after_first: Callable[[], None] | None = None,
        watch: Callable[[Standing], None] | None = None,
    ) -> None:
        self.rules = rules
        self._workers = workers
        self._pool = pool
        self._tuning = tuning
        self._on_point = on_point
        self._after_first = after_first
        self._watch = watch
        self._watched, self._shown_at = Watched(), -inf
        self._waiting: deque[ComparisonRun] = deque()
        self._active: list[ComparisonRun] = []
        self._working: dict[str, tuple[ComparisonRun, PointRun]] = {}  # by slot
        self._tickets: dict[int, PointRun] = {}
        self._timed_out: list[Point] = []
        self._told_any = False
        self._short_of_memory = False  # from now on one comparison after the other

    def admit(self, comparisons: Iterable[Comparison]) -> None:
        """Take comparisons on, in their order; from now on their kernels are compiled."""
        for comparison in comparisons:
            self._admit(comparison)

    def run(self) -> None:
        """Measure until all comparisons are closed, or the time is up."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """Do the same, and yield after everything that happens, at least every `WAIT_S` seconds."""
        while self._waiting or self._active:
            self._advance()
            self._show()
            if not self._working and time.monotonic() >= self.rules.stop_at:
                return
            for slot, result in self._workers.wait(WAIT_S if self._working or self._compiling() else 0.0):
                self._received(slot, result)
            self._hear_pool()
            yield

    def _show(self) -> None:
        """Tell who watches where the sweep stands, unless they were told just now."""
        now = time.monotonic()
        if self._watch and now - self._shown_at >= SHOWN_EVERY_S:
            self._shown_at = now
            self._watch(self._watched.standing(self._working.values()))

    # --- Compiling

    def _admit(self, comparison: Comparison) -> None:
        runs: list[PointRun] = []
        for number, point in enumerate(comparison.points):
            impl = point.implementation
            on_gpu = self.rules.device == "cuda"
            slot = f"{impl.package}/{id(comparison)}/{number}" if impl.own_process and on_gpu else SHARED
            known = self._tuning.look_up(point, self.rules.tune_s) if impl.tunes and on_gpu else None
            run = PointRun(point, slot, alone=impl.tunes and on_gpu and known is None, known=known)
            runs.append(run)
            if reason := impl.refuses(point.problem, self.rules.device):
                run.fail("unsupported", reason)
            elif self._pool and impl.compiles:
                self._tickets[self._pool.submit(impl.name, point.problem)] = run
                self._watched.ahead.append(run)
            else:
                run.state = "ready"
        begun = ComparisonRun(comparison, runs, self.rules.protocol)
        self._waiting.append(begun)
        self._watched.begun.append(begun)

    def _compiling(self) -> bool:
        return bool(self._tickets)

    def _hear_pool(self) -> None:
        if self._pool is None:
            return
        from tflabench.bench.precompile.pool import Compiled, Finished, Listed

        for event in self._pool.poll():
            run = self._tickets.get(event.ticket)
            if run is None:
                continue
            log.debug("%s of %s", event, run.point.id)
            if isinstance(event, Listed):
                self._watched.listed(event.ticket, run.point, event.kernels - event.cached)
            elif isinstance(event, Compiled):
                self._watched.compiled(event.ticket)
                run.compile_s += event.cpu_seconds
                if event.failed and not run.point.implementation.tunes and run.state == "compiling":
                    run.failure = (
                        event.failed,
                        f"compiling {event.kernel}: {event.error}",
                    )  # nothing could run instead
            elif isinstance(event, Finished):
                del self._tickets[event.ticket]
                self._watched.compiling.pop(event.ticket, None)
                if run.state != "compiling":
                    continue
                run.state = "ready"
                log.debug("compiled %s: %s", run.point.id, event.reason or "all")
                if run.failure is not None:
                    begun = next(one for one in (*self._active, *self._waiting) if run in one.runs)
                    self._fail_compiling(begun, run)

    def _fail_compiling(self, begun: ComparisonRun, run: PointRun) -> None:
        """End a point of which a kernel cannot be compiled, as it would end if it were measured."""
        assert run.failure is not None
        run.fail(*run.failure)
        if begun in self._active:
            self._on_point(begun, run)

    # --- Whose turn it is

    def _advance(self) -> None:
        """Start every job that may start now."""
        if self._told_any and self._after_first and time.monotonic() < self.rules.stop_at:
            if self._working:
                return
            act, self._after_first = self._after_first, None
            act()
        while True:
            at_once = 1 if self._short_of_memory else ACTIVE
            while len(self._active) < at_once and self._waiting and self._may_begin():
                self._begin(self._waiting.popleft())
            if not self._start_one():
                return

    def _may_begin(self) -> bool:
        """Return whether the next comparison is due: those before it have nothing left to prepare."""
        ended = time.monotonic() >= self.rules.stop_at
        return not ended and not any(run.state == "ready" for begun in self._active for run in begun.runs)

    def _begin(self, begun: ComparisonRun) -> None:
        self._active.append(begun)
        for run in begun.runs:
            if run.state == "over":
                self._on_point(begun, run)

    def _start_one(self) -> bool:
        """Start one job; False where none can start now."""
        if any(_has_the_gpu(run) for _, run in self._working.values()):
            return False
        for begun in self._active[:1] if self._short_of_memory else list(self._active):
            if not begun.runs or all(run.state == "over" for run in begun.runs):
                self._close(begun)
                return True
            ready = [run for run in begun.runs if run.state == "ready"]
            if not self._told_any:
                ready = begun.leading(ready) or ([] if self._working else begun.leading_compiling())
            if first := [run for run in begun.runs if run.state == "prepared" and not run.turns and not begun.gathered]:
                return self._sample(begun, first[0], brief=True)
            if ready and time.monotonic() < self.rules.stop_at:
                return self._prepare_one(begun, ready)
            if begun.gathered and not any(one is begun for one, _ in self._working.values()):
                if (run := begun.next_turn()) is None:
                    self._close(begun)
                    return True
                return self._sample(begun, run)
            if begun.gathered or any(run.state in ("starting", "preparing") for run in begun.runs):
                return False  # its points come first
        return False

    def _prepare_one(self, begun: ComparisonRun, ready: Sequence[PointRun]) -> bool:
        at_once = AT_ONCE if self._told_any else 1  # the first row comes before anything else
        for run in ready:
            if self._workers.busy(run.slot) or len(self._working) >= at_once:
                continue
            if not self._workers.has(run.slot):
                self._give(begun, run, "starting", None)
                return True
            slower = next((of for of in self._timed_out if asks_no_less(run.point, of)), None)
            if slower is not None:
                run.fail(
                    "timeout", f"not tried: it took over {self.rules.timeout_s:g} s at T = {slower.problem.seq_len}"
                )
                self._on_point(begun, run)
                return True
            if run.alone and not self._clear_gpu(run):
                continue
            job: dict[str, Any] = {"kind": "prepare", "verify_s": self.rules.protocol.verify_s}
            job |= {"tune_s": self.rules.tune_s, "replay": run.known and run.known["choices"]}
            self._give(begun, run, "preparing", job)
            return True
        return False

    def _sample(self, begun: ComparisonRun, run: PointRun, *, brief: bool = False) -> bool:
        """Start a turn; nothing else may use the GPU."""
        if not self._clear_gpu(run):
            return False
        protocol = self.rules.protocol
        names = not brief and len(run.turns) + 1 == min(NAMES_IN_TURN, protocol.min_rounds)
        job = {"kind": "turn", "protocol": asdict(protocol.brief if brief else protocol), "names": names}
        self._give(begun, run, "sampling", job)
        return True

    def _clear_gpu(self, run: PointRun) -> bool:
        """Leave the GPU to a point; False where another process uses it for more than compiling, which can wait."""
        others = [slot for slot in self._working if slot != run.slot]
        if run.slot in self._working or not all(map(self._workers.compiles, others)):
            return False
        self._workers.pause(others)
        return True

    def _give(self, begun: ComparisonRun, run: PointRun, state: State, job: dict[str, Any] | None) -> None:
        point = run.point
        if job is not None:
            job |= {"implementation": point.implementation.name, "problem": asdict(point.problem)}
        run.state = state
        log.debug("%s %s, slot %s", state, point.id, run.slot)
        self._working[run.slot] = (begun, run)
        self._workers.send(run.slot, job, self.rules.timeout_s)

    # --- What comes back

    def _received(self, slot: str, result: dict[str, Any]) -> None:
        begun, run = self._working.pop(slot)
        if _has_the_gpu(run):
            self._workers.resume()
        log.debug("%s of %s is over: %s", run.state, run.point.id, result.get("seconds", result["status"]))
        if run.state == "starting" and result["status"] == "ok":
            run.state = "ready"
            return
        if result["status"] == "oom" and self._may_have_more_memory(begun, run):
            begun.prepare_again(run)
            run.alone = True
            return
        if run.state in ("starting", "preparing"):
            if result["status"] == "timeout":
                self._timed_out.append(run.point)
            run.prepared(result)
            if run.state == "prepared" and run.columns.get("tuned"):
                self._tuning.keep(run.point, run.columns["tuned"], self.rules.tune_s)
        else:
            run.sampled(result)
        if run.state == "over" or (run.turns and not run.told):
            self._told_any = run.told = True
            self._on_point(begun, run)

    def _may_have_more_memory(self, begun: ComparisonRun, run: PointRun) -> bool:
        """Make room for a point that is out of memory; return whether others held some while it was tried.

        Others are jobs in work, and processes that wait for the rounds of other comparisons. Comparisons before this
        one close first. The processes of those behind it end, and their points are prepared again in their turn.
        """
        place = self._active.index(begun)
        idle = [
            (other, waiting)
            for other in (*self._active[:place], *self._active[place + 1 :])
            for waiting in other.runs
            if waiting.slot != SHARED and self._workers.has(waiting.slot) and not self._workers.busy(waiting.slot)
        ]
        if idle:
            self._short_of_memory = True
        for other, waiting in idle:
            if other in self._active[place + 1 :]:
                self._workers.end(waiting.slot)
                if waiting.state != "over":
                    waiting.known = waiting.columns.get("tuned") or waiting.known
                    other.prepare_again(waiting)
        return bool(idle or (self._working and not run.alone))

    def _close(self, begun: ComparisonRun) -> None:
        begun.closed = True
        self._active.remove(begun)
        for run in begun.runs:
            if run.slot != SHARED:
                self._workers.end(run.slot)
            self._on_point(begun, run)


def _has_the_gpu(run: PointRun) -> bool:
    """Return whether the point in work is being timed, so that nothing else may use the GPU."""
    return run.state == "sampling" or (run.alone and run.state == "preparing")


def asks_no_less(point: Point, of: Point) -> bool:
    """Return whether a point differs only by its size, and has at least as many steps a sequence and in all.

    Other head dimensions, dtypes and chunk sizes are other kernels, and shorter sequences may be faster.
    """
    this, that = point.problem, of.problem
    alike = this.with_(batch=that.batch, heads=that.heads, seq_len=that.seq_len, seed=that.seed) == that
    no_smaller = this.seq_len >= that.seq_len and this.tokens * this.heads >= that.tokens * that.heads
    return point.implementation == of.implementation and alike and no_smaller
