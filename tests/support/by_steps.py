"""The definition of a recurrence: its reference, step after step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tflabench.ops import State


def by_steps(
    decode: Any, q: Tensor, k: Tensor, v: Tensor, f: Tensor | None, i: Tensor | None, state: State, scale: Any = None
) -> tuple[Tensor, State]:
    """Outputs (B, H, T, d_hv), and the state after the last step."""
    outputs = []
    for t in range(v.shape[2]):
        now = (None if x is None else x[:, :, t] for x in (q, k, v, f, i))
        o, state = decode(*now, state, gate=None, scale=scale)
        outputs.append(o)
    return torch.stack(outputs, 2), state
