"""dQ, dK and dV: the parallel kernel in its other three roles (paper, Table 1 and section B.3)."""

from __future__ import annotations

from torch import Tensor

from tflabench.kernels.scalar.gates import RowSums

from .call import Call, Inputs, States
from .outputs import Role, launch


def d_queries(call: Call, inputs: Inputs, states: States, skip_dots: Tensor | None) -> tuple[Tensor, RowSums]:
    """Return dQ like q, or of more heads if some share one, and the row sums q_t.dq_t.

    Args:
        states: of forward.
        skip_dots: (B, H, T) float32, where dh_t.v_t goes of a call with a skip connection.
    """
    q, k, v, skip, dh, inverse = inputs
    assert dh is not None
    role = Role(dh, v, k, q, states._replace(n_states=None), inverse, reverse=False, probe=q, skip=skip)
    dq, row_dots = launch(call, call.plan.dq, role._replace(skip_dots=skip_dots))
    assert row_dots is not None
    return dq, row_dots


def d_keys(call: Call, inputs: Inputs, states: States) -> tuple[Tensor, RowSums]:
    """Return dK like k, or of more heads if some share one, and the row sums k_t.dk_t, from gradients of states."""
    q, k, v, _, dh, inverse = inputs
    assert dh is not None
    dk, row_dots = launch(call, call.plan.dk, Role(v, dh, q, k, states, inverse, reverse=True, probe=k))
    assert row_dots is not None
    return dk, row_dots


def d_values(call: Call, inputs: Inputs, states: States) -> Tensor:
    """Return dV like v, from gradients of states."""
    q, k, v, skip, dh, inverse = inputs
    assert dh is not None
    dv, _ = launch(
        call, call.plan.dv, Role(k, q, dh, v, states._replace(n_states=None), inverse, reverse=True, skip=skip)
    )
    return dv
