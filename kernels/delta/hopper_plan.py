"""Plan the fused kernels of the delta rule: what they take, and how many programs make o and its gradients.

A program walks over the tiles of one head of a segment, 64 steps each, with the state of up to 128 columns of v on
chip: o is one such walk. Backward is a walk backward in time for dv and the gradients of states, then one forward again
for dq, dk and the gates. Before all of them the inverses of tiles are made, each by a program of its own.

Where heads are too few for the chip a sequence has segments. A state pass, the walk for o without o, makes what each
adds to a state of zero, and its transition: what it makes of the state before, from the identity, with v = 0. These
are joined in order, and the walks go over all segments side by side. So do they backward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.sizes import Device, Sizes
from tflabench.kernels.scalar.plan.hopper import LONGER, one_launch_pays
from tflabench.kernels.scalar.plan.hopper_segments import Segments

DTYPES = "float16", "bfloat16"
DTYPES_OF_CHANNELS = ("bfloat16",)  # with a decay a channel
TILE = 64  # steps of a tile
# A beta below counts as this, so that its gradient is a quotient at 0 too. In float16 dv, of the size of beta, has no
# digits left there: kernels have dv / sqrt(beta) instead, as they have errors times sqrt(beta).
LEAST_STRENGTH = 2.0**-20
LARGEST_D_QK = 128  # a program has all rows of a state
LARGEST_D_HV = 256
WIDTH = 128  # columns of a state and of v in a program
MOST_SEGMENTS = 16
LEAST_TILES = 16  # of a segment
FILLED = 0.75  # of the multiprocessors: as many programs fill the chip
SUMS = 5  # vectors of a value a step: db and what passes the tile, of either half of the channels, and dbeta
SUM_BYTES = 4  # of an element of these: float32
STATE_BYTES = 4  # of an element of a state between segments: float32
LONGER_THAN_SEGMENTS = 1.6  # as LONGER, where one sequence is cut into segments: before a walk there is a pass then
MOST_STEPS = 2**28  # of all heads: kernels count them with 32 bits


@dataclass(frozen=True)
class DeltaWalkShape:
    """Describe how a program of a walk is divided.

    Attributes:
        parts: numbers of 16 bits that an element of an inverse is the sum of.
        num_value_stages, num_stages: tiles of v and X in flight, and of q and k.
        state_registers, score_registers: of a thread of a partition that carries the state, and of the one for scores.
    """

    parts: int
    num_value_stages: int = 2
    num_stages: int = 2
    state_registers: int = 192
    score_registers: int = 104


def outputs_shape(parts: int) -> DeltaWalkShape:
    """Return how a program of the walk for o is divided."""
    return DeltaWalkShape(parts, num_value_stages=2 if parts > 1 else 3)


def refuses_sizes(d_qk: int, d_hv: int) -> str | None:
    """Return why the kernels do not take these sizes, or None if they do; they take every chunk size."""
    if d_qk > LARGEST_D_QK:
        return f"takes a d_qk up to {LARGEST_D_QK}, not {d_qk}"
    return None if d_hv <= LARGEST_D_HV else f"takes a d_hv up to {LARGEST_D_HV}, not {d_hv}"


def refuses_steps(rows: int, steps: int) -> str | None:
    """Return why the kernels do not take so many sequences of a head, or None if they do."""
    return None if rows * steps <= MOST_STEPS else f"takes up to {MOST_STEPS} steps of all heads, not {rows * steps}"


def pieces_of(d_hv: int) -> int:
    """Return how many programs share the columns of v of a head."""
    return cdiv(d_hv, WIDTH)


def parts(beta_max: int) -> int:
    """Return of how many numbers of 16 bits an element of an inverse is the sum: above a beta of 1 it can be large."""
    return 2 if beta_max > 1 else 1


class Documents(NamedTuple):
    """Documents that lie end to end along T: how many, and the tiles of their places (`common.places`)."""

    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  (tuple.count, which nobody calls)
    tiles: int


@dataclass(frozen=True)
class DeltaWalk:
    """A launch that walks over segments, or documents.

    Attributes:
        segments: those that it walks over.
        pieces: programs that share a segment of a head.
        multiprocessors: of the device.
        members: launches, each of which walks over one of so many heads of v that share one of q and k.
    """

    sizes: Sizes
    cut: Segments
    segments: range
    pieces: int
    multiprocessors: int
    members: int = 1

    @property
    def items(self) -> int:
        """Work items of a launch."""
        return self.sizes.rows // self.members * len(self.segments) * self.pieces

    @property
    def programs(self) -> int:
        """Programs, which share the items."""
        return min(self.items, self.multiprocessors)


@dataclass(frozen=True)
class DeltaPlan:
    """Name what a call launches.

    Attributes:
        cut: the segments of a sequence.
        parts: see `DeltaWalkShape`.
        outputs, values: the walks for o and for dv.
        queries_keys: the walk for dq and dk, which is launched once for every `WIDTH` columns of v. Where one member of
            the heads that share fills the chip, launches for the next ones add to its dq and dk.
        states, state_gradients: the passes for what segments start from, forward and backward; None for one segment.
    """

    sizes: Sizes
    cut: Segments
    parts: int
    outputs: DeltaWalk
    values: DeltaWalk
    queries_keys: DeltaWalk
    states: DeltaWalk | None
    state_gradients: DeltaWalk | None
    documents: Documents | None = None

    @property
    def pieces(self) -> int:
        """Programs that share the columns of v of a head."""
        return pieces_of(self.sizes.d_hv)


@lru_cache(4096)
def planned(
    sizes: Sizes, device: Device, chunk_size: int, beta_max: int, *, backward: bool, exchanges: bool = False,
    documents: Documents | None = None,
) -> DeltaPlan:  # fmt: skip
    """Return what a call launches.

    Args:
        chunk_size: steps of a segment.
        backward: there will be one, which needs the transition of the last segment too.
        exchanges: the state to start from comes of the last one, so a pass goes over every segment first.
        documents: those that lie end to end, which walks take in place of segments.
    """
    cut, pieces = Segments.of(sizes.steps, chunk_size), pieces_of(sizes.d_hv)
    if documents is not None:
        cut = Segments(documents.tiles, documents.tiles, 1)

    def walk(segments: range, pieces: int) -> DeltaWalk:
        return DeltaWalk(sizes, cut, segments, pieces, device.multiprocessors)

    def passing(segments: range, pieces: int) -> DeltaWalk:
        # So that a program meets all pieces by turns: those that have decayed take no time.
        chip = device.multiprocessors - (device.multiprocessors % pieces == 0)
        return replace(walk(segments, pieces), multiprocessors=max(1, chip))

    every = range(cut.count if documents is None else documents.count)
    passed, passed_back = (every if backward or exchanges else every[:-1]), (every if exchanges else every[1:])
    passes = (passing(passed, pieces + 1), passing(passed_back, pieces)) if cut.count > 1 or exchanges else (None, None)
    fills = sizes.rows // sizes.group * len(every) >= FILLED * device.multiprocessors
    of_keys = replace(walk(every, 1), members=sizes.group if fills else 1)
    return DeltaPlan(sizes, cut, parts(beta_max), walk(every, pieces), walk(every, pieces), of_keys, *passes, documents)


def takes_documents(sizes: Sizes, device: Device, lengths: list[int], *, states: bool) -> bool:
    """Return whether one launch of each walk for all documents is the fastest way, see `one_launch_pays`."""
    at_once = min(device.multiprocessors // pieces_of(sizes.d_hv), sizes.heads * len(lengths))
    longer = LONGER_THAN_SEGMENTS if default_chunk_size(sizes, device) < sizes.steps else LONGER
    return one_launch_pays(at_once, sizes, lengths, states=states, longer=longer)


def default_chunk_size(sizes: Sizes, device: Device) -> int:
    """Return the steps of segments by which forward takes least time."""
    pieces = pieces_of(sizes.d_hv)
    return segment_steps(sizes, device, pieces, pieces + 1)


def segment_steps(sizes: Sizes, device: Device, pieces: int, pass_pieces: int) -> int:
    """Return the steps of segments by which rounds of programs, each a segment long, are least time.

    Args:
        pieces, pass_pieces: programs that share a segment of a head, in a walk and in the pass before it.
    """
    tiles, chip = cdiv(sizes.steps, TILE), device.multiprocessors
    best, least = 1, float(cdiv(sizes.rows * pieces, chip))
    for count in range(2, MOST_SEGMENTS + 1):
        if tiles < count * LEAST_TILES:
            break
        rounds = cdiv(sizes.rows * (count - 1) * pass_pieces, chip) + cdiv(sizes.rows * count * pieces, chip)
        if rounds < least * count:
            best, least = count, rounds / count
    return TILE * cdiv(tiles, best)
