"""The operations with scalar gates, on sequences and, with `_step` behind their names, step by step.

On sequences q and k are (B, H, T, d_qk), or have fewer heads, v is (B, H, T, d_hv), and gates are (B, H, T): see
`api.chunkwise` for dtypes, `api.Options` for keywords. They return h (B, H, T, d_hv) in the dtype of q, or (h, State)
with `return_last_state`. Steps take the same without T, and the state, which they replace by the one after it: see
`step.step` and `step.StepOptions`. They raise as these do.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict, Unpack, cast, overload

import torch
from torch import Tensor

from tflabench.kernels.api import Options, compute, operation
from tflabench.kernels.backends import autocast_dtype
from tflabench.kernels.checks import (
    check_mamba2,
    check_name,
    check_no_gradient,
    check_not_negative,
    check_one_dtype,
    check_options,
    check_per_head,
    heads_of,
)
from tflabench.kernels.context import checks
from tflabench.kernels.mamba2.epilogue import skip_and_gate
from tflabench.kernels.mamba2.prologue import add_bias
from tflabench.kernels.state import State
from tflabench.kernels.step import StepOptions, compute_step
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG, RETENTION, SIMPLE_GLA, Gate


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


class Mamba2StepOptions(StepOptions, Mamba2Terms, total=False):
    """Keywords of `mamba2_ssd_step`: `StepOptions`, and `Mamba2Terms` without their time axis."""


@operation
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
    """
    return compute(q, k, v, f, i, MLSTM_EXP, options, return_last_state=return_last_state)


@operation
def mlstm_sig(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, *,
    return_last_state: bool = False, **options: Unpack[Options],
) -> Tensor | tuple[Tensor, State]:  # fmt: skip
    """Compute mLSTMsig: sigmoid input and forget gates, no normaliser (TFLA paper, section 4.1).

        C_t = sigmoid(f_t) C_{t-1} + sigmoid(i_t) k_t v_t^T,   h_t = C_t^T q_t,   q scaled

    Arguments as for `mlstm_exp`, with i and f (B, H, T).
    """
    return compute(q, k, v, f, i, MLSTM_SIG, options, return_last_state=return_last_state)


@operation
def retention(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None, *,
    return_last_state: bool = False, **options: Unpack[Options],
) -> Tensor | tuple[Tensor, State]:  # fmt: skip
    """Compute Retention: a constant decay a head, no input gate (Sun et al. 2023, "Retentive network", eq. 5).

        S_t = exp(log_decay) S_{t-1} + k_t v_t^T,   h_t = S_t^T q_t,   q scaled

    Args:
        log_decay: (H,), <= 0, any floating dtype; None is `retnet_log_decays`.
    """
    if log_decay is None:
        heads = heads_of(v, options.get("layout", "bhtd"))
        log_decay = retnet_log_decays(heads, v.device, torch.promote_types(v.dtype, torch.float32))
    names = "log_decay", "i"
    return compute(q, k, v, log_decay, None, RETENTION, options, names=names, return_last_state=return_last_state)


@operation
def gated_retention(
    q: Tensor, k: Tensor, v: Tensor, f: Tensor, *,
    temperature: float = 16.0, return_last_state: bool = False, **options: Unpack[Options],
) -> Tensor | tuple[Tensor, State]:  # fmt: skip
    """Compute Gated Retention: a sigmoid decay a step, no input gate (Sun et al. 2024, "You only cache once").

        S_t = sigmoid(f_t)^(1 / temperature) S_{t-1} + k_t v_t^T,   h_t = S_t^T q_t,   q scaled

    Args:
        f: pre-activations of the forget gate (B, H, T), any floating dtype.
        temperature: > 0; the larger, the slower it forgets.
    """
    gate = Gate("sigmoid", "none", temperature=temperature)
    return compute(q, k, v, f, None, gate, options, return_last_state=return_last_state)


