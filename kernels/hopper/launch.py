"""Host side of the Gluon kernels: descriptors, how a shape is cut into pieces, shared memory, launch options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl  # pyright: ignore[reportMissingTypeStubs]
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # pyright: ignore[reportMissingTypeStubs]

from tflabench.kernels.cover import cdiv, next_power_of_2
from tflabench.kernels.gates import Exponents
from tflabench.kernels.launching import enqueue
from tflabench.kernels.tfla.device import multiprocessors
from tflabench.kernels.tfla.tiles import Unchecked, described_strides

from . import packed, segments
from .shapes import PACK, TILE, Segments, StatePassShape, WalkShape
from .workarounds import ASSEMBLY

LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
EXPONENTS_BLOCK = [1, TILE]
EXPONENTS_LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
PACKED = {"HEADS": PACK, "STAGES": 2, "MATH_REGISTERS": 176, "SCORE_REGISTERS": 80, "SCORE_GROUPS": 2}  # `walk_heads`
BLOCKS = {heads: [1, heads, 64, 64] for heads in (1, PACK)}  # of a descriptor

# What Gluon's decorators return has no types that a Python checker knows.
_walk_heads: Any = cast("Any", packed).walk_heads
_accumulate: Any = cast("Any", segments).accumulate
_carry: Any = cast("Any", segments).carry


@dataclass(frozen=True)
class Beside:
    """What runs beside a state pass: `walk` launches the walk over the first segment, in so many programs. It is given
    C (B, H, segments, d_qk, d_hv) and n (B, H, segments, d_qk) or None, of which the first segment's part is there if
    that does not start from zero, and writes the second's (`after_first`).
    """

    programs: int
    walk: Callable[[Tensor, Tensor | None], None]


def after_first(states: Tensor) -> Tensor:
    """Of states (B, H, segments, ...) what lies where the first segment's does is the second's."""
    return states.view(-1)[states.shape[3:].numel() :]


class Described(Unchecked, TensorDescriptor):
    layout = LAYOUT


class DescribedExponents(Unchecked, TensorDescriptor):
    layout = EXPONENTS_LAYOUT


def descriptor(x: Tensor, heads: int = 1) -> TensorDescriptor:
    """Of blocks of x (B, H, T, d), `heads` heads of 64 steps by 64 columns."""
    return Described(x, x.shape, described_strides(x.shape, x.stride()), BLOCKS[heads])


def exponents_descriptor(x: Tensor) -> TensorDescriptor:
    """Of the tiles of x (B, H, tiles * 64)."""
    return DescribedExponents(x.view(-1, TILE), (x.numel() // TILE, TILE), (TILE, 1), EXPONENTS_BLOCK)


def heads_together(q: Tensor, v: Tensor) -> int:
    """How many heads of v (B, H, T, d_hv) a program takes that makes h without a normaliser."""
    return PACK if q.shape[-1] == v.shape[-1] == 64 and v.shape[1] % (PACK * q.shape[1]) == 0 else 1


def launch_packed(
    q: Tensor, k: Tensor, v: Tensor, h: Tensor, exponents: Exponents, cut: Segments,
    states: tuple[Tensor | None, Tensor | None], skip: Tensor | None,
) -> None:  # fmt: skip
    """h without a normaliser, `heads_together` heads a program (see packed.py).

    Args:
        q, k: (B, H or fewer, T, 64), v, h: (B, H, T, 64), bfloat16 or float16, as TMA takes them.
        states: (B, H, segments, 64, 64) float32: read before and written after each segment, if given.
        skip: (H,) float32: h_t gets skip v_t more.
    """
    B, H = v.shape[:2]
    packs = H // PACK
    items = B * packs * cut.count
    first, last = states
    dummy = exponents.g
    enqueue(
        _walk_heads, min(items, multiprocessors(q.device)),
        descriptor(q), descriptor(k), descriptor(v, PACK), descriptor(h), *exponents,
        *(dummy if y is None else y for y in (first, last, skip)),
        items, packs, H // q.shape[1], cut.tiles, cut.segment_tiles, cut.count,
        **PACKED, FIRST=first is not None, LAST=last is not None, SKIP=skip is not None,
        num_warps=4, maxnreg=128, launch_pdl=True, **ASSEMBLY,
    )  # fmt: skip


def launch_segments(
    z: Tensor, w: Tensor, exponents: Exponents, cut: Segments, *,
    reverse: bool, start: tuple[Tensor | None, Tensor | None], norm: bool, end: bool = True,
    beside: Beside | None = None,
) -> tuple[tuple[Tensor, Tensor | None], tuple[Tensor | None, Tensor | None]]:  # fmt: skip
    """States (C, n) or (dC, None) that each segment starts from, and those after the last segment walked, if `end`.

    Args:
        z, w: (B, H, T, d_qk) and (B, H, T, d_hv): k, v or, backward, q, dh; z may have fewer heads.
        start: (B, H, d_qk, d_hv) and (B, H, d_qk), the states before the first segment walked; None is zero.
        norm: with n.
        end: without it what the last segment walked adds is not even read.
        beside: forward, walks the first segment at the same time.
    """
    B, H, _, d_hv = w.shape
    d_qk = z.shape[-1]
    z_sharing = H // z.shape[1]
    shape = StatePassShape.of(d_qk, d_hv, heads=H, z_sharing=z_sharing)
    z_pieces, w_pieces = cdiv(d_qk, 128), cdiv(d_hv, 256)
    programs = shape.programs(B * H, d_qk, d_hv)
    walked = cut.count - (not end) - (beside is not None)
    chip = multiprocessors(z.device) - (beside.programs if beside else 0)
    split = parts_of_a_segment(cut, programs * walked, chip)
    parts = Segments.of_tiles(cut.tiles, cut.segment_tiles // split)
    of_first = parts.count - split * (cut.count - 1)
    lowest = of_first if beside or (reverse and not end) else 0
    accumulated = parts.count - lowest - (0 if end or reverse else split)

    def empty(count: int, *sizes: int) -> Tensor:
        return torch.empty((B, H, count, *sizes), dtype=torch.float32, device=z.device)

    added = empty(parts.count, d_qk, d_hv), empty(parts.count, d_qk) if norm else None
    states = added
    if split > 1 or beside:
        states = empty(cut.count, d_qk, d_hv), empty(cut.count, d_qk) if norm else None
    if beside:
        for state, begin in zip(states, start, strict=True):
            if state is not None and begin is not None:
                state[:, :, 0] = begin
    enqueue(
        _accumulate, programs * accumulated,
        descriptor(z), descriptor(w), descriptor(z), exponents.x if reverse else exponents.y, exponents.g,
        added[0], added[0], added[0] if added[1] is None else added[1],
        H, z_sharing, *parts, lowest, accumulated, z_pieces, w_pieces,
        Z_DIM=d_qk, W_DIM=d_hv, **vars(shape), REVERSE=reverse, NORM=norm, KEEP=False, FIRST=False, LAST=True,
        num_warps=4, maxnreg=168, launch_pdl=z_pieces * w_pieces == 1, **ASSEMBLY,
    )  # fmt: skip
    if beside:
        beside.walk(*states)
    ends: list[Tensor | None] = []
    for adds, state, begin in zip(added, states, start, strict=True):
        if adds is None:
            ends.append(None)
            continue
        sizes = adds.shape[3:]
        elements = sizes.numel()
        block = min(1024, next_power_of_2(elements))
        blocks = cdiv(elements, block)
        after = empty(1, *sizes)[:, :, 0] if end else None
        enqueue(
            _carry, B * H * blocks,
            adds, state, exponents.g, state if begin is None else begin, state if after is None else after,
            elements, *parts, cut.count, split, lowest, accumulated, blocks, START=begin is not None, END=end,
            RESUMED=beside is not None, REVERSE=reverse, TILES=next_power_of_2(parts.segment_tiles), BLOCK=block,
            OVERLAP=True, launch_pdl=True,
        )  # fmt: skip
        ends.append(after)
    return states, (ends[0], ends[1])


def first_beside(d_qk: int, d_hv: int, rows: int, cut: Segments, chip: int, *, norm: bool) -> int:
    """In how many programs h of the first segment is made beside the state pass over those between it and the last,
    which need not be gone over then; 0 where it is too long for that or there is no room.

    Args:
        rows: batch * heads, of which none are walked together (`heads_together`).
    """
    if cut.count < 3 or 2 * cut.first_tiles > cut.segment_tiles:
        return 0
    programs = rows * WalkShape.filling(d_qk, d_hv, rows, chip, sums=False, norm=norm).pieces(d_hv)
    between = rows * cdiv(d_qk, 128) * cdiv(d_hv, 256) * (cut.count - 2)
    return programs if programs + between <= chip else 0


def parts_of_a_segment(cut: Segments, programs: int, chip: int) -> int:
    """Into how many parts the state pass cuts a segment, which would be so many programs: twice as many where less than
    half of the chip is taken, as long as joining them takes less than walking them does.
    """
    parts = 1
    while (
        2 * parts * programs <= chip
        and cut.segment_tiles % (2 * parts) == 0
        and (2 * parts * cut.count) ** 2 <= cut.tiles
    ):
        parts *= 2
    return parts


def launch_kept_states(
    z: Tensor, w: Tensor, kept: Tensor, exponents: Exponents, cut: Segments, *,
    reverse: bool, first: Tensor | None = None, last: Tensor | None = None,
) -> None:  # fmt: skip
    """Write kept (B, H, tiles * 64, 64), of z's dtype: the state before every tile, in the direction of the walk.

    Args:
        z, w: (B, H, T, 64): k, v or, backward, q, dh; z may have fewer heads.
        first, last: (B, H, segments, 64, 64) float32: read before and written after each segment, if given.
    """
    B, H = w.shape[:2]
    z_sharing = H // z.shape[1]
    shape = StatePassShape.of(TILE, TILE, heads=H, z_sharing=z_sharing)
    dummy = exponents.g
    enqueue(
        _accumulate, B * H // shape.HEADS * cut.count,
        descriptor(z), descriptor(w), descriptor(kept), exponents.x if reverse else exponents.y, exponents.g,
        dummy if first is None else first, dummy if last is None else last, dummy,
        H, z_sharing, cut.tiles, cut.segment_tiles, cut.count, 0, cut.count, 1, 1,
        Z_DIM=TILE, W_DIM=TILE, **vars(shape), REVERSE=reverse, NORM=False,
        KEEP=True, FIRST=first is not None, LAST=last is not None,
        num_warps=4, maxnreg=168, launch_pdl=True, **ASSEMBLY,
    )  # fmt: skip
