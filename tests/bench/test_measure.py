"""Time and memory of callables whose answer is known."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from statistics import quantiles
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tflabench.bench import measure
from tflabench.bench.measure import memory_of, take_turn
from tflabench.bench.protocol import PAPER, SHORT, STANDARD, Protocol
from tflabench.bench.timing import Turn, columns_of, noisy, remembers, settled, standard_error
from tflabench.rows.spread import relative_spread, unpacked

CPU = torch.device("cpu")
MiB = 1 << 20


class Calls:
    """Calls on a clock of their own that take the given seconds, one after the other, the last for good; counts."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = seconds
        self.count = 0
        self.time = 0.0

    def __call__(self) -> None:
        self.time += self.seconds[min(self.count, len(self.seconds) - 1)]
        self.count += 1

    def now(self) -> float:
        return self.time


def turn_of(calls: Calls, rules: Protocol) -> Turn:
    return take_turn(calls, CPU, rules, now=calls.now)


def test_times_are_of_one_call():
    turn = turn_of(Calls(0.005), SHORT)
    columns = columns_of([turn])
    assert [columns[name] for name in ("ms_min", "ms_p20", "ms_median", "ms_p80")] == [pytest.approx(5.0)] * 4
    assert turn.timer == "perf_counter"
    assert turn.host_ms is None  # the time above is the host's
    assert take_turn(lambda: None, CPU, SHORT).ms >= 0, "on the clock of this machine"


def test_the_papers_protocol_takes_exactly_its_samples():
    calls = Calls(0.001)
    turn = turn_of(calls, PAPER)
    assert (turn.warmup, len(turn.samples), calls.count) == (10, 30, 40)


def test_warm_up_lasts_by_time_and_by_calls():
    assert turn_of(Calls(0.0015), replace(SHORT, warmup_iterations=3, warmup_s=0.05)).warmup == 34
    assert turn_of(Calls(0.02), replace(SHORT, warmup_iterations=3, warmup_s=0.0)).warmup == 3


def test_the_host_s_time_is_the_least_of_a_warm_up():
    rules = replace(SHORT, warmup_iterations=3, warmup_s=0.0)
    calls = Calls(0.03, 0.002, 0.03)

    def wait_for_the_device() -> None:
        calls.time += 0.1

    warm = measure._warm_up(calls, measure._nothing, wait_for_the_device, rules, calls.now)
    assert (warm.least_enqueue_s, warm.last_enqueue_s) == (pytest.approx(0.002), pytest.approx(0.03))


def test_a_compilation_late_in_the_warm_up_stays_out_of_the_samples():
    turn = turn_of(Calls(0.001, 0.001, 0.2, 0.001), replace(SHORT, warmup_iterations=3, warmup_s=0.0))
    assert turn.warmup > 3
    assert max(turn.samples) == pytest.approx(1.0)


def test_sampling_goes_on_until_the_budget_where_it_does_not_settle():
    restless = Calls(*([0.001, 0.004] * 200))
    turn = turn_of(restless, replace(SHORT, warmup_iterations=1, min_samples=9, max_samples=300, budget_s=0.2))
    assert relative_spread(turn.samples) > 0.05
    assert len(turn.samples) == pytest.approx(0.2 / 0.0025, abs=3)  # they are taken three at a time


def test_settled_samples_end_early():
    turn = turn_of(Calls(0.001), STANDARD)
    assert STANDARD.min_samples <= len(turn.samples) < 2 * STANDARD.min_samples


def test_a_slow_call_is_made_a_few_times_only():
    calls = Calls(0.05)
    turn = turn_of(calls, replace(STANDARD, cap_s=0.12))
    assert 2 <= len(turn.samples) < STANDARD.min_samples
    assert calls.count < 10


def turns(*medians: float, spread: float = 0.0) -> list[Turn]:
    return [Turn([ms * (1 - spread), ms, ms, ms * (1 + spread)], 5, "perf_counter") for ms in medians]


def test_rounds_settle_once_their_medians_agree_or_all_are_taken():
    near, far = [turns(1.04)], [turns(1.5)]
    assert not settled(turns(1.0, 1.0), near, STANDARD)
    assert settled(turns(1.0, 1.005, 1.0), near, STANDARD)
    assert not settled(turns(1.0, 1.06, 1.0), near, STANDARD)
    assert settled(turns(1.0, 1.06, 1.0), far, STANDARD)  # it is faster in any case
    assert settled(turns(1.0, 1.04, 1.0, 1.0, 1.0), near, STANDARD)  # what one round did weighs less
    assert settled(turns(1.0, 1.2, 1.0, 1.2, 1.0, 1.2), near, STANDARD)
    assert settled(turns(1.0), near, PAPER)


def test_further_rounds_alike_make_a_median_better_known():
    errors = [standard_error(turns(*(1.0, 1.2, 1.1) * n)) for n in (1, 2, 4, 8)]
    assert errors == sorted(errors, reverse=True)
    assert [noisy(turns(*(1.0, 1.2, 1.1) * n)) for n in (1, 2, 4, 8)] == [True, False, False, False]
    assert standard_error(turns(1.0, spread=0.1)) > 0


def test_what_takes_longer_with_values_not_seen_in_every_turn_remembers_results():
    def of(*unseen: float) -> list[Turn]:
        return [Turn([1.0, 1.3, 1.0], 5, "perf_counter", None, ms) for ms in unseen]

    assert (
        remembers(of(2.7, 9.0, 4.0)) == "takes 2.1 times as long with values that it has not seen: it remembers results"
    )
    for unseen in ((2.7, 2.5, 4.0), (9.0, 9.0)):
        assert remembers(of(*unseen)) is None
    assert remembers(turns(1.0, 1.0, 1.0)) is None


