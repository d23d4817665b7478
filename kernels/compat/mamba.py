"""Mamba 2's scan as mamba-ssm (2.3) calls it.

    from tflabench.kernels.compat.mamba import mamba_chunk_scan_combined
    # was: from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

All tensors have the layout (batch, seqlen, heads, ...), states (batch, heads, headdim, dstate). What differs: these
kernels choose their own chunk size, so `chunk_size` changes nothing, and a step size of exactly 0 gets the gradient
that flows through the decay alone.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from tflabench.kernels.api import chunkwise
from tflabench.kernels.checks import check_mamba2, check_tensor
from tflabench.kernels.mamba2.epilogue import skip_and_gate
from tflabench.kernels.scalar.operations import mamba2_ssd
from tflabench.kernels.state import State
from tflabench.kernels.types import Gate

NO_LIMIT = (0.0, float("inf"))

P = ParamSpec("P")
Call = TypeVar("Call")
Result = TypeVar("Result")


class ScanArguments(NamedTuple):
    """The parameters of mamba-ssm's `mamba_chunk_scan_combined`, in its order.

    Attributes:
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
    """

    x: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    chunk_size: int
    D: Tensor | None = None
    z: Tensor | None = None
    dt_bias: Tensor | None = None
    initial_states: Tensor | None = None
    seq_idx: Tensor | None = None
    cu_seqlens: Tensor | None = None
    dt_softplus: bool = False
    dt_limit: tuple[float, float] = NO_LIMIT
    return_final_states: bool = False
    return_varlen_states: bool = False


def takes(arguments: Callable[P, Call]) -> Callable[[Callable[[Call], Result]], Callable[P, Result]]:
    """Return a decorator: the function takes what the tuple `arguments` is made of, by place or by name."""

    def decorated(function: Callable[[Call], Result]) -> Callable[P, Result]:
        def called(*args: P.args, **named: P.kwargs) -> Result:
            return function(arguments(*args, **named))

        functools.update_wrapper(called, function)
        del vars(called)["__wrapped__"]  # its one parameter is for nobody to see
        called.__signature__ = inspect.signature(arguments)  # type: ignore[attr-defined]
        return called

    return decorated


@takes(ScanArguments)
def mamba_chunk_scan_combined(call: ScanArguments) -> Tensor | tuple[Tensor, ...]:
    """Compute y = (scan + D x) * silu(z); see `ops.mamba2_ssd` for the recurrence.

    Returns:
        y like x, or a tuple of it and the states asked for, in the order of the flags.
    """
    x, dt, A, B, C, _, D, z, dt_bias = call[:9]
    start = None
    if call.initial_states is not None:
        check_tensor("x", x, x)
        start = State(check_tensor("initial_states", call.initial_states, x, "x").mT)
    if call.dt_softplus and call.dt_limit == NO_LIMIT and call.seq_idx is None:
        y, last = mamba2_ssd(
            x, dt, A, B, C, D=D, z=z, dt_bias=dt_bias, dt_softplus=True,
            layout="bthd", initial_state=start, return_last_state=True,
        )  # fmt: skip
    else:
        check_mamba2(x, dt, A, B, C, (D, z, dt_bias), "BTH")
        step = _step_size(call)
        log_decay = step * A.to(step.dtype)
        if call.seq_idx is not None:
            begins = pad(call.seq_idx[:, 1:] != call.seq_idx[:, :-1], (1, 0), value=False)
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
    states = [last.C.mT] if call.return_final_states else []
    if call.return_varlen_states:
        if call.cu_seqlens is None:
            raise ValueError("cu_seqlens is None: it must have the bounds of the sequences for return_varlen_states")
        states.append(_states_after(call, call.cu_seqlens, start))
    return (y, *states) if states else y


def _step_size(call: ScanArguments) -> Tensor:
    step = call.dt.to(torch.promote_types(call.dt.dtype, torch.float32))
    if call.dt_bias is not None:
        step = step + call.dt_bias
    if call.dt_softplus:
        step = softplus(step)
    return step.clamp(*call.dt_limit)


@torch.no_grad()
def _states_after(call: ScanArguments, cu_seqlens: Tensor, start: State | None) -> Tensor:
    """Return the state after each sequence of a batch of one, (N, heads, headdim, dstate); `start` is the first's."""
    x, _, A, B, C = call[:5]
    if start is not None:
        start = State(pad(start.C, (0, 0, 0, 0, 0, 0, 0, cu_seqlens.numel() - 2)))
    _, last = mamba2_ssd(
        x, _step_size(call), A, B, C, layout="bthd", initial_state=start, return_last_state=True, cu_seqlens=cu_seqlens
    )
    return last.C.mT
