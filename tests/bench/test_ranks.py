"""A case whose sequence lies on two processes computes the first part, and ends when both have ended."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.spawn import start_processes

from tflabench.bench import ranks
from tflabench.bench.workers import one_worker
from tflabench.implementations import registry
from tflabench.implementations.adapter import Unsupported
from tflabench.problem import InputError, Problem

CPU = torch.device("cpu")
PROBLEM = Problem(1, 2, 40, 16, 16, dtype="float32", pass_="fwbw", ranks=2)


PLUGIN = """
from dataclasses import replace
from tflabench.implementations import registry

LIKE = registry.get("reference_simple_gla")

def fails_on_others(problem, device):
    if problem.seed:
        raise ValueError("no such seed")
    return LIKE.build(problem, device)

IMPLEMENTATIONS = (replace(LIKE, name="twin"), replace(LIKE, name="alone", build=fails_on_others))
"""


def measure(_: int, file: str) -> None:
    """As a worker: in a process of its own, for a test that forks later is not to be in a group."""
    torch.set_num_threads(1)
    plugin = Path(file).with_name("plugin_of_ranks.py")
    plugin.write_text(PLUGIN)
    registry.plug_in(str(plugin))
    impl = registry.get("twin")
    torch.manual_seed(0)
    case = ranks.build(impl, PROBLEM, CPU)
    torch.manual_seed(0)
    alone = impl.build(PROBLEM.part, CPU)
    calls: list[Any] = []
    for each in (case, case, alone):
        h = each.forward()
        leaves = [x for x in each.inputs.values() if x.requires_grad]
        calls.append([h.detach(), *torch.autograd.grad(h, leaves, torch.ones_like(h))])
    with torch.no_grad():
        calls.append(case.forward())
    try:
        ranks.build(registry.get("reference_recurrent_sig"), PROBLEM, CPU)
    except Unsupported as error:
        refusal = str(error)
    try:
        ranks.build(registry.get("alone"), PROBLEM, CPU)
    except RuntimeError as error:
        ended = str(error)
    again = ranks.build(impl, PROBLEM, CPU)
    with torch.no_grad():
        calls.append(again.forward())
    torch.save((calls, case.details, refusal, ended), file)
    ranks.leader("cpu").close()


def test_the_worker_has_the_first_part_of_a_sequence_and_its_gradients(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_plugged", [])
    monkeypatch.setattr(registry, "_by_plugin", {})  # the other rank plugs in what is in use here
    start_processes(measure, (str(tmp_path / "made.pt"),), 1, start_method="fork")
    (first, second, alone, last, again), details, refusal, ended = torch.load(tmp_path / "made.pt")
    assert first[0].shape[1] == 20
    for found in (first, second):
        for ours, wanted in zip(found, alone, strict=True):
            torch.testing.assert_close(ours, wanted)
    torch.testing.assert_close(last, alone[0])
    assert details["collective_bytes"] == 4 * 2 * 16 * 16
    assert details["collective_ms"] > 0
    assert refusal == "runs on one device: ranks must be 1"
    assert ended.startswith("rank 1 has ended (exit code 1)")
    assert ended.endswith("ValueError: no such seed")
    assert again.isfinite().all()


def test_more_ranks_than_devices_are_refused():
    with pytest.raises(Unsupported, match="ranks is 4, and a CPU has 2"):
        ranks.build(registry.get("reference_simple_gla"), PROBLEM.with_(ranks=4), CPU)


def test_all_ranks_have_as_many_steps():
    assert PROBLEM.with_(ranks=1).ranks is None
    assert PROBLEM.with_(ranks=4).part.seq_len == 10
    with pytest.raises(InputError, match="ranks is 41"):
        PROBLEM.with_(ranks=41)


STUMBLES = """
from tflabench.plugin import Case, Implementation, draw

def make(name):
    def build(problem, device):
        inputs = draw(problem, device, {"v": (problem.batch, problem.heads, problem.seq_len, problem.d_hv)})
        def call(group=None, **options):
            import torch.distributed as dist
            if group is not None and name == "stumbles" and dist.get_rank() == 1:
                raise ValueError("not on rank 1")
            return inputs["v"].cumsum(2)
        return Case(inputs, call, oracle=lambda inputs: inputs["v"].cumsum(2), call=call)
    return Implementation(name, "linear_attention", name, build, lambda problem, device: None, operation="running_sum")

IMPLEMENTATIONS = (make("stumbles"), make("walks"))
"""


def test_an_error_of_one_point_is_not_that_of_the_next(tmp_path):
    (tmp_path / "steps.py").write_text(STUMBLES)
    problem = asdict(PROBLEM.with_(pass_="fw"))
    with one_worker("cpu", [str(tmp_path / "steps.py")]) as worker:
        job = {"kind": "prepare", "problem": problem, "verify_s": 0.1}
        results = [worker.ask(job | {"implementation": name}, 100.0) for name in ("stumbles", "walks")]
    assert [result["status"] for result in results] == ["error", "ok"], results
