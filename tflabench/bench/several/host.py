"""The GPUs of this host, with a process each that sees no other GPU; no Ray."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import IO

from tflabench.bench.machine import Machine, node_name
from tflabench.bench.process import last_words
from tflabench.bench.several.task import Began, Ended, Event, Fault, Place, Task, Terms

GRACE_S = 2.0  # for a process that has closed its pipe to end


@dataclass
class _Process:
    """The process of a GPU, and the pipe to it."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    log: IO[bytes]

    def obituary(self) -> str:
        """Wait for its end, which is brought about where it does not come, and say how that came."""
        try:
            code = self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            code = self.process.wait()
        how, last = last_words(code, self.log)
        return f"its process died ({how})" + (f": {last}" if last else "")

    def kill(self) -> None:
        """End it; what it has started ends with it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.pipe.close()
        self.log.close()


class OneHost:
    """Measures a comparison at a time on each of several GPUs, as `driver.ComparisonExecutor` says.

    A process is started with the first comparison of its GPU, and again after a fault.

    Args:
        gpus: each with its UUID.
    """

    def __init__(self, gpus: Sequence[Machine], terms: Terms) -> None:
        self._terms, self._node = terms, node_name()
        self._places = {gpu.uuid or "": Place(self._node, gpu.name, gpu.uuid) for gpu in gpus}
        self._processes: dict[str, _Process] = {}  # by UUID
        self._at: dict[Task, str] = {}  # the UUID of the GPU that has it
        self._given: list[Task] = []  # since the last `wait`

    def possible(self, task: Task) -> bool:
        """Return True: these GPUs stay."""
        return True

    def room(self, task: Task) -> bool:
        """Return whether a GPU is free for it."""
        return self._free_for(task) is not None

    def start(self, task: Task) -> None:
        """Give it to the first GPU that is free for it."""
        uuid = self._free_for(task)
        assert uuid is not None
        self._at[task] = uuid
        self._given.append(task)
        if uuid not in self._processes:
            self._processes[uuid] = self._started(uuid)
        with contextlib.suppress(OSError):  # of a process that has died since, `wait` tells
            self._processes[uuid].pipe.send(task.comparison)

    def wait(self, timeout_s: float) -> list[tuple[Task, Event]]:
        """Return what has come of tasks, as `ComparisonExecutor` says. They have a GPU from their start."""
        begun: list[tuple[Task, Event]] = [(task, Began(self._places[self._at[task]])) for task in self._given]
        self._given.clear()
        tasks = {self._processes[uuid].pipe: task for task, uuid in self._at.items()}
        ready = wait(list(tasks), timeout_s)
        return begun + [(task, event) for pipe, task in tasks.items() if pipe in ready for event in self._said(task)]

    def stop(self, task: Task) -> None:
        """End the process that has it."""
        self._end(self._at.pop(task))

    def usual_place(self, task: Task) -> Place:
        """Return the first GPU."""
        return next(iter(self._places.values()))

    def close(self) -> None:
        """End all processes."""
        for uuid in list(self._processes):
            self._end(uuid)
        self._at.clear()

    def _free_for(self, task: Task) -> str | None:
        """Return a free GPU: where there are others, not one on which the task has failed."""
        failed = {fault.place.gpu_uuid for fault in task.faults if fault.place}
        others = [uuid for uuid in self._places if uuid not in failed] or list(self._places)
        return next((uuid for uuid in others if uuid not in self._at.values()), None)

    def _started(self, uuid: str) -> _Process:
        ours, theirs = Pipe()
        log = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tflabench.bench.several.station", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": uuid},
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C reaches this process alone, which then ends it
        )
        theirs.close()
        ours.send(self._terms)
        ours.send(self._node)
        return _Process(process, ours, log)

    def _said(self, task: Task) -> list[Event]:
        """Return what the process of a task has sent; a process that has failed is started again with its next task."""
        uuid = self._at[task]
        pipe, events = self._processes[uuid].pipe, list[Event]()
        try:
            while pipe.poll():
                event: Event = pipe.recv()
                events.append(event)
                if isinstance(event, Ended | Fault):
                    break
        except (EOFError, OSError):
            events.append(Fault("crashed", self._processes[uuid].obituary(), self._places[uuid]))
        if events and isinstance(events[-1], Ended | Fault):
            del self._at[task]
            if isinstance(events[-1], Fault):
                self._end(uuid)
        return events

    def _end(self, uuid: str) -> None:
        self._processes.pop(uuid).kill()
