"""The parallel kernel: H, and with roles exchanged dQ, dK and dV (paper, Table 1).

All four are, for a tile of rows r of one chunk, with c the steps that r attends to (or that attend to r) in that chunk,

    out_r = sum_c W_rc (x_r . y_c) z_c + w_r x_r S

      out | x   y   z   S      c
      ----|---------------------------
      H   | Q   K   V   C      c <= r
      dQ  | dH  V   K   C^T    c <= r
      dK  | V   dH  Q   dC^T   c >= r
      dV  | K   Q   dH  dC     c >= r

with W the gates' weights, scale and, on the query's side, 1 / denominator; S is the state at the chunk's near edge.
Consecutive heads may share one head of Q and K. They read the same tiles; a program adds up dQ or dK of several,
as many as leave enough programs, and the rest is added up afterwards.

H may have a skip connection, skip v_t, as weights on the diagonal of W (Q K^T): so has dV; d skip sums dh_t . v_t.
Rows are parallel over tiles, columns of `out` over blocks; the loops run over c and over the dimension of x and y.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tflabench.kernels.cover import cdiv
from tflabench.kernels.gates import RowSums
from tflabench.kernels.launching import enqueue

from .config import Tiles
from .plan import Plan
from .tiles import matrices_argument, open_matrices, open_rows, rows_argument

SUMMING_WAVES = 8  # programs that add up heads last long: so many times those that run at once, or the last ones idle


@triton.jit
def _scores(
    x_tile, x_tiles, y_tiles, b, h, row, col, d_in,
    ROWS: tl.constexpr, COLS: tl.constexpr, IN: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x_r . y_c for a tile of rows and a tile of columns, (ROWS, COLS) float32."""
    if WHOLE:
        y = y_tiles.load([b, h, col, 0]).reshape(COLS, IN)
        s = tl.dot(x_tile, y.T, input_precision=PRECISION)
    else:
        s = tl.zeros([ROWS, COLS], tl.float32)
        for d in range(0, d_in, IN):
            x = x_tiles.load([b, h, row, d]).reshape(ROWS, IN)
            y = y_tiles.load([b, h, col, d]).reshape(COLS, IN)
            s = tl.dot(x, y.T, s, input_precision=PRECISION)
    return s


