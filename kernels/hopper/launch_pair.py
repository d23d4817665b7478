"""Host side of pair.py: which shapes it takes, its launch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from . import pair
from .exponents import TILE, Exponents
from .launch import Checkpoints, Segments, descriptor

BLOCK = [1, 1, 64, 128]
EXPONENTS_LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
SUM_PARTS = 2

_pair: Any = pair.pair  # what the decorator returns has no types that a Python checker knows


def takes(d_qk: int, d_hv: int) -> bool:
    """Whether a program can hold the whole of dC; d_qk and d_hv as `chunkwise.refuses` lets them through."""
    return d_qk <= 128 and d_hv <= 256


def launch_pair(
    q: Tensor, k: Tensor, v: Tensor, dh: Tensor, dk: Tensor, dv: Tensor, exponents: Exponents, cut: Segments, *,
    sums: Tensor, checkpoints: Checkpoints, first: Tensor | None = None, last: Tensor | None = None,
) -> None:  # fmt: skip
    """dk, dv and the row sums k . dk, walking backward in time (see pair.py).

    Args:
        q, k, dk: (B, H, T, d_qk <= 128), v, dh, dv: (B, H, T, d_hv <= 256), as TMA takes them (tfla.tiles.aligned).
        cut: where segments begin; with more than one, `first` holds the dC each of them starts from.
        sums: (2, SUM_PARTS, B, H, T) float32, written before dk is rounded: k . dk, and what of it comes through dC.
        checkpoints: C as the walk for dq left it; their dots are written.
        first, last: (B, H, segments, d_qk, d_hv) float32: dC after and before each segment, read and written if given.
    """
    B, H, T, d_qk = q.shape
    d_hv = v.shape[-1]
    x, y = (
        TensorDescriptor(e, [B * H * cut.tiles, TILE], [TILE, 1], [1, TILE], EXPONENTS_LAYOUT)
        for e in (exponents.x.view(-1, TILE), exponents.y.view(-1, TILE))
    )
    dummy = exponents.g
    items = B * H * cut.count
    programs = min(items, torch.cuda.get_device_properties(q.device).multi_processor_count)
    _pair[(programs,)](
        *(replace(descriptor(z), block_shape=BLOCK) for z in (q, k, v, dh, dk, dv)), x, y, exponents.g,
        dummy if first is None else first, dummy if last is None else last,
        sums, checkpoints.states, checkpoints.dots,
        items, H, T, cut.tiles, cut.segment_tiles, cut.count, d_qk, d_hv, B * H * T,
        WB=d_hv // TILE, FIRST=first is not None, LAST=last is not None, num_warps=8, maxnreg=168,
    )  # fmt: skip
