"""Peers at their best: every shape is tuned for itself, within its seconds, and what was chosen can be replayed."""

from __future__ import annotations

from typing import Any

import pytest
import triton
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources

from tflabench.bench import tuning as tunings
from tflabench.bench.tuning import TuningStore, tuning
from tflabench.bench.warming import warming
from tflabench.implementations.registry import get
from tflabench.problem import Problem
from tflabench.rows.schema import Row
from tflabench.selection.points import Point


class Kernel:
    """A kernel whose fastest configuration depends on T, though its tuner's key does not hold T, as those of fla.

    Attributes:
        calls: (T, block) of every call.
    """

    arg_names = ("x", "T")
    __name__ = "kernel"
    room = 64  # blocks above it do not fit

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def run(self, x: int, T: int, *, BLOCK: int, **options: Any) -> None:
        if self.room < BLOCK:
            raise OutOfResources(BLOCK, self.room, "shared memory")
        self.calls.append((T, BLOCK))
        self.compile(BLOCK)

    def compile(self, block: int) -> None:
        """Take no time; a test has it take some."""

    def ms(self) -> float:
        T, block = self.calls[-1]
        return abs(T - 10 * block)


def kernel(x, T):  # the function that the tuner names
    pass


def tuner(of: Kernel, blocks: tuple[int, ...] = (16, 32, 64)) -> Autotuner:
    of.fn = kernel  # type: ignore[attr-defined]
    return Autotuner(of, of.arg_names, [triton.Config({"BLOCK": b}) for b in blocks], ["x"], None, None)


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> list[float]:
    """Timing a configuration takes a second; what it takes depends on T."""
    now = [0.0]

    def time_calls(call: Any, quantiles: Any) -> list[float]:
        call()
        now[0] += 1.0
        return [call.__closure__ and kernels[-1].ms()] * 3

    kernels: list[Kernel] = []
    monkeypatch.setattr(tunings, "time_calls", time_calls)
    monkeypatch.setattr(tunings.time, "perf_counter", lambda: now[0])
    original = Kernel.__init__

    def remember(self: Kernel) -> None:
        original(self)
        kernels.append(self)

    monkeypatch.setattr(Kernel, "__init__", remember)
    return now


def choose(T: int, budget_s: float | None = None, replay: Any = None) -> tuple[tunings.Tuned, Kernel]:
    """One point in a process of its own: a fresh tuner."""
    of = Kernel()
    made = tuner(of)
    with tuning(budget_s, replay) as tuned:
        made.run(1, T, grid=(1,))
        made.run(1, T, grid=(1,))
    return tuned, of


def test_each_length_gets_its_own_choice():
    for T, block in ((160, 16), (320, 32), (640, 64)):
        tuned, of = choose(T)
        assert tuned.choices["kernel"]["BLOCK"] == block
        assert of.calls[-1] == (T, block)
        assert (tuned.tried, tuned.configurations) == (3, 3)
        assert tuned.seconds == 3.0
    # One tuner for all lengths, as in one process for a sweep, keeps the choice of the first.
    of = Kernel()
    made = tuner(of)
    with tuning(None):
        for T in (160, 640):
            made.run(1, T, grid=(1,))
    assert of.calls[-1] == (640, 16)


def test_what_was_not_reached_is_said():
    tuned, _ = choose(640, budget_s=0.5)
    assert tuned.choices["kernel"]["BLOCK"] == 16  # the only one that was timed
    assert (tuned.tried, tuned.configurations) == (1, 3)
    assert tuned.columns() == {
        "tune_s": 1.0,
        "tuned": {"choices": tuned.choices, "tried": 1, "configurations": 3},
    }


@pytest.mark.parametrize("blocks", [(64, 32, 16), (64, 128, 16)])
def test_every_kernel_has_a_configuration_that_runs_whatever_the_seconds(blocks):
    """The first one of the second kernel does not fit."""
    with tuning(0.5) as tuned:
        tuner(Kernel()).run(1, 640, grid=(1,))
        second = Kernel()
        second.room = 32
        tuner(second, blocks).run(2, 640, grid=(1,))
    assert tuned.choices["kernel#2"]["BLOCK"] == next(block for block in blocks if block <= 32)
    assert tuned.tried < tuned.configurations


def test_the_seconds_are_for_timing_and_not_for_compiling(clock, monkeypatch):
    seen: set[int] = set()

    def compile_once(self: Kernel, block: int) -> None:
        clock[0] += 30.0 * (block not in seen)
        seen.add(block)

    monkeypatch.setattr(Kernel, "compile", compile_once)
    tuned, _ = choose(640, budget_s=20.0)
    assert (tuned.tried, tuned.configurations, tuned.seconds) == (3, 3, 3.0)


