"""Compiles the kernels of a decode step for sm_80 and sm_90, without a GPU; prints what they use as JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import triton
from assembled import assembled
from triton.compiler import ASTSource

from tflabench.kernels.common.launching import COMPILED
from tflabench.kernels.scalar import step_kernel as step
from tflabench.kernels.scalar.gates import ActivationConfig
from tflabench.kernels.state import State
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG, Gate

TYPES = {
    **dict.fromkeys(["q", "k", "v", "f", "i", "h"], "*bf16"),
    "scale": "fp32",
    **dict.fromkeys(["d_qk", "d_hv", "sharing", "heads"], "i32"),
}
TUPLES = {"inputs": step.StepInputs, "before": State, "after": State}
SIG, EXP, MAMBA2 = (ActivationConfig.of(gate) for gate in (MLSTM_SIG, MLSTM_EXP, Gate("rate", "softplus")))


def compiled(kernel: Any, config: Any, warps: int, sm: int) -> dict[str, Any]:
    def type_of(argument: str) -> Any:
        fields = TUPLES[argument]._fields if argument in TUPLES else ()
        return TUPLES[argument](*map(type_of, fields)) if fields else TYPES.get(argument, "*fp32")

    signature = {name: "constexpr" if name == "config" else type_of(name) for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs={"config": config})
    done, log = assembled(source, sm, {"num_warps": warps, **COMPILED})
    return {
        "kernel": kernel.__name__,
        "sm": sm,
        "config": repr(config),
        "spilled_bytes": sum(map(int, re.findall(r"(\d+) bytes spill", log))),
        "shared_bytes": done.metadata.shared,
    }


def every_kernel(sm: int) -> list[dict[str, Any]]:
    """Every size of tiles and every kind of gate."""
    small, usual, large = (step.tile_of(*sizes) for sizes in ((16, 64, 64), (1024, 128, 256), (8, 512, 1024)))
    return [
        compiled(step.advance_state, step.AdvanceConfig(MAMBA2, False, True, *small), 4, sm),
        compiled(step.advance_state, step.AdvanceConfig(EXP, True, False, *usual), 4, sm),
        compiled(step.advance_state, step.AdvanceConfig(SIG, False, False, *large), 4, sm),
        compiled(step.head_weights, step.WeightsConfig(EXP, True, 512), 1, sm),
    ]


if __name__ == "__main__":
    print(json.dumps({"triton": triton.__version__, "kernels": [row for sm in (80, 90) for row in every_kernel(sm)]}))
