# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""States at the ends of segments: what lets walks over the segments of one sequence run at the same time.

    accumulate   the state that each segment adds up from zero, sum over its steps of s_z Z_z W_z^T (Gluon)
    carry        turns these into the state each segment starts from, in place, and the one after the last (Triton)

Forward Z = K, W = V give C and the normaliser n, going forward; Z = Q, W = dH give dC, going backward. Both lie as
(B, H, segments, d_qk, d_hv) float32.

Roles in a program of `accumulate` (4 + 4 + 1 warps): math 0 and math 1 hold 64 rows and up to 256 columns of S each as
accumulators, produce fetches tiles of Z and W.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
)

from .compat import barrier, let_next_kernel_start, wait_for_kernel_before, wait_for_products
from .walk import BLOCK_BYTES, begin, block, fetch, nth_tile, state_pointers


@gluon.jit
def produce(
    z_desc, w_desc, z_buf, w_buf, empty, ready, batch, z_head, head, first, n, z0, w0,
    STAGES: gl.constexpr, WB: gl.constexpr, REVERSE: gl.constexpr,
):  # fmt: skip
    for i in range(n):
        s = i % STAGES
        mbarrier.wait(empty.index(s), ((i // STAGES) & 1) ^ 1)
        arrived = ready.index(s)
        tile = nth_tile(first, i, n, REVERSE)
        mbarrier.expect(arrived, BLOCK_BYTES * (2 + WB))
        fetch(z_desc, batch, z_head, tile, z0, 2, z_buf, s, arrived)
        fetch(w_desc, batch, head, tile, w0, WB, w_buf, s, arrived)


@gluon.jit
def weighted(
    az_ptr, g_ptr, z_buf, ready, row, tiles, first, n, i, layout: gl.constexpr,
    HALF: gl.constexpr, STAGES: gl.constexpr, REVERSE: gl.constexpr,
):  # fmt: skip
    """s_z Z_z of the i-th tile, transposed, as an operand; its sum over z; exp2(g). Waits until the tile is there."""
    tile = nth_tile(first, i, n, REVERSE)
    s_z = gl.load(az_ptr + (row * tiles + tile) * 64 + gl.arange(0, 64, layout=gl.SliceLayout(0, layout)))
    g = gl.load(g_ptr + row * tiles + tile)
    if not REVERSE:
        s_z += g
    s = i % STAGES
    mbarrier.wait(ready.index(s), (i // STAGES) & 1)
    z = block(z_buf, s * 2 + HALF).permute((1, 0)).load(layout).to(gl.float32) * gl.exp2(s_z)[None, :]
    return z.to(z_buf.dtype), gl.sum(z, axis=1), gl.exp2(g)


@gluon.jit
def math(
    az_ptr, g_ptr, state_ptr, n_ptr, z_buf, w_buf, empty, ready, row, tiles, first, n, z0, w0,
    Z_DIM: gl.constexpr, W_DIM: gl.constexpr, HALF: gl.constexpr, STAGES: gl.constexpr, WB: gl.constexpr,
    REVERSE: gl.constexpr, NORM: gl.constexpr,
):  # fmt: skip
    s_l: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    a_l: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=s_l, k_width=2)
    z_l: gl.constexpr = gl.SliceLayout(1, a_l)
    state = ()
    for _ in gl.static_range(WB):
        state += (gl.zeros([64, 64], gl.float32, layout=s_l),)
    norm = gl.zeros([64], gl.float32, layout=z_l)
    zs, added, e = weighted(az_ptr, g_ptr, z_buf, ready, row, tiles, first, n, 0, a_l, HALF, STAGES, REVERSE)
    for i in range(n):
        s = i % STAGES
        if NORM:
            norm = norm * e + added
        scaled = ()
        for wb in gl.static_range(WB):
            scaled += (state[wb] * e,)
        flight = ()
        for wb in gl.static_range(WB):
            flight += (warpgroup_mma(zs, block(w_buf, s * WB + wb), scaled[wb], is_async=True),)
        flight += (zs,)  # kept until the products are done
        # The next tile's, or the last's again, while the products run.
        after = gl.minimum(i + 1, n - 1)
        zs, added, e = weighted(az_ptr, g_ptr, z_buf, ready, row, tiles, first, n, after, a_l, HALF, STAGES, REVERSE)
        done = wait_for_products(0, deps=flight)
        state = ()
        for wb in gl.static_range(WB):
            state += (done[wb],)
        fence_async_shared()
        barrier()
        mbarrier.arrive(empty.index(s), count=1)
    for wb in gl.static_range(WB):
        at, rows = state_pointers(state_ptr, z0, w0 + 64 * wb, W_DIM, 1, s_l)
        gl.store(at, state[wb], mask=rows < Z_DIM)
    if NORM:  # noqa: SIM102
        if w0 == 0:
            z = z0 + gl.arange(0, 64, layout=z_l)
            gl.store(n_ptr + z, norm, mask=z < Z_DIM)


@gluon.jit
def accumulate(
    z_desc, w_desc, az_ptr, g_ptr, state_ptr, n_ptr,
    heads, z_sharing, tiles, segment_tiles, segments, lowest, accumulated, z_pieces, w_pieces,
    Z_DIM: gl.constexpr, W_DIM: gl.constexpr, STAGES: gl.constexpr, WB: gl.constexpr,
    REVERSE: gl.constexpr, NORM: gl.constexpr,
):  # fmt: skip
    """One program: 128 rows and 64 * WB columns of the state of a segment of a (batch, head) row.

    Of the segments of a row, `accumulated` from the one called `lowest` on.
    """
    pid = gl.program_id(0)
    z0 = (pid % z_pieces) * 128
    w0 = (pid // z_pieces) % w_pieces * (64 * WB)
    segment = lowest + pid // (z_pieces * w_pieces) % accumulated
    row = pid // (z_pieces * w_pieces * accumulated)
    first = segment * segment_tiles
    n = gl.minimum(segment_tiles, tiles - first)
    index = (row * segments + segment).to(gl.int64)
    state_ptr += index * (Z_DIM * W_DIM)
    n_ptr += index * Z_DIM
    z_buf = gl.allocate_shared_memory(z_desc.dtype, [STAGES * 2, 1, 1, 64, 64], z_desc.layout)
    w_buf = gl.allocate_shared_memory(z_desc.dtype, [STAGES * WB, 1, 1, 64, 64], z_desc.layout)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(empty.index(i), count=2)
        mbarrier.init(ready.index(i), count=1)
    begin(INDEPENDENT=False)
    gl.warp_specialize(
        [
            (math, (az_ptr, g_ptr, state_ptr, n_ptr, z_buf, w_buf, empty, ready, row, tiles, first, n,
                    z0, w0, Z_DIM, W_DIM, 0, STAGES, WB, REVERSE, NORM)),
            (math, (az_ptr, g_ptr, state_ptr, n_ptr, z_buf, w_buf, empty, ready, row, tiles, first, n,
                    z0 + 64, w0, Z_DIM, W_DIM, 1, STAGES, WB, REVERSE, NORM)),
            (produce, (z_desc, w_desc, z_buf, w_buf, empty, ready,
                       row // heads, row % heads // z_sharing, row % heads, first, n, z0, w0,
                       STAGES, WB, REVERSE)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


@triton.jit
def carry(
    state, g, start, end, elements, tiles, segment_tiles, segments, blocks,
    START: tl.constexpr, END: tl.constexpr, REVERSE: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr = False,
):  # fmt: skip
    """For states (rows, segments, elements): replace what each segment adds (`accumulate`) by what it starts from.

    start: (rows, elements) state before the first segment walked, read if START; end: state after the last, written if
    END. Only then is read what the last segment adds.
    TILES: power of two, at least segment_tiles. OVERLAP: see walk.begin.
    """
    if OVERLAP:
        wait_for_kernel_before()
        let_next_kernel_start()
    row = (tl.program_id(0) // blocks).to(tl.int64)
    at = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    mask = at < elements
    if START:
        carried = tl.load(start + row * elements + at, mask=mask, other=0.0)
    else:
        carried = tl.zeros([BLOCK], tl.float32)
    inside = tl.arange(0, TILES)
    segment = segments - 1 if REVERSE else 0
    added = tl.load(state + (row * segments + segment) * elements + at, mask=mask, other=0.0)
    for k in range(segments):
        segment = segments - 1 - k if REVERSE else k
        pointer = state + (row * segments + segment) * elements + at
        beyond = pointer + (-elements if REVERSE else elements)
        left = elements * (k + 1 < segments - 1 + END)
        following = tl.load(beyond, mask=at < left, other=0.0)  # on its way meanwhile
        tile = segment * segment_tiles + inside
        log_e = tl.sum(tl.load(g + row * tiles + tile, mask=(inside < segment_tiles) & (tile < tiles), other=0.0), 0)
        tl.store(pointer, carried, mask=mask)
        carried = carried * tl.exp2(log_e) + added
        added = following
    if END:
        tl.store(end + row * elements + at, carried, mask=mask)
