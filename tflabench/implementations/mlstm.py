"""Gates, inputs and oracle that every implementation of the mLSTM shares: ours, those of libraries, and plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Literal

from tflabench.implementations.adapter import Case, Implementation, attention_inputs
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG, Gate
from tflabench.problem import DeviceKind, InputError, Problem

if TYPE_CHECKING:
    import torch
    from torch import Tensor

GateName = Literal["exp", "sig"]

GATES: dict[GateName, Gate] = {"exp": MLSTM_EXP, "sig": MLSTM_SIG}
ORACLE_CHUNK_SIZE = 64


def sequence_inputs(problem: Problem, device: torch.device) -> dict[str, Tensor]:
    """Draw q, k (B, H, T, d_qk), v (B, H, T, d_hv) and gate pre-activations i, f (B, H, T) of `problem.dtype`."""
    return attention_inputs(problem, device, "bhtd", i=(), f=())


def sequence_oracle(gate: Gate, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return h (B, H, T, d_hv) by the chunkwise form in the dtype of the inputs, of whole or sliced inputs."""
    from tflabench.kernels.scalar import reference

    q, k, v, f, i = (inputs[name] for name in "qkvfi")
    return reference.chunkwise(q, k, v, f, i, gate=gate, chunk_size=ORACLE_CHUNK_SIZE)[0]


def mlstm_kernel(
    name: str,
    compute: Callable[..., Tensor],
    *,
    gate: GateName,
    title: str = "",
    chunked: bool = False,
    backward: bool = True,
    device: DeviceKind | None = None,
    package: str = "torch",
) -> Implementation:
    """Return a kernel of the mLSTM as the bench measures it, made from the function that runs it.

    The bench draws the inputs, compares h and every gradient with float64, and times the function. What else an
    Implementation says, such as `cost` or `compiles`, `dataclasses.replace` adds.

    Args:
        name: what `--impl` calls it: letters, digits, "_", "-" and ".".
        compute: (q, k, v, i, f) -> h. q and k are (B, H, T, d_qk), v and h (B, H, T, d_hv), the pre-activations i and f
            of input and forget gate (B, H, T); all are of the dtype and on the device asked for. The function scales q
            by 1/sqrt(d_qk). Autograd differentiates it.
        gate: "exp" (exponential input gate, normaliser) or "sig" (sigmoid input gate).
        title: as legends write it; the name where it is left out.
        chunked: whether `compute` takes the keyword `chunk_size`, an int, or None to choose one.
        backward: whether it has gradients; without them only forward is measured.
        device: the one that it runs on; None for both.
        package: distribution whose version goes into rows.

    Raises:
        InputError: an unknown gate.
    """
    if gate not in GATES:
        raise InputError(f"gate of {name} is {gate!r}: it must be one of {', '.join(GATES)}")

    def build(problem: Problem, device: torch.device) -> Case:
        inputs = sequence_inputs(problem, device)
        options = {"chunk_size": problem.chunk_size} if chunked else {}
        run = partial(compute, *(inputs[name] for name in "qkvif"), **options)
        return Case(inputs, run, partial(sequence_oracle, GATES[gate]), linear="v")

    def refuses(problem: Problem, kind: str) -> str | None:
        if problem.pass_ == "decode":
            return "computes sequences: the pass must be fw or fwbw"
        if problem.pass_ == "fwbw" and not backward:
            return "has no backward: the pass must be fw"
        return None if device in (None, kind) else f"runs on {device}, not on {kind}"

    return Implementation(name, "mlstm", title or name, build, refuses, gate=gate, chunked=chunked, package=package)
