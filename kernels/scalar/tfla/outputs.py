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

dK of a delta rule has a second sum over c, of other Y and Z, where a row does not attend to itself.
H may have a skip connection, skip v_t, as weights on the diagonal of W (Q K^T): so has dV; d skip sums dh_t . v_t.
Rows are parallel over tiles, columns of `out` over blocks; the loops run over c and over the dimension of x and y.
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

from tflabench.kernels.common.descriptors import matrices_argument, open_matrices, open_rows, rows_argument
from tflabench.kernels.common.launching import enqueue, unless_one, unspecialised
from tflabench.kernels.scalar.gates import SMALLEST_DENOMINATOR, RowSums
from tflabench.kernels.scalar.plan.tfla import Outputs, Tiles

from .call import Call, EdgeStates, Inputs

# --- What the kernel takes --------------------------------------------------------------------------------------------


class Strides(NamedTuple):
    """Strides of batch, head and time of each tensor (B, H, T, d), three numbers; 0 where it is absent."""

    x: Any
    y: Any
    z: Any
    out: Any
    probe: Any
    more_y: Any = None
    more_z: Any = None


class OutputGates(NamedTuple):
    """Log gates summed within tiles, see `gates.TileGates`.

    Attributes:
        row_log: prefix (H, dQ) or a (dK, dV), of tiles of `cols` steps where there are row sums, else of `rows`.
        col_log: the other of the two, of tiles of `cols` steps, as g.
        b, b_rest, segment, log_i_rest: of tiles of `rows` steps.
    """

    row_log: Any
    col_log: Any
    g: Any
    b: Any
    b_rest: Any
    segment: Any
    log_i_rest: Any


class OutputVectors(NamedTuple):
    """Tensors float32 with a number, not a row, for each step, or a vector for each state; None where absent.

    Attributes:
        n_states: (B, H, chunks, d_qk), normalisers (H) or their gradients (dK) at the near edges of chunks.
        m: (B, H, T), the stabiliser.
        inverse_denominator: (B, H, T), written by H, read by the others.
        row_dots: (2, blocks of d_out, B, H, T), written: probe_t . out_t, and what of it steps of the chunk add.
        skip: (H,), weight of the skip connection.
        skip_dots: (B, H, T), written by dQ: dh_t . v_t.
        of_chunk, gaps, bounds: of documents, see `places.Table`.
    """

    n_states: Any
    m: Any
    inverse_denominator: Any
    row_dots: Any
    skip: Any
    skip_dots: Any
    of_chunk: Any = None
    gaps: Any = None
    bounds: Any = None


class ParallelSizes(NamedTuple):
    """Numbers of a launch.

    Attributes:
        scale: factor of Q.
        in_sharing, out_sharing: consecutive heads that share one of x and y, and one of z and the probe.
        T, d_in, d_out: steps, of documents places, and the dimensions of x and of out.
        steps: of the tensors with rows.
        more_scale: factor of the second sum over steps.
    """

    scale: Any
    batch: Any
    heads: Any
    in_sharing: Any
    out_sharing: Any
    T: Any
    d_in: Any
    d_out: Any
    chunk_size: Any
    steps: Any
    more_scale: Any = 0.0

    def as_argument(self) -> ParallelSizes:
        """Return what the kernel takes, see `read_sizes`: another batch or number of heads compiles nothing."""
        return self._replace(
            batch=unspecialised(self.batch),
            heads=unspecialised(self.heads),
            in_sharing=unless_one(self.in_sharing),
            out_sharing=unless_one(self.out_sharing),
        )


@dataclass(frozen=True)
class OutputConfig:
    """Tell what `parallel_outputs` is compiled for.

    Attributes:
        reverse: rows are attended to by later steps (dK, dV).
        first_state: so has the first chunk met (an initial state, or the gradient of the last).
        normalize: H is divided by its denominator, whose inverse is written.
        stabilized: the denominator is at least exp(-m), not 1.
        has_denominator: the query's side is multiplied by `OutputVectors.inverse_denominator`.
        row_dots: with the row sums of `OutputVectors`, of dQ and dK.
        transposed: states are read as (d_out, d_in), by dQ and dK.
        strict: rows do not attend to themselves.
        more: there is a second sum over steps, of other y and z, where rows do not attend to themselves.
        onto: out is added to what is there.
        split: where rows do not attend to themselves, weighed scores are the sum of two numbers of the dtype of z, not
            one: row sums then cancel further.
        n_gradient: dK gets gradients of the normaliser, `OutputVectors.n_states`.
        documents: vectors are of places of documents.
        rows, cols: steps of a program, and steps of a tile of its loop.
        inner: columns of a tile of x and y. narrow: of x for its product with the state. outer: of out.
        whole: inner covers d_in.
        members: heads whose sum a program makes.
        state_stages: tiles of the state in flight.
    """

    reverse: bool
    states: bool
    first_state: bool
    normalize: bool
    stabilized: bool
    has_denominator: bool
    row_dots: bool
    transposed: bool
    n_gradient: bool
    strict: bool
    more: bool
    onto: bool
    split: bool
    skip: bool
    documents: bool
    precision: str
    tma: bool
    rows: int
    cols: int
    inner: int
    narrow: int
    outer: int
    whole: bool
    members: int
    state_stages: int


