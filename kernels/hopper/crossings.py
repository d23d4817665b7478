"""What passes whole tiles, for `kernels.gates.gate_gradients`: out of row sums, and C * dC measured every few tiles.

With X_t the sum, over all pairs j < t <= i, of what step j gives step i, and sums over a tile's steps of q.dq and k.dk
through the state, A and B,

    Y = X_end - B = X_start - A

is what passes the tile. So X at the end of a window of tiles gives all its Y, going backward; each step adds rounding
errors of A and B, and what is missed at the window's start, where X is known again, is spread over it. A tile that
forgets nearly everything lets through a small part e = exp(g) of it, less than these errors are: so Y is taken as what
a Wiener filter makes of it, for signals of e and errors of u relative to X, with u the unit roundoff.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.gates import RowSums, load_parts

from .exponents import TILE
from .walk import WINDOW


@triton.jit
def _sums_through_state(every, within, row, rows, t, T, EVERY: tl.constexpr, WITHIN: tl.constexpr):
    steps = load_parts(every, row, rows, t, t < T, T, EVERY) - load_parts(within, row, rows, t, t < T, T, WITHIN)
    return tl.sum(steps, 1)


@triton.jit
def _through_tiles(
    qdq, q_within, kdk, k_within, edges, g, through, rows, T, tiles, windows, roundoff,
    Q_PARTS: tl.constexpr, K_PARTS: tl.constexpr, WITHIN_PARTS: tl.constexpr,
    WINDOW: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) // windows).to(tl.int64)
    window = tl.program_id(0) % windows
    inside = tl.arange(0, WINDOW)
    tile = window * WINDOW + inside
    t = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
    a = _sums_through_state(qdq, q_within, row, rows, t, T, Q_PARTS, WITHIN_PARTS)
    b = _sums_through_state(kdk, k_within, row, rows, t, T, K_PARTS, WITHIN_PARTS)
    x_first = tl.load(edges + row * (windows + 1) + window)
    x_last = tl.load(edges + row * (windows + 1) + window + 1)
    x = x_last + tl.cumsum(a - b, 0, reverse=True)  # at the start of each tile
    missed = x_first - x_last - tl.sum(a - b, 0)
    n = tl.minimum(WINDOW, tiles - window * WINDOW)
    y = x - a + missed * (n - inside - 0.5) / n
    e = tl.exp2(2.0 * tl.load(g + row * tiles + tile, mask=tile < tiles, other=0.0))
    y = tl.where(e > 0, y * (e / (e + roundoff * roundoff)), 0.0 * y)  # NaN passes
    tl.store(through + row * tiles + tile, y, mask=tile < tiles)


def through_tiles(qdq: RowSums, kdk: RowSums, edges: Tensor, g: Tensor, dtype: torch.dtype) -> Tensor:
    """What passes each tile, (B, H, tiles) float32.

    Args:
        qdq, kdk: as for `gate_gradients`, with chunks of one tile.
        edges: (B, H, windows + 1) float32, X before the first window, between windows and after the last.
        g: (B, H, tiles), base-2 log gates of tiles.
        dtype: of the products' operands, which says what they were rounded by.
    """
    B, H, tiles = g.shape
    windows = edges.shape[-1] - 1
    roundoff = torch.finfo(dtype).eps / 2 if dtype.itemsize == 2 else 0.0
    through = torch.empty_like(g)
    _through_tiles[(B * H * windows,)](
        *qdq, *kdk, edges, g, through, B * H, qdq.every.shape[-1], tiles, windows, roundoff,
        Q_PARTS=qdq.every.shape[0], K_PARTS=kdk.every.shape[0], WITHIN_PARTS=qdq.within.shape[0],
        WINDOW=WINDOW.value, TILE=TILE,
    )  # fmt: skip
    return through
