# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Cut the work of a walk into items that programs take one after the other."""

from functools import lru_cache
from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tflabench.kernels.scalar.plan.hopper import Walk

from .pipeline import aggregate
from .state import States
from .workarounds import opaque_zero


@lru_cache(4096, typed=True)  # tuples of two types are equal if their numbers are
def encode_counts(counts: Any) -> Any:
    """Return a named tuple of numbers, all at least 1, as a kernel takes it: 2 n + 1 for each n, see `read_count`.

    Triton compiles a kernel anew where a number in a tuple becomes 1 or a multiple of 16, whatever the kernel says of
    that argument. These are neither, so another batch, length or number of heads compiles nothing.
    """
    return counts._make([2 * n + 1 for n in counts])


class Counts(NamedTuple):
    """Numbers that a program reads once for a work item, all at least 1.

    Attributes:
        num_heads: heads of V and H.
        heads_per_qk: consecutive heads that share a head of Q and K.
        segment_tiles: tiles of a segment; the first segment has the remainder.
        num_segments: segments of a sequence.
        end_segment: the first segment after those of the walk.
        walked_segments: how many segments the walk has.
        kept_segment_tiles, num_kept_segments: of the cut for whose segments states are kept.
        loads, stores: 2 where segments start from states in memory, and where those after them go there; else 1.
        independent: 2 where the kernel before makes nothing that this one reads, see `pipeline.begin_kernel`; else 1.
    """

    num_heads: int
    heads_per_qk: int
    segment_tiles: int
    num_segments: int
    end_segment: int
    walked_segments: int
    kept_segment_tiles: int = 1
    num_kept_segments: int = 1
    loads: int = 1
    stores: int = 1
    independent: int = 1

    @classmethod
    def of(
        cls, walk: Walk, states: States, documents: Any = None, *, independent: bool = False
    ) -> "Counts | DocumentCounts":
        """Return what the kernel of a walk takes, encoded (`encode_counts`); documents: the table of `WalkInputs`."""
        _, heads, group, _, _, _ = walk.sizes
        _, segment_tiles, count = walk.cut
        kept = (1, 1) if walk.kept is None else walk.kept[1:]
        counts = encode_counts(cls(
            heads, group, segment_tiles, count, walk.segments.stop, len(walk.segments), *kept,
            1 + (states.initial is not None), 1 + (states.final is not None), 1 + independent,
        ))  # fmt: skip
        if documents is None:
            return counts
        names = DocumentCounts._fields[:-1]
        return DocumentCounts(*(getattr(counts, name) for name in names), documents)


class DocumentCounts(NamedTuple):
    """Numbers, and a table, that a program reads for a work item of documents, in place of `Counts`.

    Attributes:
        num_segments: documents.  table: of `WalkInputs`.  The others are as of `Counts`.
    """

    num_heads: int
    heads_per_qk: int
    num_segments: int
    loads: int
    stores: int
    independent: int
    table: Any


@gluon.jit
def read_count(n, i):
    """Return a number of `encode_counts`, worked out where it is used: kept, it would take a register."""
    return n >> (1 + opaque_zero(i))


@gluon.jit
def decode_count(n):
    """Return a number of `encode_counts`, which may be kept in a register."""
    return n >> 1


@aggregate
class Schedule:
    """The work of all programs.

    Fields:
        num_items: work items.
        num_steps, num_tiles: of a sequence.
        counts: `Counts`, encoded, or `DocumentCounts`.
    """

    num_items: gl.tensor
    num_steps: gl.tensor
    num_tiles: gl.tensor
    counts: gl.tuple


@aggregate
class WorkItem:
    """A piece of the state of one segment of a (batch, head) row.

    Fields:
        qk_head: the head of Q and K.
        row: batch * num_heads + head.
        segment: the number of the segment in its sequence.
        first_tile, end_tile: of the segment.
        state_index: the place of the segment's state among all of them, int64.
        piece: which rows and columns of the state, see `get_row_piece` and `get_column_piece`.
        shift: of a document, how many steps its tiles come before their places in `Exponents`.
    """

    batch: gl.tensor
    head: gl.tensor
    qk_head: gl.tensor
    row: gl.tensor
    segment: gl.tensor
    first_tile: gl.tensor
    end_tile: gl.tensor
    state_index: gl.tensor
    piece: gl.tensor
    shift: gl.tensor


