"""The operations on sequences: mLSTM and the other linear RNNs with one scalar gate a head.

    mlstm_exp, mlstm_sig             the two gates of the TFLA paper
    retention, gated_retention,      linear RNNs that the paper leaves to future work (A.3): other gates,
    simple_gla, lightning_attention, and for Mamba 2 shared heads, a skip connection and an output gate
    mamba2_ssd
    chunkwise                        any Gate

"reference" is plain PyTorch under plain autograd. All other implementations run behind one torch operator
(`chunkwise_operator`), which asks `backends` for kernels. `step` has the decode step of each.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Literal, NamedTuple, TypedDict, Unpack, cast, overload

import torch
from torch import Tensor

from . import chunkwise_operator
from .backends import (
    REFERENCE_CHUNK_SIZE,
    Arguments,
    autocast_dtype,
    check_for_kernels,
    check_implementation,
    kernels_of,
    only_reference,
    resolve,
)
from .checks import (
    check_chunk_size,
    check_gate,
    check_inputs,
    check_mamba2,
    check_name,
    check_no_others,
    check_not_negative,
    check_not_positive,
    check_one_dtype,
    check_scale,
    check_skip,
    check_state,
    heads_of,
)
from .common import packed
from .mamba2.epilogue import skip_and_gate
from .mamba2.prologue import add_bias
from .scalar import reference
from .scalar.plan.tfla import TileConfig
from .state import State, zero_state
from .types import MLSTM_EXP, MLSTM_SIG, RETENTION, SIMPLE_GLA, ChunkSize, Gate, Implementation, Layout


class Options(TypedDict, total=False):
    """Keywords of every operation on sequences.

    Attributes:
        layout: "bhtd", the default, for q, k, v, h (B, H, T, d) and gates (B, H, T); "bthd" for (B, T, H, d) and
            (B, T, H). Nothing is copied.
        chunk_size: L, the steps between two states in memory. It changes speed and memory, not the result. "auto", the
            default, chooses by shape and device, and by whether a gradient is asked for. At least 16 and a multiple of
            the kernels' tile; for the reference any L >= 1.
        initial_state: the State before the first step; None, the default, is `zero_state`.
        scale: of q; None, the default, is 1/sqrt(d_qk) (for `mamba2_ssd` 1).
        state_dtype: torch.float32, the default, or torch.bfloat16: the widest type in which states between chunks lie
            in memory. Kernels keep them in the dtype of q where that is narrower: their products would round them to it
            anyway.
        implementation: "auto", "reference", "hopper", "tfla" (one of the next two), "tfla_xl" or "tfla_limit". "auto",
            the default, is the fused kernels ("hopper": compute capability 9.0) where they take these inputs, else a
            TFLA kernel, else the reference (CPU, float64, head dimensions that are no multiple of 16). It is not the
            fused kernels below a chunk size of 512, as they write larger states. `choose` says which one runs.
        config: for experts, how the TFLA kernels are tiled; None, the default, is `TileConfig.for_shape`.
        cu_seqlens: (N + 1,), int32 or int64, where N documents begin and end that lie end to end along T, from 0 to T;
            B is 1 then. States are one a document, (N, H, ...). None, the default, is one sequence. Give them on the
            CPU: kernels then take all documents in one launch. On a GPU they are waited for if states go in or out.
    """

    layout: Layout
    chunk_size: ChunkSize
    initial_state: State | None
    scale: float | None
    state_dtype: torch.dtype
    implementation: Implementation
    config: TileConfig | None
    cu_seqlens: Tensor | None


class Mamba2Terms(TypedDict, total=False):
    """Keywords that `mamba2_ssd` and its step have for themselves.

    Attributes:
        D: (H,) or (H, d_hv), weight of the skip connection; None, the default, is 0.
        z: like x, the output gate's pre-activation; None, the default, is no gate.
        dt_bias: (H,), added to dt before softplus; None, the default, is 0.
        dt_softplus: whether the step size is softplus of what is given; False is the default.
    """

    D: Tensor | None
    z: Tensor | None
    dt_bias: Tensor | None
    dt_softplus: bool


class Mamba2Options(Options, Mamba2Terms, total=False):
    """Keywords of `mamba2_ssd`: `Options` and `Mamba2Terms`."""


@overload
def mlstm_exp(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, *,
    return_last_state: Literal[False] = False, **options: Unpack[Options],
) -> Tensor: ...  # fmt: skip
@overload
def mlstm_exp(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, *,
    return_last_state: Literal[True], **options: Unpack[Options],
) -> tuple[Tensor, State]: ...  # fmt: skip
@overload
def mlstm_exp(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, *, return_last_state: bool, **options: Unpack[Options]
) -> Tensor | tuple[Tensor, State]: ...
def mlstm_exp(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, *,
    return_last_state: bool = False, **options: Unpack[Options],
) -> Tensor | tuple[Tensor, State]:  # fmt: skip
    """Compute mLSTMexp: exponential input gate, sigmoid forget gate, normaliser (TFLA paper, eqs. 1-9).

        C_t = sigmoid(f_t) C_{t-1} + exp(i_t) k_t v_t^T,   n_t = sigmoid(f_t) n_{t-1} + exp(i_t) k_t
        h_t = C_t^T q_t / max(|n_t^T q_t|, 1),   q scaled

    Args:
        q, k: (B, H, T, d_qk), bfloat16, float16 or float32 (float64 too: reference); v: (B, H, T, d_hv), like q.
        i, f: pre-activations of the input and the forget gate (B, H, T), any floating dtype.
        return_last_state: return (h, State) instead of h.
        options: see `Options`.

    Returns:
        h (B, H, T, d_hv), in the dtype of q, or (h, State).

    Raises:
        TypeError, ValueError: see `chunkwise`.
    """
    return chunkwise(q, k, v, f, i, gate=MLSTM_EXP, return_last_state=return_last_state, **options)


@overload
def mlstm_sig(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, *,
    return_last_state: Literal[False] = False, **options: Unpack[Options],
) -> Tensor: ...  # fmt: skip
@overload
def mlstm_sig(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, *,
    return_last_state: Literal[True], **options: Unpack[Options],
) -> tuple[Tensor, State]: ...  # fmt: skip
@overload
def mlstm_sig(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, *, return_last_state: bool, **options: Unpack[Options]
) -> Tensor | tuple[Tensor, State]: ...
def mlstm_sig(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, *,
    return_last_state: bool = False, **options: Unpack[Options],
) -> Tensor | tuple[Tensor, State]:  # fmt: skip
    """Compute mLSTMsig: sigmoid input and forget gates, no normaliser (TFLA paper, section 4.1).

        C_t = sigmoid(f_t) C_{t-1} + sigmoid(i_t) k_t v_t^T,   h_t = C_t^T q_t,   q scaled

    Args:
        q, k: (B, H, T, d_qk), bfloat16, float16 or float32 (float64 too: reference); v: (B, H, T, d_hv), like q.
        i, f: pre-activations of the input and the forget gate (B, H, T), any floating dtype.
        return_last_state: return (h, State) instead of h.
        options: see `Options`.

    Returns:
        h (B, H, T, d_hv), in the dtype of q, or (h, State).

    Raises:
        TypeError, ValueError: see `chunkwise`.
    """
    return chunkwise(q, k, v, f, i, gate=MLSTM_SIG, return_last_state=return_last_state, **options)


@overload
def retention(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None, *,
    return_last_state: Literal[False] = False, **options: Unpack[Options],
) -> Tensor: ...  # fmt: skip
@overload
def retention(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None, *,
    return_last_state: Literal[True], **options: Unpack[Options],
) -> tuple[Tensor, State]: ...  # fmt: skip
@overload
def retention(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None, *,
    return_last_state: bool, **options: Unpack[Options],
) -> Tensor | tuple[Tensor, State]: ...  # fmt: skip
def retention(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None, *,
    return_last_state: bool = False, **options: Unpack[Options],
) -> Tensor | tuple[Tensor, State]:  # fmt: skip
    """Compute Retention: a constant decay a head, no input gate (Sun et al. 2023, "Retentive network", eq. 5).

        S_t = exp(log_decay) S_{t-1} + k_t v_t^T,   h_t = S_t^T q_t,   q scaled

    Args:
        q, k: (B, H, T, d_qk), bfloat16, float16 or float32 (float64 too: reference); v: (B, H, T, d_hv), like q.
        log_decay: (H,), <= 0, any floating dtype; None is `retnet_log_decays`.
        return_last_state: return (h, State) instead of h.
        options: see `Options`.

    Returns:
        h (B, H, T, d_hv), in the dtype of q, or (h, State).

    Raises:
        TypeError, ValueError: see `chunkwise`.
    """
    layout = options.get("layout", "bhtd")
    if log_decay is None:
        log_decay = retnet_log_decays(heads_of(v, layout), v.device, torch.promote_types(v.dtype, torch.float32))
    check_gate("log_decay", log_decay, v, layout, per_head=True)
    check_not_positive("log_decay", log_decay)
    return chunkwise(q, k, v, log_decay, gate=RETENTION, return_last_state=return_last_state, **options)


@overload
def gated_retention(
    q: Tensor, k: Tensor, v: Tensor, f: Tensor, *,
    temperature: float = 16.0, return_last_state: Literal[False] = False, **options: Unpack[Options],
) -> Tensor: ...  # fmt: skip
@overload
def gated_retention(
    q: Tensor, k: Tensor, v: Tensor, f: Tensor, *,
    temperature: float = 16.0, return_last_state: Literal[True], **options: Unpack[Options],
) -> tuple[Tensor, State]: ...  # fmt: skip
@overload
def gated_retention(
    q: Tensor, k: Tensor, v: Tensor, f: Tensor, *,
    temperature: float = 16.0, return_last_state: bool, **options: Unpack[Options],
) -> Tensor | tuple[Tensor, State]: ...  # fmt: skip
def gated_retention(
    q: Tensor, k: Tensor, v: Tensor, f: Tensor, *,
    temperature: float = 16.0, return_last_state: bool = False, **options: Unpack[Options],
) -> Tensor | tuple[Tensor, State]:  # fmt: skip
    """Compute Gated Retention: a sigmoid decay a step, no input gate (Sun et al. 2024, "You only cache once").

        S_t = sigmoid(f_t)^(1 / temperature) S_{t-1} + k_t v_t^T,   h_t = S_t^T q_t,   q scaled

    Args:
        q, k: (B, H, T, d_qk), bfloat16, float16 or float32 (float64 too: reference); v: (B, H, T, d_hv), like q.
        f: pre-activations of the forget gate (B, H, T), any floating dtype.
        temperature: > 0; the larger, the slower it forgets.
        return_last_state: return (h, State) instead of h.
        options: see `Options`.

    Returns:
        h (B, H, T, d_hv), in the dtype of q, or (h, State).

    Raises:
        TypeError, ValueError: see `chunkwise`.
    """
    check_gate("f", f, v, options.get("layout", "bhtd"), per_head=False)
    gate = Gate("sigmoid", "none", temperature=temperature)
    return chunkwise(q, k, v, f, gate=gate, return_last_state=return_last_state, **options)


@overload
def simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, return_last_state: Literal[False] = False, **options: Unpack[Options]
) -> Tensor: ...
@overload
def simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, return_last_state: Literal[True], **options: Unpack[Options]
) -> tuple[Tensor, State]: ...
@overload
def simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, return_last_state: bool, **options: Unpack[Options]
) -> Tensor | tuple[Tensor, State]: ...
def simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, return_last_state: bool = False, **options: Unpack[Options]
) -> Tensor | tuple[Tensor, State]:
    """Compute Simple GLA: a given decay a step, no input gate (Yang et al. 2024, "Gated linear attention").

        S_t = exp(g_t) S_{t-1} + k_t v_t^T,   h_t = S_t^T q_t,   q scaled

    Args:
        q, k: (B, H, T, d_qk), bfloat16, float16 or float32 (float64 too: reference); v: (B, H, T, d_hv), like q.
        g: log decays (B, H, T), <= 0, any floating dtype, such as logsigmoid of a projection; -inf starts a document.
        return_last_state: return (h, State) instead of h.
        options: see `Options`.

    Returns:
        h (B, H, T, d_hv), in the dtype of q, or (h, State).

    Raises:
        TypeError, ValueError: see `chunkwise`.
    """
    check_gate("g", g, v, options.get("layout", "bhtd"), per_head=False)
    check_not_positive("g", g)
    return chunkwise(q, k, v, g, gate=SIMPLE_GLA, return_last_state=return_last_state, **options)


@overload
def lightning_attention(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, *,
    return_last_state: Literal[False] = False, **options: Unpack[Options],
) -> Tensor: ...  # fmt: skip
@overload
def lightning_attention(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, *, return_last_state: Literal[True], **options: Unpack[Options]
) -> tuple[Tensor, State]: ...
@overload
def lightning_attention(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, *, return_last_state: bool, **options: Unpack[Options]
) -> Tensor | tuple[Tensor, State]: ...
def lightning_attention(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, *, return_last_state: bool = False, **options: Unpack[Options]
) -> Tensor | tuple[Tensor, State]:
    """Compute Lightning attention: a constant decay a head, no input gate (Qin et al. 2024, "Lightning attention-2").

        S_t = exp(-slope) S_{t-1} + k_t v_t^T,   h_t = S_t^T q_t,   q scaled

    Args:
        q, k: (B, H, T, d_qk), bfloat16, float16 or float32 (float64 too: reference); v: (B, H, T, d_hv), like q.
        slopes: (H,), >= 0, any floating dtype, such as `lightning_slopes`.
        return_last_state: return (h, State) instead of h.
        options: see `Options`.

    Returns:
        h (B, H, T, d_hv), in the dtype of q, or (h, State).

    Raises:
        TypeError, ValueError: see `chunkwise`.
    """
    check_gate("slopes", slopes, v, options.get("layout", "bhtd"), per_head=True)
    check_not_negative("slopes", slopes)
    return chunkwise(q, k, v, -slopes, gate=RETENTION, return_last_state=return_last_state, **options)


@overload
def mamba2_ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, *,
    return_last_state: Literal[False] = False, **options: Unpack[Mamba2Options],
) -> Tensor: ...  # fmt: skip
@overload
def mamba2_ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, *,
    return_last_state: Literal[True], **options: Unpack[Mamba2Options],
) -> tuple[Tensor, State]: ...  # fmt: skip
@overload
def mamba2_ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, *,
    return_last_state: bool, **options: Unpack[Mamba2Options],
) -> Tensor | tuple[Tensor, State]: ...  # fmt: skip
def mamba2_ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, *,
    return_last_state: bool = False, **options: Unpack[Mamba2Options],
) -> Tensor | tuple[Tensor, State]:  # fmt: skip
    """Compute Mamba 2's state space dual (Dao and Gu 2024).

        d_t = softplus(dt_t + dt_bias), or dt_t + dt_bias itself
        S_t = exp(d_t A) S_{t-1} + d_t B_t x_t^T,   y_t = (S_t^T C_t + D x_t) * silu(z_t)

    It is `chunkwise` with q = C, k = B, v = x, F = exp(d A) and I = d. Gradients flow to every tensor.

    Args:
        x: (B, H, T, d_hv), bfloat16, float16 or float32 (float64 too: reference).
        dt: (B, H, T), any floating dtype; d_t > 0 (a step of 0 writes nothing and gets no gradient of I).
        A: (H,), <= 0, the decay rate, in units of 1 / d_t.
        B, C: (B, G, T, d_qk), dtype of x; G divides H, and each group serves H / G consecutive heads.
        return_last_state: return (y, State); its C is (B, H, d_qk, d_hv), mamba-ssm's transposed.
        options: `Mamba2Terms` has D, z, dt_bias and dt_softplus, `Options` the others. The layout holds for all
            tensors, and `scale` is 1 if not given.

    Returns:
        y, of the shape and dtype of x, or (y, State).

    Raises:
        TypeError, ValueError: see `chunkwise`.
    """
    if unknown := [name for name in options if name not in Mamba2Options.__annotations__]:
        check_no_others(unknown, Mamba2Options.__annotations__)
    D, z, dt_bias = options.pop("D", None), options.pop("z", None), options.pop("dt_bias", None)
    gate = Gate("rate", "softplus" if options.pop("dt_softplus", False) else "step")
    layout = options.get("layout", "bhtd")
    check_name("layout", layout, ("bhtd", "bthd"))
    check_mamba2(x, dt, A, B, C, (D, z, dt_bias), "BHT" if layout == "bhtd" else "BTH")
    if autocast_dtype(x) is None:
        check_one_dtype(x, B, C, "x, B, C")
    head_axis, plain = 1 if layout == "bhtd" else 2, options.get("implementation") == "reference"
    if dt_bias is not None:
        dt = add_bias(dt, dt_bias, head_axis=head_axis, plain=plain)
    skip, wide = (D, None) if D is None or D.dim() == 1 else (None, D)
    options.setdefault("scale", 1.0)
    others = cast("Options", options)
    found = chunkwise(C, B, x, A, dt, gate=gate, skip=skip, return_last_state=return_last_state, **others)
    if isinstance(found, Tensor):
        return skip_and_gate(found, x, wide, z, head_axis=head_axis, plain=plain)
    y, last = found
    return skip_and_gate(y, x, wide, z, head_axis=head_axis, plain=plain), last


def retnet_log_decays(
    heads: int, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return RetNet's log decays, log(1 - 2^(-5 - h)) for head h = 0 ... heads - 1: (H,) of dtype."""
    return torch.log1p(-torch.exp2(-5.0 - torch.arange(heads, dtype=dtype, device=device)))


