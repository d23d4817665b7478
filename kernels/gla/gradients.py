"""dq, dk and dg: all gradients of a tile of steps and a block of channels in one program.

    dq_i = scale (2^until_i (do_i S^T + sum_c (do_i v_c^T) k_c) + pairs of the tile)     c < r, from the chunk's start
    dk_i = 2^after_i (v_i dS^T + sum_c (v_i do_c^T) q'_c) + pairs of the tile            c > r, from the chunk's end

The sums over c are recurrences: the sum decays over a tile, each channel for itself, before the next is added. The
products of do and v know no gates.

The gradient of a log decay g_t is the sum over all pairs j < t <= i of what q_i, k_j give to the loss. Of t in tile r:

    pairs of the tile     sum_{i >= t} (q_i dq_i - k_i dk_i), of such pairs only
    they end in the tile  sum_{i >= t} q_i dq_i, of steps before the tile
    they begin in it      sum_{j < t} k_j dk_j, of steps after the tile
    they pass it          what crosses its start, less what ends in it

What crosses the start of a chunk is S . dS there (`states.ChunkStates.crossing`). Over the tiles of the chunk it loses
what ends in each and gains what begins there. Rounding errors so add up over one chunk at most, and a step's own
q_t . k_t, which no gate weighs, has no part in any sum.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.common.rows import empty_rows, load_matrix, load_rows, load_vector, store_matrix, store_rows
from tflabench.kernels.gla.plan import GRADIENT_STAGES, GlaPlan

from .call import GlaCall
from .outputs import OutputSizes
from .scores import Weighted
from .tiles import CLOSED, load_gates, pair_gradients, sums_of_segments


class GradientInputs(NamedTuple):
    """Tensors (B, H, T, d) of a call, as `rows.Rows`."""

    q: Any
    k: Any
    v: Any
    g: Any
    do: Any


class StatePair(NamedTuple):
    """StatePair before chunks and gradients of states after them, (B * H * chunks, d_qk, d_hv)."""

    before: Any
    after: Any


class Written(NamedTuple):
    """Name what `tile_gradients` writes.

    Attributes:
        dq, dk: `rows.Rows`, float32 sums in the dtype of q.
        dg: (B * H, T, d_qk) float32, without pairs that pass a tile.
        ending, beginning: (B * H, tiles, d_qk) float32, sums over a tile of q dq and k dk of pairs with other tiles.
    """

    dq: Any
    dk: Any
    dg: Any
    ending: Any
    beginning: Any


@dataclass(frozen=True)
class GradientsConfig:
    """Tell what `tile_gradients` is compiled for.

    Attributes:
        first, last: the first chunk has a state before it; the last a gradient after it.
        gates: dg is written.
        hidden: columns of v and do at a time.
    """

    first: bool
    last: bool
    gates: bool
    levels: int
    reach: float
    precision: str
    tile: int
    block: int
    hidden: int


class TileOfHead(NamedTuple):
    """A tile of steps and a block of channels of one head.

    Attributes:
        chunk, chunks: the tile's chunk, and how many there are.
        first, end: the chunk's first tile, and the one after its last.
    """

    bh: Any
    b: Any
    h: Any
    tile: Any
    t: Any
    i: Any
    chunk: Any
    chunks: Any
    first: Any
    end: Any


@triton.jit
def place_of_program(sizes, config: tl.constexpr):
    """Return the `TileOfHead` of this program."""
    TILE: tl.constexpr = config.tile
    BLOCK: tl.constexpr = config.block
    tiles, blocks = tl.cdiv(sizes.T, TILE), tl.cdiv(sizes.d_qk, BLOCK)
    block = tl.program_id(0) % blocks  # neighbours share v and do through L2
    tile = tl.program_id(0) // blocks % tiles
    bh = tl.program_id(0) // blocks // tiles
    chunk = tile // sizes.chunk_tiles
    first = chunk * sizes.chunk_tiles
    return TileOfHead(
        bh,
        bh // sizes.heads,
        bh % sizes.heads,
        tile,
        tile * TILE + tl.arange(0, TILE),
        block * BLOCK + tl.arange(0, BLOCK),
        chunk,
        tl.cdiv(tiles, sizes.chunk_tiles),
        first,
        tl.minimum(first + sizes.chunk_tiles, tiles),
    )


@triton.jit
def products(x, y, place, c, sizes, config: tl.constexpr):
    """Return x_t . y_c of the steps t of a place and steps c, [tile, tile] float32, summed over d_hv."""
    TILE: tl.constexpr = config.tile
    HV: tl.constexpr = config.hidden
    s = tl.zeros([TILE, TILE], tl.float32)
    for e in range(0, sizes.d_hv, HV):
        column = e + tl.arange(0, HV)
        x_tile = load_rows(x, place.b, place.h, place.t, column, sizes.T, sizes.d_hv)
        y_tile = load_rows(y, place.b, place.h, c, column, sizes.T, sizes.d_hv)
        s = tl.dot(x_tile, y_tile.T, s, input_precision=config.precision)  # [tile, hv] @ [hv, tile] -> [tile, tile]
    return s


@triton.jit
def add_state(acc, x, states, place, sizes, config: tl.constexpr):
    """Return acc [tile, block] plus x_t times the state of the place's chunk, turned: [tile, hv] @ [hv, block]."""
    HV: tl.constexpr = config.hidden
    matrix = place.bh * place.chunks + place.chunk
    for e in range(0, sizes.d_hv, HV):
        column = e + tl.arange(0, HV)
        x_tile = load_rows(x, place.b, place.h, place.t, column, sizes.T, sizes.d_hv)
        state = load_matrix(states, matrix, place.i, column, sizes.d_qk, sizes.d_hv)
        acc = tl.dot(x_tile, state.T, acc, input_precision=config.precision)
    return acc


