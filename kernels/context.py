"""One sequence over the ranks of a process group (context parallelism): each rank has a contiguous part of T.

A rank's state is a linear function of the state that its part starts from: decay * start + what it adds from zero. So
every rank adds up its part from zero, one all-gather brings these states and decays to all, and each rank joins those
before its own. Backward the gradients of states go the other way, by one all-gather too. Kernels do both between making
states and reading them (`KernelOptions.exchange`); those that cannot run twice.

Ranks tell each other, on the CPU, how long their parts are and what they are called with. That is where a mistake on
one rank becomes an error on each.
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, pairwise, product
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor

from .backends import reference_of
from .chunkwise_operator import wants_gradients
from .common.contract import Arguments, KernelOptions, Kernels
from .common.packed import bounds as bounds_of
from .common.packed import joined, numbers
from .scalar.reference import M_FLOOR
from .state import State, gradient_of_state, zero_state
from .types import Gating

MESSAGE = 4096  # bytes in which a rank says what it is called with
LONGEST = 500  # letters of a refusal, of which each may take six bytes
Made = tuple[Tensor, State | None, tuple[Tensor, ...]]  # what `Kernels.forward` returns
Gradients = tuple[Tensor | None, ...]  # what `Kernels.backward` does

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


@contextmanager
def checks(group: object) -> Iterator[None]:
    """Make what checks of arguments raise within the block an error on all ranks of the group, if there is one."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if dist.is_available() and isinstance(group, dist.ProcessGroup):
            with suppress(ValueError):
                agreement_of(group).lengths(0, {"refuses": str(error)[:LONGEST]})
        raise


@contextmanager
def _answers_expected() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise RuntimeError(f"a rank of the group does not answer, it ended or waits elsewhere: {reason}") from error


class Agreement:
    """Compares, on the CPU, what the ranks of a group are called with.

    A rank whose call is one on which all have agreed before goes ahead, and looks at the answers in backward or in its
    next call. With any other call it waits for them. Where ranks differ each raises the error, and a rank that waited
    first sends as much as one that went ahead, lest that one's GPU waits forever.
    """

    def __init__(self, group: Any) -> None:
        """Join; `group` may have no backend for tensors of the CPU.

        What sends these is no group of `torch.distributed`, whose name depends on how many groups a process is in.
        """
        backend = group._get_backend(next(iter(group._device_types)))
        timeout = getattr(getattr(backend, "options", None), "_timeout", None) or dist.default_pg_timeout
        c10d = cast("Any", dist.distributed_c10d)
        store = c10d.PrefixStore(f"tflabench/{group.group_name}", c10d._get_default_store())
        self.group = group
        with _answers_expected():
            self._messages: Any = dist.ProcessGroupGloo(store, group.rank(), group.size(), timeout)
        self._sent: dict[str, tuple[Tensor, int] | None] = {}  # by each call of sequences that all had
        self._work: Any = None

    def lengths(self, T: int, call: dict[str, Any], *, of_documents: bool = True) -> list[int]:
        """Tell the other ranks what this one is called with, and return how many steps each has.

        Args:
            call: what must be the same on all ranks.
            of_documents: the lengths matter, so this rank waits for them; otherwise they may be only its own.

        Raises:
            ValueError: a rank refuses its arguments, or ranks are called with different ones.
            RuntimeError: a rank does not answer.
        """
        self.settle()
        self._call, self._of_documents = json.dumps(call), of_documents
        self._ahead = not of_documents and self._call in self._sent
        said = f"{T} {int(self._ahead)} {self._call}".ljust(MESSAGE).encode()
        self._answers = torch.empty((self.group.size(), MESSAGE), dtype=torch.uint8)
        self._work = self._messages.allgather(
            [[*self._answers.unbind()]], [torch.frombuffer(bytearray(said), dtype=torch.uint8)]
        )
        return [T] * self.group.size() if self._ahead else self.settle()

    def settle(self) -> list[int]:
        """Return the lengths that the ranks have answered, if that has not been looked at yet."""
        if self._work is None:
            return []
        work, self._work = self._work, None
        with _answers_expected():
            work.wait()
        answers = [row.numpy().tobytes().decode().rstrip().split(" ", 2) for row in self._answers]
        wrong = _difference([call for _, _, call in answers])
        if wrong is None:
            if not self._of_documents:
                self._sent.setdefault(self._call)
            return [int(T) for T, _, _ in answers]
        like, elements = next((self._sent[call] for _, ahead, call in answers if int(ahead)), None) or (None, 0)
        if like is not None and not self._ahead:
            self._all_gather(like.new_empty(elements)).cpu()
        raise ValueError(wrong)

    def gathered(self, flat: Tensor, *, first: bool) -> Tensor:
        """Return such a vector of every rank, (ranks, elements); `first`: it is the first of a call."""
        if first and self._call in self._sent:
            self._sent[self._call] = flat.new_empty(0), flat.numel()
        return self._all_gather(flat)

    def _all_gather(self, flat: Tensor) -> Tensor:
        of_ranks = flat.new_empty(self.group.size() * flat.numel())
        all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        with _answers_expected():
            all_gather(of_ranks, flat, group=self.group)
        return of_ranks.view(-1, flat.numel())


