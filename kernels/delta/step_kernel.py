"""One decode step of a delta rule in Triton: the state read and written once.

Programs have some columns of a state, all of its rows: to correct a column takes what k reads of all of it.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tflabench.kernels.common.contract import Arguments
from tflabench.kernels.common.cover import cdiv, next_power_of_2
from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.common.rows import load_matrix, load_vector, store_matrix
from tflabench.kernels.scalar.step_kernel import StepInputs
from tflabench.kernels.state import State
from tflabench.kernels.types import Gating

ELEMENTS = 4096  # of a state in a program, at most where d_qk is up to 256
MOST_COLUMNS = 32


@triton.jit(do_not_specialize=["sharing"])
def correct_state(
    inputs, before, after, o, scale, sharing, d_qk, d_hv,
    OF_CHANNELS: tl.constexpr, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write COLUMNS columns of the state of one head, and of o.

    Args:
        inputs: q and k, each for `sharing` consecutive heads of v; f, the log decays (B * H,), with OF_CHANNELS
            (B * H, d_qk), or None; i, which is beta.
        before, after: (B * H, d_qk, d_hv).  o: (B * H, d_hv).
    """
    blocks = tl.cdiv(d_hv, COLUMNS)
    head = tl.program_id(0) // blocks
    u = tl.arange(0, CHANNELS)
    column = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    state = load_matrix(before, head, u, column, d_qk, d_hv).to(tl.float32)
    if inputs.f is not None:
        if OF_CHANNELS:
            state *= tl.exp(load_vector(inputs.f, head, u, d_qk).to(tl.float32))[:, None]
        else:
            state *= tl.exp(tl.load(inputs.f + head).to(tl.float32))
    k_t = load_vector(inputs.k, head // sharing, u, d_qk).to(tl.float32)[:, None]
    q_t = load_vector(inputs.q, head // sharing, u, d_qk).to(tl.float32)[:, None]
    error = load_vector(inputs.v, head, column, d_hv).to(tl.float32) - tl.sum(k_t * state, 0)
    state += k_t * (tl.load(inputs.i + head).to(tl.float32) * error)[None, :]
    store_matrix(after, state, head, u, column, d_qk, d_hv)
    o_t = scale * tl.sum(q_t * state, 0)
    tl.store(o + head.to(tl.int64) * d_hv + column, o_t.to(o.dtype.element_ty), mask=column < d_hv)


def step(arguments: Arguments, after: State, *, gate: Gating, scale: float) -> torch.Tensor:
    """Return o_t (B, H, d_hv) and write the state `after`, which may be that before; both contiguous.

    Args:
        arguments: of one step, without time axis; their `initial` is the state before it.
    """
    inputs, before = StepInputs(*(None if x is None else x.contiguous() for x in arguments[:5])), arguments.initial
    assert before is not None
    d_qk, d_hv = before.C.shape[-2:]
    channels = next_power_of_2(d_qk)
    columns = min(next_power_of_2(d_hv), MOST_COLUMNS, max(16, ELEMENTS // channels))
    o = torch.empty_like(inputs.v)
    (batch, heads, _), sharing = o.shape, o.shape[1] // inputs.q.shape[1]
    enqueue(
        correct_state, batch * heads * cdiv(d_hv, columns),
        inputs, before.C, after.C, o, scale, sharing, d_qk, d_hv,
        OF_CHANNELS=gate.forget_of == "channel", CHANNELS=channels, COLUMNS=columns, num_warps=4,
    )  # fmt: skip
    return o
