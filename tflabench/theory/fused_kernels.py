"""The fused kernels for Hopper one by one: what each computes, moves and holds on chip a step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from tflabench.problem import Problem
from tflabench.theory.constants import (
    EXP_LANES,
    EXPONENT_BYTES,
    HEIGHT,
    ITEMS,
    MOST_ADDED_UP,
    MULTIPROCESSORS,
    PACK,
    PACKED,
    STATE_BYTES,
    SUM_BYTES,
    TILE,
    WIDTH,
)


@dataclass(frozen=True)
class Walk:
    """One walk, out_u = sum_z (U_u . W_z) Z_z + S U_u, with a state S of `rows` by `columns` (kernels/hopper).

    Attributes:
        columns: dimension of U and W, summed over; in more than 256 the walk is launched for each 256.
        rows: dimension of Z and of the output.
        of_qk: Z and the output belong to q and k (dq, dk), not U and W (h, dv).
        sums: for gate gradients it also reads a fourth tensor X of `rows` and writes row sums of X * S U, for which it
            multiplies U by twice the bits of S: by S rounded to the inputs' type, and by the rest.
        within: how many sums of P * (X Z^T) it writes as well, over the pairs of a tile: by steps that give or take.
        scores_again, state_again: an earlier walk has computed the same scores or states.
        with_dv: of dk: it makes dv too, out of K and the same state (backward_dkdv.py).
        group: heads that share one of q and k.
        together: heads of a program, which reads U and W once for them (h: packed_heads.py).
        halved: half as many rows in a program as fit, see `filling`.
    """

    name: str
    columns: int
    rows: int
    of_qk: bool = False
    sums: bool = False
    within: int = 0
    scores_again: bool = False
    state_again: bool = False
    with_dv: bool = False
    group: int = 1
    together: int = 1
    halved: bool = False

    def filling(self, problem: Problem, cut: int, norm: bool) -> Walk:
        """Return this walk with as many rows in a program as it is launched with.

        Where programs would take less than half of the chip, each has half as many rows. A walk with a normaliser
        keeps them, for every program of a state would carry that.
        """
        whole = replace(self, halved=False)
        spare = 2 * whole.programs(problem, cut) <= MULTIPROCESSORS
        return replace(whole, halved=spare and not norm and whole.together == 1 and whole.block_rows > HEIGHT)

    @property
    def launches(self) -> int:
        """Return how many launches cover the columns of the state."""
        return math.ceil(self.columns / WIDTH)

    @property
    def block_rows(self) -> int:
        """Rows of a state in one program: 128, or 256 where row sums and registers leave room; 64 of several heads."""
        if self.together > 1:
            return self.rows
        blocks = math.ceil(min(self.columns, WIDTH) / TILE)
        return HEIGHT * (1 if self.sums else max(1, min(4 // blocks, self.rows // HEIGHT) // (1 + self.halved)))

    @property
    def pieces(self) -> int:
        """Programs side by side that share one head's state by its rows, each with all of U and W."""
        return math.ceil(self.rows / self.block_rows)

    @property
    def on_chip_bytes(self) -> int:
        """Return the bytes of the states in one program's registers."""
        return self.together * min(self.rows, self.block_rows) * min(self.columns, WIDTH) * STATE_BYTES

    def tensor_bytes(self, element_bytes: int) -> float:
        """Return the bytes through memory of a step and head.

        U and W count once, Z, the row sums' tensor and the output once a launch. What programs share comes from the
        L2 for all but one.
        """
        shared = 1 / self.group
        again = self.launches - 1  # the second launch adds to the first one's output: a read and a write
        u_w, z_x = (1, shared) if self.of_qk else (shared, 1)
        per_launch = self.rows * (z_x * (1 + self.sums) + 1)
        k_and_dv = (self.rows * shared * (not self.sums) + self.columns) * self.with_dv  # K is X of row sums
        return element_bytes * (2 * self.columns * u_w + per_launch + again * (per_launch + self.rows) + k_and_dv)

    @property
    def sum_bytes(self) -> int:
        """Return the bytes of the row sums of a step, of which every program of a state has a part."""
        return SUM_BYTES * (self.sums + self.within) * self.pieces * self.launches

    def step_bytes(self, element_bytes: int) -> float:
        """Through memory a step: tensors, exponents once a launch, row sums."""
        return self.tensor_bytes(element_bytes) + self.launches * EXPONENT_BYTES + self.sum_bytes

    def flops(self, causal_factor: float) -> dict[str, float]:
        """Return the matrix FLOPs of a step and head, each product once.

        The heads of a program share their scores. The state's decay, one a tile, is included.
        """
        scores, outputs = 2 * TILE * causal_factor * self.columns / self.together, 2 * TILE * causal_factor * self.rows
        state = 2 * self.rows * self.columns
        return {
            "scores": scores + outputs * self.with_dv,  # Q K^T costs as much as dP^T Q
            "outputs": outputs + scores * self.with_dv,
            "through state": state * (1 + self.with_dv),
            "through the rest of state": state * self.sums,
            "sums within": outputs * (self.within > 0),
            "state": state * (1 + 1 / TILE),
        }

    def programs(self, problem: Problem, cut: int) -> float:
        """Return the number of programs: segments, times the pieces of a state, for the heads of a program."""
        return problem.batch * problem.heads * cut * self.pieces / self.together

    def vector_ops(self, exp: bool) -> float:
        """Pointwise operations of one program a step and head."""
        height, width = min(self.rows, self.block_rows), min(self.columns, WIDTH)
        weights = TILE * (5 + EXP_LANES)  # of scores: scale by exponents, mask, convert
        # Outputs and Z: weights, conversion; S: decay, conversion.
        found = weights + 4 * self.block_rows + 2 * height * width / TILE
        if exp:
            found += 2 * TILE
        if self.sums:  # X: convert, weigh, round, multiply, add up; S: round, subtract, round the rest
            found += 5 * self.block_rows + 2 * height * width / TILE
        if self.within:  # weigh, add up
            found += (1 + self.within) * TILE
        if self.with_dv:  # K: weights, conversion; dv: conversion
            found += weights + 2 * self.block_rows * (not self.sums) + width
        if exp and self.name == "h":  # q and k: convert, multiply and add; weigh k
            found += 5 * self.columns
        return found


