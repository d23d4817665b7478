"""Which kernel at which chunk size and batch: predicted time and memory of every choice, and those worth making.

Time is the calibrated model's (`tflabench.theory.calibrated`) where it knows kernel and GPU, else the paper's upper
bound (nothing overlaps, eq. 116). Memory counts tensors: inputs, output, states, what a forward keeps for its backward.

`kernel_of_ours` is which of our kernels runs on a GPU, and with which chunk size L. The paper's own optimum is
`tflabench.theory.chunk_size`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from tflabench.implementations import registry
from tflabench.implementations.adapter import Implementation
from tflabench.kernels.scalar.plan import hopper
from tflabench.kernels.scalar.plan.hopper_segments import Segments
from tflabench.problem import InputError, Problem, size_in_words
from tflabench.theory import cost, fused, fused_walks, held_out, launches
from tflabench.theory.calibrated import Source, predict
from tflabench.theory.chunk_size import TILE, chunk_sizes
from tflabench.theory.hardware import Gpu
from tflabench.theory.held_out import ModelError
from tflabench.theory.launches import Chip, Modelled
from tflabench.theory.roofline import TimeBounds

FLOAT32_BYTES = 4
WORTH_MEMORY = 0.01  # part of the time of a step, for which more memory is worth naming


@dataclass(frozen=True)
class Demand:
    """The user's problem, and the memory and tokens that it must fit.

    Attributes:
        problem: of one call; its chunk size is ignored.
        layers: of the model that run this kernel, one after the other.
        tokens: of a training step, over all its calls; None: the one call of `problem`.
        memory_bytes: that these layers may take; None: no limit.
    """

    problem: Problem
    layers: int = 1
    tokens: int | None = None
    memory_bytes: float | None = None

    def __post_init__(self) -> None:
        p = self.problem
        if p.pass_ == "decode":
            raise InputError("pass is 'decode': one step has no chunks to choose; it must be fw or fwbw")
        if self.layers < 1:
            raise InputError(f"layers is {self.layers}: it must be at least 1")
        if self.tokens is not None and (self.tokens < p.seq_len or self.tokens % p.seq_len):
            raise InputError(f"tokens is {self.tokens}: it must be a positive multiple of seq_len, {p.seq_len}")


class CallMemory(NamedTuple):
    """Bytes of one call: `peak` while it runs, `kept` from its forward to its backward."""

    peak: float
    kept: float


@dataclass(frozen=True)
class Candidate:
    """A kernel, a chunk size and a batch, and what they cost.

    Attributes:
        problem: with chunk size and batch.
        call_s: of one call, by `source`; `bounds`: of the published model.
        calls: of a step, in one layer.
        step_s: of all calls of a step, in all layers.
        memory_bytes: of all layers.
        largest_batch: that fits the memory allowed; None without a limit.
    """

    kernel: Implementation
    problem: Problem
    call_s: float
    source: Source
    bounds: TimeBounds
    calls: int
    step_s: float
    memory_bytes: float
    largest_batch: int | None

    @property
    def fits(self) -> bool:
        """Return whether the memory allowed is enough."""
        return self.largest_batch is None or self.problem.batch <= self.largest_batch

    @property
    def outside(self) -> str | None:
        """Return how far the time is from the bounds; None where it is between them."""
        lower, upper = map(float, self.bounds)
        if self.call_s > upper:
            return f"{self.call_s / upper - 1:.0%} above its upper bound, which takes every tensor and product once"
        if self.call_s < lower:
            return f"{1 - self.call_s / lower:.0%} below its lower bound, which counts more than its kernels do"
        return None


def choices(demand: Demand, kernel: Implementation, chunk_sizes: Iterable[int | None], gpu: Gpu) -> list[Candidate]:
    """Return every batch at every chunk size of a kernel, fitting or not; size None where it takes none."""
    candidates, sequences, batches = [], demand.problem.batch, [demand.problem.batch]
    if demand.tokens is not None:  # those that make a step of few calls
        sequences = demand.tokens // demand.problem.seq_len
        batches = sorted({math.ceil(sequences / calls) for calls in range(1, sequences + 1)})
    for size in chunk_sizes:
        for batch in batches:
            problem = demand.problem.with_(chunk_size=size, batch=batch)
            predicted = predict(kernel.modelled, kernel.count(problem), problem, gpu)
            peak, kept = memory(kernel, problem)
            needed = demand.layers * kept + peak - kept  # each layer keeps what its backward needs, one works at a time
            allowed, calls = demand.memory_bytes, math.ceil(sequences / batch)
            candidates.append(
                Candidate(
                    kernel=kernel,
                    problem=problem,
                    call_s=predicted.seconds,
                    source=predicted.source,
                    bounds=predicted.bounds,
                    calls=calls,
                    step_s=demand.layers * calls * predicted.seconds,
                    memory_bytes=needed,
                    largest_batch=None if allowed is None else math.floor(allowed * batch / needed),
                )
            )
    return candidates


def rank(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the best fitting batch of every kernel and chunk size, by step time; then those that fit at no batch.

    Bounds come after the times of the calibrated model: real times exceed them, by how much is not known.
    """
    best: dict[tuple[str, int | None], Candidate] = {}
    for choice in candidates:
        key = (choice.kernel.name, choice.problem.chunk_size)
        if key not in best or _order(choice) < _order(best[key]):
            best[key] = choice
    return sorted(best.values(), key=_order)


