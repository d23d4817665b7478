"""Host side of the Gluon kernels: descriptors, how a shape is cut into pieces, shared memory, launch options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl  # pyright: ignore[reportMissingTypeStubs]
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # pyright: ignore[reportMissingTypeStubs]

from tflabench.kernels.cover import cdiv, next_power_of_2
from tflabench.kernels.gates import Exponents, RowSums
from tflabench.kernels.launching import enqueue
from tflabench.kernels.tfla.device import multiprocessors
from tflabench.kernels.tfla.tiles import Unchecked, described_strides

from . import pair, segments, tilewise, walk
from .shapes import PACK, TILE, PairShape, Segments, StatePassShape, WalkShape, heads_together
from .workarounds import ASSEMBLY

LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
EXPONENTS_BLOCK = [1, TILE]
EXPONENTS_LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
MOST_ADDED_UP = 64  # heads of which a program of `tilewise.gradients` adds up dq and dk
BLOCKS = {heads: [1, heads, 64, 64] for heads in (1, PACK)}  # of a descriptor

# What Gluon's decorators return has no types that a Python checker knows.
_walk: Any = cast("Any", walk).walk
_pair: Any = cast("Any", pair).pair
_accumulate: Any = cast("Any", segments).accumulate
_carry: Any = cast("Any", segments).carry
_gradients: Any = cast("Any", tilewise).gradients


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


class Inputs(NamedTuple):
    """What h is made of.

    Attributes:
        q, k: (B, H or fewer, T, d_qk), each head for consecutive ones of v, (B, H, T, d_hv); bfloat16 or float16, as
            TMA takes them (`tfla.tiles.aligned`).
        exponents: of the gates.
        skip: (H,) float32, for a walk without normaliser: h_t has skip v_t added; None for nothing.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    exponents: Exponents
    skip: Tensor | None


def pointers(tensors: Any, unused: Tensor) -> Any:
    """Return a named tuple of tensors with `unused`, which nothing reads, in place of None."""
    return type(tensors)(*(unused if x is None else x for x in tensors))


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


