"""The bundled kernels as the bench sees them: every form and kernel of the mLSTM and of the other linear RNNs.

Two tables make them all: `GATES` of mLSTMexp and mLSTMsig, and `RECURRENCES`, whose inputs are those that the adapters
of fla and mamba-ssm draw, in their layout (B, T, H, ...), so that rows compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tflabench.implementations.adapter import (
    OURS,
    PYTORCH,
    Case,
    Family,
    Formulation,
    Implementation,
    Unsupported,
    draw,
)
from tflabench.implementations.mlstm import GATES, OPEN, ORACLE_CHUNK_SIZE, GateName, sequence_inputs, sequence_oracle
from tflabench.implementations.packages import installed
from tflabench.kernels.common import tiling
from tflabench.kernels.common.sizes import USUAL, refuses_dtype, shared_memory
from tflabench.kernels.scalar.plan import hopper_shapes
from tflabench.kernels.scalar.plan import tfla as tfla_plan
from tflabench.kernels.types import RETENTION, SIMPLE_GLA, ChunkSize, Gate
from tflabench.problem import Problem
from tflabench.theory import fused, linear_attention
from tflabench.theory.calibrated import Algorithm, Modelled
from tflabench.theory.call_cost import call_cost
from tflabench.theory.cost import DEFAULT_CHUNK_SIZE, Cost
from tflabench.theory.launches import sizes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tflabench.kernels.state import State
    from tflabench.theory.problem_bound import Bounded

# Of each family of kernels (docs/decisions/README.md counts them): raised when its bits or times change.
FUSED_VERSION, TRITON_VERSION, GLA_VERSION, STEP_VERSION, REFERENCE_VERSION = 26, 5, 1, 1, 1
CPU_CHUNK_SIZE = 64  # of the reference where the problem leaves it open: fastest on CPUs up to head dimensions of 256


def build_reference(form: str, gate: Gate, problem: Problem, device: torch.device) -> Case:
    """Return the Case of a plain PyTorch form of the mLSTM."""
    from tflabench.kernels.scalar import reference

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


def build_kernels(kernels: str, gate: Gate, problem: Problem, device: torch.device) -> Case:
    """Return the Case of the mLSTM on `kernels`, an implementation of `kernels.api`."""
    from tflabench.kernels import api

    inputs = sequence_inputs(problem, device)
    q, k, v, f, i = (inputs[name] for name in "qkvfi")
    options, details = chosen(kernels, gate, problem, q, v)
    return Case(
        inputs=inputs,
        forward=lambda: api.chunkwise(q, k, v, f, i, gate=gate, **options),
        oracle=partial(sequence_oracle, gate),
        details=details,
    )


def chosen(kernels: str, gate: Gate, problem: Problem, q: Tensor, v: Tensor) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return implementation and chunk size as options of an operation for q and v (B, H, T, d), and what runs.

    Raises:
        Unsupported: it cannot run here, with its reason.
    """
    from tflabench.kernels.backends import choose

    chunk_size: ChunkSize = problem.chunk_size or "auto"
    options: dict[str, Any] = {"implementation": kernels, "chunk_size": chunk_size}
    try:
        choice = choose(q, v, gate=gate, backward=problem.pass_ == "fwbw", **options)
    except ValueError as error:
        raise Unsupported(str(error)) from None
    options["implementation"] = choice.implementation
    return options, {"kernel": choice.implementation, "chunk_size": choice.chunk_size}


def step_inputs(gate: Gate, problem: Problem, device: torch.device) -> dict[str, Tensor]:
    """Return inputs of a sequence of one step, and the float32 state before it with a time axis of size 1."""
    step = (problem.batch, problem.heads, 1)
    shapes = {"C": (*step, problem.d_qk, problem.d_hv)}
    shapes |= {"n": (*step, problem.d_qk)} if gate.normalize else {}
    shapes |= {"m": step} if gate.stabilized else {}
    state = {name: x if problem.dtype == "float64" else x.float() for name, x in draw(problem, device, shapes).items()}
    return sequence_inputs(problem, device) | state


