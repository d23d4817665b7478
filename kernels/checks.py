"""Checks of what callers may get wrong. An error is one line: which argument, what it is, what it must be.

All raise TypeError or ValueError. On a GPU only shapes, dtypes and devices are looked at, never values: that would wait
for the GPU, and break CUDA graphs.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, cast

import torch
from torch import Tensor

from .common.operators import has_numbers
from .state import State
from .types import Gating


def check_inputs(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None],
    gate: Gating,
    axes: str,
    names: tuple[str, str] = ("f", "i"),
) -> None:
    """Check that q and k are alike, v has their heads or a multiple, and gates fit.

    Args:
        inputs: q, k, v, f, i.
        axes: names of all sizes but the last: "BHT", "BTH" or "BH".
        names: of f and i.
    """
    q, k, v, f, i = inputs
    check_queries(q, k, v, axes)
    head_axis = axes.index("H")
    lead, heads = v.shape[:-1], v.shape[head_axis]
    if gate.forget_of is None:
        check_absent(names[0], f)
    else:
        of_f = lead if gate.forget_of == "step" else (heads,) if gate.forget_of == "head" else (*lead, q.shape[-1])
        f = check_tensor(names[0], f, q)
        check_shape(names[0], f, of_f)
        if gate.decays:
            check_not_positive(names[0], f)
    if gate.writes:
        check_shape(names[1], check_tensor(names[1], i, q), lead)
    else:
        check_absent(names[1], i)


def check_absent(argument: str, x: object) -> None:
    """Raise ValueError unless x, a gate that there is none of, is None."""
    if x is not None:
        raise ValueError(f"{argument} is {kind(x)}: it must be None for a gate without it")


def check_queries(q: Tensor, k: Tensor, v: Tensor, axes: str) -> None:
    """Check that q and k are alike, and that v has their heads or a multiple; axes: as in `check_inputs`."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x, q)
        if x.dim() != len(axes) + 1 or 0 in x.shape:
            sizes = f"({', '.join(axes)}, d)"
            raise ValueError(f"{name} has the shape {tuple(x.shape)}: it must be {sizes}, every size at least 1")
    of_q, of_v, head_axis = tuple(q.shape), tuple(v.shape), axes.index("H")
    if k.shape != of_q:
        raise ValueError(f"k has the shape {tuple(k.shape)}: it must be that of q, {of_q}")
    groups, heads = of_q[head_axis], of_v[head_axis]
    lead = (*of_q[:head_axis], heads, *of_q[head_axis + 1 : -1])
    if of_v[:-1] != lead:
        raise ValueError(f"v has the shape {of_v}: it must be {of_q[:-1]} and d_hv for q {of_q}")
    if heads % groups != 0:
        raise ValueError(f"v has {heads} heads: it must have a multiple of the {groups} of q and k, which share them")


def check_is_gate(gate: object) -> None:
    """Raise TypeError unless it is a `Gate`, or the gates of another family."""
    if not isinstance(gate, Gating):
        raise TypeError(f"gate is {kind(gate)}: it must be a tflabench.ops.Gate")


def check_mamba2(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    others: tuple[Tensor | None, Tensor | None, Tensor | None],
    axes: str,
) -> None:
    """Check the arguments of `mamba2_ssd` by their names there; `others` are D, z and dt_bias.

    `axes` is as in `check_inputs`.
    """
    D, z, dt_bias = others
    if check_tensor("x", x, x).dim() != len(axes) + 1 or 0 in x.shape:
        sizes = ", ".join(axes)
        raise ValueError(f"x has the shape {tuple(x.shape)}: it must be ({sizes}, d), every size at least 1")
    head_axis = axes.index("H")
    lead, heads, d_hv = tuple(x.shape[:-1]), x.shape[head_axis], x.shape[-1]
    for name, y in (("B", B), ("C", C)):
        if check_tensor(name, y, x, "x").dim() != x.dim() or 0 in y.shape:
            raise ValueError(f"{name} has the shape {tuple(y.shape)}: it must have {x.dim()} sizes, at least 1 each")
        check_shape(name, y, (*lead[:head_axis], y.shape[head_axis], *lead[head_axis + 1 :], y.shape[-1]))
        if heads % y.shape[head_axis] != 0:
            raise ValueError(f"{name} has {y.shape[head_axis]} groups: they must divide the {heads} heads of x")
    check_shape("C", C, B.shape)
    check_shape("dt", check_tensor("dt", dt, x, "x"), lead)
    check_shape("A", check_tensor("A", A, x, "x"), (heads,))
    check_not_positive("A", A)
    if dt_bias is not None:
        check_shape("dt_bias", check_tensor("dt_bias", dt_bias, x, "x"), (heads,))
    if D is not None:
        check_shape("D", check_tensor("D", D, x, "x"), (heads,) if D.dim() == 1 else (heads, d_hv))
    if z is not None:
        check_shape("z", check_tensor("z", z, x, "x"), x.shape)


