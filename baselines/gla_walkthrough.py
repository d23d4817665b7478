"""The fused chunks of GLA as published, whose kernels docs/gla-walk-through.md goes through one by one.

They compute o; gradients come from the kernels of `tfla_gla_xl`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tflabench.implementations import bundled, recurrences
from tflabench.implementations.adapter import Case, Implementation, Owner, Unsupported
from tflabench.kernels.common import tiling
from tflabench.problem import Problem
from tflabench.theory.call_cost import call_cost
from tflabench.theory.cost import Cost

if TYPE_CHECKING:
    import torch

CHUNK_SIZE, BLOCK = 16, 64  # steps of a chunk, channels of a program


def build(problem: Problem, device: torch.device) -> Case:
    """Return the Case of the published kernels.

    Raises:
        Unsupported: they cannot run here, with the reason.
    """
    from tflabench.baselines import gla_walkthrough_kernels as kernels

    inputs = bundled.gla_inputs(problem, device)
    q, k, v, g = (x.transpose(1, 2) for x in inputs.values())
    if reason := kernels.refuses(q, v):
        raise Unsupported(reason)
    numbers = (problem.d_qk**-0.5, bundled.gla_chunk_size(problem))
    return Case(
        inputs=inputs,
        forward=lambda: kernels.FusedChunks.apply(q, k, v, g, *numbers).transpose(1, 2),
        oracle=partial(recurrences.oracle, bundled.GATED_LINEAR_ATTENTION),
        linear="v",
        layout="bthd",
        details={"kernel": "gla.walkthrough", "chunk_size": CHUNK_SIZE},
    )


def cost(problem: Problem) -> Cost:
    """Return what a call computes and moves: states stay on chip forward, and backward is that of TFLA."""
    size, chunk, parts = problem.element_bytes, CHUNK_SIZE, -(-problem.d_qk // BLOCK)
    k, v, scores = problem.d_qk * size, problem.d_hv * size, chunk * 4  # q, q_g and k_g like k
    decays, o = problem.d_qk * 4, problem.d_hv * 4  # in float32
    a_step = (
        (k + decays)  # g -> sums of decays
        + (4 * k + decays)  # q, k -> q_g, k_g
        + (2 * k + v + decays / chunk + parts * o)  # q_g, k_g, v, last decays -> a part of o for each block of channels
        + (2 * k + decays + parts * scores)  # q, k -> parts of A
        + (parts + 2) * scores + chunk * size  # their sum, and that in the dtype of v
        + (chunk * size + 2 * v)  # A v
        + (parts + 4) * o + 2 * v  # sums of o, and that in the dtype of v
    )  # fmt: skip
    forward = problem.with_(pass_="fw", chunk_size=chunk)
    flops = call_cost(forward, "chunkwise", "gla").flops
    moved = problem.tokens * problem.heads * a_step
    if problem.pass_ == "fwbw":
        counted = problem.with_(chunk_size=bundled.gla_chunk_size(problem))
        both, alone = (
            call_cost(counted.with_(pass_=pass_), "chunkwise", "gla", state_bytes=size) for pass_ in ("fwbw", "fw")
        )
        flops, moved = flops + both.flops - alone.flops, moved + both.bytes - alone.bytes
    return Cost(flops=flops, bytes=moved)


IMPLEMENTATIONS = (
    Implementation(
        name="gla_chunk_fuse",
        family="linear_attention",
        title="GLA fused chunk (as published)",
        build=build,
        refuses=partial(bundled.refuse_triton, tiling.refuses_sizes),
        cost=cost,
        owner=Owner("published", "yellow", "published"),
        package="triton",
        compiles=True,
        majors=tiling.MAJORS,
        operation=bundled.GATED_LINEAR_ATTENTION.name,
        gates=bundled.GATED_LINEAR_ATTENTION.gates,
        bound="channel_gates",
    ),
)
