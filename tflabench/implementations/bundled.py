"""The bundled kernels as the bench sees them: every form and kernel of the mLSTM and of the other linear RNNs.

One table makes them all: `OPERATIONS`. Inputs of all but the mLSTM are those that the adapters of fla and mamba-ssm
draw, in their layout (B, T, H, ...), so that rows compare.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tflabench.implementations.adapter import (
    OURS,
    PYTORCH,
    Case,
    Formulation,
    Implementation,
    attention_inputs,
    decayed_inputs,
    draw,
)
from tflabench.implementations.mlstm import GATES, sequence_inputs
from tflabench.implementations.packages import installed
from tflabench.implementations.recurrences import (
    REFERENCE,
    Recurrence,
    Variant,
    build_step,
    counted_cost,
    identity,
    implementation,
    oracle,
    refuse_decode,
)
from tflabench.kernels.common import tiling
from tflabench.kernels.common.sizes import USUAL, refuses_dtype, shared_memory
from tflabench.kernels.delta import hopper_plan
from tflabench.kernels.delta import plan as delta_plan
from tflabench.kernels.delta.gating import DELTA_NET, GATED_DELTA_NET
from tflabench.kernels.families import FAMILIES
from tflabench.kernels.gla import hopper_plan as gla_hopper_plan
from tflabench.kernels.gla import plan as gla_plan
from tflabench.kernels.gla.gating import GLA
from tflabench.kernels.kda import hopper_plan as kda_hopper_plan
from tflabench.kernels.kda import plan as kda_plan
from tflabench.kernels.kda.gating import KDA
from tflabench.kernels.scalar.plan import hopper_shapes
from tflabench.kernels.scalar.plan import tfla as tfla_plan
from tflabench.kernels.types import RETENTION, SIMPLE_GLA, ForgetOf, Gate, Gating
from tflabench.problem import Problem, one_of
from tflabench.theory import fused, fused_walks, linear_attention
from tflabench.theory.call_cost import call_cost
from tflabench.theory.cost import DEFAULT_CHUNK_SIZE, Cost
from tflabench.theory.launches import Modelled, sizes

if TYPE_CHECKING:
    import torch
    from torch import Tensor


# Of each family of kernels (docs/decisions/README.md counts them): raised when its bits or times change.
VERSIONS = {
    "fused": 26,
    "triton": 5,
    "gla": 2,
    "step": 1,
    "reference": 1,
    "delta": 3,
    "fused_delta": 4,
    "fused_gla": 2,
    "kda": 2,
    "fused_kda": 3,
}


def build_form(form: str, op: Recurrence, problem: Problem, device: torch.device) -> Case:
    """Return the Case of a form of the mLSTM in plain PyTorch that has no chunks: "parallel" or "recurrent"."""
    from tflabench.kernels.scalar import reference

    inputs = op.inputs(problem, device)
    arguments = [inputs[name] for name in "qkvfi"]
    return Case(
        inputs=inputs,
        forward=lambda: getattr(reference, form)(*arguments, gate=op.gate)[0],
        oracle=partial(oracle, op),
        linear="v",
        details={"kernel": f"reference.{form}"},
    )


# --- Inputs


def retention_inputs(problem: Problem, device: torch.device) -> dict[str, Tensor]:
    """Return inputs with RetNet's decays."""
    from tflabench.ops import retnet_log_decays

    return attention_inputs(problem, device) | {"log_decay": retnet_log_decays(problem.heads, device)}


def lightning_inputs(problem: Problem, device: torch.device) -> dict[str, Tensor]:
    """Return inputs with the slopes of a network's first layer, the steepest."""
    from tflabench.ops import lightning_slopes

    return attention_inputs(problem, device) | {"slopes": lightning_slopes(problem.heads, 0, 1, device)}


def gla_inputs(problem: Problem, device: torch.device) -> dict[str, Tensor]:
    """Return inputs with log decays g of one channel each."""
    return decayed_inputs(problem, device, g=(problem.d_qk,))


def delta_inputs(decay: ForgetOf | None, problem: Problem, device: torch.device) -> dict[str, Tensor]:
    """Return inputs with beta, the sigmoid of what is drawn, and with a log decay g a step or channel, or none."""
    if decay is None:
        inputs = attention_inputs(problem, device, beta=())
    else:
        inputs = decayed_inputs(problem, device, g=(problem.d_qk,) if decay == "channel" else (), beta=())
    beta = inputs["beta"]
    return inputs | {"beta": beta.detach().sigmoid().requires_grad_(beta.requires_grad)}


