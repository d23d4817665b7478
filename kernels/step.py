"""A decode step of any family, with its state replaced in place.

Steps follow the recurrence itself (TFLA paper, eqs. 1-9; bytes moved: Table 13), in Triton on a GPU, else in PyTorch.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from .backends import KERNEL_DTYPES, autocast_dtype, decode_kernels_of, reference_of
from .checks import (
    check_in_place,
    check_inputs,
    check_is_gate,
    check_name,
    check_no_gradient,
    check_one_dtype,
    check_options,
    check_scale,
    check_skip,
    check_state,
)
from .chunkwise_operator import gate_of, setup_key
from .common import operators
from .common.contract import Arguments
from .common.operators import HAS_TRITON, constant_to_compilers, without_gradients
from .families import family_of
from .mamba2.epilogue import skip_and_gate
from .state import State
from .types import Gating, StepImplementation


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


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor | None,
    i: Tensor | None,
    state: State,
    *,
    gate: Gating,
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
    check_is_gate(gate)
    return compute_step(q, k, v, f, i, state, gate, options, skip=skip)


def compute_step(
    q: Tensor, k: Tensor, v: Tensor, f: Tensor | None, i: Tensor | None, state: State, gate: Gating,
    options: StepOptions, *, names: tuple[str, str] = ("f", "i"), skip: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return what `step` returns, for an operation that calls its gates by other names."""
    scale, out = options.pop("scale", None), options.pop("out", None)
    implementation = options.pop("implementation", "auto")
    check_options(options, StepOptions.__annotations__)
    check_inputs((q, k, v, f, i), gate, "BH", names)
    check_state("state", state, gate, q, v, v.shape[0])
    if out is not None:
        check_state("out", out, gate, q, v, v.shape[0])
    if skip is not None:
        check_skip(skip, gate, v)
    check_scale(scale)
    in_triton = family_of(gate).decode_kernels is not None
    check_name("implementation", implementation, ("auto", "reference", *(["triton"] if in_triton else [])))
    gates = dict(zip(names, (f, i), strict=True))
    check_no_gradient(q=q, k=k, v=v, **gates, skip=skip, **{"state.C": state.C, "state.n": state.n})
    low = autocast_dtype(q)
    if low is not None:
        q, k, v = (x.to(low) for x in (q, k, v))
    check_one_dtype(q, k, v)
    check_in_place("state", state, q)
    if out is not None:
        check_in_place("out", out, q)
    usable = in_triton and HAS_TRITON and q.is_cuda and q.dtype in KERNEL_DTYPES
    if implementation == "triton" or (implementation == "auto" and usable):
        _check_for_triton(q)
        before, after = ((None, None, None), state) if out is None else (state, out)
        scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
        return _step_in_triton(
            *(q, k, v, f, i, *after, *before), scale, float(gate.temperature),
            setup_key("triton", gate.family, gate.fields, torch.float32, None), skip,
        )  # fmt: skip
    with torch.no_grad(), nullcontext() if low is None else torch.autocast(q.device.type, enabled=False):
        h, new = reference_of(gate).decode(q, k, v, f, i, state, gate=gate, scale=scale)
        for old, value in zip(state if out is None else out, new, strict=True):
            if old is not None and value is not None:
                old.copy_(value)
        return skip_and_gate(h[:, :, None], v[:, :, None], skip, None, head_axis=1, plain=True)[:, :, 0]


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


_NO_GRADIENTS = without_gradients("a decode step has no gradients: call it under torch.no_grad()")


@operators.custom_op("step", _NO_GRADIENTS, mutates=("C", "n", "m"))
def _step_in_triton(  # noqa: PLR0913  an operator's schema
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor | None,
    i: Tensor | None,
    C: Tensor,
    n: Tensor | None,
    m: Tensor | None,
    C_before: Tensor | None,
    n_before: Tensor | None,
    m_before: Tensor | None,
    scale: float,
    temperature: float,
    setup: str,
    skip: Tensor | None = None,
) -> Tensor:
    """Return h_t. C, n, m become the state after the step; before it that is *_before, or C, n, m if they are None."""
    after = State(C, n, m)
    before = after if C_before is None else State(C_before, n_before, m_before)
    gate = gate_of(setup, temperature)
    return decode_kernels_of(gate.family).step(Arguments(q, k, v, f, i, before, skip), after, gate=gate, scale=scale)


@operators.register_fake("step")
def _fake_step(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> Tensor:
    return v.new_empty(v.shape)
