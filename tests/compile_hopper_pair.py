"""Compiles the kernel for dk and dv for sm_90a, without a GPU; prints what it uses as JSON, as compile_hopper.py does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import triton
from compile_hopper import compiled

from tflabench.kernels.hopper import pair
from tflabench.kernels.hopper.launch_pair import EXPONENTS_LAYOUT, PairShape

EXPONENTS = f"tensordesc<fp32[1, 64],{EXPONENTS_LAYOUT!r}>"


def every_kernel() -> Iterator[dict[str, Any]]:
    for d_hv, dtype, states in ((256, "bf16", False), (256, "bf16", True), (256, "fp16", False), (64, "bf16", True)):
        constants = {**vars(PairShape.of(d_hv)), "FIRST": states, "LAST": states}
        name = f"{d_hv} {dtype}{' with states' if states else ''}"
        yield compiled(name, pair.pair, constants, 128, dtype, {"x_desc": EXPONENTS, "y_desc": EXPONENTS})


if __name__ == "__main__":
    print(json.dumps({"triton": triton.__version__, "kernels": list(every_kernel())}))
