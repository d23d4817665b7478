"""Make the gradients of gates and strengths of sums that the walk for dq and dk has written, see backward_dqk.py."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# (Triton's language looks like Python, but its types are its own.)

from __future__ import annotations

import triton
import triton.language as tl

from tflabench.kernels.delta.hopper_plan import SUMS

VECTORS = tl.constexpr(SUMS)


@triton.jit(do_not_specialize=["num_steps", "num_tiles"])
def finish_gates(sums, g, dg, dbeta, steps, num_steps, num_tiles, PIECES: tl.constexpr, GATED: tl.constexpr):
    """Write dg, if there is a decay, and dbeta of a tile, a program each, from the sums of all pieces.

    Args:
        steps: of documents, see `DeltaSchedule`; None for sequences.
    """
    row, tile = tl.program_id(0) // num_tiles, tl.program_id(0) % num_tiles
    i = tl.arange(0, 64)
    db = tl.zeros([64], tl.float32)
    passing = tl.zeros([64], tl.float32)
    of_beta = tl.zeros([64], tl.float32)
    for piece in tl.static_range(PIECES):
        at = sums + (piece * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * (VECTORS * 64) + i
        db += tl.load(at) + tl.load(at + 128)
        passing += tl.load(at + 64) + tl.load(at + 192)
        of_beta += tl.load(at + 256)
    t = tile * 64 + i
    if steps is not None:
        t = tl.load(steps + t)
    there = (t >= 0) & (t < num_steps)
    at = row.to(tl.int64) * num_steps + t
    tl.store(dbeta + at, of_beta, mask=there)
    if GATED:
        of_g = tl.cumsum(db, 0, reverse=True) + tl.sum(passing, 0)
        shut = tl.load(g + at, mask=there, other=0.0) < -110.0  # its weight is 0 in float32: so is the gradient
        tl.store(dg + at, tl.where(shut, 0.0, of_g), mask=there)
