"""Documents end to end, and what each operation makes of them one by one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tflabench import ops

HEADS, T, D_QK, D_HV = 2, 60, 16, 32
BOUNDS = [0, 1, 9, 17, 17, 44, T]  # one of a single step, two of one length, and one without steps
Inputs = dict[str, Tensor]


def inputs(device: str, dtype: torch.dtype) -> Inputs:
    torch.manual_seed(5)

    def draw(*shape: int) -> Tensor:
        return torch.randn(1, HEADS, T, *shape, dtype=torch.float64)

    drawn = {"q": draw(D_QK), "k": draw(D_QK), "v": draw(D_HV), "f": draw() + 2, "i": draw()}
    drawn["head"] = -torch.rand(HEADS, dtype=torch.float64)
    gates = ("f", "i", "head")
    wide = torch.promote_types(dtype, torch.float32)
    return {name: x.to(device, wide if name in gates else dtype).requires_grad_() for name, x in drawn.items()}


Operation = Callable[..., Any]
OPERATIONS: dict[str, tuple[Operation, Callable[[Inputs], list[Tensor]], ops.Gate]] = {
    "mlstm_exp": (ops.mlstm_exp, lambda x: [x["q"], x["k"], x["v"], x["i"], x["f"]], ops.MLSTM_EXP),
    "mlstm_sig": (ops.mlstm_sig, lambda x: [x["q"], x["k"], x["v"], x["i"], x["f"]], ops.MLSTM_SIG),
    "retention": (ops.retention, lambda x: [x["q"], x["k"], x["v"], x["head"]], ops.RETENTION),
    "gated_retention": (ops.gated_retention, lambda x: [x["q"], x["k"], x["v"], x["f"]], ops.Gate("sigmoid", "none")),
    "simple_gla": (ops.simple_gla, lambda x: [x["q"], x["k"], x["v"], -x["f"].abs()], ops.SIMPLE_GLA),
    "lightning_attention": (
        ops.lightning_attention,
        lambda x: [x["q"], x["k"], x["v"], -x["head"]],
        ops.RETENTION,
    ),
    "mamba2_ssd": (ops.mamba2_ssd, lambda x: [x["v"], x["i"].exp(), x["head"], x["k"], x["q"]], ops.MAMBA2),
}


def start_of(gate: ops.Gate, count: int, like: Tensor) -> ops.State:
    zero = ops.zero_state(gate, count, HEADS, D_QK, D_HV, device=like.device, dtype=like.dtype)
    C, n, m = (None if x is None else torch.randn_like(x) for x in zero)
    assert C is not None
    return ops.State(C, n, m)


def one_of(states: ops.State, n: int) -> ops.State:
    return ops.State(states.C[n : n + 1], *(None if x is None else x[n : n + 1] for x in states[1:]))


def by_themselves(
    run: Operation, tensors: list[Tensor], start: ops.State | None, bounds: list[int], **options: Any
) -> tuple[Tensor, ops.State]:
    """Return h and last states of one call a document that has steps; one without ends as it begins."""
    outputs: list[Tensor] = []
    ends: list[ops.State] = []
    for n, (begin, end) in enumerate(pairwise(bounds)):
        first = None if start is None else one_of(start, n)
        if begin == end:
            assert first is not None
            ends.append(first)
            continue
        cut = [x if x.dim() == 1 else x[:, :, begin:end] for x in tensors]
        h, last = run(*cut, initial_state=first, return_last_state=True, **options)
        outputs.append(h)
        ends.append(last)
    joined = [None if x[0] is None else torch.cat(x) for x in zip(*ends, strict=True)]
    assert joined[0] is not None
    return torch.cat(outputs, 2), ops.State(joined[0], joined[1], joined[2])


def assert_close(ours: Any, wanted: Any, limit: float) -> None:
    for x, y in zip(ours, wanted, strict=True):
        if x is None or y is None:
            assert x is y
        else:
            assert torch.linalg.norm((x - y).double()) <= limit * (1 + torch.linalg.norm(y.double()))
