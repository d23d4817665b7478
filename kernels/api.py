"""A linear RNN on sequences, of any family: what all operations share, from checks to the kernels.

The operations themselves are in the folders of the families (`scalar.operations`, `gla.operations`). "reference" is
plain PyTorch under plain autograd. All other implementations run behind one torch operator (`chunkwise_operator`),
which asks `backends` for kernels. `step` has the decode step.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Literal, NamedTuple, Protocol, TypedDict, Unpack, cast, overload

import torch
from torch import Tensor

from . import chunkwise_operator, context
from .backends import (
    autocast_dtype,
    check_for_kernels,
    check_implementation,
    kernels_of,
    only_reference,
    reference_of,
    resolve,
)
from .checks import (
    check_chunk_size,
    check_inputs,
    check_is_gate,
    check_name,
    check_one_dtype,
    check_options,
    check_scale,
    check_skip,
    check_state,
)
from .common import packed
from .common.contract import Arguments, KernelOptions, Kernels
from .families import family_of
from .mamba2.epilogue import skip_and_gate
from .scalar.plan.tfla import TileConfig
from .state import State, zero_state
from .types import ChunkSize, Gating, Implementation, Layout


class CommonOptions(TypedDict, total=False):
    """Keywords of every operation on sequences.

    Attributes:
        layout: "bhtd", the default, for q, k, v, h (B, H, T, d) and gates (B, H, T); "bthd" for (B, T, H, d) and
            (B, T, H). Nothing is copied.
        chunk_size: L, the steps between two states in memory. It changes speed and memory, not the result. "auto", the
            default, chooses by shape and device, and by whether a gradient is asked for. At least 16 and a multiple of
            the kernels' tile; for the reference any L >= 1.
        initial_state: the State before the first step; None, the default, is `zero_state`.
        scale: of q; None, the default, is 1/sqrt(d_qk) (for `mamba2_ssd` 1).
        cu_seqlens: (N + 1,), int32 or int64, where N documents begin and end that lie end to end along T, from 0 to T;
            B is 1 then. States are one a document, (N, H, ...). None, the default, is one sequence. Give them on the
            CPU: kernels then take all documents in one launch. On a GPU they are waited for if states go in or out.
        group: a ProcessGroup (torch.distributed) over whose ranks T is divided, None, the default, for one process.
            Every rank calls the operation alike, with its own contiguous steps, in the order of ranks, at least one.
            `cu_seqlens` and `initial_state` are those of the whole sequence, the same on all ranks; the last state is
            that after a rank's own steps, of documents zero where it has none of them. If one rank goes backward, all
            must. torch.compile leaves such a call to Python.
        deterministic_layout: kernels divide a row of the batch, or a document, by its T, as if it were alone. Then its
            bits do not depend on the others; those of the reference may. False, the default, is faster where a row
            alone does not fill a GPU.
    """

    layout: Layout
    chunk_size: ChunkSize
    initial_state: State | None
    scale: float | None
    cu_seqlens: Tensor | None
    group: Any
    deterministic_layout: bool


class Options(CommonOptions, total=False):
    """Keywords of operations with scalar gates: `CommonOptions` and these.

    Attributes:
        state_dtype: torch.float32, the default, or torch.bfloat16: the widest type in which states between chunks lie
            in memory. Kernels keep them in the dtype of q where that is narrower: their products would round them to it
            anyway.
        implementation: "auto", "reference", "hopper", "tfla" (one of the next two), "tfla_xl" or "tfla_limit". "auto",
            the default, is the fused kernels ("hopper": compute capability 9.0) where they take these inputs, else a
            TFLA kernel, else the reference (CPU, float64, head dimensions that are no multiple of 16). It is not the
            fused kernels below a chunk size of 512, as they write larger states. `choose` says which one runs.
        config: for experts, how the TFLA kernels are tiled; None, the default, is `TileConfig.for_shape`.
    """

    state_dtype: torch.dtype
    implementation: Implementation
    config: TileConfig | None


class GateNames(TypedDict, total=False):
    """The gates of all operations on q, k and v, by their names, and what goes with them; each has its own."""

    gate: Gating
    skip: Tensor | None
    i: Tensor
    f: Tensor
    g: Tensor
    slopes: Tensor
    log_decay: Tensor | None
    temperature: float
    beta: Tensor
    beta_max: Literal[1, 2]
    l2_normalize: bool


class OperationOptions(Options, GateNames, total=False):
    """Type the keywords of an `Operation`."""


class Operation(Protocol):
    """An operation on sequences to type checkers: (q, k, v, gates) -> h, or (h, State) with `return_last_state`."""

    @overload
    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *gates: Tensor | None,
        return_last_state: Literal[False] = False, **options: Unpack[OperationOptions],
    ) -> Tensor: ...  # fmt: skip
    @overload
    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *gates: Tensor | None,
        return_last_state: Literal[True], **options: Unpack[OperationOptions],
    ) -> tuple[Tensor, State]: ...  # fmt: skip


def operation(function: Any) -> Operation:
    """Return the function itself, typed as an operation: what it returns depends on `return_last_state`."""
    return function


@operation
def chunkwise(
    q: Tensor, k: Tensor, v: Tensor, f: Tensor | None, i: Tensor | None = None, *,
    gate: Gating, skip: Tensor | None = None, return_last_state: bool = False, **options: Unpack[Options],
) -> Tensor | tuple[Tensor, State]:  # fmt: skip
    """Compute any linear RNN, in parallel over chunks of the sequence (TFLA paper, eqs. 1-9).

        C_t = F_t C_{t-1} + I_t k_t v_t^T,   h_t = scale C_t^T q_t,   normalised if the gate says so

    Gradients flow from h and the last C and n to q, k, v, f, i, skip and the initial C and n; the denominator of h
    and the stabiliser m count as constants (TFLA paper, B.3). NaN in an input reaches every output that depends on it.

    Args:
        q, k: (B, H, T, d_qk), bfloat16, float16 or float32 (float64 too: reference), any strides. With fewer heads than
            v, a divisor of H, each serves H / G consecutive heads.
        v: (B, H, T, d_hv), dtype and device of q. Under autocast q, k, v are cast, gates and states are not.
        f, i: gate pre-activations (B, H, T) of any floating dtype, or what `gate` says instead.
        gate: which gates, of any family, with a normaliser or without.
        skip: (H,), the weight of a skip connection: skip v_t is added to h_t, of a gate without normaliser. None is 0.
        return_last_state: return (h, State) instead of h. The state is float32, of float64 inputs float64.
        options: see `Options`.

    Returns:
        h of the shape of v and the dtype of q, or (h, State) with `return_last_state`.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, device, shape or value, or an implementation that
            cannot run here; the message names the argument, what it is and what it must be.
    """
    return compute(q, k, v, f, i, gate, options, skip=skip, return_last_state=return_last_state)


def compute(
    q: Tensor, k: Tensor, v: Tensor, f: Tensor | None, i: Tensor | None, gate: Gating, options: Any, *,
    names: tuple[str, str] = ("f", "i"), skip: Tensor | None = None, return_last_state: bool,
) -> Any:  # fmt: skip
    """Return what `chunkwise` returns, for an operation that calls its gates by other names."""
    check_options(options, Options.__annotations__)
    chosen = _Chosen(**options)
    with context.checks(chosen.group):
        check_name("layout", chosen.layout, ("bhtd", "bthd"))
        check_is_gate(gate)
        check_inputs((q, k, v, f, i), gate, "BHT" if chosen.layout == "bhtd" else "BTH", names)
        dense = v.is_contiguous()
        if chosen.layout == "bthd":
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            f = f if f is None or f.dim() == 1 else f.transpose(1, 2)
            i = None if i is None else i.transpose(1, 2)
        _check_options(q, v, gate, skip, chosen)
        low = autocast_dtype(q)
        if low is not None:
            q, k, v = (x.to(low) for x in (q, k, v))
        check_one_dtype(q, k, v)
    call = Arguments(q, k, v, f, i, chosen.initial_state, skip)
    run: Any = _run_on_ranks if chosen.group is not None else _run if chosen.cu_seqlens is None else _run_packed
    with nullcontext() if low is None else torch.autocast(q.device.type, enabled=False):
        h, last = run(call, gate, chosen, return_last_state)
    if chosen.layout == "bthd":
        h = h.transpose(1, 2)
        h = h.contiguous() if dense else h  # of kernels it is
    if not return_last_state:
        return h
    return h, last


class _Chosen(NamedTuple):
    """`Options` with their defaults."""

    layout: Layout = "bhtd"
    chunk_size: ChunkSize = "auto"
    initial_state: State | None = None
    scale: float | None = None
    state_dtype: torch.dtype = torch.float32
    implementation: Implementation = "auto"
    config: TileConfig | None = None
    cu_seqlens: Tensor | None = None
    group: Any = None
    deterministic_layout: bool = False


def _check_options(q: Tensor, v: Tensor, gate: Gating, skip: Tensor | None, chosen: _Chosen) -> None:
    """Raise TypeError or ValueError for options that no implementation takes; q, v (B, H, T, d)."""
    if chosen.cu_seqlens is not None:
        packed.check_offsets(chosen.cu_seqlens, q, of_all_steps=chosen.group is None)
    if chosen.initial_state is not None:
        sequences = v.shape[0] if chosen.cu_seqlens is None else chosen.cu_seqlens.numel() - 1
        check_state("initial_state", chosen.initial_state, gate, q, v, sequences)
    if skip is not None:
        check_skip(skip, gate, v)
    check_chunk_size(chosen.chunk_size)
    check_scale(chosen.scale)
    check_name("deterministic_layout", chosen.deterministic_layout, (False, True))
    if chosen.deterministic_layout and chosen.group is not None and chosen.cu_seqlens is not None:
        raise ValueError("deterministic_layout is True: it must be False with a group and cu_seqlens")
    check_name("state_dtype", chosen.state_dtype, (torch.float32, torch.bfloat16))
    check_implementation(chosen.implementation, gate)


def _run_packed(call: Arguments, gate: Gating, chosen: _Chosen, return_last_state: bool) -> tuple[Tensor, State | None]:
    """Return h (1, H, T, d_hv) of documents laid end to end, and the last State of each."""
    assert chosen.cu_seqlens is not None
    T, count = call.v.shape[2], chosen.cu_seqlens.numel() - 1
    if count == 1:
        return _run(call, gate, chosen, return_last_state)
    if chosen.deterministic_layout:
        return _run_batches(call, gate, chosen, return_last_state, packed.runs(packed.bounds(chosen.cu_seqlens, T)))
    states, family = call.initial is not None or return_last_state, family_of(gate)
    # Without states they can be one sequence, whose gate is shut where a document begins.
    one_sequence = not states and gate.forget_of is not None
    if one_sequence and (chosen.cu_seqlens.device.type != "cpu" or torch.compiler.is_compiling()):
        # To look at the offsets would wait for a GPU, or break a graph.
        return _run(*packed.as_one_sequence(call, gate, chosen.cu_seqlens), chosen, False)
    bounds = packed.bounds(chosen.cu_seqlens, T)
    runs = packed.runs(bounds)
    if len(runs) > 1 and _takes_documents(call, gate, chosen, bounds, states=states):
        return _run(*packed.per_step(call, gate), chosen, return_last_state, bounds)
    if not states and (len(runs) > 1 or runs[0].length < family.batch_from):
        return _run(*packed.as_one_sequence(call, gate, chosen.cu_seqlens), chosen, False)
    return _run_batches(call, gate, chosen, return_last_state, runs)


def _run_batches(
    call: Arguments, gate: Gating, chosen: _Chosen, return_last_state: bool, runs: list[packed.Run]
) -> tuple[Tensor, State | None]:
    """Return h and the last states of documents, of one batch of them after the other."""
    outputs: list[Tensor] = []
    ends: list[State] = []
    for batch in packed.batches(call, runs):
        if batch.v.shape[2] == 0:
            h, last = batch.v, _nothing_written(batch, gate)
        else:
            h, last = _run(batch, gate, chosen, return_last_state)
        outputs.append(h)
        if last is not None:
            ends.append(last)
    return packed.end_to_end(outputs), packed.joined(ends) if return_last_state else None


def _takes_documents(call: Arguments, gate: Gating, chosen: _Chosen, bounds: list[int], *, states: bool) -> bool:
    """Return whether kernels run that take documents in one launch, and are the fastest way."""
    q, v, implementation = call.q, call.v, chosen.implementation
    if implementation == "reference" or (implementation == "auto" and only_reference(q, v, gate) is not None):
        return False
    if packed.capturing(v):
        return False
    check_for_kernels(q, v, chosen.chunk_size, chosen.implementation)
    L = None if chosen.chunk_size == "auto" else chosen.chunk_size
    name, _, _ = resolve(
        q, v, gate=gate, implementation=chosen.implementation, chunk_size=L, backward=True, config=chosen.config
    )
    takes = kernels_of(gate.family, name).takes_documents
    return takes is not None and takes(bounds, q, v, states=states)


def _nothing_written(call: Arguments, gate: Gating) -> State:
    """Return the state that documents without steps begin and end with."""
    (B, H, _, d_hv), d_qk = call.v.shape, call.q.shape[-1]
    dtype = torch.promote_types(call.v.dtype, torch.float32)
    if call.initial is not None:
        C, n, m = (None if x is None else x.to(dtype) for x in call.initial)
        return State(cast("Tensor", C), n, m)
    return zero_state(gate, B, H, d_qk, d_hv, device=call.v.device, dtype=dtype)


def _run(
    call: Arguments, gate: Gating, chosen: _Chosen, return_last_state: bool, bounds: list[int] | None = None
) -> tuple[Tensor, State | None]:
    """Return h and the last state: by the reference, or by kernels, which return the state only if it is asked for."""
    q, v = call.q, call.v
    setup, scale, L = _prepared(call, gate, chosen)
    implementation = setup.implementation
    if implementation == "reference" and torch.compiler.is_compiling():
        opaque = call._replace(skip=None), setup._replace(config=None)
        h, last = chunkwise_operator.run(*opaque, scale, L, return_last_state)
        return skip_and_gate(h, v, call.skip, None, head_axis=1, plain=True), last
    if implementation == "reference":
        family = family_of(gate)
        h, last = reference_of(gate).chunkwise(
            *call[:-1],
            gate=gate,
            scale=scale,
            chunk_size=L or family.reference_chunk_size,
            state_dtype=None if q.dtype == torch.float64 else chosen.state_dtype,
        )
        return skip_and_gate(h, v, call.skip, None, head_axis=1, plain=True), last
    check_for_kernels(q, v, chosen.chunk_size, implementation)
    return chunkwise_operator.run(call, setup, scale, L, return_last_state, bounds)


def _prepared(call: Arguments, gate: Gating, chosen: _Chosen) -> tuple[chunkwise_operator.Setup, float, int | None]:
    """Return what runs, the scale of q, and L, None where the kernels choose it."""
    scale = call.q.shape[-1] ** -0.5 if chosen.scale is None else float(chosen.scale)
    implementation = chosen.implementation
    if implementation == "auto" and only_reference(call.q, call.v, gate) is not None:
        implementation = "reference"
    setup = chunkwise_operator.Setup(
        implementation, gate, chosen.state_dtype, chosen.config, chosen.deterministic_layout
    )
    return setup, scale, None if chosen.chunk_size == "auto" else chosen.chunk_size


@cast("Any", torch.compiler).disable
def _run_on_ranks(
    call: Arguments, gate: Gating, chosen: _Chosen, return_last_state: bool
) -> tuple[Tensor, State | None]:
    """Return h of this rank's steps, and the state after them: see `Options.group`."""

    def kernels(piece: Arguments, backward: bool) -> tuple[Kernels, KernelOptions]:
        setup, scale, L = _prepared(piece, gate, chosen)
        if setup.implementation != "reference":
            check_for_kernels(piece.q, piece.v, chosen.chunk_size, setup.implementation)
        key = chunkwise_operator.setup_key(setup.implementation, gate.family, gate.fields, *setup[2:])
        sizes = piece.q, piece.v, scale, float(gate.temperature), L, backward, key
        return chunkwise_operator.kernels_and_options(*sizes, cut_freely=L is None and backward)

    def inside(documents: Arguments, offsets: list[int] | None) -> tuple[Tensor, State | None]:
        alone = chosen._replace(group=None, cu_seqlens=None if offsets is None else torch.tensor(offsets))
        if documents.v.shape[2] == 0:
            return documents.v, _nothing_written(documents, gate)
        return (_run if offsets is None else _run_packed)(documents, gate, alone, True)

    same = {
        "implementation": chosen.implementation, "chunk_size": chosen.chunk_size, "scale": chosen.scale,
        "state_dtype": str(chosen.state_dtype), "deterministic_layout": chosen.deterministic_layout,
    }  # fmt: skip
    h, last = context.run(call, gate, chosen.group, chosen.cu_seqlens, same, kernels, inside)
    plain = chosen.implementation == "reference"
    return skip_and_gate(h, call.v, call.skip, None, head_axis=1, plain=plain), last if return_last_state else None