def mamba2_inputs(problem: Problem, device: torch.device) -> dict[str, Tensor]:
    """Return x (B, T, H, d_hv), dt (B, T, H) before bias and softplus, B and C (B, T, 1, d_qk), and parameters."""
    steps = (problem.batch, problem.seq_len)
    shared = (*steps, 1, problem.d_qk)
    shapes = {"x": (*steps, problem.heads, problem.d_hv), "dt": (*steps, problem.heads), "B": shared, "C": shared}
    return draw(problem, device, shapes) | mamba2_parameters(problem.heads, problem, device)


def mamba2_parameters(heads: int, problem: Problem, device: torch.device) -> dict[str, Tensor]:
    """Return A = -1, -2, ..., -16 and again, D = 1 and steps of about 0.02, as models start with: (heads,), float32."""
    import torch

    head = torch.arange(heads, dtype=torch.float32, device=device)
    parameters = {"A": -1.0 - head % 16, "D": torch.ones_like(head), "dt_bias": torch.full_like(head, -4.0)}
    return {name: x.requires_grad_(problem.pass_ == "fwbw") for name, x in parameters.items()}


def recurrence_cost(op: Recurrence, problem: Problem) -> Cost:
    """Return what a call of another linear RNN computes and moves."""
    return linear_attention.cost(
        problem,
        decays=op.decays,
        chunk_size=problem.chunk_size or DEFAULT_CHUNK_SIZE,
        group=op.group(problem),
        state_bytes=(problem.element_bytes, problem.element_bytes),
    )


def fused_cost(op: Recurrence, problem: Problem) -> Cost:
    """Return the cost of the fused kernels, without gate gradients where decays are constants."""
    size = problem.chunk_size or problem.seq_len
    return fused.cost(problem, Modelled("fused", op.counts, op.decays > 0, op.shared), size)


def gla_chunk_size(problem: Problem) -> int:
    """Return the chunk size that the Triton kernels of GLA take where none is given."""
    return tiling.fitting(gla_plan.default_chunk_size(problem.d_qk, problem.d_hv), problem.seq_len)


def tile_chunk_size(problem: Problem) -> int:
    """Return the steps of a tile of the Triton kernels of KDA, which have a state for each."""
    return tiling.fitting(delta_plan.TILE, problem.seq_len)


def family_chunk_size(gate: Gating, problem: Problem) -> int:
    """Return the chunk size that the PyTorch form of these gates takes where none is given."""
    return min(FAMILIES[gate.family].reference_chunk_size, problem.seq_len)


def gla_workspace_bytes(problem: Problem) -> float:
    """Return the workspace of the Triton kernels of GLA: all but inputs, outputs, their gradients and states."""
    p = problem
    steps = p.batch * p.heads * p.seq_len
    return steps * _gla_blocks(p).workspace_bytes(p.d_qk, p.element_bytes, backward=p.pass_ == "fwbw")


def gla_shared_bytes(problem: Problem, capability: tuple[int, int]) -> int:
    """Return the shared memory of the Triton program of GLA that needs most, at most, for a compute capability."""
    return _gla_blocks(problem).shared_bytes(problem.element_bytes, 10 * capability[0] + capability[1])


def _gla_blocks(problem: Problem) -> gla_plan.Blocks:
    p = problem
    chunk_size = p.chunk_size or gla_chunk_size(p)
    return gla_plan.Blocks.for_shape(p.d_qk, p.d_hv, p.element_bytes, tiling.fitting(chunk_size, p.seq_len))


def tfla_chunk_size(problem: Problem) -> int:
    """Return the chunk size that the Triton kernels of scalar gates take where none is given."""
    return tfla_plan.default_chunk_size(sizes(problem, problem.group), levels=2)


def delta_workspace_bytes(problem: Problem) -> float:
    """Return the workspace of the Triton kernels of the delta rules: errors, inverses and, backward, scores."""
    p = problem
    columns = p.d_hv + delta_plan.TILE * (2 if p.pass_ == "fwbw" else 1)
    return p.batch * p.heads * p.seq_len * columns * p.element_bytes


