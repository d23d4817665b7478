"""Executors run single jobs, one at a time; whatever a kernel does, a result comes back."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Protocol

from tflabench.bench.process import WorkerProcess, worker_command
from tflabench.problem import InputError

START_TIMEOUT_S = 300.0


class Executor(Protocol):
    """One device, here or elsewhere."""

    def facts(self) -> dict[str, Any]:
        """Return what `machine.torch_facts` says of the device that jobs run on."""
        ...

    def run(self, job: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return the result of a job, with a `status`; "crashed" or "timeout" where the worker gives none."""
        ...

    def close(self) -> None:
        """End the process that runs jobs."""
        ...


class LocalExecutor:
    """A worker process on this machine, started when needed and again after a crash, a timeout or a CUDA error.

    Args:
        device, plugins, memory_limit: as `process.worker_command` takes them.

    Raises:
        InputError: torch is not installed.
    """

    def __init__(self, device: str, plugins: Sequence[str] = (), memory_limit: int | None = None) -> None:
        require_torch()
        self._command = worker_command(device, plugins, memory_limit)
        self._worker: WorkerProcess | None = None
        self._facts: dict[str, Any] = {}

    def facts(self) -> dict[str, Any]:
        """Return what `machine.torch_facts` says of the device, as Executor does.

        Raises:
            InputError: the worker cannot start: no CUDA device, or a broken installation.
        """
        self._started()
        return self._facts

    def run(self, job: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return the result of a job, as Executor does; the worker is started again where the job broke it."""
        worker = self._started()
        worker.send(job)
        result = worker.answer(timeout_s)
        if result.pop("restart", True):
            self.close()
        return result

    def close(self) -> None:
        """End the worker, if one runs."""
        if self._worker:
            self._worker.kill()
            self._worker = None

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self) -> WorkerProcess:
        if self._worker is None:
            self._worker = WorkerProcess.spawn(self._command)
            self._facts = started(self._worker.answer(START_TIMEOUT_S))
        return self._worker


def started(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that a worker says when it starts.

    Raises:
        InputError: they say that it cannot.
    """
    if "status" in facts:
        raise InputError(f"the worker process cannot start: {facts['reason']}")
    return facts


def require_torch() -> None:
    """Raise InputError where torch is not installed."""
    if find_spec("torch") is None:
        raise InputError("measuring needs torch, which is not installed: pip install 'tflabench[gpu]' or '[cpu]'")
