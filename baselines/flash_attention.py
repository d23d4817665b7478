"""FlashAttention 2, 3 and 4: causal softmax attention by the packages that their authors publish."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from tflabench.baselines import sdpa
from tflabench.baselines.packages import EINOPS, refuse
from tflabench.implementations.adapter import ATTENTION, Case, Implementation, attention_inputs
from tflabench.problem import Problem

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def oracle(inputs: Mapping[str, Tensor]) -> Tensor:
    """softmax(q k^T / sqrt(d_qk) + causal mask) v; q, k (B, T, H, d_qk), v (B, T, H, d_hv) -> (B, T, H, d_hv)."""
    return sdpa.oracle({name: tensor.transpose(1, 2) for name, tensor in inputs.items()}).transpose(1, 2)


def build(module: str, problem: Problem, device: torch.device) -> Case:
    """Return the Case of a module's `flash_attn_func`."""
    attention = importlib.import_module(module).flash_attn_func
    inputs = attention_inputs(problem, device)
    q, k, v = inputs.values()

    def forward() -> Tensor:
        output = attention(q, k, v, causal=True)
        return output[0] if isinstance(output, tuple) else output  # some versions add the logsumexp

    return Case(inputs, forward, oracle, layout="bthd", details={"kernel": f"{module}.flash_attn_func"})


def refuses(needs: Mapping[str, str], one_head_dim: bool, problem: Problem, device: str) -> str | None:
    """Return why a version cannot run this, or None.

    Args:
        needs: module -> the command that installs it.
        one_head_dim: whether keys and values must have the same head dimension.
    """
    if reason := refuse(problem, device, needs):
        return reason
    if one_head_dim and problem.d_qk != problem.d_hv:
        return f"needs equal head dimensions, not d_qk {problem.d_qk} and d_hv {problem.d_hv}"
    for name in ("d_qk", "d_hv"):
        if (size := getattr(problem, name)) > 256 or size % 8:
            return f"takes a {name} that is a multiple of 8 up to 256, not {size}"
    return None


def _version(
    number: int, module: str, package: str, majors: tuple[int, int], needs: Mapping[str, str], *,
    one_head_dim: bool = True,
) -> Implementation:  # fmt: skip
    return Implementation(
        name=f"flash_attention_{number}",
        family="attention",
        title=f"FlashAttention {number}",
        build=partial(build, module),
        refuses=partial(refuses, needs, one_head_dim),
        formulation="attention",
        owner=ATTENTION,
        package=package,
        own_process=True,
        majors=majors,
    )


FA2 = "pip install --no-build-isolation flash-attn==2.8.3.post2 (needs nvcc)"
FA3 = "build the folder hopper of github.com/Dao-AILab/flash-attention (needs nvcc)"
FA4 = "pip install 'flash-attn-4[cu13]==4.0.0b36'"
IMPLEMENTATIONS = (
    _version(2, "flash_attn", "flash-attn", (8, 12), {"flash_attn.flash_attn_interface": FA2}),
    _version(3, "flash_attn_interface", "flash_attn_3", (9, 9), {"flash_attn_interface": FA3}),
    _version(
        4, "flash_attn.cute", "flash-attn-4", (9, 12),
        {"flash_attn.cute": FA4, "cutlass": FA4, "quack": FA4, "tvm_ffi": FA4, **EINOPS}, one_head_dim=False,
    ),
)  # fmt: skip
