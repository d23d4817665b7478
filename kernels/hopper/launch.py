"""Host side of the Gluon kernels: descriptors, how a shape is cut into pieces, shared memory, launch options."""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl  # pyright: ignore[reportMissingTypeStubs]
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # pyright: ignore[reportMissingTypeStubs]

from tflabench.kernels.cover import cdiv
from tflabench.kernels.gates import Exponents, RowSums
from tflabench.kernels.launching import enqueue
from tflabench.kernels.tfla.device import multiprocessors
from tflabench.kernels.tfla.tiles import Unchecked, described_strides

from . import pair, tilewise, walk
from .shapes import PACK, TILE, PairShape, Segments, WalkShape, heads_together
from .workarounds import ASSEMBLY

LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
EXPONENTS_BLOCK = [1, TILE]
EXPONENTS_LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
MOST_ADDED_UP = 64  # heads of which a program of `tilewise.gradients` adds up dq and dk
BLOCKS = {heads: [1, heads, 64, 64] for heads in (1, PACK)}  # of a descriptor

# What Gluon's decorators return has no types that a Python checker knows.
_walk: Any = cast("Any", walk).walk
_pair: Any = cast("Any", pair).pair
_gradients: Any = cast("Any", tilewise).gradients


class Inputs(NamedTuple):
    """Tensors that h is made of.

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
    """Return the descriptor of blocks of x (B, H, T, d), `heads` heads of 64 steps by 64 columns."""
    return Described(x, x.shape, described_strides(x.shape, x.stride()), BLOCKS[heads])


def exponents_descriptor(x: Tensor) -> TensorDescriptor:
    """Return the descriptor of the tiles of x (B, H, tiles * 64)."""
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
