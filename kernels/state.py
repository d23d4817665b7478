"""The recurrent state of a linear RNN."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .types import Gating


class State(NamedTuple):
    """The recurrent state after a step, float32 (or float64 in the reference).

    Attributes:
        C: memory matrix (B, H, d_qk, d_hv); for a stabilised gate it is relative to m: the true matrix is exp(m) C.
        n: normaliser (B, H, d_qk), relative to m; None without a normaliser.
        m: stabiliser (B, H), -inf or -1e30 before anything was written; None where the gate is not stabilised.
    """

    C: Tensor
    n: Tensor | None = None
    m: Tensor | None = None


def zero_state(
    gate: Gating,
    batch: int,
    heads: int,
    d_qk: int,
    d_hv: int,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> State:
    """Return the state before the first step: C = n = 0, and m = -inf, the maximum of nothing.

    Args:
        gate: which of n and m there are.
        dtype: of all three; None is float32.
    """
    if not isinstance(gate, Gating):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"gate is a {type(gate).__name__}: it must be a tflabench.ops.Gate")

    def full(*shape: int, value: float = 0.0) -> Tensor:
        return torch.full((batch, heads, *shape), value, device=device, dtype=dtype or torch.float32)

    C, n, m = full(d_qk, d_hv), full(d_qk), full(value=-math.inf)
    return State(C, n if gate.normalize else None, m if gate.stabilized else None)


def gradient_of_state(dC: Tensor | None, dn: Tensor | None, d_hv: int) -> State | None:
    """Return the gradient of a state by those of C and n, zero for a C that nothing depends on; None for neither."""
    if dC is None and dn is not None:
        dC = dn.new_zeros((*dn.shape, d_hv))
    return None if dC is None else State(dC, dn)


def float_matrix(state: State | None) -> Tensor | None:
    """Return C as kernels read it: float32, contiguous; None for no state."""
    return None if state is None else state.C.float().contiguous()


def matrix_before(q: Tensor, v: Tensor, initial: State | None) -> Tensor:
    """Return the matrix before the first step, in at least float32."""
    work = torch.promote_types(q.dtype, torch.float32)
    if initial is None:
        return q.new_zeros((*v.shape[:2], q.shape[-1], v.shape[-1]), dtype=work)
    return initial.C.to(work)
