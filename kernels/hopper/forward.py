# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Fused forward pass of gated linear attention: h, and the states before and after each segment.

A program walks over the tiles of a (batch, head) row, 64 steps each, and keeps the matrix memory C on chip:

    H_i = 2^x_i C^T Q_i + sum_{j <= i} P_ij V_j             P_ij = (Q_i . K_j) 2^(x_i + y_j)
    C  <- 2^g C + sum_j 2^(y_j + g) K_j V_j^T               after every tile

state_walk.py has the partitions that load tiles, compute P and carry C. With a normaliser n the exponents come with the
tiles, `score` has products for n, and there is one partition more:

    normaliser   2 warps   n and denominators, see normaliser.py            -> whoever divides H by them

A sequence of several segments takes a pass that makes the states they start from (segment_states.py), then a walk over
all of them side by side; the walk over a short first segment runs while that pass does. Where backward has other
segments, h writes down what these start from. Heads that share q and k may share a program too (packed_heads.py).
"""

from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tflabench.kernels.gates import Exponents
from tflabench.kernels.launching import enqueue
from tflabench.kernels.state import State
from tflabench.kernels.tfla.device import multiprocessors
from tflabench.kernels.tfla.tiles import aligned
from tflabench.kernels.types import Gate

from .config import WalkConfig
from .cuts import Shape, chosen_for_forward
from .exponents import exponents
from .launch import Inputs, descriptor, pointers
from .normaliser import NormaliserTensors, multiply_by_normaliser, normaliser_partition
from .packed_heads import launch_packed_heads
from .pipeline import Cursor, begin_kernel, end_kernel
from .schedule import Counts, Schedule, get_work_item, stores_state_after
from .segment_states import (
    ConcurrentFirstSegment,
    SegmentStates,
    StateInputs,
    first_segment_programs,
    launch_segment_states,
    skip_first_segment,
)
from .shapes import TILE, Segments, WalkShape, heads_together
from .state import Matrices, States, split_decay
from .state_walk import (
    allocate_output,
    allocate_program,
    apply_decay,
    commit_scores,
    load_gates,
    load_tile,
    multiply_query_key,
    run_walk,
    state_partition,
)
from .tiles import ACC_COLUMN, ACC_ROW, STEP_OF_WARP
from .workarounds import ASSEMBLY, barrier, zero_in_round

# --- Partitions with a normaliser -------------------------------------------------------------------------------------


@gluon.jit
def stage_gates(program, pointers, work, tile, stage, pending):
    """Copy x, y and m of a tile, [64] each, to its stage, and the decays made of them.

    Returns:
        What of the decay stays pending, see `split_decay`.
    """
    config: gl.constexpr = program.config
    schedule, scores, norm = program.schedule, program.scores, program.norm
    t = gl.arange(0, 64, layout=STEP_OF_WARP)
    x, y, g = load_gates(program.gates, work.row, tile, schedule.num_tiles, t)
    step = tile * 64 + t
    m = gl.load(pointers.m + work.row * schedule.num_steps + step, mask=step < schedule.num_steps, other=0.0)
    norm.x(stage).store(x)
    norm.y(stage).store(y)
    norm.m(stage).store(m)
    if config.divide_late:
        scores.query_decay.index(stage).store(gl.exp2(x + pending))
    state_decay = 0.0
    if config.defer_decay:
        flush = stores_state_after(schedule, work, tile, config.keep_states)
        state_decay, pending = split_decay(pending, g, flush)
    elif config.shares_decay:
        state_decay = gl.exp2(g)
    scores.key_decay.index(stage).store(gl.exp2(y + (g - pending)))
    if config.shares_decay:
        scores.state_decay.index(stage).store(gl.full([64], state_decay, gl.float32, layout=STEP_OF_WARP))
    barrier()
    return pending


@gluon.jit
def normalised_load_partition(program, descs, norm_pointers):
    """Copy all tiles to shared memory, and the exponents of their steps."""
    config: gl.constexpr = program.config
    schedule, ring = program.schedule, program.inputs.ring
    i = 0
    for item in range(gl.program_id(0), schedule.num_items, gl.num_programs(0)):
        work = get_work_item(schedule, item, config)
        pending = 0.0
        for tile in range(work.first_tile, work.end_tile):
            stage = ring.at(i)
            load_tile(program, descs, work, tile, stage)
            pending = stage_gates(program, norm_pointers, work, tile, stage.slot, pending)
            ring.producer_commit(stage)
            i += 1


@gluon.jit
def normalised_score_partition(program):
    """Compute P of every tile, and products that the normaliser needs."""
    config: gl.constexpr = program.config
    schedule, inputs, scores, norm = program.schedule, program.inputs, program.scores, program.norm
    OPERANDS: gl.constexpr = config.score_operands
    stage, slot = inputs.ring.begin(), scores.ring.begin()
    phase = 0
    for item in range(gl.program_id(0), schedule.num_items, gl.num_programs(0)):
        work = get_work_item(schedule, item, config)
        for tile in range(work.first_tile, work.end_tile):
            inputs.ring.consumer_wait(stage)
            qk = multiply_query_key(inputs, stage, config.blocks_key, OPERANDS)
            x = norm.x(stage.slot).load(ACC_ROW)
            prob = apply_decay(qk, x, norm.y(stage.slot).load(ACC_COLUMN))
            if config.divide_late:
                scores.ring.producer_acquire(slot)
                commit_scores(scores, slot, prob)
            norm.denominator.index(slot.slot).store(gl.sum(prob, axis=1))
            zero = zero_in_round(tile)
            turn = Cursor(gl.to_tensor(0), gl.to_tensor(phase))
            multiply_by_normaliser(program, stage.slot + zero, zero, turn, OPERANDS)
            phase ^= 1
            if not config.divide_late:
                norm.denominator_ready.wait(slot)
                inverse = norm.denominator.index(slot.slot).load(ACC_ROW)
                prob = prob * inverse[:, None]
                scores.ring.producer_acquire(slot)
                scores.query_decay.index(slot.slot).store(gl.exp2(x) * inverse)
                commit_scores(scores, slot, prob)
            inputs.ring.consumer_release(stage)
            stage = inputs.ring.next(stage)
            slot = scores.ring.next(slot)


# --- Kernels ----------------------------------------------------------------------------------------------------------


@gluon.jit(do_not_specialize=["num_items", "num_steps", "num_tiles"])
def walk_forward(
    q_desc, k_desc, v_desc, h_desc, gates, states, skip_ptr, num_items, num_steps, num_tiles, counts,
    config: gl.constexpr,
):  # fmt: skip
    """Compute H of all work items, and the states after them; launched with 4 warps and maxnreg=128.

    Args:
        q_desc, k_desc, v_desc, h_desc: of blocks of q, k (B, heads, T, d_qk) and v, h (B, H, T, d_hv), 16 bits.
        gates: `Exponents`.  states: `States`.
        num_items, num_steps, num_tiles, counts: of a `Schedule`.
        skip_ptr: (H,) float32, read if `config.skip`.
    """
    schedule = Schedule(num_items, num_steps, num_tiles, counts)
    run_walk(schedule, (q_desc, k_desc, v_desc), h_desc, gates, states, skip_ptr, config)


@gluon.jit(do_not_specialize=["num_items", "num_steps", "num_tiles"])
def walk_forward_normalised(
    q_desc, k_desc, v_desc, h_desc, gates, states, norm, num_items, num_steps, num_tiles, counts,
    config: gl.constexpr,
):  # fmt: skip
    """Compute what `walk_forward` does, divided by the denominators, and n after the work items.

    Args:
        norm: `NormaliserTensors`; the others as of `walk_forward`.
    """
    REGISTERS: gl.constexpr = config.state_registers
    schedule = Schedule(num_items, num_steps, num_tiles, counts)
    program = allocate_program(schedule, gates, states, config, q_desc)
    h_smem0 = allocate_output(config, q_desc)
    h_smem1 = allocate_output(config, q_desc)
    begin_kernel(config.independent)
    gl.warp_specialize(
        [
            (state_partition, (program, h_desc, h_smem0, 0)),
            (state_partition, (program, h_desc, h_smem1, 1)),
            (normalised_score_partition, (program,)),
            (normalised_load_partition, (program, (q_desc, k_desc, v_desc), norm)),
            (normaliser_partition, (program, norm)),
        ],
        [4, 4, 1, 2],
        [REGISTERS, 488 - 2 * REGISTERS, 24, 24],
    )
    end_kernel(config.independent)


# --- Host -------------------------------------------------------------------------------------------------------------


def launch_walk(
    inputs: Inputs, h: Tensor, cut: Segments, *,
    states: States | None = None, norm: NormaliserTensors | None = None, kept_cut: Segments | None = None,
    segments: range | None = None, independent: bool = False,
) -> None:  # fmt: skip
    """Write h (B, H, T, d_hv), and the states that are asked for.

    Args:
        cut: where segments begin; with more than one, `states` has what each of them starts from.
        states: what is None is neither read nor written.
        norm: divide h by the denominators.
        kept_cut: the cut for whose segments states are kept, where `states.kept` is given.
        segments: write the part of h of these only.
        independent: the kernel launched just before makes nothing that this one reads, so it need not wait for it.
    """
    q, k, v, gates, skip = inputs
    B, H, T, d_hv = v.shape
    d_qk = q.shape[-1]
    states = states or States()
    segments = range(cut.count) if segments is None else segments
    chip = multiprocessors(q.device)
    rows = B * H * len(segments)
    config = WalkConfig.of(
        WalkShape.filling(d_qk, d_hv, rows, chip, sums=False, norm=norm is not None), d_qk, d_hv,
        bfloat16=q.dtype == torch.bfloat16, shared_heads=q.shape[1] < H, normalise=norm is not None,
        skip=skip is not None, load_initial_state=states.initial is not None,
        store_final_state=states.final is not None, keep_states=states.kept is not None, independent=independent,
    )  # fmt: skip
    items = rows * config.pieces
    kept = () if kept_cut is None else (kept_cut.segment_tiles, kept_cut.count)
    counts = Counts(H, H // q.shape[1], cut.segment_tiles, cut.count, segments.stop, len(segments), *kept).as_argument()
    # Pieces of a state are to start together, not as the kernel before leaves multiprocessors. A first segment takes
    # those that the state pass leaves.
    overlap = config.pieces == 1 or segments.stop < cut.count
    unused = gates.g
    if norm is None:
        kernel, more = walk_forward, unused if skip is None else skip
    else:
        kernel, more = walk_forward_normalised, pointers(norm, unused)
    enqueue(
        kernel, config.programs(rows, chip), *map(descriptor, (q, k, v, h)), gates, pointers(states, unused), more,
        items, T, cut.tiles, counts, config=config, num_warps=4, maxnreg=128, launch_pdl=overlap, **ASSEMBLY,
    )  # fmt: skip


def forward(  # noqa: PLR0913  as `backends.Kernels` has it
    q: Tensor, k: Tensor, v: Tensor, f: Tensor, i: Tensor | None, initial: State | None, *,
    gate: Gate, scale: float, chunk_size: int, state_dtype: torch.dtype = torch.float32, config: Any = None,
    skip: Tensor | None = None, return_last_state: bool = True, cut_freely: bool = False,
) -> tuple[Tensor, State | None, tuple[Tensor, ...]]:  # fmt: skip
    """Return h, the last state or None, and what `backward` needs in addition to the inputs (see `empty_saved`).

    Args:
        q, k: (B, H, T, d_qk), or fewer heads, each for consecutive ones of v: (B, H, T, d_hv); bfloat16 or float16, any
            strides (copied where TMA cannot take them).
        f, i: gates as `Gate` describes them; initial: state before the first step, float32.
        chunk_size: L, a multiple of 64: steps between two states in memory; nothing below T materialises none at all.
        state_dtype: without effect: states are float32, one every L steps.
        skip: (H,), for a gate without normaliser: h_t has skip v_t added.
        return_last_state: without it the last of several segments needs no state pass.
        cut_freely: chunk_size is that of backward, for which states are saved; forward may cut the sequence otherwise.
    """
    del state_dtype, config
    B, H, T, _ = v.shape
    together = not gate.normalize and heads_together(q, v) > 1
    cut = backward_cut = Segments.of(T, chunk_size)
    kept = kept_cut = None
    if cut_freely and cut.count > 1 and not together:
        cut = Segments.of(T, chosen_for_forward(Shape.of(q, v, gate)).chunk_size(T))
        if cut != backward_cut:
            kept_cut, kept = backward_cut, _empty_states(q, v, backward_cut.count)
    # First, for h may read copies before it waits for a kernel (`WalkConfig.load_early`).
    q, k, v_aligned, skip = aligned(-q if scale < 0 else q), aligned(k), aligned(v), weights(skip)
    log_f, m, e = exponents(f, i, gate, (B, H, T), None if initial is None else initial.m, abs(scale))
    h = torch.empty_like(v)
    out = h if aligned(h) is h else torch.empty(v.shape, dtype=v.dtype, device=v.device)
    norm = None
    if gate.normalize:
        lowest = torch.zeros((B, H, T), dtype=torch.float32, device=q.device) if m is None else m
        norm = NormaliserTensors(lowest, torch.empty_like(e.x), None, None)
    inputs = Inputs(q, k, v_aligned, e, skip)

    def walk(initial: Matrices, final: Matrices, **options: Any) -> None:
        """Write h, out of the states before segments, and the states after them."""
        states = States(initial.C, final.C, kept)
        if together:
            launch_packed_heads(inputs, out, cut, states)
            return
        n = None if norm is None else norm._replace(initial=initial.n, final=final.n)
        launch_walk(inputs, out, cut, states=states, norm=n, kept_cut=kept_cut, **options)

    before, end, saved = initial_matrices(initial), Matrices(), () if kept is None else (kept,)
    if cut.count > 1:
        states = _walk_segments(
            walk, inputs, cut, before,
            normalise=norm is not None, end=return_last_state, may_overlap=not together,
        )  # fmt: skip
        end, saved = states.end, saved or (states.starts.C,)
    else:
        if return_last_state:
            C = _empty_states(q, v, 1)[:, :, 0]
            end = Matrices(C, C.new_empty(C.shape[:3]) if gate.normalize else None)
        walk(before, end)
    if out is not h:
        h.copy_(out)
    state = State(*end, None if m is None else m[:, :, -1].contiguous()) if return_last_state else None
    log_gates = () if log_f is None else (log_f,)
    return h, state, (*log_gates, e.x if norm is None else norm.x_backward, e.y, e.g, *saved)


def _walk_segments(
    walk: Any, inputs: Inputs, cut: Segments, before: Matrices, *, normalise: bool, end: bool, may_overlap: bool
) -> SegmentStates:
    """Make the states that segments start from, and walk over the segments.

    Args:
        walk: takes the `Matrices` before and after segments, and options of `launch_walk`.
        before: the states before the first step.
        normalise: with n.
        end: with the states after the last step.
        may_overlap: walk over a short first segment while the state pass runs, where there is room.
    """
    q, k, v, e, _ = inputs
    B, H, _, d_hv = v.shape
    programs = 0
    if may_overlap:
        chip = multiprocessors(q.device)
        programs = first_segment_programs(q.shape[-1], d_hv, B * H, cut, chip, normalise=normalise)

    def walk_first(starts: Matrices) -> None:
        """Write h of the first segment, and the states that the second one starts from."""
        second = Matrices(*(None if x is None else skip_first_segment(x) for x in starts))
        walk(Matrices() if before.C is None else starts, second, segments=range(1), independent=True)

    states = launch_segment_states(
        StateInputs(k, v, e), cut, before=before, normalise=normalise, end=end,
        first_segment=ConcurrentFirstSegment(programs, walk_first) if programs else None,
    )  # fmt: skip
    walk(states.starts, Matrices(), segments=range(1 if programs else 0, cut.count))
    return states


def _empty_states(q: Tensor, v: Tensor, count: int) -> Tensor:
    """Return room for `count` matrices C a head, (B, H, count, d_qk, d_hv) float32."""
    B, H, _, d_hv = v.shape
    return torch.empty((B, H, count, q.shape[-1], d_hv), dtype=torch.float32, device=q.device)


def empty_saved(
    q: Tensor, v: Tensor, *, gate: Gate, chunk_size: int, state_dtype: torch.dtype = torch.float32, config: Any = None
) -> tuple[Tensor, ...]:
    """Return what `forward` saves, uninitialised, all float32.

    log f of a stabilised gate, exponents of backward (x less log2 of the denominator, y, g), and with several segments
    the state each starts from.
    """
    del state_dtype, config
    B, H, T, _ = v.shape
    cut = Segments.of(T, chunk_size)
    shapes = [*[(B, H, T)] * gate.stabilized, *[(B, H, cut.tiles * TILE)] * 2, (B, H, cut.tiles)]
    states = [(B, H, cut.count, q.shape[-1], v.shape[-1])] if cut.count > 1 else []
    return tuple(q.new_empty(shape, dtype=torch.float32) for shape in (*shapes, *states))


def initial_matrices(state: State | None) -> Matrices:
    """Return C and n as the kernels take them."""
    if state is None:
        return Matrices()
    return Matrices(*(None if x is None else x.float().contiguous() for x in state[:2]))


def weights(skip: Tensor | None) -> Tensor | None:
    """Return skip (H,) as the kernels take it."""
    return None if skip is None else skip.float().contiguous()


def restored(gate: Gate, saved: tuple[Tensor, ...]) -> tuple[Tensor | None, Exponents, Tensor | None]:
    """Return log f, the exponents of backward and the states of segments out of what `forward` saved."""
    log_f, (x, y, g, *states) = (saved[0], saved[1:]) if gate.stabilized else (None, saved)
    return log_f, Exponents(x, y, g), states[0] if states else None
