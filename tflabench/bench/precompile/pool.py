"""Compiles what is to be measured on cores that measuring leaves idle: jobs in their order, kernels side by side.

A job is an implementation and a problem. A process of its own lists its kernels in a dry run and forks a compiler for
each that Triton's cache does not have. At most `jobs` of these processes work at a time. A kernel that several jobs
need is compiled once. One that crashes its compiler or hangs costs nothing but itself.
"""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tflabench.bench.precompile.channel import Channel, Message
from tflabench.bench.precompile.gpu_facts import DeviceFacts
from tflabench.bench.precompile.processes import said
from tflabench.bench.precompile.server import CLOSE_S, OUR_LIBRARY, ForkServer
from tflabench.implementations import registry
from tflabench.problem import InputError, Problem

_WORK = f"{__package__}.compiling:work"


@dataclass(frozen=True)
class Event:
    """Something that happened to the job of this number."""

    ticket: int


@dataclass(frozen=True)
class Listed(Event):
    """The dry run has ended: how many kernels there are, and how many of them are in the cache."""

    kernels: int
    cached: int
    seconds: float


@dataclass(frozen=True)
class Compiled(Event):
    """A compiler has ended, after `seconds`, of which it and its assembler had a core for `cpu_seconds`.

    `failed` says whether it was in vain, as a row's status does ("compile_error", "crashed", "timeout"); `error` why.
    """

    kernel: str
    config: str
    seconds: float
    cpu_seconds: float
    failed: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Finished(Event):
    """Nothing more comes of this job; `reason` says why its list of kernels is empty or not whole, if it is not."""

    reason: str | None = None


@dataclass
class _Task:
    kernel: str
    config: str
    folder: str


@dataclass
class _Job:
    ticket: int
    implementation: str
    problem: Problem
    library: str
    channel: Channel | None = None
    tasks: list[_Task] = field(default_factory=list)
    pending: deque[int] = field(default_factory=deque)  # of tasks
    running: set[int] = field(default_factory=set)  # of tasks, in compilers of its own
    waiting: int = 0  # tasks that another job compiles
    listing: bool = False
    listed: bool = False
    reason: str | None = None


@dataclass
class _Kernel:
    """The state of a folder of the cache; `failed` and `error` count once it is done."""

    done: bool = False
    failed: str | None = None
    error: str | None = None
    waiters: list[tuple[_Job, int]] = field(default_factory=list)


