"""The contract between operations and kernels of every family: what kernels are called with, and what they offer."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tflabench.kernels.common.tensors import shared
from tflabench.kernels.state import State


class Arguments(NamedTuple):
    """The tensors of a call.

    Attributes:
        q, k: (B, H, T, d_qk), or fewer heads, each for consecutive ones of v; any strides.
        v: (B, H, T, d_hv), of the dtype of q and k; any strides.
        f, i: gates as `Gating` describes them, None where there are none.
        initial: the State before the first step, None for zero.
        skip: (H,), for a gate without normaliser: skip v_t is added to h_t. None for nothing.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    f: Any  # a Tensor, or None
    i: Tensor | None = None
    initial: State | None = None
    skip: Tensor | None = None

    @classmethod
    def of(
        cls, q: Tensor, k: Tensor, v: Tensor, f: Any, i: Tensor | None,
        C: Tensor | None, n: Tensor | None, m: Tensor | None, skip: Tensor | None = None,
    ) -> Arguments:  # fmt: skip
        """Return the tensors of a call whose state is given as its own; there is none without C."""
        return cls(q, k, v, f, i, None if C is None else State(C, n, m), skip)


class KernelOptions(NamedTuple):
    """Options of a call, as kernels get them with its tensors.

    Attributes:
        gate: which gates, a `Gating`.
        scale: of q.
        chunk_size: L, steps between two states in memory.
        state_dtype: the widest type in which states between chunks lie in memory.
        config: for experts, how kernels are tiled; None lets them choose.
        return_last_state: forward returns the State after the last step.
        deterministic_layout: plans are those of one row of the batch, whatever the batch.
        cut_freely: the caller gave no chunk size, and L is the default for backward. Forward may divide the sequence
            otherwise, as long as it saves what backward reads.
        backward: there will be one, so forward saves what it reads.
        gate_gradients: backward returns df and di.
        bounds: where documents begin and end, [0, ..., T], that lie end to end along T in a batch of one. Each has its
            state, (documents, H, ...). The forget gate is one a step then, and there is no skip. None for sequences.
        exchange: of a part of a sequence (`kernels.context`). Forward calls it with the State after the last step, and
            starts from the one that it returns. Backward calls it with the gradient of the State before the first step,
            and takes what it returns for d_last. Both are as they are without it until then.
    """

    gate: Any  # of the class of its family
    scale: float
    chunk_size: int
    state_dtype: torch.dtype = torch.float32
    config: Any = None
    deterministic_layout: bool = False
    return_last_state: bool = True
    cut_freely: bool = False
    backward: bool = True
    gate_gradients: bool = True
    bounds: tuple[int, ...] | None = None
    exchange: Callable[[Any], Any] | None = None


class Kernels(NamedTuple):
    """Functions and properties of an implementation, as the torch operator calls it.

    Attributes:
        forward: (arguments, options) -> (h, last, saved): h with the shape and strides of `torch.empty_like(v)`; the
            State after the last step, or None if it is not asked for; and a tuple of tensors for backward. All of them
            fresh: none shares memory with an input or with another.
        backward: (dh, d_last, arguments, saved, options) -> (dq, dk, dv, df, di, dC, dn), each made as
            `torch.empty_like` makes it, and None where the input is None; without `options.gate_gradients` df and di
            are None too. d_last is a State without m, or None.
        refuses: (q, v, *, gate, chunk_size, config) -> the reason why the kernels cannot run here, or None if they can.
        default_chunk_size: (q, v, *, gate, backward) -> L; backward says whether there will be one.
        empty_saved: (q, v, options) -> uninitialised tensors like `saved`.
        shares_heads: q and k may have fewer heads than v, each for H / G consecutive ones; dq and dk are then summed
            over these. Kernels without it get copies of q and k.
        adds_skip: forward and backward heed `arguments.skip`, and backward returns its gradient behind the others.
            Kernels without it get None, and the skip connection is another pass over memory.
        auto_from: "auto" takes these kernels from this chunk size on, where one is given.
        takes_documents: (bounds, q, v, *, states) -> whether kernels that heed `options.bounds` are the fastest way for
            documents; states: whether states go in or out. None for kernels that do not heed it.
        exchanges: (gate) -> whether forward and backward heed `options.exchange`. Those that do not run twice.
    """

    forward: Callable[[Arguments, KernelOptions], tuple[Tensor, State | None, tuple[Tensor, ...]]]
    backward: Callable[[Tensor, State | None, Arguments, tuple[Tensor, ...], KernelOptions], tuple[Tensor | None, ...]]
    refuses: Callable[..., str | None]
    default_chunk_size: Callable[..., int]
    empty_saved: Callable[[Tensor, Tensor, KernelOptions], tuple[Tensor, ...]] = lambda q, v, options: ()
    shares_heads: bool = False
    adds_skip: bool = False
    auto_from: int = 0
    takes_documents: Callable[..., bool] | None = None
    exchanges: Callable[[Any], bool] = lambda gate: True

    def taken(self, call: Arguments) -> Arguments:
        """Return the call with a copy of q and k for each head of v, where these kernels need that."""
        if self.shares_heads:
            return call
        heads = call.v.shape[1]
        return call._replace(q=shared(call.q, heads), k=shared(call.k, heads))

    @classmethod
    def of(cls, module: ModuleType, **properties: Any) -> Kernels:
        """Return the functions of a module that have these names, with other properties."""
        return cls(**{name: getattr(module, name) for name in cls._fields if hasattr(module, name)}, **properties)
