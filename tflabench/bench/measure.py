"""Time and memory of a callable on CUDA or the CPU; knows no kernel. Nothing else falls into a timed window."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch.cuda import Event, current_stream, synchronize

from tflabench.bench.protocol import Protocol
from tflabench.bench.timing import Turn
from tflabench.rows.schema import LEAD_LIMIT_S
from tflabench.rows.spread import relative_spread

SLOW_CALL = 2.0  # times the fastest: such a call compiled something, or allocated for the first time
HELD_BACK = 0.02  # of the clock: one held back by less lengthens a time by less than a median must be known to
GPU_CYCLES_PER_S = 2e9  # upper estimate of an SM clock, to turn seconds into cycles of the lead
STRAY_S = 50e-6  # that the device may work on once the current stream is done, and
STRAY_SHARE = 0.2  # of a call
THROTTLE_REASONS = {  # title -> end of NVML's name
    "power cap": "SwPowerCap",
    "slowdown": "HwSlowdown",
    "thermal (software)": "SwThermalSlowdown",
    "thermal (hardware)": "HwThermalSlowdown",
    "power brake": "HwPowerBrakeSlowdown",
}
# Bound before a plugin is loaded, which could replace them.
TIMERS = ((time, "perf_counter"), (torch.cuda, "synchronize"), (Event, "record"), (Event, "elapsed_time"))
BOUND = [getattr(holder, name) for holder, name in TIMERS]
record, elapsed_ms = Event.record, Event.elapsed_time


def _nothing() -> None: ...


def require_timers() -> None:
    """Raise RuntimeError where a plugin has replaced what tells the time, or waits for the device."""
    for (holder, name), bound in zip(TIMERS, BOUND, strict=True):
        if getattr(holder, name) is not bound:
            raise RuntimeError(f"a plugin replaces {holder.__name__}.{name}, which times are taken with")


def take_turn(
    run: Callable[[], object],
    device: torch.device,
    protocol: Protocol,
    clocks: Clocks | None = None,
    now: Callable[[], float] = perf_counter,
    before: Callable[[], None] = _nothing,
    unseen: Callable[[], AbstractContextManager[None]] | None = None,
) -> Turn:
    """Time a callable that has run before (nothing left to compile): warm up, then sample until the spread is small.

    Before each sample the last-level cache is flushed; on CUDA a short spin kernel goes ahead, so that the host has
    enqueued the whole call before the start event fires and its overhead stays out of the window.

    Args:
        now: tells the time in seconds.
        before: is called before each call, outside of what is timed.
        unseen: gives a block in which the callable has values that it has never had, for one sample more.

    Raises:
        StrayError: the device goes on after the current stream, which is what is timed.
    """
    cuda = device.type == "cuda"
    sampler = _CudaSampler(run, device, clocks, now, before) if cuda else _HostSampler(run, now, before)
    warmup = sampler.warm_up(protocol)
    samples: list[float] = []
    begin = now()
    while len(samples) < protocol.max_samples:
        due = max(protocol.min_samples // 3, 1) if sampler.quick else 1
        samples += sampler.sample(min(protocol.max_samples - len(samples), due))
        spent = now() - begin
        if len(samples) >= protocol.min_samples:
            if spent > protocol.budget_s or relative_spread(samples) < protocol.settled_spread:
                break
        elif len(samples) > 1 and spent > protocol.cap_s:
            break
    unseen_ms = None
    if unseen is not None:
        with unseen():
            (unseen_ms,) = sampler.sample(1)
    return Turn(samples, warmup, sampler.timer, sampler.host_ms, unseen_ms)


def memory_of(run: Callable[[], object], device: torch.device, held_bytes: int) -> dict[str, int]:
    """Return the columns `peak_bytes` and `extra_bytes` of one call, in a pass of its own.

    On CUDA the allocator's peak; on Linux CPUs the growth of the process's peak resident size, on top of `held_bytes`
    (inputs and output gradient), so that both count the same things.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        synchronize(device)
        peak = torch.cuda.max_memory_allocated(device)
        return {"peak_bytes": peak, "extra_bytes": peak - before}
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # free pages go back to the system
    before = _reset_peak_resident()
    run()
    extra = max(0, _peak_resident() - before)
    return {"peak_bytes": held_bytes + extra, "extra_bytes": extra}


