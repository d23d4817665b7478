# type: ignore   # Gluon: what runs on the device has no types that a Python checker knows
"""Fused forward pass of gated linear attention: h, and the states before and after each segment.

A program walks over the tiles of a (batch, head) row, 64 steps each, and keeps the matrix memory C on chip:

    H_i = 2^x_i C^T Q_i + sum_{j <= i} P_ij V_j             P_ij = (Q_i . K_j) 2^(x_i + y_j)
    C  <- 2^g C + sum_j 2^(y_j + g) K_j V_j^T               after every tile

state_walk.py has the partitions that load tiles, compute P and carry C. With a normaliser n the exponents come with the
tiles, `score` has products for n, and there is one partition more:

    normaliser   2 warps   n and denominators, see normaliser.py            -> whoever divides H by them

Where backward has other segments, h writes down what these start from. Heads that share q and k may share a program too
(packed_heads.py).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.descriptors import aligned
from tflabench.kernels.common.device import figures_of
from tflabench.kernels.common.launching import enqueue
from tflabench.kernels.common.places import tiles_of
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.common.tensors import floats
from tflabench.kernels.scalar.gates import Exponents
from tflabench.kernels.scalar.plan import hopper as plans
from tflabench.kernels.scalar.plan.hopper_shapes import TILE
from tflabench.kernels.state import State
from tflabench.kernels.types import Gate

from .config import WalkConfig
from .documents import WalkPlaces, places_of
from .exponents import exponents
from .launch import WalkInputs, descriptor, pointers, shares_lines
from .normaliser import NormaliserTensors, multiply_by_normaliser, normaliser_partition
from .packed_heads import launch_packed_heads
from .pipeline import Cursor, begin_kernel, end_kernel
from .schedule import Counts, Schedule, get_items, get_work_item, is_independent, stores_state_after
from .segment_states import SegmentStates, StateInputs, launch_segment_states, skip_first_segment
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
    scores.query_decay.index(stage).store(gl.exp2(x + pending))
    if config.defer_decay:
        flush = stores_state_after(schedule, work, tile, config.keep_states)
        state_decay, pending = split_decay(pending, g, flush)
    else:
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
    first, end, stride = get_items(schedule, config)
    for item in range(first, end, stride):
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
    first, end, stride = get_items(schedule, config)
    for item in range(first, end, stride):
        work = get_work_item(schedule, item, config)
        for tile in range(work.first_tile, work.end_tile):
            inputs.ring.consumer_wait(stage)
            qk = multiply_query_key(inputs, stage, config.blocks_key, OPERANDS)
            prob = apply_decay(qk, norm.x(stage.slot).load(ACC_ROW), norm.y(stage.slot).load(ACC_COLUMN))
            scores.ring.producer_acquire(slot)
            commit_scores(scores, slot, prob)
            norm.denominator.index(slot.slot).store(gl.sum(prob, axis=1))
            zero = zero_in_round(tile)
            turn = Cursor(gl.to_tensor(0), gl.to_tensor(phase))
            multiply_by_normaliser(program, stage.slot + zero, zero, turn, OPERANDS)
            phase ^= 1
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
        skip_ptr: (H,) float32, read if `config.skip`.
    """
    schedule = Schedule(num_items, num_steps, num_tiles, counts)
    run_walk(schedule, (q_desc, k_desc, v_desc), h_desc, gates, states, skip_ptr, config)


@gluon.jit(do_not_specialize=["num_items", "num_steps", "num_tiles"])
def walk_forward_normalised(
    q_desc, k_desc, v_desc, h_desc, gates, states, norm, num_items, num_steps, num_tiles, counts,
    config: gl.constexpr,
):  # fmt: skip
    """Compute what `walk_forward` does, divided by the denominators, and n after the work items."""
    REGISTERS: gl.constexpr = config.state_registers
    SCORE_REGISTERS: gl.constexpr = config.score_registers
    schedule = Schedule(num_items, num_steps, num_tiles, counts)
    program = allocate_program(schedule, gates, states, config, q_desc)
    h_smem0 = allocate_output(config, q_desc)
    independent = is_independent(schedule)
    begin_kernel(independent)
    if config.halves == 1:
        gl.warp_specialize(
            [
                (state_partition, (program, h_desc, h_smem0, 0)),
                (normalised_score_partition, (program,)),
                (normalised_load_partition, (program, (q_desc, k_desc, v_desc), norm)),
                (normaliser_partition, (program, norm)),
            ],
            [4, 1, 2],
            [SCORE_REGISTERS, 24, 24],
        )
    else:
        h_smem1 = allocate_output(config, q_desc)
        gl.warp_specialize(
            [
                (state_partition, (program, h_desc, h_smem0, 0)),
                (state_partition, (program, h_desc, h_smem1, 1)),
                (normalised_score_partition, (program,)),
                (normalised_load_partition, (program, (q_desc, k_desc, v_desc), norm)),
                (normaliser_partition, (program, norm)),
            ],
            [4, 4, 1, 2],
            [REGISTERS, SCORE_REGISTERS, 24, 24],
        )
    end_kernel(independent)