@gluon.jit
def get_items_of_documents(table, program, PIECES: gl.constexpr = 1):
    """Return what `get_items` does, by the table of `WalkInputs`; PIECES: work items of a document and a head."""
    begins = table + program // PIECES
    return gl.load(begins) * PIECES + program % PIECES, gl.load(begins + 1) * PIECES, PIECES


@gluon.jit
def read_document(table, sequences, number, num_heads):
    """Return what the table says of a sequence by its number: document, head, first tile, end tile, and the shift.

    Args:
        table: of `WalkInputs`, where its sequences begin; `sequences` is how many there are.
    """
    sequence = gl.load(table + number)
    document, head = sequence // num_heads, sequence % num_heads
    at = table + sequences + document * 3
    return document, head, gl.load(at), gl.load(at + 1), gl.load(at + 2)


@gluon.jit
def get_items(schedule, config: gl.constexpr):
    """Return the first work item of this program, the end of them, and how far they are from one another."""
    if config.documents:
        return get_items_of_documents(schedule.counts.table, gl.program_id(0), config.pieces)
    else:
        return gl.program_id(0), schedule.num_items, gl.num_programs(0)


@gluon.jit
def get_document(schedule, item, config: gl.constexpr):
    """Return the work item of a document of one head, by its number in the table (`launch.WalkInputs`)."""
    PIECES: gl.constexpr = config.pieces
    num_heads = read_count(schedule.counts.num_heads, item)
    table = schedule.counts.table + (gl.num_programs(0) // PIECES + 1)
    sequences = schedule.num_items // PIECES
    document, head, first_tile, end_tile, shift = read_document(table, sequences, item // PIECES, num_heads)
    return WorkItem(
        batch=item * 0,
        head=head,
        qk_head=head // read_count(schedule.counts.heads_per_qk, item),
        row=head,
        segment=document,
        first_tile=first_tile,
        end_tile=end_tile,
        state_index=(document * num_heads + head).to(gl.int64),
        piece=item % PIECES,
        shift=shift,
    )


@gluon.jit
def get_work_item(schedule, item, config: gl.constexpr):
    """Return a work item by its number.

    Pieces of a state are consecutive: they run side by side and share Q and K in the L2 cache.
    """
    if config.documents:
        return get_document(schedule, item, config)
    else:
        return get_segment(schedule, item, config)


@gluon.jit
def get_segment(schedule, item, config: gl.constexpr):
    """Return the work item of a segment of one head."""
    PIECES: gl.constexpr = config.pieces
    counts = schedule.counts
    num_heads = read_count(counts.num_heads, item)
    num_segments = read_count(counts.num_segments, item)
    segment_tiles = read_count(counts.segment_tiles, item)
    walked_segments = read_count(counts.walked_segments, item)
    first_segment = read_count(counts.end_segment, item) - walked_segments
    segment = first_segment + (item // PIECES) % walked_segments
    row = item // (PIECES * walked_segments)
    begin = schedule.num_tiles - (num_segments - segment) * segment_tiles
    end = begin + segment_tiles
    if config.reverse:
        # No other number, but num_tiles - 1, which `get_tile` would be made of, would be kept in a register.
        end = gl.minimum(end, schedule.num_tiles)
    head = row % num_heads
    return WorkItem(
        batch=row // num_heads,
        head=head,
        qk_head=head // read_count(counts.heads_per_qk, item),
        row=row,
        segment=segment,
        first_tile=gl.maximum(begin, 0),
        end_tile=end,
        state_index=(row * num_segments + segment).to(gl.int64),
        piece=item % PIECES,
        shift=item * 0,
    )


@gluon.jit
def get_step(work, tile, config: gl.constexpr):
    """Return the first step of a tile of a work item in Q, K and V."""
    if config.documents:
        return tile * 64 - work.shift
    else:
        return tile * 64


@gluon.jit
def get_tile(work, turn, config: gl.constexpr):
    """Return the tile that a walk meets in a turn, first_tile to end_tile - 1: if reversed, from the last one on."""
    if config.reverse:
        return work.first_tile + work.end_tile - 1 - turn
    else:
        return turn


@gluon.jit
def get_row_piece(work, config: gl.constexpr):
    """Return which rows of the state a work item of a walk has: pieces of the same columns are consecutive."""
    ROW_PIECES: gl.constexpr = config.row_pieces
    if config.column_pieces > 1:
        return work.piece % ROW_PIECES
    else:
        return work.piece


@gluon.jit
def get_column_piece(work, config: gl.constexpr):
    """Return which columns of the state a work item of a walk has."""
    ROW_PIECES: gl.constexpr = config.row_pieces
    if config.column_pieces > 1:
        return work.piece // ROW_PIECES
    else:
        return 0


@gluon.jit
def get_first_column(work, config: gl.constexpr):
    """Return the first column of the state that a work item of a walk has."""
    WIDTH: gl.constexpr = 64 * config.blocks_key
    return get_column_piece(work, config) * WIDTH


@gluon.jit
def get_part_offset(schedule, work, part, config: gl.constexpr):
    """Return where a part of a work item's row begins in (parts, B, H, T), int64."""
    PIECES: gl.constexpr = config.pieces
    row = work.row.to(gl.int64)
    if PIECES > 1:
        rows = schedule.num_items // (PIECES * read_count(schedule.counts.num_segments, work.piece))
        row += gl.to_tensor(part).to(gl.int64) * rows
    return row * schedule.num_steps


@gluon.jit
def loads_state(schedule, i):
    """Return whether segments start from a state in memory, rather than from zero."""
    return read_count(schedule.counts.loads, i) > 1


@gluon.jit
def stores_state(schedule, i):
    """Return whether the states after segments go to memory."""
    return read_count(schedule.counts.stores, i) > 1


@gluon.jit
def is_independent(schedule):
    """Return whether the kernel before makes nothing that this one reads, see `pipeline.begin_kernel`."""
    return decode_count(schedule.counts.independent) > 1


@gluon.jit
def get_state_index(schedule, work, head, HEADS: gl.constexpr):
    """Return the place, int64, of a head's state of the work item's segment among all of them.

    Args:
        head: its number in a program that has HEADS of them; those of a work item are then packs of HEADS.
    """
    num_segments = read_count(schedule.counts.num_segments, work.row)
    return ((work.row * HEADS + head) * num_segments + work.segment).to(gl.int64)


@gluon.jit
def starts_kept_segment(schedule, tile):
    """Return whether a segment of the cut for which states are kept starts with a tile."""
    segment_tiles = read_count(schedule.counts.kept_segment_tiles, tile)
    return ((schedule.num_tiles - tile) % segment_tiles == 0) | (tile == 0)


@gluon.jit
def get_kept_index(schedule, row, tile):
    """Return the place, int64, of the state that the kept segment of a tile starts from among all of them."""
    segment_tiles = read_count(schedule.counts.kept_segment_tiles, tile)
    num_segments = read_count(schedule.counts.num_kept_segments, tile)
    segments_left = (schedule.num_tiles - tile + segment_tiles - 1) // segment_tiles
    return (row * num_segments + num_segments - segments_left).to(gl.int64)


@gluon.jit
def stores_state_after(schedule, work, tile, KEEP: gl.constexpr):
    """Return whether the state after a tile goes to memory, so that none of its decay may stay pending."""
    if KEEP:
        return (tile == work.end_tile - 1) | starts_kept_segment(schedule, tile + 1)
    else:
        return tile == work.end_tile - 1
