"""The decode steps: one step of each operation of `api`, with its state replaced in place.

They follow the recurrence itself (TFLA paper, eqs. 1-9; bytes moved: Table 13), in Triton on a GPU, else in PyTorch.
"""

from __future__ import annotations

import functools
import importlib
from contextlib import nullcontext
from typing import Any, TypedDict, Unpack, cast

import torch
from torch import Tensor

from .api import Mamba2Terms, retnet_log_decays
from .backends import KERNEL_DTYPES, autocast_dtype
from .checks import (
    check_in_place,
    check_inputs,
    check_mamba2,
    check_name,
    check_no_gradient,
    check_no_others,
    check_not_negative,
    check_not_positive,
    check_of_heads,
    check_one_dtype,
    check_scale,
    check_skip,
    check_state,
    check_tensor,
)
from .common import operators
from .common.operators import HAS_TRITON, constant_to_compilers, without_gradients
from .mamba2.epilogue import skip_and_gate
from .scalar import reference
from .state import State
from .types import MLSTM_EXP, MLSTM_SIG, RETENTION, SIMPLE_GLA, Gate, StepImplementation


class StepOptions(TypedDict, total=False):
    """Keywords of every decode step.

    Attributes:
        scale: of q; None, the default, is 1/sqrt(d_qk) (for `mamba2_ssd_step` 1).
        out: where to put the state after the step, `state` staying as it is; None, the default, replaces `state`.
        implementation: "triton" (any CUDA device, any d_qk and d_hv), "reference", or "auto", the default: Triton
            where it runs.
    """

    scale: float | None
    out: State | None
    implementation: StepImplementation


class Mamba2StepOptions(StepOptions, Mamba2Terms, total=False):
    """Keywords of `mamba2_ssd_step`: `StepOptions`, and `api.Mamba2Terms` without their time axis."""


def mlstm_exp_step(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: State, **options: Unpack[StepOptions]
) -> Tensor:
    """Compute one step of `api.mlstm_exp` (TFLA paper, eqs. 1-9).

    Args:
        q, k: (B, H, d_qk), bfloat16, float16 or float32 (float64 too: reference); v: (B, H, d_hv), like q.
        i, f: pre-activations of the input and the forget gate (B, H), any floating dtype.
        state: before the step; it is replaced by the one after it.
        options: see `StepOptions`.

    Returns:
        h_t (B, H, d_hv), in the dtype of q.

    Raises:
        TypeError, ValueError: see `step`.
    """
    return step(q, k, v, f, i, state, gate=MLSTM_EXP, **options)


def mlstm_sig_step(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: State, **options: Unpack[StepOptions]
) -> Tensor:
    """Compute one step of `api.mlstm_sig` (TFLA paper, section 4.1).

    Args:
        q, k: (B, H, d_qk), bfloat16, float16 or float32 (float64 too: reference); v: (B, H, d_hv), like q.
        i, f: pre-activations of the input and the forget gate (B, H), any floating dtype.
        state: before the step; it is replaced by the one after it.
        options: see `StepOptions`.

    Returns:
        h_t (B, H, d_hv), in the dtype of q.

    Raises:
        TypeError, ValueError: see `step`.
    """
    return step(q, k, v, f, i, state, gate=MLSTM_SIG, **options)


def retention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: State,
    log_decay: Tensor | None = None,
    **options: Unpack[StepOptions],
) -> Tensor:
    """Compute one step of `api.retention` (Sun et al. 2023, "Retentive network", eq. 5).

    Args:
        q, k: (B, H, d_qk), bfloat16, float16 or float32 (float64 too: reference); v: (B, H, d_hv), like q.
        state: before the step; it is replaced by the one after it.
        log_decay: (H,), <= 0, any floating dtype; None is `api.retnet_log_decays`.
        options: see `StepOptions`.

    Returns:
        h_t (B, H, d_hv), in the dtype of q.

    Raises:
        TypeError, ValueError: see `step`.
    """
    if log_decay is None:
        check_tensor("v", v, v)
        log_decay = retnet_log_decays(v.shape[1], v.device, torch.promote_types(v.dtype, torch.float32))
    check_of_heads("log_decay", log_decay, v)
    check_not_positive("log_decay", log_decay)
    return step(q, k, v, log_decay, None, state, gate=RETENTION, **options)


def gated_retention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    state: State,
    *,
    temperature: float = 16.0,
    **options: Unpack[StepOptions],
) -> Tensor:
    """Compute one step of `api.gated_retention` (Sun et al. 2024, "You only cache once").

    Args:
        q, k: (B, H, d_qk), bfloat16, float16 or float32 (float64 too: reference); v: (B, H, d_hv), like q.
        f: pre-activations of the forget gate (B, H), any floating dtype.
        state: before the step; it is replaced by the one after it.
        temperature: > 0; the larger, the slower it forgets.
        options: see `StepOptions`.

    Returns:
        h_t (B, H, d_hv), in the dtype of q.

    Raises:
        TypeError, ValueError: see `step`.
    """
    return step(q, k, v, f, None, state, gate=Gate("sigmoid", "none", temperature=temperature), **options)


