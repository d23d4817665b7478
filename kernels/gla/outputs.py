"""The parallel kernel, o and with roles exchanged dv (TFLA paper, Table 1, with a gate a channel).

For a tile of rows r of one chunk, with c the tiles of that chunk that r attends to, or that attend to r, nearest first,

    out_r = P_r z_r + sum_c (x_r 2^far_c y_c^T) z_c + (x_r 2^far) S

      out | x   y   z    P        S    c
      ----|------------------------------
      o   | q'  k'  v    scores   S    c < r
      dv  | k'  q'  do   scores^T dS   c > r

with q', k' weighted to the edges of their own tiles (see `scores`), far_c the log decays of the tiles between, one a
channel, and S the state at the chunk's near edge. Rows are parallel over tiles, columns of `out` over blocks.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.descriptors import made_like
from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.common.rows import empty_rows, load_matrix, load_rows, load_vector, store_rows

from .call import GlaCall
from .scores import Weighted


class OutputSizes(NamedTuple):
    """Numbers of a launch: heads, steps, dimensions, tiles of a chunk."""

    heads: Any
    T: Any
    d_qk: Any
    d_hv: Any
    chunk_tiles: Any


@dataclass(frozen=True)
class OutputsConfig:
    """Tell what `parallel_outputs` is compiled for.

    Attributes:
        reverse: rows are attended to by later steps (dv).
        first_state: the first chunk met has a state at its near edge: an initial one, or a gradient of the last.
        inner, outer: columns of x and y at a time, and of out a program.
    """

    reverse: bool
    first_state: bool
    precision: str
    tile: int
    inner: int
    outer: int


@triton.jit
def parallel_outputs(x, y, z, out, scores, totals, states, sizes, config: tl.constexpr):
    """Write one tile [tile, outer] of `out`; see the module's table.

    Args:
        x, y: (B * H, T, d_qk); z, out: `rows.Rows`; scores: (B * H, T, tile).
        totals: (B * H, tiles, d_qk) float32, log2 of the decay over a tile.
        states: (B * H * chunks, d_qk, d_hv).
    """
    TILE: tl.constexpr = config.tile
    IN: tl.constexpr = config.inner
    OUT: tl.constexpr = config.outer
    T, d_qk, d_hv = sizes.T, sizes.d_qk, sizes.d_hv
    tiles, blocks = tl.cdiv(T, TILE), tl.cdiv(d_hv, OUT)
    chunks = tl.cdiv(tiles, sizes.chunk_tiles)
    column = tl.program_id(0) % blocks * OUT + tl.arange(0, OUT)  # neighbours share x and y through L2
    tile = tl.program_id(0) // blocks % tiles
    bh = tl.program_id(0) // blocks // tiles
    if z.steps is not None:  # noqa: SIM102  a constant decides alone
        if tl.load(z.steps + tile * TILE) < 0:  # places without a step
            return
    b, h = bh // sizes.heads, bh % sizes.heads
    chunk = tile // sizes.chunk_tiles
    r = tl.arange(0, TILE)
    t = tile * TILE + r
    z_tile = load_rows(z, b, h, t, column, T, d_hv)
    if config.reverse:
        count = tl.minimum((chunk + 1) * sizes.chunk_tiles, tiles) - 1 - tile
        has_state = chunk != chunks - 1
        p = tl.load(scores + (bh.to(tl.int64) * T + t[None, :]) * TILE + r[:, None], mask=(t < T)[None, :], other=0.0)
    else:
        count = tile - chunk * sizes.chunk_tiles
        has_state = chunk != 0
        p = load_matrix(scores, bh, t, r, T, TILE)
    acc = tl.dot(p, z_tile, input_precision=config.precision)  # [tile, tile] @ [tile, outer] -> [tile, outer]
    for d in range(0, d_qk, IN):
        i = d + tl.arange(0, IN)
        x_tile = load_matrix(x, bh, t, i, T, d_qk)
        far = tl.zeros([IN], tl.float32)
        for j in range(count):
            other = tile + 1 + j if config.reverse else tile - 1 - j
            c = other * TILE + r
            y_tile = load_matrix(y, bh, c, i, T, d_qk)
            z_tile = load_rows(z, b, h, c, column, T, d_hv)
            x_far = (x_tile.to(tl.float32) * tl.exp2(far)[None, :]).to(x_tile.dtype)
            s = tl.dot(x_far, y_tile.T, input_precision=config.precision)  # [tile, in] @ [in, tile] -> [tile, tile]
            acc = tl.dot(s.to(z_tile.dtype), z_tile, acc, input_precision=config.precision)
            far += load_vector(totals, bh * tiles + other, i, d_qk)
        if has_state | config.first_state:  # elsewhere it is zero
            state = load_matrix(states, bh * chunks + chunk, i, column, d_qk, d_hv)
            x_far = (x_tile.to(tl.float32) * tl.exp2(far)[None, :]).to(x_tile.dtype)
            acc = tl.dot(x_far, state, acc, input_precision=config.precision)  # [tile, in] @ [in, outer]
    store_rows(out, acc, b, h, t, column, T, d_hv)


def outputs(call: GlaCall, weighted: Weighted, v: Tensor, states: Tensor, first_state: bool) -> Tensor:
    """Return o like v (B, H, T, d_hv), of the states before chunks; `first_state`: the first is not zero."""
    return _launch(call, weighted.q, weighted.k, v, v, weighted, states, _config(call, False, first_state))


def d_values(call: GlaCall, weighted: Weighted, v: Tensor, do: Tensor, d_states: Tensor, last: bool) -> Tensor:
    """Return dv like v, of gradients of the states after chunks; `last`: that of the last chunk's is not zero."""
    return _launch(call, weighted.k, weighted.q, do, v, weighted, d_states, _config(call, True, last))


def _config(call: GlaCall, reverse: bool, first_state: bool) -> OutputsConfig:
    blocks, first_state = call.plan.blocks, first_state or call.places is not None
    return OutputsConfig(reverse, first_state, call.precision, blocks.tile, blocks.inner, blocks.outer)


def _launch(
    call: GlaCall,
    x: Tensor,
    y: Tensor,
    z: Tensor,
    like: Tensor,
    weighted: Weighted,
    states: Tensor,
    config: OutputsConfig,
) -> Tensor:  # fmt: skip
    plan = call.plan
    out = empty_rows(like)
    programs = plan.batch * plan.heads * plan.tiles * cdiv(plan.d_hv, config.outer)
    enqueue(
        parallel_outputs, programs,
        x, y, call.rows(z), call.rows(out), weighted.scores, weighted.totals, states,
        OutputSizes(plan.heads, plan.T, plan.d_qk, plan.d_hv, plan.chunk_tiles),
        config=config, num_warps=4, num_stages=2 if x.element_size() == 2 else 1,
    )  # fmt: skip
    made = made_like(out, like)
    assert made is not None
    return made
