"""The inputs of a case while it is checked and timed: nobody but the bench changes their values."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tflabench.implementations.adapter import Case

PLACES = 1 << 20  # that inputs are moved on by at most, to have values that no call has had
CALLS = 64  # with such values, before some come again
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers as wide as an element


class ChangedInputError(Exception):
    """Raised where a kernel has changed one of its inputs, which its adapter does not say."""


class InputSlots:
    """The inputs of a case, and what tells whether a kernel has changed them.

    Those that its adapter says the kernel writes are kept, to be restored before each call.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        self._moves: list[int] = []
        self._note()

    def require_unchanged(self) -> None:
        """Raise ChangedInputError unless every input is as it was after the bench wrote it last."""
        for name, before in self._sums.items():
            now = _sums(self._case.inputs[name])
            if before.shape != now.shape or not torch.equal(before, now):
                raise ChangedInputError(f"changes its input {name}")

    def restore(self) -> None:
        """Give the inputs that the kernel writes their values back."""
        for name, kept in self._kept.items():
            self._case.inputs[name].data.copy_(kept)

    @property
    def case(self) -> Case:
        """The case, whose calls find every input as the bench wrote it last."""
        if not self._kept:
            return self._case

        def forward() -> Tensor:
            self.restore()
            return self._case.forward()

        return replace(self._case, forward=forward)

    def change(self, places: int = 1) -> None:
        """Give every input with steps other values, in place: whatever remembers the results of a call is wrong now.

        They are the same ones, so many places on, by other steps and batches; a negative number takes that back.
        Parameters stay: kernels may know those of a head.
        """
        self.restore()
        dims = self._dims
        for tensor in self._case.inputs.values():
            strides = [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
            if tensor.ndim > 1 and 0 not in strides:  # else several elements share one place
                by = (places, places * _stride(tensor.shape[dims[1]]))
                tensor.data.copy_(tensor.detach().roll(by, dims))
        self._note()

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Have values within the block that no call has had, as far as the sizes have so many orders of them.

        Raises:
            ChangedInputError: as `require_unchanged`.
        """
        if not self._moves:
            self._moves = _moves(*self._sizes())
        places = self._moves.pop() if self._moves else 0
        self.require_unchanged()
        self.change(places)
        yield
        self.require_unchanged()
        self.change(-places)

    @property
    def _dims(self) -> tuple[int, int]:
        """Batch and time."""
        return (0, 2 if self._case.layout == "bhtd" else 1)

    def _sizes(self) -> tuple[int, int]:
        """Return how many sequences and steps the inputs have."""
        shape = max((tensor.shape for tensor in self._case.inputs.values()), key=len)
        return shape[self._dims[0]], shape[self._dims[1]]

    def _note(self) -> None:
        writes = self._case.writes
        self._sums = {name: _sums(tensor) for name, tensor in self._case.inputs.items() if name not in writes}
        self._kept = {name: self._case.inputs[name].detach().clone() for name in writes}


def _stride(steps: int) -> int:
    """Return the steps that a move by one place is."""
    return steps // 3 + 1


def _moves(sequences: int, steps: int) -> list[int]:
    """Return places, none of which gives the values of another, of none, or of one place more or less, at random."""
    period = math.lcm(sequences, steps // math.gcd(steps, _stride(steps)))
    places = range(2, min(period - 1, PLACES))
    return secrets.SystemRandom().sample(places, min(len(places), CALLS))


def _sums(tensor: Tensor) -> Any:
    """Return sums of the bits of a tensor over its last dimension: a change of any value shows."""
    return tensor.detach().view(BITS[tensor.element_size()]).sum(-1)
