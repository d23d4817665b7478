"""Fork servers: workers that have imported a library, which live, stand, die and end as others do."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from itertools import count
from multiprocessing import Pipe
from typing import Any

import pytest
from repository import SUPPORT

from tflabench.bench import forking
from tflabench.bench.child import Child
from tflabench.bench.forking import Forks
from tflabench.bench.warming import WarmUpGate
from tflabench.bench.workers import Workers
from tflabench.problem import Problem

pytest.importorskip("triton")
pytest.importorskip("fla")
LIBRARY = "flash-linear-attention"
TIMEOUT_S = 300.0


def job(kind: str, name: str, **arguments: Any) -> dict[str, Any]:
    problem = Problem(2, 2, 64, 8, 8, dtype="float32")
    return {"kind": kind, "implementation": name, "problem": asdict(problem), **arguments}


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forking, "SERVER", "fork_server_on_cpu")
        patch.setenv("PYTHONPATH", os.pathsep.join((str(SUPPORT), os.environ.get("PYTHONPATH", ""))))
        forks = Forks([str(SUPPORT / "faulty.py")])
        yield forks
        forks.close()


def test_a_forked_worker_measures_and_a_dead_one_costs_itself(forks):
    workers = Workers(lambda slot: forks.start(LIBRARY))  # type: ignore[arg-type, return-value]
    assert forks.start("torch") is None, "it takes no time to import"
    try:
        assert workers.ask(job("prepare", "fine", verify_s=0.1), TIMEOUT_S, "a")["status"] == "ok"
        died = workers.ask(job("prepare", "aborts", verify_s=0.1), TIMEOUT_S, "b")
        assert died["status"] == "crashed"
        assert (
            "(SIGABRT) while compiling and running for the first time: LLVM ERROR: no registers left" in died["reason"]
        )
        assert workers.ask(job("prepare", "fine", verify_s=0.1), TIMEOUT_S, "a")["status"] == "ok"
    finally:
        workers.close()


def test_processes_that_make_room_are_gone_at_once(forks):
    """A GPU gives their memory back with their end: a point that is tried again before is out of memory again."""
    started: list[Child] = []

    def start(slot: str) -> Child:
        started.append(forks.start(LIBRARY))
        return started[-1]

    workers = Workers(start)
    try:
        for slot in ("a", "b", "c"):
            workers.ask(job("prepare", "fine", verify_s=0.1), TIMEOUT_S, slot)
        workers.end_all(["a", "c"])
        assert [workers.has(slot) for slot in ("a", "b", "c")] == [False, True, False]
        for child in (started[0], started[2]):
            with pytest.raises(ProcessLookupError):
                os.kill(child.pid, 0)
        assert workers.ask(job("prepare", "fine", verify_s=0.1), TIMEOUT_S, "b")["status"] == "ok"
    finally:
        workers.close()


def test_a_worker_that_warms_up_comes_to_its_gate(forks):
    gate, numbers = WarmUpGate(), count()
    workers = Workers(lambda slot: forks.start_to_warm_up(LIBRARY, gate.descriptor))
    try:
        warm = workers.ask(job("warm", "fine"), TIMEOUT_S, "a")
        assert (warm["status"], warm["reason"]) == ("ok", None)
        assert warm["cpu_seconds"] >= 0, "it may take less than a tick of the clock"
        workers.send("a", job("warm", "hangs"), TIMEOUT_S)
        gate.shut()
        workers.ask_to_stand(["a"])
        while not workers.stands("a"):
            assert next(numbers) < TIMEOUT_S, "it does not come"
            assert workers.wait(1.0) == []
    finally:
        workers.close()
        gate.close()


def test_what_a_server_says_of_ended_workers_is_taken_in():
    """Unheard, it would fill the pipe to some 280 words, and the server would fork no more."""

    def runs_on(seconds: float | None) -> int:
        raise subprocess.TimeoutExpired("server", seconds or 0.0)

    forks = Forks([])
    ours, theirs = Pipe()
    with ours, theirs, tempfile.TemporaryFile() as log:
        forks._servers[LIBRARY] = Child(ours, os.getpid(), log, runs_on, lambda: None)
        for label in (-1, -2):
            theirs.send((label, 0))
        worker = forks.start(LIBRARY)
        assert not ours.poll()
        assert theirs.recv()[1] == {"device": "cuda", "plugins": []}
        assert worker is not None
        worker.kill()


def test_a_server_that_has_ended_is_started_again(monkeypatch):
    monkeypatch.setattr(forking, "SERVER", "fork_server_on_cpu")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(SUPPORT), os.environ.get("PYTHONPATH", ""))))
    forks, gate = Forks([]), WarmUpGate()
    workers = Workers(lambda slot: forks.start_to_warm_up("torch", gate.descriptor))
    try:
        assert workers.ask(None, TIMEOUT_S, "a")["status"] == "ok"
        (server,) = forks._servers.values()
        os.kill(server.pid, signal.SIGKILL)
        server.exit_code(TIMEOUT_S)
        assert workers.ask(None, TIMEOUT_S, "b")["status"] == "ok"
    finally:
        workers.close()
        forks.close()
        gate.close()
