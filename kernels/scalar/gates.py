"""Turn the scalar gates of a linear RNN into log gates, and gradients of these back. Every implementation does so here.

Forward: `log_gates` turns any `Gate` into two log gates a step. Where the input gate is unbounded they are relative to
the running maximum m_t = max(log f_t + m_{t-1}, log i_t), a (max, +) scan over gates alone, so no later kernel needs
an online maximum: all its log gates are <= 0 and every weight exp(...) is finite. `tile_gates` sums them within tiles.

The weight of step j in step i > j is exp(log f_{j+1} + ... + log f_i + log i_j). Across tiles it is the product of
three factors, exp(prefix within i's tile), exp(sums of whole tiles between) and exp(suffix within j's tile + log i_j):
only numbers <= 0 are ever added, so nothing cancels, and -inf is safe. In a tile it is exp(b_i - b_j + log i_j).

Backward: `gate_gradients` turns row sums q.dq and k.dk into gradients of the pre-activations (TFLA paper, B.3).

Everything here is float32, except that gradients come back in the dtype of the gates.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

import math
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
from tflabench.kernels.common.tensors import floats
from tflabench.kernels.types import Gate

BLOCK = 1024  # steps of one program
BLOCK_BEFORE = 512  # of one that makes log gates; with 2 warps for a scan over pairs, what measured best on sm_90
CUT = tl.constexpr(-104.0)  # exp of anything less is 0 in float32: a forget gate below it separates two documents
# A gradient through less than exp(-16) is lost in the rounding of its summands: it is 0.
FORGOTTEN = tl.constexpr(-16.0)
GRID = tl.constexpr(1 / 64)  # over 2048 steps multiples of it, none beyond CUT, add up without rounding
SMALL_STEP = tl.constexpr(-15.0)  # softplus(x) is exp(x) in float32 below it
LOG2_E = tl.constexpr(1.4426950408889634)
SMALLEST = tl.constexpr(-160.0)  # log2 of a forget gate that is 0 to `Exponents`
M_FLOOR = tl.constexpr(-1e30)  # m where nothing was ever written: finite, as the reference has it
# exp(-m) of a denominator, at least: it may underflow where n^T q is 0. So h is 0 there, not NaN, and gradients, which
# are divided by it too, do not overflow.
SMALLEST_DENOMINATOR = tl.constexpr(2.0**-100)


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
    """Base-2 exponents, float32: x and y (B, H, tiles * 64) with steps beyond T weightless, g (B, H, tiles).

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
    """

    prefix: Tensor
    a: Tensor
    b: Tensor
    b_rest: Tensor
    segment: Tensor
    log_i_rest: Tensor
    g: Tensor


class GradientSums(NamedTuple):
    """Name what gradients of gates are made of.

    Attributes:
        through: (B, H, chunks) float32, exp(g) (sum(C * dC) + sum(n * dn)) with the state before a chunk, the state's
            gradient after it and its log gate g.
    """

    qdq: RowSums
    kdk: RowSums
    through: Tensor
    chunk_size: int


# --- What kernels take ------------------------------------------------------------------------------------------------


class StridedGate(NamedTuple):
    """A gate's pre-activation (B, H, T), and its strides of batch and head; that of time is an argument of its own."""

    data: Any
    b: Any
    h: Any


class Before(NamedTuple):
    """Name what the stabiliser of a block of steps starts from, float32; None where absent.

    Attributes:
        m_0: (B, H), before the first step.
        block_g, block_m: (B, H, blocks), the (max, +) map of each block.
    """

    m_0: Any
    block_g: Any
    block_m: Any


class Made(NamedTuple):
    """Log gates (see `LogGates`) and `Exponents` that a kernel writes, None where it does not."""

    log_f: Any
    log_i: Any
    m: Any
    x: Any
    y: Any
    g: Any


