"""Mamba 2's scan as mamba-ssm (2.3) calls it.

    from tflabench.kernels.compat.mamba import mamba_chunk_scan_combined
    # was: from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

All tensors have the layout (batch, seqlen, heads, ...), states (batch, heads, headdim, dstate). What differs: these
kernels choose their own chunk size, so `chunk_size` changes nothing, and a step size of exactly 0 gets the gradient
that flows through the decay alone.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from tflabench.kernels.api import chunkwise, mamba2_ssd
from tflabench.kernels.checks import check_mamba2
from tflabench.kernels.epilogue import skip_and_gate
from tflabench.kernels.state import State
from tflabench.kernels.types import Gate

NO_LIMIT = (0.0, float("inf"))


def mamba_chunk_scan_combined(  # noqa: PLR0913  mamba-ssm's
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = NO_LIMIT,
    return_final_states: bool = False,
    return_varlen_states: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """Compute y = (scan + D x) * silu(z); see `api.mamba2_ssd` for the recurrence.

    Args:
        x: (batch, seqlen, heads, headdim); dt: (batch, seqlen, heads); A: (heads,), <= 0.
        B, C: (batch, seqlen, groups, dstate).
        chunk_size: of mamba-ssm's kernels, without effect here.
        D: (heads,) or (heads, headdim); z: like x; dt_bias: (heads,).
        initial_states: (batch, heads, headdim, dstate).
        seq_idx: (batch, seqlen) integers; where they change, a new sequence begins from nothing.
        cu_seqlens: (N + 1), bounds of the sequences, read with `return_varlen_states` alone.
        dt_softplus: whether the step size is softplus(dt + dt_bias) and not dt + dt_bias.
        dt_limit: the step size is clamped to it.
        return_final_states: return the states after the last step too, float32 like `initial_states`.
        return_varlen_states: return the states after each of the sequences too, (N, heads, headdim, dstate); without
            gradient, and each sequence is run again for it.

    Returns:
        y like x, or a tuple of it and the states asked for, in the order of the flags.
    """
    del chunk_size
    start = None if initial_states is None else State(initial_states.mT)
    if dt_softplus and dt_limit == NO_LIMIT and seq_idx is None:
        y, last = mamba2_ssd(
            x, dt, A, B, C, D=D, z=z, dt_bias=dt_bias, dt_softplus=True,
            layout="bthd", initial_state=start, return_last_state=True,
        )  # fmt: skip
    else:
        check_mamba2(x, dt, A, B, C, D, z, dt_bias, "BTH")
        step = _step_size(dt, dt_bias, dt_softplus, dt_limit)
        log_decay = step * A.to(step.dtype)
        if seq_idx is not None:
            begins = pad(seq_idx[:, 1:] != seq_idx[:, :-1], (1, 0), value=False)
            log_decay = log_decay.masked_fill(begins[..., None], float("-inf"))
        y, last = chunkwise(
            *(C, B, x, log_decay, step),
            gate=Gate("log_decay", "step"),
            scale=1.0,
            layout="bthd",
            initial_state=start,
            return_last_state=True,
        )
        y = skip_and_gate(y, x, D, z, head_axis=2)
    states = [last.C.mT] if return_final_states else []
    if return_varlen_states:
        if cu_seqlens is None:
            raise ValueError("cu_seqlens is None: it must have the bounds of the sequences for return_varlen_states")
        step = _step_size(dt, dt_bias, dt_softplus, dt_limit).detach()
        states.append(_states_after(x, step, A, B, C, cu_seqlens))
    return (y, *states) if states else y


def _step_size(dt: Tensor, dt_bias: Tensor | None, dt_softplus: bool, dt_limit: tuple[float, float]) -> Tensor:
    step = dt.to(torch.promote_types(dt.dtype, torch.float32))
    if dt_bias is not None:
        step = step + dt_bias
    if dt_softplus:
        step = softplus(step)
    return step.clamp(*dt_limit)


@torch.no_grad()
def _states_after(x: Tensor, step: Tensor, A: Tensor, B: Tensor, C: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Return the state after each sequence of a batch of one, (N, heads, headdim, dstate)."""
    found = mamba2_ssd(x, step, A, B, C, layout="bthd", return_last_state=True, cu_seqlens=cu_seqlens)
    return found[1].C.mT
