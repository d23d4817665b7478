"""The chunk size L of our kernels by the models that know them, and which of these kernels runs on a GPU.

The records are those of `tflabench optimal-chunk --json`. The paper's own optimum is `tflabench.theory.chunk_size`.
"""

from __future__ import annotations

from typing import Any

from tflabench.implementations import registry
from tflabench.implementations.adapter import Implementation
from tflabench.problem import Problem
from tflabench.theory import fused
from tflabench.theory.hardware import Gpu
from tflabench.theory.launches import Algorithm, Modelled
from tflabench.theory.prediction import predict


def optima(problem: Problem, gate: str, gpu: Gpu, tile: int, usual: int) -> dict[str, Any]:
    """Return the L of least time of our kernels: "calibrated", "fused", and of the "kernel" that runs.

    That one is what implementation="auto" of our operations runs on the GPU. Its name and L are None where none runs,
    and "refused" says why the last one does not.

    Args:
        tile: which L is a multiple of.
        usual: the L where neither a model nor the kernel has one.
    """
    kernels = registry.tried_by_auto(gate)
    by_algorithm = {impl.modelled.algorithm: impl for impl in kernels if impl.modelled}
    models: dict[Algorithm, dict[str, Any] | None] = {
        "tfla": _triton_chunk(by_algorithm.get("tfla"), problem, gpu, tile),
        "fused": _fused_chunk(by_algorithm.get("fused"), problem, gate, gpu),
    }
    refusal = "there are none of this gate"
    running = None
    for impl in kernels:
        model = models.get(impl.modelled.algorithm) if impl.modelled else None
        default = impl.usual_chunk_size(problem) if impl.usual_chunk_size else usual
        size = model["chunk_size"] if model else default
        refusal = impl.refusal_on(problem.with_(chunk_size=size), gpu)
        if refusal is None:
            running = impl.name, size
            break
    name, size = running or (None, None)
    kernel = {"implementation": name, "chunk_size": size, "refused": refusal}
    return {"kernel": kernel, "calibrated": models["tfla"], "fused": models["fused"]}


def _triton_chunk(impl: Implementation | None, problem: Problem, gpu: Gpu, tile: int) -> dict[str, Any] | None:
    """Return the L of least time of Triton kernels by the calibrated model; None where that does not apply.

    L is a power of two from a tile to T.
    """
    if impl is None:
        return None
    sizes = [2**n for n in range(tile.bit_length() - 1, problem.seq_len.bit_length())]
    at = {size: problem.with_(chunk_size=size) for size in sizes}
    predicted = {size: predict(impl.modelled, impl.count(at[size]), at[size], gpu) for size in sizes}
    best = min(sizes, key=lambda size: predicted[size].seconds)
    if predicted[best].source != "calibrated model":
        return None
    by_term = {term: seconds * 1e3 for term, seconds in predicted[best].terms.items()}
    return {"chunk_size": best, "predicted_ms": sum(by_term.values()), "ms_by_term": by_term}


def _fused_chunk(impl: Implementation | None, problem: Problem, gate: str, gpu: Gpu) -> dict[str, Any] | None:
    """Return the L of least time of fused kernels and what it takes; None where they do not run."""
    if impl is None or impl.refusal_on(problem, gpu):
        return None
    kernel = Modelled("fused", gate)
    best = fused.best_chunk_size(problem, kernel, gpu)
    launched = fused.launched(problem, kernel, best)
    return {
        "chunk_size": best,
        "segments": fused.segments(problem, best),
        "predicted_ms_lower": fused.runtime(problem.with_(chunk_size=best), kernel, gpu) * 1e3,
        "waves": fused.waves(problem, kernel, best, gpu),
        "on_chip_state_bytes": {walk.name: walk.on_chip_bytes for walk in launched},
    }
