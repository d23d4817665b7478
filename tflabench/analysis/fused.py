"""The fused kernels for Hopper (kernels/hopper): what they compute, move and hold on chip, and how fast they can be.

A walk carries one head's state on chip over tiles of 64 steps and makes one output; forward is one walk (h), backward
three (dq, dk, dv). So FLOPs do not grow with L: they are those of the chunkwise form with chunks of one tile. Nor does
a state go through memory, unless L < T: then the T/L segments run side by side, for which a pass before the walk (K, V
forward, Q, dH backward) computes the state that each starts from. L = T is best where batch * heads fill the chip, and
the L of so many segments that they do where not (`best_chunk_size`).

`runtime` is a lower bound: every walk takes the slowest of memory, matrix products and the L2, over whole waves of
programs. In us, beside kernels/MEASURED.md (H200, version 2, which has the checkpoints counted here) and what the
calibrated model makes of it, where one role's work hides only in part behind another's:

            128/256, T = 4096                 256/512, T = 8192
    walk    bound  calibrated  measured       bound  calibrated  measured
    h         388         479       483         501         641       766
    dq        467         553       531         749         912       943
    dk        467         553       526         749         912      1017
    dv        380         471       434         501         639       732

What neither has is the chain inside a tile: the role that computes scores waits for the L2 after each product, and the
two roles that multiply wait for it. It is longest for exp's forward, where that role also sums rows and carries n: 744
and 1363 measured, 485 and 664 calibrated. The best number of segments at T = 65536, 8 and 4, is the one that ran.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tflabench.analysis.cost import Cost, Gate, flop_terms
from tflabench.analysis.hardware import Gpu
from tflabench.analysis.launches import EXP_LANES, Chip, Launch
from tflabench.problem import InputError, Problem

TILE = 64
CHECKPOINT_STEPS = 512  # dq leaves C, in 16 bits, every so many steps for dk: gate gradients
CHECKPOINT_BYTES = 2
STATE_BYTES = 4  # float32, whatever the inputs are
WIDTH, HEIGHT = 256, 128  # columns of the state that a program holds, and rows that its two math roles can share
ROLES = 4  # of a program: one fetches, one computes scores, two multiply


@dataclass(frozen=True)
class Walk:
    """One walk, out_u = sum_z (U_u . W_z) Z_z + S U_u, with a state S of `rows` by `columns` (kernels/hopper/walk.py).

    Attributes:
        columns: dimension of U and W, summed over; in more than 256 the walk is launched for each 256.
        rows: dimension of Z and of the output.
        sums: it also reads a fourth tensor of `rows`, for row sums that gate gradients are made of, and checkpoints.
        scores_again, state_again: an earlier walk has computed the same scores or states.
    """

    name: str
    columns: int
    rows: int
    sums: bool = False
    scores_again: bool = False
    state_again: bool = False

    @property
    def launches(self) -> int:
        return math.ceil(self.columns / WIDTH)

    @property
    def block_rows(self) -> int:
        """Rows of the state in one program: 128, or 256 where row sums and registers leave room."""
        blocks = math.ceil(min(self.columns, WIDTH) / TILE)
        return HEIGHT * (1 if self.sums else max(1, min(4 // blocks, self.rows // HEIGHT)))

    @property
    def pieces(self) -> int:
        """Programs side by side that share one head's state by its rows, each with all of U and W."""
        return math.ceil(self.rows / self.block_rows)

    @property
    def on_chip_bytes(self) -> int:
        """Of the state in one program's registers."""
        return min(self.rows, self.block_rows) * min(self.columns, WIDTH) * STATE_BYTES

    def step_bytes(self, element_bytes: int) -> float:
        """Bytes through memory a step: U and W once, Z and the row sums' tensor and the output once a launch."""
        again = self.launches - 1  # the second launch adds to the first one's output: a read and a write
        per_launch = self.rows * (2 + self.sums)
        return element_bytes * (2 * self.columns + per_launch + again * (per_launch + self.rows))

    def flops(self, causal_factor: float) -> dict[str, float]:
        """Matrix FLOPs a step, each product once; the state's decay a tile included."""
        scores, outputs = 2 * TILE * causal_factor * self.columns, 2 * TILE * causal_factor * self.rows
        state = 2 * self.rows * self.columns
        return {"scores": scores, "outputs": outputs, "through state": state, "state": state * (1 + 1 / TILE)}


