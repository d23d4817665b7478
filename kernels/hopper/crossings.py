"""The sums of row sums that pass whole tiles, for `kernels.gates.gate_gradients`, by a scan backward in time.

Let X_t be the sum, over all pairs j < t <= i, of what step j gives step i, and A and B the sums over the steps of a
tile of q.dq and k.dk as far as these come through the state. Then

    Y = X_end - B = X_start - A

passes the tile. Y is a difference of sums over any number of tiles, and still exact, because the walks for dq and dk
round every pair of steps alike.

A tile that forgets nearly everything lets a small part e = exp(g) of X pass, less than the rounding errors in X. So Y
is what a Wiener filter makes of it, for signals of e and errors of ROUNDOFF relative to X; nothing passes where e is 0.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tflabench.kernels.cover import cdiv, next_power_of_2
from tflabench.kernels.gates import RowSums, load_parts, overlapping
from tflabench.kernels.launching import enqueue

from .exponents import TILE

TILES = 16  # of a program of `_tile_sums`
BLOCK = 1024  # tiles that `_pass_tiles` has at a time
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
def _pass_tiles(a, b, g, last, through, tiles, HAS_LAST: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    """Write Y of every tile of a row, from the last tile on, out of A, B and g, (rows, tiles) each.

    Args:
        last: X after the last step, (rows,), if HAS_LAST.
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    x = 0.0
    if HAS_LAST:
        x = tl.load(last + row)
    for block in range(tl.cdiv(tiles, BLOCK) - 1, -1, -1):
        tile = block * BLOCK + tl.arange(0, BLOCK)
        inside = tile < tiles
        at = row * tiles + tile
        e = tl.exp2(2.0 * tl.load(g + at, mask=inside, other=0.0))
        kept = tl.where(e > 0, e / (e + ROUNDOFF * ROUNDOFF), 0.0 * e)  # NaN passes
        arriving = tl.load(a + at, mask=inside, other=0.0)
        slope, offset = tl.associative_scan(
            (kept, arriving - kept * tl.load(b + at, mask=inside, other=0.0)), 0, _then, reverse=True
        )
        start = slope * x + offset
        tl.store(through + at, start - arriving, mask=inside)
        x = tl.sum(tl.where(tile == block * BLOCK, start, 0.0), 0)


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


def through_tiles(sums: TileSums, last: Tensor | None, g: Tensor) -> Tensor:
    """Return the sum that passes each tile, Y, (B, H, tiles) float32.

    Args:
        sums: A and B.
        last: X after the last step, (B, H) float32, which the gradient of the last state gives; None is 0.
        g: base-2 log gates of tiles, (B, H, tiles).
    """
    B, H, tiles = g.shape
    through = torch.empty_like(g)
    enqueue(
        _pass_tiles, B * H, *sums, g, g if last is None else last, through, tiles,
        HAS_LAST=last is not None, BLOCK=min(BLOCK, max(2, next_power_of_2(tiles))), **overlapping(g),
    )  # fmt: skip
    return through
