"""The fused kernels for Hopper (scalar/hopper): what they compute, move and hold on chip, and how fast they can be.

docs/kernels.md says how they work. FLOPs are those of the chunkwise form with chunks of one tile, whatever L is: that
cuts a sequence into segments.

Neither `runtime` nor `launches` knows shared memory, which limits the walks
(docs/decisions/2026-11-22-what-limits-the-walks.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tflabench.kernels.common.sizes import USUAL, Device, in_steps
from tflabench.kernels.scalar.plan import hopper as plans
from tflabench.kernels.scalar.plan.hopper import Kernel, StatePass, TileGradients, Walk
from tflabench.kernels.scalar.plan.hopper_shapes import TILE, WIDTH, held
from tflabench.problem import InputError, Problem
from tflabench.theory import walk_counts
from tflabench.theory.constants import CARRYING, ENDS, EXP_LANES, ROLES, STABILISED_BYTES
from tflabench.theory.cost import GATES, Cost, Gate, flop_terms
from tflabench.theory.hardware import Gpu
from tflabench.theory.launches import Chip, Launch, Modelled, sizes

Planned = tuple[plans.Forward, plans.Backward | None]


def planned(problem: Problem, kernel: Modelled, chunk_size: int, device: Device = USUAL) -> Planned:
    """Return what forward and backward of a call launch on a device; of the last state nobody asks."""
    of = sizes(problem, kernel.group(problem))
    forward = plans.forward(of, device, chunk_size, normalise=GATES[kernel.gate].normalized)
    if problem.pass_ == "fw":
        return forward, None
    return forward, plans.backward(of, device, chunk_size, gate_gradients=kernel.gate_gradients)


def launched(plan: Planned) -> tuple[Kernel, ...]:
    """Return the kernels of `planned`: h, of all segments but a concurrent first one, and those of backward."""
    forward, backward = plan
    return forward.h, *(backward.kernels if backward else ())


def cost(problem: Problem, kernel: Modelled, chunk_size: int) -> Cost:
    """Return the FLOPs and bytes of one call over batch and heads, as `call_cost` gives them.

    Forward FLOPs are Table 8's with L = 64, less the scores that heads of a program share; backward, the products of
    the kernels. Bytes: tensors once a kernel, gates and their float32 exponents, states of tiles, row sums, parts of dq
    and dk that are added up, and what segments take; no last state: the bench asks for none.
    """
    _check(problem)
    p, gate = problem, kernel.gate
    heads, steps = p.batch * p.heads, p.batch * p.heads * p.seq_len
    tile = sum((term(TILE) for term in flop_terms("chunkwise", gate, p.d_qk, p.d_hv).values()), 0.0)
    plan = planned(p, kernel, chunk_size)
    kernels_of_call = launched(plan)
    h = plan[0].h
    shared_scores = (h.together - 1) * walk_counts.flops(h, 0.5)["scores"]
    flops = steps * (tile / TILE - shared_scores)
    flops += steps * sum(sum(walk_counts.flops(part, 0.5).values()) for part in kernels_of_call[1:])
    gates = _gate_bytes(p, gate) + kernel.gate_gradients * _gate_gradient_bytes(p, gate, kernels_of_call)
    moved = steps * (gates + _shared_gradient_bytes(p, kernels_of_call))
    moved += steps * sum(step_bytes(part, p) for part in kernels_of_call)
    written = 0
    for of_pass in plan:
        if of_pass and (state_pass := of_pass.state_pass):
            cut, parts = state_pass.cut, state_pass.parts
            walked = steps * parts.tiles / cut.tiles
            flops += walked * 2 * p.d_qk * p.d_hv
            moved += walked * _filled(p) * walk_counts.tensor_bytes(state_pass, p.element_bytes)
            written += 2 * len(parts.added) + cut.count  # written, read, joined
            # h of the first reads none and writes one, which is read to join the others to it.
            written += state_pass.resumed
            kernels = of_pass.kernels if isinstance(of_pass, plans.Backward) else (h,)
            written += cut.count * sum(not isinstance(part, TileGradients) for part in kernels)  # read by walks
    return Cost(flops, moved + heads * written * p.d_qk * p.d_hv * plans.STATE_BYTES)


def launches(problem: Problem, kernel: Modelled, chunk_size: int, device: Device = USUAL) -> list[Launch]:
    """Return the kernels of one call, as the calibrated model takes them; a walk of several launches several times."""
    _check(problem)
    p, gate, exp = problem, kernel.gate, GATES[kernel.gate].normalized
    heads, steps = p.batch * p.heads, p.batch * p.heads * p.seq_len
    plan = planned(p, kernel, chunk_size, device)
    kernels = launched(plan)
    made = [_pointwise("gates", steps, _gate_bytes(p, gate))]
    if exp:
        made += [_pointwise("maxima of blocks", steps, 2 * p.element_bytes)]
    for of_pass in plan:
        if of_pass and (state_pass := of_pass.state_pass):
            parts, elements = state_pass.parts, p.d_qk * p.d_hv
            states = _launch_states(p, state_pass)
            if isinstance(of_pass, plans.Forward) and of_pass.first:
                states = _side_by_side(f"{states.name}, h of the first", states, _launch(of_pass.first, p, exp))
            joined = len(parts.added) + state_pass.cut.count + state_pass.resumed
            made += [states, Launch(
                f"{state_pass.state}, joined", state_pass.carry(elements)[1], CARRYING, {},
                {"states": heads * joined * elements * plans.STATE_BYTES},
                trips=parts.per_segment * state_pass.cut.count,
            )]  # fmt: skip
    made += [_launch(part, p, exp) if isinstance(part, Walk) else _launch_by_tiles(part, p) for part in kernels]
    if shared := _shared_gradient_bytes(p, kernels):
        made += [_pointwise(f"{name} of heads, added up", steps, shared / 2) for name in ("dq", "dk")]
    if sums := kernel.gate_gradients * _gate_gradient_bytes(p, gate, kernels):
        if not any(isinstance(part, TileGradients) for part in kernels):
            sums /= 2
            made += [_pointwise("sums of tiles", steps, sums), Launch("through tiles", heads, 1, {}, {}, trips=ENDS)]
        made += [_pointwise("gate gradients", steps, sums)]
    return made


def _launch_states(p: Problem, of: StatePass) -> Launch:
    """Return the pass over segments that adds up what each part of one adds to the state."""
    heads, steps = p.batch * p.heads, p.batch * p.heads * p.seq_len
    walked = steps * of.parts.tiles / of.cut.tiles
    dd = p.d_qk * p.d_hv
    return Launch(
        of.name, of.items, 1, {"recomputation": walked * 2 * dd},
        {
            "inputs and outputs": walked * _filled(p) * walk_counts.tensor_bytes(of, p.element_bytes),
            "states": heads * len(of.parts.added) * dd * plans.STATE_BYTES,
        },
        roles=ROLES - 1,
    )  # fmt: skip


def _side_by_side(name: str, first: Launch, second: Launch) -> Launch:
    """Return two launches as one: they run at once on different multiprocessors, and share memory and the L2."""

    def total(*counts: Mapping[str, float]) -> dict[str, float]:
        return {term: sum(count.get(term, 0.0) for count in counts) for term in {**counts[0], **counts[1]}}

    return Launch(
        name, first.programs + second.programs, 1, total(first.flops, second.flops), total(first.moved, second.moved),
        vector_ops=first.vector_ops + second.vector_ops, roles=max(first.roles, second.roles),
    )  # fmt: skip


def _launch(walk: Walk, p: Problem, exp: bool) -> Launch:
    """Return the launch of a walk."""
    share = walk.cut.tiles_of(walk.segments) / walk.cut.tiles
    heads, steps = p.batch * p.heads, share * p.batch * p.heads * p.seq_len
    needed, whole = walk_counts.flops(walk, 0.5), walk_counts.flops(walk, 1.0)
    within = needed["outputs"] + needed["sums within"] + (0 if walk_counts.scores_again(walk) else needed["scores"])
    flops = {
        "between chunks": needed["through state"]
        + needed["through the rest of state"]
        + (0 if walk_counts.state_again(walk) else needed["state"]),
        "within chunks": within,
        "causal waste": within,
        "recomputation": (walk.row_pieces - 1 + walk_counts.scores_again(walk)) * whole["scores"]
        + (walk.column_pieces - 1) * (whole["outputs"] + whole["sums within"])
        + (needed["state"] if walk_counts.state_again(walk) else 0),
    }
    states = heads * len(walk.segments) * p.d_qk * p.d_hv * plans.STATE_BYTES
    return Launch(
        walk.name,
        walk.items,
        walk.resident,
        {term: steps * count for term, count in flops.items()},
        {"inputs and outputs": steps * step_bytes(walk, p), "states": states * (walk.cut.count > 1)},
        vector_ops=steps * walk.pieces * _vector_ops(walk, exp),
        roles=ROLES - (walk.together > 1),
    )


def _launch_by_tiles(kernel: StatePass | TileGradients, p: Problem) -> Launch:
    heads, steps = p.batch * p.heads, p.batch * p.heads * p.seq_len
    needed, whole = walk_counts.flops(kernel, 0.5), walk_counts.flops(kernel, 1.0)
    states, starts = _tile_state_bytes(kernel, p), 0
    if isinstance(kernel, TileGradients):
        within = needed["scores"] + needed["outputs"]
        flops = {
            "between chunks": needed["through state"],
            "within chunks": within,
            "causal waste": within,
            "recomputation": whole["scores again"],
        }
        # Pairs: add exponents, mask, weigh both kinds, convert both; dv, dq, dk: weigh, add up, convert.
        vector = TILE * (7 + EXP_LANES) + TILE * (6 + 2 / kernel.together)
        # Pairs: multiply, add up twice; Q, V: convert, multiply, add up; C, dC: convert, multiply, add up.
        vector += (3 * TILE + 6 * TILE + 4 * TILE) * kernel.sums
    else:
        flops = {"between chunks" if kernel.reverse else "recomputation": needed["state"]}
        starts = heads * kernel.cut.count * TILE**2 * plans.STATE_BYTES * (kernel.cut.count > 1)
        vector = 3 * TILE + 2 * TILE  # Z: convert, weigh, round; S: decay, round
    return Launch(
        kernel.name,
        kernel.items,
        1,
        {term: steps * count for term, count in flops.items()},
        {"inputs and outputs": steps * (step_bytes(kernel, p) - states), "states": steps * states + starts},
        vector_ops=steps * vector,
        roles=ROLES if isinstance(kernel, TileGradients) else ROLES - 1,
    )


def _vector_ops(walk: Walk, exp: bool) -> float:
    """Return the pointwise operations of one program a step and head."""
    height, width = min(walk.rows, walk.block_rows), min(walk.columns, WIDTH)
    weights = TILE * (5 + EXP_LANES)  # of scores: scale by exponents, mask, convert
    # Outputs and Z: weights, conversion; S: decay, conversion.
    ops = weights + 4 * walk.block_rows + 2 * height * width / TILE
    if exp:
        ops += 2 * TILE
    if walk.sums:  # X: convert, weigh, round, multiply, add up; S: round, subtract, round the rest
        ops += 5 * walk.block_rows + 2 * height * width / TILE
    if walk.within:  # weigh, add up
        ops += (1 + walk.within) * TILE
    if walk.with_dv:  # K: weights, conversion; dv: conversion
        ops += weights + 2 * walk.block_rows * (not walk.sums) + width
    if walk.normalise:  # q and k: convert, multiply and add; weigh k
        ops += 5 * walk.columns
    return ops


def _filled(p: Problem) -> float:
    """Return which part of the columns that programs hold the tensors have (`hopper_shapes.held`)."""
    whole = held(sizes(p, 1))
    return (p.d_qk + p.d_hv) / (whole.d_qk + whole.d_hv)


def step_bytes(kernel: Kernel, p: Problem) -> float:
    """Return the bytes through memory a step and head: tensors, exponents (of a state pass one), states, row sums."""
    moved = _filled(p) * walk_counts.tensor_bytes(kernel, p.element_bytes) + _tile_state_bytes(kernel, p)
    if isinstance(kernel, StatePass):
        return moved + plans.EXPONENT_BYTES / 2
    return moved + plans.EXPONENT_BYTES + kernel.sum_bytes


def _tile_state_bytes(kernel: Kernel, p: Problem) -> float:
    """Return the bytes of states of tiles a step and head; of gradients C and dC of the tile."""
    of_tiles = kernel.of_tiles if isinstance(kernel, StatePass) else 2 * isinstance(kernel, TileGradients)
    return p.element_bytes * p.d_qk * p.d_hv / TILE * of_tiles


def _pointwise(name: str, steps: float, step_bytes: float) -> Launch:
    return Launch(name, 1, 1, {}, {"inputs and outputs": steps * step_bytes})


def runtime(problem: Problem, kernel: Modelled, gpu: Gpu) -> float:
    """Return the seconds at `problem.chunk_size` by the paper's upper bound (nothing overlaps), in whole waves."""
    chip = Chip.of(gpu)
    seconds = 0.0
    for launch in launches(problem, kernel, problem.chunk_size or problem.seq_len, chip.device):
        matrix = sum(launch.flops.values()) / chip.ceilings.flops_per_s
        memory = sum(launch.moved.values()) / chip.ceilings.bytes_per_s
        full = launch.waves(chip)
        seconds += memory + matrix * math.ceil(full) / full
    return seconds


