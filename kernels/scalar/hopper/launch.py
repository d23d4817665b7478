"""Host side that the fused kernels share: the tensors of a call, descriptors of blocks, pointers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl  # pyright: ignore[reportMissingTypeStubs]
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # pyright: ignore[reportMissingTypeStubs]

from tflabench.kernels.common.descriptors import Unchecked, described_strides
from tflabench.kernels.scalar.gates import Exponents
from tflabench.kernels.scalar.plan.hopper_shapes import PACK, TILE

LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
FLOATS_LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=4)
STATES_BLOCK = [1, 1, 1, 64, 64]
STATES_LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=5)
EXPONENTS_BLOCK = [1, TILE]
EXPONENTS_LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
LINE_BYTES = 128  # of the L2
BLOCKS = {heads: [1, heads, 64, 64] for heads in (1, PACK)}  # of a descriptor


class WalkInputs(NamedTuple):
    """Tensors that h and its gradients are made of.

    Attributes:
        q, k, v: bfloat16 or float16, as TMA takes them (`descriptors.aligned`).
        skip: (H,) float32, without a normaliser: h_t has skip v_t added; None for nothing.
        documents: where documents lie end to end along T, a table of int32; None for sequences. Of the programs that
            share no state, where the sequences of each begin in what follows, and the end of the last; sequences,
            document * H + head; of each document its first tile in `exponents`, the one after its last, and how many
            steps its tiles come before their places there.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    exponents: Exponents
    skip: Tensor | None
    documents: Tensor | None = None


def pointers(tensors: Any, unused: Tensor) -> Any:
    """Return a named tuple of tensors with `unused`, which nothing reads, in place of None."""
    return tensors._make([unused if x is None else x for x in tensors])


class DescribedBlocks(Unchecked, TensorDescriptor):
    """Describe blocks of 16-bit numbers, 64 steps by 64 columns."""

    layout = LAYOUT


class DescribedFloats(Unchecked, TensorDescriptor):
    """Describe blocks of float32, 64 steps by 64 columns."""

    layout = FLOATS_LAYOUT


class DescribedStates(Unchecked, TensorDescriptor):
    """Describe states of tiles, 16-bit numbers, at most 64 rows by 64 columns."""

    layout = STATES_LAYOUT


class DescribedExponents(Unchecked, TensorDescriptor):
    """Describe tiles of float32 exponents, 64 steps."""

    layout = EXPONENTS_LAYOUT


def descriptor(x: Tensor, heads: int = 1) -> TensorDescriptor:
    """Return the descriptor of blocks of x (B, H, T, d), `heads` heads of 64 steps by 64 columns."""
    described = DescribedFloats if x.dtype == torch.float32 else DescribedBlocks
    return described(x, x.shape, described_strides(x.shape, x.stride()), BLOCKS[heads])


def shares_lines(x: Tensor) -> bool:
    """Return whether steps of different heads share a line of the L2: x (B, H, T, d) of small, alternating heads."""
    return x.shape[1] > 1 and x.stride(1) * x.element_size() < LINE_BYTES


def states_descriptor(x: Tensor) -> TensorDescriptor:
    """Return the descriptor of states x (B, H, tiles, rows, columns) of at most 64 by 64, read as 64 by 64.

    There are zeros beyond the last row and column, and nothing is written there.
    """
    return DescribedStates(x, x.shape, described_strides(x.shape, x.stride()), STATES_BLOCK)


def exponents_descriptor(x: Tensor) -> TensorDescriptor:
    """Return the descriptor of the tiles of x (B, H, tiles * 64)."""
    return DescribedExponents(x, (x.numel() // TILE, TILE), (TILE, 1), EXPONENTS_BLOCK)
