"""Causal softmax attention by torch's scaled_dot_product_attention, one implementation a backend."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from math import sqrt
from typing import TYPE_CHECKING

from tflabench.implementations.adapter import ATTENTION, Case, Implementation, Unsupported, attention_inputs
from tflabench.problem import Problem

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ORACLE_BLOCK = 2048  # queries at a time, so that the scores of a long sequence fit


def oracle(inputs: Mapping[str, Tensor]) -> Tensor:
    """softmax(q k^T / sqrt(d_qk) + causal mask) v; q, k (B, H, T, d_qk), v (B, H, T, d_hv) -> (B, H, T, d_hv).

    Blocks of queries, each recomputed in the backward pass: memory O(ORACLE_BLOCK * T), whatever T.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    q, k, v = inputs["q"], inputs["k"], inputs["v"]

    def block(start: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        scores = queries @ keys.mT / sqrt(queries.shape[-1])  # [ORACLE_BLOCK, d_qk] @ [d_qk, stop]
        rows = torch.arange(start, start + queries.shape[2], device=scores.device)
        future = torch.arange(keys.shape[2], device=scores.device) > rows[:, None]
        return scores.masked_fill(future, -torch.inf).softmax(-1) @ values

    outputs = []
    for start in range(0, q.shape[2], ORACLE_BLOCK):
        stop = min(start + ORACLE_BLOCK, q.shape[2])
        part = (start, q[:, :, start:stop], k[:, :, :stop], v[:, :, :stop])
        outputs.append(checkpoint(block, *part, use_reentrant=False) if q.requires_grad else block(*part))
    return torch.cat(outputs, dim=2)


def build(backend: str | None, problem: Problem, device: torch.device) -> Case:
    """Return the Case of one of torch's backends by its SDPBackend name, or of torch's own choice (None).

    Raises:
        Unsupported: the backend does not take this problem on this GPU, with torch's reason.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    inputs = attention_inputs(problem, device, "bhtd")
    q, k, v = inputs.values()
    if backend is None:
        chosen = SDPBackend(torch._fused_sdp_choice(q, k, v, is_causal=True)).name  # pyright: ignore[reportPrivateImportUsage]
        return Case(
            inputs,
            forward=lambda: scaled_dot_product_attention(q, k, v, is_causal=True),
            oracle=oracle,
            details={"kernel": chosen},
        )
    _require_usable(backend, q, k, v)
    only = getattr(SDPBackend, backend)  # an enum of pybind11 in some versions: no subscript

    def forward() -> Tensor:
        with sdpa_kernel(only):
            return scaled_dot_product_attention(q, k, v, is_causal=True)

    return Case(inputs, forward, oracle, details={"kernel": backend})


def _require_usable(backend: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    from torch.backends import cuda

    usable = {
        "FLASH_ATTENTION": cuda.can_use_flash_attention,
        "CUDNN_ATTENTION": cuda.can_use_cudnn_attention,
        "EFFICIENT_ATTENTION": cuda.can_use_efficient_attention,
    }[backend]
    params = cuda.SDPAParams(q, k, v, None, 0.0, True, False)
    with warnings.catch_warnings(record=True) as reasons:
        warnings.simplefilter("always")
        if not usable(params, debug=True):
            reason = " ".join(str(reasons[-1].message).split())[:300] if reasons else backend
            raise Unsupported(f"torch refuses: {reason}")


def refuses(backend: str | None, problem: Problem, device: str) -> str | None:
    """Return why torch's backend cannot run this, or None."""
    if problem.pass_ == "decode":
        return "only whole sequences are measured: a decode step of attention reads a cache that grows"
    if backend is None:
        return None
    if device != "cuda":
        return "this backend of torch needs a CUDA GPU; sdpa runs on the CPU"
    if backend != "EFFICIENT_ATTENTION" and problem.dtype not in ("bfloat16", "float16"):
        return f"takes bfloat16 and float16, not {problem.dtype}"
    if problem.dtype == "float64":
        return "takes no float64"
    if backend == "FLASH_ATTENTION" and problem.d_qk != problem.d_hv:
        return f"needs equal head dimensions, not d_qk {problem.d_qk} and d_hv {problem.d_hv}"
    if backend == "FLASH_ATTENTION" and problem.d_qk > 256:
        return f"takes head dimensions up to 256, not {problem.d_qk}"
    return None


def _implementation(name: str, title: str, backend: str | None) -> Implementation:
    return Implementation(
        name=name,
        family="attention",
        title=title,
        build=partial(build, backend),
        refuses=partial(refuses, backend),
        formulation="attention",
        owner=ATTENTION,
    )


IMPLEMENTATIONS = (
    _implementation("sdpa", "SDPA", None),
    _implementation("sdpa_flash", "SDPA flash", "FLASH_ATTENTION"),
    _implementation("sdpa_cudnn", "SDPA cuDNN", "CUDNN_ATTENTION"),
    _implementation("sdpa_efficient", "SDPA memory-efficient", "EFFICIENT_ATTENTION"),
)