class GradientTensors(NamedTuple):
    """Name what gradients of gates are read from and written to, None where absent.

    Attributes:
        sum_from, sum_before: (B, H, chunks, blocks) float32, sums of `crossing_summands` over the blocks of a chunk.
        df, di: (B, H, T); df of a gate that is one number a head (B, H, programs) float32.
    """

    qdq: Any
    q_within: Any
    kdk: Any
    k_within: Any
    log_f: Any = None
    through: Any = None
    sum_from: Any = None
    sum_before: Any = None
    df: Any = None
    di: Any = None


class Lengths(NamedTuple):
    """Steps of a sequence, and of a chunk."""

    T: int
    chunk_size: int


@dataclass(frozen=True, eq=False)
class ActivationConfig:
    """Tell how pre-activations become log gates, see `Gate`."""

    forget: str
    input: str
    temperature: float
    per_head: bool

    @classmethod
    @cache
    def of(cls, gate: Gate) -> ActivationConfig:
        """Return that of a gate."""
        return cls(gate.forget, gate.input, gate.temperature, gate.per_head)


@dataclass(frozen=True, eq=False)
class GateConfig:
    """Tell what the kernels that make log gates are compiled for.

    Attributes:
        tile: steps of a tile of exponents; 0 writes none, but log gates.
        initial: the stabiliser starts from m_0, not from 0.
    """

    activation: ActivationConfig
    block: int
    blocks: int = 1
    tile: int = 0
    overlap: bool = False
    initial: bool = False


@dataclass(frozen=True, eq=False)
class GradientConfig:
    """Tell what `_gate_gradients` is compiled for.

    Attributes:
        given: log f is read, not worked out again.
    """

    activation: ActivationConfig
    q_parts: int
    k_parts: int
    within_parts: int
    given: bool
    chunks: int
    block: int
    blocks: int
    overlap: bool


# --- Activations ------------------------------------------------------------------------------------------------------


@triton.jit
def _log_sigmoid(x):
    """Return log sigmoid(x)."""
    e = tl.exp(-tl.abs(x))
    log1p = tl.where(e < 0.02, e * (1.0 - e * (0.5 - e * (0.3333333333 - e * 0.25))), tl.log(1.0 + e))
    return tl.minimum(x, 0.0) - log1p


@triton.jit
def _step_size(x, INPUT: tl.constexpr):
    """Return the step size that an input gate "step" or "softplus" makes of its pre-activation."""
    if INPUT == "softplus":
        x = -_log_sigmoid(-x)
    return x


@triton.jit
def load_log_gates(f, f_t, i, i_t, b, h, t, mask, config: tl.constexpr):
    """Return log gates of steps t, neutral (log f = 0, log i = -inf) outside the mask; f_t, i_t: strides of time."""
    log_f = tl.load(f.data + b * f.b + h * f.h + t * f_t, mask=mask, other=0.0).to(tl.float32)
    if config.forget == "sigmoid":
        log_f = _log_sigmoid(log_f)
        if config.temperature != 1.0:
            log_f *= 1.0 / config.temperature
    if config.input == "none":
        log_i = tl.zeros_like(log_f)
    else:
        x = tl.load(i.data + b * i.b + h * i.h + t * i_t, mask=mask, other=1.0).to(tl.float32)
        log_i = x
        if config.input == "sigmoid":
            log_i = _log_sigmoid(x)
        elif config.input == "step" or config.input == "softplus":
            INPUT: tl.constexpr = config.input
            step = _step_size(x, INPUT)
            log_i = tl.log(step)
            if config.input == "softplus":
                log_i = tl.where(x < SMALL_STEP, x, log_i)
            if config.forget == "rate":
                log_f *= step
    return tl.where(mask, log_f, 0.0), tl.where(mask, log_i, float("-inf"))


