"""The scalar gates of a linear RNN, before and after the kernels that read q, k and v. Shared by every implementation.

Before: `log_gates` turns any `Gate` into two log gates a step. Where the input gate is unbounded it takes them relative
to the running maximum m_t = max(log f_t + m_{t-1}, log i_t), a (max, +) scan over gates alone, so no later kernel needs
an online maximum: all its log gates are <= 0 and every weight exp(...) is finite. `tile_gates` sums them within tiles.

The weight of step j in step i > j is exp(log f_{j+1} + ... + log f_i + log i_j). Across tiles it is the product of
three factors, exp(prefix within i's tile), exp(sums of whole tiles between) and exp(suffix within j's tile + log i_j):
only non-positive numbers are ever added: nothing cancels, and -inf is safe. In a tile it is exp(b_i - b_j + log i_j).

After: `gate_gradients` turns row sums q.dq and k.dk into gradients of the pre-activations (formulas: TFLA paper, B.3).

Everything here is float32, except that gradients come back in the dtype of the gates.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tflabench.kernels.cover import cdiv, next_power_of_2
from tflabench.kernels.launching import enqueue

from .types import Gate

BLOCK = 1024  # steps of one program
BLOCK_BEFORE = 512  # of one that makes log gates; with 2 warps for a scan over pairs, what measured best on the H200
CUT = tl.constexpr(-104.0)  # exp of anything less is 0 in float32: a forget gate below it separates two documents
# A gradient through less than exp(-16) is lost in the rounding of its summands: it is 0.
FORGOTTEN = tl.constexpr(-16.0)
GRID = tl.constexpr(1 / 64)  # over 2048 steps multiples of it, none beyond CUT, add up without rounding
SMALL_STEP = tl.constexpr(-15.0)  # softplus(x) is exp(x) in float32 below it
LOG2_E = tl.constexpr(1.4426950408889634)
SMALLEST = tl.constexpr(-160.0)  # log2 of a forget gate that is 0 to `Exponents`
M_FLOOR = tl.constexpr(-1e30)  # m where nothing was ever written: finite, as the reference has it


class LogGates(NamedTuple):
    """Log gates of every step, (B, H, T) float32 contiguous.

    Attributes:
        log_f, log_i: forget and input gate; relative to m where the gate is stabilised, and then both are <= 0.
        m: running maximum, None where the gate is not stabilised.
    """

    log_f: Tensor
    log_i: Tensor
    m: Tensor | None


class Exponents(NamedTuple):
    """Base-2 exponents, float32; x and y (B, H, tiles * 64) with steps beyond T weightless, g (B, H, tiles).

    See `hopper.exponents`, which makes them.
    """

    x: Tensor
    y: Tensor
    g: Tensor


class RowSums(NamedTuple):
    """Row sums q_t.dq_t or k_t.dk_t, float32, of what is not rounded yet. Parts are added up.

    Attributes:
        every: (parts, B, H, T).
        within: (parts, B, H, T), what of them comes from steps of the same chunk.
    """

    every: Tensor
    within: Tensor


class TileGates(NamedTuple):
    """Log gates summed within tiles of `tile` steps; (B, H, tiles * tile) with steps beyond T neutral, float32.

    Attributes:
        prefix: sum of log f from the tile's first step to this one; -inf behind a document boundary.
        a: sum of log f over the tile's later steps, plus this step's log i.
        b, b_rest: prefix with boundaries counted as 0, so that b_i - b_j is finite; valid where segments agree. In two
            numbers, b a multiple of GRID without any rounding: what of b_i - b_j is small is not lost in a large b.
        segment: number of boundaries from the tile's first step to this one, int32.
        log_i_rest: log input gate less b_rest, so that the exponent is (b_i - b_j) + b_rest_i + log_i_rest_j.
        g: sum of log f over the tile, (B, H, tiles).
        tile: steps in a tile.
    """

    prefix: Tensor
    a: Tensor
    b: Tensor
    b_rest: Tensor
    segment: Tensor
    log_i_rest: Tensor
    g: Tensor
    tile: int


@triton.jit
def _log_sigmoid(x):
    e = tl.exp(-tl.abs(x))
    log1p = tl.where(e < 0.02, e * (1.0 - e * (0.5 - e * (0.3333333333 - e * 0.25))), tl.log(1.0 + e))
    return tl.minimum(x, 0.0) - log1p


@triton.jit
def _step_size(x, INPUT: tl.constexpr):
    """What an input gate of the kind "step" or "softplus" makes of its pre-activation."""
    if INPUT == "softplus":
        x = -_log_sigmoid(-x)
    return x


@triton.jit
def load_log_gates(
    f, f_b, f_h, f_t, i, i_b, i_h, i_t, b, h, t, mask,
    FORGET: tl.constexpr, INPUT: tl.constexpr, TEMPERATURE: tl.constexpr,
):  # fmt: skip
    """Log gates of steps t, neutral (log f = 0, log i = -inf) outside the mask."""
    log_f = tl.load(f + b * f_b + h * f_h + t * f_t, mask=mask, other=0.0).to(tl.float32)
    if FORGET == "sigmoid":
        log_f = _log_sigmoid(log_f)
        if TEMPERATURE != 1.0:
            log_f *= 1.0 / TEMPERATURE
    if INPUT == "none":
        log_i = tl.zeros_like(log_f)
    else:
        x = tl.load(i + b * i_b + h * i_h + t * i_t, mask=mask, other=1.0).to(tl.float32)
        log_i = x
        if INPUT == "sigmoid":
            log_i = _log_sigmoid(x)
        elif INPUT == "step" or INPUT == "softplus":
            step = _step_size(x, INPUT)
            log_i = tl.log(step)
            if INPUT == "softplus":
                log_i = tl.where(x < SMALL_STEP, x, log_i)
            if FORGET == "rate":
                log_f *= step
    return tl.where(mask, log_f, 0.0), tl.where(mask, log_i, float("-inf"))


@triton.jit
def _row_and_part(parts):
    """Which (batch, head), as int64, and which part of it this program is; on one grid axis, others end at 65,535."""
    return (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts


@triton.jit
def _max_plus(sum_left, max_left, sum_right, max_right):
    return sum_left + sum_right, tl.maximum(max_left + sum_right, max_right)


@triton.jit
def _store_exponents(
    log_f, log_i, x, y, g, log2_scale, row, block, tiles, BLOCK: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Of a block's steps, whose log gates are given, and log2 of what q is scaled by."""
    f = tl.reshape(log_f * LOG2_E, [BLOCK // TILE, TILE])
    i = tl.reshape(log_i * LOG2_E, [BLOCK // TILE, TILE])
    f = tl.where(f < SMALLEST, SMALLEST, f)  # not a maximum: NaN is to pass
    b = tl.cumsum(f, 1)
    tile = block * (BLOCK // TILE) + tl.arange(0, BLOCK // TILE)
    out = (row * tiles + tile[:, None]) * TILE + tl.arange(0, TILE)[None, :]
    valid = (tile < tiles)[:, None] & (out >= 0)
    tl.store(x + out, b + log2_scale, mask=valid)
    tl.store(y + out, i - b, mask=valid)
    tl.store(g + row * tiles + tile, tl.sum(f, 1), mask=tile < tiles)


@triton.jit(do_not_specialize=["heads", "blocks", "tiles"], do_not_specialize_on_alignment=["f_t", "i_t"])
def _activate(
    f, f_b, f_h, f_t, i, i_b, i_h, i_t, log_f, log_i, x_exponents, y_exponents, g_exponents, log2_scale,
    heads, T, blocks, tiles,
    FORGET: tl.constexpr, INPUT: tl.constexpr, TEMPERATURE: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        gdc_launch_dependents()
    row, block = _row_and_part(blocks)
    t = block * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    x, y = load_log_gates(
        f, f_b, f_h, f_t, i, i_b, i_h, i_t, row // heads, row % heads, t, t < T, FORGET, INPUT, TEMPERATURE
    )
    if TILE == 0:
        tl.store(log_f + row * T + t, x, mask=t < T)
        tl.store(log_i + row * T + t, y, mask=t < T)
    else:
        _store_exponents(x, y, x_exponents, y_exponents, g_exponents, log2_scale, row, block, tiles, BLOCK, TILE)


@triton.jit(do_not_specialize=["heads", "blocks"], do_not_specialize_on_alignment=["f_t", "i_t"])
def _summarise(
    f, f_b, f_h, f_t, i, i_b, i_h, i_t, block_g, block_m, heads, T, blocks,
    FORGET: tl.constexpr, INPUT: tl.constexpr, TEMPERATURE: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """The (max, +) map of a block: m after it = max(m before it + block_g, block_m)."""
    if OVERLAP:
        gdc_launch_dependents()
    row, block = _row_and_part(blocks)
    b, h = row // heads, row % heads
    start = block * BLOCK
    t = start + tl.arange(0, BLOCK).to(tl.int64)
    log_f, log_i = load_log_gates(f, f_b, f_h, f_t, i, i_b, i_h, i_t, b, h, t, t < T, FORGET, INPUT, TEMPERATURE)
    later = (t + 1 < T) & (t + 1 < start + BLOCK)
    next_f, _ = load_log_gates(f, f_b, f_h, f_t, i, i_b, i_h, i_t, b, h, t + 1, later, FORGET, INPUT, TEMPERATURE)
    out = row * blocks + block
    tl.store(block_g + out, tl.sum(log_f, 0))
    tl.store(block_m + out, tl.max(tl.cumsum(next_f, 0, reverse=True) + log_i, 0))


@triton.jit(do_not_specialize=["heads", "tiles"], do_not_specialize_on_alignment=["f_t", "i_t"])
def _stabilise(
    f, f_b, f_h, f_t, i, i_b, i_h, i_t, m_0, block_g, block_m, log_f, log_i, m,
    x_exponents, y_exponents, g_exponents, log2_scale, heads, T, blocks, tiles,
    FORGET: tl.constexpr, INPUT: tl.constexpr, TEMPERATURE: tl.constexpr, HAS_M_0: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, TILE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    row, block = _row_and_part(blocks)
    b, h = row // heads, row % heads
    start = block * BLOCK
    t = start + tl.arange(0, BLOCK).to(tl.int64)
    x, y = load_log_gates(f, f_b, f_h, f_t, i, i_b, i_h, i_t, b, h, t, t < T, FORGET, INPUT, TEMPERATURE)
    earlier = (t > start) & (t <= T)  # a scan over the step before gives m_{t-1}
    x_1, y_1 = load_log_gates(f, f_b, f_h, f_t, i, i_b, i_h, i_t, b, h, t - 1, earlier, FORGET, INPUT, TEMPERATURE)
    sums, maxima = tl.associative_scan((x_1, y_1), 0, _max_plus)
    if OVERLAP:
        if BLOCKS > 1:
            gdc_wait()  # for the maps of blocks: what is above needs none
        gdc_launch_dependents()
    m_before = 0.0
    if HAS_M_0:
        m_before = tl.load(m_0 + row)
    if BLOCKS > 1:
        # The maps of all blocks before this one, applied to m_0.
        before = tl.arange(0, BLOCKS)
        mask = before < block
        g = tl.load(block_g + row * blocks + before + 1, mask=before + 1 < block, other=0.0)
        later_g = tl.cumsum(g, 0, reverse=True)
        carried = tl.max(later_g + tl.load(block_m + row * blocks + before, mask=mask, other=float("-inf")), 0)
        all_g = tl.sum(tl.load(block_g + row * blocks + before, mask=mask, other=0.0), 0)
        m_before = tl.maximum(m_before + all_g, carried)
    kept = x + tl.maximum(sums + m_before, maxima)  # log f_t + m_{t-1}
    # Whichever wins the maximum is exactly 0 afterwards. Forgetting all and writing nothing stays -inf.
    forget = tl.where(kept >= y, 0.0, kept - y)
    take = tl.where(kept >= y, y - kept, 0.0)
    forget = tl.where(kept == float("-inf"), float("-inf"), forget)
    take = tl.where(y == float("-inf"), float("-inf"), take)
    m_t = tl.maximum(tl.maximum(kept, y), M_FLOOR)
    tl.store(log_f + row * T + t, forget, mask=t < T)
    if TILE == 0:
        tl.store(log_i + row * T + t, take, mask=t < T)
    tl.store(m + row * T + t, m_t, mask=t < T)
    if TILE:
        forget = tl.where(t < T, forget, 0.0)  # neutral, as what is loaded beyond T
        _store_exponents(
            forget, take, x_exponents, y_exponents, g_exponents, log2_scale, row, block, tiles, BLOCK, TILE
        )


@triton.jit(do_not_specialize=["tiles", "groups"])
def _sum_tiles(
    log_f, log_i, prefix, a, b, b_rest, segment, log_i_rest, g, T, tiles, groups,
    TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row, group = _row_and_part(groups)
    tile = group * TILES + tl.arange(0, TILES)
    inside = tl.arange(0, TILE)
    t = tile[:, None] * TILE + inside[None, :]
    x = tl.load(log_f + row * T + t, mask=t < T, other=0.0)
    next_x = tl.load(log_f + row * T + t + 1, mask=(t + 1 < T) & (inside[None, :] + 1 < TILE), other=0.0)
    y = tl.load(log_i + row * T + t, mask=t < T, other=float("-inf"))
    cut = x < CUT
    kept = tl.where(cut, 0.0, x)
    on_grid = tl.floor(kept / GRID + 0.5) * GRID
    b_t = tl.cumsum(on_grid, 1)
    b_rest_t = tl.cumsum(kept - on_grid, 1)
    segment_t = tl.cumsum(cut.to(tl.int32), 1)
    out = row * tiles * TILE + t
    valid = (tile < tiles)[:, None] & (t >= 0)
    tl.store(prefix + out, tl.where(segment_t == 0, b_t + b_rest_t, float("-inf")), mask=valid)
    tl.store(a + out, tl.cumsum(next_x, 1, reverse=True) + y, mask=valid)
    tl.store(b + out, b_t, mask=valid)
    tl.store(b_rest + out, b_rest_t, mask=valid)
    tl.store(segment + out, segment_t, mask=valid)
    tl.store(log_i_rest + out, y - b_rest_t, mask=valid)
    tl.store(g + row * tiles + tile, tl.sum(x, 1), mask=tile < tiles)


def log_gates(f: Tensor, i: Tensor | None, gate: Gate, shape: tuple[int, int, int], m_0: Tensor | None) -> LogGates:
    """Log gates of every step, in float32 (paper eqs. 1-9; the recurrent definition of m, solved by a parallel scan).

    Args:
        f: forget pre-activation (B, H, T), any strides; (H,) of a gate that is one number a head.
        i: input pre-activation (B, H, T), any strides; None where the gate has none.
        shape: (B, H, T).
        m_0: (B, H) stabiliser of the initial state; None is 0, as in `types.zero_state`.
    """
    log_f, log_i = (torch.empty(shape, dtype=torch.float32, device=f.device) for _ in range(2))
    return LogGates(log_f, log_i, _computed(f, i, gate, shape, m_0, log_f, log_i, None, 1.0))


def exponents(
    f: Tensor, i: Tensor | None, gate: Gate, shape: tuple[int, int, int], m_0: Tensor | None,
    made: Exponents, scale: float,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """Write `made`, for a q that is scaled by `scale` >= 0; log f relative to m, and m, where the gate is stabilised:
    (B, H, T) float32.

    On a GPU, which is to have compute capability 9.0, a kernel launched next as a dependent one may start before they
    are there, and must wait for them.

    Args: see `log_gates`.
    """
    log_f = torch.empty(shape, dtype=torch.float32, device=f.device) if gate.stabilized else None
    return log_f, _computed(f, i, gate, shape, m_0, log_f, None, made, scale)


def _computed(
    f: Tensor, i: Tensor | None, gate: Gate, shape: tuple[int, int, int], m_0: Tensor | None,
    log_f: Tensor | None, log_i: Tensor | None, made: Exponents | None, scale: float,
) -> Tensor | None:  # fmt: skip
    """m, if the gate is stabilised, beside what is written to the tensors given."""
    batch, heads, T = shape
    f, i = _expanded(f, i, shape)
    tiles, tile = 0, 0
    if made is not None:
        tiles = made.g.shape[-1]
        tile = made.x.shape[-1] // tiles
    overlap = made is not None and f.is_cuda
    block = min(BLOCK_BEFORE, max(16, tile, next_power_of_2(T)))
    blocks = cdiv(T, block)
    log2_scale = math.log2(scale) if scale > 0 else -math.inf
    programs = batch * heads * blocks
    inputs = (f, *f.stride(), i, *i.stride())
    outputs = (*(made or (None,) * 3), log2_scale, heads, T, blocks, tiles)
    branch = {
        "FORGET": gate.forget,
        "INPUT": gate.input,
        "TEMPERATURE": gate.temperature,
        "BLOCK": block,
        "OVERLAP": overlap,
        "num_warps": 2 if gate.stabilized else 4,
    }
    if not gate.stabilized:
        enqueue(_activate, programs, *inputs, log_f, log_i, *outputs, **branch, TILE=tile)
        return None
    m = torch.empty(shape, dtype=torch.float32, device=f.device)
    block_g = block_m = None
    if blocks > 1:
        block_g, block_m = torch.empty((2, batch * heads * blocks), dtype=torch.float32, device=f.device)
        enqueue(_summarise, programs, *inputs, block_g, block_m, heads, T, blocks, **branch)
    if m_0 is not None:
        m_0 = m_0.float().contiguous()
    enqueue(
        _stabilise, programs,
        *inputs, m_0, block_g, block_m, log_f, log_i, m, *outputs, **branch,
        HAS_M_0=m_0 is not None, BLOCKS=next_power_of_2(blocks), TILE=tile,
        **({"launch_pdl": True} if overlap and blocks > 1 else {}),
    )  # fmt: skip
    return m


def tile_gates(gates: LogGates, tile: int) -> TileGates:
    """Sums within tiles of `tile` steps (a power of two from 16); steps beyond T change nothing."""
    batch, heads, T = gates.log_f.shape
    tiles = cdiv(T, tile)
    empty = torch.empty((6, batch, heads, tiles * tile), dtype=torch.float32, device=gates.log_f.device)
    prefix, a, b, b_rest, segment, log_i_rest = empty
    g = torch.empty((batch, heads, tiles), dtype=torch.float32, device=gates.log_f.device)
    segment = segment.view(torch.int32)
    per_program = max(1, min(BLOCK // tile, next_power_of_2(tiles)))
    groups = cdiv(tiles, per_program)
    enqueue(
        _sum_tiles, batch * heads * groups,
        gates.log_f, gates.log_i, prefix, a, b, b_rest, segment, log_i_rest, g, T, tiles, groups,
        TILES=per_program, TILE=tile,
    )  # fmt: skip
    return TileGates(prefix, a, b, b_rest, segment, log_i_rest, g, tile)


@triton.jit
def load_parts(x, row, rows, t, mask, T, PARTS: tl.constexpr):
    """Sum over the parts of x (PARTS, rows, T)."""
    total = tl.zeros(t.shape, tl.float32)
    for part in range(PARTS):
        total += tl.load(x + (part * rows + row) * T + t, mask=mask, other=0.0)
    return total


@triton.jit
def _crossing_summands(
    qdq, q_within, kdk, k_within, row, rows, t, mask, T,
    Q_PARTS: tl.constexpr, K_PARTS: tl.constexpr, WITHIN_PARTS: tl.constexpr,
):  # fmt: skip
    """What is summed over the steps from t on, what over those before t, and k.dk."""
    q_within_t = load_parts(q_within, row, rows, t, mask, T, WITHIN_PARTS)
    k_within_t = load_parts(k_within, row, rows, t, mask, T, WITHIN_PARTS)
    kdk_t = load_parts(kdk, row, rows, t, mask, T, K_PARTS)
    qdq_t = load_parts(qdq, row, rows, t, mask, T, Q_PARTS)
    return (qdq_t - q_within_t) + (q_within_t - k_within_t), kdk_t - k_within_t, kdk_t


@triton.jit(do_not_specialize=["rows", "chunks", "blocks"])
def _sum_blocks(
    qdq, q_within, kdk, k_within, sum_from, sum_before, rows, T, chunk_size, chunks, blocks,
    Q_PARTS: tl.constexpr, K_PARTS: tl.constexpr, WITHIN_PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, part = _row_and_part(chunks * blocks)
    inside = part % blocks * BLOCK + tl.arange(0, BLOCK)
    t = part // blocks * chunk_size + inside
    mask = (inside < chunk_size) & (t < T)
    from_t, before_t, _ = _crossing_summands(
        qdq, q_within, kdk, k_within, row, rows, t, mask, T, Q_PARTS, K_PARTS, WITHIN_PARTS
    )
    tl.store(sum_from + row * chunks * blocks + part, tl.sum(from_t, 0))
    tl.store(sum_before + row * chunks * blocks + part, tl.sum(before_t, 0))


@triton.jit(
    do_not_specialize=["rows", "heads", "chunks", "groups", "blocks"], do_not_specialize_on_alignment=["f_t", "i_t"]
)
def _gate_gradients(
    f, f_b, f_h, f_t, i, i_b, i_h, i_t, qdq, q_within, kdk, k_within, log_f, through, sum_from, sum_before, df, di,
    rows, heads, T, chunk_size, chunks, groups, blocks,
    Q_PARTS: tl.constexpr, K_PARTS: tl.constexpr, WITHIN_PARTS: tl.constexpr,
    FORGET: tl.constexpr, INPUT: tl.constexpr, TEMPERATURE: tl.constexpr, GIVEN: tl.constexpr,
    CHUNKS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """A group of CHUNKS chunks, or of a long chunk one of its blocks."""
    row, part = _row_and_part(groups * blocks)
    b, h = row // heads, row % heads
    block = part % blocks
    chunk = part // blocks * CHUNKS + tl.arange(0, CHUNKS)
    inside = block * BLOCK + tl.arange(0, BLOCK)
    t = (chunk[:, None] * chunk_size + inside[None, :]).to(tl.int64)
    mask = (inside < chunk_size)[None, :] & (t < T)
    if GIVEN:
        log_f_t = tl.load(log_f + row * T + t, mask=mask, other=0.0)
    else:
        log_f_t, _ = load_log_gates(f, f_b, f_h, f_t, i, i_b, i_h, i_t, b, h, t, mask, FORGET, INPUT, TEMPERATURE)
    if OVERLAP:
        gdc_wait()
    from_t, before_t, kdk_t = _crossing_summands(
        qdq, q_within, kdk, k_within, row, rows, t, mask, T, Q_PARTS, K_PARTS, WITHIN_PARTS
    )
    dlog_f = tl.cumsum(from_t, 1, reverse=True) + (tl.cumsum(before_t, 1) - before_t)
    dlog_f += tl.load(through + row * chunks + chunk, mask=chunk < chunks, other=0.0)[:, None]
    if BLOCKS > 1:
        other = tl.arange(0, BLOCKS)
        at = row * chunks * blocks + part // blocks * blocks + other
        dlog_f += tl.sum(tl.load(sum_from + at, mask=(other > block) & (other < blocks), other=0.0), 0)
        dlog_f += tl.sum(tl.load(sum_before + at, mask=other < block, other=0.0), 0)
    dlog_f = tl.where(log_f_t < FORGOTTEN, 0.0, dlog_f)
    df_t = dlog_f
    if FORGET == "sigmoid":
        x = tl.load(f + b * f_b + h * f_h + t * f_t, mask=mask, other=0.0).to(tl.float32)
        df_t *= tl.sigmoid(-x)
        if TEMPERATURE != 1.0:
            df_t *= 1.0 / TEMPERATURE
    if INPUT != "none":
        x = tl.load(i + b * i_b + h * i_h + t * i_t, mask=mask, other=1.0).to(tl.float32)
        if INPUT == "sigmoid":
            kdk_t *= tl.sigmoid(-x)
        elif INPUT == "step":
            kdk_t = tl.where(x > 0.0, kdk_t / x, 0.0)
        elif INPUT == "softplus":
            kdk_t *= tl.where(x < SMALL_STEP, 1.0, tl.sigmoid(x) / _step_size(x, INPUT))
        if FORGET == "rate":
            df_t = dlog_f * _step_size(x, INPUT)
            d_step = dlog_f * tl.load(f + b * f_b + h * f_h).to(tl.float32)
            if INPUT == "softplus":
                d_step *= tl.sigmoid(x)
            kdk_t += d_step
        tl.store(di + row * T + t, kdk_t.to(di.dtype.element_ty), mask=mask)
    if FORGET == "fixed" or FORGET == "rate":
        tl.store(df + row * groups * blocks + part, tl.sum(tl.sum(tl.where(mask, df_t, 0.0), 1), 0))
    else:
        tl.store(df + row * T + t, df_t.to(df.dtype.element_ty), mask=mask)


def gate_gradients(
    f: Tensor,
    i: Tensor | None,
    gate: Gate,
    log_f: Tensor | None,
    qdq: RowSums,
    kdk: RowSums,
    through: Tensor,
    chunk_size: int,
    *,
    overlap: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the pre-activations from row sums: d log f_t = sum of q.dq - k.dk from t on, d log i_t = k_t.dk_t.

    The first (TFLA paper, B.3) is in exact arithmetic the sum, over all pairs j < t <= i, of what step j gives step i;
    computed as it stands it cancels, down to what its summands were rounded by. Here pairs are told apart by the chunk
    of t: those around it (`through`), from it to later steps (k.dk through the state, before t), from earlier steps to
    it (q.dq through the state, from t on), and those within it: q.dq - k.dk without the state from t on, of numbers
    that the kernels round alike, so that it cancels exactly.

    Where next to nothing passes a forget gate (a document boundary) its own gradient is 0.

    Args:
        f, i, gate: as given to `log_gates`.
        log_f: as that returned it; of a gate that is not stabilised it is worked out again if None.
        qdq, kdk: q_t.dq_t and k_t.dk_t.
        through: (B, H, chunks) float32, exp(g) (sum(C * dC) + sum(n * dn)) with the state before a chunk, the state's
            gradient after it and its log gate g.
        overlap: chunks of at most BLOCK steps; the kernel may start while the one before it runs (`overlapping`).

    Returns:
        df like f (one number a head is summed over batch and time, a block of steps in the kernel), di like i or None.
    """
    batch, heads, T = shape = (qdq.every.shape[1], qdq.every.shape[2], qdq.every.shape[3])
    f_all, i_all = _expanded(f, i, shape)
    chunks = cdiv(T, chunk_size)
    block = min(BLOCK, next_power_of_2(min(chunk_size, max(T, 16))))
    blocks = cdiv(min(chunk_size, T), block)
    together = 1 if blocks > 1 else min(BLOCK // block, next_power_of_2(chunks))
    groups = cdiv(chunks, together)
    rows = batch * heads
    parts = {
        "Q_PARTS": qdq.every.shape[0],
        "K_PARTS": kdk.every.shape[0],
        "WITHIN_PARTS": qdq.within.shape[0],
        "BLOCK": block,
    }
    if gate.per_head:
        df = torch.empty((batch, heads, groups * blocks), dtype=torch.float32, device=f.device)
    else:
        df = torch.empty(shape, dtype=f.dtype, device=f.device)
    di = df if i is None else torch.empty(shape, dtype=i.dtype, device=f.device)
    sum_from = sum_before = None
    if blocks > 1:
        sum_from, sum_before = torch.empty((2, rows * chunks * blocks), dtype=torch.float32, device=f.device)
        enqueue(
            _sum_blocks, rows * chunks * blocks,
            *qdq, *kdk, sum_from, sum_before, rows, T, chunk_size, chunks, blocks, **parts,
        )  # fmt: skip
    enqueue(
        _gate_gradients, rows * groups * blocks,
        f_all, *f_all.stride(), i_all, *i_all.stride(), *qdq, *kdk, log_f, through, sum_from, sum_before, df, di,
        rows, heads, T, chunk_size, chunks, groups, blocks, **parts,
        FORGET=gate.forget, INPUT=gate.input, TEMPERATURE=gate.temperature, GIVEN=log_f is not None,
        CHUNKS=together, BLOCKS=next_power_of_2(blocks), **overlapping(f_all, overlap),
    )  # fmt: skip
    if gate.per_head:
        df = df.sum((0, 2)).to(f.dtype)
    return df, None if i is None else di


def overlapping(x: Tensor, overlap: bool = True) -> dict[str, bool]:
    """How to launch a kernel that may start while the one before it runs (programmatic dependent launch), on the GPU of
    x, if that is one; it is to have compute capability 9.0.
    """
    return {"OVERLAP": True, "launch_pdl": True} if overlap and x.is_cuda else {"OVERLAP": False}


def _expanded(f: Tensor, i: Tensor | None, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Both gates as (B, H, T) views; an absent input gate is replaced by f, which the kernels then do not read."""
    if f.dim() == 1:
        f = f[None, :, None].expand(shape)
    return f, f if i is None else i
