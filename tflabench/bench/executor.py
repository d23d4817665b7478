"""Where jobs run: an Executor takes one at a time and always comes back with a result, whatever the kernel does."""

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
from collections.abc import Sequence
from importlib.util import find_spec
from typing import IO, Any, Protocol

from tflabench.problem import InputError

START_TIMEOUT_S = 300.0
# Threads that wait for each other sleep instead of spinning: where another program wants a core too, a spinning thread
# keeps out the very one it waits for, and a millisecond of work takes a scheduler's slice of 8 (seen on 2 cores).
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}


class Executor(Protocol):
    """One device, here or elsewhere."""

    def facts(self) -> dict[str, Any]:
        """What `machine.torch_facts` says of the device that jobs run on."""
        ...

    def run(self, job: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """The result of a job as the worker gives it, with a `status`; "crashed" or "timeout" where it gives none."""
        ...

    def close(self) -> None: ...


def worker_command(device: str, plugins: Sequence[str] = (), memory_limit: int | None = None) -> list[str]:
    """The command line of a worker process, arguments as LocalExecutor takes them."""
    limit = [] if memory_limit is None else ["--memory-limit", str(memory_limit)]
    more = [word for plugin in plugins for word in ("--plugin", plugin)]
    # -P: the working directory stays off sys.path (see tflabench.__main__)
    return [sys.executable, "-P", "-m", "tflabench.bench.worker", "--device", device, *limit, *more]


class LocalExecutor:
    """A worker process on this machine, started when needed and again after a crash, a timeout or a CUDA error.

    Args:
        device: "cuda" or "cpu".
        plugins: as `registry.plug_in` takes them.
        memory_limit: bytes of host memory a job may allocate; None for no limit.

    Raises:
        InputError: torch is not installed.
    """

    def __init__(self, device: str, plugins: Sequence[str] = (), memory_limit: int | None = None) -> None:
        if find_spec("torch") is None:
            raise InputError("measuring needs torch, which is not installed: pip install 'tflabench[gpu]' or '[cpu]'")
        self._command = worker_command(device, plugins, memory_limit)
        self._worker: _Process | None = None
        self._facts: dict[str, Any] = {}

    def facts(self) -> dict[str, Any]:
        """As Executor has it.

        Raises:
            InputError: the worker cannot start: no CUDA device, or a broken installation.
        """
        self._started()
        return self._facts

    def run(self, job: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        worker = self._started()
        worker.send(job)
        result = worker.answer(timeout_s)
        if result.pop("restart", True):
            self.close()
        return result

    def close(self) -> None:
        if self._worker:
            self._worker.kill()
            self._worker = None

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self) -> _Process:
        if self._worker is None:
            self._worker = _Process(self._command)
            self._facts = self._worker.answer(START_TIMEOUT_S)
            if "status" in self._facts:
                self.close()
                raise InputError(f"the worker process cannot start: {self._facts['reason']}")
        return self._worker


class _Process:
    """A worker process and the pipes to it."""

    def __init__(self, command: list[str]) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**ENVIRONMENT, **os.environ},
            start_new_session=True,  # Ctrl-C reaches the parent alone, which then ends this one
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
        self._buffer = b""
        self._stage = "starting"

    def send(self, job: dict[str, Any]) -> None:
        self._stderr.seek(0, os.SEEK_END)
        self._said_before = self._stderr.tell()
        with contextlib.suppress(BrokenPipeError):  # it died while idle: `answer` tells
            self._process.stdin.write(json.dumps(job).encode() + b"\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """The next result; {"status": "crashed" or "timeout", "reason": ...} where none comes."""
        deadline = time.monotonic() + timeout_s
        while True:
            while b"\n" in self._buffer:
                line, _, self._buffer = self._buffer.partition(b"\n")
                message = json.loads(line)
                if "stage" in message:
                    self._stage = message["stage"]
                else:
                    return message["result"]
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                return {"status": "timeout", "reason": f"no answer within {timeout_s:g} s, while {self._stage}"}
            data = os.read(self._process.stdout.fileno(), 1 << 16)  # type: ignore[union-attr]
            if not data:
                return {"status": "crashed", "reason": self._obituary()}
            self._buffer += data

    def kill(self) -> None:
        """End the process and whatever it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]

    def _obituary(self) -> str:
        code = self._process.wait()
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        self._stderr.seek(0)
        lines = [line.strip() for line in self._stderr.read().decode(errors="replace").splitlines() if line.strip()]
        return f"the worker died ({how}) while {self._stage}" + (f": {lines[-1][:300]}" if lines else "")
