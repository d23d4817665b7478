"""One decode step in Triton: the state read and written once, which is all the time it takes.

C (d_qk, d_hv) is cut into blocks of columns, one program each. With a normaliser a first, tiny kernel does what the
blocks of a head share: gates, n, m and the denominator. In one kernel, some would read n and m that others replace.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.common.contract import Arguments
from tflabench.kernels.common.cover import cdiv, next_power_of_2
from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.scalar.gates import M_FLOOR, SMALLEST_DENOMINATOR, ActivationConfig, StridedGate, load_log_gates
from tflabench.kernels.state import State
from tflabench.kernels.types import Gate


class StepInputs(NamedTuple):
    """Tensors of one step, contiguous; for an absent input gate any tensor, which is not read."""

    q: Any
    k: Any
    v: Any
    f: Any
    i: Any


@dataclass(frozen=True)
class WeightsConfig:
    """Tell what `head_weights` is compiled for.

    Attributes:
        columns: the next power of two to d_qk.
    """

    activation: ActivationConfig
    stabilized: bool
    columns: int


@dataclass(frozen=True)
class AdvanceConfig:
    """Tell what `advance_state` is compiled for.

    Attributes:
        weighed: weights are read; without, they are the gates and the scale.
        rows, cols: rows of C at a time, and columns of a program.
    """

    activation: ActivationConfig
    weighed: bool
    skip: bool
    rows: int
    cols: int


@triton.jit
def _log_gates(f, i, head, config: tl.constexpr):
    """Return the log gates of one head; f, i (B * H,)."""
    only = tl.zeros([1], tl.int32)
    log_f, log_i = load_log_gates(StridedGate(f, 0, 1), 0, StridedGate(i, 0, 1), 0, 0, head, only, only == 0, config)
    return tl.sum(log_f, 0), tl.sum(log_i, 0)


@triton.jit(do_not_specialize=["sharing"])
def head_weights(inputs, before, after, weights, scale, sharing, d_qk, config: tl.constexpr):
    """Write n and m of one head after the step, and its weights.

    Args:
        inputs: `StepInputs`, v not read.  before, after: `State`, C not read.
        weights: (B * H, 3) float32, written: what C keeps, what is written to it, scale / denominator.
    """
    COLUMNS: tl.constexpr = config.columns
    ACTIVATION: tl.constexpr = config.activation
    head = tl.program_id(0).to(tl.int64)
    source = (tl.program_id(0) // sharing).to(tl.int64) * d_qk
    log_f, log_i = _log_gates(inputs.f, inputs.i, head, ACTIVATION)
    kept = log_f
    m_t = 0.0
    if config.stabilized:
        kept = log_f + tl.load(before.m + head)
        m_t = tl.maximum(kept, log_i, propagate_nan=tl.PropagateNan.ALL)
        m_t = tl.maximum(m_t, M_FLOOR, propagate_nan=tl.PropagateNan.ALL)
        tl.store(after.m + head, m_t)
    keep, write = tl.exp(kept - m_t), tl.exp(log_i - m_t)
    d = tl.arange(0, COLUMNS)
    mask = d < d_qk
    k_t = tl.load(inputs.k + source + d, mask=mask, other=0.0).to(tl.float32)
    q_t = tl.load(inputs.q + source + d, mask=mask, other=0.0).to(tl.float32)
    n_t = keep * tl.load(before.n + head * d_qk + d, mask=mask, other=0.0) + write * k_t
    tl.store(after.n + head * d_qk + d, n_t, mask=mask)
    n_dot_q = tl.abs(tl.sum(n_t * q_t, 0) * scale)
    lowest = tl.maximum(tl.exp(-m_t), SMALLEST_DENOMINATOR)
    denominator = tl.maximum(n_dot_q, lowest, propagate_nan=tl.PropagateNan.ALL)
    tl.store(weights + head * 3, keep)
    tl.store(weights + head * 3 + 1, write)
    tl.store(weights + head * 3 + 2, scale / denominator)


@triton.jit(do_not_specialize=["sharing", "heads"])
def advance_state(
    inputs, weights, C_before, C, h, skip, scale, sharing, heads, d_qk, d_hv, config: tl.constexpr
):  # fmt: skip
    """Write config.cols columns of C and of h for one head.

    Args:
        weights: as `head_weights` writes them, read if config.weighed.
        C_before, C: (B * H, d_qk, d_hv).
        h: (B * H, d_hv).
        skip: (heads,), weights of v_t in h_t, or None.
    """
    ROWS: tl.constexpr = config.rows
    COLS: tl.constexpr = config.cols
    ACTIVATION: tl.constexpr = config.activation
    blocks = tl.cdiv(d_hv, COLS)
    bh = tl.program_id(0) // blocks
    head, source = bh.to(tl.int64), (bh // sharing).to(tl.int64) * d_qk
    col = (tl.program_id(0) % blocks) * COLS + tl.arange(0, COLS)
    if config.weighed:
        keep, write = tl.load(weights + head * 3), tl.load(weights + head * 3 + 1)
        read = tl.load(weights + head * 3 + 2)
    else:
        log_f, log_i = _log_gates(inputs.f, inputs.i, head, ACTIVATION)
        keep, write = tl.exp(log_f), tl.exp(log_i)
        read = scale
    v_given = tl.load(inputs.v + head * d_hv + col, mask=col < d_hv, other=0.0).to(tl.float32)
    v_t = write * v_given
    h_t = tl.zeros([COLS], tl.float32)
    for start in range(0, d_qk, ROWS):
        row = start + tl.arange(0, ROWS)
        k_t = tl.load(inputs.k + source + row, mask=row < d_qk, other=0.0).to(tl.float32)
        q_t = tl.load(inputs.q + source + row, mask=row < d_qk, other=0.0).to(tl.float32)
        at = (head * d_qk + row[:, None]) * d_hv + col[None, :]
        mask = (row[:, None] < d_qk) & (col[None, :] < d_hv)
        C_t = keep * tl.load(C_before + at, mask=mask, other=0.0).to(tl.float32) + k_t[:, None] * v_t[None, :]
        tl.store(C + at, C_t.to(C.dtype.element_ty), mask=mask)
        h_t += tl.sum(q_t[:, None] * C_t, 0)
    h_t *= read
    if config.skip:
        h_t += tl.load(skip + bh % heads).to(tl.float32) * v_given
    tl.store(h + head * d_hv + col, h_t.to(h.dtype.element_ty), mask=col < d_hv)


def step(arguments: Arguments, after: State, *, gate: Gate, scale: float) -> Tensor:
    """Return h_t (B, H, d_hv) and write the state `after`, which may be that before; both contiguous.

    Args:
        arguments: of one step, without time axis; their `initial` is the state before it.
    """
    q, k, v = (x.contiguous() for x in arguments[:3])
    before, skip = arguments.initial, None if arguments.skip is None else arguments.skip.contiguous()
    assert before is not None
    f = arguments.f.expand(v.shape[:2]).contiguous()
    inputs = StepInputs(q, k, v, f, f if arguments.i is None else arguments.i.contiguous())
    heads, (d_qk, d_hv) = v.shape[0] * v.shape[1], before.C.shape[-2:]
    sharing = v.shape[1] // q.shape[1]
    h = torch.empty_like(v)
    activation = ActivationConfig.of(gate)
    weights = inputs.f
    if gate.normalize:
        weights = torch.empty((heads, 3), dtype=torch.float32, device=q.device)
        enqueue(
            head_weights, heads,
            inputs._replace(v=None), State(None, before.n, before.m), State(None, after.n, after.m),
            weights, scale, sharing, d_qk,
            config=WeightsConfig(activation, gate.stabilized, next_power_of_2(d_qk)), num_warps=1,
        )  # fmt: skip
    rows, cols = tile_of(heads, d_qk, d_hv)
    enqueue(
        advance_state, heads * cdiv(d_hv, cols),
        inputs, weights, before.C, after.C, h, skip, scale, sharing, v.shape[1], d_qk, d_hv,
        config=AdvanceConfig(activation, gate.normalize, skip is not None, rows, cols), num_warps=4,
    )  # fmt: skip
    return h


def tile_of(heads: int, d_qk: int, d_hv: int) -> tuple[int, int]:
    """Return rows of C at a time and columns of a program: wide where programs are many, narrow where they are few."""
    cols = 64 if heads * d_hv >= 64 * 512 else 32
    return min(64, next_power_of_2(d_qk)), min(cols, next_power_of_2(d_hv))
