"""Compiles what the GLA launchers would launch on sm_90, without a GPU, as compile_tfla.py does; prints JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import triton
from compile_tfla import Launch, catching, compiled
from compiled import EVERY

from tflabench.baselines import gla_walkthrough_kernels
from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.gla import chunkwise
from tflabench.kernels.gla.gating import GLA
from tflabench.kernels.gla.hopper import chunkwise as hopper_chunkwise
from tflabench.kernels.state import State

BOUNDS = (0, 100, 1000, 4096)
CASES: dict[str, tuple[Any, ...]] = {
    "wide": (128, 256, 256, torch.bfloat16),
    "float32": (48, 80, 128, torch.float32),
    "documents": (128, 256, 256, torch.bfloat16, BOUNDS),
    "fused": (128, 256, 2048, torch.bfloat16),
}


def launches(
    d_qk: int, d_hv: int, L: int, dtype: torch.dtype, bounds: tuple[int, ...] | None = None, *, fused: bool = False
) -> list[Launch]:
    """Every launch of forward and backward with states; of the walk-through, but for documents and fused kernels."""
    B, H, T = 1 if bounds else 2, 16, 4096
    starts = len(bounds) - 1 if bounds else B

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    q, k = (empty(B, H, T, d_qk, dtype=dtype) for _ in range(2))
    v, g, S = empty(B, H, T, d_hv, dtype=dtype), empty(B, H, T, d_qk), empty(starts, H, d_qk, d_hv)
    inputs, options = Arguments(q, k, v, g, None, State(S)), KernelOptions(GLA, 0.1, L, bounds=bounds)
    kernels = hopper_chunkwise if fused else chunkwise
    with catching(90) as caught:
        o, last, saved = kernels.forward(inputs, options)
        kernels.backward(o, last, inputs, saved, options)
        if bounds is None and not fused:
            gla_walkthrough_kernels.forward(q, k, v, g, S, scale=0.1)
    return caught


def main() -> None:
    """Compile the named cases with the Triton that is installed."""
    rows = []
    for name in sys.argv[1:] or CASES:
        caught = launches(*CASES[name], fused=name == "fused")
        once = {launch[0].__name__: launch for launch in caught}  # the last of each: backward, which does more
        if name == "fused":
            walks = [launch for launch in caught if launch[0].__name__.startswith("walk")]
            variants = {str(launch[2]["config"]): launch for launch in walks}
            variants["pairs"] = next(launch for launch in caught if launch[0].__name__ == "add_pairs_of_tiles")
            ordinary = {launch[0].__name__: launch for launch in walks if not launch[2]["config"].exact}
            once = variants if EVERY else ordinary
        rows += [compiled(launch, 90) | {"case": name} for launch in once.values()]
    json.dump({"triton": triton.__version__, "kernels": rows}, sys.stdout)


if __name__ == "__main__":
    main()
