"""A station: one device of this process, which takes comparisons and yields rows, and what it is at meanwhile.

Points of all comparisons that it has taken are warmed up, while it measures the first of them. One
sweep at a time has a device: by a lock file that the process holds, and that the system takes back when it ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import cached_property
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tflabench.bench import machine
from tflabench.bench.ceilings import ceilings_of
from tflabench.bench.child import Child
from tflabench.bench.comparison_run import ComparisonRun, PointRun
from tflabench.bench.events import Began, Ended, Event, Fault, Note, RunDescription, Stations, Task
from tflabench.bench.machine import Machine, environment, warm_ups_at_once
from tflabench.bench.protocol import Rules
from tflabench.bench.rows_of_run import Occasion
from tflabench.bench.scheduler import Scheduler
from tflabench.bench.tuning import TuningStore, default_folder
from tflabench.bench.warm import WarmUp
from tflabench.bench.warming import WarmUpGate
from tflabench.bench.workers import SHARED, Workers, require_torch, spawn_worker
from tflabench.implementations import registry
from tflabench.problem import InputError

if TYPE_CHECKING:
    from tflabench.bench.forking import Forks

SHOWN_EVERY_S = 0.25  # what it is at is told no more often
LOCK_POLL_S = 1.0  # between looks whether the sweep that has the device has ended
WAIT_S = 0.5


class Station(Stations):
    """Measures tasks on one device, as `events.Stations` says, from the first call on until the block ends.

    Args:
        machine: the device.
        sweep_id: of all of a sweep; None for a new one.
        sharing: how many GPUs share the cores of this machine.
        clock: tells the time as `rules.stop_at` has it.
        sleep: waits so many seconds.

    Raises:
        InputError: torch is missing.
    """

    def __init__(
        self,
        machine: Machine,
        rules: Rules,
        sweep_id: str | None = None,
        sharing: int = 1,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        require_torch()
        self.machine, self.rules = machine, rules
        self._sharing, self._clock, self._sleep = sharing, clock, sleep
        run_id = hashlib.sha256(f"{sweep_id or uuid4()} {machine}".encode()).hexdigest()[:12]
        self._occasion = Occasion(run_id, machine, rules.protocol, {})
        self._stack = ExitStack()
        self._scheduler: Scheduler | None = None
        self._workers: Workers | None = None
        self._warm_up: WarmUp | None = None
        self._forks: Forks | None = None
        self._events: list[tuple[Task | None, Event]] = []
        self._new: list[Task] = []  # since the last `wait`
        self._forked_packages: set[str] = set()
        self._waits_for_lock = False
        self._shown_at, self._received = -inf, True  # since it was shown

    # --- As a station of a sweep

    def room(self, task: Task) -> bool:
        """Return whether it is ready: it then takes all tasks, to warm them up."""
        return self._scheduler is not None

    def start(self, task: Task) -> None:
        """Take a task on; from now on its points are warmed up."""
        assert self._scheduler is not None
        self._scheduler.admit(task)
        self._new.append(task)
        points = task.comparison.points
        self._forked_packages |= {p.implementation.package for p in points if p.implementation.own_process}

    def wait(self, timeout_s: float) -> list[tuple[Task | None, Event]]:
        """Return what has come of tasks; get ready first, which may take another sweep's time.

        Raises:
            InputError: the worker cannot start.
        """
        if self._scheduler is None:
            self._get_ready()
        else:
            if self._new and self._scheduler.idle:
                self._introduce()
            self._scheduler.advance()
            if self._received and self._clock() - self._shown_at >= SHOWN_EVERY_S:
                self._shown_at, self._received = self._clock(), False
                self._events.append((None, self._scheduler.activity))  # before the work that it tells of is over
            elif not self._events:
                self._scheduler.receive(timeout_s)
                self._received = True
        events, self._events = self._events, []
        return events

    def stop(self, task: Task) -> None:
        """End everything: nothing of one task alone can hang."""
        self.close()

    def close(self) -> None:
        """End the processes that measure and warm up, and give the device back."""
        self._stack.close()
        self._scheduler = self._workers = self._warm_up = self._forks = None

    # --- By itself

    def measure(self, task: Task) -> Iterator[Event]:
        """Measure one task, and yield its events, the last of them `Ended`; something comes at least every second."""
        while not self.room(task):
            if self._waits_for_lock and self._clock() >= self.rules.stop_at:
                yield Ended()
                return
            yield from (event for _, event in self.wait(WAIT_S))
        self.start(task)
        while True:
            for _, event in self.wait(WAIT_S):
                yield event
                if isinstance(event, Ended):
                    return

    # --- Inside

    def _get_ready(self) -> None:
        """Start what measures and compiles, once no other sweep has the device."""
        lock = DeviceLock(self.machine.uuid or self.machine.name)
        if (process := lock.holder()) is not None:
            told, self._waits_for_lock = self._waits_for_lock, True
            line = f"Process {process} measures on {self.machine.name}: waiting for its end, Ctrl-C stops."
            self._events.append((None, Note("" if told else line)))
            self._sleep(LOCK_POLL_S)
            return
        self._stack.callback(lock.release)
        self._open()
        assert self._workers is not None
        versions = {"device": self.machine.name, **registry.package_versions()}
        tuning = TuningStore(default_folder(), versions, self.rules.tuned)
        self._scheduler = Scheduler(
            self.machine.kind,
            self.machine.memory_bytes,
            self.rules,
            self._workers,
            self._warm_up,
            tuning,
            self._on_point,
            lambda task: self._events.append((task, Ended())),
            self._clock,
        )
        self._events.append((None, Began(self.machine)))

    def _open(self) -> None:
        """Start the worker, and what forks others and warms points up."""
        self._workers = Workers(self._spawn)
        self._stack.callback(self._workers.close)
        self._workers.begin(SHARED)
        jobs = warm_ups_at_once(self.rules.jobs, self._sharing)
        if self.machine.kind == "cpu" or not (jobs and find_spec("triton")):
            return
        from tflabench.bench.forking import Forks

        self._forks = forks = Forks(self.rules.plugins)
        self._stack.callback(forks.close)
        gate = WarmUpGate()
        workers = Workers(lambda slot: forks.start_to_warm_up(slot.rpartition("/")[0], gate.descriptor))
        self._warm_up = WarmUp(jobs, gate, workers, self.machine.memory_bytes, self.rules.timeout_s)
        self._stack.callback(self._warm_up.close)

    def _spawn(self, slot: str) -> Child:
        package = slot.partition("/")[0]
        forked = self._forks.start(package) if self._forks and slot != SHARED else None
        limit = self.machine.host_memory_limit if self.rules.memory_limit is None else self.rules.memory_limit
        return forked or spawn_worker(self.machine.kind, self.rules.plugins, limit)

    def _introduce(self) -> None:
        """Say where new tasks are measured, and know the ceilings of their dtypes, before their first rows."""
        assert self._workers is not None
        uuid = self._workers.facts().get("uuid", self.machine.uuid)
        dtypes = {point.problem.dtype for task in self._new for point in task.comparison.points}
        ceilings = self._occasion.ceilings
        if unknown := dtypes - ceilings.keys():
            if self._warm_up:
                self._warm_up.pause()  # until the scheduler goes on
            ceilings = {**ceilings, **ceilings_of(self.machine, unknown, self._workers.ask)}
        self._occasion = replace(self._occasion, ceilings=ceilings, machine=replace(self.machine, uuid=uuid))
        described = {**self._environment, "ceilings": {dtype: asdict(known) for dtype, known in ceilings.items()}}
        for task in self._new:
            self._events.append((task, Began(self.machine)))
            self._events.append((task, RunDescription(self._occasion.run_id, described)))
        self._new.clear()

    def _on_point(self, begun: ComparisonRun, run: PointRun) -> None:
        if run.turns and self._forks:  # until then they would take the disk from others
            self._forks.prepare(self._forked_packages)
        self._events.append((begun.task, self._occasion.row(begun, run)))

    @cached_property
    def _environment(self) -> dict[str, Any]:
        assert self._workers is not None
        return environment(self.machine, self._workers.facts())


def measured(tasks: Iterable[Task], rules: Rules, sweep_id: str) -> Iterator[Event]:
    """Measure tasks as they come, on the first GPU of this process, for a sweep that another process drives.

    Where that cannot begin, the only event is a fault with the reason. No task is read before plugins are known.
    """
    try:
        for plugin in rules.plugins:
            registry.plug_in(plugin)
        sharing = max(1, len(machine.gpus_of_node()))
        with Station(machine.detect("cuda"), rules, sweep_id, sharing) as station:
            yield Began(station.machine)
            for task in tasks:
                yield from station.measure(task)
    except InputError as error:
        yield Fault("error", str(error))


class DeviceLock:
    """The lock of a device.

    Args:
        device: what tells it from others on this machine: the UUID of a GPU, the name of a CPU.
    """

    def __init__(self, device: str) -> None:
        name = "".join(letter if letter.isalnum() else "-" for letter in device)
        self._path = Path(tempfile.gettempdir()) / f"tflabench-{os.getuid()}-{name}.lock"
        self._handle: int | None = None

    def holder(self) -> str | None:
        """Take the lock; return None where it is ours now, else the id of the process that holds it.

        Where no lock file can be made it is ours too: measuring alone is then up to the user.
        """
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            process = os.pread(handle, 32, 0).decode(errors="replace").strip()
            os.close(handle)
            return process or "unknown"
        self._handle = handle
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        return None

    def release(self) -> None:
        """Give the lock back, if it is ours."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
