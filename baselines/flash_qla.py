"""FlashQLA: Gated DeltaNet in TileLang, forward and backward, of Hopper and Blackwell.

Layout, decays and step sizes are those of fla's function, but log decays are in float32: it adds them up in the dtype
that they have, and trains in that alone. One sequence alone it may cut into parts, and starts a part from zero where
its decays have shut off what came before: its error and its time then depend on the gates.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tflabench.baselines import fla_ops
from tflabench.baselines.packages import refuse
from tflabench.implementations.adapter import Case, Owner
from tflabench.theory.cost import Cost

if TYPE_CHECKING:
    import torch

    from tflabench.problem import Problem

NEEDS = {"flash_qla": "pip install flash-qla==0.1.3 (needs nvcc)", "tilelang": "pip install tilelang"}
OP = next(op for op in fla_ops.OPS if op.name == "fla_gated_delta_net")


def build(problem: Problem, device: torch.device) -> Case:
    """Return the Case of its chunk_gated_delta_rule."""
    function: Any = import_module("flash_qla").chunk_gated_delta_rule
    inputs = fla_ops.drawn_inputs(OP, problem, device)
    inputs["g"] = inputs["g"].detach().float().requires_grad_(inputs["g"].requires_grad)
    arguments = dict(inputs)
    kernel = "flash_qla.chunk_gated_delta_rule"
    return fla_ops.case_of(OP, inputs, lambda: function(**arguments, use_qk_l2norm_in_kernel=True)[0], kernel)


def cost(problem: Problem) -> Cost:
    """Return what a call computes and moves: forward keeps states on chip, but writes q, k and inverses and reads them.

    q and k are read and written to be normalized, and k is read once more, for the inverses. Backward is a kernel that
    writes states anew, one that makes all gradients of them, dq and dk for each head of v, what sums those over the
    heads that share q and k, and the backward pass of the norm.
    """
    forward = fla_ops.cost_of_serving(OP, problem.with_(pass_="fw"))
    qk, inverse = problem.d_qk / problem.group, fla_ops.CHUNK_SIZE  # columns of a step
    columns, gates = 5 * qk + 2 * inverse, 0
    if problem.pass_ == "fwbw":
        states = problem.d_qk * problem.d_hv / fla_ops.CHUNK_SIZE
        columns += qk + problem.d_hv + inverse + states
        columns += 2 * qk + 2 * problem.d_hv + inverse + states + 2 * problem.d_qk + problem.d_hv
        columns += 2 * (problem.d_qk + qk) * (problem.group > 1) + 6 * qk
        gates = 8 * 4  # float32: g and beta twice; dg, its sums and dbeta
    a_step = columns * problem.element_bytes + gates
    return Cost(fla_ops.cost(OP, problem).flops, forward.bytes + problem.tokens * problem.heads * a_step)


IMPLEMENTATIONS = (
    replace(
        fla_ops.implementation(OP),
        name="flash_qla_gated_delta_net",
        title="Gated DeltaNet (FlashQLA)",
        build=build,
        refuses=partial(refuse, needs=NEEDS, heads=(128,)),
        cost=cost,
        owner=Owner("FlashQLA", "sky"),
        package="flash-qla",
        packages=("tilelang",),
        imports=None,
        tunes=False,
        majors=(9, 12),
    ),
)
