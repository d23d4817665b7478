"""fla (flash-linear-attention): GLA, Simple GLA, Retention, Lightning attention, linear attention, and the delta rules.

Simple GLA stands for mLSTMsig too, whose function it is with k sigmoid(i) in place of k.

Layout (B, T, H, d), as its layers have it. Decays and step sizes are drawn as these make them, log sigmoid and sigmoid
of pre-activations; the delta rules normalise q and k inside their kernels. Inputs and oracles are those of our
operations.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tflabench.baselines.packages import EINOPS, import_inner, refuse
from tflabench.baselines.recurrences import decay_gradient_as_summed
from tflabench.implementations import bundled, recurrences, registry
from tflabench.implementations.adapter import (
    Case,
    FinalStates,
    Implementation,
    Owner,
    Unsupported,
    attention_inputs,
)
from tflabench.implementations.packages import installed, package_version
from tflabench.problem import Problem
from tflabench.theory import linear_attention
from tflabench.theory.cost import GATES, Cost

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tflabench.implementations.recurrences import Recurrence

NEEDS = {"fla": "pip install flash-linear-attention==0.6.0", "triton": "pip install triton", **EINOPS}
PACKAGE, PARTS = "flash-linear-attention", ("fla-core", "tilelang")  # which it hands some kernels to, where it is there
OWNER = Owner("fla", "green")
CHUNK_SIZE = 64  # what fla uses by itself
# Packages that fla hands calls to where they are installed: they are baselines of their own, or none.
HANDED_ON = {"FLA_FLASH_QLA": "0", "FLA_FLASH_KDA": "0"}


def retention_decay(head: Tensor, heads: int) -> Tensor:
    """log(1 - 2^(-5 - head)) in float32, as fla forms it."""
    return (1 - 2.0 ** (-5.0 - head)).log()


@dataclass(frozen=True)
class Op:
    """One function of fla.

    Attributes:
        module: below fla.ops.
        of: what it computes.
        constant: log decays that fla knows itself, of indices of heads and their number; None where it takes them.
        broken_backward: whether fla refuses its backward pass on Hopper with the Triton versions that miscompile it.
        summed_decay_gradient: whether it forms dg as `decay_gradient_as_summed` does.
        on_chip: rows and columns of the blocks of a state that its programs keep on chip.
    """

    name: str
    title: str
    module: str
    function: str
    of: Recurrence
    constant: Callable[[Tensor, int], Tensor] | None = None
    options: Mapping[str, object] | None = None
    broken_backward: bool = False
    summed_decay_gradient: bool = False
    on_chip: int | None = None
    largest_d_qk: int | None = None
    dtypes: str = "bfloat16 float16 float32"
    groups: bool = False

    @property
    def operation(self) -> str:
        """Return what it computes, as `Implementation.operation`: forms of one operation differ by their ends alone."""
        return self.name.removeprefix("fla_").removesuffix("_fused")

    @property
    def delta(self) -> bool:
        """Tell whether it has the delta rule; it then takes beta."""
        return GATES[self.of.counts].delta


OURS = bundled.operations()
GLA, SIMPLE_GLA, RETENTION = OURS["gla"], OURS["simple_gla"], OURS["retention"]
_DELTA = {"options": {"use_qk_l2norm_in_kernel": True}, "largest_d_qk": 256}
_LINEAR = {"constant": lambda head, heads: 0 * head, "options": {"normalize": False}}
OPS = (
    Op("fla_gla", "GLA chunk", "gla", "chunk_gla", GLA),
    Op("fla_gla_fused", "GLA fused chunk", "gla", "fused_chunk_gla", GLA),
    Op("fla_simple_gla", "Simple GLA chunk", "simple_gla", "chunk_simple_gla", SIMPLE_GLA, broken_backward=True),
    Op(
        "fla_simple_gla_fused", "Simple GLA fused chunk", "simple_gla", "fused_chunk_simple_gla", SIMPLE_GLA,
        summed_decay_gradient=True, on_chip=64,
    ),
    Op("fla_retention", "Retention chunk", "retention", "chunk_retention", RETENTION, retention_decay),
    Op(
        "fla_retention_fused", "Retention fused chunk", "retention", "fused_chunk_retention", RETENTION,
        retention_decay, on_chip=64,
    ),
    Op(
        "fla_lightning", "Lightning attention chunk", "lightning_attn", "chunk_lightning_attn", RETENTION,
        lambda head, heads: -(8 / heads) * head,  # of the first layer of a network, the strongest
        options={"layer_idx": 0, "num_layers": 1},
    ),
    Op("fla_linear", "Linear attention chunk", "linear_attn", "chunk_linear_attn", RETENTION, **_LINEAR),
    Op(
        "fla_linear_fused", "Linear attention fused chunk", "linear_attn", "fused_chunk_linear_attn", RETENTION,
        **_LINEAR, on_chip=64,
    ),
    Op(
        "fla_delta_net", "DeltaNet chunk", "delta_rule", "chunk_delta_rule", OURS["delta_net"],
        **_DELTA, dtypes="bfloat16 float16",
    ),
    Op(
        "fla_gated_delta_net", "Gated DeltaNet chunk", "gated_delta_rule", "chunk_gated_delta_rule",
        OURS["gated_delta_net"], **_DELTA, broken_backward=True, groups=True,
    ),
    Op("fla_kda", "KDA chunk", "kda", "chunk_kda", OURS["kda"], **_DELTA),
)  # fmt: skip


def module_of(op: Op) -> ModuleType:
    """Import the module of a function; fla compares its version with those in which arguments will go."""
    return import_inner(f"fla.ops.{op.module}", __version__=package_version(PACKAGE) or "0")


def sound_function(op: Op, problem: Problem, device: torch.device) -> Callable[..., Any]:
    """Return a function of fla.

    Raises:
        Unsupported: this version of fla has the function no more, or refuses its backward pass on this GPU.
    """
    os.environ.update(HANDED_ON)
    function = getattr(module_of(op), op.function)
    if not inspect.signature(function).parameters.keys() & {"q", "r"}:  # only a message is left of it
        raise Unsupported(f"this version of fla has no {op.function} any more")
    if op.broken_backward and problem.pass_ == "fwbw" and device.type == "cuda":
        require_sound_triton(device)
    return function


def build(op: Op, problem: Problem, device: torch.device) -> Case:
    """Return the Case of a function of fla; raises as `sound_function`."""
    import torch

    function = sound_function(op, problem, device)
    inputs = drawn_inputs(op, problem, device)
    arguments = dict(inputs)
    if op.constant:  # for the oracle
        heads = torch.arange(problem.heads, dtype=torch.float32, device=device)
        inputs["log_decay"] = op.constant(heads, problem.heads)
    options = op.options or {}
    kernel = f"fla.ops.{op.module}.{op.function}"
    return case_of(op, inputs, lambda: function(**arguments, **options)[0], kernel)


def case_of(
    op: Op, inputs: dict[str, Tensor], forward: Callable[[], Tensor], kernel: str, *, normalizes: bool = True
) -> Case:
    """Return the Case of a kernel that computes an op, of fla or another package.

    Args:
        normalizes: whether a delta rule normalizes q and k; False where they come normalized.
    """
    return Case(
        inputs=inputs,
        forward=forward,
        oracle=partial(recurrences.oracle, op.of if normalizes else replace(op.of, options={})),
        linear="v",
        layout="bthd",
        as_kernels_do=partial(decay_gradient_as_summed, "g") if op.summed_decay_gradient else None,
        details={"kernel": kernel},
    )


def drawn_inputs(op: Op, problem: Problem, device: torch.device) -> dict[str, Tensor]:
    """Return leaves q, k, v (B, T, H, d), and the log decays g and step sizes beta that a function takes."""
    return attention_inputs(problem, device) if op.constant else op.of.inputs(problem, device)


def inputs_of_serving(op: Op, problem: Problem, device: torch.device, *, normalizes: bool) -> dict[str, Tensor]:
    """Return `drawn_inputs` as kernels for serving take them: gates in float32, and q and k normalized before.

    Args:
        normalizes: whether the kernel normalizes q and k, which then stay as they are.
    """
    from tflabench.kernels.delta.normalize import l2_normalized

    inputs = {name: tensor.detach() for name, tensor in drawn_inputs(op, problem, device).items()}
    inputs |= {name: inputs[name].float() for name in ("g", "beta")}
    if not normalizes:
        inputs |= {name: l2_normalized(inputs[name], plain=True) for name in "qk"}
    return {name: tensor.requires_grad_(problem.pass_ == "fwbw") for name, tensor in inputs.items()}


def build_step(op: Op, problem: Problem, device: torch.device) -> Case:
    """Return the Case of a decode step by the fused recurrent form of a delta rule, of the inputs of ours."""
    import torch

    name = f"fused_recurrent_{op.module}"
    function = getattr(module_of(op), name)
    case = registry.get(f"step_{op.operation}").build(problem, device)
    arguments = dict(case.inputs)
    before, final = arguments.pop("state")[:, 0], {}

    @torch.no_grad()
    def forward() -> Tensor:
        o, after = function(**arguments, initial_state=before, output_final_state=True, use_qk_l2norm_in_kernel=True)
        final["C"] = after[:, None]
        return o

    assert case.states
    states = FinalStates(lambda: final, case.states.oracle)
    return replace(case, forward=forward, states=states, details={"kernel": f"fla.ops.{op.module}.{name}"})


def build_mlstm(op: Op, problem: Problem, device: torch.device) -> Case:
    """Return the Case of mLSTMsig by Simple GLA: its keys are k sigmoid(i), its log decays logsigmoid(f).

    Without a normaliser both are the same function. What makes them of the inputs is timed too. Raises as `build`.
    """
    from torch.nn.functional import logsigmoid

    function = sound_function(op, problem, device)
    inputs = attention_inputs(problem, device, "bthd", i=(), f=())
    q, k, v, i, f = inputs.values()
    return Case(
        inputs=inputs,
        forward=lambda: function(q=q, k=k * i.sigmoid()[..., None], v=v, g=logsigmoid(f))[0],
        oracle=partial(recurrences.oracle, replace(OURS["mlstm_sig"], layout="bthd")),
        linear="v",
        layout="bthd",
        as_kernels_do=partial(decay_gradient_as_summed, "f") if op.summed_decay_gradient else None,
        details={"kernel": f"fla.ops.{op.module}.{op.function} of k sigmoid(i)"},
    )


def mlstm_cost(op: Op, problem: Problem) -> Cost:
    """Return what a call of Simple GLA computes and moves, and k sigmoid(i), which is made in memory."""
    counted, scaled = cost(op, problem), 2 * problem.d_qk * problem.element_bytes  # k read and written
    passes = 3 if problem.pass_ == "fwbw" else 1
    return Cost(counted.flops, counted.bytes + passes * scaled * problem.tokens * problem.heads)


def require_sound_triton(device: torch.device) -> None:
    """Refuse a Triton that miscompiles the gated backward pass on Hopper, unless tilelang is installed and does it.

    Raises:
        Unsupported: fla refuses its gated backward pass with this Triton on this GPU.
    """
    import torch
    import triton
    from packaging.version import Version

    if torch.cuda.get_device_capability(device)[0] != 9 or installed("tilelang"):
        return
    if Version("3.4.0") <= Version(triton.__version__) < Version("3.7.1"):
        raise Unsupported(
            f"fla refuses this backward pass on Hopper with Triton {triton.__version__}, which miscompiles it "
            "(fla issue 640): needs Triton >= 3.7.1"
        )


def cost(op: Op, problem: Problem) -> Cost:
    """Return what a call computes and moves."""
    decays = _decays(op, problem)
    # States lie in memory in the dtype of k, but in float32 for the gradients of all but the delta rules (fla 0.6.0).
    backward = problem.element_bytes if op.delta else linear_attention.STATE_BYTES
    states = (problem.element_bytes, backward)
    counted = linear_attention.cost(problem, decays=decays, delta=op.delta, chunk_size=CHUNK_SIZE, state_bytes=states)
    if op.on_chip is None:
        return counted
    return Cost(counted.flops, problem.tokens * problem.heads * bytes_a_step(problem, decays, op.on_chip))


def cost_of_serving(op: Op, problem: Problem) -> Cost:
    """Return the cost of a delta rule whose forward pass is one kernel, with gates in float32 and states on chip."""
    counted, forward = cost(op, problem), cost(op, problem.with_(pass_="fw"))
    a_step = (2 * problem.d_qk / problem.group + 2 * problem.d_hv) * problem.element_bytes  # q, k, v, o
    once = problem.tokens * problem.heads * (a_step + 4 * (_decays(op, problem) + 1))
    return Cost(counted.flops, counted.bytes - forward.bytes + once)


def _decays(op: Op, problem: Problem) -> int:
    return {"step": 1, "channel": problem.d_qk}.get(str(op.of.gate.forget_of), 0)


def bytes_a_step(problem: Problem, decays: int, block: int) -> float:
    """Return what a head moves a step where each program walks over the sequence with a block of the state on chip.

    What several programs add up to is written in float32, a part each, and summed.
    """
    size = problem.element_bytes
    k, v, gates = problem.d_qk * size, problem.d_hv * size, decays * size  # q like k, o like v

    def written(columns: int, parts: int) -> int:
        """Return the bytes of columns in the dtype of the inputs, or of parts, their sum and that in this dtype."""
        return columns * size if parts == 1 else columns * (4 * (2 * parts + 2) + size)

    rows, columns = -(-problem.d_qk // block), -(-problem.d_hv // block)
    outputs = k * 2 + v + gates + written(problem.d_hv, rows)
    if problem.pass_ != "fwbw":
        return outputs
    dk = written(problem.d_qk, columns)  # dq alike
    dq_pass = k * (1 + decays) + v * 2 + gates + dk
    dk_dv_pass = k * 2 + v * 2 + gates + dk + written(problem.d_hv, rows)
    return outputs + dq_pass + dk_dv_pass + decays * (4 * (4 * rows * columns + 1) + size)


def refuses(op: Op, problem: Problem, device: str) -> str | None:
    """Return why fla's function cannot run this, or None."""
    if reason := refuse(problem, device, NEEDS, op.dtypes):
        return reason
    if op.largest_d_qk and problem.d_qk > op.largest_d_qk:
        return f"takes a d_qk up to {op.largest_d_qk}, not {problem.d_qk}"
    return None


