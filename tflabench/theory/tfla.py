"""The GPU kernels of the paper's two-level algorithm (TFLA, Table 1) as launches: chunk states in sequence, then tiles.

    forward     gates | C: states of chunks | H
    backward    C again | dC | dQ | dK | dV | gate gradients

H, dQ, dK and dV are one kernel in four roles (kernels/tfla/outputs.py): a program makes a tile of `rows` steps and
`outer` columns of its output, out = sum_c W (x . y_c) z_c + x S, over the tiles of `cols` steps of its chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tflabench.problem import Problem
from tflabench.theory.constants import (
    BESIDE_TILES,
    ENDS,
    EXP_LANES,
    NARROW,
    NXAI_INNER,
    NXAI_OUTER,
    NXAI_RESIDENT,
    NXAI_STEPS,
    NXAI_WALK_STATE,
    NXAI_WALK_STEPS,
    STATE_COLUMNS,
    STATE_PROGRAMS,
    STATE_ROWS,
    STATE_STAGES,
    STATE_STEPS,
    SUMMING_WAVES,
    TILE_GATES,
)
from tflabench.theory.cost import Gate, state_elements
from tflabench.theory.hardware import HOPPER, SHARED_MEMORY_BYTES, Capability
from tflabench.theory.launches import Launch


def shared_memory(capability: Capability) -> int:
    """Bytes that kernels/tfla/config.py reckons with on GPUs of this compute capability."""
    return SHARED_MEMORY_BYTES.get(capability, min(SHARED_MEMORY_BYTES[8, 9], SHARED_MEMORY_BYTES[12, 0]))


def state_tile(capability: Capability) -> tuple[int, int, int, int]:
    """Return steps, rows and columns of the state in a program of the state walk, and tiles of steps on their way."""
    if capability >= HOPPER:
        return STATE_STEPS, STATE_ROWS, STATE_COLUMNS, STATE_STAGES
    return STATE_STEPS, STATE_ROWS, STATE_COLUMNS // 2, STATE_STAGES - 1


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
    def of(cls, d_in: int, d_out: int, chunk_size: int, element_bytes: int, capability: Capability = HOPPER) -> Tiles:
        """Return the tiling that kernels/tfla/config.py picks for 16-bit elements: the first that fits."""
        tile = min(chunk_size & -chunk_size, 128)
        whole = _power_of_two(d_in)
        if capability < HOPPER:
            return cls._before_hopper(d_in, d_out, tile, element_bytes, shared_memory(capability))
        outer = _block(d_out, 256)
        short = ((64, 32, whole, 2, 2), (64, 64, _block(d_in, 128), 2, 2))
        options = (  # rows, cols, inner, stages, resident
            (64, 64, whole, 2, 2),
            (64, 32, whole, 3, 2),
            *(short if chunk_size < 1024 else ()),
            (128, 64, whole, 2, 1),
            (128, 32, whole, 2, 1),
            (128, 64, _block(d_in, 128), 3, 1),
            (64, 32, _block(d_in, 64), 2, 1),
        )
        for rows, cols, inner, stages, resident in options:
            rows = min(rows, tile)
            cols = min(cols, rows)
            room = shared_memory(capability) // resident - BESIDE_TILES * (resident - 1)
            if element_bytes * (rows * inner + stages * cols * (inner + outer)) <= room:
                break
        return cls(rows, cols, inner, outer, resident)

    @classmethod
    def _before_hopper(cls, d_in: int, d_out: int, tile: int, element_bytes: int, shared: int) -> Tiles:
        """Ampere's and Ada's, of at most 64 steps; of programs as many as fit, two at most for their registers."""
        whole, outer = _power_of_two(d_in), _block(d_out, 128)
        rows = min(64, tile)
        for cols, inner, stages, most in (
            (64, whole, 3, shared // 2 - BESIDE_TILES),
            (64, whole, 2, shared),
            (32, whole, 2, shared),
            (32, _block(d_in, 128), 2, shared),
            (32, _block(d_in, 64), 1, shared),
        ):
            cols = min(cols, rows)
            needed = element_bytes * (rows * inner + stages * cols * (inner + outer))
            if needed <= most:
                break
        return cls(rows, cols, inner, outer, min(2, shared // (needed + BESIDE_TILES)))


# mlstm_kernels' xl_chunk kernels load tile by tile without asynchronous copies (paper, App. G.1).
UNPIPELINED = Tiles(NXAI_STEPS, NXAI_STEPS, NXAI_INNER, NXAI_OUTER, NXAI_RESIDENT, pipelined=False)


def launches(
    problem: Problem, gate: Gate, chunk_size: int, state_bytes: float, tiles: Tiles | None = None,
    gate_gradients: bool = True, group: int = 1, capability: Capability = HOPPER,
) -> list[Launch]:  # fmt: skip
    """Return the kernels of one call, in order.

    Args:
        problem: pass_ "fw" or "fwbw".
        state_bytes: of an element of the chunk states in memory.
        tiles: of all four roles; None for those that fit each.
        gate_gradients: backward; without them their kernel is not launched, the others are the same.
        group: heads that share one of q and k, which then come from memory once.
        capability: compute capability of the GPU, for which the kernels choose their tiles.
    """
    p, call = problem, _Call(problem, gate, chunk_size, state_bytes, tiles, group, capability)
    qk, hv = p.d_qk * p.element_bytes, p.d_hv * p.element_bytes
    q_or_k = qk / group
    d_of_head = qk / call.members(p.d_hv, p.d_qk)
    exp = 4 if gate == "exp" else 0  # one float32 a step: m, then 1 / denominator
    gates = [call.small("gates", 2 * p.element_bytes + 8 + exp), *[call.small("sums of gates", 8 + TILE_GATES)] * 2]
    forward = [*gates, *call.walk("C"), call.parallel("H", p.d_qk, p.d_hv, 2 * q_or_k + 2 * hv + exp)]
    if p.pass_ == "fw":
        return forward
    return [
        *forward,
        *gates,
        *call.walk("C, again", again=True),
        *call.walk("dC", reads_states=True),
        call.parallel("dQ", p.d_hv, p.d_qk, 2 * hv + 2 * q_or_k + d_of_head + 4),
        call.parallel("dK", p.d_hv, p.d_qk, 2 * hv + 2 * q_or_k + d_of_head + 4, again=True),
        call.parallel("dV", p.d_qk, p.d_hv, 2 * q_or_k + 2 * hv, again=True),
        *[call.small(f"{name} of heads, added up", d_of_head + q_or_k) for name in ("dQ", "dK") if d_of_head > q_or_k],
        *[call.small("gate gradients", 24 + 4 * p.element_bytes)] * gate_gradients,
    ]


@dataclass(frozen=True)
class _Call:
    """The facts that the launches of one call share; see `launches`."""

    problem: Problem
    gate: Gate
    chunk_size: int
    state_bytes: float
    tiles: Tiles | None
    group: int
    capability: Capability

    @property
    def heads(self) -> int:
        return self.problem.batch * self.problem.heads

    @property
    def steps(self) -> int:
        return self.heads * self.problem.seq_len

    @property
    def chunks(self) -> int:
        return math.ceil(self.problem.seq_len / self.chunk_size)

    @property
    def states(self) -> float:
        """Bytes of all chunk states."""
        p = self.problem
        return self.heads * self.chunks * state_elements(self.gate, p.d_qk, p.d_hv) * self.state_bytes

    def members(self, d_in: int, d_out: int) -> int:
        """Heads whose dQ or dK a program adds up: a divisor of those that share one, while programs are enough."""
        tiles = self._tiles(d_in, d_out)
        programs = self.steps / tiles.rows * math.ceil(d_out / tiles.outer)
        sizes = (n for n in range(1, self.group + 1) if self.group % n == 0)
        return max((n for n in sizes if programs // n >= SUMMING_WAVES * STATE_PROGRAMS), default=1)

    def small(self, name: str, step_bytes: float) -> Launch:
        """Return a kernel over the gates alone: bytes and a launch."""
        return Launch(name, 1, 1, {}, {"inputs and outputs": self.steps * step_bytes})

    def walk(self, name: str, *, again: bool = False, reads_states: bool = False) -> list[Launch]:
        """Return the state walk; twice where sequences are cut into segments: what each adds, and then the states.

        That of mlstm_kernels cuts nothing, and waits for every tile.
        """
        p = self.problem
        if self.tiles:
            rows = min(NXAI_WALK_STEPS, self.chunk_size)
            u, v = min(NXAI_WALK_STATE, p.d_qk), min(NXAI_WALK_STATE, p.d_hv)
            resident, waits = self.tiles.resident, math.ceil(p.seq_len / rows)
        else:
            rows, u, v, stages = state_tile(self.capability)
            u, v = min(u, p.d_qk), min(v, p.d_hv)
            tiles_bytes = stages * rows * (u + v) * p.element_bytes
            resident, waits = max(1, shared_memory(self.capability) // tiles_bytes), 0
        blocks = math.ceil(p.d_qk / u) * math.ceil(p.d_hv / v)
        segments = 1 if self.tiles else max(1, min(self.chunks, STATE_PROGRAMS // (self.heads * blocks)))
        ends = 3 * self.heads * segments * p.d_qk * p.d_hv * 4  # float32: written, read and written when joined

        def launch(name: str, reason: str, states: float) -> Launch:
            return Launch(
                name,
                programs=self.heads * blocks * segments,
                resident=resident,
                flops={reason: self.steps * 2 * p.d_qk * p.d_hv},
                moved={
                    "inputs and outputs": self.steps * ((p.d_qk / self.group + p.d_hv) * p.element_bytes + 8),
                    "states": states,
                },
                vector_ops=self.steps * blocks * (u * 2 + u * v / rows),  # weights of u; the state's decay a tile
                trips=ENDS + waits,
            )

        found = [launch(name, "recomputation" if again else "between chunks", self.states * (1 + reads_states))]
        return found if segments == 1 else [*found, launch(f"{name}, segments", "recomputation", ends)]

    def parallel(self, name: str, d_in: int, d_out: int, step_bytes: float, *, again: bool = False) -> Launch:
        """Return the parallel kernel in one of its roles; `again`: an earlier one has computed the same scores."""
        p, steps = self.problem, self.steps
        L = min(self.chunk_size, p.seq_len)
        own = self._tiles(d_in, d_out)
        rows, cols, outer = min(own.rows, L), min(own.cols, L), min(own.outer, d_out)
        blocks = math.ceil(d_out / outer)
        needed, computed = L / 2, (L + rows) / 2  # steps of the other side that a row meets, on average
        scores, first = 2 * d_in, 0 if again else 1
        loads = math.ceil(d_in / own.inner) + 1  # of a tile of y by blocks of the inner dimension, and of z
        waits = loads  # of a tile, for fetches
        if own.pipelined:  # by parts of x in a loop of their own, which starts anew for every tile
            waits = 0 if own.inner >= d_in else 1
        # Weights, scale, conversion, exp's row sum; exponentials on the diagonal only.
        per_score = 4 + (self.gate == "exp") + EXP_LANES * rows / computed
        return Launch(
            name,
            programs=steps / rows * blocks,
            resident=own.resident,
            flops={
                "between chunks": steps * 2 * d_in * d_out,
                "within chunks": steps * needed * (scores * first + 2 * d_out),
                "causal waste": steps * (computed - needed) * (scores * first + 2 * d_out),
                "recomputation": steps * computed * scores * (blocks - first),
            },
            moved={"inputs and outputs": steps * (step_bytes + TILE_GATES), "states": self.states},
            vector_ops=steps * blocks * (computed * per_score + 2 * d_in + 2 * outer),
            trips=ENDS + math.ceil(d_in / NARROW) + computed / cols * waits,
        )

    def _tiles(self, d_in: int, d_out: int) -> Tiles:
        p, size = self.problem, min(self.chunk_size, _power_of_two(self.problem.seq_len))
        return self.tiles or Tiles.of(d_in, d_out, size, p.element_bytes, self.capability)


def _block(d: int, limit: int) -> int:
    """Return the block for a dimension d: all of it up to `limit`, else the largest that pads d by at most a third."""
    whole = _power_of_two(d)
    if whole <= limit:
        return whole
    block = limit
    while block > 64 and math.ceil(d / block) * block * 3 > 4 * d:
        block //= 2
    return block


def _power_of_two(d: int) -> int:
    return max(16, 2 ** math.ceil(math.log2(d)))
