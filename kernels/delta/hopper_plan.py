"""Plan the fused kernels of the delta rule: what they take, and how many programs make o and its gradients.

A program walks over the tiles of one head of a sequence, 64 steps each, with the state of up to 128 columns of v on
chip: o is one such walk. Backward is a walk backward in time for dv and the gradients of states, then one forward again
for dq, dk and the gates. Before all of them the inverses of tiles are made, each by a program of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.sizes import Device, Sizes

DTYPES = ("bfloat16",)  # of float16 the range is too small: gradients of v with a beta near 0 are quotients of dbeta
TILE = 64  # steps of a tile
LARGEST_D_QK = 128  # a program has all rows of a state
LARGEST_D_HV = 256
WIDTH = 128  # columns of a state and of v in a program
SUMS = 5  # vectors of a value a step: db and what passes the tile, of either half of the channels, and dbeta
SUM_BYTES = 4  # of an element of these: float32
MOST_STEPS = 2**28  # of all heads: kernels count them with 32 bits


@dataclass(frozen=True)
class DeltaWalkShape:
    """Describe how a program of a walk is divided.

    Attributes:
        num_stages: tiles in flight.
        parts: numbers of 16 bits that an element of an inverse is the sum of.
        state_registers, score_registers: of a thread of a partition that carries the state, and of the one for scores.
    """

    num_stages: int
    parts: int
    state_registers: int = 192
    score_registers: int = 104


@dataclass(frozen=True)
class DeltaGradientsShape:
    """Describe how a program of the walk for dq and dk is divided.

    Attributes:
        num_stages: tiles in flight.  num_slots: of scores.
        state_registers, score_registers: see `DeltaWalkShape`.
    """

    num_stages: int = 2
    num_slots: int = 1
    state_registers: int = 200
    score_registers: int = 88


def refuses_sizes(d_qk: int, d_hv: int, chunk_size: int | None = None) -> str | None:
    """Return why the kernels do not take these sizes, or None if they do; the chunk size is of no effect."""
    del chunk_size
    if d_qk > LARGEST_D_QK:
        return f"takes a d_qk up to {LARGEST_D_QK}, not {d_qk}"
    return None if d_hv <= LARGEST_D_HV else f"takes a d_hv up to {LARGEST_D_HV}, not {d_hv}"


def refuses_steps(rows: int, steps: int) -> str | None:
    """Return why the kernels do not take so many sequences of a head, or None if they do."""
    return None if rows * steps <= MOST_STEPS else f"takes up to {MOST_STEPS} steps of all heads, not {rows * steps}"


class DeltaPlan(NamedTuple):
    """Name what forward and backward launch.

    Attributes:
        tiles: of a sequence; there is a program for the inverse of each tile of each head.
        pieces: programs that share the columns of v of a head.
        items: work items of a walk that has its state transposed, one a piece of a head.
        programs: programs of such a walk, which share its items.
        row_programs: programs of the walk for dq and dk, which is launched once for every piece.
        parts: see `DeltaWalkShape`.
    """

    sizes: Sizes
    tiles: int
    pieces: int
    items: int
    programs: int
    row_programs: int
    parts: int

    def shape(self, *, reverse: bool) -> DeltaWalkShape:
        """Return how a program of the walk for o is divided, or of that for dv."""
        return DeltaWalkShape(num_stages=2, parts=self.parts)


def parts(beta_max: int) -> int:
    """Return of how many numbers of 16 bits an element of an inverse is the sum: above a beta of 1 it can be large."""
    return 2 if beta_max > 1 else 1


GRADIENTS_SHAPE = DeltaGradientsShape()


@lru_cache(4096)
def planned(sizes: Sizes, device: Device, beta_max: int) -> DeltaPlan:
    """Return what a call launches."""
    pieces, chip = cdiv(sizes.d_hv, WIDTH), device.multiprocessors
    items = sizes.rows * pieces
    programs, row_programs = min(items, chip), min(sizes.rows, chip)
    return DeltaPlan(sizes, cdiv(sizes.steps, TILE), pieces, items, programs, row_programs, parts(beta_max))