def lightning_slopes(heads: int, layer: int, layers: int, device: torch.device | str | None = None) -> Tensor:
    """Return Lightning attention's slopes, 8 h / H (1 - layer / layers) for head h: (H,) float32.

    Args:
        heads: H.
        layer: 0 ... layers - 1; the slopes of later ones are smaller.
        layers: how many the network has.

    Raises:
        ValueError: there are no heads, or no such layer.
    """
    if heads < 1:
        raise ValueError(f"heads is {heads}: it must be 1 or more")
    if not 0 <= layer < layers:
        raise ValueError(f"layer is {layer} of {layers} layers: it must be from 0 to one less than layers")
    return 8.0 / heads * (1 - layer / layers) * torch.arange(heads, dtype=torch.float32, device=device)


@overload
def chunkwise(
    q: Tensor, k: Tensor, v: Tensor, f: Tensor, i: Tensor | None = None, *,
    gate: Gate, skip: Tensor | None = None, return_last_state: Literal[False] = False, **options: Unpack[Options],
) -> Tensor: ...  # fmt: skip
@overload
def chunkwise(
    q: Tensor, k: Tensor, v: Tensor, f: Tensor, i: Tensor | None = None, *,
    gate: Gate, skip: Tensor | None = None, return_last_state: Literal[True], **options: Unpack[Options],
) -> tuple[Tensor, State]: ...  # fmt: skip
@overload
def chunkwise(
    q: Tensor, k: Tensor, v: Tensor, f: Tensor, i: Tensor | None = None, *,
    gate: Gate, skip: Tensor | None = None, return_last_state: bool, **options: Unpack[Options],
) -> Tensor | tuple[Tensor, State]: ...  # fmt: skip
def chunkwise(
    q: Tensor, k: Tensor, v: Tensor, f: Tensor, i: Tensor | None = None, *,
    gate: Gate, skip: Tensor | None = None, return_last_state: bool = False, **options: Unpack[Options],
) -> Tensor | tuple[Tensor, State]:  # fmt: skip
    """Compute any linear RNN with scalar gates, in parallel over chunks of the sequence (TFLA paper, eqs. 1-9).

        C_t = F_t C_{t-1} + I_t k_t v_t^T,   h_t = scale C_t^T q_t,   normalised if the gate says so

    Gradients flow from h and the last C and n to q, k, v, f, i, skip and the initial C and n; the denominator of h
    and the stabiliser m count as constants (TFLA paper, B.3). NaN in an input reaches every output that depends on it.

    Args:
        q, k: (B, H, T, d_qk), bfloat16, float16 or float32 (float64 too: reference), any strides. With fewer heads than
            v, a divisor of H, each serves H / G consecutive heads.
        v: (B, H, T, d_hv), dtype and device of q. Under autocast q, k, v are cast, gates and states are not.
        f, i: gate pre-activations (B, H, T) of any floating dtype, or what `gate` says instead.
        gate: which gates, with a normaliser or without.
        skip: (H,), the weight of a skip connection: skip v_t is added to h_t, of a gate without normaliser. None is 0.
        return_last_state: return (h, State) instead of h. The state is float32, of float64 inputs float64.
        options: see `Options`.

    Returns:
        h of the shape of v and the dtype of q, or (h, State) with `return_last_state`.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, device, shape or value, or an implementation that
            cannot run here; the message names the argument, what it is and what it must be.
    """
    if unknown := [name for name in options if name not in Options.__annotations__]:
        check_no_others(unknown, Options.__annotations__)
    chosen = _Chosen(**options)
    check_name("layout", chosen.layout, ("bhtd", "bthd"))
    check_inputs(q, k, v, f, i, gate, "BHT" if chosen.layout == "bhtd" else "BTH")
    dense = v.is_contiguous()
    if chosen.layout == "bthd":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        f = f if f.dim() == 1 else f.transpose(1, 2)
        i = None if i is None else i.transpose(1, 2)
    _check_options(q, v, gate, skip, chosen)
    low = autocast_dtype(q)
    if low is not None:
        q, k, v = (x.to(low) for x in (q, k, v))
    check_one_dtype(q, k, v)
    call = Arguments(q, k, v, f, i, chosen.initial_state, skip)
    with nullcontext() if low is None else torch.autocast(q.device.type, enabled=False):
        h, last = (_run if chosen.cu_seqlens is None else _run_packed)(call, gate, chosen, return_last_state)
    if chosen.layout == "bthd":
        h = h.transpose(1, 2)
        h = h.contiguous() if dense else h  # of kernels it is
    if not return_last_state:
        return h
    assert last is not None
    return h, last


