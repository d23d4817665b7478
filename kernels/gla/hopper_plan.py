"""Plan the fused kernels of Gated Linear Attention: what they take, and how many programs make o and its gradients.

A program walks over the tiles of one head of a segment, 64 steps each, with the state of up to 256 columns of v on
chip. There are four such walks: for o, for dv (backward in time), for dq, and for dk (backward in time).

Where heads are too few for the chip a sequence has segments, as with the delta rule (`delta.hopper_plan`): a state pass
makes what each adds to a state of zero, and the decays of its channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tflabench.kernels.common.cover import cdiv
from tflabench.kernels.common.sizes import Device, Sizes
from tflabench.kernels.delta.hopper_plan import DeltaWalk, segment_steps
from tflabench.kernels.scalar.plan.hopper_segments import Segments

DTYPES = ("bfloat16",)  # of float16 the range is too small: q and k are scaled by up to 2^60
TILE = 64  # steps of a tile
BLOCK = 64  # channels, and columns of v, of a block
LARGEST_D_QK = 128  # a program has all rows of a state
LARGEST_D_HV = 512
PAIR_TILES = 8  # of a program for pairs of steps: most find that a sequence has not closed
WIDTH = 256  # columns of a state and of v in a program, at most
LEAST_TOTAL = -120.0  # log2 of what a tile keeps of a channel; where it is less the tile has closed (`hopper.walk`)


@dataclass(frozen=True)
class GlaWalkShape:
    """Describe how a program of a walk is divided.

    Attributes:
        num_stages: tiles in flight, num_value_stages: of v, where it comes by itself.
        num_gate_slots: blocks of 64 channels of gates in flight.
        num_slots: of scores.  num_outputs: blocks of o on their way out, of either half.
        state_registers, gate_registers: of a thread of a partition that carries the state, and of the one for gates.
    """

    num_stages: int = 2
    num_value_stages: int = 2
    num_gate_slots: int = 3
    num_slots: int = 2
    num_outputs: int = 1
    state_registers: int = 208
    gate_registers: int = 72


def columns_shape(d_hv: int, gate_bytes: int) -> GlaWalkShape:
    """Return how a program of the walks for o and dv is divided: as many tiles in flight as there is memory for.

    Args:
        gate_bytes: of an element of the gates.
    """
    if blocks_of(d_hv) == 1:
        return GlaWalkShape(num_value_stages=3, num_gate_slots=4)
    return GlaWalkShape() if gate_bytes == 4 else GlaWalkShape(num_gate_slots=4, num_outputs=2)


def channels_shape(d_hv: int) -> GlaWalkShape:
    """Return how a program of the walks for dq and dk is divided."""
    return GlaWalkShape(num_slots=1) if blocks_of(d_hv) > 1 else GlaWalkShape(num_gate_slots=4)


def blocks_of(d_hv: int) -> int:
    """Return the blocks of columns of v that each of the two halves of a program has."""
    return 1 if d_hv <= 2 * BLOCK else 2


def pieces_of(d_hv: int) -> int:
    """Return how many programs share the columns of v of a head."""
    return cdiv(d_hv, WIDTH)


def refuses_sizes(d_qk: int, d_hv: int) -> str | None:
    """Return why the kernels do not take these sizes, or None if they do; they take every chunk size."""
    if d_qk > LARGEST_D_QK:
        return f"takes a d_qk up to {LARGEST_D_QK}, not {d_qk}"
    return None if d_hv <= LARGEST_D_HV else f"takes a d_hv up to {LARGEST_D_HV}, not {d_hv}"


@dataclass(frozen=True)
class GlaWalks:
    """Name what a call launches.

    Attributes:
        cut: the segments of a sequence.
        outputs: the walks for o and for dv; channels: those for dq and dk, launched for every `WIDTH` columns of v.
        states, state_gradients: the passes for what segments start from, forward and backward; None for one segment.
    """

    sizes: Sizes
    cut: Segments
    outputs: DeltaWalk
    channels: DeltaWalk
    states: DeltaWalk | None
    state_gradients: DeltaWalk | None


@lru_cache(4096)
def planned(sizes: Sizes, device: Device, chunk_size: int, *, backward: bool, exchanges: bool = False) -> GlaWalks:
    """Return what a call launches.

    Args:
        chunk_size: steps of a segment.
        backward: there will be one, which needs the decays of the last segment too.
        exchanges: the state to start from comes of the last one, so a pass goes over every segment first.
    """
    cut, pieces = Segments.of(sizes.steps, chunk_size), pieces_of(sizes.d_hv)

    def walk(segments: range, pieces: int) -> DeltaWalk:
        return DeltaWalk(sizes, cut, segments, pieces, device.multiprocessors)

    every = range(cut.count)
    passed, passed_back = (every if backward or exchanges else every[:-1]), (every if exchanges else every[1:])
    passes = (walk(passed, pieces), walk(passed_back, pieces)) if cut.count > 1 or exchanges else (None, None)
    return GlaWalks(sizes, cut, walk(every, pieces), walk(every, 1), *passes)


def default_chunk_size(sizes: Sizes, device: Device) -> int:
    """Return the steps of segments by which forward takes least time."""
    pieces = pieces_of(sizes.d_hv)
    return segment_steps(sizes, device, pieces, pieces)
