"""Describe tiles of (B, H, T, d) tensors with any batch, head and time strides, and of stacked matrices.

From compute capability 9.0 on the host makes the descriptors and the copy engine (TMA) moves the tiles. Before it they
are made in the kernel, where Triton turns them into plain pointers; one made on the host would lose what is known about
strides there, and with it the 16-byte loads. Either way what lies outside the tensor reads as 0 and is not written.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def open_rows(x, strides, shape, d, ROWS: tl.constexpr, COLS: tl.constexpr, TMA: tl.constexpr):
    """Return the descriptor of tiles (1, 1, ROWS, COLS) of x (B, H, T, d); strides, shape: of batch, head and time."""
    if TMA:
        tiles = x
    else:
        tiles = tl.make_tensor_descriptor(
            x,
            [shape[0], shape[1], shape[2], d],
            [strides[0], strides[1], strides[2], 1],
            [1, 1, ROWS, COLS],
        )
    return tiles


@triton.jit
def open_matrices(x, count, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr, TMA: tl.constexpr):
    """Return the descriptor of tiles (1, ROWS, COLS) of x (count, rows, cols), contiguous."""
    if TMA:
        tiles = x
    else:
        stride = tl.cast(rows, tl.int64) * cols
        tiles = tl.make_tensor_descriptor(x, [count, rows, cols], [stride, cols, 1], [1, ROWS, COLS])
    return tiles


class Unchecked:
    """Leave out the checks of a class of descriptors, which cost time at every launch: `aligned` has made them."""

    def __init__(self, base: Tensor, shape: Sequence[int], strides: Sequence[int], block_shape: list[int]) -> None:
        self.base, self.shape, self.strides, self.block_shape = base, shape, strides, block_shape


class Described(Unchecked, TensorDescriptor):
    """A descriptor made on the host."""


def rows_argument(x: Tensor, rows: int, cols: int, tma: bool) -> tuple[object, ...]:
    """Return what `open_rows` takes for x: a descriptor or the tensor, then strides of batch, head and time."""
    strides = described_strides(x.shape, x.stride())
    return (Described(x, x.shape, strides, [1, 1, rows, cols]) if tma else x, *strides[:3])


@lru_cache(1024)
def described_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides of (..., d) as TMA takes them, in multiples of 16 bytes: a size of 1 may have any stride."""
    return *(shape[-1] if size == 1 else stride for size, stride in zip(shape[:-1], strides, strict=False)), 1


def matrices_argument(x: Tensor, rows: int, cols: int, tma: bool) -> object:
    """Return what `open_matrices` takes for x (..., rows, cols), contiguous."""
    x = x.view(-1, *x.shape[-2:])
    return Described(x, x.shape, x.stride(), [1, rows, cols]) if tma else x


def aligned(x: Tensor) -> Tensor:
    """Return x itself where a descriptor can describe it, else a contiguous copy."""
    if _describable(x.shape, x.stride(), 16 // x.element_size()) and x.data_ptr() % 16 == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)


@lru_cache(1024)
def _describable(shape: tuple[int, ...], strides: tuple[int, ...], grain: int) -> bool:
    """Return whether the last dimension is contiguous and the strides of the others multiples of `grain`."""
    outer = [stride for size, stride in zip(shape, strides, strict=True) if size > 1][:-1]
    return strides[-1] == 1 and all(stride > 0 and stride % grain == 0 for stride in outer)


def made_like(x: Tensor | None, like: Tensor | None) -> Tensor | None:
    """Return x with the strides of torch.empty_like(like), copied only if they differ; None where either is None."""
    if x is None or like is None:
        return None
    if x.stride() == like.stride():  # x is dense, so what empty_like makes has these too
        return x
    strides = torch.empty_like(like, device="meta").stride()
    return x if x.stride() == strides else x.new_empty_strided(x.shape, strides).copy_(x)
