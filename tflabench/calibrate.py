"""Measured ceilings of a device: how fast it copies, and how fast it multiplies matrices of each dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tflabench.measure import time_calls
from tflabench.protocol import Protocol


def measure_ceilings(device: torch.device, dtypes: Sequence[str], seconds: float) -> dict[str, tuple[float, float]]:
    """(matrix rate in FLOP/s, copy bandwidth in byte/s, read + write) by dtype, in about `seconds` in all.

    float32 products run in true float32, as the kernels do by default.
    """
    share = Protocol("calibrate", 2, 0.02, min_samples=5, max_samples=200, budget_s=seconds / (1 + len(dtypes)))

    def best_s(run: Callable[[], object]) -> float:
        run()
        return time_calls(run, device, share).ms_min / 1e3

    nbytes = (1 << 30) if device.type == "cuda" else (128 << 20)  # beyond any cache
    source = torch.ones(nbytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    bandwidth = 2 * nbytes / best_s(lambda: target.copy_(source))
    return {dtype: (_matrix_rate(getattr(torch, dtype), device, best_s), bandwidth) for dtype in dtypes}


def _matrix_rate(dtype: torch.dtype, device: torch.device, best_s: Callable[[Callable[[], object]], float]) -> float:
    n = (8192 if dtype.itemsize <= 2 else 4096) if device.type == "cuda" else 1024
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    product = a @ b
    return 2 * n**3 / best_s(lambda: torch.mm(a, b, out=product))
