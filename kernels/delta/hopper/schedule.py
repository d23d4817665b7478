# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Cut the work of a walk into items that programs take one after the other."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tflabench.kernels.delta.hopper_plan import DeltaWalk
from tflabench.kernels.scalar.hopper.pipeline import aggregate
from tflabench.kernels.scalar.hopper.schedule import encode_counts


class DeltaCounts(NamedTuple):
    """The numbers of `DeltaSchedule`, as a kernel takes them (`encode_counts`)."""

    num_items: Any
    num_steps: Any
    num_tiles: Any
    num_heads: Any
    heads_per_qk: Any
    segment_tiles: Any
    num_segments: Any
    end_segment: Any
    walked_segments: Any
    member: Any

    @classmethod
    def of(cls, walk: DeltaWalk, member: int = 0) -> "DeltaCounts":
        """Return the counts of a launch of a walk; member: see `DeltaWalk`."""
        sizes, cut, segments = walk.sizes, walk.cut, walk.segments
        return encode_counts(cls(
            walk.items, sizes.steps, cut.tiles, sizes.heads, sizes.group, cut.segment_tiles, cut.count, segments.stop,
            len(segments), member + 1,
        ))  # fmt: skip


@aggregate
class DeltaSchedule:
    """The work of all programs.

    Fields:
        num_items: work items.
        num_steps, num_tiles: of a sequence.
        num_heads: of v.  heads_per_qk: consecutive ones that share a head of q and k.
        segment_tiles: tiles of a segment; the first one has the remainder.
        num_segments: of a sequence.  end_segment: the first after those walked over, which are walked_segments.
        member: see `DeltaWalk`; the first one is 1.
    """

    num_items: gl.tensor
    num_steps: gl.tensor
    num_tiles: gl.tensor
    num_heads: gl.tensor
    heads_per_qk: gl.tensor
    segment_tiles: gl.tensor
    num_segments: gl.tensor
    end_segment: gl.tensor
    walked_segments: gl.tensor
    member: gl.tensor


@aggregate
class DeltaItem:
    """128 columns of the state of a segment of a head.

    Fields:
        qk_head: the head of q and k.  row: batch * num_heads + head.  piece: which columns.
        segment: its number.  first_tile, end_tile: its tiles.
    """

    batch: gl.tensor
    head: gl.tensor
    qk_head: gl.tensor
    row: gl.tensor
    piece: gl.tensor
    segment: gl.tensor
    first_tile: gl.tensor
    end_tile: gl.tensor


@gluon.jit
def get_schedule(counts):
    """Return the schedule that the host has encoded."""
    return DeltaSchedule(
        counts.num_items >> 1,
        counts.num_steps >> 1,
        counts.num_tiles >> 1,
        counts.num_heads >> 1,
        counts.heads_per_qk >> 1,
        counts.segment_tiles >> 1,
        counts.num_segments >> 1,
        counts.end_segment >> 1,
        counts.walked_segments >> 1,
        counts.member >> 1,
    )


@gluon.jit
def get_work_item(schedule, item, PIECES: gl.constexpr, MEMBERS: gl.constexpr = 1):
    """Return a work item by its number: the pieces of a state are consecutive, and share q and k in the L2 cache."""
    segment = schedule.end_segment - schedule.walked_segments + item // PIECES % schedule.walked_segments
    end = schedule.num_tiles - (schedule.num_segments - 1 - segment) * schedule.segment_tiles
    row = item // PIECES // schedule.walked_segments
    if MEMBERS > 1:
        row = row * MEMBERS + schedule.member - 1
    head = row % schedule.num_heads
    return DeltaItem(
        batch=row // schedule.num_heads,
        head=head,
        qk_head=head // schedule.heads_per_qk,
        row=row,
        piece=item % PIECES,
        segment=segment,
        first_tile=gl.maximum(end - schedule.segment_tiles, 0),
        end_tile=end,
    )


@gluon.jit
def get_tile(work, turn, REVERSE: gl.constexpr):
    """Return the tile that a walk meets in a turn, first_tile to end_tile - 1: if reversed, from the last one on."""
    if REVERSE:
        return work.first_tile + work.end_tile - 1 - turn
    else:
        return turn


@gluon.jit
def get_state_index(schedule, work):
    """Return the place, int64, of a segment's state among all of them."""
    return (work.row * schedule.num_segments + work.segment).to(gl.int64)
