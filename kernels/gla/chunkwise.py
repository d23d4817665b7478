"""Run forward and backward of TFLA for Gated Linear Attention, kernel by kernel.

forward:  weighted q and k, scores of tiles (scores) -> states of chunks (states) -> o (outputs)
backward: the first two again -> gradients of states, backward in time (states) -> dv (outputs), dq, dk, dg (gradients)

States lie in memory every L steps, in the dtype of q: the products that read them take operands of it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton import knobs  # pyright: ignore[reportMissingTypeStubs]

from tflabench.kernels.common import device, tiling
from tflabench.kernels.common.descriptors import made_like
from tflabench.kernels.gla import plan as plans

from .call import Arguments, Call
from .gradients import States, gradients
from .outputs import d_values, outputs
from .scores import weigh
from .states import Side, walk

DTYPES: tuple[torch.dtype, ...] = tuple(getattr(torch, name) for name in tiling.DTYPES)


def refuses(q: Tensor, v: Tensor, chunk_size: int | None) -> str | None:
    """Return why these kernels cannot run on q (B, H, T, d_qk) and v (B, H, T, d_hv), or None if they can."""
    if q.device.type == "cuda":
        architecture = device.architecture(q.device)
        if architecture < 80:
            return f"needs compute capability 8.0 or later, not {architecture / 10}"
    elif not knobs.runtime.interpret:
        return f"needs a CUDA device, not {q.device} (or TRITON_INTERPRET=1)"
    elif q.dtype == torch.bfloat16:
        return "takes no bfloat16 in Triton's interpreter, which multiplies its bits as integers"
    if q.dtype not in DTYPES:
        return f"takes bfloat16, float16 and float32, not {q.dtype}"
    return plans.refuses_sizes(q.shape[-1], v.shape[-1], chunk_size)


def forward(
    arguments: Arguments, *, scale: float, chunk_size: int, bounds: tuple[int, ...] | None = None
) -> tuple[Tensor, Tensor]:
    """Return o like v, and the last state (B, H, d_qk, d_hv) float32.

    Args:
        arguments: q, k and v are one of DTYPES.
        scale: of q.
        chunk_size: L, a multiple of 16; how often a state lies in memory.
        bounds: where documents begin and end, [0, ..., T], that lie end to end along T in a batch of one; each has its
            states, (documents, H, ...). None for sequences.
    """
    q, k, v, g, initial = arguments
    call = Call.of(arguments, chunk_size, scale, bounds)
    weighted = weigh(call, q, k, g)
    states = walk(call, Side(weighted.k, v, weighted.totals, _contiguous(initial)))
    return outputs(call, weighted, v, states.states, initial is not None), states.last


def backward(
    do: Tensor,
    d_last: Tensor | None,
    arguments: Arguments,
    *,
    scale: float,
    chunk_size: int,
    gate_gradients: bool,
    bounds: tuple[int, ...] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return dq, dk, dv, dg and the gradient of the initial state, None without one, or without `gate_gradients`.

    Args:
        do: gradient of o; d_last: of the last state, or None; the others as given to `forward`.
    """
    q, k, v, g, initial = arguments
    call = Call.of(arguments, chunk_size, scale, bounds)
    weighted = weigh(call, q, k, g)
    first = _contiguous(initial)
    states = walk(call, Side(weighted.k, v, weighted.totals, first)).states
    side = Side(weighted.q, do, weighted.totals, _contiguous(d_last), other=states, reverse=True)
    back = walk(call, side)
    assert back.crossing is not None
    if first is not None:  # as it was given, where the walk has it rounded
        crossing = (first * back.last).sum(-1)
        if call.places:
            back.crossing[0].index_copy_(1, call.places.gaps[:-1] + 1, crossing.transpose(0, 1))
        else:
            back.crossing[:, :, 0] = crossing
    dv = d_values(call, weighted, v, do, back.states, d_last is not None)
    dq, dk, dg = gradients(
        *(call, arguments, do, weighted),
        states=States(states, back.states),
        crossing=back.crossing,
        edges=(initial is not None or call.places is not None, d_last is not None or call.places is not None),
        gates=gate_gradients,
    )
    made = [made_like(x, like) for x, like in ((dq, q), (dk, k), (dv, v))]
    dq, dk, dv = made
    assert dq is not None
    assert dk is not None
    assert dv is not None
    return dq, dk, dv, made_like(dg, g), None if initial is None else made_like(back.last, initial)


def _contiguous(state: Tensor | None) -> Tensor | None:
    return None if state is None else state.float().contiguous()