class _Chosen(NamedTuple):
    """`Options` with their defaults."""

    layout: Layout = "bhtd"
    chunk_size: ChunkSize = "auto"
    initial_state: State | None = None
    scale: float | None = None
    state_dtype: torch.dtype = torch.float32
    implementation: Implementation = "auto"
    config: TileConfig | None = None
    cu_seqlens: Tensor | None = None


def _check_options(q: Tensor, v: Tensor, gate: Gate, skip: Tensor | None, chosen: _Chosen) -> None:
    """Raise TypeError or ValueError for options that no implementation takes; q, v (B, H, T, d)."""
    if chosen.cu_seqlens is not None:
        packed.check_offsets(chosen.cu_seqlens, q)
    if chosen.initial_state is not None:
        sequences = v.shape[0] if chosen.cu_seqlens is None else chosen.cu_seqlens.numel() - 1
        check_state("initial_state", chosen.initial_state, gate, q, v, sequences)
    if skip is not None:
        check_skip(skip, gate, v)
    check_chunk_size(chosen.chunk_size)
    check_scale(chosen.scale)
    check_name("state_dtype", chosen.state_dtype, (torch.float32, torch.bfloat16))
    check_implementation(chosen.implementation)


def _run_packed(call: Arguments, gate: Gate, chosen: _Chosen, return_last_state: bool) -> tuple[Tensor, State | None]:
    """Return h (1, H, T, d_hv) of documents laid end to end, and the last State of each."""
    assert chosen.cu_seqlens is not None
    T, count = call.v.shape[2], chosen.cu_seqlens.numel() - 1
    if count == 1:
        return _run(call, gate, chosen, return_last_state)
    states = call.initial is not None or return_last_state
    if not states and (chosen.cu_seqlens.device.type != "cpu" or torch.compiler.is_compiling()):
        # To look at the offsets would wait for a GPU, or break a graph.
        return _run(*packed.as_one_sequence(call, gate, chosen.cu_seqlens), chosen, False)
    bounds = packed.bounds(chosen.cu_seqlens, T)
    runs = packed.runs(bounds)
    if len(runs) > 1 and _takes_documents(call, gate, chosen, bounds, states=states):
        return _run(*packed.per_step(call, gate), chosen, return_last_state, bounds)
    if not states and (len(runs) > 1 or runs[0].length < packed.LONG):
        return _run(*packed.as_one_sequence(call, gate, chosen.cu_seqlens), chosen, False)
    outputs: list[Tensor] = []
    ends: list[State] = []
    for batch in packed.batches(call, runs):
        if batch.v.shape[2] == 0:
            h, last = batch.v, _nothing_written(batch, gate)
        else:
            h, last = _run(batch, gate, chosen, return_last_state)
        outputs.append(h)
        if last is not None:
            ends.append(last)
    return packed.end_to_end(outputs), packed.joined(ends) if return_last_state else None


