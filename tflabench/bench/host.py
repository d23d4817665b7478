"""The GPUs of this host, with a process each that sees no other GPU and runs a station.

Run as a program, with the descriptor of a pipe, it is the process of one GPU.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait

from tflabench.bench.child import Child, die_with_parent
from tflabench.bench.events import Began, Ended, Event, Fault, Stations, Task
from tflabench.bench.machine import Machine
from tflabench.bench.protocol import Rules
from tflabench.bench.station import measured

# A task that runs says something every second, but for what a process, its libraries and a calibration take to start.
SILENT_S = 300.0


class Host(Stations):
    """Measures a comparison at a time on each of several GPUs, as `events.Stations` says.

    A process is started with the first comparison of its GPU, and again after a fault.

    Args:
        gpus: each with its UUID.
        sweep_id: of all of the sweep.
    """

    silent_s = SILENT_S

    def __init__(self, gpus: Sequence[Machine], rules: Rules, sweep_id: str) -> None:
        self._first_words = (rules, sweep_id)
        self._gpus = {gpu.uuid or "": gpu for gpu in gpus}
        self._children: dict[str, Child] = {}  # by UUID
        self._tasks: dict[str, Task] = {}  # that a GPU has, by UUID
        self._begun: list[tuple[Task | None, Event]] = []  # since the last `wait`

    def room(self, task: Task) -> bool:
        """Return whether a GPU is free for it."""
        return self._free_for(task) is not None

    def start(self, task: Task) -> None:
        """Give it to the first GPU that is free for it."""
        uuid = self._free_for(task)
        assert uuid is not None
        self._tasks[uuid] = task
        self._begun.append((task, Began(self._gpus[uuid])))  # from now on its silence counts
        if uuid not in self._children:
            self._children[uuid] = Child.spawn("tflabench.bench.host", variables={"CUDA_VISIBLE_DEVICES": uuid})
            self._children[uuid].send(self._first_words)
        self._children[uuid].send(task)

    def wait(self, timeout_s: float) -> list[tuple[Task | None, Event]]:
        """Return what has come of tasks, as `Stations` says."""
        events, self._begun = self._begun, []
        uuids = {self._children[uuid].pipe: uuid for uuid in self._tasks}
        for pipe in wait(list(uuids), 0.0 if events else timeout_s):
            events += self._received(uuids[pipe])  # type: ignore[index]
        return events

    def stop(self, task: Task) -> None:
        """End the process that has it."""
        self._end(next(uuid for uuid, given in self._tasks.items() if given is task))

    def close(self) -> None:
        """End all processes."""
        for uuid in list(self._children):
            self._end(uuid)

    def _free_for(self, task: Task) -> str | None:
        """Return a free GPU: where there are others, not one on which the task has failed."""
        failed = {fault.machine.uuid for fault in task.faults if fault.machine}
        rest = [uuid for uuid in self._gpus if uuid not in failed] or list(self._gpus)
        return next((uuid for uuid in rest if uuid not in self._tasks), None)

    def _received(self, uuid: str) -> list[tuple[Task, Event]]:
        """Return what a process has sent; one that has failed is started again with its next task."""
        task, child = self._tasks[uuid], self._children[uuid]
        events: list[Event] = []
        try:
            while not (events and isinstance(events[-1], Ended | Fault)) and child.pipe.poll():
                events.append(child.pipe.recv())
        except (EOFError, OSError):
            end, last = child.last_words()
            reason = f"its process died ({end})" + (f": {last}" if last else "")
            events.append(Fault("crashed", reason))
        if isinstance(events[-1], Fault):
            self._end(uuid)
        elif isinstance(events[-1], Ended):
            del self._tasks[uuid]
        return [(task, event) for event in events]

    def _end(self, uuid: str) -> None:
        self._tasks.pop(uuid, None)
        self._children.pop(uuid).kill()


def main() -> None:
    """Measure until the other end of the pipe closes."""
    die_with_parent()
    pipe = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError):
        rules, sweep_id = pipe.recv()
        for event in measured(iter(pipe.recv, None), rules, sweep_id):
            pipe.send(event)


if __name__ == "__main__":
    main()
