"""One function as an implementation: `my_kernel.py:my_kernel=mlstm_sig` in place of a plugin."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tflabench.implementations.adapter import Case, Implementation
from tflabench.implementations.mlstm import GATES, mlstm_kernel
from tflabench.implementations.recurrences import Recurrence, counted_cost, refuse_decode
from tflabench.problem import Problem, one_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def operations() -> dict[str, Recurrence | None]:
    """Return the operations that a function may compute, by the names that `tflabench.ops` has; None for the mLSTM."""
    from tflabench.implementations.bundled import OPERATIONS

    return dict.fromkeys(f"mlstm_{gate}" for gate in GATES) | {str(op.function): op for op in OPERATIONS}


def implementation_of(name: str, compute: Callable[..., Tensor], operation: str) -> Implementation:
    """Return the entry of a function that computes an operation of `tflabench.ops`.

    Args:
        compute: takes the tensors of the operation by their names there, (B, H, T, ...) and contiguous, and returns h
            (B, H, T, d_hv). Autograd differentiates it.

    Raises:
        InputError: no such operation.
    """
    known = operations()
    op = known[one_of("operation", operation, tuple(known))]
    if op is None:
        by_name = lambda q, k, v, i, f: compute(q=q, k=k, v=v, i=i, f=f)  # noqa: E731
        return mlstm_kernel(name, by_name, gate="exp" if operation == "mlstm_exp" else "sig")
    return Implementation(
        name,
        op.family,
        name,
        partial(_build, compute, op),
        refuse_decode,
        cost=partial(counted_cost, op),
        gates=op.gates,
        counts=op.counts,
        bound=op.bound,
        operation=op.name,
        groups=not op.shared,
    )


def _build(compute: Callable[..., Tensor], op: Recurrence, problem: Problem, device: torch.device) -> Case:
    drawn = op.inputs(problem, device)
    inputs = {name: x if x.dim() < 3 else _heads_first(x) for name, x in drawn.items()}
    options: dict[str, Any] = {"implementation": "reference", "chunk_size": op.oracle_chunk_size}
    return Case(
        inputs=inputs,
        forward=partial(compute, **inputs, **op.options),
        oracle=lambda inputs: op.run()(**inputs, **op.options, **options),
        linear=op.values,
    )


def _heads_first(x: Tensor) -> Tensor:
    """Return a leaf (B, H, T, ...) of the values of x (B, T, H, ...)."""
    return x.detach().transpose(1, 2).contiguous().requires_grad_(x.requires_grad)
