"""The sums of row sums that pass whole tiles, for `kernels.gates.gate_gradients`, by a scan over tiles.

Let X_t be the sum, over all pairs j < t <= i, of what step j gives step i, and A and B the sums over the steps of a
tile of q.dq and k.dk as far as these come through the state. Then

    Y = X_end - B = X_start - A

passes the tile. Y is a difference of sums over any number of tiles, and still exact, because the walks for dq and dk
round every pair of steps alike.

They do so within a segment, or a document. A pair that a border separates is rounded as the states there are, and h may
have written these down, which rounds otherwise. So each segment starts anew, from X = <C, dC> of the states that its
walks have at its first step. Where nothing comes after the last step X is 0 there, and the scan goes back from there.

A tile that forgets nearly everything lets a small part e = exp(g) of X pass, less than the rounding errors in X. So Y
is what a Wiener filter makes of it, for signals of e and errors of ROUNDOFF relative to X; nothing passes where e is 0.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tflabench.kernels.cover import cdiv, next_power_of_2
from tflabench.kernels.gates import RowSums, load_parts, overlapping
from tflabench.kernels.launching import enqueue
from tflabench.kernels.plan.hopper_segments import Segments

from .exponents import TILE
from .launch import pointers

TILES = 16  # of a program of `_tile_sums`
BLOCK = 1024  # tiles that `_pass_tiles` has at a time
BLOCK_OF_STATE, WARPS = 8192, 8  # elements of a state that it has at a time, and its warps
STEPS_OF_TILE, TILES_OF_PROGRAM = tl.constexpr(TILE), tl.constexpr(TILES)
ROUNDOFF = tl.constexpr(2.0**-16)


@triton.jit
def _sums_through_state(sums, row, rows, t, T, EVERY: tl.constexpr, WITHIN: tl.constexpr):
    """Return sums over tiles, [tiles], of the row sums of steps t [tiles, 64] less those of pairs within a tile."""
    every = load_parts(sums.every, row, rows, t, t < T, T, EVERY)
    return tl.sum(every - load_parts(sums.within, row, rows, t, t < T, T, WITHIN), 1)


@triton.jit(do_not_specialize=["rows", "tiles"])
def _tile_sums(
    qdq, kdk, a, b, rows, T, tiles,
    Q_PARTS: tl.constexpr, K_PARTS: tl.constexpr, WITHIN_PARTS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Write A and B of 16 tiles of a row of batch and head.

    Args:
        qdq, kdk: `RowSums`, of Q_PARTS and K_PARTS parts, WITHIN_PARTS of them within tiles.
        a, b: (rows, tiles) float32.
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    groups = tl.cdiv(tiles, TILES_OF_PROGRAM)
    row = (tl.program_id(0) // groups).to(tl.int64)
    tile = (tl.program_id(0) % groups) * TILES_OF_PROGRAM + tl.arange(0, TILES_OF_PROGRAM)
    t = tile[:, None] * STEPS_OF_TILE + tl.arange(0, STEPS_OF_TILE)[None, :]
    a_tile = _sums_through_state(qdq, row, rows, t, T, Q_PARTS, WITHIN_PARTS)
    b_tile = _sums_through_state(kdk, row, rows, t, T, K_PARTS, WITHIN_PARTS)
    tl.store(a + row * tiles + tile, a_tile, mask=tile < tiles)
    tl.store(b + row * tiles + tile, b_tile, mask=tile < tiles)


@triton.jit
def _then(slope_1, offset_1, slope_2, offset_2):
    """Compose x -> slope x + offset: the first, then the second."""
    return slope_1 * slope_2, slope_2 * offset_1 + offset_2


@triton.jit
def _dot(x, y, elements, BLOCK: tl.constexpr):
    """Return the sum over all elements of x y, float32."""
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, elements, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < elements
        total += tl.load(x + at, mask=inside, other=0.0) * tl.load(y + at, mask=inside, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def _entering(starts, segment, row, rows, segments, elements, config: tl.constexpr):
    """Return X before the first step of a segment, or of a document."""
    x = tl.full((), 0.0, tl.float32)
    if config.has_first and (config.documents or segment == 0):
        at = (segment * rows + row) * elements
        x = _dot(starts.C_0 + at, starts.dC_0 + at, elements, config.block_of_state)
    if config.in_segments and segment > 0:
        at = (row * segments + segment) * elements
        x = _dot(starts.C + at, starts.dC + at - elements, elements, config.block_of_state)
    if config.has_more:
        x += tl.load(starts.more + segment * rows + row)
    return x


@triton.jit(do_not_specialize=["rows", "tiles", "segments", "segment_tiles", "elements"])
def _pass_tiles(
    sums, g, through, starts, gaps, rows, tiles, segments, segment_tiles, elements, config: tl.constexpr
):  # fmt: skip
    """Write Y of every tile of a segment, or of a document.

    Args:
        sums: `TileSums`; g, through: (rows, tiles).
        starts: `Starts`, of matrices of `elements`.
        gaps: of documents, the tiles before each and behind the last one.
        segment_tiles: of a segment; the first one has what remains.
    """
    BLOCK: tl.constexpr = config.block
    BACK: tl.constexpr = config.back
    if config.overlap:
        gdc_wait()
        gdc_launch_dependents()
    segment, row = (tl.program_id(0) // rows).to(tl.int64), (tl.program_id(0) % rows).to(tl.int64)
    if config.documents:
        first, end = tl.load(gaps + segment) + 1, tl.load(gaps + segment + 1)
    else:
        end = tiles - (segments - 1 - segment) * segment_tiles
        first = tl.maximum(end - segment_tiles, 0)
    x = tl.full((), 0.0, tl.float32)
    if not BACK:
        x = _entering(starts, segment, row, rows, segments, elements, config)
    blocks = tl.cdiv(end - first, BLOCK)
    for n in range(blocks):
        block = blocks - 1 - n if BACK else n
        tile = first + block * BLOCK + tl.arange(0, BLOCK)
        inside = tile < end
        at = row * tiles + tile
        a, b = tl.load(sums.qdq + at, mask=inside, other=0.0), tl.load(sums.kdk + at, mask=inside, other=0.0)
        e = tl.exp2(2.0 * tl.load(g + at, mask=inside, other=0.0))
        kept = tl.where(e > 0, e / (e + ROUNDOFF * ROUNDOFF), 0.0 * e)  # NaN passes
        leaves, joins = (b, a) if BACK else (a, b)
        slope, offset = tl.associative_scan((kept, joins - kept * leaves), 0, _then, reverse=BACK)
        beyond = slope * x + offset
        tl.store(through + at, beyond - joins, mask=inside)
        at_border = tile == (first + block * BLOCK if BACK else tl.minimum(first + (block + 1) * BLOCK, end) - 1)
        x = tl.sum(tl.where(at_border, beyond, 0.0), 0)


class TileSums(NamedTuple):
    """Sums over the steps of tiles of q.dq and k.dk, as far as these come through the state, (B, H, tiles) float32."""

    qdq: Tensor
    kdk: Tensor


def tile_sums(qdq: RowSums, kdk: RowSums, tiles: int) -> TileSums:
    """Return A and B of all tiles.

    Args:
        qdq, kdk: as for `gate_gradients`, with chunks of one tile.
        tiles: of a sequence.
    """
    _, B, H, T = qdq.every.shape
    made = TileSums(*torch.empty((2, B, H, tiles), dtype=torch.float32, device=qdq.every.device))
    enqueue(
        _tile_sums, B * H * cdiv(tiles, TILES), qdq, kdk, *made, B * H, T, tiles,
        Q_PARTS=qdq.every.shape[0], K_PARTS=kdk.every.shape[0], WITHIN_PARTS=qdq.within.shape[0],
        **overlapping(made.qdq),
    )  # fmt: skip
    return made


class Starts(NamedTuple):
    """What X is made of before the first steps of segments, or of documents, float32; on the device, pointers.

    Attributes:
        C_0, dC_0: (B or documents, H, d_qk, d_hv), before the first step of all; None for zero.
        C, dC: of several segments, (B, H, segments, d_qk, d_hv): C before each, dC after each.
        more: (segments or documents, B, H), what the normaliser adds, or None.
    """

    C_0: Any = None
    dC_0: Any = None
    C: Any = None
    dC: Any = None
    more: Any = None


@dataclass(frozen=True)
class PassConfig:
    """Tell what `_pass_tiles` is compiled for.

    Attributes:
        back: X after the last step is 0, from where the scan goes back.
        has_first, in_segments, has_more: which of `Starts` there are.
        documents: sequences are documents.
        block: tiles at a time, a power of two.
        block_of_state: elements of a state at a time, a power of two.
        overlap: the kernel may start while the one before it runs.
    """

    back: bool
    has_first: bool
    in_segments: bool
    has_more: bool
    documents: bool
    block: int
    block_of_state: int
    overlap: bool


_config = cache(PassConfig)  # a launch costs the host less where it was made before


def through_tiles(
    sums: TileSums, g: Tensor, cut: Segments, starts: Starts | None, gaps: Tensor | None = None
) -> Tensor:  # fmt: skip
    """Return the sum that passes each tile, Y, (B, H, tiles) float32.

    Args:
        sums: A and B.
        g: base-2 log gates of tiles, (B, H, tiles).
        cut: the segments of a sequence; of documents, how many there are and at most how many tiles each has.
        starts: what X before segments is made of; None where there is one segment, or documents, and X after the last
            step is 0.
        gaps: of documents, the tiles before each and behind the last one, where nothing is written.
    """
    B, H, tiles = g.shape
    through = torch.empty_like(g)
    C_0, _, C, _, more = starts or Starts()
    some = C_0 if C is None else C
    elements = 1 if some is None else some.shape[-1] * some.shape[-2]
    config = _config(
        starts is None, C_0 is not None, C is not None, more is not None, gaps is not None,
        block=min(BLOCK, max(2, next_power_of_2(cut.segment_tiles))), block_of_state=BLOCK_OF_STATE, overlap=g.is_cuda,
    )  # fmt: skip
    enqueue(
        _pass_tiles, B * H * cut.count, sums, g, through, pointers(starts or Starts(), g), g if gaps is None else gaps,
        B * H, tiles, cut.count, cut.segment_tiles, elements,
        config=config, num_warps=WARPS, **({"launch_pdl": True} if config.overlap else {}),
    )  # fmt: skip
    return through
