"""The fused kernels for Hopper (kernels/hopper): what they compute, move and hold on chip, and how fast they can be.

A walk carries one head's state on chip over tiles of 64 steps and makes one output; forward is one walk (h), backward
three (dq, dk, dv). So FLOPs do not grow with L: they are those of the chunkwise form with chunks of one tile. Nor does
a state go through memory, unless L < T: then the T/L segments run side by side, for which a pass before the walk (K, V
forward, Q, dH backward) computes the state that each starts from. L = T is best where batch * heads fill the chip, and
the L of so many segments that they do where not (`best_chunk_size`).

Where gate gradients are asked for, dq and dk also make row sums, for which they multiply by twice the bits of the
state: one product more as large as the one through the state. Without (fixed decays) they are walks like the others.

`runtime` is a lower bound: every walk takes the slowest of memory, matrix products and the L2, over whole waves of
programs. In us, mLSTMsig, beside what an H200 took and what the calibrated model makes of it, where one role's work
hides only in part behind another's (all: forward and backward, with gates; dq and dk at 256/512 are two launches):

            128/256, T = 4096                 256/512, T = 8192
    walk    bound  calibrated  measured       bound  calibrated  measured
    h         380         471       429         501         639       680
    dq        446         576       622         728         981      1220
    dk        444         567       558         697         943      1102
    dv        380         471       415         501         639       649
    all      1668        2129 2070-2190        2448        3250 3900-4100
    all but gate gradients
             1527        1892      1710

What neither has is the chain inside a tile: the role that computes scores waits for the L2 after each product, and the
two roles that multiply wait for it; of dq and dk these wait for both products with every block of the state. It is
longest for exp's forward, where the first role also sums rows and carries n: 549 and 1250 measured, 494 and 675
calibrated. At T = 65536 the model cuts into 8 segments at 128/256, as the kernels do; at 256/512 into 4 forward, and 8
with the backward, whose dq and dk have half as many programs as h. The kernels take 8 there for both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tflabench.analysis.cost import Cost, Gate, flop_terms
from tflabench.analysis.hardware import Gpu
from tflabench.analysis.launches import EXP_LANES, Chip, Launch
from tflabench.problem import InputError, Problem

TILE = 64
STATE_BYTES = 4  # float32, whatever the inputs are
SUM_BYTES = 4  # of a row sum: float32
LOG_GATE_BYTES = EXPONENT_BYTES = 2 * 4  # of both gates of a step: float32
WIDTH, HEIGHT = 256, 128  # columns of the state that a program holds, and rows that its two math roles can share
ROLES = 4  # of a program: one fetches, one computes scores, two multiply


@dataclass(frozen=True)
class Walk:
    """One walk, out_u = sum_z (U_u . W_z) Z_z + S U_u, with a state S of `rows` by `columns` (kernels/hopper/walk.py).

    Attributes:
        columns: dimension of U and W, summed over; in more than 256 the walk is launched for each 256.
        rows: dimension of Z and of the output.
        sums: for gate gradients it also reads a fourth tensor X of `rows` and writes row sums of X * S U, for which it
            multiplies U by twice the bits of S: by S rounded to the inputs' type, and by the rest.
        within: it also writes both sums of P * (X Z^T), over the pairs of a tile, by steps that give and that take.
        scores_again, state_again: an earlier walk has computed the same scores or states.
    """

    name: str
    columns: int
    rows: int
    sums: bool = False
    within: bool = False
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

    def tensor_bytes(self, element_bytes: int) -> float:
        """Through memory a step: U and W once, Z and the row sums' tensor and the output once a launch."""
        again = self.launches - 1  # the second launch adds to the first one's output: a read and a write
        per_launch = self.rows * (2 + self.sums)
        return element_bytes * (2 * self.columns + per_launch + again * (per_launch + self.rows))

    @property
    def sum_bytes(self) -> int:
        """Of the row sums of a step, of which every program of a state has a part."""
        return SUM_BYTES * (self.sums + 2 * self.within) * self.pieces * self.launches

    def step_bytes(self, element_bytes: int) -> float:
        """Through memory a step: tensors, exponents once a launch, row sums."""
        return self.tensor_bytes(element_bytes) + self.launches * EXPONENT_BYTES + self.sum_bytes

    def flops(self, causal_factor: float) -> dict[str, float]:
        """Matrix FLOPs a step, each product once; the state's decay a tile included."""
        scores, outputs = 2 * TILE * causal_factor * self.columns, 2 * TILE * causal_factor * self.rows
        state = 2 * self.rows * self.columns
        return {
            "scores": scores,
            "outputs": outputs,
            "through state": state,
            "through the rest of state": state * self.sums,
            "sums within": outputs * self.within,
            "state": state * (1 + 1 / TILE),
        }


def walks(problem: Problem, gate_gradients: bool = True) -> tuple[Walk, ...]:
    """The walks of a pass; h, dq, dk, dv as kernels/hopper/walk.py has them, with row sums or not."""
    qk, hv = problem.d_qk, problem.d_hv
    forward = (Walk("h", qk, hv),)
    if problem.pass_ == "fw":
        return forward
    return (
        *forward,
        Walk("dq", hv, qk, sums=gate_gradients, within=gate_gradients, state_again=True),
        Walk("dk", hv, qk, sums=gate_gradients, scores_again=True),
        Walk("dv", qk, hv, scores_again=True, state_again=True),
    )


