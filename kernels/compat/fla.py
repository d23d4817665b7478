"""GLA, Simple GLA, Retention, Lightning attention and the delta rules as flash-linear-attention (0.6) calls them.

    from tflabench.kernels.compat.fla import chunk_simple_gla   # was: from fla.ops.simple_gla import chunk_simple_gla

All tensors have the layout (B, T, H, ...). What differs: `g_gamma` gets a gradient too, keywords that mean nothing are
refused and not passed over, and a `chunk_size` is only needed to override what these kernels choose.
"""

from __future__ import annotations

import warnings
from typing import Any, TypedDict, Unpack, cast

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tflabench.kernels.api import Options, compute
from tflabench.kernels.checks import check_sequence, check_tensor, heads_of
from tflabench.kernels.delta.operations import delta_net, gated_delta_net
from tflabench.kernels.gla.gating import GLA
from tflabench.kernels.kda.operations import kda
from tflabench.kernels.scalar.operations import lightning_slopes, retnet_log_decays
from tflabench.kernels.state import State
from tflabench.kernels.types import RETENTION, SIMPLE_GLA, Gating


def _offsets(cu_seqlens: Tensor | None, on_cpu: Tensor | None) -> Tensor | None:
    """Return the offsets to read, those on the CPU if they are there too; alone these say nothing, as in fla."""
    return cu_seqlens if cu_seqlens is None or on_cpu is None else on_cpu


def _transposed(state: Tensor | None, v: Tensor, v_first: bool) -> Tensor | None:
    """Return a state as (B, H, d_qk, d_hv)."""
    return check_tensor("initial_state", state, v, "v").mT if state is not None and v_first else state


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
            out those of one length that follow each other are one call, and bounds are read from the device unless
            `cu_seqlens_cpu` has them.
        chunk_size: steps between two states in memory; None lets the kernels choose.

    Returns:
        o (B, T, H, d_hv) and the final state, float32, or None.
    """
    if g is not None and g_gamma is not None:
        raise ValueError("g and g_gamma are both given: only one of them may be")
    name = "g_gamma" if g is None else "g"
    if g is None:
        g = torch.zeros(heads_of(v, "bthd"), device=v.device) if g_gamma is None else g_gamma
    gate, offsets = RETENTION if g.dim() == 1 else SIMPLE_GLA, _offsets(cu_seqlens, cu_seqlens_cpu)
    states = initial_state, output_final_state, state_v_first
    return _computed((q, k, v, g), gate, name, states, scale=scale, cu_seqlens=offsets, chunk_size=chunk_size)


def _computed(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    gate: Gating,
    name: str,
    states: tuple[Tensor | None, bool, bool],
    *,
    scale: float | None,
    cu_seqlens: Tensor | None,
    chunk_size: int | None,
) -> tuple[Tensor, Tensor | None]:
    """Return o and the last state, or None.

    Args:
        inputs: q, k, v and log decays, which an error calls `name`.
        states: the initial state, whether the last one is asked for, and whether in both d_hv comes first.
    """
    initial, with_last, v_first = states
    check_sequence("v", inputs[2], "bthd")
    initial = _transposed(initial, inputs[2], v_first)
    options: Options = {
        "layout": "bthd",
        "chunk_size": "auto" if chunk_size is None else chunk_size,
        "initial_state": None if initial is None else State(initial),
        "scale": scale,
        "cu_seqlens": cu_seqlens,
    }
    made = compute(*inputs, None, gate, options, names=(name, "i"), return_last_state=with_last)
    if not with_last:
        return made, None
    o, last = made
    return o, last.C.mT if v_first else last.C


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
    g_gamma = retnet_log_decays(heads_of(v, "bthd"), v.device, torch.promote_types(v.dtype, torch.float32))
    given = scale, initial_state, output_final_state
    return chunk_simple_gla(q, k, v, None, g_gamma, *given, cu_seqlens=cu_seqlens, chunk_size=chunk_size)


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
    g_gamma = -lightning_slopes(heads_of(v, "bthd"), layer_idx, num_layers, device=v.device)
    given = scale, initial_state, output_final_state
    return chunk_simple_gla(q, k, v, None, g_gamma, *given, cu_seqlens=cu_seqlens, chunk_size=chunk_size)


def chunk_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    *,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute Gated Linear Attention: o_t = scale S_t^T q_t, S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T.

    Args:
        q, k: (B, T, H, d_qk); v: (B, T, H, d_hv).
        g: log decays (B, T, H, d_qk).
        scale, initial_state, output_final_state, state_v_first, chunk_size: as in `chunk_simple_gla`.
        cu_seqlens, cu_seqlens_cpu: as there; with states in or out the bounds are read from the second, if it is given.

    Returns:
        o (B, T, H, d_hv) and the final state, float32, or None.
    """
    states, offsets = (initial_state, output_final_state, state_v_first), _offsets(cu_seqlens, cu_seqlens_cpu)
    return _computed((q, k, v, g), GLA, "g", states, scale=scale, cu_seqlens=offsets, chunk_size=chunk_size)


