"""FlashQLA: Gated DeltaNet in TileLang, forward and backward, of Hopper and Blackwell.

Layout, decays and step sizes are those of fla's function. One sequence alone it may cut into parts, and starts a part
from zero where its decays have shut off what came before: its error and its time then depend on the gates.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tflabench.baselines import fla_ops
from tflabench.baselines.packages import refuse, require_capability
from tflabench.implementations.adapter import Case, Implementation, Owner

if TYPE_CHECKING:
    import torch

    from tflabench.problem import Problem

NEEDS = {"flash_qla": "pip install flash-qla==0.1.3 (needs nvcc)", "tilelang": "pip install tilelang"}
HEAD_DIM = 128
OP = next(op for op in fla_ops.OPS if op.name == "fla_gated_delta_net")


def build(problem: Problem, device: torch.device) -> Case:
    """Return the Case of its chunk_gated_delta_rule.

    Raises:
        Unsupported: a GPU older than Hopper.
    """
    require_capability(device, 9)
    function: Any = import_module("flash_qla").chunk_gated_delta_rule
    inputs = fla_ops.drawn_inputs(OP, problem, device)
    arguments = dict(inputs)
    return Case(
        inputs=inputs,
        forward=lambda: function(**arguments, use_qk_l2norm_in_kernel=True)[0],
        oracle=partial(fla_ops.oracle, OP, problem.heads),
        linear="v",
        layout="bthd",
        details={"kernel": "flash_qla.chunk_gated_delta_rule"},
    )


def refuses(problem: Problem, device: str) -> str | None:
    """Return why its kernels cannot run this, or None."""
    if reason := refuse(problem, device, NEEDS, "bfloat16 float16"):
        return reason
    if (problem.d_qk, problem.d_hv) != (HEAD_DIM, HEAD_DIM):
        return f"takes heads of {HEAD_DIM}/{HEAD_DIM}, not {problem.d_qk}/{problem.d_hv}"
    return None


IMPLEMENTATIONS = (
    Implementation(
        name="flash_qla_gated_delta_net",
        family="linear_attention",
        title="Gated DeltaNet (FlashQLA)",
        build=build,
        refuses=refuses,
        cost=partial(fla_ops.cost, OP),
        owner=Owner("FlashQLA", "purple"),
        package="flash-qla",
        packages=("tilelang",),
        compiles=True,
        own_process=True,
        tunes=False,
        majors=(9, 12),
        operation=OP.operation,
        groups=True,
        gates=OP.gates,
    ),
)
