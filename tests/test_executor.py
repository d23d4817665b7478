"""The worker process: whatever an implementation does to it costs one result."""

from __future__ import annotations

import gc
import os
import weakref
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from tflabench.bench.executor import LocalExecutor
from tflabench.bench.protocol import SHORT
from tflabench.bench.worker import Worker
from tflabench.implementations import registry
from tflabench.implementations.adapter import Case, Implementation
from tflabench.problem import InputError, Problem

PLUGIN = str(Path(__file__).with_name("faulty.py"))


@pytest.fixture(scope="module")
def executor():
    with LocalExecutor("cpu", [PLUGIN], memory_limit=1 << 30) as executor:
        yield executor


def measure(executor: LocalExecutor, name: str, timeout_s: float = 60.0) -> dict:
    problem = Problem(2, 2, 64, 8, 8, dtype="float32", pass_="fwbw")
    job = {"kind": "measure", "implementation": name, "problem": asdict(problem), "protocol": asdict(SHORT)}
    return executor.run(job, timeout_s)


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("fine", "ok", None),
        ("aborts", "crashed", "SIGABRT) while compiling and running for the first time: LLVM ERROR: no registers left"),
        ("breaks_device", "error", "IndexError"),
        ("raises", "error", "ValueError: this size is not for me"),
        ("returns_nan", "wrong", "forward is off by nan"),
        ("bad_gradient", "wrong", "dv is off by 0.1"),
        ("hoards", "oom", "can't allocate memory"),
        ("refuses_late", "unsupported", "needs a full moon"),
        ("chatters", "ok", None),
    ],
)
def test_every_end_is_a_result(executor, name, status, reason):
    result = measure(executor, name)
    assert result["status"] == status, result
    assert (reason or "") in (result.get("reason") or "")
    assert ("ms_median" in result) == (status == "ok")


def test_a_hang_ends_with_the_timeout_and_the_next_job_runs(executor):
    measure(executor, "fine")  # imports done: the time left is the job's
    result = measure(executor, "hangs", timeout_s=2.0)
    assert result["status"] == "timeout"
    assert "within 2 s, while compiling and running for the first time" in result["reason"]
    assert measure(executor, "fine")["status"] == "ok"


@pytest.mark.gpu
def test_a_broken_cuda_context_costs_one_result():
    with LocalExecutor("cuda", [PLUGIN]) as executor:
        assert measure(executor, "fine")["timer"] == "cuda_events"
        broken = measure(executor, "breaks_device")
        assert broken["status"] == "error"
        assert "device-side assert" in broken["reason"]
        assert measure(executor, "aborts")["status"] == "crashed"
        assert measure(executor, "hangs", timeout_s=5.0)["status"] == "timeout"
        assert measure(executor, "fine")["status"] == "ok"


def test_a_result_has_everything_that_is_measured(executor):
    result = measure(executor, "fine")
    assert 0 < result["ms_min"] <= result["ms_median"] < 1000
    assert result["samples"] >= SHORT.min_samples
    assert result["warmup"] >= SHORT.warmup_iterations
    assert result["compile_s"] >= 0
    assert result["peak_bytes"] >= 2 * 2 * 64 * 8 * 4
    assert result["verified_steps"] == 64
    assert set(result["details"]["errors"]) == {"forward", "dv"}
    assert result["package_version"]


def test_what_a_point_leaves_in_cycles_is_gone_after_it(monkeypatch):
    """And what libraries keep is not looked through again for every point."""
    left = []

    def build(problem: Problem, device: torch.device) -> Case:
        def forward() -> torch.Tensor:
            cycle: dict[str, Any] = {"output": torch.zeros(1, 1, 8, 8)}
            cycle["itself"] = cycle
            left.append(weakref.ref(cycle["output"]))
            return cycle["output"].clone()

        inputs = {"v": torch.zeros(1, 1, 8, 8)}
        return Case(inputs, forward, lambda inputs: 0 * inputs["v"])

    impl = Implementation("cyclic", "mlstm", "cyclic", build, lambda problem, device: None)
    monkeypatch.setattr(registry, "_plugged", [impl])
    answers = []
    worker = Worker("cpu", answers.append)
    worker.start([], None)
    problem = asdict(Problem(1, 1, 8, 8, 8, dtype="float32"))
    job = {"kind": "measure", "implementation": "cyclic", "problem": problem, "protocol": asdict(SHORT)}
    frozen: list[list[torch.Tensor | None]] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append([ref() for ref in left]))
    worker.do(job)
    assert answers[-1]["result"]["status"] == "ok"
    (kept,) = frozen
    assert len(kept) > 10
    assert set(kept) == {None}


def test_a_closed_executor_leaves_no_process_behind():
    executor = LocalExecutor("cpu", [PLUGIN])
    measure(executor, "fine")
    process = executor._worker._process  # type: ignore[union-attr]
    executor.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    assert measure(executor, "fine")["status"] == "ok"  # and starts again when asked
    executor.close()


def test_a_worker_that_cannot_start_says_why():
    with LocalExecutor("cpu", ["no_such_module"]) as executor, pytest.raises(InputError, match="no_such_module"):
        executor.facts()


def test_without_torch_says_what_to_install(monkeypatch):
    monkeypatch.setattr("tflabench.bench.executor.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"torch, which is not installed: pip install 'tflabench\[gpu\]'"):
        LocalExecutor("cpu")
