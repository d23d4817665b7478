"""The mLSTM as NX-AI's libraries and transformers call it: states are (C, n, m), with m of shape (B, H, 1)."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from tflabench.kernels.api import chunkwise
from tflabench.kernels.state import State
from tflabench.kernels.step import step
from tflabench.kernels.types import MLSTM_EXP, Gate

States: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor | None]
LastStates: TypeAlias = tuple[Any, Any, Any]  # tensors, but for n and m where the gate has none
NOTHING: States = (None, None, None)

# The libraries add eps to the denominator of h, ours do not. Up to here that is rounding; it cancels in the norm that
# follows, as the denominator does.
LARGEST_EPS = 1e-5
TOO_LARGE_EPS = f"its eps is above {LARGEST_EPS}: ours add none"


def sequence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    states: States,
    *,
    gate: Gate = MLSTM_EXP,
    state_dtype: torch.dtype | None = None,
    scale: float | None = None,
    return_last_states: bool = True,
) -> tuple[Tensor, LastStates]:
    """Compute the mLSTM on a sequence of any length.

    Args:
        q, k: (B, H, T, d_qk); v: (B, H, T, d_hv); any strides.
        i, f: pre-activations of the gates (B, H, T).
        states: C (B, H, d_qk, d_hv), n (B, H, d_qk) and m (B, H, 1) before the first step, each None for zeros.
        gate: MLSTM_EXP, or one with a sigmoid input gate, which has no m.
        state_dtype: of the states returned; None is float32.
        scale: of q; None is 1/sqrt(d_qk).
        return_last_states: whether the states after the last step are asked for.

    Returns:
        h (B, H, T, d_hv) in the dtype of q, and the states after the last step, m as (B, H, 1), or (None, None, None).
    """
    initial = None if all(x is None for x in states) else _state(q, v, states, gate)
    if not return_last_states:
        return chunkwise(q, k, v, f, i, gate=gate, initial_state=initial, scale=scale).to(q.dtype), NOTHING
    h, last = chunkwise(q, k, v, f, i, gate=gate, initial_state=initial, return_last_state=True, scale=scale)
    return h.to(q.dtype), _as_theirs(last, state_dtype)


def one_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    states: States,
    *,
    state_dtype: torch.dtype | None = None,
    scale: float | None = None,
) -> tuple[Tensor, LastStates]:
    """Compute one step of the mLSTM with exponential input gate, with gradients where they are asked for.

    Args:
        q, k: (B, H, d_qk); v: (B, H, d_hv).
        i, f: pre-activations of the gates (B, H, 1).
        states, state_dtype, scale: as for `sequence`; the states given stay as they are.

    Returns:
        h (B, H, d_hv) in the dtype of q, and the states after the step, m as (B, H, 1).
    """
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, i, f, *states)):
        more: dict[str, Any] = {"state_dtype": state_dtype, "scale": scale}
        h, last = sequence(q[:, :, None], k[:, :, None], v[:, :, None], i, f, states, **more)
        return h[:, :, 0], last
    given: Any = _state(q[:, :, None], v[:, :, None], states, MLSTM_EXP)
    before = State(*(x.contiguous() for x in given))
    after = State(*(torch.empty_like(x) for x in before if x is not None))
    with torch.no_grad():
        h = step(q, k, v, f[..., 0], i[..., 0], before, gate=MLSTM_EXP, out=after, scale=scale)
    return h.to(q.dtype), _as_theirs(after, state_dtype)


def infer(
    state_dtype: torch.dtype, q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, **initial: Tensor | None
) -> tuple[Tensor, LastStates]:
    """Compute a decode step where T is 1, or else a sequence, as the inference mode of the libraries does.

    Args:
        state_dtype: of the states returned.
        initial: c_initial, n_initial and m_initial, each None for zeros; all else as for `sequence`.

    Raises:
        ValueError: q has no steps.
    """
    if q.shape[2] == 0:
        raise ValueError("q has no steps: there must be one at least")
    states = initial.get("c_initial"), initial.get("n_initial"), initial.get("m_initial")
    if q.shape[2] > 1:
        return sequence(q, k, v, i, f, states, state_dtype=state_dtype)
    h, last = one_step(q[:, :, 0], k[:, :, 0], v[:, :, 0], i, f, states, state_dtype=state_dtype)
    return h[:, :, None], last


def _state(q: Tensor, v: Tensor, states: States, gate: Gate) -> State:
    """Return the state that ours continue from, in float32; of float64 inputs in float64."""
    (B, H, _, d_qk), d_hv = q.shape, v.shape[-1]
    copied = torch.is_grad_enabled()  # models write to their caches in place, and backward needs what was there
    wide = torch.promote_types(q.dtype, torch.float32)
    C, n, m = (
        q.new_zeros(shape, dtype=wide) if x is None else x.to(wide, copy=copied)
        for x, shape in zip(states, ((B, H, d_qk, d_hv), (B, H, d_qk), (B, H, 1)), strict=True)
    )
    return State(C, n if gate.normalize else None, m[..., 0] if gate.stabilized else None)


def _as_theirs(state: State, dtype: torch.dtype | None) -> LastStates:
    C, n, m = state
    if dtype is not None:
        C, n, m = (None if x is None else x.to(dtype) for x in state)
    return C, n, None if m is None else m[..., None]