def refuses_step(op: Op, problem: Problem, device: str) -> str | None:
    """Return why the fused recurrent form cannot take this step, or None."""
    return refuses(op, problem.with_(pass_="fw"), device) or bundled.refuse_sequence(problem, device)


def implementation(op: Op) -> Implementation:
    """Return the entry of a function of fla; those of other packages that compute the same replace what differs."""
    return Implementation(
        name=op.name,
        family="linear_attention",
        title=f"{op.title} (fla)",
        build=partial(build, op),
        refuses=partial(refuses, op),
        cost=partial(cost, op),
        owner=OWNER,
        package=PACKAGE,
        packages=PARTS,
        imports=partial(module_of, op),
        compiles=True,
        own_process=True,
        tunes=True,
        majors=(8, 12),
        operation=op.operation,
        groups=op.groups,
        gates=op.of.gates,
        bound=None if op.delta else op.of.bound,
    )


def _step(op: Op) -> Implementation:
    return replace(
        implementation(op),
        name=f"step_{op.name}",
        title=f"{op.title.removesuffix(' chunk')} fused recurrent step (fla)",
        build=partial(build_step, op),
        refuses=partial(refuses_step, op),
        formulation="recurrent",
        cost=None,
        tunes=False,
    )


def _mlstm(op: Op) -> Implementation:
    return replace(
        implementation(op),
        name=op.name.replace("simple_gla", "mlstm_sig"),
        family="mlstm",
        title=f"mLSTMsig by {op.title} (fla)",
        build=partial(build_mlstm, op),
        cost=partial(mlstm_cost, op),
        gate="sig",
        operation=None,
        bound="two_gates",
    )


IMPLEMENTATIONS = (
    *(implementation(op) for op in OPS),
    *(_step(op) for op in OPS if op.delta),
    *(_mlstm(op) for op in OPS if op.operation == "simple_gla"),
)
