# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Cut the work of a walk into items that programs take one after the other."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tflabench.kernels.delta.hopper_plan import DeltaPlan
from tflabench.kernels.scalar.hopper.pipeline import aggregate
from tflabench.kernels.scalar.hopper.schedule import encode_counts


class DeltaCounts(NamedTuple):
    """The numbers of `DeltaSchedule`, as a kernel takes them (`encode_counts`)."""

    num_items: Any
    num_steps: Any
    num_tiles: Any
    num_heads: Any
    heads_per_qk: Any

    @classmethod
    def of(cls, items: int, plan: DeltaPlan) -> "DeltaCounts":
        """Return the counts of a launch with so many work items."""
        return encode_counts(cls(items, plan.sizes.steps, plan.tiles, plan.sizes.heads, plan.sizes.group))


@aggregate
class DeltaSchedule:
    """The work of all programs.

    Fields:
        num_items: work items.
        num_steps, num_tiles: of a sequence.
        num_heads: of v.  heads_per_qk: consecutive ones that share a head of q and k.
    """

    num_items: gl.tensor
    num_steps: gl.tensor
    num_tiles: gl.tensor
    num_heads: gl.tensor
    heads_per_qk: gl.tensor


@aggregate
class DeltaItem:
    """128 columns of the state of a head.

    Fields:
        qk_head: the head of q and k.  row: batch * num_heads + head.  column: the first of the columns.
    """

    batch: gl.tensor
    head: gl.tensor
    qk_head: gl.tensor
    row: gl.tensor
    column: gl.tensor


@gluon.jit
def get_schedule(counts):
    """Return the schedule that the host has encoded."""
    return DeltaSchedule(
        counts.num_items >> 1,
        counts.num_steps >> 1,
        counts.num_tiles >> 1,
        counts.num_heads >> 1,
        counts.heads_per_qk >> 1,
    )


@gluon.jit
def get_work_item(schedule, item, PIECES: gl.constexpr):
    """Return a work item by its number: the pieces of a state are consecutive, and share q and k in the L2 cache."""
    row = item // PIECES
    head = row % schedule.num_heads
    return DeltaItem(
        batch=row // schedule.num_heads,
        head=head,
        qk_head=head // schedule.heads_per_qk,
        row=row,
        column=item % PIECES * 128,
    )


@gluon.jit
def get_tile(schedule, turn, REVERSE: gl.constexpr):
    """Return the tile that a walk meets in a turn: if reversed, from the last one on."""
    if REVERSE:
        return schedule.num_tiles - 1 - turn
    else:
        return turn
