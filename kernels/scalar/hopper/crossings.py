"""The sums of row sums that pass whole tiles, for `kernels.scalar.gates.gate_gradients`, by a scan over tiles.

Let X_t be the sum, over all pairs j < t <= i, of what step j gives step i, and A and B the sums over the steps of a
tile of q.dq and k.dk as far as these come through the state. Then

    Y = X_end - B = X_start - A

passes the tile. Y is a difference of sums over any number of tiles, and still exact, because the walks for dq and dk
round every pair of steps alike.

That holds for pairs of one segment, or of one document. A pair across a border depends on the state in memory there.
h, which may have written it, rounds otherwise. So each segment starts anew at its first step, from X = <C, dC> of the
states that its walks start from and end with. Where there is one segment and X after the last step is 0, the scan goes
back from there.

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

from tflabench.kernels.common.cover import cdiv, next_power_of_2
from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.scalar.gates import RowSums, load_parts
from tflabench.kernels.scalar.plan.hopper_segments import Segments

from .exponents import TILE
from .launch import pointers

TILES = 16  # of a program of `_tile_sums`
BLOCK = 1024  # tiles that `_pass_tiles` has at a time
PIECE = 16_384  # elements of a state in a program of `_tile_sums`
STEPS_OF_TILE, TILES_OF_PROGRAM = tl.constexpr(TILE), tl.constexpr(TILES)
ELEMENTS_OF_PROGRAM, ELEMENTS = tl.constexpr(PIECE), tl.constexpr(4096)  # and at a time
ROUNDOFF = tl.constexpr(2.0**-16)


class Starts(NamedTuple):
    """Name the states that X before the first step of a segment, or of a document, is made of, and what is added.

    All are float32; on the device they are pointers.

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


class TileSums(NamedTuple):
    """Sums that what passes tiles is made of, float32; on the device, pointers.

    Attributes:
        qdq, kdk: A and B of tiles, (B, H, tiles).
        entering: X before segments, or documents, (segments, B * H, pieces), to be added up over pieces; None where
            there is one segment, or documents, and X after the last step is 0.
    """

    qdq: Any
    kdk: Any
    entering: Any


@dataclass(frozen=True, eq=False)
class SumsConfig:
    """Tell what `_tile_sums` is compiled for.

    Attributes:
        q_parts, k_parts, within_parts: of `RowSums` of q and of k, and of those within tiles.
        has_first, in_segments, has_more: which of `Starts` there are.
        pieces: of a state, 0 where there is no X to make of `Starts`.
    """

    q_parts: int
    k_parts: int
    within_parts: int
    has_first: bool
    in_segments: bool
    has_more: bool
    pieces: int
    documents: bool
    overlap: bool


@dataclass(frozen=True, eq=False)
class PassConfig:
    """Tell what `_pass_tiles` is compiled for.

    Attributes:
        pieces: of X before the first step, 0 where X after the last step is 0 and the scan goes back from there.
        block: tiles at a time, a power of two.
    """

    pieces: int
    block: int
    documents: bool
    overlap: bool


_sums_config, _pass_config = cache(SumsConfig), cache(PassConfig)  # launches then cost the host less


@triton.jit
def _sums_through_state(sums, row, rows, t, T, EVERY: tl.constexpr, WITHIN: tl.constexpr):
    """Return sums over tiles, [tiles], of the row sums of steps t [tiles, 64] less those of pairs within a tile."""
    every = load_parts(sums.every, row, rows, t, t < T, T, EVERY)
    return tl.sum(every - load_parts(sums.within, row, rows, t, t < T, T, WITHIN), 1)


