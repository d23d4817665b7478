"""Packed sequences: documents laid end to end along T, in a batch of one.

Without states in or out all documents can be one sequence, whose forget gate is shut where a document begins. Documents
of one length that follow each other can be a batch. And the fused kernels take documents as they are
(`KernelOptions.bounds`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tflabench.kernels.backends import reference_of
from tflabench.kernels.checks import kind
from tflabench.kernels.common.contract import Arguments
from tflabench.kernels.common.tensors import unflatten
from tflabench.kernels.state import State
from tflabench.kernels.types import Gating


def check_offsets(cu_seqlens: object, q: Tensor, *, of_all_steps: bool = True) -> None:
    """Raise TypeError or ValueError unless documents can begin and end there; q (B, H, T, d_qk).

    Values on a GPU are not looked at: that would wait for it. Nor are they where q does not have all steps.
    """
    if not isinstance(cu_seqlens, Tensor):
        raise TypeError(f"cu_seqlens is {kind(cu_seqlens)}: it must be a tensor")
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"cu_seqlens is {cu_seqlens.dtype}: it must be int32 or int64")
    if cu_seqlens.dim() != 1 or cu_seqlens.numel() < 2:
        raise ValueError(f"cu_seqlens has the shape {tuple(cu_seqlens.shape)}: it must be (documents + 1,)")
    if cu_seqlens.device != q.device and cu_seqlens.device.type != "cpu":
        raise ValueError(f"cu_seqlens is on {cu_seqlens.device}: it must be where q is, on {q.device}, or on the CPU")
    if q.shape[0] != 1:
        raise ValueError(f"q has the batch size {q.shape[0]}: it must be 1 with cu_seqlens, documents end to end")
    if of_all_steps and cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
        bounds(cu_seqlens, q.shape[2])


_seen: Any = WeakTensorKeyDictionary()  # torch gives it no types; offsets on a GPU: their version, and numbers


def numbers(offsets: Tensor) -> list[int]:
    """Return offsets as a list. The first call for a tensor on a GPU waits for that GPU."""
    read = cast("Any", offsets).tolist
    if offsets.device.type == "cpu" or offsets.is_inference() or torch.compiler.is_compiling():
        return read()
    version: int = offsets._version
    seen: tuple[int, list[int]] | None = _seen.get(offsets)
    if seen is None or seen[0] != version:
        seen = version, read()
        _seen[offsets] = seen
    return seen[1]


def bounds(cu_seqlens: Tensor, T: int) -> list[int]:
    """Return where documents begin and end, [0, ..., T]; the first time a tensor on a GPU is waited for.

    Raises:
        ValueError: they do not begin at 0, end at T, or one ends before it begins.
    """
    edges = numbers(cu_seqlens)
    if edges[0] != 0 or edges[-1] != T:
        raise ValueError(f"cu_seqlens goes from {edges[0]} to {edges[-1]}: it must go from 0 to T, which is {T}")
    for begin, end in pairwise(edges):
        if end < begin:
            raise ValueError(f"cu_seqlens has {end} behind {begin}: it must not decrease")
    return edges


def begins(cu_seqlens: Tensor, T: int, device: torch.device) -> Tensor:
    """Return whether a document begins at a step, behind the first: (T,) of bool. This waits for no GPU."""
    inner = cu_seqlens[1:-1].to(device, torch.int64, non_blocking=True)
    return torch.zeros(T + 1, dtype=torch.bool, device=device).index_fill(0, inner, value=True)[:T]


def as_one_sequence(call: Arguments, gate: Gating, cu_seqlens: Tensor) -> tuple[Arguments, Gating]:
    """Return the call and the gate of one sequence that forgets all where a document begins."""
    if gate.forget_of is None:
        f, gate = reference_of(gate).without_decay(gate, call.v)
        call = call._replace(f=f)
    call, gate = per_step(call, gate)
    shut = begins(cu_seqlens, call.v.shape[2], call.f.device)
    shut = shut if call.f.dim() == 3 else shut[:, None]
    return call._replace(f=call.f.masked_fill(shut, float("-inf"))), gate


def per_step(call: Arguments, gate: Gating) -> tuple[Arguments, Gating]:
    """Return the call and the gate with a log decay a step, where they have a decay that is one number a head."""
    if not gate.per_head:
        return call, gate
    f, gate = reference_of(gate).per_step(gate, call.f, call.i, call.v)
    return call._replace(f=f), gate


class Run(NamedTuple):
    """Documents of one length that follow each other: how many, and their steps."""

    documents: int
    length: int


def runs(bounds: list[int]) -> list[Run]:
    """Return the documents as runs, of where they begin and end."""
    lengths = (end - begin for begin, end in pairwise(bounds))
    return [Run(len([*same]), length) for length, same in groupby(lengths)]


def batches(call: Arguments, of: list[Run]) -> Iterator[Arguments]:
    """Yield the call of each run, a batch of its documents, which have their own of the N states (N, H, ...)."""

    def parts(x: Tensor | None) -> Sequence[Any]:
        return [x] * len(of) if x is None or x.dim() == 1 else together(x, of)

    counts = [run.documents for run in of]
    starts = [None] * len(of) if call.initial is None else _states(call.initial, counts)
    for q, k, v, f, i, start in zip(*(parts(x) for x in call[:5]), starts, strict=True):
        yield Arguments(q, k, v, f, i, start, call.skip)


def together(x: Tensor, of: list[Run]) -> list[Tensor]:
    """Return the documents of each run of x (1, H, T, ...) as a batch (count, H, length, ...); nothing is copied."""
    parts = split(x, [documents * length for documents, length in of], 2)
    return [unflatten(part.squeeze(0), 1, run).transpose(0, 1) for part, run in zip(parts, of, strict=True)]


def end_to_end(batches: list[Tensor]) -> Tensor:
    """Return documents (count, H, length, d) of runs end to end, (1, H, T, d): the inverse of `together`."""
    parts = [x.transpose(0, 1).flatten(1, 2) for x in batches]
    return (parts[0] if len(parts) == 1 else torch.cat(parts, 1)).unsqueeze(0)


def split(x: Tensor, lengths: list[int], axis: int) -> list[Tensor]:
    """Return parts of x of these lengths. Backward is one concatenation, where slices add up zeros of all of x."""
    return [*cast("Any", x).split(lengths, axis)]  # torch gives it no types


def capturing(x: Tensor) -> bool:
    """Return whether a CUDA graph is being captured: it is not to read what is kept of documents, which may go."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def _states(states: State, counts: list[int]) -> list[State]:
    n, m = ([None] * len(counts) if x is None else split(x, counts, 0) for x in states[1:])
    return [State(*parts) for parts in zip(split(states.C, counts, 0), n, m, strict=True)]


def joined(states: list[State]) -> State:
    """Return one State of N documents, (N, H, ...), of the states of runs."""
    n, m = (_cat([state[part] for state in states]) for part in (1, 2))
    return State(torch.cat([state.C for state in states]), n, m)


def _cat(parts: list[Tensor | None]) -> Tensor | None:
    present = [x for x in parts if x is not None]
    return torch.cat(present) if present else None