def frontier(candidates: Sequence[Candidate], gain: float = 0.0) -> list[Candidate]:
    """Return the choices that no other beats in both memory and step time, least memory first.

    Each is faster than the one before it by more than the part `gain`.
    """
    kept: list[Candidate] = []
    for choice in sorted(candidates, key=lambda c: (c.memory_bytes, c.step_s)):
        if not kept or choice.step_s < (1 - gain) * kept[-1].step_s:
            kept.append(choice)
    return kept


def memory(kernel: Implementation, problem: Problem) -> CallMemory:
    """Return the memory of one call: tensors that it is given, makes and keeps."""
    p = problem
    heads = p.batch * p.heads
    steps = heads * p.seq_len
    normalized = cost.GATES[kernel.counted_as].normalized
    algorithm = kernel.modelled and kernel.modelled.algorithm
    group = kernel.modelled.group(p) if kernel.modelled else p.group
    gates = cost.GATES[kernel.counted_as].gate_elements(p.d_qk)
    given = steps * (2 * p.d_qk / group + p.d_hv + gates) * p.element_bytes  # q, k, v and gates
    made = steps * p.d_hv * p.element_bytes
    size = min(p.chunk_size or p.seq_len, p.seq_len)
    if kernel.modelled and algorithm == "fused":
        forward, backward = fused.planned(p, kernel.modelled, size)
        shapes = hopper.saved(launches.sizes(p, group), size, stabilised=normalized)
        saved = sum(map(math.prod, shapes)) * FLOAT32_BYTES
        works = backward.workspace_bytes(p.element_bytes) if backward else forward.workspace_bytes
    else:
        elements = cost.state_elements(kernel.counted_as, p.d_qk, p.d_hv)
        width = FLOAT32_BYTES if algorithm == "unpipelined" else p.element_bytes
        works = heads * math.ceil(p.seq_len / size) * elements * width * (2 if p.pass_ == "fwbw" else 1)
        saved = steps * FLOAT32_BYTES if normalized else 0  # 1 / denominator
        if kernel.workspace_bytes:
            works += kernel.workspace_bytes(p)
    if p.pass_ == "fw":
        return CallMemory(given + made + works + saved, 0.0)
    return CallMemory(2 * (given + made) + works + saved, given + made + saved)


def _order(choice: Candidate) -> tuple[bool, bool, float, float]:
    return (not choice.fits, choice.source == "published bound", choice.step_s, choice.memory_bytes)


# --- Choices from the registry


@dataclass(frozen=True)
class Refused:
    """An implementation that was left out, at one chunk size or (None) at every one, and why."""

    implementation: str
    chunk_size: int | None
    reason: str


@dataclass(frozen=True)
class Advice:
    """Choices in the order of their ranks, all that were considered, and why other kernels were not."""

    demand: Demand
    gpu: Gpu
    ranked: list[Candidate]
    considered: list[Candidate]
    refused: list[Refused]

    @property
    def frontier(self) -> list[Candidate]:
        """Return the choices for which more memory buys time, over all that fit and whose times are like the best's."""
        source = self.ranked[0].source
        alike = [choice for choice in self.considered if choice.fits and choice.source == source]
        return frontier(alike, WORTH_MEMORY)

    def require_fit(self) -> None:
        """Raise InputError where no choice fits the memory, with what one sequence takes at least."""
        if self.ranked[0].fits:
            return
        least = min(choice.memory_bytes / choice.problem.batch for choice in self.ranked)
        raise InputError(
            f"nothing fits {size_in_words(self.demand.memory_bytes or 0)}: one sequence takes at least "
            f"{size_in_words(least)}; give a smaller batch, shorter sequences, fewer layers or more memory"
        )

    def row(self, choice: Candidate) -> dict[str, Any]:
        """Return a choice in plain values."""
        error = self.error(choice)
        return {
            "implementation": choice.kernel.name,
            "gate": choice.kernel.computes,
            "chunk_size": choice.problem.chunk_size,
            "batch": choice.problem.batch,
            "call_ms": choice.call_s * 1e3,
            "source": choice.source,
            "held_out_error": asdict(error) if error else None,
            "model_ms_lower": float(choice.bounds.lower) * 1e3,
            "model_ms_upper": float(choice.bounds.upper) * 1e3,
            "outside_bounds": choice.outside,
            "calls": choice.calls,
            "step_ms": choice.step_s * 1e3,
            "memory_bytes": choice.memory_bytes,
            "largest_batch": choice.largest_batch,
            "fits": choice.fits,
        }

    def error(self, choice: Candidate) -> ModelError | None:
        """Return the error on held-out rows of the model behind a choice's time; None where there is none."""
        modelled = choice.kernel.modelled
        if choice.source != "calibrated model" or modelled is None:
            return None
        return held_out.held_out_error(modelled.algorithm, self.gpu)