@triton.jit
def add_tile(acc, x, y, weighted, totals, other, place, sizes, config: tl.constexpr):
    """Return acc [tile, block] decayed over another tile, plus what that tile adds: (x y^T) weighted q or k."""
    TILE: tl.constexpr = config.tile
    T, d = sizes.T, sizes.d_qk
    c = other * TILE + tl.arange(0, TILE)
    s = products(x, y, place, c, sizes, config)
    acc *= tl.exp2(load_vector(totals, place.bh * tl.cdiv(T, TILE) + other, place.i, d))[None, :]
    z_tile = load_matrix(weighted, place.bh, c, place.i, T, d)
    # [tile, tile] @ [tile, block] -> [tile, block]
    return tl.dot(s.to(z_tile.dtype), z_tile, acc, input_precision=config.precision)


@triton.jit
def gradients_within(inputs, scale, place, sizes, config: tl.constexpr):
    """Return what steps of the tile itself add to dq and dk, and `pair_gradients`' sums for dg, [tile, block]."""
    TILE: tl.constexpr = config.tile
    T, d = sizes.T, sizes.d_qk
    r = tl.arange(0, TILE)
    log2 = load_gates(inputs.g, place.b, place.h, place.t, place.i, T, d)
    until, _ = sums_of_segments(log2, TILE)
    q_tile = load_rows(inputs.q, place.b, place.h, place.t, place.i, T, d)
    k_tile = load_rows(inputs.k, place.b, place.h, place.t, place.i, T, d)
    ds = products(inputs.do, inputs.v, place, place.t, sizes, config) * scale
    own = tl.sum(tl.where(r[:, None] == r[None, :], ds, 0.0), 1)[:, None]
    ds = tl.where(r[:, None] > r[None, :], ds, 0.0)
    dq, dk, pairs = pair_gradients(ds, q_tile, k_tile, log2, until, config)
    return dq + own * k_tile.to(tl.float32), dk + own * q_tile.to(tl.float32), pairs