fused_chunk_gla = chunk_gla


class Renamed(TypedDict, total=False):
    """Keywords of earlier versions of fla; `transpose_state_layout` is now `state_v_first`."""

    transpose_state_layout: bool


def fused_recurrent_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **renamed: Unpack[Renamed],
) -> tuple[Tensor, Tensor | None]:
    """Compute `chunk_gla` with g = gk (B, T, H, d_qk); None is no decay. `reverse`: from the last step to the first.

    Raises:
        TypeError: an unknown keyword.
        ValueError: gates of v (gv), `reverse` with packed sequences, or a keyword by both of its names.
    """
    for name in renamed:
        if name != "transpose_state_layout":
            raise TypeError(f"fused_recurrent_gla() got an unexpected keyword argument {name!r}")
        if state_v_first:
            raise ValueError("state_v_first and transpose_state_layout are both given: it must be the first alone")
        warnings.warn("transpose_state_layout is now state_v_first", DeprecationWarning, stacklevel=2)
        state_v_first = bool(renamed.get("transpose_state_layout"))
    if gv is not None:
        raise ValueError("gv is a tensor: it must be None, these kernels have no gates of v")
    if reverse and cu_seqlens is not None:
        raise ValueError("reverse is True: it must be False with cu_seqlens")
    check_sequence("q", q, "bthd")
    g = torch.zeros_like(q) if gk is None else gk
    if reverse:
        q, k, v, g = (x.flip(1) for x in (q, k, v, g))
    o, last = chunk_gla(q, k, v, g, scale, initial_state, output_final_state, state_v_first, cu_seqlens)
    return o.flip(1) if reverse else o, last


