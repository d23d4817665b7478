"""The correctness gate: forward and every gradient of a Case against its oracle in float64.

One rule holds for every implementation, ours and those of libraries: the error allowed is a small multiple of the one
that plain PyTorch makes at that precision with the same formula. The oracle, run in the working dtype, is measured
against float64 first. Only what is nearly as far off as values of half the size is wrong whatever PyTorch does: else a
gradient of zeros would pass where PyTorch's own error is large (docs/decisions/2026-11-24-model-held-out.md).

A gradient that kernels sum up from rounded terms (`Case.as_kernels_do`) is held to the error to be expected of that
sum. The roundings of T terms add up to a random walk, and the root mean square of a walk differs much from one
realisation to the next, however large T is: simulated (200,000 pairs), it is more than twice that of another walk of
the same variance in 18% of all cases, in 33% for the worse of two slices, so that a bound made of one realisation would
have to allow 8.6 times for 99.9% to pass. Of its expected value, the root of the mean variance, it is at most 3.15
times in 99.9% for the worse of two slices, and the furthest excursion at most 3.64 times the final standard deviation.
The expected value is known: variances are suffix sums of the squares of what plain PyTorch's terms are off by rounding
(published kernels' are off as much: 0.24% in dq and dk, both, in bfloat16).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
import torch.utils.deterministic
from torch import Tensor

from tflabench.implementations.adapter import Case, differentiate, suffix_sum

SHAPE_STEPS = 16  # that the oracle computes to tell its shape
FIRST_STEPS = 512  # compared whatever they cost; what more would cost is estimated from them
ALLOWED = 2.0  # times plain PyTorch's own error
ALLOWED_STEP = 4.0  # the same for the worst single step, an extreme value and so less steady
ALLOWED_WALK = 3.2  # times the expected error of a sum of rounded terms
OF_ZEROS = 0.4  # times the error of zeros, whatever plain PyTorch does: less than results of half the size are off by


@dataclass(frozen=True)
class Error:
    """Deviation of one tensor from float64, relative to the root mean square of the true values.

    Attributes:
        name: "forward", or "d" and the input's name.
        error, allowed: root mean square over all compared elements.
        step_error, step_allowed: of the worst single time step, so that one wrong row in a long sequence shows.
        mean_absolute: mean of |actual - true|, not relative to anything.
    """

    name: str
    error: float
    allowed: float
    step_error: float
    step_allowed: float
    mean_absolute: float

    @property
    def wrong(self) -> bool:
        """Return whether an error is larger than allowed; NaN is."""
        return not (self.error <= self.allowed and self.step_error <= self.step_allowed)  # NaN is wrong

    def __str__(self) -> str:
        if self.error <= self.allowed:
            return f"{self.name} is off by {self.step_error:.2g} in its worst step, {self.step_allowed:.2g} allowed"
        return f"{self.name} is off by {self.error:.2g}, {self.allowed:.2g} allowed"


@dataclass(frozen=True)
class Verdict:
    """The worst errors of every tensor over the slices compared; `steps` of the sequence were."""

    errors: tuple[Error, ...]
    steps: int

    @property
    def reason(self) -> str | None:
        """None if all is right, else what is not."""
        return "; ".join(str(error) for error in self.errors if error.wrong) or None

    @property
    def rel_error(self) -> float:
        """Return the largest error of output and gradients."""
        return max(error.error for error in self.errors)


def verify(case: Case, output_grad: Tensor | None, budget_s: float) -> Verdict:
    """Compare a case with its oracle on the first and the last (batch, head) slice.

    The implementation runs at its full size; where the float64 oracle would take longer than about `budget_s` seconds,
    only the first steps are compared, FIRST_STEPS at least, under an output gradient that is zero after them (all is
    causal). Memory that the implementation is given holds NaN before, so that an element it leaves unwritten shows
    (`_on_poisoned_memory`).

    Args:
        output_grad: gradient of the output, for a forward and backward pass; None for a forward pass.

    Raises:
        ValueError: the output has another shape than that of the oracle.
    """
    cut = _Cut(case)
    shape = _output_shape(case, cut)
    if output_grad is not None:
        _require_shape(case, shape, output_grad)
    steps, truths = _affordable_truths(case, cut, output_grad, budget_s)
    if output_grad is not None and steps < cut.seq_len:
        output_grad = output_grad.clone()
        output_grad.narrow(cut.time_dim, steps, cut.seq_len - steps).zero_()
    results = _on_poisoned_memory(case, output_grad)
    _require_shape(case, shape, results["forward"])

    worst: dict[str, Error] = {}
    for where, truth in truths.items():
        plain = _oracle(case, cut, where, steps, output_grad, results["forward"].dtype)
        walks = _expected_squares(case, cut, where, steps, truth, plain)
        for name, true in truth.items():
            if true.ndim == 1 and cut.batch > 1:
                continue  # a parameter's gradient sums over the whole batch: one slice says nothing of it
            actual = cut(results[name], *where, steps)
            error = compare(name, actual, plain[name], true, cut.time_of(true), walks.get(name))
            if name not in worst or _badness(error) > _badness(worst[name]):
                worst[name] = error
    return Verdict(tuple(worst.values()), steps)


def _output_shape(case: Case, cut: _Cut) -> list[int]:
    """Return the shape of the output that the oracle's slices make up."""
    inputs = cut.inputs(case, 0, 0, min(SHAPE_STEPS, cut.seq_len), torch.float64)
    shape = list(differentiate(case.oracle, inputs, None)["forward"].shape)
    shape[0], shape[cut.time_dim] = cut.batch, cut.seq_len
    shape[cut.head_dim] *= cut.groups
    return shape


