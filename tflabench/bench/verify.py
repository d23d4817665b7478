"""The correctness gate: forward and every gradient of a Case against its oracle in float64.

One rule holds for every implementation, ours and those of libraries: the error allowed is a small multiple of the one
that plain PyTorch makes at the precision of the problem with the same formula. The oracle, run in that dtype, is
measured against float64 on the same inputs. Only what is nearly as far off as values of half the size is wrong whatever
PyTorch does: else a gradient of zeros would pass where PyTorch's own error is large
(docs/decisions/2026-11-24-model-held-out.md).

The error of one slice is a draw: of few numbers, or of a sum of many terms, it varies several times from one way of
rounding to the next, for plain PyTorch as for a kernel. So the limit is ALLOWED times the largest of plain PyTorch's
errors over REALISATIONS draws, where these are cheap: the slices compared, and copies of them whose values lie one
rounding beside. A right kernel exceeds it only where its draw is twice as large as the largest of that many others.
Gradients of one number a step are sums over channels and steps. They have few numbers, and kernels of other chunk sizes
form other sums: ALLOWED_SUM times is theirs.
In 16 bits the sums of a kernel are wider than what it reads. In float32 they are not: gradients of one number a step
collect the roundings of a state that is carried from step to step, a random walk over the steps, where plain PyTorch
adds up in blocks. So plain PyTorch's error of these is taken for as large as such a walk at least.
Such a limit is loose where single steps decide the error (normalisers near their threshold). The median over the steps,
which these do not move, has a limit of its own by the same rule: it tells what is computed less exactly everywhere.

A gradient that kernels sum up from rounded terms (`Case.as_kernels_do`) is held to the error to be expected of that
sum. The roundings of T terms add up to a random walk, and the root mean square of a walk differs much from one
realisation to the next, however large T is: simulated (200,000 pairs), it is more than twice that of another walk of
the same variance in 18% of all cases, in 33% for the worse of two slices, so that a bound made of one realisation would
have to allow 8.6 times for 99.9% to pass. Of its expected value, the root of the mean variance, it is at most 3.15
times in 99.9% for the worse of two slices, and the furthest excursion at most 3.64 times the final standard deviation.
The expected value is known: variances are suffix sums of the squares of what plain PyTorch's terms are off by rounding
(published kernels' are off as much: 0.24% in dq and dk, both, in bfloat16).

Where slices or steps are left out, and the output is linear in an input v (`Case.linear`), all of both is compared
after one random projection: with signs s over the channels of v, the oracle of v s is the output times s, and its
gradient dv s. That costs the oracle one channel in place of all. Of the projection twice as much is allowed as of the
slices, and of a block of steps no less than OF_ZEROS.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch
import torch.utils.deterministic
from torch import Tensor

from tflabench.implementations.adapter import Case, differentiate, suffix_sum

SHAPE_STEPS = 16  # that the oracle computes to tell its shape
FIRST_STEPS = 512  # compared whatever they cost; what more would cost is estimated from them
SLICES = 8  # (batch, head) slices compared, drawn anew for every check; all where there are no more
REALISATIONS = 32  # of plain PyTorch's error in each slice, where the oracle computes so many cheaply
CHEAP = 1 << 18  # numbers of inputs of slices and copies: where slices have more there are no copies
WHOLE = 2.0  # times what is allowed for slices, for all of them after a projection
WHOLE_SHARE = 0.25  # of the budget, for that
BLOCK = 64  # steps of a projection that count as one: of single ones, numbers near zero would decide
AT_ONCE = 1 << 24  # numbers of inputs that the oracle takes at a time: one slice where that has more
ALLOWED = 2.0  # times plain PyTorch's own error
ALLOWED_SUM = 3.0  # the same for a gradient of one number a step
ALLOWED_STEP = 4.0  # the same for the worst single step, an extreme value and so less steady
ALLOWED_WALK = 3.2  # times the expected error of a sum of rounded terms
# Of all elements, the worst and the median step: what plain PyTorch's error is at least taken for, in roundings
# (`_Draw.least`), how many times ALLOWED is allowed, and how many times the expected error of a sum of rounded terms.
LIMITS = ((0.5, 1.0, 0.5), (1.0, ALLOWED_STEP / ALLOWED, 1.0), (ALLOWED_WALK, ALLOWED_STEP, ALLOWED_WALK))
ACCUMULATOR_BYTES = 4  # of the numbers that kernels add up in
OF_ZEROS = 0.4  # times the error of zeros, whatever plain PyTorch does: less than results of half the size are off by


@dataclass(frozen=True)
class Error:
    """Deviation of one tensor from float64, relative to the root mean square of the true values.

    Attributes:
        name: "forward", or "d" and the input's name.
        error, allowed: root mean square over all compared elements.
        step_error, step_allowed: of the worst single time step, so that one wrong row in a long sequence shows.
        median_error, median_allowed: of the median time step.
        mean_absolute: mean of |actual - true|, not relative to anything.
    """

    name: str
    error: float
    allowed: float
    step_error: float
    step_allowed: float
    median_error: float
    median_allowed: float
    mean_absolute: float

    @property
    def wrong(self) -> bool:
        """Return whether an error is larger than allowed; NaN is."""
        return not (
            self.error <= self.allowed
            and self.step_error <= self.step_allowed
            and self.median_error <= self.median_allowed
        )  # NaN is wrong

    def __str__(self) -> str:
        if not self.error <= self.allowed:
            return _beyond(self.name, self.error, "", self.allowed)
        if not self.step_error <= self.step_allowed:
            return _beyond(self.name, self.step_error, " in its worst step", self.step_allowed)
        return _beyond(self.name, self.median_error, " in its median step", self.median_allowed)


def _beyond(name: str, error: float, where: str, allowed: float) -> str:
    """Return by how much a result is wrong: two digits, or as many as tell the error from what is allowed."""
    digits = next((digits for digits in range(2, 17) if f"{error:.{digits}g}" != f"{allowed:.{digits}g}"), 17)
    return f"{name} is off by {error:.{digits}g}{where}, {allowed:.{digits}g} allowed"


@dataclass(frozen=True)
class Verdict:
    """The worst errors of every tensor over the `slices` compared; `steps` of the sequence were.

    Of `projected` slices all steps were compared after a projection.
    """

    errors: tuple[Error, ...]
    steps: int
    slices: int
    projected: int

    @property
    def reason(self) -> str | None:
        """None if all is right, else what is not."""
        return "; ".join(str(error) for error in self.errors if error.wrong) or None

    @property
    def rel_error(self) -> float:
        """Return the largest error of output and gradients."""
        return max(error.error for error in self.errors)


def verify(case: Case, dtype: torch.dtype, output_grad: Tensor | None, budget_s: float, seed: int = 0) -> Verdict:
    """Compare a case with its oracle on SLICES (batch, head) slices, drawn at random.

    The implementation runs at its full size; where the float64 oracle would take longer than about `budget_s` seconds,
    only the first steps are compared, FIRST_STEPS at least, under an output gradient that is zero after them (all is
    causal). Memory that the implementation is given holds NaN before, so that an element it leaves unwritten shows
    (`_on_poisoned_memory`).

    Args:
        dtype: of the problem, which the output must have.
        output_grad: gradient of the output, for a forward and backward pass; None for a forward pass.
        seed: of the slices.

    Raises:
        ValueError: the output has another dtype, or another shape than that of the oracle.
    """
    cut = _Cut(case, dtype)
    few = cut.inputs(case, _Stack(((0, 0),)), min(SHAPE_STEPS, cut.seq_len), torch.float64)
    shape = cut.whole(differentiate(case.oracle, few, None)["forward"].shape)
    shape[cut.time_dim] = cut.seq_len
    if output_grad is not None:
        _require(shape, dtype, case, output_grad)
    stacks = _stacks(case, cut, output_grad is not None, torch.Generator().manual_seed(seed))
    steps, truths = _affordable_truths(case, cut, stacks, output_grad, budget_s)
    whole_grad = output_grad
    if output_grad is not None and steps < cut.seq_len:
        output_grad = output_grad.clone()
        output_grad.narrow(cut.time_dim, steps, cut.seq_len - steps).zero_()
    plains = [_oracle(case, cut, stack, steps, output_grad, dtype) for stack in stacks]
    walks = [_expected_squares(case, cut, *each, steps, dtype) for each in zip(stacks, truths, plains, strict=True)]
    results = _on_poisoned_memory(case, output_grad)  # last: it could do anything to the inputs
    _require(shape, dtype, case, results["forward"])
    if case.states:
        results |= _required_states(case.states.left(), truths[0], cut)

    draws: dict[str, list[_Draw]] = {}
    for stack, truth, plain, walk in zip(stacks, truths, plains, walks, strict=True):
        for name, true in truth.items():
            if true.ndim == 1 and cut.batch > 1:
                continue  # a parameter's gradient sums over the whole batch: slices say nothing of it
            actual = cut(results[name], stack, steps)
            draw = _Draw.of(actual, plain[name], true, None if true.ndim == 1 else cut.time_dim, walk.get(name))
            if 0 not in stack.copies:  # of plain PyTorch alone
                draw = replace(draw, actual=draw.actual[:0], zeros=draw.zeros[:0], mean_absolute=0.0)
            draws.setdefault(name, []).append(draw)
    errors = [_judged(name, of) for name, of in draws.items()]
    del plains, truths, walks, draws
    slices, projected = len({place for stack in stacks for place in stack.places}), 0
    if case.linear and (slices < cut.batch * cut.groups or steps < cut.seq_len):
        if whole_grad is not output_grad:
            results = differentiate(lambda _: case.forward(), case.inputs, whole_grad)
        projection = _Projection(case, cut, case.linear, errors, seed)
        projected = projection.compare(results, whole_grad, WHOLE_SHARE * budget_s)
        errors += projection.errors
    return Verdict(tuple(errors), steps, slices, projected)


def _required_states(states: Mapping[str, Tensor], truth: Mapping[str, Tensor], cut: _Cut) -> Mapping[str, Tensor]:
    """Return states; raise ValueError unless they have the shapes that those of slices make up, and 32 bits or more."""
    for name, state in states.items():
        wanted = cut.whole(truth[name].shape)
        if list(state.shape) != wanted:
            raise ValueError(f"the state {name} has shape {tuple(state.shape)}: it must be {tuple(wanted)}")
        if state.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"the state {name} is {str(state.dtype).removeprefix('torch.')}: it must be float32")
    return states


def _require(shape: list[int], dtype: torch.dtype, case: Case, output: Tensor) -> None:
    """Raise ValueError unless an output, or its gradient, has this shape and dtype."""
    if list(output.shape) != shape:
        dims = "(B, H, T, d_hv)" if case.layout == "bhtd" else "(B, T, H, d_hv)"
        raise ValueError(f"the output has shape {tuple(output.shape)}: it must be {dims} = {tuple(shape)}")
    if output.dtype != dtype:
        came, wanted = (str(each).removeprefix("torch.") for each in (output.dtype, dtype))
        raise ValueError(f"the output is {came}: it must be {wanted}, as the problem is")


def _on_poisoned_memory(case: Case, output_grad: Tensor | None) -> dict[str, Tensor]:
    """Return the results of the case, computed in memory full of NaN.

    On the CPU torch fills all fresh memory with it. On CUDA that would also change which kernels torch chooses, so the
    case runs twice: the first results are overwritten with NaN and freed, and the caching allocator gives the second
    call blocks of those sizes.
    """

    def run() -> dict[str, Tensor]:
        return differentiate(lambda _: case.forward(), case.inputs, output_grad)

    inputs = case.inputs.values()
    if all(tensor.device.type == "cpu" for tensor in inputs):
        with _fresh_memory_is_nan():
            return run()
    given = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    for result in run().values():
        if result.untyped_storage().data_ptr() not in given:
            result.fill_(float("nan"))
    del result
    return run()


@contextmanager
def _fresh_memory_is_nan() -> Iterator[None]:
    settings: Any = torch.utils.deterministic  # a module with a settable attribute
    before = torch.get_deterministic_debug_mode()
    filled_before = settings.fill_uninitialized_memory
    # As `use_deterministic_algorithms(True, warn_only=True)`, which would import torch's compilers: seconds a worker.
    torch.set_deterministic_debug_mode("warn")
    settings.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation")
            yield
    finally:
        torch.set_deterministic_debug_mode(before)
        settings.fill_uninitialized_memory = filled_before


@dataclass(frozen=True)
class _Draw:
    """Errors of slices, (slices, 3): of all elements, the worst and the median step, relative as in `Error`.

    Attributes:
        actual, zeros: of a result, and of zeros in its place.
        plain, walk: of plain PyTorch, and those to be expected of a sum of rounded terms; of further slices too.
        rounding: of the dtype.
        least: what plain PyTorch's error is at least taken for, times LIMITS: a rounding, or such a walk.
        allowed: times plain PyTorch's error.
        mean_absolute: as in `Error`.
    """

    actual: Tensor
    zeros: Tensor
    plain: Tensor
    walk: Tensor
    rounding: float
    least: float
    allowed: float
    mean_absolute: float

    @classmethod
    def of(cls, actual: Tensor, plain: Tensor, true: Tensor, time_dim: int | None, walk: Tensor | None) -> _Draw:
        """Measure slices.

        Args:
            actual: slices along its first dimension, unless it has one dimension: then it is one.
            plain, true: these slices and, for further draws of plain PyTorch's error, others behind them.
            time_dim: of steps; None for a tensor without.
            walk: expected square error of every element where it is a sum of rounded terms: then these count too.
        """
        if time_dim is None:
            actual, plain, true = actual[None], plain[None], true[None]
        first = true[: len(actual)]
        off = actual.double() - first
        plain_errors = _errors((plain.double() - true).square(), true, time_dim)
        rounding = torch.finfo(actual.dtype).eps / 2
        sums = true.ndim <= 3  # one number a step
        walk_steps = true.shape[time_dim] if sums and time_dim and actual.dtype.itemsize >= ACCUMULATOR_BYTES else 1
        return cls(
            _errors(off.square(), first, time_dim),
            _errors(first.square(), first, time_dim),
            plain_errors,
            torch.zeros_like(plain_errors) if walk is None else _errors(walk, true, time_dim),
            rounding,
            rounding * walk_steps**0.5,
            ALLOWED_SUM if sums else ALLOWED,
            float(off.abs().mean()),
        )


def _judged(name: str, draws: Sequence[_Draw]) -> Error:
    """Return the error of the slice that is furthest beyond what is allowed, or nearest to it.

    Where plain PyTorch overflows in the working dtype, rounding alone says what is allowed. Never is more allowed than
    OF_ZEROS times what zeros are off by, in all and in their worst step.
    """
    actual, zeros, plain, walk = (
        torch.cat([getattr(draw, of) for draw in draws]).cpu() for of in ("actual", "zeros", "plain", "walk")
    )
    rounding = draws[0].rounding
    plain, walk = (torch.where(errors.isfinite(), errors, 0.0).amax(0) for errors in (plain, walk))
    least, times, of_walk = torch.tensor(LIMITS, dtype=torch.float64)
    of_plain = draws[0].allowed * times * torch.maximum(plain, least * draws[0].least)
    allowed = torch.maximum(of_plain, of_walk * walk)
    allowed = torch.minimum(allowed, (OF_ZEROS * zeros).clamp_min(rounding))
    place = int((actual / allowed).nan_to_num(torch.inf, torch.inf).amax(1).argmax())
    pairs = torch.stack([actual[place], allowed[place]], 1).flatten().tolist()
    return Error(name, *pairs, mean_absolute=max(draw.mean_absolute for draw in draws))


def _errors(squares: Tensor, true: Tensor, time_dim: int | None) -> Tensor:
    """Root mean square errors over the root mean square of the truth, by slice: of all, the worst and median step."""
    scale = true.square().flatten(1).mean(1).sqrt().clamp_min(torch.finfo(torch.float64).tiny)
    error = squares.flatten(1).mean(1).sqrt()
    steps = error[:, None] if time_dim is None else squares.movedim(time_dim, 1).flatten(2).mean(2).sqrt()
    return torch.stack([error, steps.amax(1), steps.median(1).values], 1) / scale[:, None]


@dataclass(frozen=True)
class _Stack:
    """Slices that the oracle computes at once, as a batch.

    Attributes:
        places: batch and head group of each.
        copies: copies of all of them, one after the other: 0 as they are, others with values one rounding beside.
    """

    places: tuple[tuple[int, int], ...]
    copies: range = range(1)


def _stacks(case: Case, cut: _Cut, backward: bool, generator: torch.Generator) -> list[_Stack]:
    """Draw the slices to compare, put together as far as the oracle computes them cheaply at once.

    Slices of one stack share their parameters of one number a head. Where these have gradients, every copy is a stack
    of its own: gradients of parameters are sums over a batch.
    """
    chosen = torch.randperm(cut.batch * cut.groups, generator=generator)[:SLICES].sort().values.tolist()
    numbers = sum(tensor.numel() for tensor in case.inputs.values()) // (cut.batch * cut.groups)
    numbers = max(1, numbers * min(FIRST_STEPS, cut.seq_len) // cut.seq_len)
    at_once = max(1, AT_ONCE // numbers)
    copies = max(1, min(REALISATIONS, CHEAP // (numbers * len(chosen))))
    apart = backward and any(tensor.requires_grad for tensor in _parameters(case))
    return [
        _Stack(places, of)
        for places in _together(case, cut, chosen, at_once)
        for of in ([range(n, n + 1) for n in range(copies)] if apart else [range(copies)])
    ]


def _together(case: Case, cut: _Cut, numbers: Sequence[int], at_once: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield the places of slices, by number, that the oracle takes at once."""
    together: dict[int, list[tuple[int, int]]] = {}
    for batch, group in (divmod(number, cut.groups) for number in numbers):
        together.setdefault(group if _parameters(case) else 0, []).append((batch, group))
    for places in together.values():
        for first in range(0, len(places), at_once):
            yield tuple(places[first : first + at_once])


