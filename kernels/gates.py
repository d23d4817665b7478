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

from typing import Literal, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .types import Gate

BLOCK = 1024  # steps of one program
CUT = tl.constexpr(-104.0)  # exp of anything less is 0 in float32: a forget gate below it separates two documents
FORGOTTEN = tl.constexpr(
    -16.0
)  # a gradient through less than exp(-16) is lost in the rounding of its summands: it is 0
SMALL_STEP = tl.constexpr(-15.0)  # softplus(x) is exp(x) in float32 below it
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


class TileGates(NamedTuple):
    """Log gates summed within tiles of `tile` steps; (B, H, tiles * tile) with steps beyond T neutral, float32.

    Attributes:
        prefix: sum of log f from the tile's first step to this one; -inf behind a document boundary.
        a: sum of log f over the tile's later steps, plus this step's log i.
        b: prefix with boundaries counted as 0, so that b_i - b_j is finite; valid where segments agree.
        segment: number of boundaries from the tile's first step to this one, int32.
        log_i: log input gate.
        g: sum of log f over the tile, (B, H, tiles).
        tile: steps in a tile.
    """

    prefix: Tensor
    a: Tensor
    b: Tensor
    segment: Tensor
    log_i: Tensor
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
def _activate(
    f, f_b, f_h, f_t, i, i_b, i_h, i_t, log_f, log_i, heads, T, blocks,
    FORGET: tl.constexpr, INPUT: tl.constexpr, TEMPERATURE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, block = _row_and_part(blocks)
    t = block * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    x, y = load_log_gates(
        f, f_b, f_h, f_t, i, i_b, i_h, i_t, row // heads, row % heads, t, t < T, FORGET, INPUT, TEMPERATURE
    )
    tl.store(log_f + row * T + t, x, mask=t < T)
    tl.store(log_i + row * T + t, y, mask=t < T)


@triton.jit
def _summarise(
    f, f_b, f_h, f_t, i, i_b, i_h, i_t, block_g, block_m, heads, T, blocks,
    FORGET: tl.constexpr, INPUT: tl.constexpr, TEMPERATURE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The (max, +) map of a block: m after it = max(m before it + block_g, block_m)."""
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


@triton.jit
def _stabilise(
    f, f_b, f_h, f_t, i, i_b, i_h, i_t, m_0, block_g, block_m, log_f, log_i, m, heads, T, blocks,
    FORGET: tl.constexpr, INPUT: tl.constexpr, TEMPERATURE: tl.constexpr, HAS_M_0: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    row, block = _row_and_part(blocks)
    b, h = row // heads, row % heads
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

    start = block * BLOCK
    t = start + tl.arange(0, BLOCK).to(tl.int64)
    x, y = load_log_gates(f, f_b, f_h, f_t, i, i_b, i_h, i_t, b, h, t, t < T, FORGET, INPUT, TEMPERATURE)
    earlier = (t > start) & (t <= T)  # a scan over the step before gives m_{t-1}
    x_1, y_1 = load_log_gates(f, f_b, f_h, f_t, i, i_b, i_h, i_t, b, h, t - 1, earlier, FORGET, INPUT, TEMPERATURE)
    sums, maxima = tl.associative_scan((x_1, y_1), 0, _max_plus)
    kept = x + tl.maximum(sums + m_before, maxima)  # log f_t + m_{t-1}
    # Whichever wins the maximum is exactly 0 afterwards. Forgetting all and writing nothing stays -inf.
    forget = tl.where(kept >= y, 0.0, kept - y)
    take = tl.where(kept >= y, y - kept, 0.0)
    tl.store(log_f + row * T + t, tl.where(kept == float("-inf"), float("-inf"), forget), mask=t < T)
    tl.store(log_i + row * T + t, tl.where(y == float("-inf"), float("-inf"), take), mask=t < T)
    tl.store(m + row * T + t, tl.maximum(tl.maximum(kept, y), M_FLOOR), mask=t < T)


@triton.jit
def _sum_tiles(
    log_f, log_i, prefix, a, b, segment, log_i_padded, g, T, tiles, groups, TILES: tl.constexpr, TILE: tl.constexpr
):
    row, group = _row_and_part(groups)
    tile = group * TILES + tl.arange(0, TILES)
    inside = tl.arange(0, TILE)
    t = tile[:, None] * TILE + inside[None, :]
    x = tl.load(log_f + row * T + t, mask=t < T, other=0.0)
    next_x = tl.load(log_f + row * T + t + 1, mask=(t + 1 < T) & (inside[None, :] + 1 < TILE), other=0.0)
    y = tl.load(log_i + row * T + t, mask=t < T, other=float("-inf"))
    cut = x < CUT
    b_t = tl.cumsum(tl.where(cut, 0.0, x), 1)
    segment_t = tl.cumsum(cut.to(tl.int32), 1)
    out = row * tiles * TILE + t
    valid = (tile < tiles)[:, None] & (t >= 0)
    tl.store(prefix + out, tl.where(segment_t == 0, b_t, float("-inf")), mask=valid)
    tl.store(a + out, tl.cumsum(next_x, 1, reverse=True) + y, mask=valid)
    tl.store(b + out, b_t, mask=valid)
    tl.store(segment + out, segment_t, mask=valid)
    tl.store(log_i_padded + out, y, mask=valid)
    tl.store(g + row * tiles + tile, tl.sum(x, 1), mask=tile < tiles)


def log_gates(f: Tensor, i: Tensor | None, gate: Gate, shape: tuple[int, int, int], m_0: Tensor | None) -> LogGates:
    """Log gates of every step, in float32 (paper eqs. 1-9; the recurrent definition of m, solved by a parallel scan).

    Args:
        f: forget pre-activation (B, H, T), any strides; (H,) of a gate that is one number a head.
        i: input pre-activation (B, H, T), any strides; None where the gate has none.
        shape: (B, H, T).
        m_0: (B, H) stabiliser of the initial state; None is 0, as in `types.zero_state`.
    """
    batch, heads, T = shape
    f, i = _expanded(f, i, shape)
    log_f, log_i = (torch.empty(shape, dtype=torch.float32, device=f.device) for _ in range(2))
    block = min(BLOCK, max(16, triton.next_power_of_2(T)))
    blocks = triton.cdiv(T, block)
    grid = (batch * heads * blocks,)
    inputs = (f, *f.stride(), i, *i.stride())
    branch = {"FORGET": gate.forget, "INPUT": gate.input, "TEMPERATURE": gate.temperature, "BLOCK": block}
    if not gate.stabilized:
        _activate[grid](*inputs, log_f, log_i, heads, T, blocks, **branch)
        return LogGates(log_f, log_i, None)
    m = torch.empty_like(log_f)
    block_g = block_m = None
    if blocks > 1:
        block_g, block_m = torch.empty((2, batch * heads * blocks), dtype=torch.float32, device=f.device)
        _summarise[grid](*inputs, block_g, block_m, heads, T, blocks, **branch)
    if m_0 is not None:
        m_0 = m_0.float().contiguous()
    _stabilise[grid](
        *inputs, m_0, block_g, block_m, log_f, log_i, m, heads, T, blocks, **branch,
        HAS_M_0=m_0 is not None, BLOCKS=triton.next_power_of_2(blocks),
    )  # fmt: skip
    return LogGates(log_f, log_i, m)


def tile_gates(gates: LogGates, tile: int) -> TileGates:
    """Sums within tiles of `tile` steps (a power of two from 16); steps beyond T change nothing."""
    batch, heads, T = gates.log_f.shape
    tiles = triton.cdiv(T, tile)
    empty = torch.empty((5, batch, heads, tiles * tile), dtype=torch.float32, device=gates.log_f.device)
    prefix, a, b, segment, log_i = empty
    g = torch.empty((batch, heads, tiles), dtype=torch.float32, device=gates.log_f.device)
    segment = segment.view(torch.int32)
    per_program = max(1, min(BLOCK // tile, triton.next_power_of_2(tiles)))
    groups = triton.cdiv(tiles, per_program)
    _sum_tiles[(batch * heads * groups,)](
        gates.log_f, gates.log_i, prefix, a, b, segment, log_i, g, T, tiles, groups, TILES=per_program, TILE=tile
    )
    return TileGates(prefix, a, b, segment, log_i, g, tile)


@triton.jit
def _add_unless_cut(cut_right, sum_right, cut_left, sum_left):
    """Sums running backward in time (right to left), started anew where the left part ends before a cut."""
    return cut_right | cut_left, tl.where(cut_left != 0, sum_left, sum_left + sum_right)


@triton.jit
def _load_row_dots(x, row, rows, t, mask, PARTS: tl.constexpr, T):
    total = tl.zeros(t.shape, tl.float32)
    for part in range(PARTS):
        total += tl.load(x + (part * rows + row) * T + t, mask=mask, other=0.0)
    return total


@triton.jit
def _scan_backward(qdq, kdk, log_f, row, rows, t, mask, T, Q_PARTS: tl.constexpr, K_PARTS: tl.constexpr):
    """Sums of q.dq - k.dk from each step to the block's end or the next cut; whether there was one; and k.dk itself."""
    kdk_t = _load_row_dots(kdk, row, rows, t, mask, K_PARTS, T)
    net = _load_row_dots(qdq, row, rows, t, mask, Q_PARTS, T) - kdk_t
    cut = tl.load(log_f + row * T + t + 1, mask=mask & (t + 1 < T), other=0.0) < FORGOTTEN
    cut, net = tl.associative_scan((cut.to(tl.int32), net), 0, _add_unless_cut, reverse=True)
    return cut, net, kdk_t


@triton.jit
def _sum_backward(
    qdq, kdk, log_f, block_cut, block_sum, rows, T, chunk_size, chunks, blocks,
    Q_PARTS: tl.constexpr, K_PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, part = _row_and_part(chunks * blocks)
    chunk, block = part // blocks, part % blocks
    inside = block * BLOCK + tl.arange(0, BLOCK)
    t = chunk * chunk_size + inside
    mask = (inside < chunk_size) & (t < T)
    cut, net, _ = _scan_backward(qdq, kdk, log_f, row, rows, t, mask, T, Q_PARTS, K_PARTS)
    out = row * chunks * blocks + part
    first = tl.arange(0, BLOCK) == 0
    tl.store(block_cut + out, tl.sum(tl.where(first, cut, 0), 0))
    tl.store(block_sum + out, tl.sum(tl.where(first, net, 0.0), 0))


@triton.jit
def _gate_gradients(
    f, f_b, f_h, f_t, i, i_b, i_h, i_t, qdq, kdk, log_f, start, boundary, block_cut, block_sum, df, di,
    rows, heads, T, chunk_size, chunks, blocks, Q_PARTS: tl.constexpr, K_PARTS: tl.constexpr,
    FORGET: tl.constexpr, INPUT: tl.constexpr, TEMPERATURE: tl.constexpr, START: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    row, part = _row_and_part(chunks * blocks)
    b, h = row // heads, row % heads
    chunk, block = part // blocks, part % blocks
    # What flows in from behind this block: the later blocks of the chunk, then what crosses the chunk's end.
    crossing_end = tl.load(boundary + row * chunks + chunk)
    carry = crossing_end
    if BLOCKS > 1:
        later = block + 1 + tl.arange(0, BLOCKS)
        base = row * chunks * blocks + chunk * blocks
        cuts = tl.load(block_cut + base + later - 1, mask=(later - 1 > block) & (later - 1 < blocks), other=0)
        reached = tl.cumsum(cuts, 0) == 0  # no boundary in the blocks between
        sums = tl.load(block_sum + base + later, mask=later < blocks, other=0.0)
        cut_after = tl.sum(tl.load(block_cut + base + later, mask=later < blocks, other=0), 0)
        carry = tl.where(cut_after == 0, carry, 0.0) + tl.sum(tl.where(reached, sums, 0.0), 0)
    inside = block * BLOCK + tl.arange(0, BLOCK)
    t = chunk * chunk_size + inside
    mask = (inside < chunk_size) & (t < T)
    cut, net, kdk_t = _scan_backward(qdq, kdk, log_f, row, rows, t, mask, T, Q_PARTS, K_PARTS)
    dlog_f = net + tl.where(cut == 0, carry, 0.0)
    # The sum walks away from the truth, one rounding error a step. At the chunk's first step the truth is what crosses
    # into the chunk: what the sum misses there is spread over the steps (unless a cut is in between).
    if BLOCKS > 1:
        every = tl.arange(0, BLOCKS)
        total = tl.sum(tl.load(block_sum + base + every, mask=every < blocks, other=0.0), 0)
        cuts_inside = tl.sum(tl.load(block_cut + base + every, mask=every < blocks, other=0), 0)
    else:
        first = tl.arange(0, BLOCK) == 0
        total = tl.sum(tl.where(first, net, 0.0), 0)
        cuts_inside = tl.sum(tl.where(first, cut, 0), 0)
    crossing_start = tl.load(boundary + row * chunks + chunk - 1, mask=chunk > 0, other=0.0)
    known = cuts_inside == 0
    if START == "given":
        crossing_start += tl.load(start + row, mask=chunk == 0, other=0.0)
    elif START == "unknown":
        known = known & (chunk > 0)
    missed = tl.where(known, crossing_start - crossing_end - total, 0.0)
    length = tl.minimum(chunk_size, T - chunk * chunk_size)
    dlog_f += missed * (length - inside).to(tl.float32) / length
    dlog_f = tl.where(tl.load(log_f + row * T + t, mask=mask, other=0.0) < FORGOTTEN, 0.0, dlog_f)
    t = t.to(tl.int64)
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
        tl.store(df + row * chunks * blocks + part, tl.sum(tl.where(mask, df_t, 0.0), 0))
    else:
        tl.store(df + row * T + t, df_t.to(df.dtype.element_ty), mask=mask)


def gate_gradients(
    f: Tensor,
    i: Tensor | None,
    gate: Gate,
    gates: LogGates,
    qdq: Tensor,
    kdk: Tensor,
    boundary: Tensor,
    chunk_size: int,
    start: Tensor | Literal[0] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the pre-activations from row sums: d log f_t = sum of (q.dq - k.dk) from t on, d log i_t = k_t.dk_t.

    The sum runs to the end of t's chunk and there adds what crosses it, sum(C * dC) + sum(n * dn) of the state
    at that point, so that rounding errors of far steps do not pile up; one chunk of T steps is the paper's sum. Within
    the chunk they do, up to what crosses its start, which is known as well: the difference is spread over the steps.
    Where next to nothing passes a forget gate (a document boundary) sums stop, and its own gradient is 0.

    Args:
        f, i, gate: as given to `log_gates`, whose result is `gates`.
        qdq, kdk: (parts, B, H, T) float32 row sums q_t.dq_t and k_t.dk_t, before rounding; parts are added up.
        boundary: (B, H, chunks) float32, what crosses the end of each chunk; at last: the state times its gradient.
        start: (B, H) float32, the same before the first step, the initial state times its gradient; 0 without an
            initial state; None where it is not known.

    Returns:
        df like f (one number a head is summed over batch and time, a block of steps in the kernel), di like i or None.
    """
    batch, heads, T = shape = (gates.log_f.shape[0], gates.log_f.shape[1], gates.log_f.shape[2])
    f_all, i_all = _expanded(f, i, shape)
    chunks = triton.cdiv(T, chunk_size)
    block = min(BLOCK, triton.next_power_of_2(min(chunk_size, max(T, 16))))
    blocks = triton.cdiv(min(chunk_size, T), block)
    rows = batch * heads
    grid = (rows * chunks * blocks,)
    parts = {"Q_PARTS": qdq.shape[0], "K_PARTS": kdk.shape[0], "BLOCK": block}
    if gate.per_head:
        df = torch.empty((batch, heads, chunks * blocks), dtype=torch.float32, device=f.device)
    else:
        df = torch.empty(shape, dtype=f.dtype, device=f.device)
    di = df if i is None else torch.empty(shape, dtype=i.dtype, device=f.device)
    block_sum = torch.empty(grid if blocks > 1 else (1,), dtype=torch.float32, device=f.device)
    block_cut = torch.empty_like(block_sum, dtype=torch.int32)
    if blocks > 1:
        _sum_backward[grid](qdq, kdk, gates.log_f, block_cut, block_sum, rows, T, chunk_size, chunks, blocks, **parts)
    _gate_gradients[grid](
        f_all, *f_all.stride(), i_all, *i_all.stride(), qdq, kdk, gates.log_f,
        start if isinstance(start, Tensor) else boundary, boundary, block_cut, block_sum, df, di,
        rows, heads, T, chunk_size, chunks, blocks, **parts,
        FORGET=gate.forget, INPUT=gate.input, TEMPERATURE=gate.temperature,
        START="unknown" if start is None else "given" if isinstance(start, Tensor) else "zero",
        BLOCKS=triton.next_power_of_2(blocks),
    )  # fmt: skip
    if gate.per_head:
        df = df.sum((0, 2)).to(f.dtype)
    return df, None if i is None else di


def _expanded(f: Tensor, i: Tensor | None, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Both gates as (B, H, T) views; an absent input gate is replaced by f, which the kernels then do not read."""
    if f.dim() == 1:
        f = f[None, :, None].expand(shape)
    return f, f if i is None else i