class _HostSampler:
    timer = "perf_counter"
    host_ms = None

    def __init__(self, run: Callable[[], object], now: Callable[[], float], before: Callable[[], None]) -> None:
        self.run, self.now, self.before = run, now, before
        self.flush = torch.empty(_host_cache_bytes(), dtype=torch.uint8)

    def warm_up(self, protocol: Protocol) -> int:
        warm = _warm_up(self.run, _nothing, _nothing, protocol, self.now, self.before)
        self.quick = 10 * warm.call_s < protocol.cap_s
        return warm.calls

    def sample(self, count: int) -> list[float]:
        milliseconds = []
        for _ in range(count):
            self.before()
            self.flush.zero_()
            start = self.now()
            self.run()
            milliseconds.append((self.now() - start) * 1e3)
        return milliseconds


class _CudaSampler:
    timer = "cuda_events"

    def __init__(
        self,
        run: Callable[[], object],
        device: torch.device,
        clocks: Clocks | None,
        now: Callable[[], float],
        before: Callable[[], None],
    ) -> None:
        self.run, self.now, self.before = run, now, before
        self.device, self.stream = device, current_stream(device)
        self.clocks = clocks
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        self.flush = torch.empty(2 * l2_bytes, dtype=torch.uint8, device=device)
        self.lead_cycles = 0
        self.host_ms = 0.0

    def warm_up(self, protocol: Protocol) -> int:
        device = partial(synchronize, self.device)
        warm = _warm_up(self.run, self.stream.synchronize, device, protocol, self.now, self.before)
        if warm.least_stray_s > max(STRAY_S, STRAY_SHARE * warm.call_s):
            raise StrayError("works on a stream that the current one does not wait for")
        self.host_ms = 1e3 * warm.least_enqueue_s
        self.lead_cycles = int(min(2 * warm.last_enqueue_s, LEAD_LIMIT_S) * GPU_CYCLES_PER_S)
        self.quick = 10 * warm.call_s < protocol.cap_s
        return warm.calls

    def sample(self, count: int) -> list[float]:
        starts, stops = ([Event(enable_timing=True) for _ in range(count)] for _ in range(2))
        for start, stop in zip(starts, stops, strict=True):
            self.before()
            self.flush.zero_()
            torch.cuda._sleep(self.lead_cycles)
            record(start, self.stream)
            self.run()
            record(stop, self.stream)
        if self.clocks:
            self.clocks.read()  # while the queue keeps the GPU busy
        synchronize(self.device)
        return [elapsed_ms(start, stop) for start, stop in zip(starts, stops, strict=True)]


class _Warm(NamedTuple):
    """Calls made, seconds of the fastest, and seconds the host spent in one before it waited for the device.

    `least_stray_s` are seconds for which the device went on after its stream was done.
    """

    calls: int
    call_s: float
    least_stray_s: float
    least_enqueue_s: float
    last_enqueue_s: float


class StrayError(RuntimeError):
    """Raised where a call is not over when the stream is done that it is timed on."""


def _warm_up(
    run: Callable[[], object],
    wait_for_stream: Callable[[], object],
    wait_for_device: Callable[[], object],
    protocol: Protocol,
    now: Callable[[], float],
    before: Callable[[], None] = _nothing,
) -> _Warm:
    """Call as often as the protocol asks for, and on until a call took less than SLOW_CALL times the fastest.

    Slow calls are made once and no more, once they have taken `cap_s`.
    """
    calls, fastest, least, stray, begin = 0, float("inf"), float("inf"), float("inf"), now()
    while True:
        before()
        start = now()
        run()
        enqueued = now()
        wait_for_stream()
        done = now()
        wait_for_device()
        end = now()
        calls += 1
        fastest, least, stray = min(fastest, end - start), min(least, enqueued - start), min(stray, end - done)
        enough = calls >= protocol.warmup_iterations and end - begin >= protocol.warmup_s
        calm = end - start < SLOW_CALL * fastest or calls >= 5 * protocol.warmup_iterations
        if (enough and calm) or end - begin > protocol.cap_s:
            return _Warm(calls, fastest, stray, least, enqueued - start)