def simple_gla_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: State, **options: Unpack[StepOptions]) -> Tensor:
    """Compute one step of `api.simple_gla` (Yang et al. 2024, "Gated linear attention").

    Args:
        q, k: (B, H, d_qk), bfloat16, float16 or float32 (float64 too: reference); v: (B, H, d_hv), like q.
        g: log decays (B, H), <= 0, any floating dtype.
        state: before the step; it is replaced by the one after it.
        options: see `StepOptions`.

    Returns:
        h_t (B, H, d_hv), in the dtype of q.

    Raises:
        TypeError, ValueError: see `step`.
    """
    return step(q, k, v, g, None, state, gate=SIMPLE_GLA, **options)


def lightning_attention_step(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, state: State, **options: Unpack[StepOptions]
) -> Tensor:
    """Compute one step of `api.lightning_attention` (Qin et al. 2024, "Lightning attention-2").

    Args:
        q, k: (B, H, d_qk), bfloat16, float16 or float32 (float64 too: reference); v: (B, H, d_hv), like q.
        slopes: (H,), >= 0, any floating dtype.
        state: before the step; it is replaced by the one after it.
        options: see `StepOptions`.

    Returns:
        h_t (B, H, d_hv), in the dtype of q.

    Raises:
        TypeError, ValueError: see `step`.
    """
    check_of_heads("slopes", slopes, v)
    check_not_negative("slopes", slopes)
    return step(q, k, v, -slopes, None, state, gate=RETENTION, **options)


def mamba2_ssd_step(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: State, **options: Unpack[Mamba2StepOptions]
) -> Tensor:
    """Compute one step of `api.mamba2_ssd` (Dao and Gu 2024): its arguments without their time axis, and the state.

    Args:
        x: (B, H, d_hv).
        dt: (B, H), any floating dtype.
        A: (H,), <= 0, the decay rate.
        B, C: (B, G, d_qk), dtype of x.
        state: before the step; its C is (B, H, d_qk, d_hv). It is replaced by the one after the step.
        options: `api.Mamba2Terms` has D, z, dt_bias and dt_softplus, `StepOptions` the others; `scale` is 1 if not
            given.

    Returns:
        y_t (B, H, d_hv), in the dtype of x.

    Raises:
        TypeError, ValueError: see `step`.
    """
    if unknown := [name for name in options if name not in Mamba2StepOptions.__annotations__]:
        check_no_others(unknown, Mamba2StepOptions.__annotations__)
    D, z, dt_bias = options.pop("D", None), options.pop("z", None), options.pop("dt_bias", None)
    gate = Gate("rate", "softplus" if options.pop("dt_softplus", False) else "step")
    check_mamba2(x, dt, A, B, C, (D, z, dt_bias), "BH")
    if autocast_dtype(x) is None:
        check_one_dtype(x, B, C, "x, B, C")
    check_no_gradient(x=x, dt=dt, A=A, B=B, C=C, D=D, z=z, dt_bias=dt_bias)
    if dt_bias is not None:
        dt = dt.to(torch.promote_types(dt.dtype, torch.float32)) + dt_bias
    skip, wide = (D, None) if D is None or D.dim() == 1 else (None, D)
    options.setdefault("scale", 1.0)
    y = step(C, B, x, A, dt, state, gate=gate, skip=skip, **cast("StepOptions", options))
    z = None if z is None else z[:, :, None]
    plain = options.get("implementation") == "reference"
    with torch.no_grad():
        return skip_and_gate(y[:, :, None], x[:, :, None], wide, z, head_axis=1, plain=plain)[:, :, 0]


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    i: Tensor | None,
    state: State,
    *,
    gate: Gate,
    skip: Tensor | None = None,
    **options: Unpack[StepOptions],
) -> Tensor:
    """Compute one step of `api.chunkwise`, with any gate, and replace the state by the one after it.

    The result is that of the sequence form at this step. It has no gradients: call it under `torch.no_grad()`.

    Args:
        q, k: (B, H, d_qk), bfloat16, float16 or float32 (float64 too: reference); with fewer heads than v, a divisor of
            H, each serves consecutive heads.
        v: (B, H, d_hv), dtype and device of q. Under autocast q, k, v are cast.
        f, i: gate pre-activations (B, H) of any floating dtype, or what `gate` says instead.
        state: before the step, contiguous; C float32 or bfloat16, n and m float32 (for float64 q: all float64).
        gate: which gates, with a normaliser or without.
        skip: (H,), skip v_t is added to h_t, of a gate without normaliser; None is 0.
        options: see `StepOptions`.

    Returns:
        h_t (B, H, d_hv), in the dtype of q.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, device, shape or value, one that requires a
            gradient, or an implementation that cannot run here; the message names the argument, what it is and what it
            must be.
    """
    scale, out = options.pop("scale", None), options.pop("out", None)
    implementation = options.pop("implementation", "auto")
    if options:
        check_no_others(options, StepOptions.__annotations__)
    check_inputs(q, k, v, f, i, gate, "BH")
    check_state("state", state, gate, q, v, v.shape[0])
    if out is not None:
        check_state("out", out, gate, q, v, v.shape[0])
    if skip is not None:
        check_skip(skip, gate, v)
    check_scale(scale)
    check_name("implementation", implementation, ("auto", "reference", "triton"))
    check_no_gradient(q=q, k=k, v=v, f=f, i=i, skip=skip, **{"state.C": state.C, "state.n": state.n})
    low = autocast_dtype(q)
    if low is not None:
        q, k, v = (x.to(low) for x in (q, k, v))
    check_one_dtype(q, k, v)
    check_in_place("state", state, q)
    if out is not None:
        check_in_place("out", out, q)
    if implementation == "triton" or (implementation == "auto" and _triton_takes(q)):
        _check_for_triton(q)
        before, after = ((None, None, None), state) if out is None else (state, out)
        scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
        return _step_in_triton(
            *(q, k, v, f, i, *after, *before), scale, gate.forget, gate.input, gate.normalize, gate.temperature, skip
        )
    with torch.no_grad(), nullcontext() if low is None else torch.autocast(q.device.type, enabled=False):
        h = _step_in_torch((q, k, v, f, i), state, state if out is None else out, gate, scale)
        return skip_and_gate(h[:, :, None], v[:, :, None], skip, None, head_axis=1, plain=True)[:, :, 0]