def test_a_choice_is_replayed_without_trying_the_others():
    chosen, _ = choose(320)
    again, of = choose(640, replay=chosen.choices)
    assert {block for _, block in of.calls} == {32}
    assert again.choices == chosen.choices
    gone = {"kernel": {**chosen.choices["kernel"], "BLOCK": 128}}
    tuned, _ = choose(640, replay=gone)
    assert (tuned.choices["kernel"]["BLOCK"], tuned.tried) == (64, 3)


def test_a_warm_up_compiles_what_was_chosen_before_and_nothing_else(monkeypatch):
    compiled: list[int] = []
    monkeypatch.setattr(Kernel, "warmup", lambda *_, BLOCK, **__: compiled.append(BLOCK), raising=False)
    chosen, _ = choose(320)
    for replay, blocks in ((None, [16, 32, 64]), (chosen.choices, [32])):
        compiled.clear()
        of = Kernel()
        with warming(), tuning(None, replay):
            tuner(of).run(1, 640, grid=(1,))
        assert compiled == blocks
        assert sorted({block for _, block in of.calls}) == blocks


def test_a_kernel_tuned_for_two_keys_has_two_choices():
    of = Kernel()
    made = tuner(of)
    with tuning(None) as tuned:
        made.run(1, 160, grid=(1,))
        made.run(2, 640, grid=(1,))
    assert {name: choice["BLOCK"] for name, choice in tuned.choices.items()} == {"kernel": 16, "kernel#2": 64}


def test_nothing_of_it_is_left_afterwards():
    before = (Autotuner.run, Autotuner.prune_configs, Autotuner._bench)
    with pytest.raises(RuntimeError, match="stop"), tuning(1.0):
        raise RuntimeError("stop")
    assert before == (Autotuner.run, Autotuner.prune_configs, Autotuner._bench)


def test_without_tuners_there_is_nothing_to_say():
    with tuning(1.0) as tuned:
        pass
    assert tuned.columns() == {"tune_s": 0.0}


POINT = Point(get("fla_retention"), Problem(2, 2, 512, 64, 64))
FULL = {"choices": {"kernel": {"BLOCK": 16}}, "tried": 3, "configurations": 3}
PART = {**FULL, "tried": 1}


def test_the_store_knows_gpu_versions_shape_and_pass(tmp_path):
    versions = {"device": "NVIDIA H100", "triton": "3.6.0"}
    store = TuningStore(tmp_path, versions)
    store.keep(POINT, FULL, 20.0)
    assert store.look_up(POINT, None) == FULL
    assert TuningStore(tmp_path, {**versions, "triton": "3.9.0"}).look_up(POINT, None) is None
    assert TuningStore(tmp_path, {**versions, "device": "NVIDIA H200"}).look_up(POINT, None) is None
    for other in ({"seq_len": 1024}, {"batch": 4}, {"pass_": "fwbw"}):
        assert store.look_up(Point(POINT.implementation, POINT.problem.with_(**other)), None) is None


def test_a_choice_from_part_of_the_configurations_serves_no_larger_budget(tmp_path):
    store = TuningStore(tmp_path, {})
    store.keep(POINT, PART, 20.0)
    assert store.look_up(POINT, 20.0) == PART
    assert store.look_up(POINT, 5.0) == PART
    assert store.look_up(POINT, 60.0) is None
    assert store.look_up(POINT, None) is None
    store.keep(POINT, FULL, None)
    assert store.look_up(POINT, 60.0) == FULL


def test_rows_of_a_folder_can_be_replayed(tmp_path):
    row = Row.model_construct(point=POINT.id, tuned=FULL)
    assert TuningStore(tmp_path, {}, [row]).look_up(POINT, None) == FULL
    of_part = TuningStore(tmp_path, {}, [Row.model_construct(point=POINT.id, tuned=PART)])
    assert of_part.look_up(POINT, 60.0) == PART
    assert of_part.look_up(POINT, None) is None, "who asks for all configurations gets them"


def test_a_folder_that_cannot_be_written_or_read_keeps_nothing(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    store = TuningStore(blocked, {})
    store.keep(POINT, FULL, None)
    assert store.look_up(POINT, None) is None
    store = TuningStore(tmp_path, {})
    store.keep(POINT, FULL, None)
    (kept,) = tmp_path.glob("*.json")
    kept.write_text("{")
    assert store.look_up(POINT, None) is None