# --- Host -------------------------------------------------------------------------------------------------------------


def launch_walk(
    inputs: WalkInputs, h: Tensor, walk: plans.Walk, *,
    states: States, norm: NormaliserTensors | None = None, independent: bool = False,
) -> None:  # fmt: skip
    """Write h (B, H, T, d_hv), and the states that are asked for.

    Args:
        independent: the kernel launched just before makes nothing that this one reads, so it need not wait for it.
    """
    q, k, v, gates, skip, documents = inputs
    config = WalkConfig.of(
        walk.shape, d_qk=walk.sizes.d_qk, d_hv=walk.sizes.d_hv, bfloat16=q.dtype == torch.bfloat16,
        normalise=norm is not None, skip=skip is not None, keep_states=states.kept is not None,
        documents=documents is not None,
    )  # fmt: skip
    # Pieces of a state, and heads that share lines of the L2, are to start together, not as the kernel before leaves
    # multiprocessors. A first segment takes those that the state pass leaves.
    together = walk.pieces > 1 or any(map(shares_lines, (q, k, v)))
    overlap = not together or walk.segments.stop < walk.cut.count
    unused = gates.g
    if norm is None:
        kernel, more = walk_forward, unused if skip is None else skip
    else:
        kernel, more = walk_forward_normalised, pointers(norm, unused)
    enqueue(
        kernel, walk.programs, *map(descriptor, (q, k, v, h)), gates, pointers(states, unused), more,
        walk.items, walk.sizes.steps, walk.cut.tiles, Counts.of(walk, states, documents, independent=independent),
        config=config,
        num_warps=4, maxnreg=walk.shape.launch_registers, launch_pdl=overlap, **ASSEMBLY,
    )  # fmt: skip