def cache_folder() -> Path:
    """Return the folder where Triton keeps compiled kernels, by the environment; without importing Triton."""
    home = Path(os.environ.get("TRITON_HOME") or Path.home())
    return Path(os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")


def require_writable(folder: Path) -> None:
    """Raise InputError, in one line, if nothing can be put into a folder or it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(
            f"Triton's cache {folder} cannot be written ({error.strerror}): TRITON_CACHE_DIR must name one that can be"
        ) from None


class CompilePool:
    """Compiles for jobs until it is closed, in a thread of this process and processes of others.

    Args:
        jobs: compilers and dry runs at a time, over all jobs.
        facts: of the GPU to compile for.
        timeout_s: for one kernel.
        plugins: modules that the jobs' processes plug in, as `registry.plug_in` takes them.

    Raises:
        InputError: Triton's cache cannot be written.
    """

    def __init__(self, jobs: int, facts: DeviceFacts, timeout_s: float = 120.0, plugins: Sequence[str] = ()) -> None:
        require_writable(cache_folder())
        self._most, self._facts, self._timeout_s, self._plugins = jobs, facts, timeout_s, list(plugins)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._tickets, self._unfinished = 0, 0
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._woken, self._waking = socket.socketpair()
        # Below: of the thread alone
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._servers: dict[str, ForkServer | str] = {}  # or why it has died
        self._jobs: dict[int, _Job] = {}  # the unfinished, in their order
        self._kernels: dict[str, _Kernel] = {}  # by folder
        self._working = 0
        self._open = True
        self._thread = threading.Thread(target=self._run, name="compile pool", daemon=True)
        self._thread.start()

    def submit(self, implementation: str, problem: Problem) -> int:
        """Add a job behind all others and return the number of its events; KeyError for an unknown implementation."""
        impl = registry.get(implementation)
        library = impl.package if impl.imports else OUR_LIBRARY
        self._tickets += 1
        self._unfinished += 1
        job = _Job(self._tickets, implementation, problem, library)
        self._tell(lambda: self._jobs.update({job.ticket: job}))
        return job.ticket

    def poll(self) -> list[Event]:
        """Return the events since the last call."""
        return self.wait(0.0)

    def wait(self, timeout_s: float | None = None) -> list[Event]:
        """Return the events since the last call; wait for one where there is none, for ever unless a time is given."""
        events: list[Event] = []
        with contextlib.suppress(queue.Empty):
            events.append(self._events.get(timeout_s != 0.0, timeout_s))
            while True:
                events.append(self._events.get_nowait())
        self._unfinished -= sum(isinstance(event, Finished) for event in events)
        return events

    @property
    def idle(self) -> bool:
        """Return whether `poll` has told of every job that it is finished."""
        return not self._unfinished

    def cancel(self, ticket: int) -> None:
        """End a job and its compilers; its Finished event says so."""
        self._tell(lambda: self._lose(self._jobs[ticket], "cancelled") if ticket in self._jobs else None)

    def close(self) -> None:
        """End every job and process; no more events come."""
        if self._thread.is_alive():
            self._tell(lambda: setattr(self, "_open", False))
            self._thread.join()

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self, command: Callable[[], None]) -> None:
        self._commands.put(command)
        self._waking.send(b".")

    # --- In the thread

    def _run(self) -> None:
        try:
            while self._open:
                for key, _ in self._selector.select():
                    if key.fileobj is self._woken:
                        for _ in self._woken.recv(1 << 12):
                            self._commands.get_nowait()()
                    elif key.data[0].fileno() != -1:  # what came before may have ended it
                        key.data[1](key.data[0].receive())
                self._hand_out()
        finally:
            self._end()

    def _end(self) -> None:
        servers = [server for server in self._servers.values() if isinstance(server, ForkServer)]
        for open_end in (*(job.channel for job in self._jobs.values() if job.channel), *(s.channel for s in servers)):
            open_end.close()
        deadline = time.monotonic() + CLOSE_S
        for server in servers:
            server.close(max(0.0, deadline - time.monotonic()))
        self._selector.close()
        for ticket in self._jobs:
            self._events.put(Finished(ticket, "the pool was closed"))

    def _listen(self, channel: Channel, hear: Callable[[list[Message]], None]) -> None:
        self._selector.register(channel, selectors.EVENT_READ, (channel, hear))

    def _leave(self, channel: Channel) -> None:
        if channel.fileno() != -1:
            self._selector.unregister(channel)
            channel.close()

    def _hand_out(self) -> None:
        """Give work to do to the first jobs that have some, as long as there are cores."""
        for job in list(self._jobs.values()):
            if self._working >= self._most:
                return
            if not (job.listing or job.listed):
                self._start(job)
            while job.pending and self._working < self._most:
                self._compile(job, job.pending.popleft())
            self._finish_if_done(job)

    def _start(self, job: _Job) -> None:
        if job.library not in self._servers:
            started = ForkServer(job.library, self._facts)
            self._servers[job.library] = started
            self._listen(started.channel, lambda messages: self._of_server(started, messages))
        server = self._servers[job.library]
        if isinstance(server, str):
            job.listed, job.reason = True, server
            return
        job.channel, theirs = Channel.pair()
        with theirs:
            arguments: dict[str, Any] = {"implementation": job.implementation, "problem": asdict(job.problem)}
            arguments |= {"facts": self._facts.as_json(), "timeout_s": self._timeout_s, "plugins": self._plugins}
            server.fork(job.ticket, _WORK, arguments, [theirs.fileno()])
        self._listen(job.channel, lambda messages: self._of_job(job, messages))
        job.listing = True
        self._working += 1

    def _compile(self, job: _Job, number: int) -> None:
        """See to it that a task is compiled, by this job if by no other."""
        task = job.tasks[number]
        kernel = self._kernels.get(task.folder)
        if kernel is None and job.channel:
            self._kernels[task.folder] = _Kernel()
            job.running.add(number)
            self._working += 1
            job.channel.send({"compile": number})
        elif kernel and not kernel.done:
            kernel.waiters.append((job, number))
            job.waiting += 1
        elif kernel and kernel.failed:
            self._events.put(Compiled(job.ticket, task.kernel, task.config, 0.0, 0.0, kernel.failed, kernel.error))

    def _of_job(self, job: _Job, messages: list[Message]) -> None:
        for message in messages:
            if "tasks" in message:
                self._working -= 1
                job.listing, job.listed, job.reason = False, True, message["reason"]
                cached = [cached for *_, cached in message["tasks"]]
                job.tasks = [_Task(*task) for *task, _ in message["tasks"]]
                job.pending += [number for number, known in enumerate(cached) if not known]
                self._events.put(Listed(job.ticket, len(cached), sum(cached), message["seconds"]))
            else:
                self._compiled(job, message["done"], message["seconds"], message["failed"], message["error"])
        if job.channel and job.channel.closed:
            self._leave(job.channel)  # its server says how it ended

    def _compiled(self, job: _Job, number: int, seconds: list[float], failed: str | None, error: str | None) -> None:
        task, kernel = job.tasks[number], self._kernels[job.tasks[number].folder]
        self._working -= 1
        job.running.discard(number)
        kernel.done, kernel.failed, kernel.error = True, failed, error
        self._events.put(Compiled(job.ticket, task.kernel, task.config, seconds[0], seconds[1], failed, error))
        waiters, kernel.waiters = kernel.waiters, []
        for other, its_number in waiters:
            other.waiting -= 1
            self._compile(other, its_number)

    def _lose(self, job: _Job, reason: str) -> None:
        """Clear up after a job whose process ends; other jobs compile themselves what they waited for."""
        self._working -= len(job.running) + job.listing
        for number in job.running:
            lost = self._kernels.pop(job.tasks[number].folder)
            for other, its_number in lost.waiters:
                other.waiting -= 1
                other.pending.appendleft(its_number)
        for kernel in self._kernels.values():
            kernel.waiters = [waiter for waiter in kernel.waiters if waiter[0] is not job]
        job.running, job.waiting, job.listing, job.listed = set(), 0, False, True
        job.pending.clear()
        job.reason = reason
        self._finish_if_done(job)

    def _finish_if_done(self, job: _Job) -> None:
        if not job.listed or job.pending or job.running or job.waiting or job.ticket not in self._jobs:
            return
        del self._jobs[job.ticket]
        if job.channel:
            self._leave(job.channel)
        self._events.put(Finished(job.ticket, job.reason))

    def _of_server(self, server: ForkServer, messages: list[Message]) -> None:
        for message in messages:
            job = self._jobs.get(message.get("ended", 0))
            if job and job.channel:
                while job.channel.fileno() != -1:
                    self._of_job(job, job.channel.receive())  # what it said before
                if job.ticket in self._jobs:
                    self._lose(job, f"its process ended, {said(message['code'])}: {server.last_words()}")
        if server.channel.closed:
            self._leave(server.channel)
            self._servers[server.library] = reason = f"the server of {server.library} ended: {server.last_words()}"
            server.close()
            for job in [job for job in self._jobs.values() if job.library == server.library and job.channel]:
                self._lose(job, reason)