def _require_shape(case: Case, shape: list[int], output: Tensor) -> None:
    """Raise ValueError unless an output, or its gradient, has this shape."""
    if list(output.shape) != shape:
        dims = "(B, H, T, d_hv)" if case.layout == "bhtd" else "(B, T, H, d_hv)"
        raise ValueError(f"the output has shape {tuple(output.shape)}: it must be {dims} = {tuple(shape)}")


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


def compare(
    name: str, actual: Tensor, plain: Tensor, true: Tensor, time_dim: int | None, walk: Tensor | None = None
) -> Error:
    """Errors of `actual` against float64, and those allowed: a multiple of the errors of `plain`, at least rounding.

    Where plain PyTorch overflows in the working dtype, rounding alone says what is allowed. Never is more allowed than
    OF_ZEROS times what zeros are off by, in all and in their worst step.

    Args:
        walk: expected square error of every element where it is a sum of rounded terms: then these count too.
    """
    rounding = torch.finfo(actual.dtype).eps / 2
    error, step_error = _errors((actual.double() - true).square(), true, time_dim)
    plain_error, plain_step_error = _finite(_errors((plain.double() - true).square(), true, time_dim))
    walk_error, walk_step_error = (0.0, 0.0) if walk is None else _finite(_errors(walk, true, time_dim))
    allowed = max(ALLOWED * max(plain_error, rounding / 2), ALLOWED_WALK * walk_error)
    step_allowed = ALLOWED_STEP * max(plain_step_error, rounding, walk_step_error)
    most, most_step = (max(OF_ZEROS * zeros, rounding) for zeros in _errors(true.square(), true, time_dim))
    mean_absolute = float((actual.double() - true).abs().mean())
    return Error(name, error, min(allowed, most), step_error, min(step_allowed, most_step), mean_absolute)


def _errors(squares: Tensor, true: Tensor, time_dim: int | None) -> tuple[float, float]:
    """Root mean square error over root mean square of the truth: of everything, and of the worst time step."""
    scale = true.square().mean().sqrt().clamp_min(torch.finfo(torch.float64).tiny)
    error = float(squares.mean().sqrt() / scale)
    if time_dim is None:
        return error, error
    others = [dim for dim in range(true.ndim) if dim != time_dim]
    return error, float(squares.mean(others).sqrt().max() / scale)


def _finite(errors: tuple[float, float]) -> tuple[float, float]:
    return errors[0] if isfinite(errors[0]) else 0.0, errors[1] if isfinite(errors[1]) else 0.0


