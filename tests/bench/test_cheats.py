"""Kernels that cheat end as wrong, or as an error; on a GPU too, in tests/gpu/test_cheats_gpu.py."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from cheats import CHEATS, SMALL, measured, problem_of, right

from tflabench.plugin import Case, Implementation, draw, mlstm_kernel
from tflabench.problem import Problem


@pytest.mark.parametrize("name", [name for name, cheat in CHEATS.items() if not cheat.gpu])
def test_a_cheat_is_found(name, monkeypatch):
    cheat = CHEATS[name]
    columns = measured(cheat.implementation, problem_of(name), monkeypatch)
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


@pytest.mark.parametrize(("writes", "reason"), [(("state",), None), ((), "changes its input state")])
def test_a_kernel_may_write_what_its_adapter_says(writes, reason, monkeypatch):
    def build(problem: Problem, device: torch.device) -> Case:
        shape = (problem.batch, problem.heads, problem.seq_len, problem.d_hv)
        x = draw(problem, device, {"v": shape, "state": shape})
        return Case(x, lambda: x["state"].add_(x["v"]).clone(), lambda x: x["state"] + x["v"], writes=writes)

    impl = Implementation("in_place", "mlstm", "in place", build, lambda problem, device: None, gate="sig")
    assert measured(impl, SMALL, monkeypatch)["reason"] == reason
