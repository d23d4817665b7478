"""Compiles the kernels of a decode step for sm_80 and sm_90, without a GPU; prints what they use as JSON."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import triton
from triton.compiler import ASTSource

from tflabench.kernels.launching import COMPILED
from tflabench.kernels.tfla import step

sys.path.insert(0, str(Path(__file__).parent))
from assembled import assembled

TYPES = {
    **dict.fromkeys(["q", "k", "v", "f", "i", "h"], "*bf16"),
    "scale": "fp32",
    **dict.fromkeys(["d_qk", "d_hv", "sharing", "heads"], "i32"),
}


def compiled(kernel: Any, constants: dict[str, Any], warps: int, sm: int) -> dict[str, Any]:
    signature = {n: "constexpr" if n in constants else TYPES.get(n, "*fp32") for n in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    done, log = assembled(source, sm, {"num_warps": warps, **COMPILED})
    return {
        "kernel": kernel.__name__,
        "sm": sm,
        "constants": constants,
        "spilled_bytes": sum(map(int, re.findall(r"(\d+) bytes spill", log))),
        "shared_bytes": done.metadata.shared,
    }


def every_kernel(sm: int) -> list[dict[str, Any]]:
    found = []
    for heads, d_qk, d_hv in ((16, 64, 64), (1024, 128, 256), (8, 512, 1024)):
        tile = step.tile_of(heads, d_qk, d_hv)
        warps = tile.pop("num_warps")
        sig = {"FORGET": "sigmoid", "INPUT": "sigmoid", "TEMPERATURE": 1.0}
        exp = {"FORGET": "sigmoid", "INPUT": "exp", "TEMPERATURE": 1.0}
        mamba2 = {"FORGET": "rate", "INPUT": "softplus", "TEMPERATURE": 1.0}
        found += [
            compiled(step.advance_state, {**mamba2, "WEIGHED": False, "SKIP": True, **tile}, warps, sm),
            compiled(step.advance_state, {**sig, "WEIGHED": False, "SKIP": False, **tile}, warps, sm),
            compiled(step.advance_state, {**exp, "WEIGHED": True, "SKIP": False, **tile}, warps, sm),
            compiled(step.head_weights, {**exp, "STABILIZED": True, "D_QK": d_qk}, 1, sm),
        ]
    return found


if __name__ == "__main__":
    print(json.dumps({"triton": triton.__version__, "kernels": [row for sm in (80, 90) for row in every_kernel(sm)]}))
