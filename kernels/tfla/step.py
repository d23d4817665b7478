"""One decode step in Triton: the state read and written once, which is all the time it takes.

C (d_qk, d_hv) is cut into blocks of columns, one program each. With a normaliser a first, tiny kernel does what the
blocks of a head share: gates, n, m and the denominator. In one kernel, some would read n and m that others replace.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.cover import cdiv, next_power_of_2
from tflabench.kernels.gates import load_log_gates
from tflabench.kernels.launching import enqueue
from tflabench.kernels.state import State
from tflabench.kernels.types import Gate

M_FLOOR = tl.constexpr(-1e30)  # as in `reference`: m stays finite where nothing was ever written


@triton.jit
def _log_gates(f, i, head, FORGET: tl.constexpr, INPUT: tl.constexpr, TEMPERATURE: tl.constexpr):
    """Log gates of one head; f, i (B * H), contiguous."""
    only = tl.zeros([1], tl.int32)
    log_f, log_i = load_log_gates(f, 0, 1, 0, i, 0, 1, 0, 0, head, only, only == 0, FORGET, INPUT, TEMPERATURE)
    return tl.sum(log_f, 0), tl.sum(log_i, 0)


@triton.jit(do_not_specialize=["sharing"])
def head_weights(
    q, k, f, i, n_before, m_before, n, m, weights, scale, sharing, d_qk,
    FORGET: tl.constexpr, INPUT: tl.constexpr, TEMPERATURE: tl.constexpr, STABILIZED: tl.constexpr,
    D_QK: tl.constexpr,
):  # fmt: skip
    """n and m of one head after the step, and its weights: what C keeps, what is written to it, scale / denominator.

    sharing: consecutive heads with one q and k.
    """
    head = tl.program_id(0).to(tl.int64)
    source = (tl.program_id(0) // sharing).to(tl.int64) * d_qk
    log_f, log_i = _log_gates(f, i, head, FORGET, INPUT, TEMPERATURE)
    kept = log_f
    m_t = 0.0
    if STABILIZED:
        kept = log_f + tl.load(m_before + head)
        m_t = tl.maximum(kept, log_i, propagate_nan=tl.PropagateNan.ALL)
        m_t = tl.maximum(m_t, M_FLOOR, propagate_nan=tl.PropagateNan.ALL)
        tl.store(m + head, m_t)
    keep, write = tl.exp(kept - m_t), tl.exp(log_i - m_t)
    d = tl.arange(0, D_QK)
    mask = d < d_qk
    k_t = tl.load(k + source + d, mask=mask, other=0.0).to(tl.float32)
    q_t = tl.load(q + source + d, mask=mask, other=0.0).to(tl.float32)
    n_t = keep * tl.load(n_before + head * d_qk + d, mask=mask, other=0.0) + write * k_t
    tl.store(n + head * d_qk + d, n_t, mask=mask)
    n_dot_q = tl.abs(tl.sum(n_t * q_t, 0) * scale)
    denominator = tl.maximum(n_dot_q, tl.exp(-m_t), propagate_nan=tl.PropagateNan.ALL)
    tl.store(weights + head * 3, keep)
    tl.store(weights + head * 3 + 1, write)
    tl.store(weights + head * 3 + 2, scale / denominator)


@triton.jit(do_not_specialize=["sharing", "heads"])
def advance_state(
    q, k, v, f, i, weights, C_before, C, h, skip, scale, sharing, heads, d_qk, d_hv,
    FORGET: tl.constexpr, INPUT: tl.constexpr, TEMPERATURE: tl.constexpr, WEIGHED: tl.constexpr,
    SKIP: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """COLS columns of C and of h for one head; weights are read if WEIGHED, else they are the gates and the scale.

    skip: (heads,), weights of v_t in h_t, read if SKIP.
    """
    blocks = tl.cdiv(d_hv, COLS)
    bh = tl.program_id(0) // blocks
    head, source = bh.to(tl.int64), (bh // sharing).to(tl.int64) * d_qk
    col = (tl.program_id(0) % blocks) * COLS + tl.arange(0, COLS)
    if WEIGHED:
        keep, write = tl.load(weights + head * 3), tl.load(weights + head * 3 + 1)
        read = tl.load(weights + head * 3 + 2)
    else:
        log_f, log_i = _log_gates(f, i, head, FORGET, INPUT, TEMPERATURE)
        keep, write = tl.exp(log_f), tl.exp(log_i)
        read = scale
    v_given = tl.load(v + head * d_hv + col, mask=col < d_hv, other=0.0).to(tl.float32)
    v_t = write * v_given
    h_t = tl.zeros([COLS], tl.float32)
    for start in range(0, d_qk, ROWS):
        row = start + tl.arange(0, ROWS)
        k_t = tl.load(k + source + row, mask=row < d_qk, other=0.0).to(tl.float32)
        q_t = tl.load(q + source + row, mask=row < d_qk, other=0.0).to(tl.float32)
        at = (head * d_qk + row[:, None]) * d_hv + col[None, :]
        mask = (row[:, None] < d_qk) & (col[None, :] < d_hv)
        C_t = keep * tl.load(C_before + at, mask=mask, other=0.0).to(tl.float32) + k_t[:, None] * v_t[None, :]
        tl.store(C + at, C_t.to(C.dtype.element_ty), mask=mask)
        h_t += tl.sum(q_t[:, None] * C_t, 0)
    h_t *= read
    if SKIP:
        h_t += tl.load(skip + bh % heads).to(tl.float32) * v_given
    tl.store(h + head * d_hv + col, h_t.to(h.dtype.element_ty), mask=col < d_hv)


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    i: Tensor | None,
    before: State,
    after: State,
    *,
    gate: Gate,
    scale: float,
    skip: Tensor | None = None,
) -> Tensor:
    """h_t (B, H, d_hv); writes the state `after`, which may be `before`. Contiguous; q, k (B, G, d_qk), f, i (B, H)."""
    heads, (d_qk, d_hv) = v.shape[0] * v.shape[1], before.C.shape[-2:]
    sharing = v.shape[1] // q.shape[1]
    h = torch.empty_like(v)
    i = f if i is None else i  # not read
    gates = {"FORGET": gate.forget, "INPUT": gate.input, "TEMPERATURE": gate.temperature}
    weights = f
    if gate.normalize:
        weights = torch.empty((heads, 3), dtype=torch.float32, device=q.device)
        enqueue(
            head_weights, heads,
            q, k, f, i, before.n, before.m, after.n, after.m, weights, scale, sharing, d_qk,
            **gates, STABILIZED=gate.stabilized, D_QK=next_power_of_2(d_qk), num_warps=1,
        )  # fmt: skip
    tile = tile_of(heads, d_qk, d_hv)
    enqueue(
        advance_state, heads * cdiv(d_hv, tile["COLS"]),
        q, k, v, f, i, weights, before.C, after.C, h, skip, scale, sharing, v.shape[1], d_qk, d_hv,
        **gates, WEIGHED=gate.normalize, SKIP=skip is not None, **tile,
    )  # fmt: skip
    return h


def tile_of(heads: int, d_qk: int, d_hv: int) -> dict[str, int]:
    """Rows at a time and columns a program, and its warps: wide where programs are many, narrow where they are few."""
    cols = 64 if heads * d_hv >= 64 * 512 else 32
    return {
        "ROWS": min(64, next_power_of_2(d_qk)),
        "COLS": min(cols, next_power_of_2(d_hv)),
        "num_warps": 4,
    }
