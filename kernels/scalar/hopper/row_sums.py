# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Sums over the rows of a product that lies in the registers of several warps, which row sums of gradients are made of.

A sum goes through shared memory in two steps: every warp stores the sums of its own rows (`store_warp_sums`); once all
have, one partition adds these up and writes them to memory (`write_sums`). Why pairs of sums must round alike is in
docs/decisions/2026-11-21-exact-gate-gradients.md.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .workarounds import reinterpret


@gluon.jit
def exchanged(low, high, LANES: gl.constexpr):
    """Reduce by a butterfly step: lanes with bit LANES keep `high`, others `low`, each adding its partner's copy."""
    asm: gl.constexpr = f"""{{ .reg .pred p; .reg .b32 lane, kept, sent; mov.u32 lane, %laneid;
        and.b32 lane, lane, {LANES}; setp.ne.b32 p, lane, 0; selp.b32 kept, $2, $1, p; selp.b32 sent, $1, $2, p;
        shfl.sync.bfly.b32 sent, sent, {LANES}, 31, 0xffffffff; add.f32 $0, kept, sent; }}"""
    return gl.inline_asm_elementwise(asm, "=f,f,f", [low, high], gl.float32, is_pure=False, pack=1)


@gluon.jit
def store_warp_sums(products, buffer, part, WARPS: gl.constexpr):
    """Store the sums over the 16 rows that each warp has of products [16 * WARPS, 64].

    A thread has 16 columns of two rows, and 8 lanes have the other rows of the same columns. Every exchange halves
    the columns that a lane goes on with, down to 2: 14 exchanges, where sums in every lane, as `gl.sum`, take 48.

    Args:
        buffer: [parts * WARPS, 64] float32 in shared memory, of which `part` is written.
    """
    rows: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0])
    sums = reinterpret(buffer, gl.float32, [buffer.shape[0] // WARPS, WARPS, 64], rows)
    x = gl.sum(products.reshape([WARPS, 2, 8, 64]), axis=1)  # [warp, lane / 4, column]
    for k in gl.static_range(3):
        low, high = x.reshape([WARPS, 8, 2, 32 >> k]).permute((0, 1, 3, 2)).split()
        x = exchanged(low, high, 16 >> k)
    sums.index(part).store(x.reshape([WARPS, 64]))  # each lane / 4 now has 8 consecutive columns


@gluon.jit
def write_sums(buffer, ptr, steps_left, t, layout: gl.constexpr):
    """Add up what every warp has stored in buffer [warps, 64], and write the sums of a tile to ptr.

    Args:
        steps_left: of the sequence from this tile on: steps beyond are not written.  t: 0 to 63 in `layout`.
    """
    WARPS: gl.constexpr = buffer.shape[0]
    sums = gl.zeros([64], gl.float32, layout=layout)
    for warp in gl.static_range(WARPS):
        sums += buffer.index(warp).load(layout)
    gl.store(ptr + t, sums, mask=t < steps_left)