def test_columns_sum_up_all_rounds():
    columns = columns_of([Turn([1.0, 2.0], 5, "cuda_events", 0.3), Turn([3.0, 4.0], 6, "cuda_events", 0.2)])
    assert (columns["ms_median"], columns["ms_min"], columns["samples"]) == (2.5, 1.0, 4)
    assert (columns["warmup"], columns["rounds"], columns["host_ms"]) == (11, 2, 0.2)
    assert unpacked(columns["samples_ms"]) == [[1.0, 2.0], [3.0, 4.0]]


def test_relative_spread():
    low, middle, high = quantiles([1.0, 2.0, 3.0, 4.0, 5.0], n=4, method="inclusive")
    assert relative_spread([1.0, 2.0, 3.0, 4.0, 5.0]) == (high - low) / middle


@pytest.mark.skipif(sys.platform != "linux", reason="the peak can only be reset on Linux")
def test_memory_of_one_call():
    """In a process of its own, as points are measured: here, what earlier tests left of the heap would decide."""
    code = """
import torch
from tflabench.bench.measure import memory_of

MiB = 1 << 20
kept = torch.ones(64 * MiB, dtype=torch.uint8)  # what is there before does not count
torch.ones(256 * MiB, dtype=torch.uint8)  # nor what was, and is gone

def run():
    first = torch.ones(mebibytes * MiB, dtype=torch.uint8)
    del first
    torch.ones(mebibytes * MiB, dtype=torch.uint8)

for mebibytes in (8, 96):
    memory = memory_of(run, torch.device("cpu"), held_bytes=kept.nbytes)
    print(memory["extra_bytes"], memory["peak_bytes"])
"""
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    for mebibytes, line in zip((8, 96), printed.splitlines(), strict=True):
        extra_bytes, peak_bytes = map(int, line.split())
        assert extra_bytes == pytest.approx(mebibytes * MiB, abs=4 * MiB)
        assert peak_bytes == extra_bytes + 64 * MiB


@pytest.mark.parametrize(
    ("mhz", "limited", "highest", "throttled"),
    [
        (1965, True, 1980, False),  # one step of the clock: less than ratios show
        (1900, True, 1980, True), (1900, False, 1980, True),  # some rows of a slow clock have no reason
        (1980, True, None, None),  # how high the clock goes is not told
    ],
)  # fmt: skip
def test_a_gpu_is_throttled_where_it_holds_its_clock_back_by_more_than_ratios_show(
    mhz, limited, highest, throttled, monkeypatch
):  # fmt: skip
    class Refused(Exception):
        pass

    def highest_of(*_: Any) -> int:
        if highest is None:
            raise Refused
        return highest

    reasons = ("SwPowerCap", "HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
    nvml = SimpleNamespace(
        NVMLError=Refused, NVML_CLOCK_SM=1, nvmlDeviceGetMaxClockInfo=highest_of,
        nvmlDeviceGetClockInfo=lambda *_: mhz, nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: int(limited),
        **{f"nvmlClocksThrottleReason{name}": 1 << bit for bit, name in enumerate(reasons)},
    )  # fmt: skip
    monkeypatch.setattr(measure, "_nvml_of", lambda _: (nvml, "GPU"))
    measure.highest_clock.cache_clear()
    clocks = measure.Clocks(torch.device("cuda", 0))
    clocks.read()
    assert clocks.throttled is throttled
    assert (clocks.median_mhz, clocks.reasons) == (mhz, {"power cap"} if limited else set())
    measure.highest_clock.cache_clear()


@pytest.mark.gpu
def test_cuda_times_and_memory():
    device = torch.device("cuda", 0)
    n = 8192
    a = torch.randn(n, n, device=device, dtype=torch.bfloat16)
    clocks = measure.Clocks(device)
    turn = take_turn(lambda: a @ a, device, STANDARD, clocks)
    assert turn.timer == "cuda_events"
    assert 1e13 < 2 * n**3 / turn.ms * 1e3 < 3e15
    assert standard_error([turn]) < 0.02
    memory = memory_of(lambda: a @ a, device, a.nbytes)
    assert memory["extra_bytes"] >= a.nbytes
    assert memory["peak_bytes"] - memory["extra_bytes"] == torch.cuda.memory_allocated(device)


@pytest.mark.gpu
def test_host_work_stays_out_of_the_cuda_window():
    """A call that the host needs longer to enqueue than the GPU to run is timed as the GPU sees it."""
    device = torch.device("cuda", 0)
    x = torch.zeros(1024, device=device)
    calls = Calls(5e-4)  # tells the host's time, which says how far ahead the host has to be

    def run() -> None:
        start = time.perf_counter()
        while time.perf_counter() - start < 5e-4:
            pass
        x.add_(1)
        calls()

    turn = take_turn(run, device, STANDARD, now=calls.now)
    assert min(turn.samples) < 0.1  # a busy machine interrupts the host in some
    assert turn.host_ms == pytest.approx(0.5)


@pytest.mark.parametrize(("seconds_a_flop", "largest"), [(0.0, 1024), (1e-9, 256), (1e-6, 128)])
def test_a_ceiling_takes_products_that_fit_its_time(monkeypatch, seconds_a_flop, largest):
    """On CPUs that take 2 seconds for a product of 16-bit matrices a calibration of half a second took 24."""
    now, sizes = [0.0], []

    def product(a, b):
        sizes.append(len(a))
        now[0] += seconds_a_flop * 2 * len(a) ** 3

    monkeypatch.setattr(torch, "mm", product)
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    rules = replace(SHORT, min_samples=5, budget_s=1.5 * 5 * 2 * 256**3 * 1e-9)
    assert measure._size(torch.float32, rules) == largest
    assert max(sizes) <= largest
