"""cuDNN: Kimi Delta Attention in CUDA C++ for Hopper, forward and backward, by nvidia-cudnn-frontend.

Layout (tokens, heads, d) with the sequences one after the other, gates in float32. Its backward pass takes q and k that
are normalized already, so that training there computes less than fla's. Its forward pass starts a part of a sequence
from zero where the decays before it multiply to less than 2^-20: its error and its time depend on the gates.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tflabench.baselines import fla_ops
from tflabench.baselines.packages import refuse
from tflabench.implementations.adapter import Case, Owner

if TYPE_CHECKING:
    import torch

    from tflabench.problem import Problem

NEEDS = {"cudnn": "pip install nvidia-cudnn-frontend==1.32.0", "cuda.bindings": "pip install cuda-python"}
PLAN = "kda_hopper_cuda"  # of those that it has on Hopper the fastest, and the only one with a backward pass
OP = next(op for op in fla_ops.OPS if op.name == "fla_kda")


def build(problem: Problem, device: torch.device) -> Case:
    """Return the Case of kimi_delta_attention."""
    import torch

    function: Any = import_module("cudnn.linear_attention.ops").kimi_delta_attention
    normalizes = problem.pass_ == "fw"
    inputs = fla_ops.inputs_of_serving(OP, problem, device, normalizes=normalizes)
    arguments = dict(inputs)
    starts = torch.arange(problem.batch + 1, dtype=torch.int32, device=device) * problem.seq_len

    def forward() -> torch.Tensor:
        packed = {name: tensor.flatten(0, 1) for name, tensor in arguments.items()}
        o, _ = function(**packed, cu_seqlens=starts, use_qk_l2norm_in_kernel=normalizes, plan_name=PLAN)
        return o.view(arguments["v"].shape)

    kernel = f"cudnn.linear_attention.ops.kimi_delta_attention, {PLAN}"
    return fla_ops.case_of(OP, inputs, forward, kernel, normalizes=normalizes)


IMPLEMENTATIONS = (
    replace(
        fla_ops.implementation(OP),
        name="cudnn_kda",
        title="KDA (cuDNN, training without l2 norm)",
        build=build,
        refuses=partial(refuse, needs=NEEDS, dtypes="bfloat16", heads=(128,)),
        cost=partial(fla_ops.cost_of_serving, OP),
        owner=Owner("cuDNN", "black"),
        package="nvidia-cudnn-frontend",
        packages=(),
        imports=None,
        compiles=False,
        tunes=False,
        majors=(9, 9),
    ),
)
