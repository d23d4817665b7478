"""FlashInfer: Gated DeltaNet in CuTe DSL for Hopper and Blackwell, forward and decode step.

Sequences lie one after the other, (tokens, heads, d), and q and k are normalized already. Decays and step sizes are in
float32, and decays no logarithms: what makes them of the log decays that all packages get here is timed. Its decode
step normalizes q and k, takes what decays and step sizes are made of, and has states of (d_hv, d_qk).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tflabench.baselines import fla_ops
from tflabench.baselines.packages import import_inner, refuse
from tflabench.implementations import registry
from tflabench.implementations.adapter import Case, FinalStates, Owner, attention_inputs
from tflabench.implementations.bundled import refuse_sequence

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tflabench.problem import Problem

NEEDS = {
    "flashinfer": "pip install flashinfer-python==0.7.2.post1",
    "cutlass.cute": "pip install nvidia-cutlass-dsl==4.8.1",
}
HEADS = (128,)
OP = next(op for op in fla_ops.OPS if op.name == "fla_gated_delta_net")


def module(name: str = "gdn_prefill") -> Any:
    """Import a module of GDN; the packages around it import kernels of everything else, in half a minute."""
    import_inner("flashinfer.cute_dsl.availability")
    return import_inner(f"flashinfer.{name}")


def build(problem: Problem, device: torch.device) -> Case:
    """Return the Case of its chunk_gated_delta_rule."""
    import torch

    function = module().chunk_gated_delta_rule
    inputs = fla_ops.inputs_of_serving(OP, problem, device, normalizes=False)
    arguments = dict(inputs)
    starts = torch.arange(problem.batch + 1, device=device) * problem.seq_len

    def forward() -> torch.Tensor:
        packed = {name: tensor.flatten(0, 1) for name, tensor in arguments.items()}
        packed["g"] = packed["g"].exp()
        return function(**packed, cu_seqlens=starts, max_seqlen=problem.seq_len).view(arguments["v"].shape)

    kernel = "flashinfer.chunk_gated_delta_rule"
    return fla_ops.case_of(OP, inputs, forward, kernel, normalizes=False)


def build_step(problem: Problem, device: torch.device) -> Case:
    """Return the Case of its gated_delta_rule_decode_pretranspose, on states in float32, which it writes in place."""
    import torch
    from torch.nn.functional import logsigmoid

    function = module("gdn_decode").gated_delta_rule_decode_pretranspose
    ours = registry.get("step_gated_delta_net").build(problem, device)
    drawn = attention_inputs(problem, device, g=(), beta=())
    state = ours.inputs["state"].transpose(-1, -2).contiguous()
    inputs = {name: drawn[name] for name in "qkv"} | {"a": -drawn["g"], "b": drawn["beta"], "state": state}
    no_rate, no_bias = (torch.zeros(problem.heads, device=device) for _ in range(2))

    def of_ours(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        gates = {"g": logsigmoid(-theirs["a"]), "beta": theirs["b"].sigmoid()}
        return {name: theirs[name] for name in "qkv"} | gates | {"state": theirs["state"].transpose(-1, -2)}

    assert ours.states
    after = ours.states.oracle
    return Case(
        inputs=inputs,
        forward=lambda: function(
            *(inputs[name] for name in "qkv"), state[:, 0], no_rate, inputs["a"], no_bias, inputs["b"]
        )[0],
        oracle=lambda theirs: ours.oracle(of_ours(theirs)),
        layout="bthd",
        writes=("state",),
        states=FinalStates(lambda: {"C": state.transpose(-1, -2)}, lambda theirs: after(of_ours(theirs))),
        details={"kernel": "flashinfer.gated_delta_rule_decode_pretranspose"},
    )


def refuses_step(problem: Problem, device: str) -> str | None:
    """Return why its decode step cannot take this, or None."""
    return refuse(problem.with_(pass_="fw"), device, NEEDS, "bfloat16", HEADS) or refuse_sequence(problem, device)


PREFILL = replace(
    fla_ops.implementation(OP),
    name="flashinfer_gated_delta_net",
    title="Gated DeltaNet (FlashInfer, without l2 norm)",
    build=build,
    refuses=partial(refuse, needs=NEEDS, heads=HEADS, backward=False),
    cost=partial(fla_ops.cost_of_serving, OP),
    owner=Owner("FlashInfer", "yellow"),
    package="flashinfer-python",
    packages=("nvidia-cutlass-dsl",),
    imports=module,
    compiles=False,
    tunes=False,
    majors=(9, 12),
)
STEP = replace(
    PREFILL,
    name="step_flashinfer_gated_delta_net",
    title="Gated DeltaNet step (FlashInfer)",
    build=build_step,
    refuses=refuses_step,
    imports=partial(module, "gdn_decode"),
    formulation="recurrent",
    cost=None,
)
IMPLEMENTATIONS = (PREFILL, STEP)