def check_one_dtype(q: Tensor, k: Tensor, v: Tensor, names: str = "q, k, v") -> None:
    """Raise TypeError unless q, k and v are of one dtype."""
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"{names} are {q.dtype}, {k.dtype}, {v.dtype}: they must be of one dtype")


def check_state(argument: str, state: object, gate: Gating, q: Tensor, v: Tensor, sequences: int) -> None:
    """Check a State, one a sequence, for q (B, H, ..., d_qk) and v (B, H, ..., d_hv)."""
    if not isinstance(state, State):
        raise TypeError(f"{argument} is {kind(state)}: it must be a tflabench.ops.State")
    B, H, d_qk, d_hv = sequences, v.shape[1], q.shape[-1], v.shape[-1]
    for name, x, needed, shape in (
        ("C", state.C, True, (B, H, d_qk, d_hv)),
        ("n", state.n, gate.normalize, (B, H, d_qk)),
        ("m", state.m, gate.stabilized, (B, H)),
    ):
        if needed:
            check_shape(f"{argument}.{name}", check_tensor(f"{argument}.{name}", x, q), shape)
        elif x is not None:
            raise ValueError(f"{argument}.{name} is {kind(x)}: it must be None for {gate}")


def check_skip(skip: Tensor, gate: Gating, v: Tensor) -> None:
    """Check for a weight a head of v (B, H, ...), and a gate without normaliser, which would divide it."""
    check_shape("skip", check_tensor("skip", skip, v, "v"), v.shape[1:2])
    if gate.normalize:
        raise ValueError(f"skip is {kind(skip)}: it must be None for {gate}, which divides by its normaliser")


def check_scale(scale: Any) -> None:
    """Raise TypeError or ValueError unless it is None or a finite number."""
    if scale is None:
        return
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"scale is {kind(scale)}: it must be a float or None")
    if not torch.compiler.is_compiling() and not abs(scale) <= sys.float_info.max:
        raise ValueError(f"scale is {scale}: it must be finite")


def check_chunk_size(chunk_size: Any) -> None:
    """Raise TypeError or ValueError unless it is "auto" or a positive integer."""
    if chunk_size == "auto":
        return
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int):
        raise TypeError(f"chunk_size is {kind(chunk_size)}: it must be an int or 'auto'")
    if chunk_size < 1:
        raise ValueError(f"chunk_size is {chunk_size}: it must be at least 1")


