"""One sequence over the ranks of a process group (context parallelism): each rank has a contiguous part of T.

A rank's state is a linear function of the state that its part starts from: decay * start + what it adds from zero. So
every rank adds up its part from zero, one all-gather brings these states and decays to all, and each rank joins those
before its own. Backward the gradients of states go the other way, by one all-gather too. Kernels that heed
`KernelOptions.exchange` do both between making states and reading them; the others run twice.

Before anything is computed ranks tell each other, on the CPU, how long their parts are and what they are called with.
That is where a mistake on one rank becomes an error on each.
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor

from .backends import reference_of
from .common.contract import Arguments, KernelOptions, Kernels
from .common.packed import bounds as bounds_of
from .common.packed import joined, numbers
from .common.tensors import shared
from .scalar.reference import M_FLOOR
from .state import State, zero_state
from .types import Gating

MESSAGE = 1024  # bytes in which a rank says what it is called with

# --- What ranks agree on ----------------------------------------------------------------------------------------------


def check_group(group: object, device: torch.device) -> None:
    """Raise TypeError or ValueError unless it is a process group of this process that sends tensors of `device`."""
    if not dist.is_available():
        raise ValueError("group is given, but this torch is built without torch.distributed")
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"group is a {type(group).__name__}: it must be a ProcessGroup that this rank is in")
    backends = {kind.type for kind in group._device_types}
    if device.type not in backends:
        raise ValueError(f"group has no backend for {device.type}: it must have NCCL for a GPU, or gloo for the CPU")
    if device.type == "cuda" and dist.get_backend(group) == "gloo":
        raise ValueError("group has the backend gloo: it must have NCCL for tensors on a GPU")


def checks(group: object) -> AbstractContextManager[None]:
    """Return a context for checks of arguments: what is raised in it becomes an error on all ranks of the group."""
    return nullcontext() if group is None else _refusals_shared(group)


@contextmanager
def _refusals_shared(group: object) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        if isinstance(group, dist.ProcessGroup):
            _told({"refuses": str(error)}, group)
        raise


def agreed_lengths(call: Arguments, gate: Gating, group: Any, options: dict[str, Any]) -> list[int]:
    """Return how many steps each rank has.

    Args:
        options: what must be the same on all ranks beside the sizes of the call.

    Raises:
        ValueError: a rank refuses its arguments, or ranks are called with different ones.
        RuntimeError: a rank does not answer.
    """
    q, _, v = call[:3]
    mine = {
        "operation": repr(gate), "T": v.shape[2], "B": v.shape[0], "heads": v.shape[1], "heads of q": q.shape[1],
        "d_qk": q.shape[-1], "d_hv": v.shape[-1], "dtype": str(q.dtype), **options,
    }  # fmt: skip
    all_ranks = _told(mine, group)
    for rank, said in enumerate(all_ranks):
        if "refuses" in said:
            raise ValueError(f"rank {rank} of the group refuses: {said['refuses']}")
    first = all_ranks[0]
    for rank, said in enumerate(all_ranks):
        for name in first:
            if name != "T" and said.get(name) != first[name]:
                what = f"{name} is {first[name]} on rank 0 and {said.get(name)} on rank {rank} of the group"
                raise ValueError(f"{what}: it must be the same on all ranks")
    return [said["T"] for said in all_ranks]


_on_cpu: dict[Any, Any] = {}  # groups for messages, of groups that have no backend for the CPU


def _told(mine: dict[str, Any], group: Any) -> list[dict[str, Any]]:
    """Return what every rank says, of what this one says."""
    if "cpu" not in {kind.type for kind in group._device_types}:
        if group not in _on_cpu:
            ranks = dist.get_process_group_ranks(group)
            timeout = getattr(group._get_backend(torch.device("cuda")).options, "_timeout", None)
            _on_cpu[group] = dist.new_group(ranks, timeout, "gloo", use_local_synchronization=True)
        group = _on_cpu[group]
    text = json.dumps(mine)
    if len(text) > MESSAGE:
        text = json.dumps({key: value[: MESSAGE // 4] for key, value in mine.items()})
    said = torch.frombuffer(bytearray(text.ljust(MESSAGE).encode()[:MESSAGE]), dtype=torch.uint8)
    gathered = torch.empty((group.size(), MESSAGE), dtype=torch.uint8)
    try:
        dist.all_gather([*gathered.unbind()], said, group=group)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise RuntimeError(f"a rank of the group does not answer, it ended or waits elsewhere: {reason}") from error
    return [json.loads(bytes(row.tolist())) for row in gathered]


class Span(NamedTuple):
    """The documents that have steps on a rank; one sequence, or a batch, is one document.

    Attributes:
        first: the number of the first of them.
        bounds: where they begin and end among the steps of the rank.
        enters: the first began on a rank before.
        leaves: the last goes on on the next rank.
    """

    first: int
    bounds: list[int]
    enters: bool
    leaves: bool

    @property
    def passes(self) -> bool:
        """Tell whether one document goes through from the rank before to the next one."""
        return self.enters and self.leaves and len(self.bounds) == 2


def spans(bounds: Sequence[int], lengths: Sequence[int]) -> list[Span]:
    """Return the parts of all ranks, of where documents begin and end and how many steps each rank has."""
    made: list[Span] = []
    for begin, end in pairwise(accumulate(lengths, initial=0)):
        last = end == bounds[-1]
        here = [
            (number, max(b, begin), min(e, end))
            for number, (b, e) in enumerate(pairwise(bounds))
            if max(b, begin) < min(e, end) or (b == e and (begin <= b < end or (last and b == end)))
        ]
        first, behind = here[0][0], here[-1][0] + 1
        places = [at - begin for at in (begin, *(e for _, _, e in here))]
        made.append(Span(first, places, bounds[first] < begin, bounds[behind] > end))
    return made


# --- What ranks send --------------------------------------------------------------------------------------------------


class Chain:
    """Brings states from the ranks before, and their gradients from the ranks behind."""

    def __init__(self, group: Any, of_ranks: list[Span], gate: Gating, like: State) -> None:
        """Take the parts of all ranks, and a state for shapes, dtype and device of all."""
        self.group, self.gate, self.like = group, gate, like
        self.rank = dist.get_rank(group)
        self.parts = of_ranks
        self.crossed = any(part.leaves for part in of_ranks)
        self.passed = any(part.passes for part in of_ranks)
        self.decays: list[Tensor | None] = [None] * len(of_ranks)
        self.m: Tensor | None = None

    def _gathered(self, *given: Tensor | None, like: Sequence[Tensor | None]) -> list[tuple[Tensor | None, ...]]:
        """Return tensors of the shapes of `like` from every rank; those that a rank does not have are zero."""
        named = [x for x in like if x is not None]
        mine = [
            (y.new_zeros(y.shape) if x is None else x.to(y.dtype)).reshape(-1)
            for x, y in zip(given, like, strict=True)
            if y is not None
        ]
        flat = torch.cat(mine)
        gathered = flat.new_empty((len(self.parts), flat.numel()))
        dist.all_gather([*gathered.unbind()], flat, group=self.group)
        made: list[tuple[Tensor | None, ...]] = []
        for row in gathered:
            tensors = iter(row.split([x.numel() for x in named]))
            made.append(tuple(None if x is None else next(tensors).view(x.shape) for x in like))
        return made

    def start(self, end: State | None, decay: Callable[[], Tensor] | None = None) -> State | None:
        """Return the state that this rank's part starts from, None where no document enters.

        Args:
            end: the state after this part, of a start from zero if a document enters; None where none leaves.
            decay: returns what a state is multiplied by on its way through this part (`decay_of`).
        """
        if not self.crossed:
            return None
        factor = decay() if decay and self.parts[self.rank].passes else None
        like = self._decay_like() if self.passed else None
        rows = self._gathered(*(end or (None, None, None)), factor, like=(*self.like, like))
        self.decays = [None if row[3] is None else row[3].clone() for row in rows]
        if not self.parts[self.rank].enters:
            return None
        first = self.rank - 1
        while self.parts[first].passes:
            first -= 1
        state = self._state(rows[first])
        for rank in range(first + 1, self.rank):
            state = self._joined(state, self.decays[rank], self._state(rows[rank]))
        C, n, self.m = (None if x is None else x.clone() for x in state)
        assert C is not None
        return State(C, n, self.m)

    def gradient(self, of_start: State | None) -> State | None:
        """Return the gradient of the state that this rank's part ends with, None where no document leaves.

        Args:
            of_start: the gradient of the state that the part starts from, as if nothing came of the one it ends with
                on later ranks; None where no document enters.
        """
        if not self.crossed:
            return None
        dC, dn, _ = of_start or (None, None, None)
        rows = self._gathered(dC, dn, self.m, like=self.like)
        if not self.parts[self.rank].leaves:
            return None
        last = self.rank + 1
        while self.parts[last].passes:
            last += 1
        d = self._state(rows[last])
        for rank in range(last - 1, self.rank, -1):
            more, decay = self._state(rows[rank]), self.decays[rank]
            assert decay is not None
            if _is_matrix(self.gate):
                d = State(decay.mT @ d.C + more.C)
                continue
            keep = decay if more.m is None or d.m is None else decay + (more.m - d.m)[..., None, None]
            keep = torch.exp(keep)
            n = None if more.n is None or d.n is None else keep[..., 0] * d.n + more.n
            d = State(keep * d.C + more.C, n, more.m)
        return State(d.C, d.n)

    def _joined(self, before: State, decay: Tensor | None, added: State) -> State:
        """Return the state after a part that starts from `before`, of what it adds from zero."""
        assert decay is not None
        if _is_matrix(self.gate):
            return State(decay @ before.C + added.C)
        m, new = None, None
        if before.m is not None and added.m is not None:
            from_before = decay[..., 0, 0] + before.m
            m = torch.maximum(from_before, added.m).clamp(min=M_FLOOR)
            decay, new = (from_before - m)[..., None, None], torch.exp(added.m - m)[..., None, None]
        keep = torch.exp(decay)
        C = keep * before.C + (added.C if new is None else new * added.C)
        if added.n is None or before.n is None:
            return State(C, None, m)
        return State(C, keep[..., 0] * before.n + (added.n if new is None else new[..., 0] * added.n), m)

    def _state(self, row: tuple[Tensor | None, ...]) -> State:
        C, n, m = row[:3]
        assert C is not None
        return State(C, n, None if m is None else m.clamp(min=M_FLOOR))

    def _decay_like(self) -> Tensor:
        B, H, d_qk, _ = self.like.C.shape
        matrix = _is_matrix(self.gate)
        rows, columns = matrix or self.gate.forget_of == "channel", matrix
        return self.like.C.new_empty((B, H, d_qk if rows else 1, d_qk if columns else 1))


def _is_matrix(gate: Gating) -> bool:
    """Return whether a part multiplies states by a matrix, not by exp of a log decay that its family sums up."""
    return not hasattr(reference_of(gate), "log_decay")


def decay_of(kernels: Kernels, call: Arguments, options: KernelOptions) -> Tensor:
    """Return what a state is multiplied by on its way through a part.

    It is the log decay (B, H, 1 or d_qk, 1); for a delta rule the matrix (B, H, d_qk, d_qk), which is what becomes of
    the identity where no values are written.
    """
    q, _, v, f, i = call[:5]
    if not _is_matrix(options.gate):
        return reference_of(options.gate).log_decay(options.gate, f, i, v)
    d = q.shape[-1]
    wide = torch.promote_types(q.dtype, torch.float32)
    identity = torch.eye(d, dtype=wide, device=q.device).expand(*v.shape[:2], d, d).contiguous()
    of_no_values = call._replace(v=v.new_zeros((*v.shape[:3], d)), initial=State(identity))
    asked = options._replace(return_last_state=True, backward=False, exchange=None)
    last = kernels.forward(of_no_values, asked)[1]
    assert last is not None
    return last.C


# --- The parts of documents that cross a border -----------------------------------------------------------------------


class Piece(NamedTuple):
    """A document's steps on this rank, and what runs on them.

    Attributes:
        enters, leaves: it began on a rank before; it goes on on the next.
    """

    kernels: Kernels
    options: KernelOptions
    enters: bool
    leaves: bool


Made = tuple[Tensor, State | None, tuple[Tensor, ...]]  # what `Kernels.forward` returns
Gradients = tuple[Tensor | None, ...]


def _forward(piece: Piece, call: Arguments, exchange: Callable[[State | None], State | None]) -> Made:
    """Run a piece, with the state that it starts from by `exchange` of the one that it would end with."""
    kernels, options = piece.kernels, piece.options
    if kernels.exchanges(options.gate):
        return kernels.forward(call, options._replace(exchange=exchange))
    if not piece.leaves:
        return kernels.forward(call._replace(initial=exchange(None)), options)
    made = kernels.forward(call, options)
    start = exchange(made[1])
    return made if start is call.initial else kernels.forward(call._replace(initial=start), options)


def _backward(
    piece: Piece, dh: Tensor, d_last: State | None, call: Arguments, saved: tuple[Tensor, ...],
    exchange: Callable[[State | None], State | None],
) -> Gradients:  # fmt: skip
    """Return gradients of a piece, with that of its last state by `exchange` of that of its first one."""
    kernels, options = piece.kernels, piece.options
    if kernels.exchanges(options.gate):
        return kernels.backward(dh, d_last, call, saved, options._replace(exchange=exchange))
    if not piece.enters:
        return kernels.backward(dh, exchange(None), call, saved, options)
    gradients = kernels.backward(dh, d_last, call, saved, options)
    dC, dn = gradients[5:7]
    assert dC is not None
    of_last = exchange(State(dC, dn))
    return gradients if of_last is d_last else kernels.backward(dh, of_last, call, saved, options)


def _sum(one: State | None, other: State | None) -> State | None:
    """Return the sum of two gradients of a state, of which None is zero."""
    if one is None or other is None:
        return other if one is None else one
    n = one.n if other.n is None else other.n if one.n is None else one.n + other.n
    return State(one.C + other.C, n)


def _forward_pieces(pieces: list[Piece], calls: list[Arguments], chain: Chain) -> tuple[list[Made], list[Arguments]]:
    """Return what pieces make, and their calls with the states that they start from."""
    if not pieces:
        chain.start(None)
        return [], []
    last, call = pieces[-1], calls[-1]
    entering: State | None = None

    def exchange(end: State | None) -> State | None:
        nonlocal entering
        entering = chain.start(end if last.leaves else None, lambda: decay_of(last.kernels, call, last.options))
        return entering if last.enters else call.initial

    made = [_forward(last, call, exchange)]
    calls = [x._replace(initial=entering) if piece.enters else x for piece, x in zip(pieces, calls, strict=True)]
    if len(pieces) > 1:
        made.insert(0, pieces[0].kernels.forward(calls[0], pieces[0].options))
    return made, calls


def _backward_pieces(
    pieces: list[Piece], calls: list[Arguments], chain: Chain, dh: list[Tensor], d_last: list[State | None],
    saved: list[tuple[Tensor, ...]],
) -> list[Gradients]:  # fmt: skip
    """Return gradients of pieces."""
    if not pieces:
        chain.gradient(None)
        return []
    first = pieces[0]
    leaving: State | None = None

    def exchange(of_start: State | None) -> State | None:
        nonlocal leaving
        leaving = chain.gradient(of_start if first.enters else None)
        return _sum(d_last[0], leaving) if first.leaves else d_last[0]

    made = [_backward(first, dh[0], d_last[0], calls[0], saved[0], exchange)]
    if len(pieces) > 1:
        of_last = _sum(d_last[1], leaving)
        made.append(pieces[1].kernels.backward(dh[1], of_last, calls[1], saved[1], pieces[1].options))
    return made


class _Crossing(torch.autograd.Function):
    """Pieces as an operation of autograd: its backward is one on every rank, of pieces or not."""

    @staticmethod
    def forward(
        ctx: Any, chain: Chain, pieces: list[Piece], anchor: Tensor, inside: Tensor | None, *given: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Return h, C, n and m of each piece, and `inside`.

        Args:
            anchor: requires a gradient if there will be a backward.
            inside: h of documents that cross no border.
            given: q, k, v, f, i, C, n, m of each piece.
        """
        del anchor
        calls = [_call(given[8 * n : 8 * n + 8]) for n in range(len(pieces))]
        made, calls = _forward_pieces(pieces, calls, chain)
        tensors = [x for call in calls for x in (*call[:5], *(call.initial or (None, None, None)))]
        saved = [x for _, _, saved in made for x in saved]
        ctx.save_for_backward(*tensors, *saved)
        ctx.counts = [len(saved) for _, _, saved in made]
        ctx.chain, ctx.pieces = chain, pieces
        ctx.set_materialize_grads(False)
        outputs = [x for h, last, _ in made for x in (h, *(last or (None, None, None)))]
        ctx.mark_non_differentiable(*(x for x in outputs[3::4] if x is not None))
        return (*outputs, inside)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return gradients of `inside` and of q, k, v, f, i, C and n of each piece."""
        count = len(ctx.pieces)
        kept = list(ctx.saved_tensors)
        calls = [_call(kept[8 * n : 8 * n + 8]) for n in range(count)]
        rest = iter(kept[8 * count :])
        saved = [tuple(next(rest) for _ in range(number)) for number in ctx.counts]
        dh: list[Tensor] = []
        d_last: list[State | None] = []
        for n, call in enumerate(calls):
            of_h, dC, dn, _ = grads[4 * n : 4 * n + 4]
            dh.append(torch.zeros_like(call.v) if of_h is None else of_h)
            if dC is None and dn is not None:
                dC = dn.new_zeros((*dn.shape, call.v.shape[-1]))
            d_last.append(None if dC is None else State(dC, dn))
        made = _backward_pieces(ctx.pieces, calls, ctx.chain, dh, d_last, saved)
        of_given: list[Tensor | None] = []
        for piece, gradients in zip(ctx.pieces, made, strict=True):
            of_states = (None, None) if piece.enters else gradients[5:7]
            of_given += [*gradients[:5], *of_states, None]
        return None, None, None, grads[-1], *of_given


def _call(tensors: Sequence[Tensor | None]) -> Arguments:
    q, k, v, f, i, C, n, m = tensors
    assert q is not None
    assert k is not None
    assert v is not None
    return Arguments(q, k, v, f, i, None if C is None else State(C, n, m))


# --- A call -----------------------------------------------------------------------------------------------------------


def run(
    call: Arguments, gate: Gating, group: Any, cu_seqlens: Tensor | None, options: dict[str, Any],
    kernels: Callable[[Arguments, bool], tuple[Kernels, KernelOptions]],
    inside: Callable[[Arguments, list[int] | None], tuple[Tensor, State | None]],
) -> tuple[Tensor, State]:  # fmt: skip
    """Return h of this rank's part and the states after its last steps.

    Args:
        call: q, k and v have the steps of this rank; the initial state is that of the whole sequence, or one for each
            of all documents.
        cu_seqlens: where documents begin and end among the steps of all ranks; None for sequences.
        options: what must be the same on all ranks.
        kernels: returns what runs on a piece of a document, of whether there will be a backward.
        inside: returns h and states of documents that cross no border, of where these begin and end.

    Returns:
        h, and the State after the last step that this rank has of a sequence, or of each of all documents: zero of one
        that it has no step of.
    """
    initial = call.initial
    wanted = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (*call[:5], *(initial or ())))
    with checks(group):
        kernels(call, wanted)
    offsets = None if cu_seqlens is None else zlib.crc32(repr(numbers(cu_seqlens)).encode())
    options = {**options, "with gradients": wanted, "initial_state given": initial is not None}
    lengths = agreed_lengths(call, gate, group, {**options, "checksum of cu_seqlens": offsets})
    bounds = None if cu_seqlens is None else bounds_of(cu_seqlens, sum(lengths))
    of_ranks = spans(bounds or [0, sum(lengths)], lengths)
    part = of_ranks[dist.get_rank(group)]
    zero = functools.partial(
        zero_state, gate, heads=call.v.shape[1], d_qk=call.q.shape[-1], d_hv=call.v.shape[-1],
        device=call.v.device, dtype=torch.promote_types(call.q.dtype, torch.float32),
    )  # fmt: skip
    chain = Chain(group, of_ranks, gate, zero(call.v.shape[0]))

    outputs: list[Tensor] = []
    states: list[State] = []
    h_inside = None
    count = len(part.bounds) - 1
    begin, end = int(part.enters), count - part.leaves
    if begin < end:
        places = None if bounds is None else [at - part.bounds[begin] for at in part.bounds[begin : end + 1]]
        h_inside, last_inside = inside(_documents(call, part, begin, end, bounds is not None), places)
        assert last_inside is not None
        outputs.append(h_inside)
        states.append(last_inside)
    if chain.crossed:
        numbers_of_pieces = dict.fromkeys([0] * part.enters + [count - 1] * part.leaves)
        calls = [_documents(call, part, n, n + 1, bounds is not None) for n in numbers_of_pieces]
        pieces, given = _pieces(calls, part, lambda call: kernels(call, wanted))
        anchor = call.v.new_empty(0).requires_grad_(wanted)
        *made, h_inside = _Crossing.apply(chain, pieces, anchor, h_inside, *given)
        outputs = [] if h_inside is None else [h_inside]
        for n, piece in enumerate(pieces):
            h, *last = made[4 * n : 4 * n + 4]
            at = 0 if piece.enters else len(outputs)
            outputs.insert(at, h)
            states.insert(at, State(*last))
    h = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)
    if bounds is None:
        return h, states[0]
    return h, joined([zero(part.first), *states, zero(len(bounds) - 1 - part.first - count)])


def _documents(call: Arguments, part: Span, first: int, last: int, packed: bool) -> Arguments:
    """Return the call of some of a rank's documents, with their states."""
    begin, end = part.bounds[first], part.bounds[last]
    q, k, v, f, i = (x if x is None or x.dim() == 1 else x[:, :, begin:end] for x in call[:5])
    states = call.initial
    if packed and states is not None:
        C, n, m = (None if x is None else x[part.first + first : part.first + last] for x in states)
        states = State(cast("Tensor", C), n, m)
    return Arguments(cast("Tensor", q), cast("Tensor", k), cast("Tensor", v), f, i, states)


def _pieces(
    calls: list[Arguments], part: Span, kernels: Callable[[Arguments], tuple[Kernels, KernelOptions]]
) -> tuple[list[Piece], list[Tensor | None]]:
    """Return what runs on the documents that cross a border, and their tensors as `_Crossing` takes them."""
    pieces: list[Piece] = []
    given: list[Tensor | None] = []
    for place, call in enumerate(calls):
        enters, leaves = part.enters and place == 0, part.leaves and place == len(calls) - 1
        run_by, options = kernels(call)
        q, k, v, f, i, initial, _ = call
        if not run_by.shares_heads:
            q, k = shared(q, v.shape[1]), shared(k, v.shape[1])
        pieces.append(Piece(run_by, options, enters, leaves))
        given += [q, k, v, f, i, *(initial if initial and not enters else (None, None, None))]
    return pieces, given
