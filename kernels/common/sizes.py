"""Name what a plan follows from: the sizes of a call, and figures of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

# Bytes that a program can have, by architecture. Others have at least the last one.
SHARED_MEMORY = {80: 166_912, 90: 232_448, 100: 232_448, 103: 232_448}
SMALLEST_SHARED_MEMORY = 101_376


class Sizes(NamedTuple):
    """Sizes of a call: q and k (batch, heads / group, steps, d_qk), v (batch, heads, steps, d_hv).

    Attributes:
        group: consecutive heads of v that share a head of q and k.
    """

    batch: int
    heads: int
    group: int
    steps: int
    d_qk: int
    d_hv: int

    @classmethod
    def of(cls, q: Tensor, v: Tensor) -> Sizes:
        """Return the sizes of tensors."""
        batch, heads, steps, d_hv = v.shape
        return cls(batch, heads, heads // q.shape[1], steps, q.shape[-1], d_hv)

    @property
    def rows(self) -> int:
        """Sequences of a head, each with a state of its own."""
        return self.batch * self.heads


class Device(NamedTuple):
    """Figures of a GPU.

    Attributes:
        architecture: 90 is compute capability 9.0.
        bandwidth: of the memory, TB/s, in steps (`in_steps`). Only the choice of segments asks for it.
    """

    architecture: int
    multiprocessors: int
    bandwidth: float = 5.0

    def times(self, count: int) -> Device:
        """Return the figures of so many of it in one: a batch of `count` has plans on that as a row has on one."""
        return self._replace(multiprocessors=count * self.multiprocessors, bandwidth=count * self.bandwidth)

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory that a program can have."""
        return shared_memory(self.architecture)


USUAL = Device(architecture=90, multiprocessors=132)  # stands for no GPU


def in_steps(bandwidth: float) -> float:
    """Return a bandwidth, bytes/s, as plans take it: TB/s in steps of a half.

    So GPUs of one kind choose alike, whatever clock their drivers tell: 4.8 and 4.9 TB/s are one.
    """
    return max(1, round(bandwidth / 0.5e12)) / 2


def refuses_dtype(dtype: str, taken: tuple[str, ...]) -> str | None:
    """Return why a dtype is none of those taken, or None if it is one."""
    *first, last = taken
    return None if dtype in taken else f"takes {', '.join(first)}{' and ' if first else ''}{last}, not {dtype}"


def shared_memory(architecture: int) -> int:
    """Return the bytes of shared memory that a program can have."""
    return SHARED_MEMORY.get(architecture, SMALLEST_SHARED_MEMORY)
