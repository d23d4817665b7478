"""FLOPs and bytes, a step and head, of the launches of the fused kernels that `kernels.scalar.plan.hopper` says.

A walk takes each product once, and tensors once a program; what programs share comes from the L2 for all but one.
"""

from __future__ import annotations

from tflabench.kernels.scalar.plan.hopper import Kernel, StatePass, TileGradients, Walk
from tflabench.kernels.scalar.plan.hopper_shapes import TILE


def of_qk(walk: Walk) -> bool:
    """Tell whether Z and the output belong to q and k, not U and W."""
    return walk.name in ("dq", "dk", "dk, dv")


def scores_again(walk: Walk) -> bool:
    """Tell whether an earlier walk has computed the same scores."""
    return walk.name in ("dk", "dk, dv", "dv")


def state_again(walk: Walk) -> bool:
    """Tell whether an earlier walk has computed the same states."""
    return walk.name in ("dq", "dv")


def tensor_bytes(kernel: Kernel, element_bytes: int) -> float:
    """Return the bytes of tensors through memory.

    Of a walk these are U, W, Z, the row sums' tensor and the output; what programs share comes from the L2 for all but
    one, and there they add to what another has stored. A state pass has two tensors, and gradients tile by tile have v,
    dh, dv, q, k, dq and dk.
    """
    sizes = kernel.sizes
    if isinstance(kernel, StatePass):
        return element_bytes * (sizes.d_qk / sizes.group + sizes.d_hv)
    if isinstance(kernel, TileGradients):
        return element_bytes * TILE * (3 + 2 / sizes.group + 2 / kernel.together)
    shared = 1 / sizes.group
    u_w, z_x = (1, shared) if of_qk(kernel) else (shared, 1)
    of_rows = kernel.rows * (z_x * (1 + kernel.sums) + 1)
    # K is X of row sums.
    k_and_dv = (kernel.rows * shared * (not kernel.sums) + kernel.columns) * kernel.with_dv
    return element_bytes * (2 * kernel.columns * u_w + of_rows + k_and_dv)


def flops(kernel: Kernel, causal_factor: float) -> dict[str, float]:
    """Return the FLOPs of matrix products, each once, and of the state's decay, one a tile.

    The heads of a program share their scores. Gradients tile by tile are eight products of 64 x 64 x 64, five of them
    of a tile's pairs.
    """
    if isinstance(kernel, StatePass):
        return {"state": 2 * kernel.sizes.d_qk * kernel.sizes.d_hv * (1 + 1 / TILE)}
    if isinstance(kernel, TileGradients):
        pairs, states = 2 * TILE * causal_factor * TILE, 2 * TILE**2
        return {"scores": pairs, "scores again": pairs, "outputs": 3 * pairs, "through state": 3 * states}
    scores = 2 * TILE * causal_factor * kernel.columns / kernel.together
    outputs = 2 * TILE * causal_factor * kernel.rows
    state = 2 * kernel.rows * kernel.columns
    return {
        "scores": scores + outputs * kernel.with_dv,  # Q K^T costs as much as dP^T Q
        "outputs": outputs + scores * kernel.with_dv,
        "through state": state * (1 + kernel.with_dv),
        "through the rest of state": state * kernel.sums,
        "sums within": outputs * (kernel.within > 0),
        "state": state * (1 + 1 / TILE),
    }
