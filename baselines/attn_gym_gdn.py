"""attention-gym: Gated DeltaNet in Triton, forward and backward.

Layout and decays are those of fla's function, but q and k come normalized already. It imports the CuTe DSL, which only
its KDA and its kernels of Blackwell run.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tflabench.baselines import fla_ops
from tflabench.baselines.packages import refuse, require_capability
from tflabench.implementations.adapter import Case, Implementation

if TYPE_CHECKING:
    import torch

    from tflabench.problem import Problem

NEEDS = {
    "attn_gym": "pip install attn-gym==0.0.17",
    "cutlass.cute": "pip install nvidia-cutlass-dsl",
    "triton": "pip install triton",
}
HEAD_DIMS = (64, 128)
OP = next(op for op in fla_ops.OPS if op.name == "fla_gated_delta_net")


def build(problem: Problem, device: torch.device) -> Case:
    """Return the Case of its chunk_gdn.

    Raises:
        Unsupported: a GPU older than Ampere.
    """
    require_capability(device, 8)
    function: Any = import_module("attn_gym.linear").chunk_gdn
    inputs = fla_ops.inputs_of_serving(OP, problem, device, normalizes=False)
    q, k, v, g, beta = (inputs[name] for name in ("q", "k", "v", "g", "beta"))
    return Case(
        inputs=inputs,
        forward=lambda: function(q, k, v, g, beta)[0],
        oracle=partial(fla_ops.oracle, OP, problem.heads, normalizes=False),
        linear="v",
        layout="bthd",
        details={"kernel": "attn_gym.linear.chunk_gdn"},
    )


def refuses(problem: Problem, device: str) -> str | None:
    """Return why its kernels cannot run this, or None."""
    if reason := refuse(problem, device, NEEDS):
        return reason
    if problem.d_qk != problem.d_hv or problem.d_qk not in HEAD_DIMS:
        return f"takes heads of 64/64 and 128/128, not {problem.d_qk}/{problem.d_hv}"
    return None


IMPLEMENTATIONS = (
    Implementation(
        name="attn_gym_gated_delta_net",
        family="linear_attention",
        title="Gated DeltaNet (attention-gym, without l2 norm)",
        build=build,
        refuses=refuses,
        cost=partial(fla_ops.cost, OP),
        package="attn-gym",
        packages=("triton",),
        compiles=True,
        own_process=True,
        tunes=True,
        majors=(8, 12),
        operation=OP.operation,
        groups=True,
        gates=OP.gates,
    ),
)