def _difference(calls: list[str]) -> str | None:
    """Return why ranks with these calls cannot compute together, or None if they can."""
    if len({*calls}) == 1 and "refuses" not in calls[0]:
        return None
    said = [json.loads(call) for call in calls]
    for rank, there in enumerate(said):
        if "refuses" in there:
            return f"rank {rank} of the group refuses: {there['refuses']}"
    name, rank = next((key, n) for key, n in product(said[0], range(len(said))) if said[n].get(key) != said[0][key])
    what = f"{name} is {said[0][name]} on rank 0 and {said[rank].get(name)} on rank {rank} of the group"
    return f"{what}: it must be the same on all ranks"


agreement_of = functools.cache(Agreement)


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
    """Brings states from the ranks before, and their gradients from the ranks behind.

    Attributes:
        here: the steps of this rank.
        crossed: whether a document crosses a border.
    """

    def __init__(
        self, ranks: Agreement, of_ranks: list[Span], zero: Callable[[], State], decay: Callable[[], Tensor]
    ) -> None:
        """Take the steps of all ranks, and what return a zero state of a document and `decay_of` this rank's steps."""
        self.ranks, self.rank, self.of_ranks = ranks, ranks.group.rank(), of_ranks
        self.here = of_ranks[self.rank]
        self.crossed = any(span.leaves for span in of_ranks)
        self._zero, self._decay = zero, decay
        self._decays: list[Tensor] = []
        self._m: Tensor | None = None

    def start(self, end: State | None) -> State | None:
        """Return the state that this rank's steps start from, None where no document enters.

        Args:
            end: the state after them, of a start from zero if a document enters; None where none leaves.
        """
        if not self.crossed:
            return None
        end = end or self._zero()
        self._m = None if end.m is None else end.m.clamp(min=M_FLOOR)
        tensors = _present(end._replace(m=self._m))
        passed = any(span.passes for span in self.of_ranks)
        rows = self._gathered([*tensors, self._decay()] if passed else tensors, first=True)
        self._decays = [row[-1].clone() for row in rows] if passed else []
        if not self.here.enters:
            return None
        first = self.rank - 1
        while self.of_ranks[first].passes:
            first -= 1
        state = State(*rows[first][: len(tensors)])
        for rank in range(first + 1, self.rank):
            added, m, decay = State(*rows[rank][: len(tensors)]), None, self._decays[rank]
            if state.m is not None and added.m is not None:
                m = torch.maximum(decay[..., 0, 0] + state.m, added.m).clamp(min=M_FLOOR)
                added = _carried(added, torch.zeros_like(decay), added.m - m)
                state = _carried(state, decay, state.m - m)
            else:
                state = _carried(state, decay)
            state = _sum(state, added)._replace(m=m)
        C, n, self._m = (None if x is None else x.clone() for x in state)
        return State(cast("Tensor", C), n, self._m)

    def gradient(self, of_start: State | None) -> State | None:
        """Return the gradient of the state that this rank's steps end with, None where no document leaves.

        Args:
            of_start: the gradient of the state that they start from, as if nothing came of the one they end with on
                later ranks; None where no document enters.
        """
        if not self.crossed:
            return None
        self.ranks.settle()
        C, n, _ = of_start or self._zero()
        rows = self._gathered(_present(State(C, n, self._m)))
        if not self.here.leaves:
            return None
        last = self.rank + 1
        while self.of_ranks[last].passes:
            last += 1
        d = State(*rows[last])
        for rank in range(last - 1, self.rank, -1):
            more, decay = State(*rows[rank]), self._decays[rank]
            m = None if more.m is None or d.m is None else more.m - d.m
            d = _sum(_carried(d, decay.mT if decay.shape[-1] > 1 else decay, m), more)._replace(m=more.m)
        return d._replace(m=None)

    def _gathered(self, tensors: list[Tensor], *, first: bool = False) -> list[list[Tensor]]:
        """Return such tensors of every rank."""
        flat = torch.cat([x.reshape(-1) for x in tensors])
        of_ranks = (row.split([x.numel() for x in tensors]) for row in self.ranks.gathered(flat, first=first))
        return [[y.view(x.shape) for x, y in zip(tensors, row, strict=True)] for row in of_ranks]


