"""The bundled kernels as the bench sees them: every form and kernel of mLSTMexp and mLSTMsig, made from one table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from tflabench.adapter import Case, Formulation, Implementation, Unsupported, draw
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG, Gate, State
from tflabench.problem import Problem

if TYPE_CHECKING:
    import torch
    from torch import Tensor

GateName = Literal["exp", "sig"]

GATES: dict[GateName, Gate] = {"exp": MLSTM_EXP, "sig": MLSTM_SIG}
CPU_CHUNK_SIZE = 64  # of the reference where the problem leaves it open: fastest on CPUs up to head dimensions of 256
ORACLE_CHUNK_SIZE = 64
ONE_LEVEL_CHUNK_SIZES = (16, 32, 64, 128)  # the tiles of the parallel kernels

_INPUT_SHIFT = {"f": 3.0}  # forget gates mostly open, as trained models have them


def sequence_inputs(problem: Problem, device: torch.device) -> dict[str, Tensor]:
    """q, k (B, H, T, d_qk), v (B, H, T, d_hv) and gate pre-activations i, f (B, H, T) of `problem.dtype`."""
    tokens = (problem.batch, problem.heads, problem.seq_len)
    shapes = {"q": (*tokens, problem.d_qk), "k": (*tokens, problem.d_qk), "v": (*tokens, problem.d_hv)}
    return draw(problem, device, {**shapes, "i": tokens, "f": tokens}, _INPUT_SHIFT)


def sequence_oracle(gate: Gate, inputs: Mapping[str, Tensor]) -> Tensor:
    """h (B, H, T, d_hv) by the chunkwise form in the dtype of the inputs, of whole or sliced inputs."""
    from tflabench.kernels import reference

    q, k, v, f, i = (inputs[name] for name in "qkvfi")
    return reference.chunkwise(q, k, v, f, i, gate=gate, chunk_size=ORACLE_CHUNK_SIZE)[0]


def build_reference(form: str, gate: Gate, problem: Problem, device: torch.device) -> Case:
    from tflabench.kernels import reference

    inputs = sequence_inputs(problem, device)
    q, k, v, f, i = (inputs[name] for name in "qkvfi")
    options: dict[str, int] = {}
    if form == "chunkwise":
        options["chunk_size"] = min(problem.chunk_size or CPU_CHUNK_SIZE, problem.seq_len)
    compute = getattr(reference, form)
    return Case(
        inputs=inputs,
        forward=lambda: compute(q, k, v, f, i, gate=gate, **options)[0],
        oracle=partial(sequence_oracle, gate),
        details={"kernel": f"reference.{form}", **options},
    )


def build_tfla(kernels: str, gate: Gate, problem: Problem, device: torch.device) -> Case:
    from tflabench.kernels import api

    inputs = sequence_inputs(problem, device)
    q, k, v, f, i = (inputs[name] for name in "qkvfi")
    try:
        choice = api.choose(q, v, gate=gate, implementation=kernels, chunk_size=problem.chunk_size or api.AUTO)
    except ValueError as error:
        raise Unsupported(str(error)) from None
    options = {"implementation": choice.implementation, "chunk_size": choice.chunk_size}
    return Case(
        inputs=inputs,
        forward=lambda: api.chunkwise(q, k, v, f, i, gate=gate, **options),
        oracle=partial(sequence_oracle, gate),
        details={"kernel": choice.implementation, "chunk_size": choice.chunk_size},
    )


def step_inputs(gate: Gate, problem: Problem, device: torch.device) -> dict[str, Tensor]:
    """Inputs of a sequence of one step, and the float32 state before it with a time axis of size 1 like the others."""
    step = (problem.batch, problem.heads, 1)
    shapes = {"C": (*step, problem.d_qk, problem.d_hv)}
    shapes |= {"n": (*step, problem.d_qk)} if gate.normalize else {}
    shapes |= {"m": step} if gate.stabilized else {}
    state = {name: x if problem.dtype == "float64" else x.float() for name, x in draw(problem, device, shapes).items()}
    return sequence_inputs(problem, device) | state


def step_oracle(gate: Gate, inputs: Mapping[str, Tensor]) -> Tensor:
    """h (B, H, 1, d_hv) by the recurrent form in the dtype of q."""
    from tflabench.kernels import reference

    q, k, v, f, i = (inputs[name] for name in "qkvfi")
    return reference.recurrent(q, k, v, f, i, _state_before(inputs), gate=gate)[0]


def _state_before(inputs: Mapping[str, Tensor]) -> State:
    C, n, m = (inputs[name][:, :, 0] if name in inputs else None for name in "Cnm")
    assert C is not None
    return State(C, n, m)


def build_step(gate: Gate, problem: Problem, device: torch.device) -> Case:
    """The state after the step goes to a second buffer, so that all calls do the same; in place, bytes are as many."""
    import torch

    from tflabench.kernels.step import step
    from tflabench.kernels.types import zero_state

    inputs = step_inputs(gate, problem, device)
    q, k, v, f, i = (inputs[name][:, :, 0] for name in "qkvfi")
    before = _state_before(inputs)
    sizes = (problem.batch, problem.heads, problem.d_qk, problem.d_hv)
    after = zero_state(gate, *sizes, device=device, dtype=before.C.dtype)

    @torch.no_grad()
    def forward() -> Tensor:
        return step(q, k, v, f, i, before, gate=gate, out=after)[:, :, None]

    return Case(inputs=inputs, forward=forward, oracle=partial(step_oracle, gate), details={"kernel": "step"})


def refuse_sequence(problem: Problem, device: str) -> str | None:
    if problem.pass_ != "decode":
        return "computes single steps: the pass must be decode"
    return None if problem.seq_len == 1 else f"computes single steps: seq_len must be 1, not {problem.seq_len}"


def refuse_decode(problem: Problem, device: str) -> str | None:
    return "computes sequences: the decode pass is what step_* do" if problem.pass_ == "decode" else None


def refuse_tfla(one_level: bool, problem: Problem, device: str) -> str | None:
    L = problem.chunk_size
    if problem.pass_ == "decode":
        return refuse_decode(problem, device)
    if find_spec("triton") is None:
        return "needs the package triton"
    if device != "cuda":
        return "needs a CUDA device"
    if problem.dtype == "float64":
        return "takes bfloat16, float16 and float32, not float64"
    for name, d in (("d_qk", problem.d_qk), ("d_hv", problem.d_hv)):
        if d % 16 or d > 1024:
            return f"takes a {name} that is a multiple of 16 up to 1024, not {d}"
    if L is not None and one_level and L not in ONE_LEVEL_CHUNK_SIZES:
        return f"takes a chunk_size that is one tile, 16, 32, 64 or 128, not {L}"
    if L is not None and L % 16:
        return f"takes a chunk_size that is a multiple of 16, its smallest tile, not {L}"
    return None


def _reference(form: Formulation, gate: GateName) -> Implementation:
    chunkwise = form == "chunkwise"
    return Implementation(
        name=f"reference_{gate}" if chunkwise else f"reference_{form}_{gate}",
        family="mlstm",
        title=f"mLSTM{gate} PyTorch {form}",
        build=partial(build_reference, form, GATES[gate]),
        refuses=refuse_decode,
        gate=gate,
        formulation=form,
        chunked=chunkwise,
    )


def _tfla(kernels: str, gate: GateName) -> Implementation:
    return Implementation(
        name=f"tfla_{gate}_{kernels}",
        family="mlstm",
        title=f"mLSTM{gate} TFLA {kernels}_chunk",
        build=partial(build_tfla, f"tfla_{kernels}", GATES[gate]),
        refuses=partial(refuse_tfla, kernels == "limit"),
        gate=gate,
        chunked=True,
        package="triton",
    )


def _step(gate: GateName) -> Implementation:
    return Implementation(
        name=f"step_{gate}",
        family="mlstm",
        title=f"mLSTM{gate} decode step",
        build=partial(build_step, GATES[gate]),
        refuses=refuse_sequence,
        gate=gate,
        formulation="recurrent",
    )


_FORMS: tuple[Formulation, ...] = ("chunkwise", "parallel", "recurrent")

IMPLEMENTATIONS: tuple[Implementation, ...] = (
    *(_tfla(kernels, gate) for gate in GATES for kernels in ("limit", "xl")),
    *(_reference(form, gate) for form in _FORMS for gate in GATES),
    *(_step(gate) for gate in GATES),
)