def _step_in_torch(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None],
    before: State,
    after: State,
    gate: Gate,
    scale: float | None,
) -> Tensor:
    """Return h_t by the reference, of q, k, v, f, i, and write the state after the step."""
    q, k, v, f, i = inputs
    i = None if i is None else _with_time(i)
    log_f, log_i = reference.log_gates(gate, _with_time(f), i, v[:, :, None])
    q_t, k_t, v_t = (x.to(log_f.dtype) for x in (q, k, v))
    h, new = reference.step(q_t, k_t, v_t, log_f[..., 0], log_i[..., 0], before, scale=scale)
    for old, value in zip(after, new, strict=True):
        if old is not None and value is not None:
            old.copy_(value)
    return h.to(q.dtype)


def _with_time(gate: Tensor) -> Tensor:
    """Return a gate (B, H) as (B, H, 1), and the gate of a head (H,) as it is."""
    return gate if gate.dim() == 1 else gate[..., None]


def _triton_takes(q: Tensor) -> bool:
    return HAS_TRITON and q.is_cuda and q.dtype in KERNEL_DTYPES


def _check_for_triton(q: Tensor) -> None:
    if not HAS_TRITON:
        raise ValueError("implementation is 'triton': it needs the package triton, which is not installed")
    if not q.is_cuda and not _interpreted():
        raise ValueError(f"implementation is 'triton': it needs a CUDA device, and q is on {q.device}")
    if q.dtype not in KERNEL_DTYPES:
        raise TypeError(f"q is {q.dtype}: it must be bfloat16, float16 or float32 for implementation 'triton'")


@constant_to_compilers
def _interpreted() -> bool:
    from triton import knobs  # pyright: ignore[reportMissingTypeStubs]

    return knobs.runtime.interpret


_gate = functools.lru_cache(64)(Gate)


@functools.cache
def _kernels() -> Any:
    return importlib.import_module(".scalar.step_kernel", __package__)


_NO_GRADIENTS = without_gradients("a decode step has no gradients: call it under torch.no_grad()")


@operators.custom_op("step", _NO_GRADIENTS, mutates=("C", "n", "m"))
def _step_in_triton(  # noqa: PLR0913  an operator's schema
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    i: Tensor | None,
    C: Tensor,
    n: Tensor | None,
    m: Tensor | None,
    C_before: Tensor | None,
    n_before: Tensor | None,
    m_before: Tensor | None,
    scale: float,
    forget: str,
    input: str,
    normalize: bool,
    temperature: float = 1.0,
    skip: Tensor | None = None,
) -> Tensor:
    """Return h_t. C, n, m become the state after the step; before it that is *_before, or C, n, m if they are None."""
    after = State(C, n, m)
    before = after if C_before is None else State(C_before, n_before, m_before)
    q, k, v = (x.contiguous() for x in (q, k, v))
    f = f.expand(v.shape[:2]).contiguous()
    i = None if i is None else i.contiguous()
    gate = _gate(forget, input, normalize, temperature)
    skip = None if skip is None else skip.contiguous()
    kernels = _kernels()
    inputs = kernels.Inputs(q, k, v, f, f if i is None else i)
    return kernels.step(inputs, before, after, gate=gate, scale=scale, skip=skip)


@operators.register_fake("step")
def _fake_step(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> Tensor:
    return v.new_empty(v.shape)