@dataclass(frozen=True)
class StatePass:
    """C before every tile, or dC after it, of 64 x 64 states, written down for `Gradients` (segment_states.py).

    Attributes:
        again: forward has had these states on chip.
        group: heads that share the one of k or q that is read.
        together: heads of a program, which reads that once if all of them share it.
    """

    name: str
    again: bool
    group: int
    together: int
    sum_bytes = 0.0

    @property
    def on_chip_bytes(self) -> int:
        """Return the bytes of the states in one program's registers."""
        return self.together * PACKED**2 * STATE_BYTES

    def state_bytes(self, element_bytes: int) -> float:
        """Through memory a step and head: a state for the 64 steps of a tile, in the inputs' type."""
        return element_bytes * PACKED**2 / TILE

    def step_bytes(self, element_bytes: int) -> float:
        """Through memory a step and head: q and dh, or k and v, one of the two exponents, states."""
        return element_bytes * (PACKED / self.group + PACKED) + EXPONENT_BYTES / 2 + self.state_bytes(element_bytes)

    def flops(self, causal_factor: float) -> dict[str, float]:
        """Matrix FLOPs a step and head, the state's decay a tile included."""
        del causal_factor
        return {"state": 2 * PACKED**2 * (1 + 1 / TILE)}

    def vector_ops(self) -> float:
        """Pointwise operations of a program a step and head: Z: convert, weigh, round; S: decay, round."""
        return 3 * PACKED + 2 * PACKED**2 / TILE

    def programs(self, problem: Problem, cut: int) -> float:
        """Return the number of programs that are launched."""
        return problem.batch * problem.heads * cut / self.together