def _takes_documents(call: Arguments, gate: Gate, chosen: _Chosen, bounds: list[int], *, states: bool) -> bool:
    """Return whether kernels run that take documents in one launch, and are the fastest way."""
    q, v = call.q, call.v
    if chosen.implementation == "reference" or (chosen.implementation == "auto" and only_reference(q, v) is not None):
        return False
    if packed.capturing(v):
        return False
    check_for_kernels(q, v, chosen.chunk_size, chosen.implementation)
    L = None if chosen.chunk_size == "auto" else chosen.chunk_size
    name, _, _ = resolve(
        q, v, gate=gate, implementation=chosen.implementation, chunk_size=L, backward=True, config=chosen.config
    )
    takes = kernels_of(name).takes_documents
    return takes is not None and takes(bounds, q, v, states=states)


def _nothing_written(call: Arguments, gate: Gate) -> State:
    """Return the state that documents without steps begin and end with."""
    (B, H, _, d_hv), d_qk = call.v.shape, call.q.shape[-1]
    dtype = torch.promote_types(call.v.dtype, torch.float32)
    if call.initial is not None:
        C, n, m = (None if x is None else x.to(dtype) for x in call.initial)
        return State(cast("Tensor", C), n, m)
    return zero_state(gate, B, H, d_qk, d_hv, device=call.v.device, dtype=dtype)