def chosen_chunk_size(problem: Problem, kernel: Modelled, gpu: Gpu) -> int:
    """Return the L that the kernels choose on a GPU."""
    device = Chip.of(gpu).device._replace(bandwidth=in_steps(gpu.ceilings.bytes_per_s))
    of, normalise = sizes(problem, kernel.group(problem)), GATES[kernel.gate].normalized
    return plans.default_chunk_size(of, device, normalise=normalise, backward=problem.pass_ == "fwbw")


def _gate_bytes(p: Problem, gate: Gate) -> float:
    """Return the bytes of a step: pre-activations to exponents."""
    return 2 * p.element_bytes + plans.EXPONENT_BYTES + STABILISED_BYTES * GATES[gate].normalized


def _gate_gradient_bytes(p: Problem, gate: Gate, kernels: tuple[Kernel, ...]) -> float:
    """Return the bytes of a step: row sums, pre-activations, both gradients, and log f of exp.

    Row sums of walks are read for tiles and again for steps.
    """
    sums = sum(kernel.sum_bytes * (2 if isinstance(kernel, Walk) else 1) for kernel in kernels)
    return sums + 4 * p.element_bytes + STABILISED_BYTES / 2 * GATES[gate].normalized if sums else 0


def _shared_gradient_bytes(p: Problem, kernels: tuple[Kernel, ...]) -> float:
    """Return the bytes a step and head of dq and dk that PyTorch adds up, of heads that share q and k or a program."""
    added_up = 0.0
    for kernel in kernels:
        if isinstance(kernel, StatePass):
            continue
        made = 2 if isinstance(kernel, TileGradients) else walk_counts.of_qk(kernel)
        if made and kernel.together < kernel.sizes.group:
            added_up += made * p.element_bytes * p.d_qk * (1 / kernel.together + 1 / kernel.sizes.group)
    return added_up


def _check(problem: Problem) -> None:
    if problem.pass_ == "decode":
        raise InputError("pass is 'decode': the fused kernels compute sequences; it must be fw or fwbw")
