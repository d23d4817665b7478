"""attention-gym: Gated DeltaNet in Triton, forward and backward.

Layout and decays are those of fla's function, but q and k come normalized already. It imports the CuTe DSL, which only
its KDA and its kernels of Blackwell run.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tflabench.baselines import fla_ops
from tflabench.baselines.packages import refuse
from tflabench.implementations.adapter import OTHERS, Case

if TYPE_CHECKING:
    import torch

    from tflabench.problem import Problem

NEEDS = {
    "attn_gym": "pip install attn-gym==0.0.17",
    "cutlass.cute": "pip install nvidia-cutlass-dsl",
    "triton": "pip install triton",
}
OP = next(op for op in fla_ops.OPS if op.name == "fla_gated_delta_net")


def build(problem: Problem, device: torch.device) -> Case:
    """Return the Case of its chunk_gdn."""
    function: Any = import_module("attn_gym.linear").chunk_gdn
    inputs = fla_ops.inputs_of_serving(OP, problem, device, normalizes=False)
    q, k, v, g, beta = (inputs[name] for name in ("q", "k", "v", "g", "beta"))
    kernel = "attn_gym.linear.chunk_gdn"
    return fla_ops.case_of(OP, inputs, lambda: function(q, k, v, g, beta)[0], kernel, normalizes=False)


IMPLEMENTATIONS = (
    replace(
        fla_ops.implementation(OP),
        name="attn_gym_gated_delta_net",
        title="Gated DeltaNet (attention-gym, without l2 norm)",
        build=build,
        refuses=partial(refuse, needs=NEEDS, heads=(64, 128)),
        owner=OTHERS,
        package="attn-gym",
        packages=("triton",),
        imports=None,
    ),
)
