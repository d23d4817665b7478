"""fla's RWKV-7: decays a channel, and an erasure by a key of its own, a state times a diagonal plus a rank of one.

Called as fla's layer calls it: r (q here) is not scaled, log decays are none below -exp(-1/2), which lets its kernels
take 64 steps at a time, a is minus a unit key, and b that key times step sizes a channel, from 0 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tflabench.baselines import fla_ops
from tflabench.implementations.adapter import Case, decayed_inputs
from tflabench.problem import Problem
from tflabench.theory.cost import Cost, Polynomial, over_sequence

if TYPE_CHECKING:
    import torch
    from torch import Tensor

STRONGEST = -math.exp(-0.5)  # log decay of a step that an RWKV-7 has
CHUNK_SIZE = 64
OP = fla_ops.Op(
    "fla_rwkv7",
    "RWKV-7 chunk",
    "rwkv7",
    "chunk_rwkv7",
    replace(fla_ops.GLA, gates="medium"),
    options={"safe_gate": True, "lower_bound": STRONGEST, "chunk_size": CHUNK_SIZE},
    largest_d_qk=256,
    dtypes="bfloat16 float16",
)


def build(problem: Problem, device: torch.device) -> Case:
    """Return the Case of chunk_rwkv7, whose inputs are q, k, v, log decays g, and a and b (B, T, H, d_qk)."""
    from torch.nn.functional import normalize

    function = fla_ops.sound_function(OP, problem, device)
    drawn = decayed_inputs(problem, device, g=(problem.d_qk,), a=(problem.d_qk,), b=(problem.d_qk,))
    inputs = {name: tensor.detach() for name, tensor in drawn.items()}
    inputs["g"] = inputs["g"].clamp_min(STRONGEST)
    inputs["a"] = -normalize(inputs["a"].float(), dim=-1).to(inputs["a"].dtype)
    inputs["b"] = -inputs["a"] * inputs["b"].sigmoid()
    for tensor in inputs.values():
        tensor.requires_grad_(problem.pass_ == "fwbw")
    q, k, v, g, a, b = inputs.values()
    return Case(
        inputs=inputs,
        forward=lambda: function(r=q, w=g, k=k, v=v, a=a, b=b, **OP.options or {})[0],
        oracle=oracle,
        linear="v",
        layout="bthd",
        details={"kernel": "fla.ops.rwkv7.chunk_rwkv7"},
    )


def oracle(inputs: Mapping[str, Tensor]) -> Tensor:
    """Return o (B, T, H, d_hv)."""
    from tflabench.baselines.recurrences import rwkv7

    return rwkv7(*(inputs[name].transpose(1, 2) for name in "qkvgab")).transpose(1, 2)


def cost(problem: Problem) -> Cost:
    """Return what a call computes and moves; its backward pass computes the forward pass again, and two gradients each.

    Forward: scores of q and a with k and b, the inverse, reads and writes of the state; q, k, a, b and decays to four
    weighted copies and four matrices of scores, these to W and U, states with V, and outputs.
    """
    L, d_qk, d_hv, size = CHUNK_SIZE, problem.d_qk, problem.d_hv, problem.element_bytes
    passes = 4 if problem.pass_ == "fwbw" else 1
    flops = Polynomial(linear=8 * d_qk * d_hv + L * L / 3, square=5 * d_qk + 4 * d_hv)
    moved = Polynomial(linear=(15 * d_qk + 8 * d_hv + 8 * L) * size, constant=2 * d_qk * d_hv * size)
    heads = problem.batch * problem.heads
    count = Cost(*(heads * over_sequence(terms, problem.seq_len, L) for terms in (flops, moved)))
    return Cost(passes * count.flops, passes * count.bytes)


IMPLEMENTATIONS = (replace(fla_ops.implementation(OP), build=build, cost=cost, bound=None),)