# --- On the device ----------------------------------------------------------------------------------------------------


class Operands(NamedTuple):
    """Descriptors of tiles; `x_narrow` is x in tiles `narrow` wide. None where absent."""

    x: Any
    x_narrow: Any
    y: Any
    z: Any
    probe: Any
    states: Any


class SequenceSpan(NamedTuple):
    """Tell where the sequence of a tile lies.

    Attributes:
        shift: of documents, the place of a step less its number; else 0.
        end: behind the last step of the sequence, or the last place of the document; 0 in a gap.
    """

    shift: Any
    end: Any


class OutputPlace(NamedTuple):
    """A tile of out of one head.

    Attributes:
        b, h_in, h_out: batch, the head of x and y, and the head of z and the probe.
        row, column: the first step, or place, and the first column.
        chunk, chunks: the chunk of the steps, and how many the sequence has.
        inside: (rows,), whether a step is one of the sequence.
        row_offset: of the tile's first step in `OutputGates` of tiles of `rows` steps.
        tile_offset: of the head's first tile of `cols` steps in `Gates.g`.
        t_offset: of the tile's first step in (B, H, T).
    """

    bh: Any
    b: Any
    h: Any
    h_in: Any
    h_out: Any
    row: Any
    column: Any
    span: Any
    out_block: Any
    chunk: Any
    chunks: Any
    r: Any
    inside: Any
    row_offset: Any
    tile_offset: Any
    t_offset: Any


class RowGates(NamedTuple):
    """Gates of a tile's rows.

    Attributes:
        b, segment: (rows,), as in `OutputGates`.
        weight: (rows,), exp(row_log).
        far: float64, log gate from a row's tile of `cols` steps to the edge of the tile of `rows`; (rows,) or ().
        query: (rows,), the query's factor: scale and, but for dK and dV, 1 / denominator.
    """

    b: Any
    segment: Any
    weight: Any
    far: Any
    query: Any


@triton.jit
def read_sizes(sizes):
    """Return sizes as they are, from `ParallelSizes.as_argument`."""
    return ParallelSizes(
        sizes.scale,
        sizes.batch >> 1,
        sizes.heads >> 1,
        (sizes.in_sharing + 1) >> 1,
        (sizes.out_sharing + 1) >> 1,
        sizes.T,
        sizes.d_in,
        sizes.d_out,
        sizes.chunk_size,
        sizes.steps,
        sizes.more_scale,
    )


