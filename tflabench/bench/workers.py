"""The worker processes of a sweep: one for what needs no process of its own, and one for each point that does."""

from __future__ import annotations

import contextlib
import selectors
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tflabench.bench.executor import started
from tflabench.bench.process import Result, WorkerProcess

PAUSE_S = 0.05  # until the GPU has done what a paused process had enqueued
START_S = 120.0  # until a process has imported what it needs and has its device


@dataclass
class _Slot:
    """A process and the job that it works on, which waits until the process has started."""

    process: WorkerProcess
    job: dict[str, Any] | None
    timeout_s: float
    deadline: float
    starting: bool = True


class Workers:
    """Worker processes by slot, each started with its first job and ended with `end`.

    Args:
        start: starts the process of a slot.
    """

    def __init__(self, start: Callable[[str], WorkerProcess]) -> None:
        self._start = start
        self._slots: dict[str, _Slot] = {}
        self._idle: dict[str, WorkerProcess] = {}
        self._selector = selectors.DefaultSelector()
        self._paused: dict[str, float] = {}  # slot -> since when

    def busy(self, slot: str) -> bool:
        """Return whether the process of a slot works on a job."""
        return slot in self._slots

    def has(self, slot: str) -> bool:
        """Return whether a slot has a process, busy or not."""
        return slot in self._slots or slot in self._idle

    def send(self, slot: str, job: dict[str, Any] | None, timeout_s: float) -> None:
        """Give a job to the process of a slot that is not busy; its result comes out of `wait`.

        Without a job the process is started, and the result has the status "ok".
        """
        process = self._idle.pop(slot, None)
        starting = process is None
        if process is None:
            process = self._start(slot)
        elif job is not None:
            process.send(job)
        deadline = time.monotonic() + timeout_s + (START_S if starting else 0.0)
        self._slots[slot] = _Slot(process, job, timeout_s, deadline, starting)
        self._selector.register(process, selectors.EVENT_READ, slot)

    def wait(self, timeout_s: float) -> list[tuple[str, Result]]:
        """Return the results that have come, by slot; wait at most `timeout_s` seconds for the first one."""
        nearest = min(
            (at.deadline for slot, at in self._slots.items() if slot not in self._paused), default=float("inf")
        )
        nearest -= time.monotonic()
        results: list[tuple[str, Result]] = []
        if not self._slots:
            time.sleep(timeout_s)
            return results
        for key, _ in self._selector.select(max(0.0, min(timeout_s, nearest))):
            slot: str = key.data
            if (result := self._received(self._slots[slot])) is not None:
                results.append((slot, self._over(slot, result)))
        for slot, working in list(self._slots.items()):
            if time.monotonic() > working.deadline and slot not in self._paused:
                results.append((slot, self._over(slot, working.process.late(working.timeout_s))))
        return results

    def begin(self, slot: str) -> None:
        """Start the process of a slot, if it has none, without waiting for it."""
        if not self.has(slot):
            self._idle[slot] = self._start(slot)

    def facts(self, slot: str) -> dict[str, Any]:
        """Start the process of a slot, if it has none, and return what it says of its device.

        Raises:
            InputError: it cannot start.
        """
        self.begin(slot)
        process = self._idle[slot]
        if not process.facts:
            process.facts = started(process.answer(START_S))
        return process.facts

    def ask(self, slot: str, job: dict[str, Any], timeout_s: float) -> Result:
        """Return the result of a single job of a slot, while no other slot is busy."""
        assert not self._slots, "the results of others would be lost"
        self.send(slot, job, timeout_s)
        while not (results := self.wait(timeout_s)):
            pass
        return results[0][1]

    def compiles(self, slot: str) -> bool:
        """Return whether the process of a slot may be paused: it makes its first call, in which it mostly compiles."""
        return slot in self._slots and self._slots[slot].process.stage.startswith("compiling")

    def pause(self, slots: Iterable[str]) -> None:
        """Stop processes until `resume`; what they have enqueued on the GPU is done first."""
        for slot in slots:
            self._slots[slot].process.signal(signal.SIGSTOP)
            self._paused[slot] = time.monotonic()
        if self._paused:
            time.sleep(PAUSE_S)

    def resume(self) -> None:
        """Let paused processes go on; the pause does not count against their time."""
        for slot, since in self._paused.items():
            if slot in self._slots:
                self._slots[slot].process.signal(signal.SIGCONT)
                self._slots[slot].deadline += time.monotonic() - since
        self._paused.clear()

    def end(self, slot: str) -> None:
        """End the process of a slot, whatever it does; nothing happens where there is none."""
        if slot in self._slots:
            self._over(slot, {"restart": True})
        elif process := self._idle.pop(slot, None):
            process.kill()

    def close(self) -> None:
        """End all processes."""
        for slot in [*self._slots, *self._idle]:
            with contextlib.suppress(OSError):
                self.end(slot)
        self._selector.close()

    def _received(self, working: _Slot) -> Result | None:
        result = working.process.receive()
        if result is None or not working.starting or "status" in result:
            return result
        working.process.facts, working.starting = result, False
        if working.job is None:
            return {"status": "ok", "restart": False}
        working.process.send(working.job)
        return None

    def _over(self, slot: str, result: Result) -> Result:
        """Take a slot from the busy ones; its process stays unless it is to be replaced."""
        working = self._slots.pop(slot)
        self._selector.unregister(working.process)
        if result.pop("restart", True):
            working.process.kill()
        else:
            self._idle[slot] = working.process
        return result
