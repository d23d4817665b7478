"""The process of one job: a dry run, then compilers that it forks, each for one kernel, when it is told to.

It is forked from a server that has imported everything. It sends {"tasks": [...]}, gets {"compile": n} and answers
{"done": n, "seconds": [s, of the CPU], "failed": status of a row or null, "error": why or null}. It ends, with its
compilers, when its channel is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tflabench.bench.precompile.channel import Channel
from tflabench.bench.precompile.processes import die_with, remove_unfinished, said
from tflabench.problem import Problem

NICENESS = 10  # what is being measured goes first
MOST_SAID = 300


@dataclass
class _Compiler:
    """A process that compiles a task; `output` is what it says, and its result."""

    task: int
    pid: int
    pipe: int
    folder: Path
    started: float
    deadline: float
    output: bytes = b""


def work(
    end: int, implementation: str, problem: dict[str, Any], facts: str, timeout_s: float, plugins: Sequence[str]
) -> None:
    """Do a job; `end` is the file descriptor of its channel, the rest what the pool was given."""
    from tflabench.bench.precompile.dry_run import driver_module, dry_run
    from tflabench.bench.precompile.gpu_facts import DeviceFacts
    from tflabench.bench.precompile.pretence import start_autograd_without_gpu
    from tflabench.implementations import registry

    os.nice(NICENESS)
    start_autograd_without_gpu()
    for plugin in plugins:
        registry.plug_in(plugin)
    started = time.monotonic()
    with _interrupted_after(timeout_s):
        found = dry_run(registry.get(implementation), Problem(**problem), DeviceFacts.from_json(facts))
    tasks = [task for task in (driver_module(), *found.tasks) if task]
    channel = Channel(socket.socket(fileno=end))
    listed = [[task.kernel, task.config, task.folder, task.cached] for task in tasks]
    channel.send({"tasks": listed, "reason": found.reason, "seconds": time.monotonic() - started})
    with tempfile.TemporaryDirectory(prefix=scratch_prefix(os.getppid())) as scratch:
        _Job(channel, tasks, timeout_s, Path(scratch)).serve()


def scratch_prefix(server: int) -> str:
    """Return the prefix of folders for temporary files, in the jobs of the server of this process id."""
    return f"tflabench-{server}-"


class _Job:
    def __init__(self, channel: Channel, tasks: Any, timeout_s: float, scratch: Path) -> None:
        self._channel, self._tasks, self._timeout_s, self._scratch = channel, tasks, timeout_s, scratch
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)
        self._compilers: dict[int, _Compiler] = {}  # by their pipes

    def serve(self) -> None:
        try:
            while not self._channel.closed:
                next_deadline = min((c.deadline for c in self._compilers.values()), default=time.monotonic() + 3600)
                for key, _ in self._selector.select(max(0.0, next_deadline - time.monotonic())):
                    if key.fileobj is self._channel:
                        for message in self._channel.receive():
                            self._start(message["compile"])
                    else:
                        self._listen(self._compilers[key.fd])
                for compiler in [c for c in self._compilers.values() if c.deadline <= time.monotonic()]:
                    self._end(compiler, f"killed after {self._timeout_s:g} s")
        finally:
            for compiler in list(self._compilers.values()):
                self._end(compiler, "the job was cancelled")

    def _start(self, number: int) -> None:
        from triton import knobs

        task, me = self._tasks[number], os.getpid()
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            with _exit_afterwards():
                os.setpgid(0, 0)
                die_with(me)
                self._channel.close()
                _compile(task, writing, self._scratch)
        os.close(writing)
        with contextlib.suppress(OSError):  # both set it: whoever comes first
            os.setpgid(pid, pid)
        now = time.monotonic()
        folder = Path(knobs.cache.dir, task.folder)
        self._compilers[reading] = _Compiler(number, pid, reading, folder, now, now + self._timeout_s)
        self._selector.register(reading, selectors.EVENT_READ)

    def _listen(self, compiler: _Compiler) -> None:
        if data := os.read(compiler.pipe, 1 << 16):
            compiler.output += data
        else:
            self._end(compiler)

    def _end(self, compiler: _Compiler, reason: str | None = None) -> None:
        """Collect a compiler that has ended, or end it for a reason."""
        if reason:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(compiler.pid, signal.SIGKILL)
        _, status, used = os.wait4(compiler.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._selector.unregister(compiler.pipe)
        os.close(compiler.pipe)
        del self._compilers[compiler.pipe]
        result = _result(compiler.output)
        if code or result is None or result["error"]:
            remove_unfinished([compiler.folder], [compiler.pid])
            shutil.rmtree(self._scratch / str(compiler.pid), ignore_errors=True)
        failed = "timeout" if reason else "crashed" if result is None else "compile_error" if result["error"] else None
        if result is None:
            words = [line for line in compiler.output.decode(errors="replace").splitlines() if line.strip()]
            reason = reason or ": ".join([f"the compiler died, {said(code)}", *words[:1]])
        error = (reason or (result or {}).get("error") or "")[:MOST_SAID] or None
        seconds, cpu_seconds = time.monotonic() - compiler.started, used.ru_utime + used.ru_stime
        self._channel.send({"done": compiler.task, "seconds": [seconds, cpu_seconds], "failed": failed, "error": error})


def _compile(task: Any, pipe: int, scratch: Path) -> None:
    """Compile a task in this process; what compilers say goes into the pipe, and the result last."""
    os.dup2(pipe, 1)
    os.dup2(pipe, 2)
    mine = scratch / str(os.getpid())
    mine.mkdir()
    tempfile.tempdir = os.environ["TMPDIR"] = str(mine)  # where an assembler that is killed leaves its files
    error = None
    try:
        task.compile()
    except Exception as problem:  # a compiler's error costs this task
        words = " ".join(str(problem).split())  # Triton shows the source first, and what is wrong with it last
        error = f"{type(problem).__name__}: {words if len(words) < MOST_SAID else '... ' + words[-MOST_SAID + 50 :]}"
    shutil.rmtree(mine, ignore_errors=True)
    os.write(pipe, b"\n\0" + json.dumps({"error": error}).encode())


def _result(output: bytes) -> dict[str, str | None] | None:
    _, mark, text = output.rpartition(b"\n\0")
    return json.loads(text) if mark else None


@contextlib.contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in what takes longer: forms in plain PyTorch may launch a million operators."""

    def interrupt(*_: Any) -> None:
        raise TimeoutError(f"the dry run took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _exit_afterwards() -> Iterator[None]:
    """End a forked process without running what its parent had yet to run."""
    code = 1
    try:
        yield
        code = 0
    finally:
        os._exit(code)