def _present(state: State) -> list[Tensor]:
    return [x for x in state if x is not None]


def _carried(state: State, decay: Tensor, m: Tensor | None = None) -> State:
    """Return C and n after steps with a `decay_of`, times exp(m)."""
    if decay.shape[-1] > 1:
        return State(decay @ state.C)
    keep = torch.exp(decay if m is None else decay + m[..., None, None])
    return State(keep * state.C, None if state.n is None else keep[..., 0] * state.n)


def _sum(x: State, y: State) -> State:
    return State(x.C + y.C, y.n if x.n is None else x.n if y.n is None else x.n + y.n)


def decay_of(kernels: Kernels, options: KernelOptions, call: Arguments) -> Tensor:
    """Return what steps multiply a state by.

    It is a log decay (B, H, 1 or d_qk, 1), or for a delta rule a matrix (B, H, d_qk, d_qk), which is what becomes of
    the identity where no values are written.
    """
    q, _, v, f, i = call[:5]
    log_decay = reference_of(options.gate).log_decay(options.gate, f, i, v)
    if log_decay is not None:
        return log_decay
    d, wide = q.shape[-1], torch.promote_types(q.dtype, torch.float32)
    identity = torch.eye(d, dtype=wide, device=q.device).repeat(*v.shape[:2], 1, 1)
    of_no_values = call._replace(v=v.new_zeros((*v.shape[:3], d)), initial=State(identity))
    last = kernels.forward(of_no_values, options._replace(backward=False))[1]
    assert last is not None
    return last.C


# --- The parts of documents that cross a border -----------------------------------------------------------------------


