"""Time and memory of callables whose answer is known."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from statistics import quantiles

import pytest
import torch

from tflabench.bench import calibrate, measure
from tflabench.bench.measure import memory_of, relative_spread, time_calls
from tflabench.bench.protocol import PAPER, SHORT, STANDARD

CPU = torch.device("cpu")
MiB = 1 << 20


class Calls:
    """Sleeps for the given seconds, one after the other, the last one for good; counts."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = seconds
        self.count = 0

    def __call__(self) -> None:
        time.sleep(self.seconds[min(self.count, len(self.seconds) - 1)])
        self.count += 1


def test_times_are_of_one_call():
    timing = time_calls(Calls(0.005), CPU, SHORT)
    assert 5.0 <= timing.ms_min <= timing.ms_p20 <= timing.ms_median <= timing.ms_p80
    assert timing.ms_min < 20
    assert timing.timer == "perf_counter"
    assert timing.host_ms is None  # the time above is the host's


def test_the_papers_protocol_takes_exactly_its_samples(monkeypatch):
    monkeypatch.setattr(measure, "SLOW_CALL", float("inf"))
    calls = Calls(0.0)
    timing = time_calls(calls, CPU, PAPER)
    assert (timing.warmup, timing.samples, calls.count) == (10, 30, 40)


def test_warm_up_lasts_by_time_and_by_calls():
    timing = time_calls(Calls(0.001), CPU, replace(SHORT, warmup_iterations=3, warmup_s=0.05))
    assert 10 <= timing.warmup <= 50  # 50 ms of calls of 1 ms and a little
    timing = time_calls(Calls(0.02), CPU, replace(SHORT, warmup_iterations=3, warmup_s=0.0))
    assert timing.warmup >= 3


def test_the_host_s_time_is_the_least_of_a_warm_up():
    rules = replace(SHORT, warmup_iterations=3, warmup_s=0.0)
    _, least_s, last_s = measure._warm_up(Calls(0.03, 0.002, 0.03), lambda: time.sleep(0.1), rules)
    assert 0.002 <= least_s < 0.03 <= last_s < 0.1  # without the wait for the device


def test_a_compilation_late_in_the_warm_up_stays_out_of_the_samples():
    timing = time_calls(Calls(0.001, 0.001, 0.2, 0.001), CPU, replace(SHORT, warmup_iterations=3, warmup_s=0.0))
    assert timing.warmup > 3
    assert timing.ms_p80 < 100


def test_sampling_goes_on_until_the_budget_where_it_does_not_settle():
    restless = Calls(*([0.001, 0.004] * 200))
    rules = replace(SHORT, warmup_iterations=1, min_samples=9, max_samples=300, budget_s=0.2)
    timing = time_calls(restless, CPU, rules)
    assert timing.noisy
    assert 9 <= timing.samples < 300


def test_settled_samples_end_early(monkeypatch):
    monkeypatch.setattr(measure._HostSampler, "sample", lambda self, count: [1.0] * count)
    timing = time_calls(lambda: None, CPU, STANDARD)
    assert (timing.samples, timing.noisy, timing.ms_median) == (STANDARD.min_samples, False, 1.0)


def test_relative_spread():
    low, middle, high = quantiles([1.0, 2.0, 3.0, 4.0, 5.0], n=4, method="inclusive")
    assert relative_spread([1.0, 2.0, 3.0, 4.0, 5.0]) == (high - low) / middle


@pytest.mark.skipif(sys.platform != "linux", reason="the peak can only be reset on Linux")
@pytest.mark.parametrize("mebibytes", [8, 96])
def test_memory_of_one_call(mebibytes):
    """In a process of its own, as points are measured: here, what earlier tests left of the heap would decide."""
    code = f"""
import torch
from tflabench.bench.measure import memory_of

MiB = 1 << 20
kept = torch.ones(64 * MiB, dtype=torch.uint8)  # what is there before does not count
torch.ones(256 * MiB, dtype=torch.uint8)  # nor what was, and is gone

def run():
    first = torch.ones({mebibytes} * MiB, dtype=torch.uint8)
    del first
    torch.ones({mebibytes} * MiB, dtype=torch.uint8)

memory = memory_of(run, torch.device("cpu"), held_bytes=kept.nbytes)
print(memory.extra_bytes, memory.peak_bytes)
"""
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    extra_bytes, peak_bytes = map(int, printed.split())
    assert extra_bytes == pytest.approx(mebibytes * MiB, abs=4 * MiB)
    assert peak_bytes == extra_bytes + 64 * MiB


@pytest.mark.gpu
def test_cuda_times_and_memory():
    device = torch.device("cuda", 0)
    n = 8192
    a = torch.randn(n, n, device=device, dtype=torch.bfloat16)
    clocks = measure.Clocks(device)
    timing = time_calls(lambda: a @ a, device, STANDARD, clocks)
    assert timing.timer == "cuda_events"
    assert 1e13 < 2 * n**3 / timing.ms_median * 1e3 < 3e15
    assert not timing.noisy
    memory = memory_of(lambda: a @ a, device, a.nbytes)
    assert memory.extra_bytes >= a.nbytes
    assert memory.peak_bytes - memory.extra_bytes == torch.cuda.memory_allocated(device)


@pytest.mark.gpu
def test_host_work_stays_out_of_the_cuda_window():
    """A call that the host needs longer to enqueue than the GPU to run is timed as the GPU sees it."""
    device = torch.device("cuda", 0)
    x = torch.zeros(1024, device=device)

    def run() -> None:
        start = time.perf_counter()
        while time.perf_counter() - start < 5e-4:
            pass
        x.add_(1)

    timing = time_calls(run, device, STANDARD)
    assert timing.ms_median < 0.1
    assert timing.host_ms is not None
    assert 0.5 <= timing.host_ms < 2


@pytest.mark.parametrize(("seconds_a_flop", "largest"), [(0.0, 1024), (1e-9, 256), (1e-6, 128)])
def test_a_ceiling_takes_products_that_fit_its_time(monkeypatch, seconds_a_flop, largest):
    """On CPUs that take 2 seconds for a product of 16-bit matrices a calibration of half a second took 24."""
    now, sizes = [0.0], []

    def product(a, b):
        sizes.append(len(a))
        now[0] += seconds_a_flop * 2 * len(a) ** 3

    monkeypatch.setattr(torch, "mm", product)
    monkeypatch.setattr(calibrate.time, "perf_counter", lambda: now[0])
    rules = replace(SHORT, min_samples=5, budget_s=1.5 * 5 * 2 * 256**3 * 1e-9)
    assert calibrate._size(torch.float32, rules) == largest
    assert max(sizes) <= largest
