"""FlashAttention 2, 3 and 4: causal softmax attention by the packages that their authors publish."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tflabench.baselines import sdpa
from tflabench.baselines.packages import EINOPS, refuse
from tflabench.implementations.adapter import ATTENTION, Case, Implementation, attention_inputs
from tflabench.problem import Problem

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FA4 = "pip install 'flash-attn-4[cu13]==4.0.0b36'"


@dataclass(frozen=True)
class Version:
    """One of the packages.

    Attributes:
        module: has `flash_attn_func`.
        package: distribution that brings it.
        needs: module -> the command that installs it.
        lowest, highest: majors of the compute capabilities that it has kernels for.
        one_head_dim: whether keys and values must have the same head dimension.
    """

    number: int
    module: str
    package: str
    needs: Mapping[str, str]
    lowest: int
    highest: int = 12
    one_head_dim: bool = True


VERSIONS = (
    Version(
        number=2,
        module="flash_attn",
        package="flash-attn",
        needs={
            "flash_attn.flash_attn_interface": "pip install --no-build-isolation flash-attn==2.8.3.post2 (needs nvcc)"
        },
        lowest=8,
    ),
    Version(
        number=3,
        module="flash_attn_interface",
        package="flash_attn_3",
        needs={"flash_attn_interface": "build the folder hopper of github.com/Dao-AILab/flash-attention (needs nvcc)"},
        lowest=9,
        highest=9,
    ),
    Version(
        number=4,
        module="flash_attn.cute",
        package="flash-attn-4",
        needs={"flash_attn.cute": FA4, "cutlass": FA4, "quack": FA4, "tvm_ffi": FA4, **EINOPS},
        lowest=9,
        one_head_dim=False,
    ),
)


def oracle(inputs: Mapping[str, Tensor]) -> Tensor:
    """softmax(q k^T / sqrt(d_qk) + causal mask) v; q, k (B, T, H, d_qk), v (B, T, H, d_hv) -> (B, T, H, d_hv)."""
    return sdpa.oracle({name: tensor.transpose(1, 2) for name, tensor in inputs.items()}).transpose(1, 2)


def build(version: Version, problem: Problem, device: torch.device) -> Case:
    """Return the Case of a version of FlashAttention."""
    attention = importlib.import_module(version.module).flash_attn_func
    inputs = attention_inputs(problem, device)
    q, k, v = inputs.values()

    def forward() -> Tensor:
        output = attention(q, k, v, causal=True)
        return output[0] if isinstance(output, tuple) else output  # some versions add the logsumexp

    return Case(inputs, forward, oracle, layout="bthd", details={"kernel": f"{version.module}.flash_attn_func"})


def refuses(version: Version, problem: Problem, device: str) -> str | None:
    """Return why this version cannot run this, or None."""
    if reason := refuse(problem, device, version.needs):
        return reason
    if version.one_head_dim and problem.d_qk != problem.d_hv:
        return f"needs equal head dimensions, not d_qk {problem.d_qk} and d_hv {problem.d_hv}"
    for name in ("d_qk", "d_hv"):
        if (size := getattr(problem, name)) > 256 or size % 8:
            return f"takes a {name} that is a multiple of 8 up to 256, not {size}"
    return None


def _implementation(version: Version) -> Implementation:
    return Implementation(
        name=f"flash_attention_{version.number}",
        family="attention",
        title=f"FlashAttention {version.number}",
        build=partial(build, version),
        refuses=partial(refuses, version),
        formulation="attention",
        owner=ATTENTION,
        package=version.package,
        own_process=True,
        majors=(version.lowest, version.highest),
    )


IMPLEMENTATIONS = tuple(_implementation(version) for version in VERSIONS)
