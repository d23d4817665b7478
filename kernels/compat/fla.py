"""Simple GLA, Retention and Lightning attention as flash-linear-attention (0.6) calls them.

    from tflabench.kernels.compat.fla import chunk_simple_gla   # was: from fla.ops.simple_gla import chunk_simple_gla

All tensors have the layout (B, T, H, ...). What differs: `g_gamma` gets a gradient too, keywords that mean nothing are
refused and not passed over, and a `chunk_size` is only needed to override what these kernels choose.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tflabench.kernels.api import Options, chunkwise, lightning_slopes, retnet_log_decays
from tflabench.kernels.checks import check_gate, check_not_positive, heads_of
from tflabench.kernels.state import State
from tflabench.kernels.types import RETENTION, SIMPLE_GLA


def chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    *,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute Simple GLA: h_t = scale S_t^T q_t, S_t = exp(g_t) S_{t-1} + k_t v_t^T.

    Args:
        q, k: (B, T, H, d_qk); v: (B, T, H, d_hv).
        g: log decays (B, T, H), or g_gamma (H,), one a head; none at all without either.
        scale: of q; None is 1/sqrt(d_qk).
        initial_state: (B, H, d_qk, d_hv), or (.., d_hv, d_qk) with `state_v_first`; one a sequence with `cu_seqlens`.
        output_final_state: return the state after the last step, of each sequence with `cu_seqlens`.
        cu_seqlens: (N + 1), where N sequences laid one behind the other begin and end (B is 1 then). With states in or
            out each sequence is a call of its own, and its bounds are read from the device unless `cu_seqlens_cpu`
            has them.
        chunk_size: steps between two states in memory; None lets the kernels choose.

    Returns:
        o (B, T, H, d_hv) and the final state, float32, or None.
    """
    if g is not None and g_gamma is not None:
        raise ValueError("g and g_gamma are both given: only one of them may be")
    name = "g_gamma" if g is None else "g"
    if g is None:
        g = torch.zeros(heads_of(v, "bthd"), device=v.device) if g_gamma is None else g_gamma
    check_gate(name, g, v, "bthd", per_head=name == "g_gamma")
    check_not_positive(name, g)

    if initial_state is not None and state_v_first:
        initial_state = initial_state.mT
    options: Options = {
        "layout": "bthd",
        "chunk_size": "auto" if chunk_size is None else chunk_size,
        "initial_state": None if initial_state is None else State(initial_state),
        "scale": scale,
        "cu_seqlens": cu_seqlens if cu_seqlens_cpu is None else cu_seqlens_cpu,
    }
    gate = RETENTION if g.dim() == 1 else SIMPLE_GLA
    if not output_final_state:
        return chunkwise(q, k, v, g, gate=gate, **options), None
    o, last = chunkwise(q, k, v, g, gate=gate, return_last_state=True, **options)
    return o, last.C.mT if state_v_first else last.C


def chunk_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute `chunk_simple_gla` with RetNet's decays, 1 - 2^(-5 - h) for head h."""
    return chunk_simple_gla(
        *(q, k, v),
        g_gamma=retnet_log_decays(q.shape[2], device=q.device),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        chunk_size=chunk_size,
    )


def chunk_lightning_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_idx: int,
    num_layers: int,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute `chunk_simple_gla` with Lightning attention's decays, exp(-8 h / H (1 - layer_idx / num_layers))."""
    return chunk_simple_gla(
        *(q, k, v),
        g_gamma=-lightning_slopes(q.shape[2], layer_idx, num_layers, device=q.device),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        chunk_size=chunk_size,
    )
