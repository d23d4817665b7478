"""The chunk size L: the optima of the paper (eqs. 111 and 121), generalised, and the trade-off against memory.

Per chunk, FLOPs are a2 L^2 + a1 L + a0 and bytes are c1 L + c0 (`cost.Polynomial`); a sequence has T/L chunks, so its
FLOPs are T (a2 L + a1 + a0/L), least at sqrt(a0/a2), and its time without overlap is least at
sqrt((a0 + I_acc c0)/a2). Both hold for either gate, count, state precision and pass; with the published count of sig's
forward they are eqs. (111) and (121).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tflabench.problem import InputError, Problem, size_in_words
from tflabench.theory import cost
from tflabench.theory.cost import GATES, Cost, Counts, Gate, Polynomial
from tflabench.theory.hardware import Ceilings
from tflabench.theory.roofline import TimeBounds, time_bounds

TILE = 64  # steps, which L is a multiple of
Number = Any  # int, float or numpy array


@dataclass(frozen=True)
class Tradeoff:
    """The cost of a chunkwise mLSTM or GLA as a function of L, with all else fixed.

    Attributes:
        problem: its chunk_size is ignored, its pass_ is "fw" or "fwbw"; gate pre-activations are as wide as q, k and v.
        causal_factor, counts: as in `cost.flop_polynomial`.
    """

    problem: Problem
    gate: Gate
    ceilings: Ceilings
    causal_factor: float = 0.5
    state_bytes: float = 4
    counts: Counts = "published"

    def __post_init__(self) -> None:
        if self.problem.pass_ == "decode":
            raise InputError("pass is 'decode': one step has no chunks; it must be fw or fwbw")

    @cached_property
    def flops_per_chunk(self) -> Polynomial:
        """Return the FLOPs of a head and chunk as a polynomial in L."""
        p = self.problem
        shape = ("chunkwise", self.gate, p.d_qk, p.d_hv)
        return cost.flop_polynomial(*shape, causal_factor=self.causal_factor, pass_=p.pass_, counts=self.counts)

    @cached_property
    def bytes_per_chunk(self) -> Polynomial:
        """Return the bytes of a head and chunk as a polynomial in L."""
        p = self.problem
        widths = {"element_bytes": p.element_bytes, "gate_bytes": p.element_bytes, "state_bytes": self.state_bytes}
        return cost.byte_polynomial("chunkwise", self.gate, p.d_qk, p.d_hv, pass_=p.pass_, **widths)

    def cost(self, chunk_size: Number) -> Cost:
        """Return the FLOPs and bytes over batch, heads and T/L chunks, T/L taken as a real number as in the paper."""
        p = self.problem
        chunks = p.batch * p.heads * p.seq_len / np.asarray(chunk_size, dtype=float)
        return Cost(chunks * self.flops_per_chunk(chunk_size), chunks * self.bytes_per_chunk(chunk_size))

    def time(self, chunk_size: Number) -> TimeBounds:
        """Return the theoretical runtime in seconds."""
        return time_bounds(self.cost(chunk_size), self.ceilings)

    @property
    def flop_optimal(self) -> float:
        """Return the L with the fewest FLOPs, ignoring T."""
        return math.sqrt(self.flops_per_chunk.constant / self.flops_per_chunk.square)

    @property
    def runtime_optimal(self) -> float:
        """Return the L of the least upper time, in which nothing overlaps (the paper's assumption), ignoring T."""
        constant = self.flops_per_chunk.constant + self.ceilings.intensity * self.bytes_per_chunk.constant
        return math.sqrt(constant / self.flops_per_chunk.square)

    @property
    def overlapped_optimal(self) -> float:
        """Return the L of the least lower time (all overlaps): where I_algo reaches I_acc, or else the FLOP optimum."""
        flops, moved, intensity = self.flops_per_chunk, self.bytes_per_chunk, self.ceilings.intensity
        a, b = flops.square, flops.linear - intensity * moved.linear
        c = flops.constant - intensity * moved.constant
        # FLOPs - I_acc bytes = a L^2 + b L + c; without a positive root the FLOPs rule at every L.
        discriminant = b * b - 4 * a * c
        crossing = (-b + math.sqrt(discriminant)) / (2 * a) if discriminant >= 0 else 0.0
        return max(crossing, self.flop_optimal)

    def within(self, tolerance: float = 0.05) -> tuple[int, int]:
        """Return the L of [1, T] whose upper time is within `tolerance` of the least: a closed interval of ints."""
        seq_len, flops, moved = self.problem.seq_len, self.flops_per_chunk, self.bytes_per_chunk
        # Time per step, times alpha: a L + b + c/L.
        a = flops.square
        b = flops.linear + self.ceilings.intensity * moved.linear
        c = flops.constant + self.ceilings.intensity * moved.constant
        best = min(max(self.runtime_optimal, 1.0), float(seq_len))
        excess = b - (1 + tolerance) * (a * best + b + c / best)
        root = math.sqrt(excess * excess - 4 * a * c)
        low, high = (-excess - root) / (2 * a), (-excess + root) / (2 * a)
        return max(1, math.ceil(low)), min(seq_len, math.floor(high))

    def memory(self, chunk_size: Number) -> Number:
        """Return the peak bytes of a call: inputs, output, a state a chunk, and with "fwbw" their gradients."""
        p = self.problem
        gates = GATES[self.gate].gate_elements(p.d_qk)
        per_step = (2 * (p.d_qk + p.d_hv) + gates) * p.element_bytes  # q, k, v, h
        states = -(-p.seq_len // chunk_size) * cost.state_elements(self.gate, p.d_qk, p.d_hv) * self.state_bytes
        passes = 2 if p.pass_ == "fwbw" else 1
        normalizer = 2 * p.seq_len * self.state_bytes if GATES[self.gate].normalized else 0
        return p.batch * p.heads * (passes * (per_step * p.seq_len + states) + normalizer)

    def recommend(self, memory_budget: float | None = None) -> int:
        """Return the L of least upper time among `chunk_sizes` that fit a budget in bytes; InputError if none fits."""
        sizes = chunk_sizes(self.problem.seq_len)
        fitting = [size for size in sizes if self.memory(size) <= (memory_budget or math.inf)]
        if not fitting:
            least = math.ceil(self.memory(sizes[-1]) / 2**20)
            raise InputError(
                f"memory_budget is {size_in_words(memory_budget or math.inf)}: it must be at least {least} MiB, "
                f"what chunk size {sizes[-1]} needs"
            )
        return min(fitting, key=lambda size: self.time(size).upper)


def chunk_sizes(seq_len: int) -> list[int]:
    """Return the powers of two up to T, from TILE on, or from the largest one where T is shorter."""
    return [2**n for n in range(min(TILE, seq_len).bit_length() - 1, seq_len.bit_length())]
