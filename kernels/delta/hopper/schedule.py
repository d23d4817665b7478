# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Cut the work of a walk into items that programs take one after the other."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tflabench.kernels.delta.hopper_plan import DeltaWalk
from tflabench.kernels.scalar.hopper.documents import WalkPlaces
from tflabench.kernels.scalar.hopper.pipeline import aggregate
from tflabench.kernels.scalar.hopper.schedule import encode_counts, get_items_of_documents, read_document


class DeltaCounts(NamedTuple):
    """The numbers of `DeltaSchedule`, as a kernel takes them (`encode_counts`), and of documents its tables."""

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
    steps: Any = 1
    programs: Any = 1
    spans: Any = 1

    @classmethod
    def of(cls, walk: DeltaWalk, member: int = 0, places: WalkPlaces | None = None, spans: Any = None) -> "DeltaCounts":
        """Return the counts of a launch of a walk; member: see `DeltaWalk`; places: of documents; spans: of a pass."""
        sizes, cut, segments = walk.sizes, walk.cut, walk.segments
        counts = encode_counts(cls(
            walk.items, sizes.steps, cut.tiles, sizes.heads, sizes.group, cut.segment_tiles, cut.count, segments.stop,
            len(segments), member + 1,
        ))  # fmt: skip
        if places is not None:
            programs = places.table(sizes.heads // walk.members, walk.programs // walk.pieces)
            counts = counts._replace(steps=places.steps, programs=programs)
        return counts if spans is None else counts._replace(spans=spans)


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
        steps: of documents, the step at each place of all tiles, negative for none (`common.places`).
        programs: of documents, which of them each program takes (`WalkPlaces.table`).
        spans: of a pass, see `joins.spans_of`. These three are otherwise numbers that nothing reads.
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
    steps: gl.tensor
    programs: gl.tensor
    spans: gl.tensor


@aggregate
class DeltaItem:
    """128 columns of the state of a segment, or a document, of a head.

    Fields:
        qk_head: the head of q and k.  row: batch * num_heads + head.  piece: which columns.
        segment: its number; of a document that times num_heads.  first_tile, end_tile: its tiles.
        shift: of a document, how many steps its tiles come before their places.
    """

    batch: gl.tensor
    head: gl.tensor
    qk_head: gl.tensor
    row: gl.tensor
    piece: gl.tensor
    segment: gl.tensor
    first_tile: gl.tensor
    end_tile: gl.tensor
    shift: gl.tensor


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
        counts.steps,
        counts.programs,
        counts.spans,
    )


@gluon.jit
def get_items(schedule, PIECES: gl.constexpr, DOCUMENTS: gl.constexpr):
    """Return the first work item of this program, the end of them, and how far they are from one another."""
    if DOCUMENTS:
        return get_items_of_documents(schedule.programs, gl.program_id(0), PIECES)
    else:
        return gl.program_id(0), schedule.num_items, gl.num_programs(0)


@gluon.jit
def get_document(schedule, item, PIECES: gl.constexpr, MEMBERS: gl.constexpr):
    """Return the work item of a document of a head by its number in the table of programs."""
    table = schedule.programs + (gl.num_programs(0) // PIECES + 1)
    sequences, heads = schedule.num_items // PIECES, schedule.num_heads // MEMBERS
    document, head, first_tile, end_tile, shift = read_document(table, sequences, item // PIECES, heads)
    if MEMBERS > 1:
        head = head * MEMBERS + schedule.member - 1
    return DeltaItem(
        batch=item * 0,
        head=head,
        qk_head=head // schedule.heads_per_qk,
        row=head,
        piece=item % PIECES,
        segment=document * schedule.num_heads,
        first_tile=first_tile,
        end_tile=end_tile,
        shift=shift,
    )


@gluon.jit
def get_work_item(schedule, item, PIECES: gl.constexpr, MEMBERS: gl.constexpr = 1, DOCUMENTS: gl.constexpr = False):
    """Return a work item by its number: the pieces of a state are consecutive, and share q and k in the L2 cache."""
    if DOCUMENTS:
        return get_document(schedule, item, PIECES, MEMBERS)
    else:
        return get_segment(schedule, item, PIECES, MEMBERS)


@gluon.jit
def get_item_of_walk(schedule, item, config: gl.constexpr):
    """Return a work item of a walk for o or dv: that of a pass lacks tiles that have decayed.

    A transition that has decayed has no tile left.
    """
    work = get_work_item(schedule, item, config.pieces, 1, config.documents)
    if config.spans:
        at = schedule.spans + (work.row * schedule.num_segments + work.segment) * 2
        first, end = work.first_tile, work.end_tile
        if config.reverse:
            end = gl.load(at + 1)
        else:
            first = gl.load(at)
            none = (work.piece == config.value_pieces) & (first > work.first_tile)
            first = gl.where(none, end, first)
        work = DeltaItem(
            work.batch, work.head, work.qk_head, work.row, work.piece, work.segment, first, end, work.shift
        )
    return work


@gluon.jit
def get_segment(schedule, item, PIECES: gl.constexpr, MEMBERS: gl.constexpr):
    """Return the work item of a segment of a head."""
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
        shift=item * 0,
    )


@gluon.jit
def get_tile(work, turn, REVERSE: gl.constexpr):
    """Return the tile that a walk meets in a turn, first_tile to end_tile - 1: if reversed, from the last one on."""
    if REVERSE:
        return work.first_tile + work.end_tile - 1 - turn
    else:
        return turn


@gluon.jit
def is_edge(work, tile):
    """Return whether a tile is the first or the last one of a work item, see `send`."""
    return (tile == work.first_tile) | (tile == work.end_tile - 1)


@gluon.jit
def get_state_index(schedule, work):
    """Return the place, int64, of the state of a segment or document among all of them; num_segments is 1 of these."""
    return (work.row * schedule.num_segments + work.segment).to(gl.int64)
