"""Gated Linear Attention on sequences and step by step.

"reference" is plain PyTorch under plain autograd; "tfla" runs behind a torch operator (`operator`).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from tflabench.kernels.backends import autocast_dtype, check_for_kernels, only_reference
from tflabench.kernels.checks import (
    check_chunk_size,
    check_in_place,
    check_name,
    check_no_gradient,
    check_no_others,
    check_not_positive,
    check_one_dtype,
    check_scale,
    check_shape,
    check_state,
    check_tensor,
)
from tflabench.kernels.common import packed
from tflabench.kernels.common.operators import HAS_TRITON
from tflabench.kernels.state import State
from tflabench.kernels.step import StepOptions
from tflabench.kernels.types import SIMPLE_GLA, ChunkSize, GlaImplementation, Layout

from . import operator, reference

REFERENCE_CHUNK_SIZE = 32


class GlaOptions(TypedDict, total=False):
    """Keywords of `gla`.

    Attributes:
        scale: of q; None, the default, is 1/sqrt(d_qk).
        initial_state: the State before the first step, its C (B, H, d_qk, d_hv); None, the default, is zero. With
            `cu_seqlens` B is the number of sequences.
        cu_seqlens: as in `Options`.
        chunk_size: L, the steps between two states in memory. It changes speed and memory, not the result. "auto", the
            default, chooses by shape. A multiple of 16; for the reference any L >= 1.
        layout: "bhtd", the default, for (B, H, T, d); "bthd" for (B, T, H, d). Nothing is copied.
        implementation: "auto", the default, is "tfla" where it runs, else "reference" (CPU, float64, head dimensions
            that are no multiple of 16). "tfla": TFLA with a gate a channel, in Triton.
    """

    scale: float | None
    initial_state: State | None
    cu_seqlens: Tensor | None
    chunk_size: ChunkSize
    layout: Layout
    implementation: GlaImplementation


@overload
def gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *,
    return_last_state: Literal[False] = False, **options: Unpack[GlaOptions],
) -> Tensor: ...  # fmt: skip
@overload
def gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, return_last_state: Literal[True], **options: Unpack[GlaOptions]
) -> tuple[Tensor, State]: ...
@overload
def gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, return_last_state: bool, **options: Unpack[GlaOptions]
) -> Tensor | tuple[Tensor, State]: ...
def gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, return_last_state: bool = False, **options: Unpack[GlaOptions]
) -> Tensor | tuple[Tensor, State]:
    """Compute Gated Linear Attention: a given decay a step and channel of q and k (Yang et al. 2024, eq. 8).

        S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T,   o_t = S_t^T q_t,   q scaled

    Gradients flow from o and the last state to q, k, v, g and the initial state.

    Args:
        q, k: (B, H, T, d_qk), bfloat16, float16 or float32 (float64 too: reference); v: (B, H, T, d_hv), like q. Under
            autocast they are cast, g and states are not.
        g: log decays (B, H, T, d_qk), <= 0, any floating dtype; -inf forgets a channel.
        return_last_state: return (o, State) instead of o.
        options: see `GlaOptions`.

    Returns:
        o (B, H, T, d_hv), in the dtype of q, or (o, State).

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, device, shape or value, or an implementation that
            cannot run here; the message names the argument, what it is and what it must be.
    """
    check_no_others([name for name in options if name not in GlaOptions.__annotations__], GlaOptions.__annotations__)
    layout = options.get("layout", "bhtd")
    check_name("layout", layout, ("bhtd", "bthd"))
    _check_inputs(q, k, v, g, "BHT" if layout == "bhtd" else "BTH")
    dense = v.is_contiguous()
    if layout == "bthd":
        q, k, v, g = (x.transpose(1, 2) for x in (q, k, v, g))
    initial, cu_seqlens = options.get("initial_state"), options.get("cu_seqlens")
    implementation, L = _checked(q, v, options)
    low = autocast_dtype(q)
    if low is not None:
        q, k, v = (x.to(low) for x in (q, k, v))
    check_one_dtype(q, k, v)
    scale = options.get("scale")
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    run = _Runner(implementation, L, scale)
    with nullcontext() if low is None else torch.autocast(q.device.type, enabled=False):
        first = None if initial is None else initial.C
        if cu_seqlens is None:
            o, last = run(q, k, v, g, first)
        elif first is None and not return_last_state:
            shut = packed.begins(cu_seqlens, g.shape[2], g.device)[:, None]
            o, last = run(q, k, v, g.masked_fill(shut, float("-inf")), None)
        else:
            bounds = packed.bounds(cu_seqlens, g.shape[2])
            if run.takes_documents(q, v, bounds):
                o, last = run(q, k, v, g, first, bounds)
            else:
                o, last = _in_batches(run, (q, k, v, g), first, packed.runs(bounds))
    if layout == "bthd":
        o = o.transpose(1, 2)
        o = o.contiguous() if dense else o  # of kernels it is
    return (o, State(last)) if return_last_state else o


class _Runner:
    """Run an implementation on checked tensors (B, H, T, d)."""

    def __init__(self, implementation: str, chunk_size: int | None, scale: float) -> None:
        self.implementation, self.chunk_size, self.scale = implementation, chunk_size, scale

    def chosen(self, q: Tensor, v: Tensor) -> str:
        """Return the implementation that runs q and v."""
        if self.implementation != "auto":
            return self.implementation
        return "tfla" if only_reference(q, v) is None else "reference"

    def takes_documents(self, q: Tensor, v: Tensor, bounds: list[int]) -> bool:
        """Return whether one launch is the way for documents of q, v (1, H, T, d) between bounds."""
        return self.chosen(q, v) == "tfla" and len(packed.runs(bounds)) > 1 and not packed.capturing(v)

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial: Tensor | None, bounds: list[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return o and the last state, of documents between bounds the last of each."""
        implementation = self.chosen(q, v)
        if implementation == "reference":
            L = self.chunk_size or REFERENCE_CHUNK_SIZE
            return reference.chunkwise(q, k, v, g, initial, scale=self.scale, chunk_size=L)
        check_for_kernels(q, v, self.chunk_size or "auto", implementation)
        if not HAS_TRITON:
            raise ValueError(f"implementation is {implementation!r}: it needs the package triton, which is missing")
        if not torch.compiler.is_compiling():
            reason = operator.kernels_of(implementation).refuses(q, v, self.chunk_size)
            if reason is not None:
                raise ValueError(f"implementation is {implementation!r}: it must be one that can run here; it {reason}")
        initial = None if initial is None else initial.float()
        o, last = operator.forward(q, k, v, g, initial, self.scale, self.chunk_size, implementation, bounds)
        return o, last