@operation
def simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, return_last_state: bool = False, **options: Unpack[Options]
) -> Tensor | tuple[Tensor, State]:
    """Compute Simple GLA: a given decay a step, no input gate (Yang et al. 2024, "Gated linear attention").

        S_t = exp(g_t) S_{t-1} + k_t v_t^T,   h_t = S_t^T q_t,   q scaled

    Args:
        g: log decays (B, H, T), <= 0, any floating dtype, such as logsigmoid of a projection; -inf starts a document.
    """
    return compute(q, k, v, g, None, SIMPLE_GLA, options, names=("g", "i"), return_last_state=return_last_state)


@operation
def lightning_attention(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, *, return_last_state: bool = False, **options: Unpack[Options]
) -> Tensor | tuple[Tensor, State]:
    """Compute Lightning attention: a constant decay a head, no input gate (Qin et al. 2024, "Lightning attention-2").

        S_t = exp(-slope) S_{t-1} + k_t v_t^T,   h_t = S_t^T q_t,   q scaled

    Args:
        slopes: (H,), >= 0, any floating dtype, such as `lightning_slopes`.
    """
    with checks(options.get("group")):
        check_per_head("slopes", slopes, v, heads_of(v, options.get("layout", "bhtd")))
        check_not_negative("slopes", slopes)
    return compute(q, k, v, -slopes, None, RETENTION, options, return_last_state=return_last_state)


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
    """
    check_options(options, Mamba2Options.__annotations__)
    gate, D, z, dt_bias = _mamba2_terms(options)
    layout = options.get("layout", "bhtd")
    with checks(options.get("group")):
        check_name("layout", layout, ("bhtd", "bthd"))
        check_mamba2(x, dt, A, B, C, (D, z, dt_bias), "BHT" if layout == "bhtd" else "BTH")
        if autocast_dtype(x) is None:
            check_one_dtype(x, B, C, "x, B, C")
    head_axis, plain = 1 if layout == "bhtd" else 2, options.get("implementation") == "reference"
    if dt_bias is not None:
        dt = add_bias(dt, dt_bias, head_axis=head_axis, plain=plain)
    skip, wide = (D, None) if D is None or D.dim() == 1 else (None, D)
    made = compute(C, B, x, A, dt, gate, options, skip=skip, return_last_state=return_last_state)
    y, last = made if return_last_state else (made, None)
    y = skip_and_gate(y, x, wide, z, head_axis=head_axis, plain=plain)
    return y if last is None else (y, last)


def retnet_log_decays(
    heads: int, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return RetNet's log decays, log(1 - 2^(-5 - h)) for head h = 0 ... heads - 1: (H,) of dtype."""
    return torch.log1p(-torch.exp2(-5.0 - torch.arange(heads, dtype=dtype, device=device)))


def lightning_slopes(heads: int, layer: int, layers: int, device: torch.device | str | None = None) -> Tensor:
    """Return Lightning attention's slopes, 8 h / H (1 - layer / layers) for head h: (H,) float32.

    Args:
        layer: 0 ... layers - 1; the slopes of later ones are smaller.

    Raises:
        ValueError: there are no heads, or no such layer.
    """
    if heads < 1:
        raise ValueError(f"heads is {heads}: it must be 1 or more")
    if not 0 <= layer < layers:
        raise ValueError(f"layer is {layer} of {layers} layers: it must be from 0 to one less than layers")
    return 8.0 / heads * (1 - layer / layers) * torch.arange(heads, dtype=torch.float32, device=device)


# --- Steps


def mlstm_exp_step(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: State, **options: Unpack[StepOptions]
) -> Tensor:
    """Compute h_t (B, H, d_hv) of `mlstm_exp`, with i and f (B, H), and replace the state."""
    return compute_step(q, k, v, f, i, state, MLSTM_EXP, options)


