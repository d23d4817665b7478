"""Offer the fused kernels by the names of `Kernels`: what they take, and how often they materialise a state."""

from __future__ import annotations

import torch
from torch import Tensor

from tflabench.kernels.common import device
from tflabench.kernels.common.sizes import Sizes, refuses_dtype
from tflabench.kernels.scalar.plan import hopper as plans
from tflabench.kernels.scalar.plan.hopper_shapes import ARCHITECTURE, DTYPES, refuses_sizes
from tflabench.kernels.types import Gate

from .backward import backward
from .documents import takes as takes_documents
from .forward import empty_saved, forward

__all__ = ["backward", "empty_saved", "forward", "takes_documents"]


def exchanges(gate: Gate) -> bool:
    """Return whether states are exchanged: a normaliser's exponents would have to be made anew."""
    return not gate.normalize


def refuses(q: Tensor, v: Tensor, *, gate: Gate, chunk_size: int, config: object = None) -> str | None:
    """Return why these kernels cannot run on q (B, H, T, d_qk) and v (B, H, T, d_hv), or None if they can."""
    del gate  # all of them
    if reason := refuses_hardware(q, DTYPES):
        return reason
    if reason := refuses_sizes(q.shape[-1], v.shape[-1], chunk_size):
        return reason
    return None if config is None else f"takes no config, not a {type(config).__name__}"


def refuses_hardware(q: Tensor, dtypes: tuple[str, ...]) -> str | None:
    """Return why fused kernels of these dtypes cannot run where q is, or on its dtype, or None if they can."""
    if q.device.type != "cuda" or device.figures(q.device).architecture != ARCHITECTURE:
        name = torch.cuda.get_device_name(q.device) if q.device.type == "cuda" else q.device
        return f"needs a GPU of compute capability {ARCHITECTURE / 10}, not {name}"
    return refuses_dtype(str(q.dtype).removeprefix("torch."), dtypes)


def default_chunk_size(q: Tensor, v: Tensor, *, gate: Gate, backward: bool = True) -> int:
    """Return the L that fills the chip (see `plan/hopper_segments.py`)."""
    if refuses(q, v, gate=gate, chunk_size=64):
        return 64
    return plans.default_chunk_size(
        Sizes.of(q, v), device.figures(q.device), normalise=gate.normalize, backward=backward
    )
