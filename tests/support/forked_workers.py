"""Workers that are forked from the process of a test, which has imported torch: seconds less than a new Python each.

Tests of commands that are killed, and some of `bench/test_workers.py`, have workers as users have them.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection

import pytest

from tflabench.bench import station, worker, workers
from tflabench.bench.child import Child
from tflabench.implementations import registry


def fork_workers(patch: pytest.MonkeyPatch) -> None:
    """Let what starts a worker fork one."""
    for module in (station, workers):
        patch.setattr(module, "spawn_worker", fork_worker)


def fork_worker(device: str, plugins: Sequence[str] = (), memory_limit: int | None = None) -> Child:
    """As `workers.spawn_worker`."""
    ours, theirs = Pipe()
    log = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
    process = get_context("fork").Process(
        target=serve, args=(theirs, ours, log.fileno(), device, list(plugins), memory_limit)
    )
    process.start()
    theirs.close()

    def exit_code(seconds: float | None) -> int:
        process.join(seconds)
        if process.exitcode is None:
            raise subprocess.TimeoutExpired("worker", seconds or 0.0)
        return process.exitcode

    def end() -> None:
        process.kill()
        process.join()

    return Child(ours, process.pid or 0, log, exit_code, end)


def serve(
    pipe: Connection, parents: Connection, log: int, device: str, plugins: list[str], memory_limit: int | None
) -> None:
    """Forget what is the test's, and serve as a worker."""
    parents.close()
    for stream in (1, 2):
        os.dup2(log, stream)
    sys.stdout, sys.stderr = (open(stream, "w", closefd=False, buffering=1) for stream in (1, 2))  # noqa: SIM115
    os.setsid()
    faulthandler.disable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.freeze()  # or its first collection copies all that the test has imported
    registry._plugged.clear()
    registry._by_plugin.clear()
    worker.die_with_parent()
    worker.serve(pipe, device, plugins, memory_limit)