@triton.jit
def span_of(row_tile, vectors, sizes, config: tl.constexpr):
    """Return the `SequenceSpan` of a tile of rows."""
    if config.documents:
        of_chunk = tl.load(vectors.of_chunk + row_tile * config.rows // sizes.chunk_size)
        document = tl.maximum(of_chunk, 0)
        first = (tl.load(vectors.gaps + document) + 1) * sizes.chunk_size
        begin, end = tl.load(vectors.bounds + document), tl.load(vectors.bounds + document + 1)
        span = SequenceSpan(first - begin, tl.where(of_chunk < 0, 0, first + end - begin))
    else:
        span = SequenceSpan(0, sizes.T)
    return span


@triton.jit
def place_of(bh, row_tile, out_block, span, sizes, config: tl.constexpr):
    """Return the `OutputPlace` of a tile of steps and a block of columns of one head."""
    ROWS: tl.constexpr = config.rows
    OUT: tl.constexpr = config.outer
    b, h, bh64 = bh // sizes.heads, bh % sizes.heads, bh.to(tl.int64)
    row_tiles = tl.cdiv(sizes.T, ROWS)
    col_tiles = tl.cdiv(sizes.T, config.cols)
    chunks = tl.cdiv(sizes.T, sizes.chunk_size)
    row = row_tile * ROWS
    r = tl.arange(0, ROWS)
    return OutputPlace(
        bh,
        b,
        h,
        h // sizes.in_sharing,
        h // sizes.out_sharing,
        row,
        out_block * OUT,
        span,
        out_block,
        row // sizes.chunk_size,
        chunks,
        r,
        row + r < span.end,
        bh64 * row_tiles * ROWS + row,
        bh64 * col_tiles,
        bh64 * sizes.T + row,
    )


@triton.jit
def load_row_gates(place, gates, vectors, sizes, config: tl.constexpr):
    """Return the `RowGates` of a tile.

    Where there are row sums, the weight of a pair of steps is a product of those of tiles of `cols` steps on either
    side, with the log gates of the tiles between in float64: so dQ and dK, each coming from its own end, multiply the
    pair by the same numbers.
    """
    ROWS: tl.constexpr = config.rows
    COLS: tl.constexpr = config.cols
    row, r = place.row, place.r
    b = tl.load(gates.b + place.row_offset + r)
    segment = tl.load(gates.segment + place.row_offset + r)
    if config.row_dots and ROWS > COLS:
        row_log = tl.load(gates.row_log + place.tile_offset * COLS + row + r, mask=place.inside, other=float("-inf"))
        far = tl.zeros([ROWS], tl.float64)
        for u in tl.static_range(ROWS // COLS):
            tile = place.tile_offset + row // COLS + u
            g_inside = tl.load(gates.g + tile, mask=row + u * COLS < sizes.T, other=0.0)
            far += tl.where((r // COLS < u) if config.reverse else (r // COLS > u), g_inside.to(tl.float64), 0.0)
    else:
        row_log = tl.load(gates.row_log + place.row_offset + r)
        far = tl.zeros([], tl.float64)
    query = tl.full([ROWS], 1.0, tl.float32) * sizes.scale
    if config.has_denominator and not config.reverse:
        query *= tl.load(vectors.inverse_denominator + place.t_offset + r, mask=place.inside, other=0.0)
    return RowGates(b, segment, tl.exp(row_log), far, query)


@triton.jit
def scores(x_tile, operands, place, col, d_in, config: tl.constexpr):
    """Return x_r . y_c for the rows of a place and `cols` columns from col on: [rows, cols] float32."""
    ROWS: tl.constexpr = config.rows
    COLS: tl.constexpr = config.cols
    IN: tl.constexpr = config.inner
    if config.whole:
        y = operands.y.load([place.b, place.h_in, col - place.span.shift, 0]).reshape(COLS, IN)
        s = tl.dot(x_tile, y.T, input_precision=config.precision)  # [rows, d_in] @ [d_in, cols] -> [rows, cols]
    else:
        s = tl.zeros([ROWS, COLS], tl.float32)
        for d in range(0, d_in, IN):
            x = operands.x.load([place.b, place.h_in, place.row - place.span.shift, d]).reshape(ROWS, IN)
            y = operands.y.load([place.b, place.h_in, col - place.span.shift, d]).reshape(COLS, IN)
            s = tl.dot(x, y.T, s, input_precision=config.precision)  # [rows, in] @ [in, cols] -> [rows, cols]
    return s


@triton.jit
def multiply_by_query_factor(s, scale, col, place, row_gates, vectors, sizes, config: tl.constexpr):
    """Multiply scores by scale and 1 / denominator, which belong to rows (H, dQ) or to columns (dK, dV).

    They come before all other factors, so that dQ and dK round the same numbers and q.dq - k.dk cancels as it should
    (and Triton 3.6 cannot compile a product whose first use is in a branch).
    """
    COLS: tl.constexpr = config.cols
    if config.reverse:
        query = tl.full([COLS], 1.0, tl.float32) * scale
        if config.has_denominator:
            c = tl.arange(0, COLS)
            at = vectors.inverse_denominator + place.bh.to(tl.int64) * sizes.T + col + c
            query *= tl.load(at, mask=col + c < place.span.end, other=0.0)
        s *= query[None, :]
    else:
        s *= row_gates.query[:, None]
    return s


@triton.jit
def weigh_diagonal(s, col, place, row_gates, gates, vectors, STRICT: tl.constexpr, config: tl.constexpr):
    """Weigh scores of steps of one tile: by exp(b_i - b_j + log i_j) for keys j <= i with no boundary in between.

    STRICT: for keys j < i. Of H and dV, add the skip connection: its weight is one like others, between v (dH) and the
    output of one step.
    """
    COLS: tl.constexpr = config.cols
    r = place.r
    c = col - place.row + tl.arange(0, COLS)
    b_col = tl.load(gates.b + place.row_offset + c)
    together = row_gates.segment[:, None] == tl.load(gates.segment + place.row_offset + c)[None, :]
    if config.reverse:
        together &= c[None, :] >= r[:, None]
        exponent = b_col[None, :] - row_gates.b[:, None] + tl.load(gates.b_rest + place.row_offset + c)[None, :]
        exponent += tl.load(gates.log_i_rest + place.row_offset + r)[:, None]
    else:
        together &= c[None, :] <= r[:, None]
        exponent = row_gates.b[:, None] - b_col[None, :] + tl.load(gates.b_rest + place.row_offset + r)[:, None]
        exponent += tl.load(gates.log_i_rest + place.row_offset + c)[None, :]
    if STRICT:
        together &= c[None, :] != r[:, None]
    s *= tl.exp(tl.where(together, exponent, float("-inf")))
    if config.skip and not config.row_dots:
        s += tl.where(c[None, :] == r[:, None], tl.load(vectors.skip + place.h), 0.0)
    return s


@triton.jit
def weigh_others(s, col_weight, far, row_gates, config: tl.constexpr):
    """Weigh scores of steps of different tiles: by a query's factor, a key's and that of the tiles between.

    The order of the product is the same in all four roles.
    """
    between = tl.exp((far + row_gates.far).to(tl.float32))
    if config.row_dots and config.rows > config.cols:
        between = between[:, None]
    if config.reverse:
        s *= (col_weight[None, :] * between) * row_gates.weight[:, None]
    else:
        s *= (row_gates.weight[:, None] * between) * col_weight[None, :]
    return s


@triton.jit
def tiles_of_chunk(place, sizes, config: tl.constexpr):
    """Return the first tile of columns of a chunk, how many there are, and the step between them.

    They are taken from the diagonal outwards.
    """
    COLS: tl.constexpr = config.cols
    lowest = place.chunk * sizes.chunk_size // COLS
    highest = tl.cdiv(tl.minimum((place.chunk + 1) * sizes.chunk_size, place.span.end), COLS)
    if config.reverse:
        first_tile = place.row // COLS
        count = highest - first_tile
        step = 1
    else:
        first_tile = tl.minimum((place.row + config.rows) // COLS, highest) - 1
        count = first_tile + 1 - lowest
        step = -1
    return first_tile, count, step


@triton.jit
def add_weighed(acc, s, z_tile, SPLIT: tl.constexpr, config: tl.constexpr):
    """Return acc [rows, outer] and weighed scores s [rows, cols] times z_tile [cols, outer]; SPLIT: in two numbers."""
    rounded = s.to(z_tile.dtype)
    acc = tl.dot(rounded, z_tile, acc, input_precision=config.precision)
    if SPLIT:
        acc = tl.dot((s - rounded.to(tl.float32)).to(z_tile.dtype), z_tile, acc)
    return acc


@triton.jit
def add_state(acc, norm, far, place, row_gates, operands, vectors, sizes, config: tl.constexpr):
    """Add to out, and to the denominators, what rows read from the state at the chunk's near edge.

    Args:
        acc: [rows, outer].  norm: [rows].
        far: float64, log gate from the rows' tile to that edge.
    """
    ROWS: tl.constexpr = config.rows
    NARROW: tl.constexpr = config.narrow
    OUT: tl.constexpr = config.outer
    weight = row_gates.weight * tl.exp((far + row_gates.far).to(tl.float32))
    if not config.reverse:
        weight *= row_gates.query  # dC has it already
    state = place.bh * place.chunks + place.chunk
    for d in tl.range(0, sizes.d_in, NARROW, num_stages=config.state_stages):
        step = place.row - place.span.shift
        x_part = operands.x_narrow.load([place.b, place.h_in, step, d]).reshape(ROWS, NARROW)
        x_weighted = x_part.to(tl.float32) * weight[:, None]
        if config.transposed:
            s = operands.states.load([state, place.column, d]).reshape(OUT, NARROW).T
        else:
            s = operands.states.load([state, d, place.column]).reshape(NARROW, OUT)
        # [rows, narrow] @ [narrow, outer] -> [rows, outer]
        acc = tl.dot(x_weighted.to(x_part.dtype), s.to(x_part.dtype), acc, input_precision=config.precision)
        if config.normalize:
            i = d + tl.arange(0, NARROW)
            n = tl.load(vectors.n_states + state.to(tl.int64) * sizes.d_in + i, mask=i < sizes.d_in, other=0.0)
            norm += tl.sum(x_weighted * n[None, :], 1)
    if config.n_gradient:
        o = place.column + tl.arange(0, OUT)
        n = tl.load(vectors.n_states + state.to(tl.int64) * sizes.d_out + o, mask=o < sizes.d_out, other=0.0)
        acc += weight[:, None] * n[None, :]
    return acc, norm


@triton.jit
def normalized(acc, norm, place, vectors, config: tl.constexpr):
    """Return H divided by max(|norm|, exp(-m) or 1), and write the inverse of that once for all blocks of columns."""
    bound = 1.0
    if config.stabilized:
        bound = tl.exp(-tl.load(vectors.m + place.t_offset + place.r, mask=place.inside, other=0.0))
        bound = tl.maximum(bound, SMALLEST_DENOMINATOR)
    inverse = 1.0 / tl.maximum(tl.abs(norm), bound)
    acc *= inverse[:, None]
    if place.out_block == 0:
        tl.store(vectors.inverse_denominator + place.t_offset + place.r, inverse, mask=place.inside)
    return acc


@triton.jit
def store_row_dots(acc, part, place, operands, vectors, sizes, config: tl.constexpr):
    """Write probe_t . out_t of a tile to a part of the row sums: part * B * H * T is where that begins."""
    ROWS: tl.constexpr = config.rows
    OUT: tl.constexpr = config.outer
    step = place.row - place.span.shift
    probe = operands.probe.load([place.b, place.h_out, step, place.column]).reshape(ROWS, OUT)
    dots = tl.sum(probe.to(tl.float32) * acc, 1)
    part_offset = part * sizes.batch * sizes.heads * sizes.T
    tl.store(vectors.row_dots + part_offset + place.t_offset + place.r, dots, mask=place.inside)


@triton.jit
def sum_over_steps(
    acc, x_tile, scale, place, row_gates, operands, gates, vectors, sizes, STRICT: tl.constexpr, config: tl.constexpr
):  # fmt: skip
    """Add to acc [rows, outer] what rows of x make of the steps of the chunk that they attend to.

    Args:
        scale: factor of Q where it is on the side of these steps (dK, dV).

    Returns:
        acc; the sums of weighed scores, and the scores of a step with itself, [rows] each, if they are asked for; and
        the log gate, float64, from the rows' tile to the edge of the chunk.
    """
    ROWS: tl.constexpr = config.rows
    COLS: tl.constexpr = config.cols
    OUT: tl.constexpr = config.outer
    span = place.span
    first_tile, count, step = tiles_of_chunk(place, sizes, config)
    norm = tl.zeros([ROWS], tl.float32)
    skip_dot = tl.zeros([ROWS], tl.float32)
    far = tl.zeros([], tl.float64)  # log gate of the tiles passed since the diagonal
    for j in range(count):
        tile = first_tile + step * j
        col = tile * COLS
        c = tl.arange(0, COLS)
        col_weight = tl.exp(tl.load(gates.col_log + (place.tile_offset + tile) * COLS + c))
        g_tile = tl.load(gates.g + place.tile_offset + tile)
        s = scores(x_tile, operands, place, col, sizes.d_in, config)
        if config.documents and config.reverse:  # steps of the next document have no query here
            s = tl.where((col + c < span.end)[None, :], s, 0.0)
        if config.skip and config.row_dots:  # dh_t . v_t of the same step t
            skip_dot += tl.sum(tl.where((col - place.row + c)[None, :] == place.r[:, None], s, 0.0), 1)
        s = multiply_by_query_factor(s, scale, col, place, row_gates, vectors, sizes, config)
        if (col >= place.row) & (col < place.row + ROWS):
            s = weigh_diagonal(s, col, place, row_gates, gates, vectors, STRICT, config)
        else:
            s = weigh_others(s, col_weight, far, row_gates, config)
            far += g_tile.to(tl.float64)
        if config.normalize:
            norm += tl.sum(s, 1)
        z_tile = operands.z.load([place.b, place.h_out, col - span.shift, place.column]).reshape(COLS, OUT)
        acc = add_weighed(acc, s, z_tile, STRICT and config.split, config)
    return acc, norm, skip_dot, far


@triton.jit
def rows_of_head(bh, row_tile, out_block, span, operands, more, gates, vectors, sizes, config: tl.constexpr):
    """Return `parallel_outputs` of one head of all batches, [rows, outer] float32, and write all but out itself."""
    ROWS: tl.constexpr = config.rows
    IN: tl.constexpr = config.inner
    OUT: tl.constexpr = config.outer
    place = place_of(bh, row_tile, out_block, span, sizes, config)
    x_tile = operands.x.load([place.b, place.h_in, place.row - span.shift, 0]).reshape(ROWS, IN)
    row_gates = load_row_gates(place, gates, vectors, sizes, config)
    acc = tl.zeros([ROWS, OUT], tl.float32)
    acc, norm, skip_dot, far = sum_over_steps(
        acc, x_tile, sizes.scale, place, row_gates, operands, gates, vectors, sizes, config.strict, config
    )
    if config.more:
        acc, _, _, _ = sum_over_steps(
            acc, x_tile, sizes.more_scale, place, row_gates, more, gates, vectors, sizes, True, config
        )
    if config.row_dots:
        part = out_block.to(tl.int64) + tl.cdiv(sizes.d_out, OUT)
        store_row_dots(acc, part, place, operands, vectors, sizes, config)
    if config.states:
        edge = place.chunks - 1 if config.reverse else 0
        if config.first_state:
            edge = -1
        if place.chunk != edge:  # elsewhere the state is zero
            acc, norm = add_state(acc, norm, far, place, row_gates, operands, vectors, sizes, config)
    if config.normalize:
        acc = normalized(acc, norm, place, vectors, config)
    if config.row_dots:
        store_row_dots(acc, out_block.to(tl.int64), place, operands, vectors, sizes, config)
        if config.skip:  # noqa: SIM102  a constant decides alone
            if out_block == 0:
                tl.store(vectors.skip_dots + place.t_offset + place.r, skip_dot, mask=place.inside)
    return acc


@triton.jit
def parallel_outputs(  # noqa: PLR0913, PLR0915  descriptors lie in no tuple
    x, x_narrow, y, z, out, probe, states, more_y, more_z, strides, gates, vectors, sizes, config: tl.constexpr
):  # fmt: skip
    """Write one tile [rows, outer] of `out`; see the module's table.

    Args:
        x, y, z, out, probe: (B, H, T, d), or fewer heads; descriptors, or pointers before compute capability 9.0.
        x_narrow: x with tiles `narrow` wide.
        probe: q for dQ, k for dK, whose dot products with out are the row sums; else None.
            Of documents out is a pointer: a tile must not write what lies behind one.
        states: (B * H * chunks, d_in, d_out), or (.., d_out, d_in) for dQ and dK, or None.
        more_y, more_z: like y and z, of the second sum over steps; else None.
    """
    ROWS: tl.constexpr = config.rows
    COLS: tl.constexpr = config.cols
    IN: tl.constexpr = config.inner
    NARROW: tl.constexpr = config.narrow
    OUT: tl.constexpr = config.outer
    TMA: tl.constexpr = config.tma
    sizes = read_sizes(sizes)
    d_in, d_out = sizes.d_in, sizes.d_out
    row_tiles = tl.cdiv(sizes.T, ROWS)
    out_blocks = tl.cdiv(d_out, OUT)
    out_block = tl.program_id(0) % out_blocks  # neighbours share x and y through L2
    row_tile = (tl.program_id(0) // out_blocks) % row_tiles
    of_out = tl.program_id(0) // out_blocks // row_tiles
    span = span_of(row_tile, vectors, sizes, config)
    if config.documents:  # noqa: SIM102  a constant decides alone
        if row_tile * ROWS >= span.end:
            return
    shape = (sizes.batch, sizes.heads, sizes.steps if config.documents else sizes.T)
    x_tiles = open_rows(x, strides.x, shape, d_in, ROWS, IN, TMA)
    y_tiles = open_rows(y, strides.y, shape, d_in, COLS, IN, TMA)
    z_tiles = open_rows(z, strides.z, shape, d_out, COLS, OUT, TMA)
    probe_tiles, state_tiles, x_narrow_tiles = None, None, None
    if config.row_dots:
        probe_tiles = open_rows(probe, strides.probe, shape, d_out, ROWS, OUT, TMA)
    if config.states:
        count = sizes.batch * sizes.heads * tl.cdiv(sizes.T, sizes.chunk_size)
        if config.transposed:
            state_tiles = open_matrices(states, count, d_out, d_in, OUT, NARROW, TMA)
        else:
            state_tiles = open_matrices(states, count, d_in, d_out, NARROW, OUT, TMA)
        x_narrow_tiles = open_rows(x_narrow, strides.x, shape, d_in, ROWS, NARROW, TMA)
    operands = Operands(x_tiles, x_narrow_tiles, y_tiles, z_tiles, probe_tiles, state_tiles)
    more = operands
    if config.more:
        more_y_tiles = open_rows(more_y, strides.more_y, shape, d_in, COLS, IN, TMA)
        more_z_tiles = open_rows(more_z, strides.more_z, shape, d_out, COLS, OUT, TMA)
        more = Operands(x_tiles, x_narrow_tiles, more_y_tiles, more_z_tiles, probe_tiles, state_tiles)
    acc = tl.full([ROWS, OUT], -0.0, tl.float32)  # the one number whose sum with x is x for every x
    for member in range(config.members):
        bh = of_out * config.members + member
        acc += rows_of_head(bh, row_tile, out_block, span, operands, more, gates, vectors, sizes, config)
    heads_of_out = sizes.heads // config.members
    if config.documents:
        place, column = row_tile * ROWS + tl.arange(0, ROWS), out_block * OUT + tl.arange(0, OUT)
        step = (place - span.shift).to(tl.int64)
        at = out + of_out.to(tl.int64) * strides.out[1] + step[:, None] * strides.out[2] + column[None, :]
        inside = (place < span.end)[:, None] & (column < d_out)[None, :]
        if config.onto:
            acc += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        tl.store(at, acc.to(out.dtype.element_ty), mask=inside)
    else:
        out_tiles = open_rows(out, strides.out, shape, d_out, ROWS, OUT, TMA)
        at = [of_out // heads_of_out, of_out % heads_of_out, row_tile * ROWS, out_block * OUT]
        if config.onto:
            acc += out_tiles.load(at).reshape(ROWS, OUT).to(tl.float32)
        out_tiles.store(at, acc.to(out_tiles.dtype).reshape(1, 1, ROWS, OUT))


# --- On the host ------------------------------------------------------------------------------------------------------


class Role(NamedTuple):
    """One use of `parallel_outputs`; see the module's table.

    Attributes:
        x, y, z: (B, H, T, d), or fewer heads.
        like: (B, H, T, d), or fewer heads, has the layout of out.
        more: y, z and the scale of a second sum over steps.
        onto: what out is added to, and written to: it has its shape.
        The others are as of `OutputVectors` and `OutputConfig`.
    """

    x: Tensor
    y: Tensor
    z: Tensor
    like: Tensor
    states: EdgeStates
    inverse_denominator: Tensor | None
    reverse: bool
    normalize: bool = False
    stabilized: bool = False
    probe: Tensor | None = None
    skip: Tensor | None = None
    skip_dots: Tensor | None = None
    transposed: bool = False
    strict: bool = False
    split: bool = False
    state_stages: int = 1
    more: tuple[Tensor | None, Tensor | None, float] = (None, None, 0.0)
    onto: Tensor | None = None


def launch(call: Call, planned: Outputs, role: Role) -> tuple[Tensor, RowSums | None]:
    """Run `parallel_outputs` in one of its four roles.

    Returns:
        out, made as torch.empty_like(role.like) or, where heads share one of that, the sums over some of these, (B, a
        divisor of H, T, d_out); and the row sums probe.out if there is a probe.
    """
    x, z, like, probe = role.x, role.z, role.like, role.probe
    tiles, tma = planned.tiles, call.plan.tma
    (steps, d_out), d_in = z.shape[2:], x.shape[-1]
    batch, heads, T = call.gates.log_f.shape
    table = call.documents
    out_heads = heads // planned.members
    out = role.onto
    if out is None:
        whole = like.shape[1] == out_heads
        out = torch.empty_like(like) if whole else like.new_empty((batch, out_heads, steps, d_out))
    more_y, more_z, more_scale = role.more
    row_dots = None
    if probe is not None:
        empty = x.new_zeros if table else x.new_empty  # places without a step have nothing to add
        row_dots = empty((2, planned.blocks, batch, heads, T), dtype=torch.float32)
    config = _config(call, planned, role)

    def rows_of(tensor: Tensor | None, rows: int, width: int) -> tuple[Any, ...]:
        return (None, 0, 0, 0) if tensor is None else rows_argument(tensor, rows, width, tma)

    tensors = (
        rows_of(x, tiles.rows, tiles.inner),
        rows_of(role.y, tiles.cols, tiles.inner),
        rows_of(z, tiles.cols, tiles.outer),
        rows_of(out, tiles.rows, tiles.outer),
        rows_of(probe, tiles.rows, tiles.outer),
        rows_of(more_y, tiles.cols, tiles.inner),
        rows_of(more_z, tiles.cols, tiles.outer),
    )
    x_tiles, y_tiles, z_tiles, out_tiles, probe_tiles, *more_tiles = (tensor[0] for tensor in tensors)
    states, n_states, _ = role.states
    of_table = () if table is None else (table.of_chunk, table.gaps, table.bounds)
    block = (tiles.outer, config.narrow) if config.transposed else (config.narrow, tiles.outer)
    enqueue(
        parallel_outputs,
        planned.programs,
        x_tiles,
        rows_of(x, tiles.rows, config.narrow)[0],
        y_tiles,
        z_tiles,
        out if table else out_tiles,
        probe_tiles,
        None if states is None else matrices_argument(states, *block, tma),
        *more_tiles,
        Strides(*(tensor[1:] for tensor in tensors)),
        _gates(call, tiles, role),
        OutputVectors(n_states, call.gates.m, role.inverse_denominator, row_dots, role.skip, role.skip_dots, *of_table),
        ParallelSizes(
            call.scale, batch, heads, heads // x.shape[1], heads // z.shape[1], T, d_in, d_out, call.plan.chunk_size,
            steps, more_scale,
        ).as_argument(),
        config=config,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )  # fmt: skip
    return out, None if row_dots is None else RowSums(*row_dots)


def _config(call: Call, planned: Outputs, role: Role) -> OutputConfig:
    tiles = planned.tiles
    return OutputConfig(
        reverse=role.reverse,
        states=role.states.states is not None,
        first_state=role.states.first or call.documents is not None,
        normalize=role.normalize,
        stabilized=role.stabilized,
        has_denominator=role.inverse_denominator is not None and not role.normalize,
        row_dots=role.probe is not None,
        transposed=role.transposed,
        n_gradient=role.reverse and role.states.n_states is not None,
        strict=role.strict,
        more=role.more[0] is not None,
        onto=role.onto is not None,
        split=role.split and role.z.element_size() == 2,
        skip=role.skip is not None,
        documents=call.documents is not None,
        precision=call.precision,
        tma=call.plan.tma,
        rows=tiles.rows,
        cols=tiles.cols,
        inner=tiles.inner,
        narrow=min(tiles.inner, tiles.narrow),
        outer=tiles.outer,
        whole=tiles.inner >= role.x.shape[-1],
        members=planned.members,
        state_stages=role.state_stages,
    )


def _gates(call: Call, tiles: Tiles, role: Role) -> OutputGates:
    row, col = call.tile_gates(tiles.rows), call.tile_gates(tiles.cols)
    fine = row if role.probe is None else col
    row_log, col_log = (fine.a, col.prefix) if role.reverse else (fine.prefix, col.a)
    return OutputGates(row_log, col_log, col.g, row.b, row.b_rest, row.segment, row.log_i_rest)


def hidden(call: Call, inputs: Inputs, states: EdgeStates) -> tuple[Tensor, Tensor | None]:
    """Return H (B, H, T, d_hv) like v and, of a normalised gate, 1 / denominator (B, H, T) float32."""
    q, k, v = inputs.q, inputs.k, inputs.v
    gate = call.gate
    inverse = torch.empty_like(call.gates.log_f) if gate.normalize else None
    role = Role(
        q, k, v, v, states, inverse,
        reverse=False, normalize=gate.normalize, stabilized=gate.stabilized, skip=inputs.skip,
    )  # fmt: skip
    h, _ = launch(call, call.plan.h, role)
    return h, inverse


def d_queries(call: Call, inputs: Inputs, states: EdgeStates, skip_dots: Tensor | None) -> tuple[Tensor, RowSums]:
    """Return dQ like q, or of more heads if some share one, and the row sums q_t.dq_t."""
    q, k, v, skip, dh, inverse = inputs
    role = Role(
        dh, v, k, q, states._replace(n_states=None), inverse, reverse=False, probe=q, skip=skip, transposed=True
    )
    dq, row_dots = launch(call, call.plan.dq, role._replace(skip_dots=skip_dots))
    assert row_dots is not None
    return dq, row_dots


def d_keys(call: Call, inputs: Inputs, states: EdgeStates) -> tuple[Tensor, RowSums]:
    """Return dK like k, or of more heads if some share one, and the row sums k_t.dk_t, from gradients of states."""
    q, k, v, _, dh, inverse = inputs
    role = Role(v, dh, q, k, states, inverse, reverse=True, probe=k, transposed=True)
    dk, row_dots = launch(call, call.plan.dk, role)
    assert row_dots is not None
    return dk, row_dots


def d_values(call: Call, inputs: Inputs, states: EdgeStates) -> Tensor:
    """Return dV like v, from gradients of states."""
    q, k, v, skip, dh, inverse = inputs
    dv, _ = launch(
        call, call.plan.dv, Role(k, q, dh, v, states._replace(n_states=None), inverse, reverse=True, skip=skip)
    )
    return dv
