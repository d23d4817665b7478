"""Plan the fused kernels: which launches make h and its gradients, over which segments, by how many programs.

docs/kernels.md has what each of them does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from tflabench.kernels.common.cover import cdiv, next_power_of_2
from tflabench.kernels.common.sizes import Device, Sizes

from . import hopper_segments
from .hopper_segments import Parts, Segments, first_segment_programs, parts_per_segment
from .hopper_shapes import (
    HEIGHT,
    TILE,
    WIDTH,
    DkdvShape,
    PackedHeadsShape,
    StatePassShape,
    TileGradientsShape,
    WalkShape,
    heads_added_up,
    heads_together,
    held,
    takes_dkdv,
    takes_tile_gradients,
)

STATE_BYTES = 4  # of an element of a state: float32, whatever the inputs are
SUM_BYTES = 4  # of a row sum: float32
STEPS_OF_LAUNCH = 1024  # of one program, in the time in which a host launches what a pass takes
LONGER = 1.1  # what documents may take of the time of whole tiles: one sequence of several segments takes 1.2
CARRIED = 1024  # elements of a state in a program that joins the states of parts, at most
EXPONENT_BYTES = 8  # of both gates of a step: float32


@dataclass(frozen=True)
class Walk:
    """A walk over segments, out_u = sum_z (U_u . W_z) Z_z + S U_u, with a state S of `rows` by `columns`.

    Attributes:
        name: of what it makes: "h", "dq", "dk", "dv" or "dk, dv".
        columns: dimension of U and W, summed over; more than 256 are divided among programs.
        rows: dimension of Z and of the output.
        kept: the segments for which h writes states down, where they are others: see
            docs/decisions/2026-11-25-kept-states.md.
        normalise: h is divided by the denominators.
        sums: for gate gradients it also reads a fourth tensor X of `rows` and writes row sums of X * S U, for which it
            multiplies U by twice the bits of S: by S rounded to the inputs' type, and by the rest. A walk over more
            than 256 columns does so whoever asks: only that kernel divides them among programs.
        with_dv: of dk: it makes dv too, out of K and the same state.
        together: heads of a program, which reads U and W once for them.
    """

    name: str
    sizes: Sizes
    columns: int
    rows: int
    cut: Segments
    segments: range
    chip: int
    kept: Segments | None = None
    normalise: bool = False
    sums: bool = False
    with_dv: bool = False
    together: int = 1

    @cached_property
    def shape(self) -> WalkShape | DkdvShape | PackedHeadsShape:
        """The division of a program."""
        if self.with_dv:
            return DkdvShape.of(self.columns)
        if self.together > 1:
            return PackedHeadsShape(self.together)
        sequences, columns = self.sizes.rows * len(self.segments), min(self.columns, WIDTH)
        return WalkShape.filling(columns, self.rows, sequences, self.chip, sums=self.sums, normalise=self.normalise)

    @property
    def column_pieces(self) -> int:
        """Programs side by side that share one head's state by its columns, each with all of Z; they add up outputs."""
        return cdiv(self.columns, WIDTH)

    @property
    def row_pieces(self) -> int:
        """Programs side by side that share one head's state by its rows, each with all of U and W."""
        return self.shape.pieces_of(self.rows) if isinstance(self.shape, WalkShape) else 1

    @property
    def pieces(self) -> int:
        """Programs side by side that share one head's state."""
        return self.row_pieces * self.column_pieces

    @cached_property
    def items(self) -> int:
        """Work items, each a piece of the state of a segment, for the heads of a program."""
        return self.sizes.rows * len(self.segments) * self.pieces // self.together

    @cached_property
    def programs(self) -> int:
        """Programs, which share the items.

        The pieces of a state run side by side, for the L2: so they are to start together, not where another ends.
        """
        return min(self.items, max(1, self.chip * self.resident // self.pieces) * self.pieces)

    @property
    def resident(self) -> int:
        """Programs that share a multiprocessor."""
        return self.shape.resident if isinstance(self.shape, WalkShape) else 1

    @property
    def within(self) -> int:
        """Sums of P * (X Z^T) over the pairs of a tile that it writes: by steps that give or take."""
        return 2 * (self.sums and self.name == "dq")

    @property
    def block_rows(self) -> int:
        """Rows of a state in one program, at most."""
        if self.together > 1:
            return self.rows
        return TILE * self.shape.halves * self.shape.blocks_value if isinstance(self.shape, WalkShape) else HEIGHT

    @property
    def sum_bytes(self) -> int:
        """Bytes of the row sums, of which every program of a state has a part."""
        return SUM_BYTES * (self.sums + self.within) * self.pieces


@dataclass(frozen=True)
class StatePass:
    """A pass that adds up states: C over k and v, or backward in time dC over q and dh.

    Attributes:
        state: "C" or "dC".
        cut: the segments that start from its states, or whose tiles do.
        parts: of segments, each with programs of its own.
        resumed: the state after the first segment is made elsewhere.
        end: it makes the state after the last segment of the walk too; else that segment is not even read.
        of_tiles: it writes the state before every tile, in the inputs' type, and those of segments are there.
    """

    state: str
    sizes: Sizes
    cut: Segments
    parts: Parts
    resumed: bool = False
    end: bool = False
    of_tiles: bool = False
    resident = 1
    sum_bytes = 0.0  # it writes no row sums

    @cached_property
    def shape(self) -> StatePassShape:
        """The division of a program."""
        sizes = self.sizes
        return StatePassShape.of(sizes.d_qk, sizes.d_hv, heads=sizes.heads, heads_per_qk=sizes.group)

    @property
    def reverse(self) -> bool:
        """Tell whether it goes backward in time."""
        return self.state == "dC"

    @property
    def name(self) -> str:
        """The states that it makes."""
        return f"{self.state} of {'tiles' if self.of_tiles else 'segments'}"

    @property
    def apart(self) -> bool:
        """Tell whether what segments start from lies apart from what their parts add."""
        return self.parts.per_segment > 1 or self.resumed

    @property
    def state_count(self) -> int:
        """States of a row of batch and heads in memory: of parts, and of segments where these lie apart."""
        return self.parts.cut.count + self.cut.count * self.apart

    @cached_property
    def items(self) -> int:
        """Work items, each with a program of its own."""
        return self.shape.programs(self.sizes) * len(self.parts.added)

    def carry(self, elements: int) -> tuple[int, int]:
        """Return the elements of a state in a program that joins parts, and the programs, for C or n of `elements`."""
        block = min(CARRIED, next_power_of_2(elements))
        return block, self.sizes.rows * cdiv(elements, block)


@dataclass(frozen=True)
class TileGradients:
    """The kernel for dq, dk and dv of 64 by 64 states, tile by tile, from the states before and after each.

    Attributes:
        shape: how a program is divided. It reads q and k once for its heads, and writes the sums of their dq and dk.
        sums: it also writes row sums, of q and of k, within the tile and through a state, and what passes the tile.
    """

    sizes: Sizes
    shape: TileGradientsShape
    sums: bool
    chip: int
    name = "dq, dk, dv"
    resident = 1

    @property
    def together(self) -> int:
        """Heads of a work item."""
        return self.shape.num_heads

    @cached_property
    def items(self) -> int:
        """Work items, each a tile."""
        return self.sizes.rows * cdiv(self.sizes.steps, TILE) // self.together

    @property
    def programs(self) -> int:
        """Programs that share the items."""
        return min(self.items, self.chip)

    @property
    def sum_bytes(self) -> float:
        """Bytes a step of the row sums, and of what passes its tile."""
        return SUM_BYTES * (4 + 1 / TILE) * self.sums


Kernel = Walk | StatePass | TileGradients


class Forward(NamedTuple):
    """Name the launches of forward.

    Attributes:
        state_pass: what these start from; None for one segment.
        first: h of the first segment, which runs while the state pass does; None: it is part of h.
        h: h of all segments, or of the others.
    """

    cut: Segments
    state_pass: StatePass | None
    first: Walk | None
    h: Walk

    @property
    def workspace_bytes(self) -> int:
        """Bytes of states that are neither inputs nor `saved`."""
        if self.state_pass is None:
            return 0
        sizes, saved = self.state_pass.sizes, 0 if self.h.kept else self.cut.count
        elements = sizes.d_qk * sizes.d_hv + sizes.d_qk * self.h.normalise
        return sizes.rows * elements * (self.state_pass.state_count - saved) * STATE_BYTES


class ByTiles(NamedTuple):
    """Name the launches that make gradients tile by tile: the states before and after each, then all gradients."""

    C: StatePass
    dC: StatePass
    gradients: TileGradients


class Backward(NamedTuple):
    """Name the launches of backward.

    Attributes:
        asked: sizes as they are asked for.
        state_pass: dC that these start from; None for one segment.
        walks: for dq, then for dk and dv together or apart; none where gradients are made `by_tiles`.
    """

    asked: Sizes
    cut: Segments
    state_pass: StatePass | None
    walks: tuple[Walk, ...]
    by_tiles: ByTiles | None = None

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels that make gradients, in order."""
        return self.by_tiles or self.walks

    def workspace_bytes(self, element_bytes: int) -> float:
        """Return the bytes of states of segments and of tiles, and of row sums."""
        sizes = self.kernels[0].sizes
        states = sizes.d_qk * sizes.d_hv * STATE_BYTES * (self.state_pass.state_count if self.state_pass else 0)
        a_step = sum(kernel.sum_bytes for kernel in self.kernels)
        if self.by_tiles:
            a_step += element_bytes * self.asked.d_qk * self.asked.d_hv / TILE  # of C; dC lies where dv goes
        return sizes.rows * (states + sizes.steps * a_step)


@lru_cache(4096)
def forward(
    sizes: Sizes, device: Device, chunk_size: int, *, normalise: bool, end: bool = False, cut_freely: bool = False,
    exchanges: bool = False,
) -> Forward:  # fmt: skip
    """Return what forward launches.

    Args:
        chunk_size: steps of a segment, of which backward starts from states.
        end: the last state is asked for.
        cut_freely: forward may choose other segments.
        exchanges: the state to start from comes of the last state, so both are made before h.
    """
    sizes = held(sizes)
    cut, kept, chip = Segments.of(sizes.steps, chunk_size), None, device.multiprocessors
    together = 1 if normalise else heads_together(sizes)
    if cut_freely and cut.count > 1 and together == 1:
        shape = hopper_segments.Shape.of(sizes, device, norm=normalise)
        chosen = Segments.of(sizes.steps, hopper_segments.chosen_for_forward(shape).chunk_size(sizes.steps))
        cut, kept = chosen, cut if chosen != cut else None

    def h(segments: range) -> Walk:
        return Walk(
            "h", sizes, sizes.d_qk, sizes.d_hv, cut, segments, chip, kept, normalise=normalise, together=together
        )

    concurrent = 0 if exchanges else first_segment_programs(sizes, cut, chip, normalise=normalise)
    state_pass = None
    if cut.count > 1 or exchanges:
        state_pass = _state_pass("C", sizes, cut, chip - concurrent, resumed=concurrent > 0, end=end or exchanges)
    first = h(range(1)) if concurrent else None
    return Forward(cut, state_pass, first, h(range(1 if concurrent else 0, cut.count)))


@lru_cache(4096)
def backward(
    sizes: Sizes, device: Device, chunk_size: int, *, gate_gradients: bool, end: bool = False, of_last_n: bool = False,
    exchanges: bool = False,
) -> Backward:  # fmt: skip
    """Return what backward launches.

    Args:
        gate_gradients: with row sums, of which those of the gates are made.
        end: the gradient of the initial state is asked for.
        of_last_n: the last normaliser has a gradient.
        exchanges: the gradient of the last state comes of that of the initial one, so both are made before all else.
    """
    cut, chip, by_tiles = Segments.of(sizes.steps, chunk_size), device.multiprocessors, takes_tile_gradients(sizes)
    asked, sizes = sizes, held(sizes)
    d_qk, d_hv = sizes.d_qk, sizes.d_hv
    state_pass = None
    if cut.count > 1 or exchanges:
        state_pass = _state_pass("dC", sizes, cut, chip, end=end or exchanges)
    if not of_last_n and by_tiles:
        parts = Parts(cut, 1, range(cut.count))
        gradients = TileGradients(sizes, TileGradientsShape(heads_added_up(sizes, chip)), gate_gradients, chip)
        C, dC = (StatePass(state, sizes, cut, parts, of_tiles=True) for state in ("C", "dC"))
        return Backward(asked, cut, state_pass, (), ByTiles(C, dC, gradients))

    def walk(name: str, columns: int, rows: int, **others: Any) -> Walk:
        return Walk(name, sizes, columns, rows, cut, range(cut.count), chip, **others)

    return Backward(asked, cut, state_pass, _backward_walks(walk, d_qk, d_hv, gate_gradients=gate_gradients))


def _backward_walks(walk: Callable[..., Walk], d_qk: int, d_hv: int, *, gate_gradients: bool) -> tuple[Walk, ...]:
    """Return the walks for dq, then for dk and dv together or apart; walk: (name, columns, rows, **others) -> Walk."""
    sums = gate_gradients or d_hv > WIDTH
    dq = walk("dq", d_hv, d_qk, sums=sums)
    if takes_dkdv(d_qk, d_hv):
        return dq, walk("dk, dv", d_hv, d_qk, sums=gate_gradients, with_dv=True)
    return dq, walk("dk", d_hv, d_qk, sums=sums), walk("dv", d_qk, d_hv)


@lru_cache(1024)
def of_documents(
    sizes: Sizes, device: Device, count: int, *, normalise: bool = False, gate_gradients: bool = False
) -> tuple[Forward, Backward]:
    """Return what `count` documents launch that lie end to end along T, each a segment that has states of its own.

    Args:
        sizes: of one sequence, whose steps are those of all tiles.
    """
    asked, sizes = sizes, held(sizes)
    cut, d_qk, d_hv = Segments(cdiv(sizes.steps, TILE), 1, count), sizes.d_qk, sizes.d_hv

    def walk(name: str, columns: int, rows: int, **others: Any) -> Walk:
        return Walk(name, sizes, columns, rows, cut, range(count), device.multiprocessors, **others)

    walks = _backward_walks(walk, d_qk, d_hv, gate_gradients=gate_gradients)
    forward = Forward(cut, None, None, walk("h", d_qk, d_hv, normalise=normalise))
    return forward, Backward(asked, cut, None, walks)


def takes_documents(sizes: Sizes, device: Device, lengths: list[int], *, states: bool) -> bool:
    """Return whether one launch for all documents is the fastest way.

    That launch takes as long as the longest document, in the programs that share its state, at least. The other way
    with states is a launch for each run of documents of one length. Without states it is one sequence, and programs can
    share a long document.

    Args:
        states: whether states go in or out.
    """
    walk = of_documents(sizes, device, len(lengths))[0].h
    at_once = walk.programs // walk.pieces
    pays = one_launch_pays(at_once, sizes, lengths, states=states, longer=LONGER)
    return pays and (states or heads_together(held(sizes)) == 1)


def one_launch_pays(at_once: int, sizes: Sizes, lengths: list[int], *, states: bool, longer: float) -> bool:
    """Return what `takes_documents` does, where programs walk over so many documents at once, of one head each.

    Args:
        longer: what documents may take of the time of one sequence.
    """
    shared = sizes.steps * sizes.heads / at_once
    whole_tiles = sum(TILE * cdiv(length, TILE) for length in lengths) * sizes.heads / at_once
    needed = max(*lengths, whole_tiles)
    if states:
        launches = 1 + sum(a != b for a, b in pairwise(lengths))
        return launches > 1 and needed < shared + launches * STEPS_OF_LAUNCH
    return needed <= longer * shared


def _state_pass(state: str, sizes: Sizes, cut: Segments, chip: int, *, end: bool, resumed: bool = False) -> StatePass:
    """Return a pass for what segments start from, on `chip` multiprocessors."""
    shape = StatePassShape.of(sizes.d_qk, sizes.d_hv, heads=sizes.heads, heads_per_qk=sizes.group)
    split = parts_per_segment(cut, shape.programs(sizes) * (cut.count - (not end) - resumed), chip)
    parts = Parts.of(cut, split, reverse=state == "dC", end=end, resumed=resumed)
    return StatePass(state, sizes, cut, parts, resumed, end)


def saved(sizes: Sizes, chunk_size: int, *, stabilised: bool) -> list[tuple[int, ...]]:
    """Return the shapes of what forward leaves to backward, all float32. Sizes may be symbols.

    log f of a stabilised gate, exponents of backward (x less log2 of the denominator, y, g), and with several segments
    the state each starts from.
    """
    B, H, _, T, d_qk, d_hv = held(sizes)
    cut = Segments.of(T, chunk_size)
    states = [(B, H, cut.count, d_qk, d_hv)] if cut.count > 1 else []
    return [*[(B, H, T)] * stabilised, *[(B, H, cut.tiles * TILE)] * 2, (B, H, cut.tiles), *states]


def default_chunk_size(sizes: Sizes, device: Device, *, normalise: bool, backward: bool) -> int:
    """Return the steps of a segment that fill a device.

    Args:
        backward: whether there will be one; h alone may have more programs.
    """
    shape = hopper_segments.Shape.of(held(sizes), device, norm=normalise)
    return hopper_segments.chosen(shape, backward=backward).chunk_size(sizes.steps)
