"""LightningAttention-2 by its authors' package: linear attention with a constant decay a head, q not scaled."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tflabench.baselines.packages import EINOPS, refuse
from tflabench.implementations import bundled, recurrences
from tflabench.implementations.adapter import OTHERS, Case, Implementation, attention_inputs
from tflabench.problem import Problem
from tflabench.theory import linear_attention
from tflabench.theory.cost import Cost

if TYPE_CHECKING:
    import torch

MODULE = "lightning_attn.ops"
NEEDS = {"lightning_attn": "pip install lightning_attn==0.0.5", "triton": "pip install triton", **EINOPS}
CHUNK_SIZE = 64


oracle = partial(
    recurrences.oracle, replace(bundled.operations()["lightning_attention"], options={"scale": 1.0}, layout="bhtd")
)


def build(problem: Problem, device: torch.device) -> Case:
    """Return the Case of lightning_attn, whose slopes are spaced as ALiBi spaces them, 2^(-8 (head + 1) / heads)."""
    import torch

    attention = importlib.import_module(MODULE).lightning_attn_func
    inputs = attention_inputs(problem, device, "bhtd")
    q, k, v = inputs.values()
    slopes = 2.0 ** (-8.0 * torch.arange(1, problem.heads + 1, dtype=torch.float32, device=device) / problem.heads)
    inputs["slopes"] = slopes
    return Case(
        inputs=inputs,
        forward=lambda: attention(q, k, v, slopes[:, None, None]),
        oracle=oracle,
        linear="v",
        details={"kernel": f"{MODULE}.lightning_attn_func"},
    )


def refuses(problem: Problem, device: str) -> str | None:
    """Return why lightning_attn cannot run this, or None."""
    if reason := refuse(problem, device, NEEDS):
        return reason
    for name in ("d_qk", "d_hv"):
        if (size := getattr(problem, name)) < 32 or size & (size - 1):
            return f"takes a {name} that is a power of two from 32, not {size}"
    return None


def cost(problem: Problem) -> Cost:
    """Return the cost of one call, which keeps the state of a head on chip.

    Of q and k of more than 128 columns each slice of 64 is a call of its own, which reads v and writes an o. Copies of
    slices and sums of their o are not counted.
    """
    size, backward = problem.element_bytes, problem.pass_ == "fwbw"
    slices = 1 if problem.d_qk <= 128 else -(-problem.d_qk // 64)
    # Forward: q, k, v -> o. Backward within blocks of 64 steps: q, k, v, do -> dq, dk, dv. Between them: the same and
    # dq, dk, dv again, all of which it adds to.
    of_keys, of_values = 2 + backward * (4 + 6), 2 + backward * (3 + 4)
    a_step = problem.d_qk * size * of_keys + slices * problem.d_hv * size * of_values
    return Cost(
        flops=linear_attention.cost(problem, decays=0, chunk_size=CHUNK_SIZE).flops,
        bytes=problem.tokens * problem.heads * a_step,
    )


IMPLEMENTATIONS = (
    Implementation(
        name="lightning_attention_2",
        family="linear_attention",
        title="LightningAttention-2",
        build=build,
        refuses=refuses,
        cost=cost,
        owner=OTHERS,
        package="lightning_attn",
        imports=partial(importlib.import_module, MODULE),
        compiles=True,
        own_process=True,
        majors=(8, 12),
        operation="lightning",
        bound="ungated",
    ),
)