@triton.jit
def _row_and_part(parts):
    """Return this program's (batch, head), as int64, and part of it, from one grid axis: others end at 65,535."""
    return (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts


@triton.jit
def _max_plus(sum_left, max_left, sum_right, max_right):
    """Join two maps m -> max(m + sum, max), the left one first."""
    return sum_left + sum_right, tl.maximum(max_left + sum_right, max_right)


@triton.jit
def _store_exponents(log_f, log_i, made, log2_scale, row, block, tiles, config: tl.constexpr):
    """Write the exponents of a block's steps.

    Args:
        log_f, log_i: (block,).
        log2_scale: log2 of the factor of q.
    """
    BLOCK: tl.constexpr = config.block
    TILE: tl.constexpr = config.tile
    f = tl.reshape(log_f * LOG2_E, [BLOCK // TILE, TILE])
    i = tl.reshape(log_i * LOG2_E, [BLOCK // TILE, TILE])
    f = tl.where(f < SMALLEST, SMALLEST, f)  # not a maximum: NaN is to pass
    b = tl.cumsum(f, 1)
    tile = block * (BLOCK // TILE) + tl.arange(0, BLOCK // TILE)
    out = (row * tiles + tile[:, None]) * TILE + tl.arange(0, TILE)[None, :]
    valid = (tile < tiles)[:, None] & (out >= 0)
    tl.store(made.x + out, b + log2_scale, mask=valid)
    tl.store(made.y + out, i - b, mask=valid)
    tl.store(made.g + row * tiles + tile, tl.sum(f, 1), mask=tile < tiles)


@triton.jit(do_not_specialize=["heads", "blocks", "tiles"], do_not_specialize_on_alignment=["f_t", "i_t"])
def _activate(f, f_t, i, i_t, made, log2_scale, heads, T, blocks, tiles, config: tl.constexpr):
    """Write the log gates, or the exponents, of a block of steps of a gate that is not stabilised."""
    if config.overlap:
        gdc_launch_dependents()
    BLOCK: tl.constexpr = config.block
    ACTIVATION: tl.constexpr = config.activation
    row, block = _row_and_part(blocks)
    t = block * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    x, y = load_log_gates(f, f_t, i, i_t, row // heads, row % heads, t, t < T, ACTIVATION)
    if config.tile == 0:
        tl.store(made.log_f + row * T + t, x, mask=t < T)
        tl.store(made.log_i + row * T + t, y, mask=t < T)
    else:
        _store_exponents(x, y, made, log2_scale, row, block, tiles, config)


@triton.jit(do_not_specialize=["heads", "blocks"], do_not_specialize_on_alignment=["f_t", "i_t"])
def _summarise(f, f_t, i, i_t, block_g, block_m, heads, T, blocks, config: tl.constexpr):
    """Write the (max, +) map of a block: m after it = max(m before it + block_g, block_m)."""
    if config.overlap:
        gdc_launch_dependents()
    BLOCK: tl.constexpr = config.block
    ACTIVATION: tl.constexpr = config.activation
    row, block = _row_and_part(blocks)
    b, h = row // heads, row % heads
    start = block * BLOCK
    t = start + tl.arange(0, BLOCK).to(tl.int64)
    log_f, log_i = load_log_gates(f, f_t, i, i_t, b, h, t, t < T, ACTIVATION)
    later = (t + 1 < T) & (t + 1 < start + BLOCK)
    next_f, _ = load_log_gates(f, f_t, i, i_t, b, h, t + 1, later, ACTIVATION)
    out = row * blocks + block
    tl.store(block_g + out, tl.sum(log_f, 0))
    tl.store(block_m + out, tl.max(tl.cumsum(next_f, 0, reverse=True) + log_i, 0))


@triton.jit
def _stabiliser_before(before, row, block, blocks, config: tl.constexpr):
    """Return m before a block: the maps of all blocks before it, applied to m_0."""
    BLOCKS: tl.constexpr = config.blocks
    m = 0.0
    if config.initial:
        m = tl.load(before.m_0 + row)
    if BLOCKS > 1:
        other = tl.arange(0, BLOCKS)
        mask = other < block
        at = row * blocks + other
        g = tl.load(before.block_g + at + 1, mask=other + 1 < block, other=0.0)
        later_g = tl.cumsum(g, 0, reverse=True)
        carried = tl.max(later_g + tl.load(before.block_m + at, mask=mask, other=float("-inf")), 0)
        all_g = tl.sum(tl.load(before.block_g + at, mask=mask, other=0.0), 0)
        m = tl.maximum(m + all_g, carried)
    return m


@triton.jit(do_not_specialize=["heads", "tiles"], do_not_specialize_on_alignment=["f_t", "i_t"])
def _stabilise(f, f_t, i, i_t, before, made, log2_scale, heads, T, blocks, tiles, config: tl.constexpr):
    """Write m of a block of steps, log f relative to it, and log i or the exponents."""
    BLOCK: tl.constexpr = config.block
    ACTIVATION: tl.constexpr = config.activation
    row, block = _row_and_part(blocks)
    b, h = row // heads, row % heads
    start = block * BLOCK
    t = start + tl.arange(0, BLOCK).to(tl.int64)
    x, y = load_log_gates(f, f_t, i, i_t, b, h, t, t < T, ACTIVATION)
    earlier = (t > start) & (t <= T)  # a scan over the step before gives m_{t-1}
    x_1, y_1 = load_log_gates(f, f_t, i, i_t, b, h, t - 1, earlier, ACTIVATION)
    sums, maxima = tl.associative_scan((x_1, y_1), 0, _max_plus)
    if config.overlap:
        if config.blocks > 1:
            gdc_wait()  # for the maps of blocks: what is above needs none
        gdc_launch_dependents()
    m_before = _stabiliser_before(before, row, block, blocks, config)
    kept = x + tl.maximum(sums + m_before, maxima)  # log f_t + m_{t-1}
    # Whichever wins the maximum is exactly 0 afterwards. Forgetting all and writing nothing stays -inf.
    forget = tl.where(kept >= y, 0.0, kept - y)
    take = tl.where(kept >= y, y - kept, 0.0)
    forget = tl.where(kept == float("-inf"), float("-inf"), forget)
    take = tl.where(y == float("-inf"), float("-inf"), take)
    m_t = tl.maximum(tl.maximum(kept, y), M_FLOOR)
    tl.store(made.log_f + row * T + t, forget, mask=t < T)
    if config.tile == 0:
        tl.store(made.log_i + row * T + t, take, mask=t < T)
    tl.store(made.m + row * T + t, m_t, mask=t < T)
    if config.tile != 0:
        forget = tl.where(t < T, forget, 0.0)  # neutral, as what is loaded beyond T
        _store_exponents(forget, take, made, log2_scale, row, block, tiles, config)


# --- Sums within tiles ------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["tiles", "groups"])
def _sum_tiles(log_f, log_i, sums, T, tiles, groups, TILES: tl.constexpr, TILE: tl.constexpr):
    """Write the `TileGates` of TILES tiles."""
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
    tl.store(sums.prefix + out, tl.where(segment_t == 0, b_t + b_rest_t, float("-inf")), mask=valid)
    tl.store(sums.a + out, tl.cumsum(next_x, 1, reverse=True) + y, mask=valid)
    tl.store(sums.b + out, b_t, mask=valid)
    tl.store(sums.b_rest + out, b_rest_t, mask=valid)
    tl.store(sums.segment + out, segment_t, mask=valid)
    tl.store(sums.log_i_rest + out, y - b_rest_t, mask=valid)
    tl.store(sums.g + row * tiles + tile, tl.sum(x, 1), mask=tile < tiles)


# --- Log gates on the host --------------------------------------------------------------------------------------------


def log_gates(f: Tensor, i: Tensor | None, gate: Gate, shape: tuple[int, int, int], m_0: Tensor | None) -> LogGates:
    """Return log gates of every step, float32 (paper eqs. 1-9; m by its recurrent definition, in a parallel scan).

    Args:
        f: forget pre-activation (B, H, T), any strides; (H,) for a gate that is one number a head.
        i: input pre-activation (B, H, T), any strides; None where the gate has none.
        m_0: (B, H) stabiliser of the initial state; None is 0, as in `types.zero_state`.
    """
    log_f, log_i = (torch.empty(shape, dtype=torch.float32, device=f.device) for _ in range(2))
    made = Made(log_f, log_i, _empty_stabiliser(f, gate, shape), None, None, None)
    _launch(*_expanded(f, i, shape), gate, m_0, made, 1.0)
    return LogGates(log_f, log_i, made.m)


def exponents(
    f: Tensor, i: Tensor | None, gate: Gate, shape: tuple[int, int, int], m_0: Tensor | None,
    made: Exponents, scale: float,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """Write `made`, for a q that is scaled by `scale` >= 0; the other arguments are as of `log_gates`.

    On a GPU, which is to have compute capability 9.0, a kernel launched next as a dependent one may start before they
    are there, and must wait for them.

    Returns:
        log f relative to m, and m, (B, H, T) float32; None where the gate is not stabilised.
    """
    log_f = torch.empty(shape, dtype=torch.float32, device=f.device) if gate.stabilized else None
    m = _empty_stabiliser(f, gate, shape)
    _launch(*_expanded(f, i, shape), gate, m_0, Made(log_f, None, m, *made), scale)
    return log_f, m


def _empty_stabiliser(f: Tensor, gate: Gate, shape: tuple[int, int, int]) -> Tensor | None:
    return torch.empty(shape, dtype=torch.float32, device=f.device) if gate.stabilized else None


# A launch costs the host less where the config is one that was made before.
_gate_config, _gradient_config = cache(GateConfig), cache(GradientConfig)


def _launch(f: Tensor, i: Tensor, gate: Gate, m_0: Tensor | None, made: Made, scale: float) -> None:
    """Launch the kernels that write `made` from f, i (B, H, T): two for a stabilised gate of a long sequence."""
    batch, heads, T = f.shape
    tiles, tile = 0, 0
    if made.g is not None:
        tiles = made.g.shape[-1]
        tile = made.x.shape[-1] // tiles
    block = min(BLOCK_BEFORE, max(16, tile, next_power_of_2(T)))
    blocks = cdiv(T, block)
    log2_scale = math.log2(scale) if scale > 0 else -math.inf
    programs = batch * heads * blocks
    activation = ActivationConfig.of(gate)
    overlap = made.g is not None and f.is_cuda
    inputs = (*_given(f), *_given(i))
    if not gate.stabilized:
        config = _gate_config(activation, block, tile=tile, overlap=overlap)
        enqueue(
            _activate, programs, *inputs, made, log2_scale, heads, T, blocks, tiles, config=config, num_warps=4
        )  # fmt: skip
        return
    block_g = block_m = None
    if blocks > 1:
        block_g, block_m = torch.empty((2, batch * heads * blocks), dtype=torch.float32, device=f.device)
        config = _gate_config(activation, block, overlap=overlap)
        enqueue(_summarise, programs, *inputs, block_g, block_m, heads, T, blocks, config=config, num_warps=2)
    m_0 = floats(m_0)
    config = _gate_config(activation, block, next_power_of_2(blocks), tile, overlap, initial=m_0 is not None)
    enqueue(
        _stabilise, programs,
        *inputs, Before(m_0, block_g, block_m), made, log2_scale, heads, T, blocks, tiles, config=config, num_warps=2,
        **({"launch_pdl": True} if overlap and blocks > 1 else {}),
    )  # fmt: skip


def _given(x: Tensor) -> tuple[StridedGate, int]:
    """Return what kernels take for a gate's pre-activation (B, H, T)."""
    b, h, t = x.stride()
    return StridedGate(x, b, h), t


def tile_gates(gates: LogGates, tile: int) -> TileGates:
    """Return sums within tiles of `tile` steps (a power of two from 16); steps beyond T change nothing."""
    batch, heads, T = gates.log_f.shape
    tiles = cdiv(T, tile)
    empty = torch.empty((6, batch, heads, tiles * tile), dtype=torch.float32, device=gates.log_f.device)
    prefix, a, b, b_rest, segment, log_i_rest = empty
    g = torch.empty((batch, heads, tiles), dtype=torch.float32, device=gates.log_f.device)
    segment = segment.view(torch.int32)
    per_program = max(1, min(BLOCK // tile, next_power_of_2(tiles)))
    groups = cdiv(tiles, per_program)
    sums = TileGates(prefix, a, b, b_rest, segment, log_i_rest, g)
    enqueue(
        _sum_tiles, batch * heads * groups,
        gates.log_f, gates.log_i, sums, T, tiles, groups, TILES=per_program, TILE=tile,
    )  # fmt: skip
    return sums


# --- Gradients --------------------------------------------------------------------------------------------------------


@triton.jit
def load_parts(x, row, rows, t, mask, T, PARTS: tl.constexpr):
    """Return the sum over the parts of x (PARTS, rows, T)."""
    total = tl.zeros(t.shape, tl.float32)
    for part in range(PARTS):
        total += tl.load(x + (part * rows + row) * T + t, mask=mask, other=0.0)
    return total


@triton.jit
def _crossing_summands(
    tensors, row, rows, t, mask, T, Q_PARTS: tl.constexpr, K_PARTS: tl.constexpr, WITHIN_PARTS: tl.constexpr
):  # fmt: skip
    """Return what is summed over the steps from t on, what over those before t, and k.dk."""
    q_within_t = load_parts(tensors.q_within, row, rows, t, mask, T, WITHIN_PARTS)
    k_within_t = load_parts(tensors.k_within, row, rows, t, mask, T, WITHIN_PARTS)
    kdk_t = load_parts(tensors.kdk, row, rows, t, mask, T, K_PARTS)
    qdq_t = load_parts(tensors.qdq, row, rows, t, mask, T, Q_PARTS)
    return (qdq_t - q_within_t) + (q_within_t - k_within_t), kdk_t - k_within_t, kdk_t


@triton.jit(do_not_specialize=["rows", "chunks", "blocks"])
def _sum_blocks(
    tensors, rows, T, chunk_size, chunks, blocks,
    Q_PARTS: tl.constexpr, K_PARTS: tl.constexpr, WITHIN_PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the sums of `_crossing_summands` over one block of a chunk."""
    row, part = _row_and_part(chunks * blocks)
    inside = part % blocks * BLOCK + tl.arange(0, BLOCK)
    t = part // blocks * chunk_size + inside
    mask = (inside < chunk_size) & (t < T)
    from_t, before_t, _ = _crossing_summands(tensors, row, rows, t, mask, T, Q_PARTS, K_PARTS, WITHIN_PARTS)
    tl.store(tensors.sum_from + row * chunks * blocks + part, tl.sum(from_t, 0))
    tl.store(tensors.sum_before + row * chunks * blocks + part, tl.sum(before_t, 0))


@triton.jit
def _sums_of_other_blocks(tensors, row, part, chunks, blocks, config: tl.constexpr):
    """Return what the other blocks of a chunk add to the gradients of log gates of this one."""
    BLOCKS: tl.constexpr = config.blocks
    block = part % blocks
    other = tl.arange(0, BLOCKS)
    at = row * chunks * blocks + part // blocks * blocks + other
    later = tl.sum(tl.load(tensors.sum_from + at, mask=(other > block) & (other < blocks), other=0.0), 0)
    earlier = tl.sum(tl.load(tensors.sum_before + at, mask=other < block, other=0.0), 0)
    return later, earlier


@triton.jit
def _through_activations(dlog_f, dlog_i, f, f_t, i, i_t, b, h, t, mask, config: tl.constexpr):
    """Return gradients of the pre-activations of f and i; for a gate that is one number a head, summands of that."""
    INPUT: tl.constexpr = config.input
    df = dlog_f
    if config.forget == "sigmoid":
        x = tl.load(f.data + b * f.b + h * f.h + t * f_t, mask=mask, other=0.0).to(tl.float32)
        df *= tl.sigmoid(-x)
        if config.temperature != 1.0:
            df *= 1.0 / config.temperature
    if config.input != "none":
        x = tl.load(i.data + b * i.b + h * i.h + t * i_t, mask=mask, other=1.0).to(tl.float32)
        if config.input == "sigmoid":
            dlog_i *= tl.sigmoid(-x)
        elif config.input == "step":
            dlog_i = tl.where(x > 0.0, dlog_i / x, 0.0)
        elif config.input == "softplus":
            dlog_i *= tl.where(x < SMALL_STEP, 1.0, tl.sigmoid(x) / _step_size(x, INPUT))
        if config.forget == "rate":
            df = dlog_f * _step_size(x, INPUT)
            d_step = dlog_f * tl.load(f.data + b * f.b + h * f.h).to(tl.float32)
            if config.input == "softplus":
                d_step *= tl.sigmoid(x)
            dlog_i += d_step
    return df, dlog_i


@triton.jit(
    do_not_specialize=["rows", "heads", "chunks", "groups", "blocks"], do_not_specialize_on_alignment=["f_t", "i_t"]
)
def _gate_gradients(
    f, f_t, i, i_t, tensors, rows, heads, lengths, chunks, groups, blocks, config: tl.constexpr
):  # fmt: skip
    """Write gradients of the gates of a group of config.chunks chunks, or of one block of a long chunk."""
    CHUNKS: tl.constexpr = config.chunks
    BLOCK: tl.constexpr = config.block
    ACTIVATION: tl.constexpr = config.activation
    Q_PARTS: tl.constexpr = config.q_parts
    K_PARTS: tl.constexpr = config.k_parts
    WITHIN_PARTS: tl.constexpr = config.within_parts
    T, chunk_size = lengths.T, lengths.chunk_size
    row, part = _row_and_part(groups * blocks)
    b, h = row // heads, row % heads
    block = part % blocks
    chunk = part // blocks * CHUNKS + tl.arange(0, CHUNKS)
    inside = block * BLOCK + tl.arange(0, BLOCK)
    t = (chunk[:, None] * chunk_size + inside[None, :]).to(tl.int64)
    mask = (inside < chunk_size)[None, :] & (t < T)
    if config.given:
        log_f_t = tl.load(tensors.log_f + row * T + t, mask=mask, other=0.0)
    else:
        log_f_t, _ = load_log_gates(f, f_t, i, i_t, b, h, t, mask, ACTIVATION)
    if config.overlap:
        gdc_wait()
    from_t, before_t, kdk_t = _crossing_summands(tensors, row, rows, t, mask, T, Q_PARTS, K_PARTS, WITHIN_PARTS)
    dlog_f = tl.cumsum(from_t, 1, reverse=True) + (tl.cumsum(before_t, 1) - before_t)
    dlog_f += tl.load(tensors.through + row * chunks + chunk, mask=chunk < chunks, other=0.0)[:, None]
    if config.blocks > 1:
        later, earlier = _sums_of_other_blocks(tensors, row, part, chunks, blocks, config)
        dlog_f += later
        dlog_f += earlier
    dlog_f = tl.where(log_f_t < FORGOTTEN, 0.0, dlog_f)
    df_t, di_t = _through_activations(dlog_f, kdk_t, f, f_t, i, i_t, b, h, t, mask, ACTIVATION)
    if ACTIVATION.input != "none":
        tl.store(tensors.di + row * T + t, di_t.to(tensors.di.dtype.element_ty), mask=mask)
    if ACTIVATION.per_head:
        tl.store(tensors.df + row * groups * blocks + part, tl.sum(tl.sum(tl.where(mask, df_t, 0.0), 1), 0))
    else:
        tl.store(tensors.df + row * T + t, df_t.to(tensors.df.dtype.element_ty), mask=mask)


def gate_gradients(
    f: Tensor, i: Tensor | None, gate: Gate, log_f: Tensor | None, sums: GradientSums, *, overlap: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return gradients of the pre-activations: d log f_t = sum of q.dq - k.dk from t on, d log i_t = k_t.dk_t.

    The first (TFLA paper, B.3) is in exact arithmetic the sum, over all pairs j < t <= i, of what step j gives step i;
    computed as it stands it cancels, down to what its summands were rounded by. Here pairs are told apart by the chunk
    of t: those around it (`sums.through`), from it to later steps (k.dk through the state, before t), from earlier
    steps to it (q.dq through the state, from t on), and those within it: q.dq - k.dk without the state from t on, of
    numbers that the kernels round alike, so that it cancels exactly.

    Where next to nothing passes a forget gate (a document boundary) its own gradient is 0.

    Args:
        log_f: as that returned it; None computes it again, for a gate that is not stabilised.
        overlap: chunks of at most BLOCK steps; the kernel may start while the one before it runs.

    Returns:
        df like f (one number a head is summed over batch and time, a block of steps in the kernel), di like i or None.
    """
    qdq, kdk, through, chunk_size = sums
    batch, heads, T = shape = (qdq.every.shape[1], qdq.every.shape[2], qdq.every.shape[3])
    f_all, i_all = _expanded(f, i, shape)
    chunks = cdiv(T, chunk_size)
    block = min(BLOCK, next_power_of_2(min(chunk_size, max(T, 16))))
    blocks = cdiv(min(chunk_size, T), block)
    together = 1 if blocks > 1 else min(BLOCK // block, next_power_of_2(chunks))
    groups = cdiv(chunks, together)
    rows = batch * heads
    parts = (qdq.every.shape[0], kdk.every.shape[0], qdq.within.shape[0])
    if gate.per_head:
        df = torch.empty((batch, heads, groups * blocks), dtype=torch.float32, device=f.device)
    else:
        df = f.new_empty(shape)
    di = df if i is None else i.new_empty(shape)
    sum_from = sum_before = None
    if blocks > 1:
        sum_from, sum_before = torch.empty((2, rows * chunks * blocks), dtype=torch.float32, device=f.device)
        tensors = GradientTensors(*qdq, *kdk, sum_from=sum_from, sum_before=sum_before)
        enqueue(
            _sum_blocks, rows * chunks * blocks, tensors, rows, T, chunk_size, chunks, blocks,
            **dict(zip(("Q_PARTS", "K_PARTS", "WITHIN_PARTS"), parts, strict=True)), BLOCK=block,
        )  # fmt: skip
    config = _gradient_config(
        ActivationConfig.of(gate), *parts, log_f is not None, together, block, next_power_of_2(blocks),
        overlap=overlap and f.is_cuda,
    )  # fmt: skip
    enqueue(
        _gate_gradients, rows * groups * blocks,
        *_given(f_all), *_given(i_all), GradientTensors(*qdq, *kdk, log_f, through, sum_from, sum_before, df, di),
        rows, heads, Lengths(T, chunk_size), chunks, groups, blocks,
        config=config, **({"launch_pdl": True} if config.overlap else {}),
    )  # fmt: skip
    if gate.per_head:
        df = df.sum((0, 2)).to(f.dtype)
    return df, None if i is None else di


def _expanded(f: Tensor, i: Tensor | None, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Return both gates as (B, H, T) views; for an absent input gate f stands in, which kernels do not read."""
    if f.dim() == 1:
        f = f[None, :, None].expand(shape)
    return f, f if i is None else i