def check_options(options: Iterable[str], known: Collection[str]) -> None:
    """Raise TypeError for the first keyword that an operation does not know."""
    for name in [name for name in options if name not in known]:
        close = get_close_matches(name, known, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise TypeError(f"{name} is no option{hint}: it must be one of {', '.join(known)}")


def check_name(argument: str, value: Any, known: Sequence[Any]) -> None:
    """Raise ValueError unless a value is one of those known."""
    if value not in known:
        raise ValueError(f"{argument} is {value!r}: it must be one of {', '.join(map(str, known))}")


def check_tensor(argument: str, x: Any, like: Tensor, like_name: str = "q") -> Tensor:
    """Return x if it is a tensor of a floating dtype that arithmetic is done in, on the device of `like`."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{argument} is {kind(x)}: it must be a tensor")
    if x.is_nested or x.layout != torch.strided:
        raise TypeError(f"{argument} is nested or sparse: it must be dense (cu_seqlens takes documents end to end)")
    if x.dtype not in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        raise TypeError(f"{argument} is {x.dtype}: it must be bfloat16, float16, float32 or float64")
    if x.device != like.device:
        raise ValueError(f"{argument} is on {x.device}: it must be where {like_name} is, on {like.device}")
    return x


def check_per_head(argument: str, x: Tensor, v: Tensor, heads: int) -> None:
    """Check for one number a head, (heads,), where v is."""
    check_shape(argument, check_tensor(argument, x, v, "v"), (heads,))


def heads_of(v: Tensor, layout: str) -> int:
    """Return H of v (B, H, T, d), or (B, T, H, d) for the layout "bthd", or (B, H, d) for "bhd"."""
    check_name("layout", layout, ("bhtd", "bthd", "bhd"))
    check_sequence("v", v, layout)
    return v.shape[2 if layout == "bthd" else 1]


def check_sequence(argument: str, x: object, layout: str) -> None:
    """Check for a tensor of as many sizes as the layout has letters."""
    x = check_tensor(argument, x, cast("Tensor", x))
    if x.dim() != len(layout):
        sizes = ", ".join((*layout[:-1].upper(), "d"))
        raise ValueError(f"{argument} has the shape {tuple(x.shape)}: it must be ({sizes}), every size at least 1")


def check_no_gradient(**tensors: Tensor | None) -> None:
    """Raise ValueError for a tensor that a decode step would have to give a gradient."""
    if torch.is_grad_enabled():
        for name, x in tensors.items():
            if x is not None and x.requires_grad:
                raise ValueError(f"{name} requires a gradient: it must not, or step be called under torch.no_grad()")


def check_not_negative(argument: str, slopes: Tensor) -> None:
    """Check slopes, -log decays, on the CPU."""
    if _is_looked_at(slopes) and (smallest := slopes.detach().min().item()) < 0:
        raise ValueError(f"{argument} is down to {smallest:g}: it must be at least 0, -log of a decay")


def check_not_positive(argument: str, log_decay: Tensor) -> None:
    """Check log decays on the CPU."""
    if _is_looked_at(log_decay) and (largest := log_decay.detach().max().item()) > 0:
        raise ValueError(f"{argument} is up to {largest:g}: it must be at most 0, the logarithm of a decay")


def check_between(argument: str, x: Tensor, low: float, high: float) -> None:
    """Check the least and the largest value, on the CPU."""
    if _is_looked_at(x):
        least, largest = (limit.item() for limit in x.detach().aminmax())
        if least < low or largest > high:
            raise ValueError(f"{argument} is from {least:g} to {largest:g}: it must be from {low:g} to {high:g}")


def _is_looked_at(x: Tensor) -> bool:
    """Return whether values are: where that costs no waiting, on the CPU, and Python can read them."""
    return x.device.type == "cpu" and has_numbers(x) and x.numel() > 0


def check_in_place(argument: str, state: State, q: Tensor) -> None:
    """Check dtypes and strides of a state that a decode step replaces."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    for name, x in zip("Cnm", state, strict=True):
        if x is None:
            continue
        if x.dtype != wide and (name, x.dtype) != ("C", torch.bfloat16):
            raise TypeError(f"{argument}.{name} is {x.dtype}: it must be {wide}{' or bfloat16' if name == 'C' else ''}")
        if not x.is_contiguous():
            raise ValueError(f"{argument}.{name} has the strides {x.stride()}: it must be contiguous")


def check_shape(argument: str, x: Tensor, shape: Sequence[int]) -> None:
    """Raise ValueError unless x has this shape."""
    if tuple(x.shape) != tuple(shape):
        raise ValueError(f"{argument} has the shape {tuple(x.shape)}: it must be {tuple(shape)}")


def kind(x: Any) -> str:
    """Return how a message names the type of x."""
    return "None" if x is None else f"a {type(x).__name__}"
