"""Kernels that cheat end as wrong, or as an error; on a GPU too, in tests/gpu/test_cheats_gpu.py."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import pytest
from cheats import CHEATS, right

from tflabench.bench.comparison_run import PointRun
from tflabench.bench.protocol import SHORT
from tflabench.bench.worker import Worker
from tflabench.implementations import registry
from tflabench.implementations.adapter import Implementation
from tflabench.plugin import mlstm_kernel
from tflabench.problem import Problem
from tflabench.selection.points import Point

SMALL = Problem(4, 6, 40, 16, 16, dtype="float32")
QUICK = asdict(SHORT.brief) | {"min_samples": 5, "warmup_iterations": 2}


def measured(impl: Implementation, problem: Problem, monkeypatch, device: str = "cpu") -> dict[str, Any]:
    """The columns of the row of a point that was prepared and had a turn."""
    monkeypatch.setattr(registry, "_plugged", [impl])
    answers: list[dict[str, Any]] = []
    worker = Worker(device, answers.append)
    worker.start([], None)
    run = PointRun(Point(impl, problem), "shared", alone=False)
    job = {"implementation": impl.name, "problem": asdict(problem)}
    worker.do({"kind": "prepare", "verify_s": 0.0, **job})
    run.prepared(answers[-1]["result"])
    if run.state != "over":
        worker.do({"kind": "turn", "protocol": QUICK, **job})
        run.sampled(answers[-1]["result"])
    return run.columns


@pytest.mark.parametrize("name", [name for name, cheat in CHEATS.items() if not cheat.gpu])
def test_a_cheat_is_found(name, monkeypatch):
    cheat = CHEATS[name]
    problem = SMALL.with_(pass_="fwbw" if cheat.backward else "fw")
    columns = measured(cheat.implementation, problem, monkeypatch)
    assert columns["status"] == cheat.status, columns
    assert cheat.reason in columns["reason"]


@pytest.mark.parametrize("pass_", ["fw", "fwbw"])
def test_what_does_not_cheat_is_right(pass_, monkeypatch):
    impl = mlstm_kernel("honest", right, gate="sig")
    assert measured(impl, SMALL.with_(pass_=pass_), monkeypatch)["reason"] is None


def test_a_plugin_cannot_stop_the_clock(monkeypatch):
    def compute(*inputs: Any) -> Any:
        monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
        return right(*inputs)

    columns = measured(mlstm_kernel("stops_the_clock", compute, gate="sig"), SMALL, monkeypatch)
    assert columns["status"] == "error"
    assert "replaces time.perf_counter" in columns["reason"]
