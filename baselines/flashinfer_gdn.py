"""FlashInfer: Gated DeltaNet in CuTe DSL for Hopper and Blackwell, forward alone.

Layout (tokens, heads, d) with the sequences one after the other, and q and k normalized already. Decays and step sizes
are in float32, and decays no logarithms: what makes them of the log decays that all packages get here is timed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tflabench.baselines import fla_ops
from tflabench.baselines.packages import import_inner, refuse, require_capability
from tflabench.implementations.adapter import Case, Implementation, Owner

if TYPE_CHECKING:
    import torch

    from tflabench.problem import Problem

NEEDS = {
    "flashinfer": "pip install flashinfer-python==0.7.2.post1",
    "cutlass.cute": "pip install nvidia-cutlass-dsl==4.8.1",
}
HEAD_DIM = 128
OP = next(op for op in fla_ops.OPS if op.name == "fla_gated_delta_net")


def module() -> Any:
    """Import its module of GDN; the packages around it import kernels of everything else, in half a minute."""
    import_inner("flashinfer.cute_dsl.availability")
    return import_inner("flashinfer.gdn_prefill")


def build(problem: Problem, device: torch.device) -> Case:
    """Return the Case of its chunk_gated_delta_rule.

    Raises:
        Unsupported: a GPU older than Hopper.
    """
    import torch

    require_capability(device, 9)
    function = module().chunk_gated_delta_rule
    inputs = fla_ops.inputs_of_serving(OP, problem, device, normalizes=False)
    arguments = dict(inputs)
    starts = torch.arange(problem.batch + 1, device=device) * problem.seq_len

    def forward() -> torch.Tensor:
        packed = {name: tensor.flatten(0, 1) for name, tensor in arguments.items()}
        packed["g"] = packed["g"].exp()
        return function(**packed, cu_seqlens=starts, max_seqlen=problem.seq_len).view(arguments["v"].shape)

    return Case(
        inputs=inputs,
        forward=forward,
        oracle=partial(fla_ops.oracle, OP, problem.heads, normalizes=False),
        linear="v",
        layout="bthd",
        details={"kernel": "flashinfer.chunk_gated_delta_rule"},
    )


def refuses(problem: Problem, device: str) -> str | None:
    """Return why its kernels cannot run this, or None."""
    if reason := refuse(problem, device, NEEDS):
        return reason
    if problem.pass_ == "fwbw":
        return "has no backward pass"
    if (problem.d_qk, problem.d_hv) != (HEAD_DIM, HEAD_DIM):
        return f"takes heads of {HEAD_DIM}/{HEAD_DIM}, not {problem.d_qk}/{problem.d_hv}"
    return None


IMPLEMENTATIONS = (
    Implementation(
        name="flashinfer_gated_delta_net",
        family="linear_attention",
        title="Gated DeltaNet (FlashInfer, without l2 norm)",
        build=build,
        refuses=refuses,
        cost=partial(fla_ops.cost_of_serving, OP),
        owner=Owner("FlashInfer", "yellow"),
        package="flashinfer-python",
        packages=("nvidia-cutlass-dsl",),
        imports=module,
        own_process=True,
        majors=(9, 12),
        operation=OP.operation,
        groups=True,
        gates=OP.gates,
    ),
)