@triton.jit
def _dot(x, y, begin, end):
    """Return the sum over elements from begin on, at most up to end, of x y."""
    total = tl.zeros([ELEMENTS], tl.float32)
    for start in range(0, ELEMENTS_OF_PROGRAM, ELEMENTS):
        at = begin + start + tl.arange(0, ELEMENTS)
        total += tl.load(x + at, mask=at < end, other=0.0) * tl.load(y + at, mask=at < end, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def _entering(made, starts, number, rows, segments, elements, config: tl.constexpr):
    """Write a piece of X before the first step of a segment, or of a document."""
    piece, begin = number % config.pieces, number % config.pieces * ELEMENTS_OF_PROGRAM
    of = (number // config.pieces).to(tl.int64)
    segment, row = of // rows, of % rows
    x = tl.full((), 0.0, tl.float32)
    if config.has_first and (config.documents or segment == 0):
        x = _dot(starts.C_0 + of * elements, starts.dC_0 + of * elements, begin, elements)
    if config.in_segments and segment > 0:
        at = (row * segments + segment) * elements
        x = _dot(starts.C + at, starts.dC + at - elements, begin, elements)
    if config.has_more:
        x += tl.where(piece == 0, tl.load(starts.more + of), 0.0)
    tl.store(made.entering + number, x)


@triton.jit(do_not_specialize=["rows", "tiles", "segments", "elements"])
def _tile_sums(qdq, kdk, made, starts, rows, T, tiles, segments, elements, config: tl.constexpr):
    """Write A and B of 16 tiles of a row of batch and head, or a piece of X before a segment."""
    if config.overlap:
        gdc_wait()
        gdc_launch_dependents()
    groups = tl.cdiv(tiles, TILES_OF_PROGRAM)
    if tl.program_id(0) < rows * groups:
        row = (tl.program_id(0) // groups).to(tl.int64)
        tile = (tl.program_id(0) % groups) * TILES_OF_PROGRAM + tl.arange(0, TILES_OF_PROGRAM)
        t = tile[:, None] * STEPS_OF_TILE + tl.arange(0, STEPS_OF_TILE)[None, :]
        a = _sums_through_state(qdq, row, rows, t, T, config.q_parts, config.within_parts)
        b = _sums_through_state(kdk, row, rows, t, T, config.k_parts, config.within_parts)
        tl.store(made.qdq + row * tiles + tile, a, mask=tile < tiles)
        tl.store(made.kdk + row * tiles + tile, b, mask=tile < tiles)
    elif config.pieces:
        _entering(made, starts, tl.program_id(0) - rows * groups, rows, segments, elements, config)


@triton.jit
def _then(slope_1, offset_1, slope_2, offset_2):
    """Compose x -> slope x + offset: the first, then the second."""
    return slope_1 * slope_2, slope_2 * offset_1 + offset_2


@triton.jit(do_not_specialize=["rows", "tiles", "segments", "segment_tiles"])
def _pass_tiles(sums, g, through, gaps, rows, tiles, segments, segment_tiles, config: tl.constexpr):
    """Write Y of every tile of a segment, or of a document.

    Args:
        gaps: of documents, the tiles before each and behind the last one.
        segment_tiles: of a segment; the first one has what remains.
    """
    BLOCK: tl.constexpr = config.block
    BACK: tl.constexpr = config.pieces == 0
    if config.overlap:
        gdc_wait()
        gdc_launch_dependents()
    segment, row = tl.program_id(0) // rows, (tl.program_id(0) % rows).to(tl.int64)
    if config.documents:
        first, end = tl.load(gaps + segment) + 1, tl.load(gaps + segment + 1)
    else:
        end = tiles - (segments - 1 - segment) * segment_tiles
        first = tl.maximum(end - segment_tiles, 0)
    x = tl.full((), 0.0, tl.float32)
    for piece in range(config.pieces):
        x += tl.load(sums.entering + tl.program_id(0) * config.pieces + piece)
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


def tile_sums(
    qdq: RowSums, kdk: RowSums, cut: Segments, starts: Starts | None = None, *, documents: bool = False
) -> TileSums:
    """Return sums over all tiles.

    Args:
        qdq, kdk: as for `gate_gradients`, with chunks of one tile.
        cut: the segments of a sequence; of documents, how many there are, of all tiles.
        starts: what X before these is made of; None as `TileSums.entering`.
    """
    parts, B, H, T = qdq.every.shape
    C_0, _, C, _, more = starts or Starts()
    elements = next((x.shape[-1] * x.shape[-2] for x in (C_0, C) if x is not None), 1)
    pieces = 0 if starts is None else cdiv(elements, PIECE)
    of_q = qdq.every.new_empty((B, H, cut.tiles))
    made = TileSums(of_q, torch.empty_like(of_q), of_q.new_empty((cut.count, B * H, pieces)) if pieces else None)
    config = _sums_config(
        parts, kdk.every.shape[0], qdq.within.shape[0], C_0 is not None, C is not None, more is not None, pieces,
        documents, overlap=qdq.every.is_cuda,
    )  # fmt: skip
    enqueue(
        _tile_sums, B * H * (cdiv(cut.tiles, TILES) + cut.count * pieces),
        qdq, kdk, pointers(made, made.qdq), pointers(starts or Starts(), made.qdq), B * H, T, cut.tiles, cut.count,
        elements, config=config, launch_pdl=config.overlap,
    )  # fmt: skip
    return made


def through_tiles(sums: TileSums, g: Tensor, cut: Segments, gaps: Tensor | None = None) -> Tensor:
    """Return the sum that passes each tile, Y, (B, H, tiles) float32.

    Args:
        cut: as given to `tile_sums`; of documents, a segment has as many tiles as the longest.
        gaps: of documents, the tiles before each and behind the last one, where nothing is written.
    """
    B, H, tiles = g.shape
    through = torch.empty_like(g)
    config = _pass_config(
        0 if sums.entering is None else sums.entering.shape[-1],
        min(BLOCK, max(2, next_power_of_2(cut.segment_tiles))), gaps is not None, overlap=g.is_cuda,
    )  # fmt: skip
    enqueue(
        _pass_tiles, B * H * cut.count, pointers(sums, g), g, through, g if gaps is None else gaps, B * H, tiles,
        cut.count, cut.segment_tiles, config=config, launch_pdl=config.overlap,
    )  # fmt: skip
    return through
