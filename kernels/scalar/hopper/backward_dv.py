# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Backward pass of gated linear attention for v, in a walk of its own (see `backward_dkdv.py` for one with dk).

    dV_j = 2^(y_j + g) dC^T K_j + sum_{i >= j} P_ji dH_i    P_ji = (K_j . Q_i) 2^(y_j + x_i)
    dC  <- 2^g dC + sum_i 2^x_i Q_i dH_i^T                  after every tile

This is the walk of h with time reversed, a query K, a key Q and a value dH: the partitions are those of state_walk.py.
"""

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.scalar.plan.hopper import Walk

from .config import WalkConfig
from .launch import WalkInputs, descriptor, pointers
from .schedule import Counts, Schedule
from .state import States
from .state_walk import run_walk
from .workarounds import ASSEMBLY


@gluon.jit(do_not_specialize=["num_items", "num_steps", "num_tiles"])
def walk_backward_dv(
    k_desc, q_desc, dh_desc, dv_desc, gates, states, skip_ptr, num_items, num_steps, num_tiles, counts,
    config: gl.constexpr,
):  # fmt: skip
    """Compute dV of all work items, as `forward.walk_forward` does H; states: `States` of dC."""
    schedule = Schedule(num_items, num_steps, num_tiles, counts)
    run_walk(schedule, (k_desc, q_desc, dh_desc), dv_desc, gates, states, skip_ptr, config)


def launch_dv(inputs: WalkInputs, dh: Tensor, dv: Tensor, walk: Walk, *, initial: Tensor | None) -> None:
    """Write dv (B, H, T, d_hv), without waiting for the kernel launched just before: that makes nothing of the inputs.

    Args:
        initial: dC (B, H, segments, d_qk, d_hv) float32, or None for zero.
    """
    q, k, _, exponents, skip, documents = inputs
    config = WalkConfig.of(
        walk.shape, d_qk=walk.sizes.d_qk, d_hv=walk.sizes.d_hv,
        bfloat16=q.dtype == torch.bfloat16, reverse=True, skip=skip is not None, documents=documents is not None,
    )  # fmt: skip
    states, unused = States(initial=initial), exponents.g
    enqueue(
        walk_backward_dv, walk.programs, *map(descriptor, (k, q, dh, dv)), exponents,
        pointers(states, unused), unused if skip is None else skip,
        walk.items, walk.sizes.steps, walk.cut.tiles, Counts.of(walk, states, documents, independent=True),
        config=config, num_warps=4, maxnreg=walk.shape.launch_registers, launch_pdl=walk.pieces == 1, **ASSEMBLY,
    )  # fmt: skip
