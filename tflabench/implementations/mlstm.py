"""Gates, inputs and oracle that every implementation of the mLSTM shares: ours and those of libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from tflabench.implementations.adapter import draw
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG, Gate
from tflabench.problem import Problem

if TYPE_CHECKING:
    import torch
    from torch import Tensor

GateName = Literal["exp", "sig"]

GATES: dict[GateName, Gate] = {"exp": MLSTM_EXP, "sig": MLSTM_SIG}
ORACLE_CHUNK_SIZE = 64
OPEN = 3.0  # what is added to pre-activations of forget gates: mostly open, as trained models have them


def sequence_inputs(problem: Problem, device: torch.device) -> dict[str, Tensor]:
    """Draw q, k (B, H, T, d_qk), v (B, H, T, d_hv) and gate pre-activations i, f (B, H, T) of `problem.dtype`."""
    tokens = (problem.batch, problem.heads, problem.seq_len)
    shapes = {"q": (*tokens, problem.d_qk), "k": (*tokens, problem.d_qk), "v": (*tokens, problem.d_hv)}
    return draw(problem, device, {**shapes, "i": tokens, "f": tokens}, {"f": OPEN})


def sequence_oracle(gate: Gate, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return h (B, H, T, d_hv) by the chunkwise form in the dtype of the inputs, of whole or sliced inputs."""
    from tflabench.kernels import reference

    q, k, v, f, i = (inputs[name] for name in "qkvfi")
    return reference.chunkwise(q, k, v, f, i, gate=gate, chunk_size=ORACLE_CHUNK_SIZE)[0]