def fused_delta_workspace_bytes(problem: Problem) -> float:
    """Return the workspace of these: inverses, and of backward errors, gradients of states and sums."""
    p = problem
    elements = float(hopper_plan.TILE)
    if p.pass_ == "fwbw":
        elements += p.d_hv + p.d_qk * p.d_hv / hopper_plan.TILE + 2 * p.d_qk * (p.group > 1)
    sums = (p.pass_ == "fwbw") * hopper_plan.SUMS * hopper_plan.SUM_BYTES * hopper_plan.pieces_of(p.d_hv)
    return p.batch * p.heads * p.seq_len * (elements * p.element_bytes + sums)


def fused_kda_workspace_bytes(problem: Problem) -> float:
    """Return the workspace of these: operands, and of backward errors, states and their gradients."""
    p = problem
    elements, decays = 3 * p.d_qk + 2 * hopper_plan.TILE, kda_hopper_plan.VALUES * kda_hopper_plan.DECAY_BYTES
    if p.pass_ == "fwbw":
        elements += p.d_hv + 2 * p.d_qk * p.d_hv / hopper_plan.TILE + 2 * p.d_qk * (p.group > 1)
    return p.batch * p.heads * p.seq_len * (elements * p.element_bytes + decays / hopper_plan.TILE)


def fused_gla_workspace_bytes(problem: Problem) -> float:
    """Return the workspace of these: scores of tiles that close, and backward what gradients of gates are made of."""
    p = problem
    of_step = gla_hopper_plan.TILE * p.element_bytes
    terms = (p.pass_ == "fwbw") * gla_hopper_plan.LARGEST_D_QK * fused_walks.FLOAT
    return p.batch * p.heads * p.seq_len * float(of_step + terms)


def delta_shared_bytes(problem: Problem, capability: tuple[int, int]) -> int:
    """Return the shared memory of the program that needs most: one of the walks, or a parallel one."""
    architecture, size = 10 * capability[0] + capability[1], problem.element_bytes
    of, device = sizes(problem, problem.group), USUAL._replace(architecture=architecture)
    chunk_size = tiling.fitting(problem.chunk_size or tfla_chunk_size(problem), problem.seq_len)
    walks = delta_plan.WalkTiles.of(of, chunk_size, size, 1, device)
    return max(walks.shared_bytes(size, architecture), tfla_shared_bytes(problem, capability))


def kda_workspace_bytes(problem: Problem) -> float:
    """Return the workspace of the Triton kernels of KDA: operands, and of backward errors, states and gradients."""
    p = problem
    elements, decays = 3 * p.d_qk + 2 * delta_plan.TILE, 4 * p.d_qk / delta_plan.TILE
    if p.pass_ == "fwbw":
        elements += p.d_hv + 2 * p.d_qk * p.d_hv / delta_plan.TILE
    return p.batch * p.heads * p.seq_len * (elements * p.element_bytes + decays)


def kda_shared_bytes(problem: Problem, capability: tuple[int, int]) -> int:
    """Return the shared memory of the program that needs most: one of the walks, or that of gradients of tiles."""
    chunk_size = problem.chunk_size or delta_plan.TILE
    plan = kda_plan.KdaPlan.of(sizes(problem, group=1), chunk_size, problem.dtype, 1)
    return plan.shared_bytes(problem.element_bytes, 10 * capability[0] + capability[1])


# --- What cannot run


def refuse_sequence(problem: Problem, device: str) -> str | None:
    """Return why a kernel of single steps cannot run this, or None."""
    if problem.pass_ != "decode":
        return "computes single steps: the pass must be decode"
    return None if problem.seq_len == 1 else f"computes single steps: seq_len must be 1, not {problem.seq_len}"


def refuse_kernels(problem: Problem, device: str) -> str | None:
    """Return why no kernel can run this, or None; `build` can tell the rest."""
    if problem.pass_ == "decode":
        return refuse_decode(problem, device)
    if not installed("triton"):
        return "needs the package triton"
    if device != "cuda":
        return "needs a CUDA device"
    return None


def refuse_triton(
    refuses_sizes: Callable[[int, int, int | None], str | None], problem: Problem, device: str,
    dtypes: tuple[str, ...] = tiling.DTYPES,
) -> str | None:  # fmt: skip
    """Return why kernels that take what `refuses_sizes` lets pass cannot run this, or None."""
    if reason := refuse_kernels(problem, device) or refuses_dtype(problem.dtype, dtypes):
        return reason
    return refuses_sizes(problem.d_qk, problem.d_hv, problem.chunk_size)