class Piece(NamedTuple):
    """A document's steps on this rank, and what runs on them.

    Attributes:
        call: its state is None where it enters.
        enters, leaves: it began on a rank before; it goes on on the next.
    """

    kernels: Kernels
    options: KernelOptions
    call: Arguments
    enters: bool
    leaves: bool

    def forward(self, exchange: Callable[[State | None], State | None]) -> Made:
        """Run it, with the state that it starts from by `exchange` of the one that it would end with."""
        if self.kernels.exchanges(self.options.gate):
            return self.kernels.forward(self.call, self.options._replace(exchange=exchange))
        made = self.kernels.forward(self.call, self.options) if self.leaves else None
        start = exchange(made[1] if made else None)
        if made and start is self.call.initial:
            return made
        return self.kernels.forward(self.call._replace(initial=start), self.options)

    def backward(
        self, dh: Tensor, d_last: State | None, saved: tuple[Tensor, ...],
        exchange: Callable[[State | None], State | None],
    ) -> Gradients:  # fmt: skip
        """Return its gradients, with that of its last state by `exchange` of that of its first one."""
        if self.kernels.exchanges(self.options.gate):
            return self.kernels.backward(dh, d_last, self.call, saved, self.options._replace(exchange=exchange))
        gradients, of_start = None, None
        if self.enters:
            gradients = self.kernels.backward(dh, d_last, self.call, saved, self.options)
            of_start = State(cast("Tensor", gradients[5]), gradients[6])
        of_last = exchange(of_start)
        if gradients and of_last is d_last:
            return gradients
        return self.kernels.backward(dh, of_last, self.call, saved, self.options)


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
            given: the tensors of the pieces' calls, which autograd sees so.
        """
        del anchor, given
        start: State | None = None

        def exchange(end: State | None) -> State | None:
            nonlocal start
            start = chain.start(end if chain.here.leaves else None)
            return start if pieces[-1].enters else pieces[-1].call.initial

        if not pieces:
            exchange = chain.start
            exchange(None)
        made = [piece.forward(exchange) for piece in pieces[-1:]]
        pieces = [x._replace(call=x.call._replace(initial=start)) if x.enters else x for x in pieces]
        for piece in pieces[:-1]:  # backward exchanges
            made.insert(0, piece.forward(lambda _: start))
        ctx.save_for_backward(*(x for piece in pieces for x in _flat(piece.call)), *(x for y in made for x in y[2]))
        ctx.chain, ctx.pieces = chain, [piece._replace(call=None) for piece in pieces]
        ctx.counts = [len(saved) for _, _, saved in made]
        ctx.set_materialize_grads(False)
        outputs = [x for h, last, _ in made for x in (h, *(last or (None, None, None)))]
        ctx.mark_non_differentiable(*(x for x in outputs[3::4] if x is not None))
        return (*outputs, inside)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return gradients of `inside` and of the tensors of the pieces' calls."""
        chain: Chain = ctx.chain
        kept = iter(ctx.saved_tensors)
        calls = [Arguments.of(*(next(kept) for _ in range(8))) for _ in ctx.pieces]
        pieces: list[Piece] = [piece._replace(call=call) for piece, call in zip(ctx.pieces, calls, strict=True)]
        saved = [tuple(next(kept) for _ in range(count)) for count in ctx.counts]
        dh = [torch.zeros_like(call.v) if x is None else x for call, x in zip(calls, grads[::4], strict=False)]
        d_last = [
            gradient_of_state(dC, dn, call.v.shape[-1])
            for call, dC, dn in zip(calls, grads[1::4], grads[2::4], strict=False)
        ]

        def exchange(of_start: State | None) -> State | None:
            of_end = chain.gradient(of_start if chain.here.enters else None)
            if of_end is not None:
                d_last[-1] = of_end if d_last[-1] is None else _sum(of_end, d_last[-1])
            return d_last[0]

        if not pieces:
            exchange(None)
        of_given: list[Tensor | None] = []
        for n, piece in enumerate(pieces):
            if n == 0:
                gradients = piece.backward(dh[n], d_last[n], saved[n], exchange)
            else:
                gradients = piece.kernels.backward(dh[n], d_last[n], piece.call, saved[n], piece.options)
            of_given += [*gradients[:5], *((None, None) if piece.enters else gradients[5:7]), None]
        return None, None, None, grads[-1], *of_given


def _flat(call: Arguments) -> list[Tensor | None]:
    return [*call[:5], *(call.initial or (None, None, None))]


# --- A call -----------------------------------------------------------------------------------------------------------


