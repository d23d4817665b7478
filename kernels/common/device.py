"""Ask a device for the figures that plans follow from."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from triton import knobs  # pyright: ignore[reportMissingTypeStubs]

from tflabench.kernels.common.contract import KernelOptions
from tflabench.kernels.common.sizes import USUAL, Device, in_steps, refuses_dtype
from tflabench.kernels.common.tiling import DTYPES


@cache
def figures(device: torch.device) -> Device:
    """Return the figures of a device; Triton's interpreter has no GPU, and takes those of `USUAL`."""
    if device.type != "cuda":
        return USUAL
    cuda: Any = torch.cuda
    properties = cuda.get_device_properties(device)
    clock = getattr(properties, "memory_clock_rate", 0)  # kHz; AMD's drivers may not tell
    width = getattr(properties, "memory_bus_width", 0)  # bits, two for each clock
    bandwidth = in_steps(2e3 * clock * width / 8) if clock and width else USUAL.bandwidth
    return Device(10 * properties.major + properties.minor, properties.multi_processor_count, bandwidth)


def figures_of(q: Tensor, options: KernelOptions) -> Device:
    """Return the figures that the plan of a call with q (B, H, T, d_qk) follows from."""
    of_device = figures(q.device)
    return of_device.times(q.shape[0]) if options.deterministic_layout else of_device


def float32_precision(dtype: torch.dtype) -> str:
    """Return "ieee", or "tf32" for float32 where the user allowed it (`torch.set_float32_matmul_precision`)."""
    return "tf32" if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest" else "ieee"


def refuses_device(q: Tensor) -> str | None:
    """Return why Triton kernels cannot run where q is, or None if they can."""
    if q.device.type == "cuda":
        architecture = figures(q.device).architecture
        return None if architecture >= 80 else f"needs compute capability 8.0 or later, not {architecture / 10}"
    if not knobs.runtime.interpret:
        return f"needs a CUDA device, not {q.device} (or TRITON_INTERPRET=1)"
    if q.dtype == torch.bfloat16:
        return "takes no bfloat16 in Triton's interpreter, which multiplies its bits as integers"
    return None


def refuses_tensors(
    q: Tensor, v: Tensor, chunk_size: int, config: object, refuses_sizes: Callable[[int, int, int], str | None]
) -> str | None:
    """Return why Triton kernels without a config cannot run on q (B, H, T, d_qk) and v (B, H, T, d_hv), or None.

    Args:
        refuses_sizes: (d_qk, d_hv, chunk size) -> why their plan refuses these, or None.
    """
    if reason := refuses_device(q) or refuses_dtype(str(q.dtype).removeprefix("torch."), DTYPES):
        return reason
    if reason := refuses_sizes(q.shape[-1], v.shape[-1], chunk_size):
        return reason
    return None if config is None else f"takes no config, not a {type(config).__name__}"