def refuse_walks(
    refuses_sizes: Callable[[int, int], str | None], problem: Problem, device: str,
    dtypes: tuple[str, ...] = hopper_plan.DTYPES_OF_CHANNELS,
) -> str | None:  # fmt: skip
    """Return why the fused kernels of a family, which take what `refuses_sizes` lets pass, cannot run this, or None."""
    if reason := refuse_kernels(problem, device) or refuses_dtype(problem.dtype, dtypes):
        return reason
    steps = hopper_plan.refuses_steps(problem.batch * problem.heads, problem.seq_len)
    return refuses_sizes(problem.d_qk, problem.d_hv) or steps


def tfla_shared_bytes(problem: Problem, capability: tuple[int, int]) -> int:
    """Return the shared memory of the largest launch, as the plan tiles it for a compute capability."""
    of, architecture = sizes(problem, group=1), 10 * capability[0] + capability[1]
    chunk_size = problem.chunk_size or tfla_plan.default_chunk_size(of, levels=2)
    plan = tfla_plan.planned(of, chunk_size, problem.element_bytes, USUAL._replace(architecture=architecture))
    return plan.config.shared_bytes(problem.element_bytes, architecture)


# Fields of `Implementation` that all implementations on the same kernels share.
FUSED: dict[str, Any] = {
    "refuses": partial(refuse_triton, hopper_shapes.refuses_sizes, dtypes=hopper_shapes.DTYPES),
    "owner": OURS, "package": "triton", "version": VERSIONS["fused"], "compiles": True,
    "majors": hopper_shapes.MAJORS, "shared_bytes": lambda *_: shared_memory(hopper_shapes.ARCHITECTURE),
}  # fmt: skip
TRITON: dict[str, Any] = {
    "refuses": partial(refuse_triton, partial(tfla_plan.refuses_sizes, levels=2)),
    "owner": OURS, "package": "triton", "version": VERSIONS["triton"],
    "compiles": True, "majors": tiling.MAJORS, "shared_bytes": tfla_shared_bytes,
}  # fmt: skip
ONE_LEVEL = {"refuses": partial(refuse_triton, partial(tfla_plan.refuses_sizes, levels=1))}
STEP: dict[str, Any] = {
    "refuses": refuse_sequence, "owner": OURS, "version": VERSIONS["step"], "compiles": True,
    "formulation": "recurrent",
}  # fmt: skip
PLAIN: dict[str, Any] = {"refuses": refuse_decode, "owner": PYTORCH, "version": VERSIONS["reference"]}
PLAIN_SCALAR = PLAIN | {"usual_chunk_size": partial(family_chunk_size, RETENTION)}


# --- The operations


def _fused(
    launches: Callable[[Recurrence, Problem], dict[str, Cost]],
    refuses: Callable[[Problem, str], str | None],
    name: str, workspace_bytes: Callable[[Problem], float],
) -> Variant:  # fmt: skip
    """Return the fused kernels of a family whose VERSIONS has them by this name."""

    def cost(op: Recurrence, problem: Problem) -> Cost:
        return fused_walks.summed(problem, launches(op, problem))

    facts = {"refuses": refuses, "version": VERSIONS[name], "workspace_bytes": workspace_bytes}
    return Variant("hopper_{}", "fused for Hopper", cost, FUSED | facts)


def _triton(
    refuses_sizes: Callable[[int, int, int | None], str | None], name: str, usual: Callable[[Problem], int],
    shared_bytes: Callable[[Problem, tuple[int, int]], int], workspace_bytes: Callable[[Problem], float],
) -> Variant:  # fmt: skip
    """Return the Triton kernels of a family whose VERSIONS has them by this name."""
    facts = {"refuses": partial(refuse_triton, refuses_sizes), "version": VERSIONS[name], "usual_chunk_size": usual}
    facts |= {"shared_bytes": shared_bytes, "workspace_bytes": workspace_bytes}
    return Variant("tfla_{}_xl", "TFLA xl_chunk", partial(counted_cost, usual=usual), TRITON | facts)


