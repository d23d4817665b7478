"""The fused kernels for Hopper (kernels/hopper): what they compute, move and hold on chip, and how fast they can be.

A walk carries one head's state on chip over tiles of 64 steps and makes one output; forward is one walk (h), backward
three (dq, dk, dv). So FLOPs do not grow with L: they are those of the chunkwise form with chunks of one tile. Nor does
a state go through memory, unless L < T: then the T/L segments run side by side, for which a pass before the walk (K, V
forward, Q, dH backward) computes the state that each starts from, in parts of a segment where these are too few
programs. L = T is best where batch * heads fill the chip, and elsewhere the L of as many segments as fill it
(`best_chunk_size`); h alone, without a normaliser, needs half as many, for two programs can share a state. What does
not fill a segment is the first one. Where that is half as long or less, and there is room on the chip, h of it is made
during the state pass, which then has one segment less to go over (`Cut.concurrent`).

Where gate gradients are asked for, dq and dk also make row sums, for which they multiply by twice the bits of the
state: one product more as large as the one through the state. Without (fixed decays) they are walks like the others.
dk and dv are one where a program can hold the whole of dC. h of heads that share q and k, with states of 64 x 64, is
computed for four heads in a program, which reads q and k once for them.

Backward of states of 64 x 64 is no walk, but for single heads without row sums: two state passes (`StatePass`) write C
before and dC after every tile in 16 bits, then one kernel (`Gradients`) makes dq, dk, dv and row sums of a tile from
the two, for up to 64 heads that share q and k, whose dq and dk it adds up. It reads every tensor once, no tile of it
waits for another, and what passes a tile is a product of its states, not a sum of row sums, which are read once then.
PyTorch adds up the parts of dq and dk that are left (of other heads that share q and k: of every head).

`runtime` is a lower bound: every walk takes the slower of memory and matrix products, these over whole waves of
programs. In us, mLSTMsig, with what an H200 took (walks; all: two others) and what the calibrated model makes of it,
where one role's work hides only in part behind another's (all: forward and backward, with gates; dq and dk at 256/512
are two launches each):

            128/256, T = 4096                 256/512, T = 8192
    walk    bound  calibrated  measured       bound  calibrated  measured
    h         380         466       421         501         634       601
    dq        446         571       516         728         971       992
    dk, dv    570         736       726
    dk                                          697         933       929
    dv                                          501         634       604
    all      1409        1789      1673        2446        3192      3092
    all but gate gradients
             1332        1632      1435

    Mamba 2, 64 heads of 64, state 64    T = 4096                   T = 65536, 8 segments
    h and gates                          276   377   413            395   517   549
    all                                 1477  1798  1877            1718  2080  2176

What neither has is shared memory, through which operands of products, blocks on their way in and out and exchanges
between lanes all go: in dq 4,700 of some 7,900 cycles of a tile, in dk and dv 7,500 of 11,100. Whatever is left out of
a walk gains by what it put through there (decisions/2026-11-22-what-limits-the-walks.md), and sums by halves brought
dq, dk and dv below what was calibrated when they took 48 exchanges for 14. Longest against the model are exp's forward
at 256/512, where four programs of a head each carry n and compute q . n of every tile (690 measured, 657 calibrated),
and four heads in a program, of which all roles wait for one another. Nor has it what is not tensors of the kernels: of
Mamba 2 the bias of dt and the gradient of D. At T = 65536 the model cuts into 4 segments behind one half as long
forward and, for dq and dk have half as many programs as h, into 8 with the backward, as the kernels do; but where it
makes forward 6% faster they cut forward the one way and backward the other, the model both alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tflabench.problem import InputError, Problem
from tflabench.theory.constants import (
    CARRYING,
    ENDS,
    EXPONENT_BYTES,
    HEIGHT,
    JOINED,
    MULTIPROCESSORS,
    PACK,
    PACKED,
    ROLES,
    STABILISED_BYTES,
    STATE_BYTES,
    TILE,
    WIDTH,
)
from tflabench.theory.cost import Cost, Gate, flop_terms
from tflabench.theory.fused_kernels import Gradients, Kernel, StatePass, Walk, kernels, walks
from tflabench.theory.hardware import Gpu
from tflabench.theory.launches import Chip, Launch


@dataclass(frozen=True)
class Cut:
    """A sequence cut into `count` segments of `segment_tiles`; the first has the tiles that remain.

    Attributes:
        concurrent: programs that walk over the first segment for h during the state pass; 0: it goes with the others.
    """

    tiles: int
    segment_tiles: int
    concurrent: int = 0

    @property
    def count(self) -> int:
        """Return the number of segments."""
        return math.ceil(self.tiles / self.segment_tiles)

    @property
    def first_tiles(self) -> int:
        """Return the tiles of the first segment."""
        return self.tiles - (self.count - 1) * self.segment_tiles

    @property
    def together(self) -> int:
        """Segments of which h is one launch: all, or all but the first."""
        return self.count - (self.concurrent > 0)

    def passed(self, *, backward: bool) -> tuple[int, int]:
        """Return the segments and tiles of a state pass: all but the walk's last segment and a concurrent one."""
        if backward:
            return self.count - 1, self.tiles - self.first_tiles
        return self.together - 1, self.tiles - self.segment_tiles - self.first_tiles * (self.concurrent > 0)


