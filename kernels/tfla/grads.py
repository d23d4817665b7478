"""dQ, dK and dV: the parallel kernel in its other three roles (paper, Table 1 and section B.3)."""

from __future__ import annotations

from torch import Tensor

from tflabench.kernels.gates import RowSums

from .config import Tiles
from .outputs import launch
from .plan import Plan


def d_queries(
    plan: Plan,
    tiles: Tiles,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dh: Tensor,
    states: Tensor | None,
    inverse: Tensor | None,
    *,
    initial: bool,
    skip: Tensor | None = None,
    skip_dots: Tensor | None = None,
) -> tuple[Tensor, RowSums]:
    """dQ like q, or of more heads if some share one, and q_t.dq_t, from the forward states.

    With a skip connection dh_t.v_t goes into skip_dots (B, H, T) float32.
    """
    dq, row_dots = launch(
        plan, tiles, dh, v, k, states, None, inverse,
        like=q, reverse=False, first_state=initial, probe=q, skip=skip, skip_dots=skip_dots,
    )  # fmt: skip
    assert row_dots is not None
    return dq, row_dots


def d_keys(
    plan: Plan,
    tiles: Tiles,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dh: Tensor,
    d_states: Tensor | None,
    dn_states: Tensor | None,
    inverse: Tensor | None,
    *,
    last: bool,
) -> tuple[Tensor, RowSums]:
    """dK like k (or of more heads), k_t.dk_t, from state gradients and those of n, if any."""
    dk, row_dots = launch(
        plan, tiles, v, dh, q, d_states, dn_states, inverse, like=k, reverse=True, first_state=last, probe=k
    )
    assert row_dots is not None
    return dk, row_dots


def d_values(
    plan: Plan,
    tiles: Tiles,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dh: Tensor,
    d_states: Tensor | None,
    inverse: Tensor | None,
    *,
    last: bool,
    skip: Tensor | None = None,
) -> Tensor:
    """dV like v, from the state gradients."""
    dv, _ = launch(plan, tiles, k, q, dh, d_states, None, inverse, like=v, reverse=True, first_state=last, skip=skip)
    return dv