def _run(
    call: Arguments, gate: Gate, chosen: _Chosen, return_last_state: bool, bounds: list[int] | None = None
) -> tuple[Tensor, State | None]:
    """Return h and the last state: by the reference, or by kernels, which return the state only if it is asked for.

    Args:
        bounds: of documents, for kernels that take them (`_takes_documents`).
    """
    q, v = call.q, call.v
    scale = q.shape[-1] ** -0.5 if chosen.scale is None else float(chosen.scale)
    L = None if chosen.chunk_size == "auto" else chosen.chunk_size
    implementation = chosen.implementation
    if implementation == "auto" and only_reference(q, v) is not None:
        implementation = "reference"
    if implementation == "reference":
        h, last = reference.chunkwise(
            *call[:-1],
            gate=gate,
            scale=scale,
            chunk_size=L or REFERENCE_CHUNK_SIZE,
            state_dtype=None if q.dtype == torch.float64 else chosen.state_dtype,
        )
        return skip_and_gate(h, v, call.skip, None, head_axis=1, plain=True), last
    check_for_kernels(q, v, chosen.chunk_size, implementation)
    setup = chunkwise_operator.Setup(implementation, gate, chosen.state_dtype, chosen.config)
    return chunkwise_operator.run(call, setup, scale, L, return_last_state, bounds)
