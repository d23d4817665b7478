"""The GPU kernels of the paper's two-level algorithm (TFLA, Table 1) as launches: chunk states in sequence, then tiles.

    forward     gates | C: states of chunks | H
    backward    C again | dC | dQ | dK | dV | gate gradients

H, dQ, dK and dV are one kernel in four roles (kernels/tfla/outputs.py): a program makes a tile of `rows` steps and
`outer` columns of its output, out = sum_c W (x . y_c) z_c + x S, over the tiles of `cols` steps of its chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tflabench.analysis.cost import Gate, state_elements
from tflabench.analysis.launches import EXP_LANES, Launch
from tflabench.problem import Problem

SHARED_MEMORY = 227 * 1024  # of a multiprocessor, for programs; Hopper (CUDA programming guide)
STATE_TILE = (64, 64, 128)  # steps, rows and columns of the state that a program of the state walk holds
STATE_PROGRAMS = 264  # the state walk cuts sequences until it has about this many (kernels/tfla/config.py)


@dataclass(frozen=True)
class Tiles:
    """Tiling of the parallel kernel.

    Attributes:
        rows, cols, outer: steps of a program, steps of its loop, columns of its output.
        inner: block of the dimension summed in x . y.
        resident: programs on a multiprocessor at once, as shared memory allows.
        pipelined: tiles of the loop are fetched ahead; else every fetch is waited for.
    """

    rows: int
    cols: int
    inner: int
    outer: int
    resident: int
    pipelined: bool = True

    @classmethod
    def of(cls, d_in: int, d_out: int, chunk_size: int, element_bytes: int) -> Tiles:
        """What kernels/tfla/config.py picks on Hopper for 16-bit elements: the first tiling that fits."""
        tile = min(chunk_size & -chunk_size, 128)
        whole, outer = _power_of_two(d_in), min(_power_of_two(d_out), 256)
        options = (  # rows, cols, inner, stages, resident
            (64, 64, whole, 2, 2),
            (64, 32, whole, 3, 2),
            (128, 64, whole, 2, 1),
            (128, 64, min(whole, 128), 3, 1),
            (64, 32, min(whole, 64), 2, 1),
        )
        for rows, cols, inner, stages, resident in options:
            rows = min(rows, tile)
            cols = min(cols, rows)
            room = SHARED_MEMORY // resident - 1024 * (resident - 1)
            if element_bytes * (rows * inner + stages * cols * (inner + outer)) <= room:
                break
        return cls(rows, cols, inner, outer, resident)


# mlstm_kernels' xl_chunk kernels load tile by tile without asynchronous copies (paper, App. G.1); blocks of 64 steps
# and of 64 and 128 columns are assumed.
UNPIPELINED = Tiles(rows=64, cols=64, inner=64, outer=128, resident=2, pipelined=False)


def launches(
    problem: Problem, gate: Gate, chunk_size: int, state_bytes: float, tiles: Tiles | None = None
) -> list[Launch]:
    """The kernels of one call, in order; `tiles`: of all four roles, None for those that fit each.

    Args:
        problem: pass_ "fw" or "fwbw".
        state_bytes: of an element of the chunk states in memory.
    """
    p, L = problem, min(chunk_size, problem.seq_len)
    exp = gate == "exp"
    heads = p.batch * p.heads
    steps = heads * p.seq_len
    chunks = heads * math.ceil(p.seq_len / L)
    qk, hv = p.d_qk * p.element_bytes, p.d_hv * p.element_bytes
    state = chunks * state_elements(gate, p.d_qk, p.d_hv) * state_bytes
    gates = 5 * 4  # float32 sums of gates that every kernel reads of a step (kernels.gates.TileGates)

    def walk(name: str, again: bool, extra_states: float = 0.0) -> list[Launch]:
        rows, u, v = STATE_TILE
        u, v = min(u, p.d_qk), min(v, p.d_hv)
        blocks = math.ceil(p.d_qk / u) * math.ceil(p.d_hv / v)
        segments = max(1, min(chunks // heads, STATE_PROGRAMS // (heads * blocks)))
        through = steps * blocks * (u + v) * p.element_bytes
        shared = 3 * rows * (u + v) * p.element_bytes
        # Cut into segments, a sequence is walked twice: what each adds, then the states.
        return [
            Launch(
                name if n == 0 else f"{name}, segments",
                programs=heads * blocks * segments,
                resident=max(1, SHARED_MEMORY // shared),
                flops={"recomputation" if again or n else "between chunks": steps * 2 * p.d_qk * p.d_hv},
                moved={
                    "inputs and outputs": steps * (qk + hv + 8),
                    "states": state * (1 + extra_states) if n == 0 else 4 * heads * segments * p.d_qk * p.d_hv * 3,
                },
                through_l2=through,
                vector_ops=steps * blocks * (u * 2 + u * v / rows),  # weights of u; the state's decay a tile
                trips=2,
            )
            for n in range(1 if segments == 1 else 2)
        ]

    def parallel(name: str, d_in: int, d_out: int, read: float, written: float, new_scores: bool = True) -> Launch:
        own = tiles or Tiles.of(d_in, d_out, min(chunk_size, _power_of_two(p.seq_len)), p.element_bytes)
        rows, cols = min(own.rows, L), min(own.cols, L)
        inner, outer = min(own.inner, d_in), min(own.outer, d_out)
        blocks = math.ceil(d_out / outer)
        computed = (L + rows) / 2 if cols <= rows else L  # steps of the other side that a row meets, on average
        needed = L / 2
        scores, outputs = 2 * d_in, 2 * d_out
        flops = {
            "between chunks": steps * 2 * d_in * d_out,
            "within chunks": steps * needed * (scores * new_scores + outputs),
            "causal waste": steps * (computed - needed) * (scores * new_scores + outputs),
            "recomputation": steps * computed * scores * (blocks - 1 + (not new_scores)),
        }
        iterations = computed / cols
        loads = math.ceil(d_in / inner) + 1  # of a tile of y by blocks of the inner dimension, and of z
        # Weights, scale, conversion; exponentials on the diagonal only.
        per_score = 4 + EXP_LANES * rows / max(computed, 1)
        if exp:
            per_score += 1  # the row sum
        state_trips = math.ceil(d_in / 64)
        return Launch(
            name,
            programs=steps / rows * blocks,
            resident=own.resident,
            flops=flops,
            moved={"inputs and outputs": steps * (read + written + gates), "states": state},
            through_l2=steps * blocks * (iterations * cols / rows * (d_in + outer) + 2 * d_in) * p.element_bytes
            + steps / rows * d_in * d_out * state_bytes
            + steps * written,
            vector_ops=steps * blocks * (computed * per_score + 2 * d_in + 2 * outer),
            trips=2 + state_trips + (0 if own.pipelined else iterations * loads),
            pipelined=own.pipelined,
        )

    gate_launches = [_small("gates", steps, 2 * p.element_bytes + (12 if exp else 8))]
    gate_launches += [_small("sums of gates", steps, 8 + gates)] * 2
    forward = [*gate_launches, *walk("C", again=False), parallel("H", p.d_qk, p.d_hv, 2 * qk + hv, hv + 4 * exp)]
    if p.pass_ == "fw":
        return forward
    return [
        *forward,
        *gate_launches,
        *walk("C, again", again=True),
        *walk("dC", again=False, extra_states=1),
        parallel("dQ", p.d_hv, p.d_qk, 2 * hv + 2 * qk, qk + 4),
        parallel("dK", p.d_hv, p.d_qk, 2 * hv + 2 * qk, qk + 4, new_scores=False),
        parallel("dV", p.d_qk, p.d_hv, 2 * qk + hv, hv, new_scores=False),
        _small("gate gradients", steps, 24 + 4 * p.element_bytes),
    ]


def _small(name: str, steps: float, step_bytes: float) -> Launch:
    """A kernel over the gates alone: bytes and a launch."""
    return Launch(name, steps / 1024, 8, {}, {"inputs and outputs": steps * step_bytes}, trips=2)


def _power_of_two(d: int) -> int:
    return max(16, 2 ** math.ceil(math.log2(d)))
