"""The fused chunks of GLA as published, whose kernels docs/gla-walk-through.md goes through one by one.

They compute o; gradients come from the kernels of `tfla_gla_xl`, as which calls are counted.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tflabench.implementations import bundled, recurrences
from tflabench.implementations.adapter import Case, Implementation, Owner, Unsupported
from tflabench.kernels.common import tiling
from tflabench.problem import Problem

if TYPE_CHECKING:
    import torch

CHUNK_SIZE = 16


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


IMPLEMENTATIONS = (
    Implementation(
        name="gla_chunk_fuse",
        family="linear_attention",
        title="GLA fused chunk (as published)",
        build=build,
        refuses=partial(bundled.refuse_triton, tiling.refuses_sizes),
        cost=partial(recurrences.counted_cost, bundled.GATED_LINEAR_ATTENTION, usual=bundled.gla_chunk_size),
        owner=Owner("published", "yellow", "published"),
        package="triton",
        compiles=True,
        majors=tiling.MAJORS,
        operation=bundled.GATED_LINEAR_ATTENTION.name,
        gates=bundled.GATED_LINEAR_ATTENTION.gates,
        bound="channel_gates",
    ),
)