@triton.jit
def _rows_of_head(
    bh, row_tile, out_block, x_tiles, y_tiles, z_tiles, x_narrow, x_b, x_h, x_t, states, n_states,
    row_log, col_log, g, b_log, b_rest, segment, log_i_rest, m, inverse_denominator,
    probe, probe_b, probe_h, probe_t, row_dots,
    skip, skip_dots, scale, batch, heads, in_sharing, out_sharing, T, d_in, d_out, chunk_size,
    REVERSE: tl.constexpr, STATES: tl.constexpr, FIRST_STATE: tl.constexpr, NORMALIZE: tl.constexpr,
    STABILIZED: tl.constexpr, HAS_DENOMINATOR: tl.constexpr, ROW_DOTS: tl.constexpr, N_GRADIENT: tl.constexpr,
    SKIP: tl.constexpr, PRECISION: tl.constexpr, TMA: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    IN: tl.constexpr, NARROW: tl.constexpr, OUT: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """`parallel_outputs` of the head bh of all batches, (ROWS, OUT) float32, which writes all but `out` itself."""
    b, h, bh64 = bh // heads, bh % heads, bh.to(tl.int64)
    h_in, h_out = h // in_sharing, h // out_sharing
    row_tiles = tl.cdiv(T, ROWS)
    col_tiles = tl.cdiv(T, COLS)
    chunks = tl.cdiv(T, chunk_size)
    column = out_block * OUT
    row = row_tile * ROWS
    chunk = row // chunk_size
    r = tl.arange(0, ROWS)
    row_offset = bh64 * row_tiles * ROWS + row
    tile_offset = bh64 * col_tiles
    inside = row + r < T
    t_offset = bh64 * T + row

    # The tiles of columns of this chunk, from the diagonal outwards.
    lowest = chunk * chunk_size // COLS
    highest = tl.cdiv(tl.minimum((chunk + 1) * chunk_size, T), COLS)
    if REVERSE:
        first_tile = row // COLS
        count = highest - first_tile
        step = 1
    else:
        first_tile = tl.minimum((row + ROWS) // COLS, highest) - 1
        count = first_tile + 1 - lowest
        step = -1

    x_tile = x_tiles.load([b, h_in, row, 0]).reshape(ROWS, IN)
    b_row = tl.load(b_log + row_offset + r)
    segment_row = tl.load(segment + row_offset + r)
    # Where there are row sums, what a pair of steps weighs is made of tiles of COLS steps on either side, with the log
    # gates of those between in float64: so dQ and dK, each coming from its own end, multiply it by the same numbers.
    FINE: tl.constexpr = COLS if ROW_DOTS else ROWS
    if ROWS > FINE:
        row_log_t = tl.load(row_log + tile_offset * COLS + row + r, mask=inside, other=float("-inf"))
        row_far = tl.zeros([ROWS], tl.float64)  # from a row's tile to the edge of the tile of ROWS
        for u in tl.static_range(ROWS // COLS):
            g_inside = tl.load(g + tile_offset + row // COLS + u, mask=row + u * COLS < T, other=0.0)
            row_far += tl.where((r // COLS < u) if REVERSE else (r // COLS > u), g_inside.to(tl.float64), 0.0)
    else:
        row_log_t = tl.load(row_log + row_offset + r)
        row_far = tl.zeros([], tl.float64)
    row_weight = tl.exp(row_log_t)
    acc = tl.zeros([ROWS, OUT], tl.float32)
    norm = tl.zeros([ROWS], tl.float32)
    skip_dot = tl.zeros([ROWS], tl.float32)
    query_weight = tl.full([ROWS], 1.0, tl.float32) * scale
    if HAS_DENOMINATOR and not REVERSE:
        query_weight *= tl.load(inverse_denominator + t_offset + r, mask=inside, other=0.0)
    far = tl.zeros([], tl.float64)  # log gate of the tiles passed since the diagonal
    for j in range(count):
        tile = first_tile + step * j
        col = tile * COLS
        c = tl.arange(0, COLS)
        col_weight = tl.exp(tl.load(col_log + (tile_offset + tile) * COLS + c))
        g_tile = tl.load(g + tile_offset + tile)
        s = _scores(x_tile, x_tiles, y_tiles, b, h_in, row, col, d_in, ROWS, COLS, IN, WHOLE, PRECISION)
        if SKIP and ROW_DOTS:  # dh_t . v_t of the same step t
            skip_dot += tl.sum(tl.where((col - row + c)[None, :] == r[:, None], s, 0.0), 1)
        # The query's factor comes first, so that dQ and dK round the same numbers and q.dq - k.dk cancels as it should
        # (and Triton 3.6 cannot compile a product whose first use is in a branch).
        if REVERSE:
            col_query_weight = tl.full([COLS], 1.0, tl.float32) * scale
            if HAS_DENOMINATOR:
                col_query_weight *= tl.load(inverse_denominator + bh64 * T + col + c, mask=col + c < T, other=0.0)
            s *= col_query_weight[None, :]
        else:
            s *= query_weight[:, None]
        if (col >= row) & (col < row + ROWS):
            # On the diagonal the weight is exp(b_i - b_j + log i_j), for keys j <= i with no boundary in between.
            c_row = col - row + c
            b_col = tl.load(b_log + row_offset + c_row)
            together = segment_row[:, None] == tl.load(segment + row_offset + c_row)[None, :]
            if REVERSE:
                together &= c_row[None, :] >= r[:, None]
                exponent = b_col[None, :] - b_row[:, None] + tl.load(b_rest + row_offset + c_row)[None, :]
                exponent += tl.load(log_i_rest + row_offset + r)[:, None]
            else:
                together &= c_row[None, :] <= r[:, None]
                exponent = b_row[:, None] - b_col[None, :] + tl.load(b_rest + row_offset + r)[:, None]
                exponent += tl.load(log_i_rest + row_offset + c_row)[None, :]
            s *= tl.exp(tl.where(together, exponent, float("-inf")))
            if SKIP and not ROW_DOTS:  # what is added to H (and dV) of the same step's v (dH) is a weight like others
                s += tl.where(c_row[None, :] == r[:, None], tl.load(skip + h), 0.0)
        else:
            # Away from it, it is a product of a query's, a key's and that of the tiles between, in this order.
            between = tl.exp((far + row_far).to(tl.float32))
            if ROWS > FINE:
                between = between[:, None]
            if REVERSE:
                s *= (col_weight[None, :] * between) * row_weight[:, None]
            else:
                s *= (row_weight[:, None] * between) * col_weight[None, :]
            far += g_tile.to(tl.float64)
        if NORMALIZE:
            norm += tl.sum(s, 1)
        z_tile = z_tiles.load([b, h_out, col, column]).reshape(COLS, OUT)
        acc = tl.dot(s.to(z_tile.dtype), z_tile, acc, input_precision=PRECISION)

    if ROW_DOTS:
        probe_tiles = open_rows(probe, probe_b, probe_h, probe_t, batch, heads, T, d_out, ROWS, OUT, TMA)
        partner = probe_tiles.load([b, h_out, row, column]).reshape(ROWS, OUT)
        within = tl.sum(partner.to(tl.float32) * acc, 1)
        part = out_block.to(tl.int64) + tl.cdiv(d_out, OUT)
        tl.store(row_dots + part * batch * heads * T + t_offset + r, within, mask=inside)
    if STATES:
        edge = chunks - 1 if REVERSE else 0  # the chunk whose state is zero without an initial state
        if FIRST_STATE:
            edge = -1
        if chunk != edge:
            weight = row_weight * tl.exp((far + row_far).to(tl.float32))
            if not REVERSE:
                weight *= query_weight  # dC has it already
            state = bh * chunks + chunk
            if ROW_DOTS:
                state_tiles = open_matrices(states, batch * heads * chunks, d_out, d_in, OUT, NARROW, TMA)
            else:
                state_tiles = open_matrices(states, batch * heads * chunks, d_in, d_out, NARROW, OUT, TMA)
            x_parts = open_rows(x_narrow, x_b, x_h, x_t, batch, heads, T, d_in, ROWS, NARROW, TMA)
            for d in tl.range(0, d_in, NARROW, num_stages=1):
                x_part = x_parts.load([b, h_in, row, d]).reshape(ROWS, NARROW)
                x_weighted = x_part.to(tl.float32) * weight[:, None]
                if ROW_DOTS:
                    s = state_tiles.load([state, column, d]).reshape(OUT, NARROW).T
                else:
                    s = state_tiles.load([state, d, column]).reshape(NARROW, OUT)
                acc = tl.dot(x_weighted.to(x_part.dtype), s.to(x_part.dtype), acc, input_precision=PRECISION)
                if NORMALIZE:
                    i = d + tl.arange(0, NARROW)
                    n = tl.load(n_states + state.to(tl.int64) * d_in + i, mask=i < d_in, other=0.0)
                    norm += tl.sum(x_weighted * n[None, :], 1)
            if N_GRADIENT:
                o = column + tl.arange(0, OUT)
                n = tl.load(n_states + state.to(tl.int64) * d_out + o, mask=o < d_out, other=0.0)
                acc += weight[:, None] * n[None, :]

    if NORMALIZE:
        bound = 1.0
        if STABILIZED:
            bound = tl.exp(-tl.load(m + t_offset + r, mask=inside, other=0.0))
        inverse = 1.0 / tl.maximum(tl.abs(norm), bound)
        acc *= inverse[:, None]
        if out_block == 0:
            tl.store(inverse_denominator + t_offset + r, inverse, mask=inside)
    if ROW_DOTS:
        partner = probe_tiles.load([b, h_out, row, column]).reshape(ROWS, OUT).to(tl.float32)
        part = out_block.to(tl.int64) * batch * heads * T
        dots = tl.sum(partner * acc, 1)
        tl.store(row_dots + part + t_offset + r, dots, mask=inside)
        if SKIP:  # noqa: SIM102  a constant decides alone
            if out_block == 0:
                tl.store(skip_dots + t_offset + r, skip_dot, mask=inside)
    return acc


@triton.jit(do_not_specialize=["batch", "heads"], do_not_specialize_on_alignment=["in_sharing", "out_sharing"])
def parallel_outputs(
    x, x_b, x_h, x_t, x_narrow, y, y_b, y_h, y_t, z, z_b, z_h, z_t, out, out_b, out_h, out_t, states, n_states,
    row_log, col_log, g, b_log, b_rest, segment, log_i_rest, m, inverse_denominator,
    probe, probe_b, probe_h, probe_t, row_dots,
    skip, skip_dots, scale, batch, heads, in_sharing, out_sharing, T, d_in, d_out, chunk_size,
    REVERSE: tl.constexpr, STATES: tl.constexpr, FIRST_STATE: tl.constexpr, NORMALIZE: tl.constexpr,
    STABILIZED: tl.constexpr, HAS_DENOMINATOR: tl.constexpr, ROW_DOTS: tl.constexpr, N_GRADIENT: tl.constexpr,
    SKIP: tl.constexpr, PRECISION: tl.constexpr, TMA: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    IN: tl.constexpr, NARROW: tl.constexpr, OUT: tl.constexpr, WHOLE: tl.constexpr, MEMBERS: tl.constexpr,
):  # fmt: skip
    """One tile (ROWS, OUT) of `out`; see the module's table.

    Args:
        states: (B * H * chunks, d_in, d_out), or (.., d_out, d_in) for dQ and dK; n_states: (B, H, chunks, d_qk).
        row_log: prefix (H, dQ) or a (dK, dV) of tiles of COLS steps (dQ, dK) or ROWS; col_log: the other, of tiles of
            COLS steps, as g.
        b_log, b_rest, segment, log_i_rest: of tiles of ROWS steps.  m, inverse_denominator: (B, H, T).
        in_sharing, out_sharing: heads that share one of x and y, of z and probe.  MEMBERS: of `out`: summed here.
        skip: (H,) float32, SKIP: H adds skip v_t to row t; dQ writes skip_dots = dh_t . v_t, (B, H, T) float32.
        probe, row_dots: dQ and dK also write probe_t . out_t, and what of it comes from steps of the
            same chunk, (2, d_out blocks, B, H, T), float32.
        REVERSE: dK, dV.  STATES: there are states; FIRST_STATE: also for the first chunk met (an initial state).
        NORMALIZE: H of a normalised gate: divides, and writes inverse_denominator.  STABILIZED: by one whose bound
        is exp(-m), not 1.  N_GRADIENT: dK adds n_states, gradients of the normaliser.
        WHOLE: IN covers d_in.
    """
    x_tiles = open_rows(x, x_b, x_h, x_t, batch, heads, T, d_in, ROWS, IN, TMA)
    y_tiles = open_rows(y, y_b, y_h, y_t, batch, heads, T, d_in, COLS, IN, TMA)
    z_tiles = open_rows(z, z_b, z_h, z_t, batch, heads, T, d_out, COLS, OUT, TMA)
    out_tiles = open_rows(out, out_b, out_h, out_t, batch, heads, T, d_out, ROWS, OUT, TMA)
    row_tiles = tl.cdiv(T, ROWS)
    out_blocks = tl.cdiv(d_out, OUT)
    out_block = tl.program_id(0) % out_blocks  # neighbours share x and y through L2
    row_tile = (tl.program_id(0) // out_blocks) % row_tiles
    of_out = tl.program_id(0) // out_blocks // row_tiles
    acc = tl.full([ROWS, OUT], -0.0, tl.float32)  # the one number whose sum with x is x for every x
    for member in range(MEMBERS):
        acc += _rows_of_head(
            of_out * MEMBERS + member, row_tile, out_block, x_tiles, y_tiles, z_tiles, x_narrow, x_b, x_h, x_t,
            states, n_states, row_log, col_log, g, b_log, b_rest, segment, log_i_rest, m, inverse_denominator,
            probe, probe_b, probe_h, probe_t, row_dots, skip, skip_dots,
            scale, batch, heads, in_sharing, out_sharing, T, d_in, d_out, chunk_size,
            REVERSE, STATES, FIRST_STATE, NORMALIZE, STABILIZED, HAS_DENOMINATOR, ROW_DOTS, N_GRADIENT, SKIP,
            PRECISION, TMA, ROWS, COLS, IN, NARROW, OUT, WHOLE,
        )  # fmt: skip
    heads_of_out = heads // MEMBERS
    at = [of_out // heads_of_out, of_out % heads_of_out, row_tile * ROWS, out_block * OUT]
    out_tiles.store(at, acc.to(out_tiles.dtype).reshape(1, 1, ROWS, OUT))


def launch(
    plan: Plan,
    tiles: Tiles,
    x: Tensor,
    y: Tensor,
    z: Tensor,
    states: Tensor | None,
    n_states: Tensor | None,
    inverse_denominator: Tensor | None,
    *,
    like: Tensor,
    reverse: bool,
    first_state: bool,
    probe: Tensor | None = None,
    skip: Tensor | None = None,
    skip_dots: Tensor | None = None,
    normalize: bool = False,
    stabilized: bool = False,
) -> tuple[Tensor, RowSums | None]:
    """Runs `parallel_outputs` in one of its four roles; see the module's table and the kernel's docstring.

    Returns:
        out, made as torch.empty_like(like) or, where heads share one of `like`, the sums over some of these, (B, a
        divisor of H, T, d_out); and the row sums probe.out if there is a probe.
    """
    d_in, d_out = x.shape[-1], z.shape[-1]
    batch, heads, T = plan.gates.log_f.shape
    row, col = plan.tile_gates(tiles.rows), plan.tile_gates(tiles.cols)
    fine = row if probe is None else col
    blocks = cdiv(d_out, tiles.outer)
    programs = batch * cdiv(T, tiles.rows) * blocks
    sharing = heads // like.shape[1] if plan.tma else 1  # without TMA addresses take the registers that a sum needs
    members = _members(sharing, heads * programs, SUMMING_WAVES * plan.programs)
    out_heads = heads // members
    out = torch.empty_like(like) if like.shape[1] == out_heads else like.new_empty((batch, out_heads, T, d_out))
    row_dots = None if probe is None else x.new_empty((2, blocks, batch, heads, T), dtype=torch.float32)

    def rows_of(tensor: Tensor | None, rows: int, width: int) -> tuple[object, ...]:
        return (None, 0, 0, 0) if tensor is None else rows_argument(tensor, rows, width, plan.tma)

    narrow = min(tiles.inner, tiles.narrow)
    state_block = (narrow, tiles.outer) if probe is None else (tiles.outer, narrow)
    enqueue(
        parallel_outputs,
        out_heads * programs,
        *rows_of(x, tiles.rows, tiles.inner),
        rows_of(x, tiles.rows, narrow)[0],
        *rows_of(y, tiles.cols, tiles.inner),
        *rows_of(z, tiles.cols, tiles.outer),
        *rows_of(out, tiles.rows, tiles.outer),
        None if states is None else matrices_argument(states, *state_block, plan.tma),
        n_states,
        fine.a if reverse else fine.prefix,
        col.prefix if reverse else col.a,
        col.g,
        row.b,
        row.b_rest,
        row.segment,
        row.log_i_rest,
        plan.gates.m,
        inverse_denominator,
        *rows_of(probe, tiles.rows, tiles.outer),
        row_dots,
        skip,
        skip_dots,
        plan.scale,
        batch,
        heads,
        heads // x.shape[1],
        heads // z.shape[1],
        T,
        d_in,
        d_out,
        plan.chunk_size,
        REVERSE=reverse,
        STATES=states is not None,
        FIRST_STATE=first_state,
        NORMALIZE=normalize,
        STABILIZED=stabilized,
        HAS_DENOMINATOR=inverse_denominator is not None and not normalize,
        ROW_DOTS=probe is not None,
        N_GRADIENT=reverse and n_states is not None,
        SKIP=skip is not None,
        PRECISION=plan.precision,
        TMA=plan.tma,
        ROWS=tiles.rows,
        COLS=tiles.cols,
        IN=tiles.inner,
        NARROW=narrow,
        OUT=tiles.outer,
        WHOLE=tiles.inner >= d_in,
        MEMBERS=members,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    return out, None if row_dots is None else RowSums(*row_dots)


def _members(sharing: int, programs: int, enough: int) -> int:
    """How many of `sharing` heads a program adds up: a divisor, the largest that leaves `enough` of the programs."""
    divisors = [n for n in range(1, sharing + 1) if sharing % n == 0]
    return max([n for n in divisors if programs // n >= enough], default=1)


def hidden(
    plan: Plan,
    tiles: Tiles,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    states: Tensor | None,
    n_states: Tensor | None,
    *,
    initial: bool,
    skip: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """H (B, H, T, d_hv) in the dtype and layout of v and, of a normalised gate, 1 / denominator (B, H, T) float32."""
    gate = plan.gate
    inverse = q.new_empty(v.shape[:3], dtype=torch.float32) if gate.normalize else None
    h, _ = launch(
        plan, tiles, q, k, v, states, n_states, inverse,
        like=v, reverse=False, first_state=initial, normalize=gate.normalize, stabilized=gate.stabilized, skip=skip,
    )  # fmt: skip
    return h, inverse