def run(
    call: Arguments, gate: Gating, group: Any, cu_seqlens: Tensor | None, options: dict[str, Any],
    kernels: Callable[[Arguments, bool], tuple[Kernels, KernelOptions]],
    inside: Callable[[Arguments, list[int] | None], tuple[Tensor, State | None]],
) -> tuple[Tensor, State]:  # fmt: skip
    """Return h of this rank's steps, and the State after the last one that it has of each of all documents.

    That is zero of a document that it has no step of.

    Args:
        call: q, k and v have the steps of this rank; the initial state is that of the whole sequence, or one for each
            of all documents; skip is not heeded.
        cu_seqlens: where documents begin and end among the steps of all ranks; None for sequences.
        options: what must be the same on all ranks.
        kernels: returns what runs on a piece of a document, of whether there will be a backward.
        inside: returns h and states of documents that cross no border, of where these begin and end.
    """
    call, initial = call._replace(skip=None), call.initial
    backward = wants_gradients(*call[:5], *(initial or ()))
    with checks(group):
        check_group(group, call.v.device)
        if not hasattr(reference_of(gate), "log_decay"):
            raise ValueError(f"group is given: it must be None for {gate}, whose family has no log_decay")
        of_all = kernels(call, backward)
    q, _, v = call[:3]
    same = {
        "operation": repr(gate), "B": v.shape[0], "heads": v.shape[1], "heads of q": q.shape[1], "d_qk": q.shape[-1],
        "d_hv": v.shape[-1], "dtype": str(q.dtype), "device": v.device.type, **options, "with gradients": backward,
        "initial_state given": initial is not None,
        "checksum of cu_seqlens": None if cu_seqlens is None else zlib.crc32(repr(numbers(cu_seqlens)).encode()),
    }  # fmt: skip
    ranks = agreement_of(group)
    lengths = ranks.lengths(v.shape[2], same, of_documents=cu_seqlens is not None)
    bounds = None if cu_seqlens is None else bounds_of(cu_seqlens, sum(lengths))
    zero = functools.partial(
        zero_state, gate, heads=v.shape[1], d_qk=q.shape[-1], d_hv=v.shape[-1],
        device=v.device, dtype=torch.promote_types(q.dtype, torch.float32),
    )  # fmt: skip
    of_ranks = spans(bounds or [0, sum(lengths)], lengths)

    def decay() -> Tensor:
        return decay_of(*of_all, of_all[0].taken(call))

    chain = Chain(ranks, of_ranks, functools.partial(zero, v.shape[0]), decay)
    here, count = chain.here, len(chain.here.bounds) - 1
    begin, end = int(here.enters), count - here.leaves
    outputs: dict[int, tuple[Tensor, State]] = {}
    h_inside = None
    if begin < end:
        places = None if bounds is None else [at - here.bounds[begin] for at in here.bounds[begin : end + 1]]
        h_inside, last = inside(_documents(call, here, begin, end) if bounds else call, places)
        outputs[begin] = h_inside, cast("State", last)
    if chain.crossed:
        first_ones = list(dict.fromkeys([0] * here.enters + [count - 1] * here.leaves))
        pieces: list[Piece] = []
        for n in first_ones:
            of_piece = _documents(call, here, n, n + 1) if bounds else call
            enters = here.enters and n == 0
            run_by, with_options = kernels(of_piece, backward) if bounds else of_all
            of_piece = run_by.taken(of_piece._replace(initial=None) if enters else of_piece)
            pieces.append(Piece(run_by, with_options, of_piece, enters, here.leaves and n == count - 1))
        anchor = call.v.new_empty(0).requires_grad_(backward)
        *made, h_inside = _Crossing.apply(
            chain, pieces, anchor, h_inside, *(x for piece in pieces for x in _flat(piece.call))
        )
        if h_inside is not None:
            outputs[begin] = h_inside, outputs[begin][1]
        for place, n in enumerate(first_ones):
            outputs[n] = made[4 * place], State(*made[4 * place + 1 : 4 * place + 4])
    hs, states = zip(*(outputs[n] for n in sorted(outputs)), strict=True)
    h = hs[0] if len(hs) == 1 else torch.cat(hs, 2)
    if bounds is None:
        return h, states[0]
    return h, joined([zero(here.first), *states, zero(len(bounds) - 1 - here.first - count)])


def _documents(call: Arguments, here: Span, first: int, last: int) -> Arguments:
    """Return the call of some of a rank's documents, with their states."""
    begin, end = here.bounds[first], here.bounds[last]
    tensors = [x if x is None or x.dim() == 1 else x[:, :, begin:end] for x in call[:5]]
    states = (None if x is None else x[here.first + first : here.first + last] for x in call.initial or (None,) * 3)
    return Arguments.of(*cast("Any", (*tensors, *states)))