def _delta_rule(
    rule: Any,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor],
    states: tuple[Tensor | None, bool, bool],
    *,
    normalize: bool,
    sigmoid: bool = False,
    negative: bool = False,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return o and the last state, or None, of a delta rule.

    Args:
        rule: the operation.
        inputs: q, k, v, g or None, and beta.
        states: as in `_computed`.
        normalize: q and k are divided by their norms.
        sigmoid, negative: beta is given before a sigmoid; it is twice that. One that is given as it is may be up to 2.
    """
    q, k, v, g, beta = inputs
    initial, with_last, v_first = states
    if negative and not sigmoid:
        raise ValueError("allow_neg_eigval is True: it must be False without use_beta_sigmoid_in_kernel")
    if sigmoid:
        beta = check_tensor("beta", beta, v, "v").float().sigmoid() * (2 if negative else 1)
    check_sequence("v", v, "bthd")
    initial = _transposed(initial, v, v_first)
    options |= {
        "layout": "bthd",
        "initial_state": None if initial is None else State(initial),
        "l2_normalize": normalize,
        "beta_max": 1 if sigmoid and not negative else 2,
        "return_last_state": True,
    }
    gates = (beta,) if g is None else (g, beta)
    o, last = cast("tuple[Tensor, State]", rule(q, k, v, *gates, **options))
    return o, (last.C.mT if v_first else last.C) if with_last else None


def _log_decay(g: Tensor, A_log: Tensor | None, dt_bias: Tensor | None) -> Tensor:
    """Return -exp(A_log) softplus(g + dt_bias) of g (B, T, H), float32."""
    if A_log is None:
        raise ValueError("A_log is None: it must be a tensor with use_gate_in_kernel")
    g = g.float() if dt_bias is None else g.float() + dt_bias.float()
    return -A_log.float().exp() * softplus(g)


def chunk_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    *,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute DeltaNet: o_t = scale S_t^T q_t, S_t = S_{t-1} + beta_t k_t (v_t - S_{t-1}^T k_t)^T.

    Args:
        q, k: (B, T, H, d_qk); v: (B, T, H_v, d_hv), H_v a multiple of H.
        beta: (B, T, H_v), from 0 to 2.
        use_qk_l2norm_in_kernel: divide q and k by their norms.
        scale, initial_state, output_final_state, cu_seqlens, chunk_size: as in `chunk_simple_gla`.

    Returns:
        o (B, T, H_v, d_hv) and the final state, float32, or None.
    """
    return _delta_rule(
        delta_net,
        (q, k, v, None, beta),
        (initial_state, output_final_state, False),
        normalize=use_qk_l2norm_in_kernel,
        scale=scale,
        cu_seqlens=_offsets(cu_seqlens, cu_seqlens_cpu),
        chunk_size="auto" if chunk_size is None else chunk_size,
    )


def fused_recurrent_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute `chunk_delta_rule`; a beta of None is 1, and q and k are cast to the dtype of v."""
    q, k = q.to(v.dtype), k.to(v.dtype)
    beta = v.new_ones(v.shape[:-1]) if beta is None else beta
    states = initial_state, output_final_state
    return chunk_delta_rule(q, k, v, beta, scale, *states, use_qk_l2norm_in_kernel, cu_seqlens)


def chunk_gated_delta_rule(  # noqa: PLR0913  fla's arguments
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cp_context: None = None,
    *,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute Gated DeltaNet: o_t = scale S_t^T q_t, S_t = d_t S_{t-1} + beta_t k_t (v_t - d_t S_{t-1}^T k_t)^T.

    Args:
        q, k: (B, T, H, d_qk); v: (B, T, H_v, d_hv), H_v a multiple of H.
        g: log decays (B, T, H_v), d_t = exp(g_t); with `use_gate_in_kernel` -exp(A_log) softplus(g + dt_bias) are.
        beta: (B, T, H_v), from 0 to 2; with `use_beta_sigmoid_in_kernel` before a sigmoid, and with `allow_neg_eigval`
            twice that.
        use_qk_l2norm_in_kernel: divide q and k by their norms.
        scale, initial_state, output_final_state, state_v_first, cu_seqlens, chunk_size: as in `chunk_simple_gla`.
        chunk_indices: of no effect.
        cp_context: None: a sequence is on one GPU.
        A_log, dt_bias: (H_v,).

    Returns:
        o (B, T, H_v, d_hv) and the final state, float32, or None.
    """
    del chunk_indices
    if cp_context is not None:
        raise ValueError("cp_context is given: it must be None, these kernels have a whole sequence")
    return _delta_rule(
        gated_delta_net,
        (q, k, v, _log_decay(g, A_log, dt_bias) if use_gate_in_kernel else g, beta),
        (initial_state, output_final_state, state_v_first),
        normalize=use_qk_l2norm_in_kernel,
        sigmoid=use_beta_sigmoid_in_kernel,
        negative=allow_neg_eigval,
        scale=scale,
        cu_seqlens=_offsets(cu_seqlens, cu_seqlens_cpu),
        chunk_size="auto" if chunk_size is None else chunk_size,
    )


