"""A worker process as the process that runs the sweep sees it: jobs go in, results come out, whatever happens to it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

# Threads that wait for each other sleep instead of spinning: where another program wants a core too, a spinning thread
# keeps out the very one it waits for, and a millisecond of work takes a scheduler's slice of 8 (seen on 2 cores).
# Autotuners keep no choices of their own on disk: they would be those of another shape.
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "FLA_CACHE_RESULTS": "0", "TRITON_CACHE_AUTOTUNING": "0"}

Result = dict[str, Any]


@dataclass
class WorkerProcess:
    """One worker and the pipes to it. A result that never comes is {"status": "crashed" or "timeout", "reason": ...}.

    Attributes:
        reads: descriptor of its answers; writes: of its jobs.
        log: what it writes to standard error.
        ended: waits for its end and returns its exit code, negative for a signal.
        end: kills it and whatever it started.
        stage: what it said last that it does.
        pid: its process id, where it has said it.
        facts: what it said of its device when it started.
    """

    reads: int
    writes: int
    log: IO[bytes]
    ended: Callable[[], int]
    end: Callable[[], None]
    stage: str = "starting"
    pid: int = 0
    facts: Result = field(default_factory=dict)
    _buffer: bytes = b""

    @classmethod
    def spawn(cls, command: Sequence[str]) -> WorkerProcess:
        """Start a process of its own, in a session of its own: Ctrl-C reaches the parent alone, which then ends it."""
        log = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**ENVIRONMENT, **os.environ},
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None

        def end() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

        reads, writes = os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno())
        process.stdin.close()
        process.stdout.close()
        return cls(reads, writes, log, process.wait, end, pid=process.pid)

    def fileno(self) -> int:
        """Return the file descriptor of the answers, to wait on."""
        return self.reads

    def send(self, job: dict[str, Any]) -> None:
        """Hand over a job; one that died while idle tells when it is asked for the result."""
        self.log.seek(0, os.SEEK_END)
        with contextlib.suppress(OSError):
            os.write(self.writes, json.dumps(job).encode() + b"\n")

    def receive(self) -> Result | None:
        """Read what there is, waiting for something; return the result if it was the last of it."""
        data = os.read(self.reads, 1 << 16)
        if not data:
            return {"status": "crashed", "reason": self._obituary(), "restart": True}
        self._buffer += data
        while b"\n" in self._buffer:
            line, _, self._buffer = self._buffer.partition(b"\n")
            message = json.loads(line)
            if "stage" not in message:
                return message["result"]
            self.stage = message["stage"]
            self.pid = message.get("pid", self.pid)
        return None

    def answer(self, timeout_s: float) -> Result:
        """Wait for the next result, at most `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.reads, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                if (result := self.receive()) is not None:
                    return result
        return self.late(timeout_s)

    def late(self, timeout_s: float) -> Result:
        """Return the result of a job that took longer than it may."""
        return {
            "status": "timeout",
            "reason": f"no answer within {timeout_s:g} s, while {self.stage}",
            "restart": True,
        }

    def signal(self, number: int) -> None:
        """Send a signal, where the process is there and has said its id."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process and whatever it started."""
        self.end()
        for descriptor in {self.reads, self.writes}:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self.log.close()

    def _obituary(self) -> str:
        how, last = last_words(self.ended(), self.log)
        return f"the worker died ({how}) while {self.stage}" + (f": {last}" if last else "")


def last_words(code: int, log: IO[bytes]) -> tuple[str, str]:
    """Return how a process ended, by its exit code, and the last line that it wrote to its log."""
    how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return how, lines[-1][:300] if lines else ""


def worker_command(device: str, plugins: Sequence[str] = (), memory_limit: int | None = None) -> list[str]:
    """Return the command line of a worker process.

    Args:
        device: "cuda" or "cpu".
        plugins: as `registry.plug_in` takes them.
        memory_limit: bytes of host memory a job may allocate; None for no limit.
    """
    limit = [] if memory_limit is None else ["--memory-limit", str(memory_limit)]
    more = [word for plugin in plugins for word in ("--plugin", plugin)]
    # -P: the working directory stays off sys.path (see tflabench.__main__)
    return [sys.executable, "-P", "-m", "tflabench.bench.worker", "--device", device, *limit, *more]