def computed() -> tuple[str, ...]:
    """Return what advice may be asked for: gates of the mLSTM, and operations of other families."""
    chunkwise = (impl for impl in registry.ours_and_plugged() if impl.chunked)
    return tuple(dict.fromkeys(impl.computes for impl in chunkwise if impl.computes))


def advice(demand: Demand, gpu: Gpu, gates: Sequence[str], pattern: str | None = None) -> Advice:
    """Rank what theory says of every kernel that computes one of `gates` and runs on a GPU.

    Args:
        gates: of `computed()`.
        pattern: shell pattern of implementations, of libraries too; default: the bundled kernels, and those plugged in.

    Raises:
        InputError: no implementation computes one of `gates`, or no kernel can run, with the first reason.
    """
    if wrong := [gate for gate in gates if gate not in computed()]:
        raise InputError(f"gate is {wrong[0]!r}: it must be any of {', '.join(computed())}, comma-separated")
    candidates: list[Candidate] = []
    refused: list[Refused] = []
    plugged = registry.plugged()
    for impl in registry.select(pattern) if pattern else registry.ours_and_plugged():
        if impl.computes not in gates or not (impl.chunked or impl in plugged):
            continue
        if pattern is None and impl not in plugged and impl.package == "torch":
            continue
        sizes, left_out = _chunk_sizes(impl, demand, gpu)
        refused += left_out
        candidates += choices(demand, impl, sizes, gpu)
    if not candidates:
        why = f" on {gpu.name}: {refused[0].implementation} {refused[0].reason}" if refused else ""
        raise InputError(f"no kernel can run this{why}: change the sizes, --gate, --impl or --gpu")
    return Advice(demand, gpu, rank(candidates), candidates, refused)


def _chunk_sizes(impl: Implementation, demand: Demand, gpu: Gpu) -> tuple[list[int | None], list[Refused]]:
    """Return chunk sizes that an implementation takes, powers of two and the whole sequence; the others with reasons.

    It is None alone for an implementation that takes no chunk size. A reason that holds at every size is named once.
    """
    last = demand.problem.seq_len
    sizes: list[int | None] = [*chunk_sizes(last)]
    if last > TILE and last not in sizes:
        sizes.append(-(-last // TILE) * TILE)
    if not impl.chunked:
        sizes = [None]
    reasons: dict[int | None, str] = {}
    for size in sizes:
        if reason := impl.refusal_on(demand.problem.with_(chunk_size=size), gpu):
            reasons[size] = reason
    kept = [size for size in sizes if size not in reasons]
    if not kept and len(set(reasons.values())) == 1:
        return [], [Refused(impl.name, None, reasons[sizes[0]])]
    return kept, [Refused(impl.name, size, reason) for size, reason in reasons.items()]


def kernel_of_ours(problem: Problem, gate: str, gpu: Gpu, usual: int) -> dict[str, Any]:
    """Return what implementation="auto" of our operations runs on a GPU, the L that it takes, and how many segments.

    Segments are of the fused kernels, which need no L of their own. Name and L are None where no kernel runs, and
    "refused" says why the last one does not.

    Args:
        usual: the L where neither a model nor the kernel has one.
    """
    refusal = "there are none of this gate"
    for impl in registry.tried_by_auto(gate):
        size, segments = usual, None
        if impl.usual_chunk_size:
            size = impl.usual_chunk_size(problem)
        if impl.modelled and impl.modelled.algorithm == "tfla":  # its least time, where the calibrated model has one
            at = {L: problem.with_(chunk_size=L) for L in chunk_sizes(problem.seq_len)}
            predicted = {L: predict(impl.modelled, impl.count(of), of, gpu) for L, of in at.items()}
            best = min(at, key=lambda L: predicted[L].seconds)
            size = best if predicted[best].source == "calibrated model" else size
        elif not impl.usual_chunk_size and not impl.refusal_on(problem, gpu):
            if impl.modelled:
                size = fused.chosen_chunk_size(problem, Modelled("fused", gate), gpu)
            else:
                size = fused_walks.chosen_chunk_size(problem, gate, Chip.of(gpu).device)
            segments = Segments.of(problem.seq_len, size).count
        refusal = impl.refusal_on(problem.with_(chunk_size=size), gpu)
        if refusal is None:
            return {"implementation": impl.name, "chunk_size": size, "segments": segments, "refused": None}
    return {"implementation": None, "chunk_size": None, "segments": None, "refused": refusal}
