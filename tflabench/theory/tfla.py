"""The GPU kernels of the paper's two-level algorithm (TFLA, Table 1) as launches: chunk states in sequence, then tiles.

    forward     gates | C: states of chunks | H
    backward    C again | dC | dQ | dK | dV | gate gradients

H, dQ, dK and dV are one kernel in four roles (scalar/tfla/outputs.py): a program makes a tile of `rows` steps and
`outer` columns of its output, out = sum_c W (x . y_c) z_c + x S, over the tiles of `cols` steps of its chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from tflabench.kernels.common.sizes import USUAL, Device
from tflabench.kernels.scalar.plan.tfla import Plan, Tiles, planned
from tflabench.problem import Problem
from tflabench.theory.constants import (
    ENDS,
    EXP_LANES,
    NXAI_INNER,
    NXAI_OUTER,
    NXAI_RESIDENT,
    NXAI_STEPS,
    NXAI_WALK_STATE,
    NXAI_WALK_STEPS,
    TILE_GATES,
)
from tflabench.theory.cost import GATES, Gate, state_elements
from tflabench.theory.launches import Launch, Modelled, sizes

# mlstm_kernels' xl_chunk kernels load tile by tile without asynchronous copies (paper, App. G.1).
UNPIPELINED = Tiles(NXAI_STEPS, NXAI_STEPS, NXAI_INNER, NXAI_OUTER, warps=4, stages=1, narrow=NXAI_INNER)


def launches(
    problem: Problem, kernel: Modelled, chunk_size: int, state_bytes: float, device: Device = USUAL
) -> list[Launch]:
    """Return the kernels of one call, in order.

    Args:
        problem: pass_ "fw" or "fwbw".
        state_bytes: of an element of the chunk states in memory.
        device: for which the kernels are planned.
    """
    p, gate, group = problem, kernel.gate, kernel.group(problem)
    tiles = UNPIPELINED if kernel.algorithm == "unpipelined" else None
    call = _Call(p, gate, chunk_size, state_bytes, tiles, group, device)
    qk, hv = p.d_qk * p.element_bytes, p.d_hv * p.element_bytes
    q_or_k = qk / group
    d_of_head = qk / (1 if tiles else call.plan.dq.members)
    exp = 4 if GATES[gate].normalized else 0  # one float32 a step: m, then 1 / denominator
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
        *[call.small("gate gradients", 24 + 4 * p.element_bytes)] * kernel.gate_gradients,
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
    device: Device

    @cached_property
    def plan(self) -> Plan:
        """Return the plan of the bundled kernels."""
        p = self.problem
        return planned(sizes(p, self.group), self.chunk_size, p.element_bytes, self.device)

    @property
    def heads(self) -> int:
        return self.problem.batch * self.problem.heads

    @property
    def steps(self) -> int:
        return self.heads * self.problem.seq_len

    @property
    def states(self) -> float:
        """Return the bytes of all chunk states."""
        p, chunks = self.problem, math.ceil(self.problem.seq_len / self.chunk_size)
        return self.heads * chunks * state_elements(self.gate, p.d_qk, p.d_hv) * self.state_bytes

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
            blocks, segments = math.ceil(p.d_qk / u) * math.ceil(p.d_hv / v), 1
            resident, waits = NXAI_RESIDENT, math.ceil(p.seq_len / rows)
        else:
            tiles, blocks, _, _, segments = self.plan.forward_states
            rows, u, v = tiles.rows, min(tiles.u, p.d_qk), min(tiles.v, p.d_hv)
            resident = max(1, self.device.shared_memory // (tiles.stages * rows * (u + v) * p.element_bytes))
            waits = 0
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

        walks = [launch(name, "recomputation" if again else "between chunks", self.states * (1 + reads_states))]
        return walks if segments == 1 else [*walks, launch(f"{name}, segments", "recomputation", ends)]

    def parallel(self, name: str, d_in: int, d_out: int, step_bytes: float, *, again: bool = False) -> Launch:
        """Return the parallel kernel in one of its roles; `again`: an earlier one has computed the same scores."""
        p, steps = self.problem, self.steps
        L = min(self.chunk_size, p.seq_len)
        tiles: Tiles = self.tiles or getattr(self.plan, name.lower()).tiles
        rows, cols, outer = min(tiles.rows, L), min(tiles.cols, L), min(tiles.outer, d_out)
        blocks = math.ceil(d_out / outer)
        needed, computed = L / 2, (L + rows) / 2  # steps of the other side that a row meets, on average
        scores, first = 2 * d_in, 0 if again else 1
        loads = math.ceil(d_in / tiles.inner) + 1  # of a tile of y by blocks of the inner dimension, and of z
        resident, waits = NXAI_RESIDENT, loads  # of a tile, for fetches
        if not self.tiles:  # fetched ahead, by parts of x in a loop of their own, which starts anew for every tile
            resident = tiles.resident(p.element_bytes, self.device.architecture)
            waits = 0 if tiles.inner >= d_in else 1
        # Weights, scale, conversion, exp's row sum; exponentials on the diagonal only.
        per_score = 4 + GATES[self.gate].normalized + EXP_LANES * rows / computed
        return Launch(
            name,
            programs=steps / rows * blocks,
            resident=resident,
            flops={
                "between chunks": steps * 2 * d_in * d_out,
                "within chunks": steps * needed * (scores * first + 2 * d_out),
                "causal waste": steps * (computed - needed) * (scores * first + 2 * d_out),
                "recomputation": steps * computed * scores * (blocks - first),
            },
            moved={"inputs and outputs": steps * (step_bytes + TILE_GATES), "states": self.states},
            vector_ops=steps * blocks * (computed * per_score + 2 * d_in + 2 * outer),
            trips=ENDS + math.ceil(d_in / tiles.narrow) + computed / cols * waits,
        )
