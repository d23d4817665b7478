"""Measured ceilings of a device: how fast it copies, and how fast it multiplies matrices of each dtype."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from tflabench.bench.measure import take_turn
from tflabench.bench.protocol import Protocol


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