def _parameters(case: Case) -> list[Tensor]:
    return [tensor for tensor in case.inputs.values() if tensor.ndim == 1]


class _Projection:
    """Output and gradient of an input that the output is linear in, compared after one random projection.

    Attributes:
        errors: of all slices that were, as `Error` has them, steps being blocks of BLOCK.
    """

    def __init__(self, case: Case, cut: _Cut, name: str, of_slices: Sequence[Error], seed: int) -> None:
        self.errors: list[Error] = []
        self._case, self._cut, self._name = case, cut, name
        self._of_slices = {error.name: error for error in of_slices}
        self._generator = torch.Generator().manual_seed(seed)
        v = case.inputs[name]
        signs = torch.randint(0, 2, v.shape[-1:], generator=self._generator)
        self._signs = (2.0 * signs - 1).to(v.device, torch.float64)

    def compare(self, results: Mapping[str, Tensor], output_grad: Tensor | None, budget_s: float) -> int:
        """Compare slices in random order, as many as fit the budget and memory, and one stack at least."""
        case, cut, begin = self._case, self._cut, perf_counter()
        numbers = sum(tensor.numel() for tensor in case.inputs.values()) // (cut.batch * cut.groups)
        order = torch.randperm(cut.batch * cut.groups, generator=self._generator).tolist()
        stacks = list(_together(case, cut, order, max(1, AT_ONCE // max(1, numbers))))
        pairs: dict[str, list[tuple[Tensor, Tensor]]] = {}
        done = 0
        for place in torch.randperm(len(stacks), generator=self._generator).tolist():
            try:
                truth = self._truth(_Stack(stacks[place]), output_grad)
            except torch.OutOfMemoryError:
                break
            for name, true in truth.items():
                actual = cut(results[name], _Stack(stacks[place]), cut.seq_len).double() @ self._signs
                pairs.setdefault(name, []).append((self._blocks(actual), self._blocks(true[..., 0])))
            done += len(stacks[place])
            if perf_counter() - begin > budget_s:
                break
        self.errors = [self._error(name, *map(torch.cat, zip(*of, strict=True))) for name, of in pairs.items()]
        return done

    def _truth(self, stack: _Stack, output_grad: Tensor | None) -> dict[str, Tensor]:
        inputs = self._cut.inputs(self._case, stack, self._cut.seq_len, torch.float64)
        inputs = {name: x.detach() for name, x in inputs.items()}
        v = (inputs[self._name] @ self._signs)[..., None]
        grad = None
        if output_grad is not None:
            grad = (self._cut(output_grad, stack, self._cut.seq_len).double() @ self._signs)[..., None]
        return differentiate(self._case.oracle, inputs | {self._name: v.requires_grad_(grad is not None)}, grad)

    def _blocks(self, x: Tensor) -> Tensor:
        """Return projected slices as (slices, blocks, numbers of a block)."""
        x = x.movedim(self._cut.time_dim, 1)
        x = torch.nn.functional.pad(x, (0, 0, 0, -x.shape[1] % min(BLOCK, x.shape[1])))
        return x.unflatten(1, (-1, min(BLOCK, x.shape[1]))).flatten(2)

    def _error(self, name: str, actual: Tensor, true: Tensor) -> Error:
        squares, scale = (actual - true).square(), true.square().flatten(1).mean(1).sqrt()
        scale = torch.maximum(scale, scale.square().mean().sqrt()).clamp_min(torch.finfo(torch.float64).tiny)
        blocks = squares.mean(2).sqrt() / scale[:, None]
        errors = torch.stack([squares.flatten(1).mean(1).sqrt() / scale, blocks.amax(1)], 1)
        of = self._of_slices[name]
        allowed = WHOLE * torch.tensor([of.allowed, max(OF_ZEROS, of.step_allowed)], device=errors.device)
        place = int((errors / allowed).nan_to_num(torch.inf, torch.inf).amax(1).argmax())
        pairs = torch.stack([errors[place], allowed], 1).flatten().tolist()
        return Error(f"all of {name}", *pairs, median_error=0.0, median_allowed=0.0, mean_absolute=0.0)


def _oracle(
    case: Case, cut: _Cut, stack: _Stack, steps: int, output_grad: Tensor | None, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the oracle's results in a dtype for slices of the inputs; `output_grad` is of the whole problem."""
    grad = None if output_grad is None else cut.with_copies(output_grad, stack, steps).to(dtype)
    inputs = cut.inputs(case, stack, steps, dtype)
    results = differentiate(case.oracle, inputs, grad)
    return results | dict(case.states.oracle(inputs)) if case.states else results


def _expected_squares(
    case: Case,
    cut: _Cut,
    stack: _Stack,
    truth: Mapping[str, Tensor],
    plain: Mapping[str, Tensor],
    steps: int,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """By name, E[error^2] of those results that kernels form as suffix sums of terms as far off as those of `plain`."""
    if case.as_kernels_do is None:
        return {}
    exact = case.as_kernels_do(cut.inputs(case, stack, steps, torch.float64), truth)
    rounded = case.as_kernels_do(cut.inputs(case, stack, steps, dtype), plain)
    return {
        name: suffix_sum((rounded[name].terms - of.terms).square(), cut.time_dim) * of.scale**2
        for name, of in exact.items()
    }


def _affordable_truths(
    case: Case, cut: _Cut, stacks: Sequence[_Stack], output_grad: Tensor | None, budget_s: float
) -> tuple[int, list[dict[str, Tensor]]]:
    """Return how many steps to compare, and the oracle's float64 results for them, by stack.

    All, or as many as fit the budget if the oracle's cost grew with their square; FIRST_STEPS whatever they cost. The
    truths are timed, and kept where they turn out to be of as many steps as fit. Where more than the first steps might
    not fit these are timed twice, and the faster counts: a first call loads libraries.
    """
    steps, fastest, calls = min(FIRST_STEPS, cut.seq_len), float("inf"), 0
    while True:
        start = perf_counter()
        truths = [_oracle(case, cut, stack, steps, output_grad, torch.float64) for stack in stacks]
        for result in truths[-1].values():
            result.sum().item()  # waits for the device
        fastest, calls = min(fastest, perf_counter() - start), calls + 1
        seconds = 2 * fastest  # in two precisions
        enough = steps == cut.seq_len or 4 * seconds > budget_s
        if enough and (calls > 1 or steps == cut.seq_len or budget_s <= 0):
            return steps, truths
        if not enough:
            whole = seconds * (cut.seq_len / steps) ** 2 <= budget_s
            steps, fastest = cut.seq_len if whole else min(2 * steps, cut.seq_len), float("inf")


class _Cut:
    """Cuts (batch, head group) slices of the first steps out of a case's tensors, as the batch of a stack.

    A group is one head, or the heads that share one where some input has fewer.
    """

    def __init__(self, case: Case, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.head_dim, self.time_dim = (1, 2) if case.layout == "bhtd" else (2, 1)
        tensors = case.inputs.values()
        self.groups = min(self._heads(tensor) for tensor in tensors)
        whole = next(tensor for tensor in tensors if tensor.ndim == 4)
        self.batch, self.seq_len = whole.shape[0], whole.shape[self.time_dim]

    def __call__(self, tensor: Tensor, stack: _Stack, steps: int) -> Tensor:
        """Return the slices of a tensor; of parameters, those of the heads that all slices of the stack share."""
        heads = self._heads(tensor) // self.groups
        if tensor.ndim == 1:
            return tensor.narrow(0, stack.places[0][1] * heads, heads)
        tensor = tensor.narrow(self.time_dim, 0, steps)
        slices = [tensor[batch].narrow(self.head_dim - 1, group * heads, heads) for batch, group in stack.places]
        return torch.stack(slices)

    def with_copies(self, tensor: Tensor, stack: _Stack, steps: int) -> Tensor:
        """Return the copies of the slices of a tensor, whose values lie one rounding beside."""
        slices = self(tensor, stack, steps)
        if tensor.ndim == 1:
            return slices
        copies = [slices] if 0 in stack.copies else []
        for number in stack.copies[len(copies) :]:
            generator = torch.Generator(tensor.device).manual_seed(number)
            beside = torch.randint(-1, 2, slices.shape, generator=generator, device=tensor.device)
            copies.append((slices.double() * (1 + torch.finfo(self.dtype).eps * beside)).to(slices.dtype))
        return torch.cat(copies)

    def inputs(self, case: Case, stack: _Stack, steps: int, dtype: torch.dtype) -> dict[str, Tensor]:
        """Slices of all inputs and their copies, as leaves of their own."""
        return {
            name: self.with_copies(tensor.detach(), stack, steps).to(dtype).requires_grad_(tensor.requires_grad)
            for name, tensor in case.inputs.items()
        }

    def whole(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of a result of which slices have this one, of as many steps."""
        whole = list(shape)
        whole[0], whole[self.head_dim] = self.batch, whole[self.head_dim] * self.groups
        return whole

    def _heads(self, tensor: Tensor) -> int:
        return tensor.shape[0] if tensor.ndim == 1 else tensor.shape[self.head_dim]
