"""Warms points up: other processes make their first, untimed calls side by side, which fills Triton's cache.

They stand still while a point is timed; threads that compile go on. Each worker is asked to stand, and comes to a gate
with nothing left to do for the GPU; one that does not come in time is stopped. None of them is ever measured, and they
share no lock with what is. docs/decisions/2026-11-27-warm-up.md says why it is done so, and what else was tried.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import count

from tflabench.bench.estimate import CONTEXT_BYTES, first_call_bytes
from tflabench.bench.tuning import Config
from tflabench.bench.warming import WarmUpGate
from tflabench.bench.workers import Workers
from tflabench.problem import Problem
from tflabench.selection.points import Point

ACK_S = 0.1  # until every worker has come to the gate, or is stopped
BREATH_S = 0.05  # so long they go on between two points that are timed ...
BREATH_EVERY_S = 0.7  # ... where they have been paused for this long: they find more to compile then
# A pause ends for a moment after this part of a job's time limit, which no turn and hardly a tuner takes: whatever a
# stopped worker might hold that something waits for, it can give back in time.
LONGEST_PAUSE = 1 / 3
RELEASE_S = 0.5
CACHED_S = 20.0  # CPU seconds that a job takes at most whose kernels lie in the cache


@dataclass(frozen=True)
class Warmed:
    """The end of a warm-up: the status and reason of the first call, and the CPU seconds that it took."""

    ticket: int
    status: str
    reason: str | None
    cpu_seconds: float


@dataclass(frozen=True)
class _Job:
    ticket: int
    point: Point
    replay: Mapping[str, Config] | None

    @cached_property
    def kernels(self) -> tuple[str, Problem]:
        """Return what the kernels of both passes depend on in most libraries: heads, but no steps and sequences."""
        alike = self.point.problem.with_(batch=1, seq_len=1, seed=0, pass_="fw")
        return self.point.implementation.name, alike


class WarmUp:
    """Warms up points in their order until it is closed.

    Args:
        most: workers at a time.
        gate: what the workers stand at while they are paused.
        workers: its slots are "distribution/number".
        memory_bytes: of the GPU; all jobs together are held below half of it, but for a single one.
        timeout_s: for one job, pauses not counted.
        clock: tells the time in seconds.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        most: int,
        gate: WarmUpGate,
        workers: Workers,
        memory_bytes: int,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._most, self._gate, self._workers, self._timeout_s = most, gate, workers, timeout_s
        self._budget = memory_bytes // 2
        self._clock, self._sleep = clock, sleep
        self._tickets, self._numbers = count(1), count(1)
        self._waiting: deque[_Job] = deque()
        self._working: dict[str, _Job] = {}  # by slot
        self._idle: list[str] = []  # slots, the longest idle first
        self._ended: list[Warmed] = []
        self._compiled: set[tuple[tuple[str, Problem], str]] = set()  # kernels, and the pass
        self._compile_anew: set[str] = set()  # implementations that do for each size
        self._paused_at: float | None = None

    @property
    def at_work(self) -> tuple[Point, ...]:
        """Return the points that are warmed up now."""
        return tuple(job.point for job in self._working.values())

    def submit(self, point: Point, replay: Mapping[str, Config] | None = None) -> int:
        """Add a point behind all others and return its ticket.

        Args:
            replay: what its autotuners chose before: nothing else is compiled.
        """
        job = _Job(next(self._tickets), point, replay)
        self._waiting.append(job)
        self._hand_out()
        return job.ticket

    def poll(self) -> list[Warmed]:
        """Return what has ended since the last call."""
        self._hear(0.0)
        if self._paused_at is not None and self._clock() - self._paused_at > LONGEST_PAUSE * self._timeout_s:
            self._let_go_for(RELEASE_S)
            self.pause()
        self._hand_out()
        ended, self._ended = self._ended, []
        return ended

    def pause(self) -> None:
        """Leave the GPU alone until `resume`; where this is so already, go on for a moment if that was long ago."""
        if self._paused_at is not None:
            if not self._working or self._clock() - self._paused_at < BREATH_EVERY_S:
                return
            self._let_go_for(BREATH_S)
        self._gate.shut()
        self._hear(0.0)
        self._workers.ask_to_stand(self._working)
        deadline = self._clock() + ACK_S
        while self._late() and (left := deadline - self._clock()) > 0:
            self._hear(left)
        late = self._late()
        self._workers.pause(self._working, standing=self._working.keys() - late)
        self._paused_at = self._clock()

    def resume(self) -> None:
        """Go on; nothing happens where it is not paused."""
        if self._paused_at is not None:
            self._paused_at = None
            self._gate.open()
            self._workers.resume()

    def give_way(self) -> bool:
        """Give all memory of the GPU back, for a point that is short of it; return whether there was any.

        What was at work begins anew later, with fewer at a time.
        """
        held = [*self._working, *self._idle]
        self._workers.end_all(held)
        self._waiting.extendleft(reversed(self._working.values()))
        self._working.clear()
        self._idle.clear()
        if held:
            self._budget //= 2
        return bool(held)

    def close(self) -> None:
        """End every worker."""
        self._workers.close()
        self._gate.close()

    def _late(self) -> set[str]:
        return {slot for slot in self._working if not self._workers.stands(slot)}

    def _let_go_for(self, seconds: float) -> None:
        self.resume()
        self._sleep(seconds)
        self._hear(0.0)
        self._hand_out()

    def _hear(self, timeout_s: float) -> None:
        if not self._working:
            return
        for slot, result in self._workers.wait(timeout_s):
            job = self._working.pop(slot)
            if self._workers.has(slot):
                self._idle.append(slot)
            seconds, compiled = result.get("cpu_seconds", 0.0), (job.kernels, job.point.problem.pass_)
            if compiled in self._compiled and seconds > CACHED_S:
                self._compile_anew.add(job.point.implementation.name)
            self._compiled.add(compiled)
            self._ended.append(Warmed(job.ticket, result["status"], result["reason"], seconds))

    def _hand_out(self) -> None:
        if self._paused_at is not None:
            return
        for job in list(self._waiting):
            if len(self._working) >= self._most:
                return
            alike = any(job.kernels == other.kernels for other in self._working.values())
            if alike and job.point.implementation.name not in self._compile_anew:
                continue  # it finds in the cache what the other one compiles
            held = sum(first_call_bytes(other.point) for other in self._working.values())
            held += CONTEXT_BYTES * len(self._idle)
            if self._working and held + first_call_bytes(job.point) > self._budget:
                return  # in their order
            self._waiting.remove(job)
            self._begin(job)

    def _begin(self, job: _Job) -> None:
        implementation = job.point.implementation
        slot = next((idle for idle in self._idle if idle.rpartition("/")[0] == implementation.package), None)
        if slot is not None:
            self._idle.remove(slot)
        else:
            if self._idle and len(self._working) + len(self._idle) >= self._most:
                self._workers.end(self._idle.pop(0))
            slot = f"{implementation.package}/{next(self._numbers)}"
        self._working[slot] = job
        sent = {"kind": "warm", "implementation": implementation.name, "problem": asdict(job.point.problem.part)}
        self._workers.send(slot, sent | {"replay": job.replay}, self._timeout_s)