@triton.jit
def store_gate_sums(
    pairs, from_before, from_after, weighted_q, weighted_k, written, place, sizes, config: tl.constexpr
):
    """Write dg, ending and beginning of `Written`.

    Pairs of tiles are summed from the rounded q and k that their products are made of: what one tile adds for a pair
    and another takes away cancels to float32.

    Args:
        pairs: of `gradients_within`.
        from_before, from_after: [tile, block], sums over steps of other tiles, without the decays of this one.
    """
    T, d = sizes.T, sizes.d_qk
    ending = load_matrix(weighted_q, place.bh, place.t, place.i, T, d).to(tl.float32) * from_before
    beginning = load_matrix(weighted_k, place.bh, place.t, place.i, T, d).to(tl.float32) * from_after
    later = tl.cumsum(pairs + ending, 0, reverse=True)
    earlier = tl.cumsum(beginning, 0) - beginning
    store_matrix(written.dg, later + earlier, place.bh, place.t, place.i, T, d)
    at = (place.bh.to(tl.int64) * tl.cdiv(T, config.tile) + place.tile) * d + place.i
    tl.store(written.ending + at, tl.sum(ending, 0), mask=place.i < d)
    tl.store(written.beginning + at, tl.sum(beginning, 0), mask=place.i < d)


@triton.jit
def tile_gradients(inputs, weighted_q, weighted_k, totals, states, written, scale, sizes, config: tl.constexpr):
    """Write `Written` of one tile of steps and one block of channels of one head."""
    TILE: tl.constexpr = config.tile
    BLOCK: tl.constexpr = config.block
    T, d = sizes.T, sizes.d_qk
    place = place_of_program(sizes, config)
    if inputs.q.steps is not None:  # noqa: SIM102  a constant decides alone
        if tl.load(inputs.q.steps + place.tile * TILE) < 0:  # places without a step
            return
    # The tile itself comes first: its halves take many registers, which the loops behind it do not.
    dq, dk, pairs = gradients_within(inputs, scale, place, sizes, config)

    from_before = tl.zeros([TILE, BLOCK], tl.float32)
    if (place.chunk != 0) | config.first:
        from_before = add_state(from_before, inputs.do, states.before, place, sizes, config)
    for other in range(place.first, place.tile):
        from_before = add_tile(from_before, inputs.do, inputs.v, weighted_k, totals, other, place, sizes, config)

    from_after = tl.zeros([TILE, BLOCK], tl.float32)
    if (place.chunk != place.chunks - 1) | config.last:
        from_after = add_state(from_after, inputs.v, states.after, place, sizes, config)
    for j in range(place.end - 1 - place.tile):
        other = place.end - 1 - j
        from_after = add_tile(from_after, inputs.v, inputs.do, weighted_q, totals, other, place, sizes, config)

    log2 = load_gates(inputs.g, place.b, place.h, place.t, place.i, T, d)
    until, after = sums_of_segments(log2, TILE)
    store_rows(written.dq, from_before * (tl.exp2(until) * scale) + dq, place.b, place.h, place.t, place.i, T, d)
    store_rows(written.dk, from_after * tl.exp2(after) + dk, place.b, place.h, place.t, place.i, T, d)
    if config.gates:
        store_gate_sums(pairs, from_before, from_after, weighted_q, weighted_k, written, place, sizes, config)


@triton.jit(do_not_specialize=["heads"])
def add_passing(g, dg_within, passing, dg, heads, T, d, config: tl.constexpr):
    """Write dg, `rows.Rows`, of one tile of steps: what `tile_gradients` has, and what passes the tile.

    A closed gate has the gradient 0, as its decay has.

    Args:
        g: `rows.Rows`.
        dg_within: (B * H, T, d); passing: (B * H, tiles, d); float32.
    """
    TILE: tl.constexpr = config.tile
    BLOCK: tl.constexpr = config.block
    tiles, blocks = tl.cdiv(T, TILE), tl.cdiv(d, BLOCK)
    i = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    tile, bh = tl.program_id(0) // blocks % tiles, tl.program_id(0) // blocks // tiles
    b, h = bh // heads, bh % heads
    t = tile * TILE + tl.arange(0, TILE)
    total = load_matrix(dg_within, bh, t, i, T, d) + load_vector(passing, bh * tiles + tile, i, d)[None, :]
    closed = load_gates(g, b, h, t, i, T, d) <= CLOSED
    store_rows(dg, tl.where(closed, 0.0, total), b, h, t, i, T, d)


