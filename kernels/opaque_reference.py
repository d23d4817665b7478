"""The reference as kernels that torch.compile and torch.export do not look into.

It loops over chunks. They would unroll that loop, into a graph for each number of chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .common.contract import Arguments, KernelOptions, Kernels
from .families import Family
from .state import State

_c: Any = torch._C  # pyright: ignore[reportPrivateUsage]  without types of its own
_OUTSIDE = _c._dispatch_tls_local_exclude_set()  # of an operator: what torch's dispatcher passes over


def kernels(family: Family) -> Kernels:
    """Return the reference of a family as kernels. Backward computes forward again, for its derivatives."""
    chunkwise = family.reference().chunkwise

    def computed(arguments: Arguments, options: KernelOptions) -> tuple[Tensor, State]:
        return chunkwise(
            *arguments[:6],
            gate=options.gate,
            scale=options.scale,
            chunk_size=options.chunk_size,
            state_dtype=None if arguments.q.dtype == torch.float64 else options.state_dtype,
        )

    def forward(arguments: Arguments, options: KernelOptions) -> tuple[Tensor, State, tuple[Tensor, ...]]:
        h, last = computed(arguments, options)
        copies: Any = (None if x is None else x.clone(memory_format=torch.contiguous_format) for x in last)
        return torch.empty_like(arguments.v).copy_(h), State(*copies), ()

    def backward(
        dh: Tensor, d_last: State | None, arguments: Arguments, saved: tuple[Tensor, ...], options: KernelOptions
    ) -> tuple[Tensor | None, ...]:
        del saved
        gates = arguments[3:5] if options.gate_gradients else (None, None)
        C, n, m = arguments.initial or (None, None, None)
        given = (*arguments[:3], *gates, C, n)
        with _recorded():
            leaves: list[Any] = [None if x is None else x.detach().requires_grad_() for x in given]
            q, k, v, f, i, C, n = leaves
            start = None if C is None else State(C, n, m)
            f, i = (f, i) if options.gate_gradients else arguments[3:5]
            h, last = computed(Arguments(q, k, v, f, i, start), options)
            pairs = [(h, dh), *zip(last[:2], d_last or (), strict=False)]
            outputs, gradients = zip(*((y, dy) for y, dy in pairs if y is not None and dy is not None), strict=True)
            wanted = [x for x in leaves if x is not None]
            made = iter(torch.autograd.grad(outputs, wanted, gradients, materialize_grads=True))
        return tuple(None if x is None else torch.empty_like(x).copy_(next(made)) for x in given)

    return Kernels(
        forward=forward,
        backward=backward,
        refuses=lambda q, v, **others: None,
        default_chunk_size=lambda q, v, **others: family.reference_chunk_size,
        shares_heads=True,
        exchanges=lambda gate: False,
    )


@contextmanager
def _recorded() -> Iterator[None]:
    """Let autograd record in an operator, which it passes over."""
    with torch.enable_grad(), _c._ForceDispatchKeyGuard(_c._dispatch_tls_local_include_set(), _OUTSIDE):
        yield
