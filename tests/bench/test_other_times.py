"""Times with the host and of a CUDA graph: what is divided by what, on a clock of its own, and what a CPU says."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch

from tflabench.bench import other_times
from tflabench.bench.comparison_run import PointRun
from tflabench.bench.protocol import SHORT
from tflabench.bench.request import Request
from tflabench.bench.worker import Worker
from tflabench.implementations import registry
from tflabench.problem import InputError, Problem
from tflabench.selection.points import Point

NAN = float("nan")
SMALL = Problem(1, 2, 64, 16, 16, dtype="float32", pass_="fwbw")


class Gpu:
    """A GPU whose calls take `call_s` one after the other, 400 W meanwhile, and a host that enqueues in no time."""

    def __init__(self, call_s: float) -> None:
        self.call_s, self.now, self.done, self.calls = call_s, 0.0, 0.0, 0
        self.median_mhz = 1755.0

    def call(self) -> None:
        self.calls += 1
        self.done = max(self.done, self.now) + self.call_s

    def wait(self) -> None:
        self.now = max(self.now, self.done)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def joules(self) -> float:
        """A counter that moves ten times a second."""
        return 400.0 * (self.now // 0.1) * 0.1

    def read(self) -> None:
        assert self.done > self.now, "the clock is read while the GPU works"


@pytest.mark.parametrize("call_s", [1e-4, 3e-3, 0.7])
def test_a_call_in_a_loop_takes_what_all_take_over_their_number(call_s):
    gpu = Gpu(call_s)
    assert other_times.eager_ms(gpu.call, gpu.wait, lambda: gpu.now) == pytest.approx(1e3 * call_s)


@pytest.mark.parametrize("graph_s", [1e-3, 0.04])
def test_a_graph_runs_for_half_a_second_and_its_calls_share_time_and_energy(graph_s):
    gpu: Any = Gpu(graph_s)
    columns = other_times.back_to_back(gpu.call, 8, gpu.wait, gpu, lambda: gpu.now, gpu.sleep)
    assert columns["ms_graph"] == pytest.approx(1e3 * graph_s / 8, rel=0.01)
    assert columns["joules"] == pytest.approx(400 * graph_s / 8, rel=0.03)
    assert columns["mhz_graph"] == 1755
    assert gpu.done > other_times.GRAPH_S


def test_the_inputs_of_a_graph_exceed_the_l2_four_times():
    assert other_times.calls_of_graph(50 << 20, 50 << 20) == 4
    assert other_times.calls_of_graph(1 << 30, 50 << 20) == 1
    assert other_times.calls_of_graph(1, 50 << 20) == other_times.MOST_CALLS


def test_a_cpu_has_an_eager_time_alone_and_says_so():
    worker = Worker("cpu", lambda _: None)
    worker.device = torch.device("cpu")
    rules = SHORT.with_(times=("cold", "graph", "eager"))
    result = worker.turn("reference_sig", asdict(SMALL), asdict(rules), names=True)
    run = PointRun(Point(registry.get("reference_sig"), SMALL), "a", alone=False)
    run.columns, run.digest = {"details": {"allowed": {}}}, {}
    run.sampled(result)
    columns = run.row_columns()
    assert columns["ms_eager"] > 0
    assert "ms_graph" not in columns
    assert columns["details"]["untimed"] == {"graph": "RuntimeError: a CPU has no CUDA graphs"}


@pytest.mark.parametrize("name", ["reference_retention", "reference_kda"])
def test_a_row_alone_is_timed_and_compared_with_itself_in_the_batch(name):
    worker = Worker("cpu", lambda _: None)
    worker.device = torch.device("cpu")
    rules = SHORT.with_(times=("cold", "alone"))
    columns = worker.turn(name, asdict(SMALL.with_(batch=3)), asdict(rules), names=True)["columns"]
    assert columns["ms_alone"] > 0
    assert columns["ms_deterministic"] > 0
    row, *others = columns["batch_invariant"].split(", ")
    assert row == "bits" or row.startswith("within ")
    assert [what.split()[0] for what in others] == ["pieces", "documents", "step"]
    assert all(what.split()[1] in ("bits", "within") for what in others)
    columns = worker.turn("reference_recurrent_sig", asdict(SMALL), asdict(rules), names=True)["columns"]
    assert columns["untimed"] == {"alone": "RuntimeError: there is one row"}


@pytest.mark.parametrize(("factor", "says"), [(1.0, "bits"), (1 + 2**-12, "within 2e-04"), (1.1, "no"), (NAN, "no")])
def test_what_a_row_is_in_a_batch_has_a_word(factor, says):
    x = torch.rand(4, 4)
    assert other_times.invariance([(x, x), (factor * x, x)]) == says


@pytest.mark.parametrize(("times", "words"), [(["graph"], "must have cold"), (["cold", "warm"], "it must be one of")])
def test_other_times_are_refused(times, words):
    with pytest.raises(InputError, match=words):
        Request(times=times).select("cpu")


def test_the_preset_tokens_takes_all_times():
    assert Request("tokens").select("cpu").protocol.times == ("cold", "graph", "eager")
    assert Request("tokens", times=["cold"]).select("cuda").protocol.times == ("cold",)