# --- On the host ------------------------------------------------------------------------------------------------------


class DecaySums(NamedTuple):
    """Name what `Written` has for dg: (B * H, T, d_qk), and (B * H, tiles, d_qk) twice, float32."""

    within: Tensor
    ending: Tensor
    beginning: Tensor


def gradients_of_inputs(
    call: GlaCall,
    inputs: tuple[Tensor, ...],
    weighted: Weighted,
    states: StatePair,
    edges: tuple[bool, bool],
    *,
    gates: bool,
) -> tuple[Tensor, Tensor, DecaySums | None]:
    """Return dq and dk like q and k and, with `gates`, the sums for dg.

    Args:
        edges: whether the first chunk has a state before it, and the last a gradient after it.
    """
    plan, blocks = call.plan, call.plan.blocks
    dq, dk = map(empty_rows, inputs[:2])
    heads, d = plan.batch * plan.heads, plan.d_qk
    sums = None
    if gates:
        sums = DecaySums(*(dq.new_empty((heads, n, d), dtype=torch.float32) for n in (plan.T, plan.tiles, plan.tiles)))
    enqueue(
        tile_gradients, heads * plan.tiles * cdiv(d, blocks.block),
        GradientInputs(*map(call.rows, inputs)), weighted.q, weighted.k, weighted.totals, states,
        Written(call.rows(dq), call.rows(dk), *(sums or (None, None, None))), call.scale,
        OutputSizes(plan.heads, plan.T, d, plan.d_hv, plan.chunk_tiles),
        config=_config(call, edges, gates=gates),
        num_warps=8, num_stages=GRADIENT_STAGES if dq.element_size() == 2 else 1,
    )  # fmt: skip
    return dq, dk, sums


def gradients_of_decays(call: GlaCall, g: Tensor, sums: DecaySums, crossing: Tensor) -> Tensor:
    """Return dg in the dtype of g, of their sums, and what crosses the start of each chunk."""
    plan = call.plan
    dg = empty_rows(g)
    enqueue(
        add_passing, plan.batch * plan.heads * plan.tiles * cdiv(plan.d_qk, plan.blocks.block),
        call.rows(g), sums.within, _passing(plan, crossing, sums.ending, sums.beginning), call.rows(dg),
        plan.heads, plan.T, plan.d_qk,
        config=_config(call, (False, False), gates=True), num_warps=4,
    )  # fmt: skip
    return dg


def _config(call: GlaCall, edges: tuple[bool, bool], *, gates: bool) -> GradientsConfig:
    plan, blocks = call.plan, call.plan.blocks
    return GradientsConfig(
        *edges, gates, plan.levels, plan.reach, call.precision, blocks.tile, blocks.block, blocks.hidden
    )


def _passing(plan: GlaPlan, crossing: Tensor, ending: Tensor, beginning: Tensor) -> Tensor:
    """Return what passes each tile, (B * H, tiles, d_qk)."""
    missing = -plan.tiles % plan.chunk_tiles
    chunks = (plan.batch * plan.heads, plan.chunks, plan.chunk_tiles, plan.d_qk)
    ending, beginning = (pad(x, (0, 0, 0, missing)).view(chunks) for x in (ending, beginning))
    gained = (beginning - ending).cumsum(2) - beginning  # up to the tile's start, less what ends in the tile itself
    return (crossing.view(*chunks[:2], 1, -1) + gained).flatten(1, 2)[:, : plan.tiles].contiguous()
