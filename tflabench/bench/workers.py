"""The worker processes of a sweep: one for what needs no process of its own, and one for each point that does.

A worker gets a job as a dict and answers {"stage": ...} while it works and then one {"result": ...}. A result that
never comes is {"status": "crashed" or "timeout", "reason": ...}.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import inf
from multiprocessing.connection import wait
from typing import Any

from tflabench.bench.child import GRACE_S, Child
from tflabench.problem import InputError

WORKER = "tflabench.bench.worker"
SHARED = "shared"  # the slot of what needs no process of its own
STARTING = "starting"  # what a process does until it says so itself
BEFORE_RESULTS = (STARTING, "building", "compiling")  # until it has made the first call of a job
PAUSE_S = 0.05  # until the GPU has done what a paused process had enqueued
WAIT_S = 1.0  # between looks at the clock
START_S = 300.0  # until a process has imported what it needs and has its device
# Threads that wait for each other sleep instead of spinning: where another program wants a core too, a spinning thread
# keeps out the very one it waits for, and a millisecond of work takes a scheduler's slice of 8 (seen on 2 cores).
# Autotuners keep no choices of their own on disk: they would be those of another shape.
VARIABLES = {"OMP_WAIT_POLICY": "PASSIVE", "FLA_CACHE_RESULTS": "0", "TRITON_CACHE_AUTOTUNING": "0"}

Job = dict[str, Any]
Result = dict[str, Any]


def require_torch() -> None:
    """Raise InputError where torch is not installed."""
    if find_spec("torch") is None:
        raise InputError("measuring needs torch, which is not installed: pip install 'tflabench[gpu]' or '[cpu]'")


def spawn_worker(device: str, plugins: Sequence[str] = (), memory_limit: int | None = None) -> Child:
    """Start a worker process.

    Args:
        device: "cuda" or "cpu".
        plugins: as `registry.plug_in` takes them.
        memory_limit: bytes of host memory a job may allocate; None for no limit.
    """
    variables = {name: os.environ.get(name, value) for name, value in VARIABLES.items()}
    settings = {"device": device, "plugins": list(plugins), "memory_limit": memory_limit}
    return Child.spawn(WORKER, json.dumps(settings), variables=variables)


def one_worker(device: str, plugins: Sequence[str] = (), memory_limit: int | None = None) -> closing[Workers]:
    """Return a worker to `ask` within a `with` block; it starts when needed, and again after what broke it.

    Raises:
        InputError: torch is not installed.
    """
    require_torch()
    return closing(Workers(lambda slot: spawn_worker(device, plugins, memory_limit)))


@dataclass
class _Worker:
    """A worker process and what it does.

    Attributes:
        busy: whether a result is due; `job` waits until the process has started.
        facts: what it said of its device when it started; empty until then.
        stage: what it said last that it does.
        paused_at: since when it is paused.
        stands: whether it has come to its gate since it was asked to.
    """

    child: Child
    busy: bool = False
    job: Job | None = None
    timeout_s: float = 0.0
    deadline: float = inf
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    stage: str = STARTING
    paused_at: float | None = None
    stands: bool = False

    def received(self) -> Result | None:
        """Read what there is, waiting for something; return the result if it was the last of it."""
        try:
            while True:
                message = self.child.pipe.recv()
                if "stands" in message:
                    self.stands = True
                elif "stage" in message:
                    self.stage = message["stage"]
                    self.child.pid = message.get("pid", self.child.pid)
                elif self.facts or "status" in message["result"]:
                    return message["result"]
                else:
                    self.facts = message["result"]
                    if self.busy and self.job is None:
                        return {"status": "ok", "restart": False}
                    self.hand_over()
                if not self.child.pipe.poll():
                    return None
        except (EOFError, OSError):
            end, last = self.child.last_words()
            reason = f"the worker died ({end}) while {self.stage}" + (f": {last}" if last else "")
            return {"status": "crashed", "reason": reason}

    def hand_over(self) -> None:
        """Send the job that waits, if the process has started."""
        if self.facts and self.job is not None:
            self.child.send(self.job)
            self.job = None


class Workers:
    """Worker processes by slot, each started with its first job and ended with `end`.

    Args:
        start: starts the process of a slot.
        clock: tells the time in seconds.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        start: Callable[[str], Child],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._start, self._clock, self._sleep = start, clock, sleep
        self._workers: dict[str, _Worker] = {}  # by slot

    def busy(self, slot: str) -> bool:
        """Return whether the process of a slot works on a job."""
        return self.has(slot) and self._workers[slot].busy

    def has(self, slot: str) -> bool:
        """Return whether a slot has a process, busy or not."""
        return slot in self._workers

    def begin(self, slot: str) -> None:
        """Start the process of a slot, if it has none, without waiting for it."""
        if not self.has(slot):
            self._workers[slot] = _Worker(self._start(slot))

    def send(self, slot: str, job: Job | None, timeout_s: float) -> None:
        """Give a job to the process of a slot that is not busy; its result comes out of `wait`.

        Without a job the process is started, and the result has the status "ok".
        """
        self.begin(slot)
        worker = self._workers[slot]
        worker.busy, worker.job, worker.stage = True, job, STARTING
        worker.timeout_s = timeout_s + (0.0 if worker.facts else START_S)
        worker.deadline = self._clock() + worker.timeout_s
        worker.hand_over()

    def wait(self, timeout_s: float) -> list[tuple[str, Result]]:
        """Return the results that have come, by slot; wait at most `timeout_s` seconds for the first one."""
        busy = {slot: worker for slot, worker in self._workers.items() if worker.busy}
        if not busy:
            self._sleep(timeout_s)
            return []
        nearest = min((worker.deadline for worker in busy.values() if worker.paused_at is None), default=inf)
        ready = wait([worker.child.pipe for worker in busy.values()], max(0.0, min(timeout_s, nearest - self._clock())))
        results: list[tuple[str, Result]] = []
        for slot, worker in busy.items():
            result = worker.received() if worker.child.pipe in ready else None
            if result is None and worker.paused_at is None and self._clock() > worker.deadline:
                reason = f"no answer within {worker.timeout_s:g} s, while {worker.stage}"
                result = {"status": "timeout", "reason": reason}
            if result is not None:
                results.append((slot, self._over(slot, result)))
        return results

    def facts(self, slot: str = SHARED) -> dict[str, Any]:
        """Start the process of a slot, if it has none, and return what it says of its device.

        Raises:
            InputError: it cannot start.
        """
        self.begin(slot)
        if not self._workers[slot].facts and (result := self.ask(None, 0.0, slot))["status"] != "ok":
            raise InputError(f"the worker process cannot start: {result['reason']}")
        return self._workers[slot].facts

    def ask(self, job: Job | None, timeout_s: float, slot: str = SHARED) -> Result:
        """Return the result of a single job of a slot, while no other slot is busy."""
        assert not any(worker.busy for worker in self._workers.values()), "the results of others would be lost"
        self.send(slot, job, timeout_s)
        while not (results := self.wait(WAIT_S)):
            pass
        return results[0][1]

    def pausable(self, slot: str) -> bool:
        """Return whether the process of a slot may be paused: it is not past its first call and hardly uses the GPU."""
        worker = self._workers[slot]
        return worker.busy and bool(worker.child.pid) and worker.stage.startswith(BEFORE_RESULTS)

    def ask_to_stand(self, slots: Iterable[str]) -> None:
        """Ask processes that warm up to come to their gate (see `warming.stand_when_asked`)."""
        for slot in slots:
            self._workers[slot].stands = False
            self._workers[slot].child.signal(signal.SIGUSR1)

    def stands(self, slot: str) -> bool:
        """Return whether a process has come to its gate as asked; one that begins later comes there first."""
        return self._workers[slot].stands or not self._workers[slot].child.pid

    def pause(self, slots: Iterable[str], standing: Container[str] = ()) -> None:
        """Stop processes that run, until `resume`; what they have enqueued on the GPU is done first.

        Those in `standing` stand still by themselves: only their time stops.
        """
        running = [slot for slot in slots if self._workers[slot].paused_at is None]
        stopped = [slot for slot in running if slot not in standing]
        for slot in running:
            self._workers[slot].paused_at = self._clock()
        for slot in stopped:
            self._workers[slot].child.signal(signal.SIGSTOP)
        if stopped:
            self._sleep(PAUSE_S)

    def resume(self) -> None:
        """Let paused processes go on; the pause does not count against their time."""
        for worker in self._workers.values():
            self._let_go(worker)

    def end(self, slot: str) -> None:
        """End the process of a slot, whatever it does; nothing happens where there is none."""
        if self.has(slot):
            self._workers.pop(slot).child.kill()

    def end_all(self, slots: Iterable[str]) -> None:
        """End the processes of slots and wait until they are gone, and with them what they held of the GPU."""
        children = [self._workers.pop(slot).child for slot in slots if self.has(slot)]
        for child in children:
            child.kill()
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.exit_code(GRACE_S)

    def close(self) -> None:
        """End all processes."""
        for slot in list(self._workers):
            with contextlib.suppress(OSError):
                self.end(slot)

    def _let_go(self, worker: _Worker) -> None:
        if worker.paused_at is not None:
            worker.child.signal(signal.SIGCONT)
            worker.deadline += self._clock() - worker.paused_at
            worker.paused_at = None

    def _over(self, slot: str, result: Result) -> Result:
        """Take a slot from the busy ones; its process stays unless it is to be replaced."""
        worker = self._workers[slot]
        self._let_go(worker)  # it may have answered just before it was paused
        worker.busy, worker.job, worker.deadline = False, None, inf
        if result.pop("restart", True):
            self.end(slot)
        return result