@dataclass
class Clocks:
    """SM clock and throttle reasons of the current GPU, read while it works; empty without nvidia-ml-py.

    Never sets a clock.

    Attributes:
        locked_mhz: to which the user says that it is locked; None where it may go as high as it can.
    """

    device: torch.device
    locked_mhz: float | None = None
    sm_mhz: list[int] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._nvml, self._handle = _nvml_of(self.device)

    @property
    def median_mhz(self) -> float | None:
        """Return the median SM clock in MHz; None where nothing was read."""
        return median(self.sm_mhz) if self.sm_mhz else None

    @property
    def throttled(self) -> bool | None:
        """Return whether the median clock was more than HELD_BACK below the highest; None where it does not tell.

        The reasons that a driver gives do not count: some rows of a slow clock have none, and a GPU at its power limit
        has one as soon as it goes a step of 15 MHz back, which is less than ratios show
        (docs/decisions/2026-11-26-throttled-by-two-percent.md).
        """
        highest = self.locked_mhz or highest_clock(self.device)
        if highest is None or self.median_mhz is None:
            return None
        return self.median_mhz < (1 - HELD_BACK) * highest

    def joules(self) -> float | None:
        """Return the energy that the GPU has taken since its driver was loaded, in J; None where it does not tell."""
        if self._nvml is None:
            return None
        try:
            return self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3
        except self._nvml.NVMLError:
            return None

    def read(self) -> None:
        """Read the SM clock and the reasons for holding it back, if there is anything to ask."""
        if self._nvml is None:
            return
        nvml = self._nvml
        try:
            self.sm_mhz.append(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM))
            bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
        except nvml.NVMLError:  # this GPU does not tell
            self._nvml = None
            return
        for title, name in THROTTLE_REASONS.items():
            if bits & getattr(nvml, f"nvmlClocksThrottleReason{name}"):
                self.reasons.add(title)


@cache
def highest_clock(device: torch.device) -> int | None:
    """Return the highest SM clock of a GPU in MHz; None where it does not tell."""
    nvml, handle = _nvml_of(device)
    if nvml is None:
        return None
    try:
        return nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
    except nvml.NVMLError:
        return None


@cache
def _nvml_of(device: torch.device) -> tuple[Any, Any]:
    """Return the library to ask and its handle of a GPU; None and None where there is nothing to ask."""
    if device.type != "cuda" or not find_spec("pynvml"):
        return None, None
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except pynvml.NVMLError:  # no right to ask: the columns stay empty
        return None, None


def _host_cache_bytes(limit: int = 64 << 20) -> int:
    """Twice the last-level cache of this CPU, at most `limit`; 32 MiB where the system does not say."""
    units = {"K": 1 << 10, "M": 1 << 20}
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text))
    return min(2 * max(sizes, default=16 << 20), limit)


def _reset_peak_resident() -> int:
    """Set the peak resident size to the present one where the system can, and return the starting point in bytes."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _peak_resident()
    return _status_bytes("VmRSS")


def _peak_resident() -> int:
    if sys.platform == "linux":
        return _status_bytes("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    raise OSError(f"/proc/self/status has no {name}")


def measure_ceilings(device: torch.device, dtypes: Sequence[str], seconds: float) -> dict[str, tuple[float, float]]:
    """Return (matrix rate in FLOP/s, copy bandwidth in byte/s, read + write) by dtype, in about `seconds` in all.

    float32 products run in true float32, as the kernels do by default.
    """
    share = Protocol("calibrate", 2, 0.02, min_samples=5, max_samples=200, budget_s=seconds / (1 + len(dtypes)))

    def best_s(run: Callable[[], object]) -> float:
        run()
        return min(take_turn(run, device, share).samples) / 1e3

    nbytes = (1 << 30) if device.type == "cuda" else (128 << 20)  # beyond any cache
    source = torch.ones(nbytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    bandwidth = 2 * nbytes / best_s(lambda: target.copy_(source))

    def matrix_rate(dtype: torch.dtype) -> float:
        n = (8192 if dtype.itemsize <= 2 else 4096) if device.type == "cuda" else _size(dtype, share)
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        product = torch.empty_like(a)
        return 2 * n**3 / best_s(lambda: torch.mm(a, b, out=product))

    return {dtype: (matrix_rate(getattr(torch, dtype)), bandwidth) for dtype in dtypes}


def _size(dtype: torch.dtype, rules: Protocol) -> int:
    """Return the rows of the largest product, of up to 1024, that a CPU makes often enough in the time that it has.

    Without 16-bit arithmetic a CPU is a hundred times slower in 16 bits than in float32.
    """
    n = 128
    while n < 1024:
        a = torch.ones(n, n, dtype=dtype)
        torch.mm(a, a)
        start = time.perf_counter()
        torch.mm(a, a)
        if rules.min_samples * 8 * (time.perf_counter() - start) > rules.budget_s:
            break
        n *= 2
    return n