def _badness(error: Error) -> float:
    return (
        max(error.error / error.allowed, error.step_error / error.step_allowed) if error.error == error.error else 1e30
    )


def _oracle(
    case: Case, cut: _Cut, where: tuple[int, int], steps: int, output_grad: Tensor | None, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the oracle's results in a dtype for a slice of the inputs; `output_grad` is of the whole problem."""
    grad = None if output_grad is None else cut(output_grad, *where, steps).to(dtype)
    return differentiate(case.oracle, cut.inputs(case, *where, steps, dtype), grad)


def _expected_squares(
    case: Case,
    cut: _Cut,
    where: tuple[int, int],
    steps: int,
    truth: Mapping[str, Tensor],
    plain: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """By name, E[error^2] of those results that kernels form as suffix sums of terms as far off as those of `plain`."""
    if case.as_kernels_do is None:
        return {}
    exact, rounded = (
        case.as_kernels_do(cut.inputs(case, *where, steps, results["forward"].dtype), results)
        for results in (truth, plain)
    )
    return {
        name: suffix_sum((rounded[name].terms - of.terms).square(), cut.time_dim) * of.scale**2
        for name, of in exact.items()
    }


def _affordable_truths(
    case: Case, cut: _Cut, output_grad: Tensor | None, budget_s: float
) -> tuple[int, dict[tuple[int, int], dict[str, Tensor]]]:
    """Return how many steps to compare, and the oracle's float64 results for them, by slice.

    All, or as many as fit the budget if the oracle's cost grew with their square; FIRST_STEPS whatever they cost. The
    truth of the first and of the last slice is timed, and kept where it turns out to be of as many steps as fit. The
    faster counts: a first call loads libraries.
    """
    steps = min(FIRST_STEPS, cut.seq_len)
    while True:
        truths, fastest = {}, float("inf")
        for where in ((0, 0), (cut.batch - 1, cut.groups - 1)):
            start = time.perf_counter()
            truths[where] = _oracle(case, cut, where, steps, output_grad, torch.float64)
            for result in truths[where].values():
                result.sum().item()  # waits for the device
            fastest = min(fastest, time.perf_counter() - start)
        seconds = 4 * fastest  # two slices, each in two precisions
        if steps == cut.seq_len or 4 * seconds > budget_s:
            return steps, truths
        steps = cut.seq_len if seconds * (cut.seq_len / steps) ** 2 <= budget_s else min(2 * steps, cut.seq_len)


class _Cut:
    """Cuts single (batch, head group) slices of the first steps out of a case's tensors.

    A group is one head, or the heads that share one where some input has fewer.
    """

    def __init__(self, case: Case) -> None:
        self.head_dim, self.time_dim = (1, 2) if case.layout == "bhtd" else (2, 1)
        tensors = case.inputs.values()
        self.groups = min(self._heads(tensor) for tensor in tensors)
        whole = next(tensor for tensor in tensors if tensor.ndim == 4)
        self.batch, self.seq_len = whole.shape[0], whole.shape[self.time_dim]

    def __call__(self, tensor: Tensor, batch: int, group: int, steps: int) -> Tensor:
        heads_a_group = self._heads(tensor) // self.groups
        if tensor.ndim == 1:
            return tensor.narrow(0, group * heads_a_group, heads_a_group)
        tensor = tensor.narrow(0, batch, 1).narrow(self.head_dim, group * heads_a_group, heads_a_group)
        return tensor.narrow(self.time_dim, 0, steps)

    def inputs(self, case: Case, batch: int, group: int, steps: int, dtype: torch.dtype) -> dict[str, Tensor]:
        """Slices of all inputs as leaves of their own."""
        return {
            name: self(tensor.detach(), batch, group, steps).to(dtype).requires_grad_(tensor.requires_grad)
            for name, tensor in case.inputs.items()
        }

    def time_of(self, tensor: Tensor) -> int | None:
        return None if tensor.ndim == 1 else self.time_dim

    def _heads(self, tensor: Tensor) -> int:
        return tensor.shape[0] if tensor.ndim == 1 else tensor.shape[self.head_dim]
