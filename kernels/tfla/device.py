"""Ask a device for the figures that plans follow from."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from tflabench.kernels.plan.sizes import USUAL, Device


@cache
def architecture(device: torch.device) -> int:
    """Return the compute capability as in sm_90; Triton's interpreter has no GPU, and takes that of `USUAL`."""
    if device.type != "cuda":
        return USUAL.architecture
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@cache
def multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors this device has, those of `USUAL` where there is none."""
    if device.type != "cuda":
        return USUAL.multiprocessors
    cuda: Any = torch.cuda
    return cuda.get_device_properties(device).multi_processor_count


@cache
def figures(device: torch.device) -> Device:
    """Return the figures of a device."""
    return Device(architecture(device), multiprocessors(device))