def forward(arguments: Arguments, options: KernelOptions) -> tuple[Tensor, State | None, tuple[Tensor, ...]]:
    """Return h, the last state or None, and what `backward` needs in addition to the inputs (see `empty_saved`).

    Args:
        arguments: q, k and v bfloat16 or float16, copied where TMA cannot take their strides.
        options: chunk_size is a multiple of 64; one of T or more makes no state at all. `state_dtype` has no effect:
            states are float32. Of documents gates and exponents are by places.
    """
    q, k, v, f, i, initial, skip = arguments
    gate, scale, return_last_state = options.gate, options.scale, options.return_last_state
    shape = B, H, _ = v.shape[0], v.shape[1], v.shape[2]
    places, m_0 = places_of(options, q.device), None if initial is None else initial.m
    plan = _plan(q, v, places, options)
    sizes = plan.h.sizes
    kept = None if plan.h.kept is None else _empty_states(sizes, B, plan.h.kept.count, q.device)
    # First, for h may read copies before it waits for a kernel (`WalkConfig.load_early`).
    q, k, v_aligned, skip = aligned(-q if scale < 0 else q), aligned(k), aligned(v), floats(skip)
    if places:
        shape, m_0, (f, i) = (B, H, places.count), None, places.gates(f, i, gate, m_0)
    log_f, m, e = exponents(f, i, gate, shape, m_0, abs(scale))
    h = torch.empty_like(v)
    out = h if aligned(h) is h else torch.empty(v.shape, dtype=v.dtype, device=v.device)
    table = m_last = None
    if places:
        table = places.table(H, plan.h.programs // plan.h.pieces)
        m_last = None if m is None else places.last_stabilisers(m)  # before gaps are closed
        places.close_gaps(e, m)
        places.clear(out)
    norm = None
    if gate.normalize:
        lowest = torch.zeros(shape, dtype=torch.float32, device=q.device) if m is None else m
        norm = NormaliserTensors(lowest, torch.empty_like(e.x), None, None)
    inputs = WalkInputs(q, k, v_aligned, e, skip, table)

    def launch(walk: plans.Walk, initial: Matrices, final: Matrices, **options: Any) -> None:
        """Write h, out of the states before segments, and the states after them."""
        states = States(initial.C, final.C, kept)
        if walk.together > 1:
            launch_packed_heads(inputs, out, walk, states)
            return
        n = None if norm is None else norm._replace(initial=initial.n, final=final.n)
        launch_walk(inputs, out, walk, states=states, norm=n, **options)

    before, end, saved = initial_matrices(initial, sizes), Matrices(), () if kept is None else (kept,)
    if plan.state_pass:
        states = _walk_segments(launch, inputs, plan, before, exchange_of(options, q, v, sizes))
        end, saved = states.end, saved or (states.starts.C,)
    else:
        if return_last_state:
            C = _empty_states(sizes, places.documents if places else B, 1, q.device)[:, :, 0]
            end = Matrices(C, C.new_empty(C.shape[:3]) if gate.normalize else None)
        launch(plan.h, before, end)
    if out is not h:
        h.copy_(out)
    state = None
    if return_last_state:
        m_last = m[:, :, -1].contiguous() if m is not None and not places else m_last
        state = State(*columns_of(end, q, v), m_last)
    log_gates = () if log_f is None else (log_f,)
    return h, state, (*log_gates, e.x if norm is None else norm.x_backward, e.y, e.g, *saved)


def _plan(q: Tensor, v: Tensor, places: WalkPlaces | None, options: KernelOptions) -> plans.Forward:
    """Return what forward launches."""
    sizes, device, normalise = Sizes.of(q, v), figures_of(q, options), options.gate.normalize
    if places:
        sizes = sizes._replace(steps=places.count)
        return plans.of_documents(sizes, device, places.documents, normalise=normalise)[0]
    return plans.forward(
        sizes, device, options.chunk_size,
        normalise=normalise, end=options.return_last_state, cut_freely=options.cut_freely,
        exchanges=options.exchange is not None,
    )  # fmt: skip


def _walk_segments(
    launch: Any, inputs: WalkInputs, plan: plans.Forward, before: Matrices,
    exchange: Callable[[Matrices], Matrices] | None,
) -> SegmentStates:  # fmt: skip
    """Make the states that segments start from, and walk over the segments.

    Args:
        launch: takes a walk, the `Matrices` before and after its segments, and options of `launch_walk`.
    """
    k, v, e = inputs[1:4]

    def walk_first(starts: Matrices) -> None:
        """Write h of the first segment, and the states that the second one starts from."""
        second = Matrices(*(None if x is None else skip_first_segment(x) for x in starts))
        launch(plan.first, Matrices() if before.C is None else starts, second, independent=True)

    states = launch_segment_states(
        StateInputs(k, v, e), plan.state_pass, before=before, normalise=plan.h.normalise,
        first_segment=walk_first if plan.first else None, exchange=exchange,
    )  # fmt: skip
    launch(plan.h, states.starts, Matrices())
    return states


def _empty_states(sizes: Sizes, batch: int, count: int, device: torch.device) -> Tensor:
    """Return room for `count` matrices C a head, (batch, H, count, d_qk, d_hv) float32."""
    shape = (batch, sizes.heads, count, sizes.d_qk, sizes.d_hv)
    return torch.empty(shape, dtype=torch.float32, device=device)


def empty_saved(q: Tensor, v: Tensor, options: KernelOptions) -> tuple[Tensor, ...]:
    """Return what `forward` saves, uninitialised (`plans.saved`)."""
    sizes, chunk_size = Sizes.of(q, v), options.chunk_size
    if options.bounds:
        sizes = sizes._replace(steps=TILE * tiles_of(options.bounds, TILE))
        chunk_size = sizes.steps
    shapes = plans.saved(sizes, chunk_size, stabilised=options.gate.stabilized)
    return tuple(q.new_empty(shape, dtype=torch.float32) for shape in shapes)


def initial_matrices(state: State | None, sizes: Sizes) -> Matrices:
    """Return C and n as the kernels take them, of the head dimensions in sizes: zero where there are none (`held`)."""
    if state is None:
        return Matrices()
    C, n, _ = state
    if C is not None and (sizes.d_qk, sizes.d_hv) != C.shape[-2:]:
        lacking = sizes.d_qk - C.shape[-2]
        C = torch.nn.functional.pad(C, (0, sizes.d_hv - C.shape[-1], 0, lacking))
        n = None if n is None else torch.nn.functional.pad(n, (0, lacking))
    return Matrices(floats(C), floats(n))


def exchange_of(options: KernelOptions, q: Tensor, v: Tensor, sizes: Sizes) -> Callable[[Matrices], Matrices] | None:
    """Return `options.exchange` of states C as the kernels have them, or None; there is no normaliser."""
    exchange = options.exchange
    if exchange is None:
        return None
    return lambda states: initial_matrices(exchange(State(columns_of(states, q, v).C)), sizes)


def columns_of(states: Matrices, q: Tensor, v: Tensor) -> Matrices:
    """Return C and n, or their gradients, cut to the head dimensions of q and v: those in memory may have more."""
    C, n = states
    d_qk, d_hv = q.shape[-1], v.shape[-1]
    if C is not None and C.shape[-2:] != (d_qk, d_hv):
        C = C[..., :d_qk, :d_hv].contiguous()
        n = None if n is None else n[..., :d_qk].contiguous()
    return Matrices(C, n)


def restored(gate: Gate, saved: tuple[Tensor, ...]) -> tuple[Tensor | None, Exponents, Tensor | None]:
    """Return log f, the exponents of backward and the states of segments out of what `forward` saved."""
    log_f, (x, y, g, *states) = (saved[0], saved[1:]) if gate.stabilized else (None, saved)
    return log_f, Exponents(x, y, g), states[0] if states else None
