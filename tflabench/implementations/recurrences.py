"""The operations of the families of kernels as the bench sees them.

An operation is a `Recurrence`, and each implementation of it a `Variant`. What they say of a family is all that sweeps,
theory, advice and figures know of it: docs/add-a-family.md has a family of thirty lines.
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
    FinalStates,
    Implementation,
    Unsupported,
    draw,
)
from tflabench.implementations.mlstm import ORACLE_CHUNK_SIZE
from tflabench.kernels import families
from tflabench.kernels.types import ChunkSize, Gating, Layout
from tflabench.problem import DRAWN_GATES, Problem
from tflabench.theory.call_cost import call_cost
from tflabench.theory.cost import GATES, Cost, GateCounts

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tflabench.theory.launches import Algorithm
    from tflabench.theory.roofline import Bounded


@dataclass(frozen=True)
class Variant:
    """An implementation of operations.

    Attributes:
        name, title: with a place for the name, or behind the title, of the operation.
        cost: (operation, problem) -> what a call computes and moves.
        facts: other fields of `Implementation`, alike for all operations: "refuses", "owner", "version", ...
        algorithm: that the calibrated model takes it for; None for none.
    """

    name: str
    title: str
    cost: Callable[[Recurrence, Problem], Cost]
    facts: Mapping[str, Any]
    algorithm: Algorithm | None = None


@dataclass(frozen=True)
class Recurrence:
    """One operation and its decode step.

    Attributes:
        name: in names of implementations; title: as legends write it.
        function: the operation, or its name in `tflabench.ops`; with "_step" behind it, its decode step.
        gate: what runs it.
        inputs: (problem, device) -> its tensors by argument name, (B, T, H, ...) where they have steps.
        variants: by implementation of the operation.
        options: its other arguments.
        family: as `Implementation.family`; the name of an mLSTM is that of its gate.
        layout: of its tensors: "bhtd" has heads before time.
        queries, values: which arguments are q and v.
        gates: strength of its forget gates where none is asked for (see `adapter.forget_gates`).
        decays: values of its gates read a step and head.
        shared: whether all heads have the same q and k, whatever the problem says.
        counts: which gates of `theory.cost` it is counted as.
        bound: which formula bounds its problem; None for none.
        oracle_chunk_size: of the oracle.
    """

    name: str
    title: str
    function: str | Callable[..., Any]
    gate: Gating
    inputs: Callable[[Problem, torch.device], dict[str, Tensor]]
    variants: Mapping[str, Variant]
    options: Mapping[str, Any] = field(default_factory=dict)
    family: Family = "linear_attention"
    layout: Layout = "bthd"
    queries: str = "q"
    values: str = "v"
    gates: str = DRAWN_GATES["normal"]
    decays: int = 0
    shared: bool = False
    counts: str = "sig"
    bound: Bounded | None = None
    oracle_chunk_size: int = ORACLE_CHUNK_SIZE

    def run(self, *, step: bool = False) -> Callable[..., Any]:
        """Return the operation, or its decode step."""
        from tflabench import ops

        return getattr(ops, self.function + "_step" * step) if isinstance(self.function, str) else self.function

    def group(self, problem: Problem) -> int:
        """Heads of v that share one of q and k."""
        return problem.heads if self.shared else problem.group


def chosen(
    kernels: str, op: Recurrence, problem: Problem, q: Tensor, v: Tensor
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return implementation and chunk size as options of an operation for its q and v, and what runs.

    Raises:
        Unsupported: it cannot run here, with its reason.
    """
    from tflabench.ops import choose

    chunk_size: ChunkSize = problem.chunk_size or "auto"
    options: dict[str, Any] = {"implementation": kernels, "chunk_size": chunk_size}
    try:
        choice = choose(q, v, gate=op.gate, layout=op.layout, backward=problem.pass_ == "fwbw", **options)
    except ValueError as error:
        raise Unsupported(str(error)) from None
    options["implementation"] = choice.implementation
    return options, {"kernel": choice.implementation, "chunk_size": choice.chunk_size}


def oracle(op: Recurrence, inputs: Mapping[str, Tensor], **options: Any) -> Any:
    """Return the operation's result in plain PyTorch, in the dtype of the inputs, of whole or sliced inputs."""
    reference = {"implementation": "reference", "chunk_size": op.oracle_chunk_size, "layout": op.layout}
    return op.run()(**inputs, **op.options, **reference, **options)


def build(kernels: str, op: Recurrence, problem: Problem, device: torch.device) -> Case:
    """Return the Case of an operation on `kernels`, an implementation of it."""
    inputs = op.inputs(problem, device)
    q, v = (inputs[name] for name in (op.queries, op.values))
    options, details = chosen(kernels, op, problem, q, v)
    forward = partial(op.run(), **inputs, **op.options, **options, layout=op.layout)
    return Case(
        inputs=inputs,
        forward=forward,
        oracle=partial(oracle, op),
        layout=op.layout,
        linear=op.values,
        call=forward,
        decode=partial(op.run(step=True), **op.options) if isinstance(op.function, str) else None,
        details=details,
    )