@dataclass(frozen=True)
class Gradients:
    """dq, dk and dv of 64 x 64 states, tile by tile, from the states before and after each (tile_gradients.py).

    Attributes:
        sums: it also writes row sums, of q and of k, within the tile and through a state, and what passes the tile.
        group: heads that share one of q and k.
        together: heads of a program, which reads q and k once for them and writes the sums of their dq and of their dk.
    """

    sums: bool
    group: int
    together: int
    name = "dq, dk, dv"

    @property
    def on_chip_bytes(self) -> int:
        """No state outlives its tile."""
        return 0

    @property
    def sum_bytes(self) -> float:
        """Return the bytes of the row sums of a step, and of what passes its tile."""
        return SUM_BYTES * (4 + 1 / TILE) * self.sums

    def state_bytes(self, element_bytes: int) -> float:
        """Through memory a step and head: C and dC of its tile."""
        return element_bytes * 2 * PACKED**2 / TILE

    def step_bytes(self, element_bytes: int) -> float:
        """Through memory a step and head: v, dh and dv, q and k, dq and dk; states, exponents, row sums."""
        tensors = PACKED * (3 + 2 / self.group + 2 / self.together)
        return element_bytes * tensors + self.state_bytes(element_bytes) + EXPONENT_BYTES + self.sum_bytes

    def flops(self, causal_factor: float) -> dict[str, float]:
        """Matrix FLOPs a step and head: eight products of 64 x 64 x 64 a tile, five of them of its pairs."""
        pairs, states = 2 * TILE * causal_factor * PACKED, 2 * PACKED**2
        return {"scores": pairs, "scores again": pairs, "outputs": 3 * pairs, "through state": 3 * states}

    def vector_ops(self) -> float:
        """Pointwise operations of a program a step and head."""
        # Pairs: add exponents, mask, weigh both kinds, convert both; dv, dq, dk: weigh, add up, convert.
        found = TILE * (7 + EXP_LANES) + PACKED * (6 + 2 / self.together)
        # Pairs: multiply, add up twice; Q, V: convert, multiply, add up; C, dC: convert, multiply, add up.
        return found + (3 * TILE + 6 * PACKED + 4 * PACKED**2 / TILE) * self.sums

    def programs(self, problem: Problem, cut: int) -> float:
        """Return the number of programs that are launched."""
        del cut
        return problem.batch * problem.heads * math.ceil(problem.seq_len / TILE) / self.together


Kernel = Walk | StatePass | Gradients


def walks(problem: Problem, gate_gradients: bool = True, group: int = 1) -> tuple[Walk, ...]:
    """Return the walks of a pass, as kernels/hopper/backward.py chooses them: h, dq, dk, dv.

    dk and dv are one walk where a program can hold the whole of dC; h is alone where backward is `tilewise`.

    Args:
        gate_gradients: backward; without them no row sums.
        group: heads that share one of q and k, without a normaliser.
    """
    qk, hv = problem.d_qk, problem.d_hv
    forward = (Walk("h", qk, hv, group=group, together=_together(problem, group)),)
    if problem.pass_ == "fw" or tilewise(problem, gate_gradients, group):
        return forward
    sums = gate_gradients
    walk = partial(Walk, group=group)
    dq = walk("dq", hv, qk, of_qk=True, sums=sums, within=2 * sums, state_again=True)
    dk = walk("dk", hv, qk, of_qk=True, sums=sums, scores_again=True)
    if qk <= HEIGHT and hv <= WIDTH:
        return (*forward, dq, replace(dk, name="dk, dv", with_dv=True))
    return (*forward, dq, dk, walk("dv", qk, hv, scores_again=True, state_again=True))


def tilewise(
    problem: Problem, gate_gradients: bool = True, group: int = 1
) -> tuple[()] | tuple[StatePass, StatePass, Gradients]:
    """Backward of 64 x 64 states, but for single heads without row sums; nothing where it is walks.

    Args:
        gate_gradients, group: as for `walks`.
    """
    small = problem.d_qk == problem.d_hv == PACKED
    if problem.pass_ == "fw" or not small or not (gate_gradients or _together(problem, group) > 1):
        return ()
    states = partial(StatePass, group=group, together=math.gcd(PACK, problem.heads))
    items = problem.batch * problem.heads * math.ceil(problem.seq_len / TILE)
    added_up = math.gcd(MOST_ADDED_UP, group)
    while added_up > 1 and items / added_up < ITEMS:
        added_up //= 2
    gradients = Gradients(gate_gradients, group, added_up)
    return states("C of tiles", again=True), states("dC of tiles", again=False), gradients


def kernels(problem: Problem, gate_gradients: bool = True, group: int = 1) -> tuple[Kernel, ...]:
    """Return `walks`, and what is `tilewise` after them."""
    return *walks(problem, gate_gradients, group), *tilewise(problem, gate_gradients, group)


def _together(problem: Problem, group: int) -> int:
    """Heads of a program that makes h."""
    return PACK if problem.d_qk == problem.d_hv == PACKED and group % PACK == 0 else 1