def fused_recurrent_gated_delta_rule(  # noqa: PLR0913  fla's arguments
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute `chunk_gated_delta_rule`; a g of None is no decay, a beta of None is 1. gk and gv must be None.

    q and k are cast to the dtype of v.
    """
    if gk is not None or gv is not None:
        name = "gk" if gv is None else "gv"
        raise ValueError(f"{name} is a tensor: it must be None, these kernels have one decay a head and step")
    return chunk_gated_delta_rule(
        *(q.to(v.dtype), k.to(v.dtype), v),
        v.new_zeros(v.shape[:-1]) if g is None else g,
        v.new_ones(v.shape[:-1]) if beta is None else beta,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        use_gate_in_kernel=use_gate_in_kernel,
        A_log=A_log,
        dt_bias=dt_bias,
    )


def _channel_log_decay(
    g: Tensor, A_log: Tensor | None, dt_bias: Tensor | None, lower_bound: float | None, *, safe: bool = False
) -> Tensor:
    """Return -exp(A_log) softplus(g + dt_bias), or lower_bound sigmoid(exp(A_log) (g + dt_bias)), float32.

    Args:
        g: (B, T, H, d_qk); A_log: (H,), with a lower bound None for 0; dt_bias: H d_qk numbers, None for 0.
        safe: a lower bound must be given.
    """
    if lower_bound is None and (safe or A_log is None):
        name, wanted = ("lower_bound", "a number") if safe else ("A_log", "a tensor")
        raise ValueError(f"{name} is None: it must be {wanted} with use_gate_in_kernel{' and safe_gate' * safe}")
    if lower_bound is not None and not lower_bound < 0:
        raise ValueError(f"lower_bound is {lower_bound}: it must be below 0")
    g = g.float() if dt_bias is None else g.float() + dt_bias.float().reshape(g.shape[-2:])
    rate: Any = 1.0 if A_log is None else A_log.float().reshape(-1, 1).exp()
    return -rate * softplus(g) if lower_bound is None else lower_bound * torch.sigmoid(rate * g)


def chunk_kda(  # noqa: PLR0913  fla's arguments
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    cp_context: None = None,
    use_graph: bool = False,
    max_num_seqs: int | None = None,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute Kimi Delta Attention: `chunk_gated_delta_rule` with d_t a diagonal matrix.

    Args:
        q, k, v, beta, use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval: as there.
        g: log decays (B, T, H_v, d_qk); with `use_gate_in_kernel` -exp(A_log) softplus(g + dt_bias) are, or with a
            `lower_bound` lower_bound sigmoid(exp(A_log) (g + dt_bias)).
        A_log, dt_bias: (H_v,), may be None with a lower bound; H_v d_qk numbers.
        safe_gate: there must be a lower bound. The result is the same.
        scale, initial_state, output_final_state, state_v_first, cu_seqlens, chunk_size: as in `chunk_simple_gla`.
        disable_recompute, max_num_seqs: of no effect.
        return_intermediate_states, use_graph, cp_context: False or None: such calls are refused.

    Returns:
        o (B, T, H_v, d_hv) and the final state, float32, or None.
    """
    del disable_recompute, max_num_seqs
    refused = {
        "return_intermediate_states": return_intermediate_states, "use_graph": use_graph, "cp_context": cp_context
    }  # fmt: skip
    for name, value in refused.items():
        if value:
            raise ValueError(f"{name} is given: it must be {'None' if name == 'cp_context' else False}")
    if use_gate_in_kernel:
        g = _channel_log_decay(g, A_log, dt_bias, lower_bound, safe=safe_gate)
    return _delta_rule(
        kda,
        (q, k, v, g, beta),
        (initial_state, output_final_state, state_v_first),
        normalize=use_qk_l2norm_in_kernel,
        sigmoid=use_beta_sigmoid_in_kernel,
        negative=allow_neg_eigval,
        scale=scale,
        cu_seqlens=_offsets(cu_seqlens, cu_seqlens_cpu),
        chunk_size="auto" if chunk_size is None else chunk_size,
    )


def fused_recurrent_kda(  # noqa: PLR0913  fla's arguments
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute `chunk_kda`."""
    return chunk_kda(
        q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
        use_beta_sigmoid_in_kernel, allow_neg_eigval,
        lower_bound=lower_bound,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        A_log=A_log,
        dt_bias=dt_bias,
    )  # fmt: skip
