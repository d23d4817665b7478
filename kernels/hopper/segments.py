# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""States at the ends of segments: what lets walks over the segments of one sequence run at the same time.

    accumulate   the state that each part of a segment adds up from zero, sum over its steps of s_z Z_z W_z^T (Gluon)
    carry        makes of these the state that each segment starts from, and the one after the last (Triton)

Forward Z = K, W = V give C and the normaliser n, going forward; Z = Q, W = dH give dC, going backward. Both lie as
(B, H, segments, d_qk, d_hv) float32.

Roles in a program of `accumulate` (4 + 4 + 1 warps): math 0 and math 1 hold 64 rows and up to 256 columns of S each as
accumulators, or half the columns each of 64 rows, or, of states of 64 by 64, those of half the heads of a program each;
produce fetches tiles of Z and W.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
)

from .conversions import nearest, widened
from .pipeline import begin_kernel
from .schedule import nth_tile, span
from .state import state_pointers
from .tiles import BLOCK_BYTES, block, load_blocks
from .workarounds import barrier, let_next_kernel_start, tma_store, wait_for_kernel_before, wait_for_products


@gluon.jit
def produce(
    z_desc, w_desc, z_buf, w_buf, empty, ready, row, heads, z_sharing, first, n, z0, w0,
    STAGES: gl.constexpr, WB: gl.constexpr, ZB: gl.constexpr, HEADS: gl.constexpr, REVERSE: gl.constexpr,
):  # fmt: skip
    batch, head = row // heads, row % heads
    for i in range(n):
        s = i % STAGES
        mbarrier.wait(empty.index(s), ((i // STAGES) & 1) ^ 1)
        arrived = ready.index(s)
        tile = nth_tile(first, i, n, REVERSE)
        mbarrier.expect(arrived, BLOCK_BYTES * (ZB + WB))
        if HEADS == 1:
            load_blocks(z_desc, (batch, head // z_sharing, tile * 64, z0), z_buf, s * ZB, ZB, arrived)
            load_blocks(w_desc, (batch, head, tile * 64, w0), w_buf, s * WB, WB, arrived)
        else:
            for h in gl.static_range(ZB):
                load_blocks(z_desc, (batch, (head + h) // z_sharing, tile * 64, 0), z_buf, s * ZB + h, 1, arrived)
            for h in gl.static_range(WB):
                load_blocks(w_desc, (batch, head + h, tile * 64, 0), w_buf, s * WB + h, 1, arrived)


@gluon.jit
def load_weights(az_ptr, g_ptr, row, tiles, tile, layout: gl.constexpr, OPERANDS: gl.constexpr):
    """Of a tile of consecutive rows: log2 of s_z, and g."""
    t = gl.arange(0, 64, layout=gl.SliceLayout(0, layout))
    s_z, g = (), ()
    for k in gl.static_range(OPERANDS):
        at = (row + k) * tiles + tile
        s_z += (gl.load(az_ptr + at * 64 + t),)
        g += (gl.load(g_ptr + at),)
    return s_z, g


@gluon.jit
def weighted(
    s_z, g, z_buf, z_block, layout: gl.constexpr, OPERANDS: gl.constexpr, SHARED: gl.constexpr, REVERSE: gl.constexpr
):  # fmt: skip
    """Of a tile that is there: s_z Z_z, transposed, as operands, of one block (SHARED) or one each; their sums over z;
    exp2(g).
    """
    operands, added, e = (), (), ()
    for k in gl.static_range(OPERANDS):
        log2_s = s_z[k]
        if not REVERSE:
            log2_s += g[k]
        z = widened(block(z_buf, z_block + (0 if SHARED else k)).permute((1, 0)).load(layout))
        z = z * gl.exp2(log2_s)[None, :]
        operands += (z.to(z_buf.dtype),)
        added += (gl.sum(z, axis=1),)
        e += (gl.exp2(g[k]),)
    return operands, added, e


@gluon.jit
def state_at(
    ptr, row, segments, segment, z0, w0, FROM: gl.constexpr, b: gl.constexpr,
    Z_DIM: gl.constexpr, W_DIM: gl.constexpr, HEADS: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Pointers to a math role's b-th block of the state of a segment, and its rows."""
    index = ((row + (b if HEADS > 1 else 0)) * segments + segment).to(gl.int64)
    w = 0 if HEADS > 1 else w0 + 64 * (FROM + b)
    return state_pointers(ptr + index * (Z_DIM * W_DIM), z0, w, W_DIM, 1, layout)


@gluon.jit
def math(
    kept_desc, az_ptr, g_ptr, first_ptr, state_ptr, n_ptr, z_buf, w_buf, kept_buf, empty, ready,
    heads, row, segment, segments, tiles, first, n, z0, w0,
    Z_DIM: gl.constexpr, W_DIM: gl.constexpr, HALF: gl.constexpr, STAGES: gl.constexpr, WB: gl.constexpr,
    ZB: gl.constexpr, HEADS: gl.constexpr, REVERSE: gl.constexpr, NORM: gl.constexpr,
    KEEP: gl.constexpr, FIRST: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    s_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    a_l: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=s_l, k_width=2)
    z_l: gl.constexpr = gl.SliceLayout(1, a_l)
    BY_ROWS: gl.constexpr = HEADS == 1 and ZB == 2  # else the roles divide W among them: its columns or heads
    BLOCKS: gl.constexpr = WB if BY_ROWS else WB // 2
    FROM: gl.constexpr = 0 if BY_ROWS else HALF * BLOCKS  # of the blocks of W
    OPERANDS: gl.constexpr = 1 if HEADS == 1 else BLOCKS
    z_from: gl.constexpr = HALF if BY_ROWS else FROM if ZB > 1 else 0
    row_from: gl.constexpr = 0 if HEADS == 1 else FROM
    SHARED: gl.constexpr = HEADS == 1 or ZB == 1
    KEEPS: gl.constexpr = KEEP and (HEADS > 1 or HALF == 0)  # of one head's 64 rows math 1 has none
    if BY_ROWS:
        z0 += 64 * HALF
    mine = row + row_from
    state, norm = (), ()
    for b in gl.static_range(BLOCKS):
        if FIRST:
            at, rows = state_at(first_ptr, mine, segments, segment, z0, w0, FROM, b, Z_DIM, W_DIM, HEADS, s_l)
            state += (gl.load(at, mask=rows < Z_DIM, other=0.0),)
        else:
            state += (gl.zeros([64, 64], gl.float32, layout=s_l),)
    for _ in gl.static_range(OPERANDS):
        norm += (gl.zeros([64], gl.float32, layout=z_l),)
    s_z, g = load_weights(az_ptr, g_ptr, mine, tiles, nth_tile(first, 0, n, REVERSE), a_l, OPERANDS)
    mbarrier.wait(ready.index(0), 0)
    operands, added, e = weighted(s_z, g, z_buf, z_from, a_l, OPERANDS, SHARED, REVERSE)
    tile = nth_tile(first, gl.minimum(1, n - 1), n, REVERSE)
    s_z, g = load_weights(az_ptr, g_ptr, mine, tiles, tile, a_l, OPERANDS)
    for i in range(n):
        s = i % STAGES
        if KEEPS:
            tma.store_wait(pendings=0)
            barrier()  # the buffers are free
            for b in gl.static_range(BLOCKS):
                kept_buf.index(HALF * BLOCKS + b).reshape([64, 64]).store(nearest(state[b], z_buf.dtype))
            fence_async_shared()
            barrier()
            for b in gl.static_range(BLOCKS):
                place = [mine // heads, mine % heads + b, nth_tile(first, i, n, REVERSE) * 64, 0]
                tma_store(kept_desc, place, kept_buf.index(HALF * BLOCKS + b))
        if NORM:
            new_norm = ()
            for k in gl.static_range(OPERANDS):
                new_norm += (norm[k] * e[k] + added[k],)
            norm = new_norm
        scaled, flight = (), ()
        for b in gl.static_range(BLOCKS):
            scaled += (state[b] * e[b if HEADS > 1 else 0],)
        for b in gl.static_range(BLOCKS):
            w = block(w_buf, s * WB + FROM + b)
            flight += (warpgroup_mma(operands[b if HEADS > 1 else 0], w, scaled[b], is_async=True),)
        flight += operands  # kept until the products are done
        # The next tile's, or the last's again, while the products run; its weights came a tile ahead.
        after = gl.minimum(i + 1, n - 1)
        mbarrier.wait(ready.index(after % STAGES), (after // STAGES) & 1)
        z_block = after % STAGES * ZB + z_from
        operands, added, e = weighted(s_z, g, z_buf, z_block, a_l, OPERANDS, SHARED, REVERSE)
        tile = nth_tile(first, gl.minimum(i + 2, n - 1), n, REVERSE)
        s_z, g = load_weights(az_ptr, g_ptr, mine, tiles, tile, a_l, OPERANDS)
        done = wait_for_products(0, deps=flight)
        state = ()
        for b in gl.static_range(BLOCKS):
            state += (done[b],)
        fence_async_shared()
        barrier()
        mbarrier.arrive(empty.index(s), count=1)
    if LAST:
        for b in gl.static_range(BLOCKS):
            at, rows = state_at(state_ptr, mine, segments, segment, z0, w0, FROM, b, Z_DIM, W_DIM, HEADS, s_l)
            gl.store(at, state[b], mask=rows < Z_DIM)
    if KEEPS:
        tma.store_wait(pendings=0)
    if NORM and (BY_ROWS or HEADS > 1 or HALF == 0):  # noqa: SIM102
        if w0 == 0:
            z = z0 + gl.arange(0, 64, layout=z_l)
            for k in gl.static_range(OPERANDS):
                index = ((mine + k) * segments + segment).to(gl.int64)
                gl.store(n_ptr + index * Z_DIM + z, norm[k], mask=z < Z_DIM)


@gluon.jit(
    do_not_specialize=["heads", "tiles", "segment_tiles", "segments", "lowest", "accumulated"],
    do_not_specialize_on_alignment=["z_sharing"],
)
def accumulate(
    z_desc, w_desc, kept_desc, az_ptr, g_ptr, first_ptr, state_ptr, n_ptr,
    heads, z_sharing, tiles, segment_tiles, segments, lowest, accumulated, z_pieces, w_pieces,
    Z_DIM: gl.constexpr, W_DIM: gl.constexpr, STAGES: gl.constexpr, WB: gl.constexpr, ZB: gl.constexpr,
    HEADS: gl.constexpr, REVERSE: gl.constexpr, NORM: gl.constexpr,
    KEEP: gl.constexpr, FIRST: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    """One program: 64 * ZB rows and 64 * WB columns of the state of a segment of a (batch, head) row; or the states, 64
    by 64, of HEADS consecutive rows, whose WB blocks of W have one block of Z for all or one each (ZB).

    Of the segments of a row, `accumulated` from the one called `lowest` on. FIRST: not from zero, but from what
    first_ptr has for each segment. LAST: the state after each is written. KEEP: so is the one before every tile,
    of 64 by 64 states, to kept (B, H, tiles * 64, 64) in the dtype of Z.
    """
    pid = gl.program_id(0)
    z0 = (pid % z_pieces) * 128
    w0 = (pid // z_pieces) % w_pieces * (64 * WB)
    segment = lowest + pid // (z_pieces * w_pieces) % accumulated
    row = pid // (z_pieces * w_pieces * accumulated) * HEADS
    first, n = span(segment, tiles, segment_tiles, segments)
    z_buf = gl.allocate_shared_memory(z_desc.dtype, [STAGES * ZB, 1, 1, 64, 64], z_desc.layout)
    w_buf = gl.allocate_shared_memory(z_desc.dtype, [STAGES * WB, 1, 1, 64, 64], z_desc.layout)
    kept_buf = z_buf
    if KEEP:
        kept_buf = gl.allocate_shared_memory(z_desc.dtype, [WB, 1, 1, 64, 64], z_desc.layout)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(empty.index(i), count=2)
        mbarrier.init(ready.index(i), count=1)
    begin_kernel(INDEPENDENT=False)
    gl.warp_specialize(
        [
            (math, (kept_desc, az_ptr, g_ptr, first_ptr, state_ptr, n_ptr, z_buf, w_buf, kept_buf, empty, ready,
                    heads, row, segment, segments, tiles, first, n, z0, w0,
                    Z_DIM, W_DIM, 0, STAGES, WB, ZB, HEADS, REVERSE, NORM, KEEP, FIRST, LAST)),
            (math, (kept_desc, az_ptr, g_ptr, first_ptr, state_ptr, n_ptr, z_buf, w_buf, kept_buf, empty, ready,
                    heads, row, segment, segments, tiles, first, n, z0, w0,
                    Z_DIM, W_DIM, 1, STAGES, WB, ZB, HEADS, REVERSE, NORM, KEEP, FIRST, LAST)),
            (produce, (z_desc, w_desc, z_buf, w_buf, empty, ready, row, heads, z_sharing, first, n, z0, w0,
                       STAGES, WB, ZB, HEADS, REVERSE)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


@triton.jit(do_not_specialize=["tiles", "part_tiles", "parts", "segments", "split", "lowest", "accumulated", "blocks"])
def carry(
    added, state, g, start, end, elements, tiles, part_tiles, parts, segments, split, lowest, accumulated, blocks,
    START: tl.constexpr, END: tl.constexpr, RESUMED: tl.constexpr, REVERSE: tl.constexpr, TILES: tl.constexpr,
    BLOCK: tl.constexpr, OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """state (rows, segments, elements): what each segment starts from, out of what each part of one adds, added (rows,
    parts, elements), which may be the same tensor where a segment has one part.

    start: (rows, elements) state before the first segment walked, read if START; end: state after the last, written if
    END. Only then is read what the last segment adds. RESUMED: what the second segment starts from is there, and what
    the first does, but for zero; `lowest` is then the first part of the second.
    split: parts of a segment. accumulated: parts that are there, from `lowest` on or, REVERSE, the last.
    TILES: power of two, at least part_tiles. OVERLAP: see pipeline.begin_kernel.
    """
    if OVERLAP:
        wait_for_kernel_before()
        let_next_kernel_start()
    row = (tl.program_id(0) // blocks).to(tl.int64)
    at = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    mask = at < elements
    if RESUMED:
        carried = tl.load(state + (row * segments + 1) * elements + at, mask=mask, other=0.0)
        if not START:
            tl.store(state + row * segments * elements + at, tl.zeros([BLOCK], tl.float32), mask=mask)
    elif START:
        carried = tl.load(start + row * elements + at, mask=mask, other=0.0)
    else:
        carried = tl.zeros([BLOCK], tl.float32)
    inside = tl.arange(0, TILES)
    part = parts - 1 if REVERSE else lowest
    after = parts - 1 - part  # parts after this one
    segment, others = segments - 1 - after // split, after % split  # parts after it in its segment
    adds = tl.load(added + (row * parts + part) * elements + at, mask=mask, other=0.0)
    for k in range(accumulated + 1 - END):
        beyond = added + (row * parts + part) * elements + at + (-elements if REVERSE else elements)
        left = elements * (k + 1 < accumulated)
        following = tl.load(beyond, mask=at < left, other=0.0)  # on its way meanwhile
        tile = tiles - (parts - part) * part_tiles + inside
        log_e = tl.sum(tl.load(g + row * tiles + tile, mask=(inside < part_tiles) & (tile >= 0), other=0.0), 0)
        begins = others == 0 if REVERSE else (others == split - 1) | (part == 0)
        tl.store(state + (row * segments + segment) * elements + at, carried, mask=at < elements * begins)
        carried = carried * tl.exp2(log_e) + adds
        adds = following
        if REVERSE:
            part -= 1
            of_next = others == split - 1
            others = tl.where(of_next, 0, others + 1)
            segment -= of_next
        else:
            part += 1
            of_next = others == 0
            others = tl.where(of_next, split - 1, others - 1)
            segment += of_next
    if END:
        tl.store(end + row * elements + at, carried, mask=mask)