def cut(problem: Problem, gate: Gate, chunk_size: int, group: int = 1) -> Cut:
    """Return the segments of a sequence as kernels/hopper/segment_states.py has them (`first_segment_programs`)."""
    tiles = math.ceil(problem.seq_len / TILE)
    found = Cut(tiles, min(tiles, max(1, chunk_size // TILE)))
    h = walks(problem.with_(pass_="fw"), group=group)[0]
    if found.count < 3 or 2 * found.first_tiles > found.segment_tiles or h.together > 1:
        return found
    concurrent = round(h.filling(problem, 1, gate == "exp").programs(problem, 1))
    between = problem.batch * problem.heads * _pieces(problem) * (found.count - 2)
    return replace(found, concurrent=concurrent) if concurrent + between <= MULTIPROCESSORS else found


def launched(
    problem: Problem, gate: Gate, chunk_size: int, gate_gradients: bool = True, group: int = 1
) -> tuple[Kernel, ...]:
    """Return `kernels`, as many rows in a program as fill the chip; of h as launched without a concurrent segment."""
    of = cut(problem, gate, chunk_size, group)
    found: list[Kernel] = []
    for kernel in kernels(problem, gate_gradients, group):
        if isinstance(kernel, Walk):
            h = kernel.name == "h"
            kernel = kernel.filling(problem, of.together if h else of.count, gate == "exp" and h)
        found.append(kernel)
    return tuple(found)


def segments(problem: Problem, chunk_size: int) -> int:
    """T/L, each a multiple of a tile; 1 where the chunk holds the sequence."""
    return cut(problem, "sig", chunk_size).count


def parts_of_a_segment(problem: Problem, of: Cut, *, backward: bool) -> int:
    """Return how many parts a state pass cuts a segment into.

    It doubles them while each program has a multiprocessor and joining them takes less than a walk over one.
    """
    pieces, together = _state_pass(problem)
    programs = problem.batch * problem.heads * of.passed(backward=backward)[0] * pieces / together
    chip, parts = MULTIPROCESSORS - (0 if backward else of.concurrent), 1
    while (
        0 < 2 * parts * programs <= chip
        and of.segment_tiles % (2 * parts) == 0
        and (2 * parts * of.count) ** 2 <= of.tiles
    ):
        parts *= 2
    return parts


def _pieces(problem: Problem) -> int:
    """Programs of a state pass that share a state."""
    return math.ceil(problem.d_qk / HEIGHT) * math.ceil(problem.d_hv / WIDTH)


def _state_pass(problem: Problem) -> tuple[int, int]:
    """Programs that share a state, heads of a program."""
    return _pieces(problem), math.gcd(PACK, problem.heads) if problem.d_qk == problem.d_hv == PACKED else 1


def cost(
    problem: Problem,
    gate: Gate,
    chunk_size: int,
    causal_factor: float = 0.5,
    gate_gradients: bool = True,
    group: int = 1,
) -> Cost:
    """FLOPs and bytes of one call over batch and heads, as `tflabench.theory.cost.model` gives them.

    Forward FLOPs are Table 8's with L = 64, less the scores that heads of a program share; backward, the products of
    the kernels. Bytes: tensors once a kernel, gates and their float32 exponents, states of tiles, row sums, parts of dq
    and dk that are added up, and what segments take; no last state: the bench asks for none.

    Args:
        gate_gradients, group: as for `walks`.
    """
    _check(problem)
    p = problem
    heads, steps = p.batch * p.heads, p.batch * p.heads * p.seq_len
    tile = sum((term(TILE) for term in flop_terms("chunkwise", gate, p.d_qk, p.d_hv, causal_factor).values()), 0.0)
    found = kernels(p, gate_gradients, group)
    h, *backward = found
    shared_scores = (h.together - 1) * h.flops(causal_factor)["scores"]
    flops = steps * (tile / TILE - shared_scores)
    flops += steps * sum(sum(kernel.flops(causal_factor).values()) for kernel in backward)
    moved = steps * (_gate_bytes(p, gate) + _gate_gradient_bytes(p, gate, found) + _shared_gradient_bytes(p, found))
    moved += steps * sum(kernel.step_bytes(p.element_bytes) for kernel in found)
    of = cut(p, gate, chunk_size, group)
    if of.count > 1:
        written = 0
        for backward in (False, True)[: 2 if p.pass_ == "fwbw" else 1]:
            passed, tiles = of.passed(backward=backward)
            walked = steps * tiles / of.tiles
            flops += walked * 2 * p.d_qk * p.d_hv
            moved += walked * (p.d_qk / group + p.d_hv) * p.element_bytes
            written += 2 * parts_of_a_segment(p, of, backward=backward) * passed + of.count  # written, read, joined
        written += of.count * sum(not isinstance(kernel, Gradients) for kernel in found)  # read by walks
        written += of.concurrent > 0  # h of the first reads none and writes one, which is read to join the others to it
        moved += heads * written * p.d_qk * p.d_hv * STATE_BYTES
    return Cost(flops, moved)


def launches(
    problem: Problem, gate: Gate, chunk_size: int, gate_gradients: bool = True, group: int = 1
) -> list[Launch]:
    """Return the kernels of one call, as the calibrated model takes them; a walk of several launches several times."""
    _check(problem)
    p, exp = problem, gate == "exp"
    heads, steps = p.batch * p.heads, p.batch * p.heads * p.seq_len
    of = cut(p, gate, chunk_size, group)
    of_pass = launched(p, gate, chunk_size, gate_gradients, group)
    found = [_pointwise("gates", steps, _gate_bytes(p, gate))]
    if exp:
        found += [_pointwise("maxima of blocks", steps, 2 * p.element_bytes)]
    if of.count > 1:
        for backward in (False, True)[: 2 if p.pass_ == "fwbw" else 1]:
            name = "dC" if backward else "C"
            states = _launch_states(f"{name} of segments", p, of, group, backward=backward)
            if of.concurrent and not backward:
                h = of_pass[0]
                assert isinstance(h, Walk)
                first = _launch(h.filling(p, 1, exp), p, exp, 1, of.first_tiles / of.tiles, states=True)
                states = _side_by_side(f"{name} of segments, h of the first", states, first)
            parts = parts_of_a_segment(p, of, backward=backward)
            joined = parts * of.passed(backward=backward)[0] + of.count + (of.concurrent > 0 and not backward)
            found += [states, Launch(
                f"{name}, joined", heads * p.d_qk * p.d_hv / JOINED, CARRYING, {},
                {"states": heads * joined * p.d_qk * p.d_hv * STATE_BYTES}, trips=parts * of.count,
            )]  # fmt: skip
    for kernel in of_pass:
        if isinstance(kernel, Walk):
            apart = kernel.name == "h" and of.concurrent > 0
            share = 1 - of.first_tiles / of.tiles * apart
            found += [_launch(kernel, p, exp, of.count - apart, share, states=of.count > 1)] * kernel.launches
        else:
            found += [_launch_tilewise(kernel, p, of.count)]
    if shared := _shared_gradient_bytes(p, of_pass):
        found += [_pointwise(f"{name} of heads, added up", steps, shared / 2) for name in ("dq", "dk")]
    if sums := _gate_gradient_bytes(p, gate, of_pass):
        if not any(isinstance(kernel, Gradients) for kernel in of_pass):
            sums /= 2
            found += [_pointwise("sums of tiles", steps, sums), Launch("through tiles", heads, 1, {}, {}, trips=ENDS)]
        found += [_pointwise("gate gradients", steps, sums)]
    return found


def _launch_states(name: str, p: Problem, of: Cut, group: int, *, backward: bool) -> Launch:
    """Return the pass over segments that adds up what each part of one adds to the state."""
    heads, steps = p.batch * p.heads, p.batch * p.heads * p.seq_len
    pieces, together = _state_pass(p)
    passed, tiles = of.passed(backward=backward)
    parts = heads * passed * parts_of_a_segment(p, of, backward=backward)
    walked = steps * tiles / of.tiles
    tensors = walked * (p.d_qk / group + p.d_hv) * p.element_bytes
    dd = p.d_qk * p.d_hv
    return Launch(
        name, parts * pieces / together, 1, {"recomputation": walked * 2 * dd},
        {"inputs and outputs": tensors, "states": parts * dd * STATE_BYTES},
        roles=ROLES - 1,
    )  # fmt: skip


def _side_by_side(name: str, one: Launch, other: Launch) -> Launch:
    """Two that run at the same time, each on multiprocessors of its own, and share memory and the L2."""

    def total(*counts: Mapping[str, float]) -> dict[str, float]:
        return {term: sum(count.get(term, 0.0) for count in counts) for term in {**counts[0], **counts[1]}}

    return Launch(
        name, one.programs + other.programs, 1, total(one.flops, other.flops), total(one.moved, other.moved),
        vector_ops=one.vector_ops + other.vector_ops, roles=max(one.roles, other.roles),
    )  # fmt: skip


def _launch(walk: Walk, p: Problem, exp: bool, cut: int, share: float, *, states: bool) -> Launch:
    """Return one of `walk.launches` over segments that have this share of the steps and start from states."""
    heads, steps = p.batch * p.heads, share * p.batch * p.heads * p.seq_len / walk.launches
    needed, whole = walk.flops(0.5), walk.flops(1.0)
    within = needed["outputs"] + needed["sums within"] + (0 if walk.scores_again else needed["scores"])
    flops = {
        "between chunks": needed["through state"]
        + needed["through the rest of state"]
        + (0 if walk.state_again else needed["state"]),
        "within chunks": within,
        "causal waste": within,
        "recomputation": (walk.pieces - 1 + walk.scores_again) * whole["scores"]
        + (walk.launches - 1) * (whole["outputs"] + whole["sums within"])
        + (needed["state"] if walk.state_again else 0),
    }
    return Launch(
        walk.name,
        walk.programs(p, cut),
        1,
        {term: steps * count for term, count in flops.items()},
        {
            "inputs and outputs": steps * walk.step_bytes(p.element_bytes),
            "states": heads * cut * p.d_qk * p.d_hv / walk.launches * STATE_BYTES * states,
        },
        vector_ops=steps * walk.launches * walk.pieces * walk.vector_ops(exp),
        roles=ROLES - (walk.together > 1),
    )


def _launch_tilewise(kernel: StatePass | Gradients, p: Problem, cut: int) -> Launch:
    heads, steps = p.batch * p.heads, p.batch * p.heads * p.seq_len
    needed, whole = kernel.flops(0.5), kernel.flops(1.0)
    if isinstance(kernel, Gradients):
        within = needed["scores"] + needed["outputs"]
        flops = {
            "between chunks": needed["through state"],
            "within chunks": within,
            "causal waste": within,
            "recomputation": whole["scores again"],
        }
        starts = 0
    else:
        flops = {"recomputation" if kernel.again else "between chunks": needed["state"]}
        starts = heads * cut * PACKED**2 * STATE_BYTES if cut > 1 else 0
    states = kernel.state_bytes(p.element_bytes)
    return Launch(
        kernel.name,
        kernel.programs(p, cut),
        1,
        {term: steps * count for term, count in flops.items()},
        {
            "inputs and outputs": steps * (kernel.step_bytes(p.element_bytes) - states),
            "states": steps * states + starts,
        },
        vector_ops=steps * kernel.vector_ops(),
        roles=ROLES if isinstance(kernel, Gradients) else ROLES - 1,
    )


def _pointwise(name: str, steps: float, step_bytes: float) -> Launch:
    return Launch(name, 1, 1, {}, {"inputs and outputs": steps * step_bytes})


def waves(
    problem: Problem, gate: Gate, chunk_size: int, gpu: Gpu, gate_gradients: bool = True, group: int = 1
) -> dict[str, float]:
    """Return how often the programs of each walk, or of a kernel in its place, fill the chip, one on a multiprocessor.

    Those of h are of all segments but a concurrent first one.

    Args:
        gate_gradients, group: as for `walks`.

    Raises:
        InputError: the GPU's multiprocessors are not known.
    """
    if not gpu.multiprocessors:
        raise InputError(f"the number of multiprocessors of {gpu.name} is not known: name another GPU")
    of = cut(problem, gate, chunk_size, group)
    found = launched(problem, gate, chunk_size, gate_gradients, group)
    return {
        kernel.name: kernel.programs(problem, of.together if kernel.name == "h" else of.count) / gpu.multiprocessors
        for kernel in found
    }


def runtime(problem: Problem, gate: Gate, gpu: Gpu, gate_gradients: bool = True, group: int = 1) -> float:
    """Seconds at `problem.chunk_size`, for overlapped walks over whole waves; see the module's text.

    Args:
        gate_gradients, group: as for `walks`.

    Raises:
        InputError: a head dimension or pass that the kernels do not take, or a GPU of which too little is known.
    """
    chip = Chip.of(gpu)
    found = 0.0
    for launch in launches(problem, gate, problem.chunk_size or problem.seq_len, gate_gradients, group):
        matrix = sum(launch.flops.values()) / chip.ceilings.flops_per_s
        memory = sum(launch.moved.values()) / chip.ceilings.bytes_per_s
        full = launch.waves(chip)
        found += max(memory, matrix * math.ceil(full) / full)
    return found


def best_chunk_size(problem: Problem, gate: Gate, gpu: Gpu) -> int:
    """Return the L of least `runtime`; the largest among equals.

    Candidates are T and the powers of two from a tile up to it. Forward alone may also cut into a power of two of
    segments behind one half as long.
    """
    tiles = math.ceil(problem.seq_len / TILE)
    sizes = {TILE * 2**n for n in range((tiles - 1).bit_length())} | {TILE * tiles}
    if problem.pass_ == "fw":
        sizes |= {TILE * _with_a_short_first(tiles, n) for n in (2, 4, 8, 16) if 32 * n <= tiles}
    ordered = sorted(sizes, reverse=True)
    return min(ordered, key=lambda size: runtime(problem.with_(chunk_size=size), gate, gpu))


def _with_a_short_first(tiles: int, n: int) -> int:
    """Tiles of n segments behind one half as long; from 32 on even, so that a state pass can cut them in two."""
    found = math.ceil(2 * tiles / (2 * n + 1))
    return found if found < 32 else found + found % 2


def _gate_bytes(p: Problem, gate: Gate) -> float:
    """Return the bytes of a step: pre-activations to exponents."""
    return 2 * p.element_bytes + EXPONENT_BYTES + STABILISED_BYTES * (gate == "exp")


def _gate_gradient_bytes(p: Problem, gate: Gate, found: tuple[Kernel, ...]) -> float:
    """Return the bytes of a step: row sums, pre-activations, both gradients, and log f of exp.

    Row sums of walks are read for tiles and again for steps.
    """
    sums = sum(kernel.sum_bytes * (2 if isinstance(kernel, Walk) else 1) for kernel in found)
    return sums + 4 * p.element_bytes + STABILISED_BYTES / 2 * (gate == "exp") if sums else 0


def _shared_gradient_bytes(p: Problem, found: tuple[Kernel, ...]) -> float:
    """Return the bytes a step and head of dq and dk that PyTorch adds up, of heads that share q and k or a program."""
    added_up = 0.0
    for kernel in found:
        made = 2 if isinstance(kernel, Gradients) else isinstance(kernel, Walk) and kernel.of_qk
        if made and kernel.together < kernel.group:
            added_up += made * p.element_bytes * p.d_qk * (1 / kernel.together + 1 / kernel.group)
    return added_up


def _check(problem: Problem) -> None:
    if problem.pass_ == "decode":
        raise InputError("pass is 'decode': the fused kernels compute sequences; it must be fw or fwbw")