def walks(problem: Problem) -> tuple[Walk, ...]:
    """The walks of a pass; h, dq, dk, dv as kernels/hopper/walk.py has them."""
    qk, hv = problem.d_qk, problem.d_hv
    forward = (Walk("h", qk, hv),)
    if problem.pass_ == "fw":
        return forward
    return (
        *forward,
        Walk("dq", hv, qk, sums=True, state_again=True),
        Walk("dk", hv, qk, sums=True, scores_again=True),
        Walk("dv", qk, hv, scores_again=True, state_again=True),
    )


def segments(problem: Problem, chunk_size: int) -> int:
    """T/L, each a multiple of a tile; 1 where the chunk holds the sequence."""
    tiles = math.ceil(problem.seq_len / TILE)
    return math.ceil(tiles / min(tiles, max(1, chunk_size // TILE)))


def cost(problem: Problem, gate: Gate, chunk_size: int, causal_factor: float = 0.5) -> Cost:
    """FLOPs and bytes of one call over batch and heads, as `tflabench.analysis.cost.model` gives them.

    Forward FLOPs are Table 8's with L = 64; backward, the matrix products of the walks. Bytes: tensors once a walk,
    gates and their float32 exponents, one last state, checkpoints, and what segments take.
    """
    _check(problem)
    p = problem
    heads, steps = p.batch * p.heads, p.batch * p.heads * p.seq_len
    tile = sum((term(TILE) for term in flop_terms("chunkwise", gate, p.d_qk, p.d_hv, causal_factor).values()), 0.0)
    flops = steps / TILE * tile
    flops += steps * sum(sum(walk.flops(causal_factor).values()) for walk in walks(p)[1:])
    moved = sum(steps * walk.step_bytes(p.element_bytes) for walk in walks(p))
    moved += _gate_bytes(p, steps) + _kept_bytes(p, heads)
    cut = segments(p, chunk_size)
    if cut > 1:
        passes = 2 if p.pass_ == "fwbw" else 1
        flops += passes * steps * 2 * p.d_qk * p.d_hv
        moved += passes * steps * (p.d_qk + p.d_hv) * p.element_bytes + heads * cut * _segment_bytes(p)
    return Cost(flops, moved)


def launches(problem: Problem, gate: Gate, chunk_size: int) -> list[Launch]:
    """The kernels of one call, as the calibrated model takes them."""
    _check(problem)
    p, exp = problem, gate == "exp"
    heads, steps = p.batch * p.heads, p.batch * p.heads * p.seq_len
    cut = segments(p, chunk_size)
    dd = p.d_qk * p.d_hv
    passes = 2 if p.pass_ == "fwbw" else 1
    found = [Launch("gates", steps / 1024, 8, {}, {"inputs and outputs": _gate_bytes(p, steps) / 2})] * 2
    if cut > 1:
        pieces = math.ceil(p.d_qk / HEIGHT) * math.ceil(p.d_hv / WIDTH)
        states = heads * cut * dd * STATE_BYTES
        tensors = steps * (p.d_qk + p.d_hv) * p.element_bytes
        for n in range(passes):
            name = ("C", "dC")[n]
            found += [
                Launch(
                    f"{name} of segments", heads * cut * pieces, 1,
                    {"recomputation": steps * 2 * dd},
                    {"inputs and outputs": tensors, "states": states},
                    through_l2=pieces * tensors, roles=ROLES - 1,
                ),
                Launch(f"{name}, joined", heads * dd / 1024, 2, {}, {"states": 2 * states}, trips=2 * cut),
            ]  # fmt: skip
    for walk in walks(p):
        needed, whole = walk.flops(0.5), walk.flops(1.0)
        last = dd * heads * STATE_BYTES
        kept = {"h": last, "dv": 0}.get(walk.name, dd * heads * CHECKPOINT_BYTES * _checkpoints(p))
        flops = {
            "between chunks": needed["through state"] + (0 if walk.state_again else needed["state"]),
            "within chunks": needed["outputs"] + (0 if walk.scores_again else needed["scores"]),
            "causal waste": needed["outputs"] + (0 if walk.scores_again else needed["scores"]),
            "recomputation": (walk.pieces - 1 + walk.scores_again) * whole["scores"]
            + (needed["state"] if walk.state_again else 0),
        }
        per_piece = (2 * min(walk.columns, WIDTH) + min(walk.rows, walk.block_rows) * (2 + walk.sums)) * p.element_bytes
        found.append(
            Launch(
                walk.name,
                heads * cut * walk.pieces * walk.launches,
                1,
                {term: steps * count for term, count in flops.items()},
                {
                    "inputs and outputs": steps * (walk.step_bytes(p.element_bytes) + 8),
                    "states": kept + (heads * cut * dd * STATE_BYTES if cut > 1 else 0),
                },
                through_l2=steps * walk.pieces * walk.launches * per_piece,
                # Scores: scale by exponents, mask, convert; outputs and Z: weights, conversion; S: decay, conversion.
                vector_ops=steps
                * walk.pieces
                * walk.launches
                * (TILE * (5 + EXP_LANES + 2 * exp) + 4 * walk.block_rows + 2 * walk.on_chip_bytes / 4 / TILE)
                + (steps * walk.pieces * 5 * walk.columns if exp and walk.name == "h" else 0),
                roles=ROLES,
            )
        )
    if p.pass_ == "fwbw":
        found.append(Launch("gate gradients", steps / 1024, 8, {}, {"inputs and outputs": steps * 40.0}))
    return found


def waves(problem: Problem, chunk_size: int, gpu: Gpu) -> dict[str, float]:
    """By walk, how often its programs fill the chip, one on a multiprocessor.

    Raises:
        InputError: the GPU's multiprocessors are not known.
    """
    if not gpu.multiprocessors:
        raise InputError(f"the number of multiprocessors of {gpu.name} is not known: name another GPU")
    rows = problem.batch * problem.heads * segments(problem, chunk_size)
    return {walk.name: rows * walk.pieces / gpu.multiprocessors for walk in walks(problem)}


def runtime(problem: Problem, gate: Gate, gpu: Gpu) -> float:
    """Seconds at `problem.chunk_size`, for overlapped walks over whole waves; see the module's text.

    Raises:
        InputError: a head dimension or pass that the kernels do not take, or a GPU of which too little is known.
    """
    chip = Chip.of(gpu)
    found = 0.0
    for launch in launches(problem, gate, problem.chunk_size or problem.seq_len):
        matrix = sum(launch.flops.values()) / chip.ceilings.flops_per_s
        memory = sum(launch.moved.values()) / chip.ceilings.bytes_per_s
        full = launch.waves(chip)
        found += max(memory, max(matrix, launch.through_l2 / chip.l2_bytes_per_s) * math.ceil(full) / full)
    return found


def best_chunk_size(problem: Problem, gate: Gate, gpu: Gpu) -> int:
    """The L of least `runtime` among T and the powers of two from a tile up to it; the largest among equals."""
    tiles = math.ceil(problem.seq_len / TILE)
    sizes = [TILE * 2**n for n in range((tiles - 1).bit_length())] + [TILE * tiles]
    return min(reversed(sizes), key=lambda size: runtime(problem.with_(chunk_size=size), gate, gpu))


def _gate_bytes(p: Problem, steps: float) -> float:
    """Pre-activations to log gates and exponents (float32), read by every walk; backward, row sums and gradients."""
    forward = 2 * p.element_bytes + 8 + 8 + 8 + 8
    backward = 3 * 8 + 2 * 4 * 2 * 2 + 2 * p.element_bytes + 8
    return steps * (forward + (backward if p.pass_ == "fwbw" else 0))


def _kept_bytes(p: Problem, heads: int) -> float:
    """The last state, written; backward, the checkpoints, written and read."""
    kept = STATE_BYTES + (2 * CHECKPOINT_BYTES * _checkpoints(p) if p.pass_ == "fwbw" else 0)
    return heads * p.d_qk * p.d_hv * kept


def _checkpoints(p: Problem) -> int:
    """Of each head and sequence."""
    return (math.ceil(p.seq_len / TILE) - 1) // (CHECKPOINT_STEPS // TILE)


def _segment_bytes(p: Problem) -> float:
    """States of one segment: written, joined (read and written), read by every walk."""
    forward, backward = 4, 4 + 2  # h reads C; dq reads C again, dk and dv read dC
    return p.d_qk * p.d_hv * STATE_BYTES * (forward + (backward if p.pass_ == "fwbw" else 0))


def _check(problem: Problem) -> None:
    if problem.pass_ == "decode":
        raise InputError("pass is 'decode': the fused kernels compute sequences; it must be fw or fwbw")