def _in_batches(
    run: _Runner, inputs: tuple[Tensor, ...], initial: Tensor | None, runs: list[packed.Run]
) -> tuple[Tensor, Tensor]:
    counts = [each.documents for each in runs]
    starts = [None] * len(runs) if initial is None else packed.split(initial, counts, 0)
    outputs: list[Tensor] = []
    states: list[Tensor] = []
    for q, k, v, g, first in zip(*(packed.together(x, runs) for x in inputs), starts, strict=True):
        if q.shape[2] == 0:
            work = torch.promote_types(v.dtype, torch.float32)
            shape = (*v.shape[:2], q.shape[3], v.shape[3])
            o, last = v, v.new_zeros(shape, dtype=work) if first is None else first.to(work)
        else:
            o, last = run(q, k, v, g, first)
        outputs.append(o)
        states.append(last)
    return packed.end_to_end(outputs), torch.cat(states)


def _check_inputs(q: Tensor, k: Tensor, v: Tensor, g: Tensor, axes: str) -> None:
    """Check shapes, dtypes and devices; `axes` names all sizes but the last."""
    sizes = f"({', '.join(axes)}, d)"
    for name, x in (("q", q), ("k", k), ("v", v), ("g", g)):
        check_tensor(name, x, q)
        if x.dim() != len(axes) + 1 or 0 in x.shape:
            raise ValueError(f"{name} has the shape {tuple(x.shape)}: it must be {sizes}, every size at least 1")
    check_shape("k", k, q.shape)
    check_shape("g", g, q.shape)
    check_shape("v", v, (*q.shape[:-1], v.shape[-1]))
    check_not_positive("g", g)


def _checked(q: Tensor, v: Tensor, options: GlaOptions) -> tuple[str, int | None]:
    """Return implementation and chunk size, None for "auto"; raise TypeError or ValueError for wrong options."""
    check_scale(options.get("scale"))
    chunk_size = options.get("chunk_size", "auto")
    check_chunk_size(chunk_size)
    implementation = options.get("implementation", "auto")
    check_name("implementation", implementation, ("auto", "reference", *operator.IMPLEMENTATIONS))
    cu_seqlens = options.get("cu_seqlens")
    if cu_seqlens is not None:
        packed.check_offsets(cu_seqlens, q)
    if (initial := options.get("initial_state")) is not None:
        sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1
        check_state("initial_state", initial, SIMPLE_GLA, q, v, sequences)
    return implementation, None if chunk_size == "auto" else chunk_size


def gla_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: State, **options: Unpack[StepOptions]) -> Tensor:
    """Compute one step of `gla`, and replace the state by the one after it (Yang et al. 2024, eq. 8).

    It has no gradients: call it under `torch.no_grad()`. It is one pass over the state in PyTorch, on any device.

    Args:
        q, k: (B, H, d_qk), bfloat16, float16, float32 or float64; v: (B, H, d_hv), like q.
        g: log decays (B, H, d_qk), <= 0, any floating dtype.
        state: before the step; it is replaced by the one after it.
        options: see `StepOptions`; there is no implementation "triton".

    Returns:
        o_t (B, H, d_hv), in the dtype of q.

    Raises:
        TypeError, ValueError: as of `gla`, and an argument that requires a gradient.
    """
    check_no_others([name for name in options if name not in StepOptions.__annotations__], StepOptions.__annotations__)
    _check_inputs(q, k, v, g, "BH")
    out = options.get("out")
    for name, x in (("state", state), ("out", out)):
        if name == "state" or x is not None:
            check_state(name, x, SIMPLE_GLA, q, v, v.shape[0])
    check_scale(options.get("scale"))
    check_name("implementation", options.get("implementation", "auto"), ("auto", "reference"))
    check_no_gradient(q=q, k=k, v=v, g=g, **{"state.C": state.C})
    low = autocast_dtype(q)
    if low is not None:
        q, k, v = (x.to(low) for x in (q, k, v))
    check_one_dtype(q, k, v)
    check_in_place("state", state, q)
    if out is not None:
        check_in_place("out", out, q)
    dtype, work = q.dtype, torch.promote_types(q.dtype, torch.float32)
    with torch.no_grad(), nullcontext() if low is None else torch.autocast(q.device.type, enabled=False):
        q, k, v, g = (x.to(work) for x in (q, k, v, g))
        o, new = reference.step(q, k, v, g, state.C.to(work), scale=options.get("scale"))
        (state if out is None else out).C.copy_(new)
    return o.to(dtype)
