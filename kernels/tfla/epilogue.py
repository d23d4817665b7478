"""y = (h + D x) * silu(z) and its gradients, one pass over memory each (see `kernels.epilogue`)."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.cover import cdiv, next_power_of_2
from tflabench.kernels.launching import enqueue

from .tiles import made_like

TILE = 4096  # elements of one program


@triton.jit(do_not_specialize=["heads", "T"])
def skip_and_gate(
    h, h_b, h_h, h_t, x, x_b, x_h, x_t, z, z_b, z_h, z_t, dy, dy_b, dy_h, dy_t, D, D_h, D_d,
    y, dh, dx, dz, dD, out_b, out_h, out_t, heads, T, d,
    SKIP: tl.constexpr, GATE: tl.constexpr, BACKWARD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """ROWS steps of one head. Forward writes y; backward dh, and as there are D and z: dx, dD (programs, d), dz.

    All outputs but dD have the strides out_*.
    """
    program = tl.program_id(0).to(tl.int64)
    row_tiles = tl.cdiv(T, ROWS)
    t = (program % row_tiles) * ROWS + tl.arange(0, ROWS)
    b, head = program // row_tiles // heads, program // row_tiles % heads
    c = tl.arange(0, COLS)
    mask = (t < T)[:, None] & (c < d)[None, :]
    out = b * out_b + head * out_h + t[:, None] * out_t + c[None, :]
    if GATE or not BACKWARD:
        value = tl.load(h + b * h_b + head * h_h + t[:, None] * h_t + c[None, :], mask=mask, other=0.0).to(tl.float32)
    if SKIP:
        x_tile = tl.load(x + b * x_b + head * x_h + t[:, None] * x_t + c[None, :], mask=mask, other=0.0).to(tl.float32)
        weight = tl.load(D + head * D_h + c * D_d, mask=c < d, other=0.0).to(tl.float32)
        if GATE or not BACKWARD:
            value += weight[None, :] * x_tile
    if GATE:
        z_tile = tl.load(z + b * z_b + head * z_h + t[:, None] * z_t + c[None, :], mask=mask, other=0.0).to(tl.float32)
        sigmoid = tl.sigmoid(z_tile)
        silu = z_tile * sigmoid
    if BACKWARD:
        grad = tl.load(dy + b * dy_b + head * dy_h + t[:, None] * dy_t + c[None, :], mask=mask, other=0.0)
        grad = grad.to(tl.float32)
        if GATE:
            tl.store(dz + out, (grad * value * (sigmoid + silu * (1.0 - sigmoid))).to(dz.dtype.element_ty), mask=mask)
            grad *= silu
            tl.store(dh + out, grad.to(dh.dtype.element_ty), mask=mask)
        if SKIP:
            tl.store(dx + out, (grad * weight[None, :]).to(dx.dtype.element_ty), mask=mask)
            tl.store(dD + program * d + c, tl.sum(grad * x_tile, 0), mask=c < d)
    else:
        if GATE:
            value *= silu
        tl.store(y + out, value.to(y.dtype.element_ty), mask=mask)


def forward(h: Tensor, x: Tensor, D: Tensor | None, z: Tensor | None) -> Tensor:
    """y like h (B, H, T, d); x and z of its shape, D (H,) or (H, d)."""
    out = _empty(h, h.dtype)
    _launch(h, x, D, z, None, y=out)
    y = made_like(out, h)
    assert y is not None
    return y


def backward(
    dy: Tensor, h: Tensor | None, x: Tensor, D: Tensor | None, z: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """dx, dD, dh, dz: the first two None without D, the others, and h, without z (dh is dy then)."""
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
    cols = next_power_of_2(d)
    return max(1, TILE // cols), cols


def _empty(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Of the shape and order of `like`, its columns contiguous."""
    out = torch.empty_like(like, dtype=dtype)
    return out if out.stride(-1) == 1 else torch.empty(like.shape, dtype=dtype, device=like.device)


def _launch(
    h: Tensor | None, x: Tensor, D: Tensor | None, z: Tensor | None, dy: Tensor | None, **out: Tensor | None
) -> None:
    batch, heads, T, d = x.shape

    def rows_of(y: Tensor | None) -> tuple[object, ...]:
        if y is None:
            return (None, 0, 0, 0)
        y = y if y.stride(-1) == 1 else y.contiguous()
        return (y, *y.stride()[:3])

    outputs = [out.get(name) for name in ("y", "dh", "dx", "dz", "dD")]
    strides = next(y.stride()[:3] for y in outputs if y is not None)
    weight = (None, 0, 0) if D is None else (D, D.stride(0), D.stride(1) if D.dim() == 2 else 0)
    rows, cols = _tile(d)
    enqueue(
        skip_and_gate, batch * heads * cdiv(T, rows),
        *rows_of(h), *rows_of(x), *rows_of(z), *rows_of(dy), *weight, *outputs, *strides, heads, T, d,
        SKIP=D is not None, GATE=z is not None, BACKWARD=dy is not None,
        ROWS=rows, COLS=cols,
    )  # fmt: skip