def build_step(op: Recurrence, problem: Problem, device: torch.device) -> Case:
    """Return a step that writes its state to a second buffer, so that all calls do the same.

    The state before it, C as "state" with n and m where there are any, has a time axis of size 1 like the other inputs.
    """
    import torch

    from tflabench.ops import State

    inputs = op.inputs(problem, device)
    time = op.layout.index("t")
    row = (problem.batch, problem.heads, 1) if op.layout == "bhtd" else (problem.batch, 1, problem.heads)
    shapes: dict[str, tuple[int, ...]] = {"state": (*row, problem.d_qk, problem.d_hv)}
    shapes |= {"n": (*row, problem.d_qk)} if op.gate.normalize else {}
    shapes |= {"m": row} if op.gate.stabilized else {}
    drawn = draw(problem, device, shapes)
    inputs |= {name: x if problem.dtype == "float64" else x.float() for name, x in drawn.items()}

    def state_of(inputs: Mapping[str, Tensor]) -> State:
        C, n, m = (
            inputs[name].select(time, 0).contiguous() if name in shapes else None for name in ("state", "n", "m")
        )
        assert C is not None
        return State(C, n, m)

    def with_time(state: State) -> dict[str, Tensor]:
        return {name: x.unsqueeze(time) for name, x in state._asdict().items() if x is not None}

    def arguments(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: x for name, x in inputs.items() if name not in shapes}

    now = {name: x.select(time, 0) if x.dim() > 2 else x for name, x in arguments(inputs).items()}
    before, after = state_of(inputs), state_of({name: torch.empty_like(inputs[name]) for name in shapes})
    run = op.run(step=True)

    @torch.no_grad()
    def forward() -> Tensor:
        return run(**now, **op.options, state=before, out=after).unsqueeze(time)

    def of_sequence(inputs: Mapping[str, Tensor]) -> tuple[Tensor, State]:
        return oracle(op, arguments(inputs), initial_state=state_of(inputs), return_last_state=True)

    states = FinalStates(lambda: with_time(after), lambda inputs: with_time(of_sequence(inputs)[1]))
    return Case(
        inputs=inputs,
        forward=forward,
        oracle=lambda inputs: of_sequence(inputs)[0],
        layout=op.layout,
        states=states,
        details={"kernel": "step"},
    )


def counted_cost(op: Recurrence, problem: Problem, *, usual: Callable[[Problem], int] | None = None) -> Cost:
    """Return the counts of the chunkwise form with the operation's gates, and states in memory in the dtype of q."""
    if usual is not None and problem.chunk_size is None:
        problem = problem.with_(chunk_size=usual(problem))
    if op.shared:
        problem = problem.with_(heads_qk=1)
    return call_cost(problem, "chunkwise", op.counts, state_bytes=problem.element_bytes)


def refuse_decode(problem: Problem, device: str) -> str | None:
    """Return why a kernel of sequences cannot run this, or None."""
    return "computes sequences: the decode pass is what step_* do" if problem.pass_ == "decode" else None


REFERENCE = Variant("reference_{}", "PyTorch chunkwise", counted_cost, {"refuses": refuse_decode, "owner": PYTORCH})


def identity(op: Recurrence) -> dict[str, Any]:
    """Return the fields of `Implementation` that say what is computed: an mLSTM by its gate, all else by its name."""
    of_mlstm = op.family == "mlstm"
    named = {"gate": op.name if of_mlstm else None, "operation": None if of_mlstm else op.name}
    return {"family": op.family, "groups": not op.shared, **named}


def implementation(op: Recurrence, kernels: str) -> Implementation:
    """Return the entry of an operation on `kernels`, an implementation of it."""
    from tflabench.theory.launches import Modelled

    variant, algorithm = op.variants[kernels], op.variants[kernels].algorithm
    return Implementation(
        name=variant.name.format(op.name),
        title=f"{op.title} {variant.title}",
        build=partial(build, kernels, op),
        chunked=True,
        cost=partial(variant.cost, op),
        modelled=algorithm and Modelled(algorithm, op.counts, gate_gradients=op.decays > 0, shared=op.shared),
        gates=op.gates,
        counts=op.counts,
        bound=op.bound,
        tried=list(op.variants).index(kernels) if variant.facts.get("owner") is OURS else None,
        **identity(op),
        **variant.facts,
    )


def register_family(family: families.Family, op: Recurrence, counts: GateCounts) -> tuple[Implementation, ...]:
    """Register a family of kernels, and return the implementations of its operation: IMPLEMENTATIONS of a plugin.

    Args:
        family: for `tflabench.ops.chunkwise` and `step`, by their gates.
        op: its operation.
        counts: how it is counted, by the name `op.counts`.
    """
    families.register(family)
    GATES[op.counts] = counts
    return tuple(implementation(op, kernels) for kernels in op.variants)