def mlstm_sig_step(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: State, **options: Unpack[StepOptions]
) -> Tensor:
    """Compute h_t (B, H, d_hv) of `mlstm_sig`, with i and f (B, H), and replace the state."""
    return compute_step(q, k, v, f, i, state, MLSTM_SIG, options)


def retention_step(
    q: Tensor, k: Tensor, v: Tensor, state: State, log_decay: Tensor | None = None, **options: Unpack[StepOptions]
) -> Tensor:
    """Compute h_t (B, H, d_hv) of `retention`, with log_decay (H,) or None, and replace the state."""
    if log_decay is None:
        log_decay = retnet_log_decays(heads_of(v, "bhd"), v.device, torch.promote_types(v.dtype, torch.float32))
    return compute_step(q, k, v, log_decay, None, state, RETENTION, options, names=("log_decay", "i"))


def gated_retention_step(
    q: Tensor, k: Tensor, v: Tensor, f: Tensor, state: State, *,
    temperature: float = 16.0, **options: Unpack[StepOptions],
) -> Tensor:  # fmt: skip
    """Compute h_t (B, H, d_hv) of `gated_retention`, with f (B, H), and replace the state."""
    return compute_step(q, k, v, f, None, state, Gate("sigmoid", "none", temperature=temperature), options)


def simple_gla_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: State, **options: Unpack[StepOptions]) -> Tensor:
    """Compute h_t (B, H, d_hv) of `simple_gla`, with log decays g (B, H), and replace the state."""
    return compute_step(q, k, v, g, None, state, SIMPLE_GLA, options, names=("g", "i"))


def lightning_attention_step(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, state: State, **options: Unpack[StepOptions]
) -> Tensor:
    """Compute h_t (B, H, d_hv) of `lightning_attention`, with slopes (H,), and replace the state."""
    check_per_head("slopes", slopes, v, heads_of(v, "bhd"))
    check_not_negative("slopes", slopes)
    return compute_step(q, k, v, -slopes, None, state, RETENTION, options)


def mamba2_ssd_step(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: State, **options: Unpack[Mamba2StepOptions]
) -> Tensor:
    """Compute y_t (B, H, d_hv) of `mamba2_ssd`, and replace the state.

    Args:
        x: (B, H, d_hv); dt: (B, H); A: (H,); B, C: (B, G, d_qk).
        options: `Mamba2Terms` has D, z, dt_bias and dt_softplus, `StepOptions` the others; `scale` is 1 if not given.
    """
    check_options(options, Mamba2StepOptions.__annotations__)
    gate, D, z, dt_bias = _mamba2_terms(options)
    check_mamba2(x, dt, A, B, C, (D, z, dt_bias), "BH")
    if autocast_dtype(x) is None:
        check_one_dtype(x, B, C, "x, B, C")
    check_no_gradient(x=x, dt=dt, A=A, B=B, C=C, D=D, z=z, dt_bias=dt_bias)
    if dt_bias is not None:
        dt = dt.to(torch.promote_types(dt.dtype, torch.float32)) + dt_bias
    skip, wide = (D, None) if D is None or D.dim() == 1 else (None, D)
    plain = options.get("implementation") == "reference"
    y = compute_step(C, B, x, A, dt, state, gate, cast("StepOptions", options), skip=skip)
    z = None if z is None else z[:, :, None]
    with torch.no_grad():
        return skip_and_gate(y[:, :, None], x[:, :, None], wide, z, head_axis=1, plain=plain)[:, :, 0]


def _mamba2_terms(options: Any) -> tuple[Gate, Tensor | None, Tensor | None, Tensor | None]:
    """Return the gate, D, z and dt_bias, taken out of the options of Mamba 2, and let `scale` be 1 if not given."""
    options.setdefault("scale", 1.0)
    gate = Gate("rate", "softplus" if options.pop("dt_softplus", False) else "step")
    return gate, options.pop("D", None), options.pop("z", None), options.pop("dt_bias", None)