def step_oracle(gate: Gate, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return h (B, H, 1, d_hv) by the recurrent form in the dtype of q."""
    from tflabench.kernels.scalar import reference

    q, k, v, f, i = (inputs[name] for name in "qkvfi")
    return reference.recurrent(q, k, v, f, i, _state_before(inputs), gate=gate)[0]


def _state_before(inputs: Mapping[str, Tensor]) -> State:
    from tflabench.kernels.state import State

    C, n, m = (inputs[name][:, :, 0] if name in inputs else None for name in "Cnm")
    assert C is not None
    return State(C, n, m)


def build_step(gate: Gate, problem: Problem, device: torch.device) -> Case:
    """Return a step that writes its state to a second buffer, so that all calls do the same; the bytes are as many."""
    import torch

    from tflabench.kernels.state import zero_state
    from tflabench.kernels.step import step

    inputs = step_inputs(gate, problem, device)
    q, k, v, f, i = (inputs[name][:, :, 0] for name in "qkvfi")
    before = _state_before(inputs)
    sizes = (problem.batch, problem.heads, problem.d_qk, problem.d_hv)
    after = zero_state(gate, *sizes, device=device, dtype=before.C.dtype)

    @torch.no_grad()
    def forward() -> Tensor:
        return step(q, k, v, f, i, before, gate=gate, out=after)[:, :, None]

    return Case(inputs=inputs, forward=forward, oracle=partial(step_oracle, gate), details={"kernel": "step"})


# --- The other linear RNNs


@dataclass(frozen=True)
class Recurrence:
    """One operation of `kernels.api` and its decode step.

    Attributes:
        name: in names of implementations; title: as legends write it.
        function: of `kernels.api`; with "_step" behind it, of `kernels.step`.
        gate: what runs it.
        inputs: (problem, device) -> its tensors by argument name, (B, T, H, ...) where they have steps.
        options: its other arguments.
        queries, values: which arguments are q and v.
        decays: values of its gates read a step and head.
        shared: whether all heads have the same q and k.
    """

    name: str
    title: str
    function: str
    gate: Gate
    inputs: Callable[[Problem, torch.device], dict[str, Tensor]]
    options: Mapping[str, Any] = field(default_factory=dict)
    family: Family = "linear_attention"
    queries: str = "q"
    values: str = "v"
    decays: int = 0
    shared: bool = False


def attention_inputs(problem: Problem, device: torch.device, gate: str | None = None) -> dict[str, Tensor]:
    """q, k (B, T, H, d_qk), v (B, T, H, d_hv), and a gate (B, T, H) by its name."""
    steps = (problem.batch, problem.seq_len, problem.heads)
    shapes: dict[str, tuple[int, ...]] = {
        "q": (*steps, problem.d_qk),
        "k": (*steps, problem.d_qk),
        "v": (*steps, problem.d_hv),
    }
    return draw(problem, device, shapes | ({} if gate is None else {gate: steps}), dict.fromkeys("fg", OPEN))


def simple_gla_inputs(problem: Problem, device: torch.device) -> dict[str, Tensor]:
    """Return inputs with log decays g of one head each."""
    from torch.nn.functional import logsigmoid

    inputs = attention_inputs(problem, device, "g")
    return inputs | {"g": logsigmoid(inputs["g"].detach()).requires_grad_(inputs["g"].requires_grad)}


def retention_inputs(problem: Problem, device: torch.device) -> dict[str, Tensor]:
    """Return inputs with RetNet's decays."""
    from tflabench.kernels.api import retnet_log_decays

    return attention_inputs(problem, device) | {"log_decay": retnet_log_decays(problem.heads, device)}


def lightning_inputs(problem: Problem, device: torch.device) -> dict[str, Tensor]:
    """Return inputs with the slopes of a network's first layer, the steepest."""
    from tflabench.kernels.api import lightning_slopes

    return attention_inputs(problem, device) | {"slopes": lightning_slopes(problem.heads, 0, 1, device)}


def mamba2_inputs(problem: Problem, device: torch.device) -> dict[str, Tensor]:
    """Return x (B, T, H, d_hv), dt (B, T, H) before bias and softplus, B and C (B, T, 1, d_qk), and parameters.

    These are (H,), float32: A = -1, -2, ..., -16 and again, D = 1 and steps of about 0.02, as models start with.
    """
    import torch

    steps = (problem.batch, problem.seq_len)
    shared = (*steps, 1, problem.d_qk)
    shapes = {"x": (*steps, problem.heads, problem.d_hv), "dt": (*steps, problem.heads), "B": shared, "C": shared}
    heads = torch.arange(problem.heads, dtype=torch.float32, device=device)
    parameters = {"A": -1.0 - heads % 16, "D": torch.ones_like(heads), "dt_bias": torch.full_like(heads, -4.0)}
    trained = {name: x.requires_grad_(problem.pass_ == "fwbw") for name, x in parameters.items()}
    return draw(problem, device, shapes) | trained


RECURRENCES = (
    Recurrence("retention", "Retention", "retention", RETENTION, retention_inputs),
    Recurrence(
        "gated_retention",
        "Gated Retention",
        "gated_retention",
        Gate("sigmoid", "none", temperature=16.0),
        partial(attention_inputs, gate="f"),
        decays=1,
    ),
    Recurrence("simple_gla", "Simple GLA", "simple_gla", SIMPLE_GLA, simple_gla_inputs, decays=1),
    Recurrence("lightning", "Lightning attention", "lightning_attention", RETENTION, lightning_inputs),
    Recurrence(
        "mamba2",
        "Mamba 2",
        "mamba2_ssd",
        Gate("rate", "softplus"),
        mamba2_inputs,
        {"dt_softplus": True},
        family="ssm",
        queries="C",
        values="x",
        decays=1,
        shared=True,
    ),
)


def recurrence_oracle(op: Recurrence, inputs: Mapping[str, Tensor], **options: Any) -> Any:
    """Return the operation's result in plain PyTorch, in the dtype of the inputs, of whole or sliced inputs."""
    from tflabench.kernels import api

    run = getattr(api, op.function)
    reference: dict[str, Any] = {"implementation": "reference", "chunk_size": ORACLE_CHUNK_SIZE, "layout": "bthd"}
    return run(**inputs, **op.options, **reference, **options)


def build_recurrence(kernels: str, op: Recurrence, problem: Problem, device: torch.device) -> Case:
    """Return the Case of another linear RNN on `kernels`, an implementation of `kernels.api`."""
    from tflabench.kernels import api

    inputs = op.inputs(problem, device)
    q, v = (inputs[name].transpose(1, 2) for name in (op.queries, op.values))
    options, details = chosen(kernels, op.gate, problem, q, v)
    run = partial(getattr(api, op.function), **inputs, **op.options, **options, layout="bthd")
    return Case(
        inputs=inputs,
        forward=run,
        oracle=partial(recurrence_oracle, op),
        layout="bthd",
        details=details,
    )


def build_recurrence_step(op: Recurrence, problem: Problem, device: torch.device) -> Case:
    """As `build_step`; the state before the step has a time axis of size 1 like the other inputs."""
    import torch

    from tflabench.kernels import step
    from tflabench.kernels.state import State

    inputs = op.inputs(problem, device)
    shapes = {"state": (problem.batch, 1, problem.heads, problem.d_qk, problem.d_hv)}
    state = draw(problem, device, shapes)["state"]
    inputs["state"] = state if problem.dtype == "float64" else state.float()
    now = {name: x[:, 0] if x.dim() > 2 else x for name, x in inputs.items() if name != "state"}
    before, after = (State(x[:, 0].contiguous()) for x in (inputs["state"], torch.empty_like(inputs["state"])))
    run = getattr(step, f"{op.function}_step")

    @torch.no_grad()
    def forward() -> Tensor:
        return run(**now, **op.options, state=before, out=after)[:, None]

    def oracle(inputs: Mapping[str, Tensor]) -> Tensor:
        given = {name: x for name, x in inputs.items() if name != "state"}
        return recurrence_oracle(op, given, initial_state=State(inputs["state"][:, 0]))

    return Case(inputs=inputs, forward=forward, oracle=oracle, layout="bthd", details={"kernel": "step"})


def tfla_cost(gate: GateName, problem: Problem) -> Cost:
    """Return the paper's counts, but for states between chunks, which lie in memory in the dtype of q."""
    return call_cost(problem, "chunkwise", gate, state_bytes=problem.element_bytes)


def recurrence_cost(op: Recurrence, problem: Problem) -> Cost:
    """Return what a call of another linear RNN computes and moves."""
    chunk_size = problem.chunk_size or DEFAULT_CHUNK_SIZE
    width = problem.element_bytes
    return linear_attention.cost(
        problem,
        decays=op.decays,
        chunk_size=chunk_size,
        group=heads_a_group(op, problem),
        state_bytes=(width, width),
    )


def fused_cost(op: Recurrence, problem: Problem) -> Cost:
    """Return the cost of the fused kernels as for mLSTMsig, without gate gradients where decays are constants."""
    size = problem.chunk_size or problem.seq_len
    return fused.cost(problem, "sig", size, gate_gradients=op.decays > 0, group=heads_a_group(op, problem))


def recurrence_model(op: Recurrence, kernels: str) -> Modelled | None:
    """Return what `kernels`, an implementation of `kernels.api`, is to the model: mLSTMsig, less what it leaves out."""
    algorithms: dict[str, Algorithm] = {"hopper": "fused", "tfla_xl": "tfla"}
    if kernels not in algorithms:
        return None
    return Modelled(algorithms[kernels], "sig", gate_gradients=op.decays > 0, shared=op.shared)


def recurrence_bound(op: Recurrence) -> Bounded | None:
    """Return the bound of a call; None for heads that share q and k, which have no formula."""
    if op.shared:
        return None
    return "one_gate" if op.decays else "ungated"


def heads_a_group(op: Recurrence, problem: Problem) -> int:
    """Heads that share one of q and k."""
    return problem.heads if op.shared else 1


# --- What cannot run


def refuse_sequence(problem: Problem, device: str) -> str | None:
    """Return why a kernel of single steps cannot run this, or None."""
    if problem.pass_ != "decode":
        return "computes single steps: the pass must be decode"
    return None if problem.seq_len == 1 else f"computes single steps: seq_len must be 1, not {problem.seq_len}"


def refuse_decode(problem: Problem, device: str) -> str | None:
    """Return why a kernel of sequences cannot run this, or None."""
    return "computes sequences: the decode pass is what step_* do" if problem.pass_ == "decode" else None


def refuse_kernels(problem: Problem, device: str) -> str | None:
    """Return why no kernel can run this, or None; `build` can tell the rest."""
    if problem.pass_ == "decode":
        return refuse_decode(problem, device)
    if not installed("triton"):
        return "needs the package triton"
    if device != "cuda":
        return "needs a CUDA device"
    return None


def refuse_tfla(one_level: bool, problem: Problem, device: str) -> str | None:
    """Return why the Triton kernels cannot run this, or None."""
    if reason := refuse_kernels(problem, device) or refuses_dtype(problem.dtype, tiling.DTYPES):
        return reason
    levels = 1 if one_level else 2
    return tfla_plan.refuses_sizes(problem.d_qk, problem.d_hv, problem.chunk_size, levels)


def tfla_shared_bytes(problem: Problem, capability: tuple[int, int]) -> int:
    """Return the shared memory of the largest launch, as the plan tiles it for a compute capability."""
    of, architecture = sizes(problem, group=1), 10 * capability[0] + capability[1]
    chunk_size = problem.chunk_size or tfla_plan.default_chunk_size(of, levels=2)
    plan = tfla_plan.planned(of, chunk_size, problem.element_bytes, USUAL._replace(architecture=architecture))
    return plan.config.shared_bytes(problem.element_bytes, architecture)


def refuse_hopper(problem: Problem, device: str) -> str | None:
    """Return why the fused kernels cannot run this, or None."""
    if reason := refuse_kernels(problem, device) or refuses_dtype(problem.dtype, hopper_shapes.DTYPES):
        return reason
    return hopper_shapes.refuses_sizes(problem.d_qk, problem.d_hv, problem.chunk_size)


def hopper_shared_bytes(problem: Problem, capability: tuple[int, int]) -> int:
    """Return the shared memory that the fused kernels always use: all that a program can have on sm_90."""
    del problem, capability
    return shared_memory(hopper_shapes.ARCHITECTURE)


def _reference(form: Formulation, gate: GateName) -> Implementation:
    chunkwise = form == "chunkwise"
    return Implementation(
        name=f"reference_{gate}" if chunkwise else f"reference_{form}_{gate}",
        family="mlstm",
        owner=PYTORCH,
        title=f"mLSTM{gate} PyTorch {form}",
        build=partial(build_reference, form, GATES[gate]),
        refuses=refuse_decode,
        gate=gate,
        formulation=form,
        chunked=chunkwise,
        version=REFERENCE_VERSION,
    )


def _tfla(kernels: str, gate: GateName) -> Implementation:
    return Implementation(
        name=f"tfla_{gate}_{kernels}",
        family="mlstm",
        owner=OURS,
        title=f"mLSTM{gate} TFLA {kernels}_chunk",
        build=partial(build_kernels, f"tfla_{kernels}", GATES[gate]),
        refuses=partial(refuse_tfla, kernels == "limit"),
        gate=gate,
        chunked=True,
        cost=partial(tfla_cost, gate),
        package="triton",
        version=TRITON_VERSION,
        compiles=True,
        majors=tiling.MAJORS,
        shared_bytes=tfla_shared_bytes,
        modelled=Modelled("tfla", gate),
    )


def _hopper(gate: GateName) -> Implementation:
    return Implementation(
        name=f"hopper_{gate}",
        family="mlstm",
        owner=OURS,
        title=f"mLSTM{gate} fused for Hopper",
        build=partial(build_kernels, "hopper", GATES[gate]),
        refuses=refuse_hopper,
        gate=gate,
        formulation="fused",
        chunked=True,
        package="triton",
        version=FUSED_VERSION,
        compiles=True,
        majors=hopper_shapes.MAJORS,
        shared_bytes=hopper_shared_bytes,
        modelled=Modelled("fused", gate),
    )


def _step(gate: GateName) -> Implementation:
    return Implementation(
        name=f"step_{gate}",
        family="mlstm",
        owner=OURS,
        title=f"mLSTM{gate} decode step",
        build=partial(build_step, GATES[gate]),
        refuses=refuse_sequence,
        gate=gate,
        formulation="recurrent",
        version=STEP_VERSION,
        compiles=True,
    )


def _recurrence(op: Recurrence, kernels: str) -> Implementation:
    """Return the entry of a recurrence on `kernels`, an implementation of `kernels.api`."""
    names = {"hopper": "hopper_{}", "tfla_xl": "tfla_{}_xl", "reference": "reference_{}"}
    titles = {"hopper": "fused for Hopper", "tfla_xl": "TFLA xl_chunk", "reference": "PyTorch chunkwise"}
    refuses = {"hopper": refuse_hopper, "tfla_xl": partial(refuse_tfla, False), "reference": refuse_decode}
    versions = {"hopper": FUSED_VERSION, "tfla_xl": TRITON_VERSION, "reference": REFERENCE_VERSION}
    return Implementation(
        name=names[kernels].format(op.name),
        family=op.family,
        owner=PYTORCH if kernels == "reference" else OURS,
        title=f"{op.title} {titles[kernels]}",
        build=partial(build_recurrence, kernels, op),
        refuses=refuses[kernels],
        chunked=True,
        cost=partial(fused_cost if kernels == "hopper" else recurrence_cost, op),
        package="torch" if kernels == "reference" else "triton",
        version=versions[kernels],
        compiles=kernels != "reference",
        majors={"hopper": hopper_shapes.MAJORS, "tfla_xl": tiling.MAJORS}.get(kernels),
        shared_bytes={"hopper": hopper_shared_bytes, "tfla_xl": tfla_shared_bytes}.get(kernels),
        modelled=recurrence_model(op, kernels),
        operation=op.name,
        bound=recurrence_bound(op),
    )


def _recurrence_step(op: Recurrence) -> Implementation:
    return Implementation(
        name=f"step_{op.name}",
        family=op.family,
        owner=OURS,
        title=f"{op.title} decode step",
        build=partial(build_recurrence_step, op),
        refuses=refuse_sequence,
        formulation="recurrent",
        version=STEP_VERSION,
        compiles=True,
        operation=op.name,
    )


_FORMS: tuple[Formulation, ...] = ("chunkwise", "parallel", "recurrent")

IMPLEMENTATIONS: tuple[Implementation, ...] = (
    *(_tfla(kernels, gate) for gate in GATES for kernels in ("limit", "xl")),
    *(_reference(form, gate) for form in _FORMS for gate in GATES),
    *(_step(gate) for gate in GATES),
    *(_hopper(gate) for gate in GATES),
    *(_recurrence(op, kernels) for op in RECURRENCES for kernels in ("hopper", "tfla_xl", "reference")),
    *(_recurrence_step(op) for op in RECURRENCES),
)
