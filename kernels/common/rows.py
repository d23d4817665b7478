"""Load and store tiles of tensors (B, H, T, d) of any strides, and of stacked matrices and vectors, by pointers."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Rows(NamedTuple):
    """A tensor (B, H, T, d) with contiguous columns.

    Attributes:
        b, h, t: its strides of batch, head and time.
        steps: of documents the step at each place, int32, negative for none (`common.places`); None for sequences.
    """

    data: Any
    b: int
    h: int
    t: int
    steps: Any = None


def rows(x: Tensor, steps: Tensor | None = None) -> Rows:
    """Return what kernels take for x (B, H, T, d), of any strides but for the columns', which are copied if need be."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    return Rows(x, *x.stride()[:3], steps)


def empty_rows(x: Tensor) -> Tensor:
    """Return room like x (B, H, T, d), uninitialised, that kernels can write to: with its strides where they can be."""
    y = torch.empty_like(x)
    return y if y.stride(-1) == 1 else torch.empty(x.shape, dtype=x.dtype, device=x.device)


@triton.jit
def at_rows(x, b, h, t, c, T, d):
    """Return pointers to steps t, or places, and columns c of one head of x, a `Rows`, and which are in the tensor."""
    step, inside = t, t < T
    if x.steps is not None:
        step = tl.load(x.steps + t, mask=inside, other=-1)
        inside = step >= 0
    at = x.data + b.to(tl.int64) * x.b + h.to(tl.int64) * x.h + step[:, None].to(tl.int64) * x.t + c[None, :]
    return at, inside[:, None] & (c < d)[None, :]


@triton.jit
def load_rows(x, b, h, t, c, T, d):
    """Return steps t and columns c of one head of x, a `Rows`; 0 outside of the tensor."""
    at, inside = at_rows(x, b, h, t, c, T, d)
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
def store_rows(x, value, b, h, t, c, T, d):
    """Store steps t and columns c of one head of x, a `Rows`, in its dtype."""
    at, inside = at_rows(x, b, h, t, c, T, d)
    tl.store(at, value.to(x.data.dtype.element_ty), mask=inside)


@triton.jit
def load_matrix(x, matrix, row, col, rows, cols):
    """Return rows and columns of one matrix of x (.., rows, cols), contiguous; 0 outside of it."""
    at = x + matrix.to(tl.int64) * rows * cols + row[:, None].to(tl.int64) * cols + col[None, :]
    return tl.load(at, mask=(row < rows)[:, None] & (col < cols)[None, :], other=0.0)


@triton.jit
def store_matrix(x, value, matrix, row, col, rows, cols):
    """Store rows and columns of one matrix of x (.., rows, cols), contiguous, in its dtype."""
    at = x + matrix.to(tl.int64) * rows * cols + row[:, None].to(tl.int64) * cols + col[None, :]
    tl.store(at, value.to(x.dtype.element_ty), mask=(row < rows)[:, None] & (col < cols)[None, :])


@triton.jit
def load_vector(x, row, col, cols):
    """Return columns of one row of x (.., cols), contiguous; 0 outside of it."""
    return tl.load(x + row.to(tl.int64) * cols + col, mask=col < cols, other=0.0)
