"""Gated Linear Attention as the bench sees it: TFLA with a gate a channel, and PyTorch.

Inputs are those that the adapter of fla draws, in its layout (B, T, H, ...), so that rows compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tflabench.implementations.adapter import (
    OURS,
    PYTORCH,
    Case,
    Implementation,
    Unsupported,
    draw,
)
from tflabench.implementations.bundled import GLA_VERSION, REFERENCE_VERSION, refuse_decode, refuse_kernels
from tflabench.implementations.mlstm import OPEN
from tflabench.kernels.common import tiling
from tflabench.kernels.common.sizes import refuses_dtype
from tflabench.kernels.gla import plan as plans
from tflabench.problem import Problem
from tflabench.theory.call_cost import call_cost
from tflabench.theory.cost import Cost

if TYPE_CHECKING:
    import torch
    from torch import Tensor

OPERATION = "gla"
REFERENCE_CHUNK_SIZE = 32
ORACLE_CHUNK_SIZE = 16  # its memory grows as T L d_qk


@dataclass(frozen=True)
class Kernels:
    """One implementation of `ops.gla`.

    Attributes:
        name, title: of the implementation.
        implementation: of `ops.gla`.
    """

    name: str
    title: str
    implementation: str

    def steps(self, problem: Problem) -> int:
        """Return the steps of a chunk in a problem."""
        if given := problem.chunk_size:
            return min(given, problem.seq_len) if self.implementation == "reference" else given
        if self.implementation == "reference":
            return min(REFERENCE_CHUNK_SIZE, problem.seq_len)
        return usual_chunk_size(problem)


def usual_chunk_size(problem: Problem) -> int:
    """Return the chunk size that the Triton kernels take where none is given."""
    return plans.default_chunk_size(problem.d_qk, problem.d_hv, problem.seq_len)


def draw_inputs(problem: Problem, device: torch.device) -> dict[str, Tensor]:
    """Return q, k, v and log decays g, (B, T, H, d)."""
    from torch.nn.functional import logsigmoid

    steps = (problem.batch, problem.seq_len, problem.heads)
    of_keys, of_values = (*steps, problem.d_qk), (*steps, problem.d_hv)
    inputs = draw(problem, device, {"q": of_keys, "k": of_keys, "v": of_values, "g": of_keys}, {"g": OPEN})
    inputs["g"] = logsigmoid(inputs["g"].detach()).requires_grad_(inputs["g"].requires_grad)
    return inputs


def build(kernels: Kernels, problem: Problem, device: torch.device) -> Case:
    """Return the Case of Gated Linear Attention, with log decays g (B, T, H, d_qk).

    Raises:
        Unsupported: these kernels cannot run here, with their reason.
    """
    from tflabench.kernels.gla import operator
    from tflabench.kernels.gla.api import gla

    inputs = draw_inputs(problem, device)
    q, k, v, g = inputs.values()
    options: dict[str, Any] = {
        "implementation": kernels.implementation,
        "layout": "bthd",
        "chunk_size": kernels.steps(problem),
    }
    if kernels.implementation != "reference":
        reason = operator.kernels_of("tfla").refuses(*(x.transpose(1, 2) for x in (q, v)), options["chunk_size"])
        if reason:
            raise Unsupported(reason)
    return Case(
        inputs=inputs,
        forward=lambda: gla(q, k, v, g, **options),
        oracle=oracle,
        layout="bthd",
        details={"kernel": f"gla.{kernels.implementation}", "chunk_size": kernels.steps(problem)},
    )


def oracle(inputs: Mapping[str, Tensor]) -> Tensor:
    """Return o (B, T, H, d_hv) in plain PyTorch, in the dtype of the inputs, of whole or sliced inputs."""
    from tflabench.kernels.gla.api import gla

    q, k, v, g = (inputs[name] for name in "qkvg")
    return gla(q, k, v, g, implementation="reference", chunk_size=ORACLE_CHUNK_SIZE, layout="bthd")


def cost(kernels: Kernels, problem: Problem) -> Cost:
    """Return the paper's counts with a decay a channel, but for states between chunks, in memory in the dtype of q."""
    counted = problem.with_(chunk_size=kernels.steps(problem))
    return call_cost(counted, "chunkwise", "gla", state_bytes=problem.element_bytes)


def workspace_bytes(problem: Problem) -> float:
    """Return the workspace of the Triton kernels: all but inputs, outputs, their gradients and states.

    These are weighted q and k and the scores of tiles in the dtype of q, the decays of tiles in float32 and, with
    backward, dg within tiles and two sums of tiles, in float32 too.
    """
    p = problem
    size, tile = p.element_bytes, _blocks(p).tile
    steps = p.batch * p.heads * p.seq_len
    backward = p.pass_ == "fwbw"
    float32 = p.d_qk * (1 + 2 * backward) / tile + p.d_qk * backward
    return steps * (size * (2 * p.d_qk + tile) + 4 * float32)


def shared_bytes(problem: Problem, capability: tuple[int, int]) -> int:
    """Return the shared memory of the Triton program that needs most, at most, for a compute capability."""
    return _blocks(problem).shared_bytes(problem.element_bytes, 10 * capability[0] + capability[1])


def _blocks(problem: Problem) -> plans.Blocks:
    p = problem
    chunk_size = p.chunk_size or usual_chunk_size(p)
    return plans.Blocks.for_shape(p.d_qk, p.d_hv, p.element_bytes, tiling.fitting(chunk_size, p.seq_len))


def refuses(problem: Problem, device: str) -> str | None:
    """Return why the Triton kernels cannot run this, or None."""
    if reason := refuse_kernels(problem, device) or refuses_dtype(problem.dtype, tiling.DTYPES):
        return reason
    return plans.refuses_sizes(problem.d_qk, problem.d_hv, problem.chunk_size)


def _implementation(kernels: Kernels) -> Implementation:
    triton = kernels.implementation != "reference"
    return Implementation(
        name=kernels.name,
        family="linear_attention",
        owner=OURS if triton else PYTORCH,
        title=kernels.title,
        build=partial(build, kernels),
        refuses=refuses if triton else refuse_decode,
        chunked=True,
        cost=partial(cost, kernels),
        package="triton" if triton else "torch",
        version=GLA_VERSION if triton else REFERENCE_VERSION,
        compiles=triton,
        majors=tiling.MAJORS if triton else None,
        shared_bytes=shared_bytes if triton else None,
        operation=OPERATION,
        bound="channel_gates",
    )


IMPLEMENTATIONS: tuple[Implementation, ...] = tuple(
    map(
        _implementation,
        (
            Kernels("tfla_gla_xl", "GLA TFLA xl_chunk", "tfla"),
            Kernels("reference_gla", "GLA PyTorch chunkwise", "reference"),
        ),
    )
)
