"""Profiles of a callable that has run before: time by GPU kernel or CPU operator, and one call for Nsight Compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from tflabench.bench.profile.counters import told_apart

Run = Callable[[], object]
LONGEST = 160  # characters of a name: templates of C++ libraries go on for pages


@dataclass(frozen=True)
class Part:
    """A GPU kernel, or on the CPU an operator of torch, within one call.

    Attributes:
        launches: of it in a call; 1 for those of a long kernel, which are told apart.
        ms: of all of these together; on the CPU without the operators that it calls.
    """

    name: str
    launches: int
    ms: float


def parts_of(run: Run, device: torch.device, calls: int) -> list[Part]:
    """Return what calls spend their time on, as medians, in the order of first launches (CPU: longest first)."""
    return _gpu_kernels(run, device, calls) if device.type == "cuda" else _cpu_operators(run, calls)


def counted_call(run: Run, device: torch.device) -> None:
    """One call between the marks that `ncu --profile-from-start off` waits for."""
    torch.cuda.synchronize(device)
    torch.cuda.profiler.start()
    run()
    torch.cuda.synchronize(device)
    torch.cuda.profiler.stop()


def _gpu_kernels(run: Run, device: torch.device, calls: int) -> list[Part]:
    flush = torch.empty(2 * torch.cuda.get_device_properties(device).L2_cache_size, dtype=torch.uint8, device=device)

    def call() -> list[tuple[str, float]]:
        flush.zero_()
        torch.cuda.synchronize(device)
        return [(event.name, event.device_time / 1e3) for event in _launches(run, device)]

    call()  # the first one sets the profiler up
    return merge([call() for _ in range(calls)])


def merge(samples: Sequence[Sequence[tuple[str, float]]]) -> list[Part]:
    """Parts of calls that are given as their launches in order, (kernel, ms): medians over the calls.

    The launches of a long kernel are told apart where all calls made the same ones.
    """
    kernels = [[name for name, _ in sample] for sample in samples]
    if all(names == kernels[0] for names in kernels):
        kernels = [told_apart(kernels[0], [ms for _, ms in samples[0]])] * len(samples)
    times: dict[str, list[list[float]]] = {}  # by name, a list a call
    for n, (names, sample) in enumerate(zip(kernels, samples, strict=True)):
        for name, (_, ms) in zip(names, sample, strict=True):
            times.setdefault(name, [[] for _ in samples])[n].append(ms)
    return [Part(name, max(map(len, by_call)), median(map(sum, by_call))) for name, by_call in times.items()]


def _cpu_operators(run: Run, calls: int) -> list[Part]:
    run()
    samples = []
    for _ in range(calls):
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            run()
        samples.append({event.key: event for event in seen.key_averages()})
    names = dict.fromkeys(name for sample in samples for name in sample)
    parts = [
        Part(
            name,
            launches=max(sample[name].count for sample in samples if name in sample),
            ms=median(sample[name].self_cpu_time_total / 1e3 if name in sample else 0.0 for sample in samples),
        )
        for name in names
    ]
    return sorted(parts, key=lambda part: -part.ms)


def launched(run: Run, device: torch.device) -> list[str] | None:
    """Return the names of the kernels that one call launches, each once, in order; None on a CPU."""
    if device.type != "cuda":
        return None
    names = (event.name for event in _launches(run, device))
    return list(dict.fromkeys(name[:LONGEST] for name in names if not name.startswith("Mem")))


def _launches(run: Run, device: torch.device) -> list[Any]:
    """Return the profiler's events of what one call launches, in order."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize(device)
    events = [event for event in seen.events() or () if event.device_type == DeviceType.CUDA]
    return sorted(events, key=lambda event: event.time_range.start)
