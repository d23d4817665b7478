"""What passes whole tiles, for `kernels.gates.gate_gradients`: out of row sums alone, going backward in time.

With X_t the sum, over all pairs j < t <= i, of what step j gives step i, and sums over a tile's steps of q.dq and k.dk
through the state, A and B,

    Y = X_end - B = X_start - A

is what passes the tile. That differences of sums give it at all, over any number of tiles, is because the walks for dq
and dk round every pair alike (see backward_dqk.py). A tile that forgets nearly everything lets through a small part
e = exp(g) of X, less than what is left of rounding errors: so Y is taken as what a Wiener filter makes of it, for
signals of e and errors of ROUNDOFF relative to X; nothing passes where e is 0.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tflabench.kernels.cover import cdiv, next_power_of_2
from tflabench.kernels.gates import RowSums, load_parts, overlapping
from tflabench.kernels.launching import enqueue

from .exponents import TILE

TILES = 16  # of one program of the first kernel
BLOCK = 1024  # tiles at a time in the second
ROUNDOFF = tl.constexpr(2.0**-16)


@triton.jit
def _sums_through_state(every, within, row, rows, t, T, EVERY: tl.constexpr, WITHIN: tl.constexpr):
    steps = load_parts(every, row, rows, t, t < T, T, EVERY) - load_parts(within, row, rows, t, t < T, T, WITHIN)
    return tl.sum(steps, 1)


@triton.jit(do_not_specialize=["rows", "tiles", "groups"])
def _tile_sums(
    qdq, q_within, kdk, k_within, a, b, rows, T, tiles, groups,
    Q_PARTS: tl.constexpr, K_PARTS: tl.constexpr, WITHIN_PARTS: tl.constexpr,
    TILES: tl.constexpr, TILE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = (tl.program_id(0) // groups).to(tl.int64)
    tile = (tl.program_id(0) % groups) * TILES + tl.arange(0, TILES)
    t = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
    a_tile = _sums_through_state(qdq, q_within, row, rows, t, T, Q_PARTS, WITHIN_PARTS)
    b_tile = _sums_through_state(kdk, k_within, row, rows, t, T, K_PARTS, WITHIN_PARTS)
    tl.store(a + row * tiles + tile, a_tile, mask=tile < tiles)
    tl.store(b + row * tiles + tile, b_tile, mask=tile < tiles)


@triton.jit
def _then(slope_1, offset_1, slope_2, offset_2):
    """x -> slope x + offset of the first, then of the second."""
    return slope_1 * slope_2, slope_2 * offset_1 + offset_2


@triton.jit
def _pass_tiles(a, b, g, last, through, tiles, HAS_LAST: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
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


def through_tiles(qdq: RowSums, kdk: RowSums, last: Tensor | None, g: Tensor) -> Tensor:
    """What passes each tile, (B, H, tiles) float32.

    Args:
        qdq, kdk: as for `gate_gradients`, with chunks of one tile.
        last: (B, H) float32, X after the last step: what the last state's gradient has of it; None is 0.
        g: (B, H, tiles), base-2 log gates of tiles.
    """
    B, H, tiles = g.shape
    rows, T = B * H, qdq.every.shape[-1]
    through, a, b = torch.empty((3, *g.shape), dtype=torch.float32, device=g.device)
    groups = cdiv(tiles, TILES)
    overlap = overlapping(g)
    enqueue(
        _tile_sums, rows * groups,
        *qdq, *kdk, a, b, rows, T, tiles, groups,
        Q_PARTS=qdq.every.shape[0], K_PARTS=kdk.every.shape[0], WITHIN_PARTS=qdq.within.shape[0],
        TILES=TILES, TILE=TILE, **overlap,
    )  # fmt: skip
    block = min(BLOCK, max(2, next_power_of_2(tiles)))
    enqueue(
        _pass_tiles, rows,
        a, b, g, g if last is None else last, through, tiles, HAS_LAST=last is not None, BLOCK=block,
        **overlap,
    )  # fmt: skip
    return through