def _plain(gate: Gating) -> Variant:
    """Return the PyTorch form of a family."""
    usual = partial(family_chunk_size, gate)
    return replace(REFERENCE, cost=partial(counted_cost, usual=usual), facts=PLAIN)


MLSTM = {
    "hopper": Variant("hopper_{}", "fused for Hopper", fused_cost, FUSED | {"formulation": "fused"}, "fused"),
    "tfla_xl": Variant("tfla_{}_xl", "TFLA xl_chunk", counted_cost, TRITON, "tfla"),
    "tfla_limit": Variant("tfla_{}_limit", "TFLA limit_chunk", counted_cost, TRITON | ONE_LEVEL, "tfla"),
    "reference": replace(  # with states between chunks in float32
        REFERENCE, cost=lambda op, problem: call_cost(problem, "chunkwise", op.counts), facts=PLAIN_SCALAR
    ),
}
SCALAR = {
    "hopper": Variant("hopper_{}", "fused for Hopper", fused_cost, FUSED, "fused"),
    "tfla_xl": Variant("tfla_{}_xl", "TFLA xl_chunk", recurrence_cost, TRITON, "tfla"),
    "reference": replace(REFERENCE, cost=recurrence_cost, facts=PLAIN_SCALAR),
}
CHANNEL_GATES = {
    "hopper": _fused(
        lambda _, problem: fused_walks.gla_launches(problem), partial(refuse_walks, gla_hopper_plan.refuses_sizes),
        "fused_gla", fused_gla_workspace_bytes,
    ),
    "tfla": _triton(tiling.refuses_sizes, "gla", gla_chunk_size, gla_shared_bytes, gla_workspace_bytes),
    "reference": _plain(GLA),
}  # fmt: skip
DELTA = {
    "hopper": _fused(
        lambda op, problem: fused_walks.delta_launches(problem, op.counts),
        partial(refuse_walks, hopper_plan.refuses_sizes, dtypes=hopper_plan.DTYPES), "fused_delta",
        fused_delta_workspace_bytes,
    ),
    "tfla": _triton(delta_plan.refuses_sizes, "delta", tfla_chunk_size, delta_shared_bytes, delta_workspace_bytes),
    "reference": replace(REFERENCE, facts=PLAIN),
}  # fmt: skip
KIMI = {
    "hopper": _fused(
        lambda _, problem: fused_walks.kda_launches(problem), partial(refuse_walks, hopper_plan.refuses_sizes),
        "fused_kda", fused_kda_workspace_bytes,
    ),
    "tfla": _triton(kda_plan.refuses_sizes, "kda", tile_chunk_size, kda_shared_bytes, kda_workspace_bytes),
    "reference": _plain(KDA),
}  # fmt: skip
MLSTMS = tuple(
    Recurrence(
        name, f"mLSTM{name}", f"mlstm_{name}", gate, sequence_inputs, MLSTM,
        layout="bhtd", family="mlstm", decays=1, counts=name,
    )
    for name, gate in GATES.items()
)  # fmt: skip
RECURRENCES = (
    Recurrence("retention", "Retention", "retention", RETENTION, retention_inputs, SCALAR, bound="ungated"),
    Recurrence(
        "gated_retention", "Gated Retention", "gated_retention", Gate("sigmoid", "none", temperature=16.0),
        partial(attention_inputs, f=()), SCALAR, decays=1, bound="one_gate",
    ),
    Recurrence(
        "simple_gla", "Simple GLA", "simple_gla", SIMPLE_GLA, partial(decayed_inputs, g=()), SCALAR,
        decays=1, bound="one_gate",
    ),
    Recurrence(
        "lightning", "Lightning attention", "lightning_attention", RETENTION, lightning_inputs, SCALAR, bound="ungated"
    ),
    Recurrence(
        "mamba2", "Mamba 2", "mamba2_ssd", Gate("rate", "softplus"), mamba2_inputs, SCALAR, {"dt_softplus": True},
        family="ssm", queries="C", values="x", decays=1, shared=True,
        bound="shared_keys",
    ),
)  # fmt: skip
GATED_LINEAR_ATTENTION = Recurrence(
    "gla", "GLA", "gla", GLA, gla_inputs, CHANNEL_GATES, gates="weak", decays=1, counts="gla", bound="channel_gates",
    oracle_chunk_size=16,  # its memory grows as T L d_qk
)  # fmt: skip

