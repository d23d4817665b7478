"""Ask a device what tiles are chosen by."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


@cache
def architecture(device: torch.device) -> int:
    """Return the compute capability as in sm_90; Triton's interpreter (no GPU) is taken for Hopper."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@cache
def multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors this device has; 132, Hopper's, where there is none."""
    if device.type != "cuda":
        return 132
    cuda: Any = torch.cuda
    return cuda.get_device_properties(device).multi_processor_count
