"""NX-AI's xlstm: xLSTMLarge, whose backend is that of mlstm_kernels, and the cell of the smaller blocks."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from torch import Tensor

from . import mlstm, mlstm_kernels
from .core import Installed, Replacement, kept_by_instances

VERSIONS = {"xlstm": ("2.0.6",), **mlstm_kernels.VERSIONS}
LEFT = {
    "sLSTMCell": "its gates depend on the step before, which ours do not compute",
    "chunkwise_simple": "no model of xlstm calls it",
}


def plan(handle: Installed, force: bool) -> list[Replacement]:
    """Return what to replace."""
    cell: Any = importlib.import_module("xlstm.blocks.mlstm.cell")
    handle.left.update(LEFT)
    replacements = mlstm_kernels.backend(handle)
    for name, ours, native in (
        ("backend_fn", parallel, cell.parallel_stabilized_simple),
        ("backend_fn_step", step, cell.recurrent_step_stabilized_simple),
    ):
        read = functools.partial(_instead, handle, ours, native)
        replacements.append(Replacement(f"mLSTMCell.{name}", cell.mLSTMCell, name, kept_by_instances(name, read)))
    return replacements


def _instead(
    handle: Installed, ours: Callable[..., Any], native: Callable[..., Any], cell: Any, kept: Callable[[], Any]
) -> Callable[..., Any]:
    if kept() is not native:  # somebody gave the cell a function of their own
        return kept()
    handle.count()
    return ours


def parallel(
    queries: Tensor, keys: Tensor, values: Tensor, igate_preact: Tensor, fgate_preact: Tensor, **ignored: Any
) -> Tensor:
    """Compute what `parallel_stabilized_simple` does: mLSTMexp from nothing, in time that grows with T and not T^2.

    Args:
        queries, keys, values: (B, H, T, d).
        igate_preact, fgate_preact: (B, H, T, 1).
        ignored: the causal mask and eps.

    Returns:
        h (B, H, T, d).
    """
    gates = igate_preact[..., 0], fgate_preact[..., 0]
    return mlstm.sequence(queries, keys, values, *gates, mlstm.NOTHING, return_last_states=False)[0]


def step(
    c_state: Tensor, n_state: Tensor, m_state: Tensor, q: Tensor, k: Tensor, v: Tensor,
    igate_preact: Tensor, fgate_preact: Tensor, **ignored: Any,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Compute what `recurrent_step_stabilized_simple` does: one step of mLSTMexp, whose keys are scaled.

    Args:
        c_state, n_state, m_state: (B, H, d, d), (B, H, d, 1), (B, H, 1, 1); they stay as they are.
        q, k, v: (B, H, 1, d).
        igate_preact, fgate_preact: (B, H, 1, 1).

    Returns:
        h (B, H, 1, d), and the states after the step, in the dtype of q.
    """
    q, k, v = (x[:, :, 0] for x in (q, k, v))
    k = k * k.shape[-1] ** -0.5
    states = c_state, n_state[..., 0], m_state[..., 0]
    gates = igate_preact[..., 0], fgate_preact[..., 0]
    h, (C, n, m) = mlstm.one_step(q, k, v, *gates, states, state_dtype=q.dtype, scale=1.0)
    return h[:, :, None], (C, n[..., None], m[..., None])