DELTA_RULES = (
    Recurrence(
        "delta_net", "DeltaNet", "delta_net", DELTA_NET, partial(delta_inputs, None), DELTA, {"l2_normalize": True},
        counts="delta_net", bound="delta_rule",
    ),
    Recurrence(
        "gated_delta_net", "Gated DeltaNet", "gated_delta_net", GATED_DELTA_NET, partial(delta_inputs, "step"), DELTA,
        {"l2_normalize": True}, decays=1, counts="gated_delta_net", bound="gated_delta_rule",
    ),
)  # fmt: skip
KIMI_DELTA_ATTENTION = Recurrence(
    "kda", "KDA", "kda", KDA, partial(delta_inputs, "channel"), KIMI, {"l2_normalize": True},
    gates="strong", decays=1, counts="kda", bound="channel_delta_rule",
    oracle_chunk_size=16,  # its memory grows as T L d_qk
)  # fmt: skip


def _step(op: Recurrence) -> Implementation:
    return Implementation(
        f"step_{op.name}", title=f"{op.title} decode step", build=partial(build_step, op), **identity(op), **STEP
    )


def _form(op: Recurrence, form: Formulation) -> Implementation:
    return replace(
        implementation(op, "reference"), name=f"reference_{form}_{op.name}", title=f"{op.title} PyTorch {form}",
        build=partial(build_form, form, op), formulation=form, chunked=False, cost=None, usual_chunk_size=None,
    )  # fmt: skip


def _all(ops: tuple[Recurrence, ...], *kernels: str) -> tuple[Implementation, ...]:
    """Return the entries of operations, one after the other, on some kernels, or on all of each."""
    return tuple(implementation(op, name) for op in ops for name in kernels or op.variants)


OPERATIONS = (*MLSTMS, *RECURRENCES, GATED_LINEAR_ATTENTION, *DELTA_RULES, KIMI_DELTA_ATTENTION)
_FORMS: tuple[Formulation, ...] = ("parallel", "recurrent")
IMPLEMENTATIONS: tuple[Implementation, ...] = (
    *_all(MLSTMS, "tfla_limit", "tfla_xl"),
    *_all(MLSTMS, "reference"),
    *(_form(op, form) for form in _FORMS for op in MLSTMS),
    *map(_step, MLSTMS),
    *_all(MLSTMS, "hopper"),
    *_all(RECURRENCES),
    *map(_step, RECURRENCES),
    *_all((GATED_LINEAR_ATTENTION,)),
    *_all(DELTA_RULES),
    *map(_step, DELTA_RULES),
    *_all((KIMI_DELTA_ATTENTION,)),
    _step(KIMI_DELTA_ATTENTION),
)


# --- A function of the user's


def operations() -> dict[str, Recurrence]:
    """Return the operations that a function may compute, by the names that `tflabench.ops` has."""
    return {str(op.function): op for op in OPERATIONS}


def implementation_of(name: str, compute: Callable[..., Tensor], operation: str) -> Implementation:
    """Return the entry of a function that computes an operation of `tflabench.ops`.

    Args:
        compute: takes the tensors of the operation by their names there, (B, H, T, ...) and contiguous, and returns h
            (B, H, T, d_hv). Autograd differentiates it.

    Raises:
        InputError: no such operation.
    """
    known = operations()
    op = known[one_of("operation", operation, tuple(known))]
    return Implementation(
        name,
        title=name,
        build=partial(_build_function, compute, op),
        refuses=refuse_decode,
        cost=partial(counted_cost, op),
        gates=op.gates,
        counts=op.counts,
        bound=op.bound,
        **identity(op),
    )


def _build_function(compute: Callable[..., Tensor], op: Recurrence, problem: Problem, device: torch.device) -> Case:
    drawn = op.inputs(problem, device)
    inputs = drawn if op.layout == "bhtd" else {name: _heads_first(x) for name, x in drawn.items()}
    return Case(
        inputs=inputs,
        forward=partial(compute, **inputs, **op.options),
        oracle=partial(oracle, replace(op, layout="bhtd")),
        linear=op.values,
    )


def _heads_first(x: Tensor) -> Tensor:
    """Return a leaf (B, H, T, ...) of the values of x (B, T, H, ...); parameters as they are."""
    return x if x.dim() < 3 else x.detach().transpose(1, 2).contiguous().requires_grad_(x.requires_grad)
