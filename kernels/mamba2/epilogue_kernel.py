"""y = (h + D x) * silu(z) and its gradients, one pass over memory each (see `kernels.mamba2.epilogue`)."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.common.cover import cdiv, next_power_of_2
from tflabench.kernels.common.descriptors import made_like
from tflabench.kernels.common.launching import enqueue

TILE = 4096  # elements of one program


class EpilogueRows(NamedTuple):
    """A tensor (B, H, T, d) with contiguous columns, or None, and its strides of batch, head and time."""

    data: Any
    b: int
    h: int
    t: int


class Weight(NamedTuple):
    """D (H,) or (H, d), or None, and its strides of head and column, 0 where it has no columns."""

    data: Any
    h: int
    d: int


class EpilogueOutputs(NamedTuple):
    """Name what is written, None where it is not.

    Attributes:
        y, dh, dx, dz: (B, H, T, d).
        dD: (programs, d) float32.
        b, h, t: strides of batch, head and time of all but dD.
    """

    y: Any
    dh: Any
    dx: Any
    dz: Any
    dD: Any
    b: int
    h: int
    t: int


@dataclass(frozen=True)
class EpilogueConfig:
    """Tell what `skip_and_gate` is compiled for.

    Attributes:
        skip, gate: there is D; there is z.
        backward: the gradients are written, not y.
        rows, cols: steps of a program, and columns, at least d.
    """

    skip: bool
    gate: bool
    backward: bool
    rows: int
    cols: int


@triton.jit
def load_rows(x, b, head, t, c, mask):
    """Return steps t and columns c of one head of x, a `EpilogueRows`, as float32, 0 outside of the mask."""
    at = x.data + b * x.b + head * x.h + t[:, None] * x.t + c[None, :]
    return tl.load(at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store_rounded(x, at, value, mask):
    """Store a tile in the dtype of x."""
    tl.store(x + at, value.to(x.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["heads", "T"])
def skip_and_gate(h, x, z, dy, D, outputs, heads, T, d, config: tl.constexpr):
    """Write y, or the gradients, of config.rows steps of one head."""
    ROWS: tl.constexpr = config.rows
    COLS: tl.constexpr = config.cols
    program = tl.program_id(0).to(tl.int64)
    row_tiles = tl.cdiv(T, ROWS)
    t = (program % row_tiles) * ROWS + tl.arange(0, ROWS)
    b, head = program // row_tiles // heads, program // row_tiles % heads
    c = tl.arange(0, COLS)
    mask = (t < T)[:, None] & (c < d)[None, :]
    at = b * outputs.b + head * outputs.h + t[:, None] * outputs.t + c[None, :]
    if config.gate or not config.backward:
        value = load_rows(h, b, head, t, c, mask)
    if config.skip:
        x_tile = load_rows(x, b, head, t, c, mask)
        weight = tl.load(D.data + head * D.h + c * D.d, mask=c < d, other=0.0).to(tl.float32)
        if config.gate or not config.backward:
            value += weight[None, :] * x_tile
    if config.gate:
        z_tile = load_rows(z, b, head, t, c, mask)
        sigmoid = tl.sigmoid(z_tile)
        silu = z_tile * sigmoid
    if config.backward:
        grad = load_rows(dy, b, head, t, c, mask)
        if config.gate:
            store_rounded(outputs.dz, at, grad * value * (sigmoid + silu * (1.0 - sigmoid)), mask)
            grad *= silu
            store_rounded(outputs.dh, at, grad, mask)
        if config.skip:
            store_rounded(outputs.dx, at, grad * weight[None, :], mask)
            tl.store(outputs.dD + program * d + c, tl.sum(grad * x_tile, 0), mask=c < d)
    else:
        if config.gate:
            value *= silu
        store_rounded(outputs.y, at, value, mask)


def forward(h: Tensor, x: Tensor, D: Tensor | None, z: Tensor | None) -> Tensor:
    """Return y like h (B, H, T, d); x and z have its shape, D is (H,) or (H, d)."""
    out = _empty(h, h.dtype)
    _launch(h, x, D, z, None, y=out)
    y = made_like(out, h)
    assert y is not None
    return y


def backward(
    dy: Tensor, h: Tensor | None, x: Tensor, D: Tensor | None, z: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Return dx, dD, dh, dz: the first two None without D, the others without z, where h is not read and dh is dy."""
    batch, heads, T, d = x.shape
    rows, _ = _tile(d)
    dx = parts = dh = dz = dD = None
    if D is not None:
        dx = _empty(x, x.dtype)
        parts = torch.empty((batch, heads, cdiv(T, rows), d), dtype=torch.float32, device=x.device)
    if z is not None:
        dh, dz = _empty(x, x.dtype), _empty(x, z.dtype)
    _launch(h, x, D, z, dy, dh=dh, dx=dx, dz=dz, dD=parts)
    if D is not None and parts is not None:
        dD = parts.sum((0, 2) if D.dim() == 2 else (0, 2, 3)).to(D.dtype)
    return made_like(dx, x), dD, made_like(dh, h), made_like(dz, z)


def _tile(d: int) -> tuple[int, int]:
    """Return steps and columns of a program."""
    cols = next_power_of_2(d)
    return max(1, TILE // cols), cols


def _empty(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an uninitialised tensor of the shape and order of `like`, its columns contiguous."""
    out = torch.empty_like(like, dtype=dtype)
    return out if out.stride(-1) == 1 else torch.empty(like.shape, dtype=dtype, device=like.device)


def _rows(x: Tensor | None) -> EpilogueRows:
    """Return what the kernel takes for x, a copy where columns are not contiguous."""
    if x is None:
        return EpilogueRows(None, 0, 0, 0)
    x = x if x.stride(-1) == 1 else x.contiguous()
    return EpilogueRows(x, *x.stride()[:3])


def _launch(
    h: Tensor | None, x: Tensor, D: Tensor | None, z: Tensor | None, dy: Tensor | None, **written: Tensor | None
) -> None:
    """Launch `skip_and_gate`, backward where there is dy; `written` are tensors of `EpilogueOutputs` by name."""
    batch, heads, T, d = x.shape
    outputs = [written.get(name) for name in ("y", "dh", "dx", "dz", "dD")]
    strides = next(y.stride()[:3] for y in outputs if y is not None)
    weight = Weight(None, 0, 0) if D is None else Weight(D, D.stride(0), D.stride(1) if D.dim() == 2 else 0)
    rows, cols = _tile(d)
    enqueue(
        skip_and_gate, batch * heads * cdiv(T, rows),
        _rows(h), _rows(x), _rows(z), _rows(dy), weight, EpilogueOutputs(*outputs, *strides), heads, T, d,
        config=EpilogueConfig(skip=D is not None, gate=z is not None, backward=dy is not None, rows=rows, cols=cols),
    )  # fmt: skip