def segments(problem: Problem, chunk_size: int) -> int:
    """T/L, each a multiple of a tile; 1 where the chunk holds the sequence."""
    tiles = math.ceil(problem.seq_len / TILE)
    return math.ceil(tiles / min(tiles, max(1, chunk_size // TILE)))


def cost(
    problem: Problem, gate: Gate, chunk_size: int, causal_factor: float = 0.5, gate_gradients: bool = True
) -> Cost:
    """FLOPs and bytes of one call over batch and heads, as `tflabench.analysis.cost.model` gives them.

    Forward FLOPs are Table 8's with L = 64; backward, the matrix products of the walks. Bytes: tensors once a walk,
    gates and their float32 exponents, row sums, and what segments take; no last state: the bench asks for none.

    Args:
        gate_gradients: backward; without them no row sums.
    """
    _check(problem)
    p = problem
    heads, steps = p.batch * p.heads, p.batch * p.heads * p.seq_len
    tile = sum((term(TILE) for term in flop_terms("chunkwise", gate, p.d_qk, p.d_hv, causal_factor).values()), 0.0)
    found = walks(p, gate_gradients)
    flops = steps / TILE * tile
    flops += steps * sum(sum(walk.flops(causal_factor).values()) for walk in found[1:])
    moved = steps * (_log_gate_bytes(p) + _gate_gradient_bytes(p, found))
    moved += steps * sum(walk.step_bytes(p.element_bytes) for walk in found)
    cut = segments(p, chunk_size)
    if cut > 1:
        passes = 2 if p.pass_ == "fwbw" else 1
        flops += passes * steps * 2 * p.d_qk * p.d_hv
        moved += passes * steps * (p.d_qk + p.d_hv) * p.element_bytes + heads * cut * _segment_bytes(p)
    return Cost(flops, moved)


def launches(problem: Problem, gate: Gate, chunk_size: int, gate_gradients: bool = True) -> list[Launch]:
    """The kernels of one call, as the calibrated model takes them; a walk of several launches several times."""
    _check(problem)
    p, exp = problem, gate == "exp"
    heads, steps = p.batch * p.heads, p.batch * p.heads * p.seq_len
    cut = segments(p, chunk_size)
    dd = p.d_qk * p.d_hv
    passes = 2 if p.pass_ == "fwbw" else 1
    found = [_pointwise("gates", steps, _log_gate_bytes(p) / 2)] * 2
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
    of_pass = walks(p, gate_gradients)
    for walk in of_pass:
        found += [_launch(walk, p, exp, cut)] * walk.launches
    if sums := _gate_gradient_bytes(p, of_pass):
        found += [
            _pointwise("sums of tiles", steps, sums / 2),
            Launch("through tiles", heads, 8, {}, {}, trips=2),
            _pointwise("gate gradients", steps, sums / 2),
        ]
    return found


def _launch(walk: Walk, p: Problem, exp: bool, cut: int) -> Launch:
    """One of `walk.launches`."""
    heads, steps = p.batch * p.heads, p.batch * p.heads * p.seq_len / walk.launches
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
    height, width = min(walk.rows, walk.block_rows), min(walk.columns, WIDTH)
    per_program = (2 * width + height * (2 + walk.sums)) * p.element_bytes
    # Scores: scale by exponents, mask, convert; outputs and Z: weights, conversion; S: decay, conversion.
    vector_ops = TILE * (5 + EXP_LANES + 2 * exp) + 4 * walk.block_rows + 2 * height * width / TILE
    if walk.sums:  # X: convert, weigh, round, multiply, add up; S: round, subtract, round the rest
        vector_ops += 5 * walk.block_rows + 2 * height * width / TILE
    if walk.within:  # weigh, add up twice
        vector_ops += 3 * TILE
    if exp and walk.name == "h":
        vector_ops += 5 * walk.columns
    return Launch(
        walk.name,
        heads * cut * walk.pieces,
        1,
        {term: steps * count for term, count in flops.items()},
        {
            "inputs and outputs": steps * walk.step_bytes(p.element_bytes),
            "states": heads * cut * p.d_qk * p.d_hv / walk.launches * STATE_BYTES if cut > 1 else 0,
        },
        through_l2=steps * walk.launches * walk.pieces * per_program,
        vector_ops=steps * walk.launches * walk.pieces * vector_ops,
        roles=ROLES,
    )


def _pointwise(name: str, steps: float, step_bytes: float) -> Launch:
    return Launch(name, steps / 1024, 8, {}, {"inputs and outputs": steps * step_bytes})


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


def _log_gate_bytes(p: Problem) -> float:
    """A step: pre-activations to log gates, these to exponents."""
    return 2 * p.element_bytes + 2 * LOG_GATE_BYTES + EXPONENT_BYTES


def _gate_gradient_bytes(p: Problem, found: tuple[Walk, ...]) -> float:
    """A step: row sums, read for tiles and again for steps; pre-activations, log f and both gradients."""
    sums = sum(walk.sum_bytes for walk in found)
    return 2 * sums + 4 * p.element_bytes + LOG_GATE_BYTES / 2 if sums else 0


def _segment_bytes(p: Problem) -> float:
    """States of one segment: written, joined (read and written), read by every walk."""
    forward, backward = 4, 4 + 2  # h reads C; dq reads C again, dk and dv read dC
    return p.d_qk * p.d_hv * STATE_BYTES * (forward + (backward if p.pass_ == "fwbw" else 0))


def _check(problem: Problem) -> None:
    if problem.pass_ == "decode":
        raise InputError("pass is 'decode': the fused kernels compute sequences; it must be fw or fwbw")