def launch_walk(
    u: Tensor, w: Tensor, z: Tensor, out: Tensor, exponents: Exponents, cut: Segments, *,
    reverse: bool, transposed: bool, first: Tensor | None = None, last: Tensor | None = None,
    x: Tensor | None = None, sums: Tensor | None = None, within: tuple[Tensor, Tensor] | None = None,
    skip: Tensor | None = None, diagonal: Tensor | None = None, independent: bool = False,
) -> None:  # fmt: skip
    """out of a walk (see walk.py), of the shape of z; the exponents' x belongs to step i, their y to step j.

    Args:
        u, w: (B, H, T, w), z, out: (B, H, T, z), bfloat16 or float16, as TMA takes them (tfla.tiles.aligned); u and w,
            or z and x, may have fewer heads, each for consecutive ones.
        cut: where segments begin; with more than one, `first` holds the state each of them starts from.
        reverse: walk backward in time (dk, dv).
        transposed: states lie in memory as (w, z), not (z, w) (dv).
        first, last: (B, H, segments, d_qk, d_hv) float32: read before and written after each segment, if given.
        x, sums: row sums of x * out as far as out comes through the state, with x weighted and rounded as the walk that
            has it for Z does, are written to the first parts of sums (parts, B, H, T).
        within: likewise, of a walk that goes forward, the sums over z and over u of pairs of steps within a tile.
        skip: (H,) float32: out_t gets skip z_t more.
        diagonal: (launches, B, H, T) float32: where u_t . w_t goes.
        independent: the kernel launched just before makes nothing that this one reads, so it need not wait for it.
    """
    B, H = exponents.x.shape[:2]
    T, rows = out.shape[2:]
    width = u.shape[-1]
    chip = multiprocessors(u.device)
    a_u, a_z = (exponents.y, exponents.x) if reverse else (exponents.x, exponents.y)
    dummy = exponents.g
    u_desc, w_desc, z_desc, o_desc = map(descriptor, (u, w, z, out))
    x_desc = z_desc if x is None else descriptor(x)
    launches = cdiv(width, 256)
    per_launch = width // launches
    heads = B * H * cut.count
    shape = WalkShape.filling(per_launch, rows, heads, chip, sums=sums is not None, norm=False)
    pieces = shape.pieces(rows)
    items = heads * pieces
    # The pieces of a state side by side, for the L2; so they are to start together, not where another kernel ends.
    programs = min(items, max(1, chip // pieces) * pieces)
    for launch in range(launches):
        column = launch * per_launch
        enqueue(
            _walk, programs,
            u_desc, w_desc, z_desc, x_desc, o_desc, a_u, a_z, exponents.g,
            dummy if first is None else first, dummy if last is None else last,
            *(dummy if x is None else x[launch * pieces :] if launch else x for x in (sums, *(within or (None, None)))),
            dummy if skip is None else skip, dummy if diagonal is None else diagonal[launch],
            items, H, H // u.shape[1], H // z.shape[1], T, *cut, column, B * H * T,
            Z_DIM=rows, W_DIM=width, TRANSPOSED=transposed, **vars(shape), REVERSE=reverse, SUMS=sums is not None,
            FIRST=first is not None, LAST=last is not None, ADD=launch > 0,
            SKIP=skip is not None, DIAGONAL=diagonal is not None, INDEPENDENT=independent and launch == 0,
            num_warps=4 * shape.GROUPS, maxnreg=128, launch_pdl=pieces == 1, **ASSEMBLY,
        )  # fmt: skip


def takes_pair(d_qk: int, d_hv: int, *, sums: bool) -> bool:
    """Whether `launch_pair` does: whether a program can hold the whole of dC. With row sums two walks are 2% faster for
    64 by 64, of which half of the pair's rows are padding.
    """
    return d_qk <= 128 and d_hv <= 256 and not (sums and d_qk == d_hv == 64)


def launch_pair(
    q: Tensor, k: Tensor, v: Tensor, dh: Tensor, dk: Tensor, dv: Tensor, exponents: Exponents, cut: Segments, *,
    first: Tensor | None = None, last: Tensor | None = None, skip: Tensor | None = None, sums: Tensor | None = None,
) -> None:  # fmt: skip
    """dk and dv in one walk backward in time (see pair.py).

    Args:
        q, k: (B, H, T, d_qk <= 128), or fewer heads, each for consecutive ones of dk; v, dh, dk, dv: (B, H, T, d),
            bfloat16 or float16, as TMA takes them (tfla.tiles.aligned).
        cut: where segments begin; with more than one, `first` holds the dC each of them starts from.
        first, last: (B, H, segments, d_qk, d_hv) float32: read before and written after each segment, if given.
        skip: (H,) float32: dv_t gets skip dh_t more.
        sums: (parts, B, H, T) float32: row sums of k * dk as far as dk comes through dC go to the first part.
    """
    B, H, T, d_qk = dk.shape
    d_hv = v.shape[-1]
    items = B * H * cut.count
    programs = min(items, multiprocessors(q.device))
    x, y = map(exponents_descriptor, (exponents.x, exponents.y))
    dummy = exponents.g
    enqueue(
        _pair, programs,
        *map(descriptor, (q, k, v, dh, dk, dv)), x, y, exponents.g,
        *(dummy if given is None else given for given in (first, last, skip, sums)),
        items, H, H // q.shape[1], T, cut.tiles, cut.segment_tiles, cut.count,
        Z_DIM=d_qk, W_DIM=d_hv, **vars(PairShape.of(d_hv)), SUMS=sums is not None,
        FIRST=first is not None, LAST=last is not None, SKIP=skip is not None, num_warps=8, maxnreg=128,
        launch_pdl=True, **ASSEMBLY,
    )  # fmt: skip


def empty_row_sums(q: Tensor, v: Tensor) -> tuple[RowSums, RowSums]:
    """For q.dq and k.dk: as many parts of what comes through the state as of what does not, which are the last."""
    parts = cdiv(q.shape[-1], 128) * cdiv(v.shape[-1], 256)
    qdq, kdk = (q.new_empty((2 * parts, *v.shape[:3]), dtype=torch.float32) for _ in range(2))
    return RowSums(qdq, qdq[parts:]), RowSums(kdk, kdk[parts:])


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


def takes_tilewise(q: Tensor, v: Tensor, *, sums: bool) -> bool:
    """Whether `launch_gradients` does: states of 64 by 64. Without row sums, and where no heads share q and k, walks
    are 8% faster.
    """
    return q.shape[-1] == v.shape[-1] == TILE and (sums or heads_together(q, v) > 1)


def heads_added_up(q: Tensor, v: Tensor) -> int:
    """Of how many heads a program of `launch_gradients` writes the sum of dq and dk: as many as share q and k, but for
    programs enough to fill the chip.
    """
    B, H, T = v.shape[:3]
    heads = gcd(MOST_ADDED_UP, H // q.shape[1])
    while heads > 1 and B * cdiv(T, TILE) * H // heads < 7 * multiprocessors(q.device):
        heads //= 2
    return heads


def rings(heads: int) -> dict[str, int]:
    """Of `tilewise.gradients` for so many heads a program: tiles of q and k, heads of which all else, and pairs that
    are on their way.
    """
    return {"SHARED": 4, "STAGES": 3, "SLOTS": 2} if heads == 1 else {"SHARED": 2, "STAGES": 4, "SLOTS": 2}


def launch_gradients(
    q: Tensor, k: Tensor, v: Tensor, dh: Tensor, C: Tensor, dC: Tensor, dq: Tensor, dk: Tensor, dv: Tensor,
    exponents: Exponents, *,
    skip: Tensor | None = None, skip_dots: Tensor | None = None, sums: Tensor | None = None,
    through: Tensor | None = None,
) -> None:  # fmt: skip
    """dq, dk and dv tile by tile (see tilewise.py).

    Args:
        q, k: (B, G, T, 64), each for consecutive heads of v, dh, dv: (B, H, T, 64), bfloat16 or float16, as TMA takes
            them (tfla.tiles.aligned).
        C, dC: as `launch_kept_states` makes them; dC may lie where dv goes.
        dq, dk: (B, heads, T, 64), each the sum over consecutive ones of the H heads.
        skip: (H,) float32: dv_t gets skip dh_t more, and sums of dh_t . v_t over a tile go to skip_dots (B, H, tiles).
        sums, through: (4, B, H, T) and (B, H, tiles) float32: what gate gradients are made of, if given (see there).
    """
    B, H, T = v.shape[:3]
    heads = H // dq.shape[1]
    tiles = exponents.g.shape[-1]
    dummy = exponents.g
    items = B * tiles * dq.shape[1]
    enqueue(
        _gradients, min(items, multiprocessors(q.device)),
        *map(descriptor, (q, k, v, dh, C, dC)), *map(exponents_descriptor, exponents[:2]),
        *map(descriptor, (dq, dk, dv)), exponents.g,
        *(dummy if given is None else given for given in (skip, skip_dots, through, sums)),
        items, H, H // q.shape[1], T, tiles, B * H * T,
        HEADS=heads, **rings(heads), SUMS=sums is not None, SKIP=skip is not None,
        num_warps=4, maxnreg=128, launch_pdl=True, **ASSEMBLY,
    )  # fmt: skip
