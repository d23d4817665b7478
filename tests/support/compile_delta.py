"""Compiles what the launchers of the delta rule would launch on sm_90, without a GPU, as compile_tfla.py does: JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import torch
import triton
from compile_tfla import Launch, catching, compiled
from compiled import EVERY

from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.delta import chunkwise, normalize_kernel
from tflabench.kernels.delta.gating import DELTA_NET, GATED_DELTA_NET, DeltaGate
from tflabench.kernels.delta.hopper import chunkwise as hopper_chunkwise
from tflabench.kernels.delta.normalize import EPSILON
from tflabench.kernels.kda import chunkwise as kda_chunkwise
from tflabench.kernels.kda.gating import KDA, KdaGate
from tflabench.kernels.kda.hopper import chunkwise as kda_hopper_chunkwise
from tflabench.kernels.state import State

CASES: dict[str, tuple[Any, ...]] = {  # sm, d_qk, d_hv, dtype, gate, bounds of documents
    "wide": (90, 128, 256, torch.bfloat16, GATED_DELTA_NET, None),
    "two_parts": (90, 128, 128, torch.float16, DeltaGate(beta_max=2), None),
    "widest": (90, 256, 512, torch.bfloat16, DELTA_NET, None),
    "float32": (90, 64, 64, torch.float32, GATED_DELTA_NET, None),
    "documents": (90, 128, 256, torch.bfloat16, DELTA_NET, (0, 100, 1000, 4096)),
    "older": (80, 128, 256, torch.bfloat16, GATED_DELTA_NET, None),
    "kda": (90, 128, 128, torch.bfloat16, KDA, None),
    "kda_older": (80, 128, 128, torch.bfloat16, KDA, None),
    "kda_widest": (90, 128, 512, torch.bfloat16, KDA, None),
    "fused": (90, 128, 128, torch.bfloat16, GATED_DELTA_NET, None),
    "fused_documents": (90, 128, 128, torch.float16, GATED_DELTA_NET, (0, 100, 1000, 4096)),
    "fused_kda": (90, 128, 128, torch.bfloat16, KdaGate(l2_normalize=True), None),
    "fused_two_parts": (90, 64, 256, torch.bfloat16, DeltaGate(gated=False, beta_max=2), None),
}


def launches(
    sm: int, d_qk: int, d_hv: int, dtype: torch.dtype, gate: DeltaGate, bounds: tuple[int, ...] | None,
    *, fused: bool = False,
) -> list[Launch]:  # fmt: skip
    """Every launch of forward and backward with states, of heads of v two of which share one of q and k."""
    B, H, T = 1 if bounds else 2, 16, 4096

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    of_channels, of_steps = (kda_chunkwise, kda_hopper_chunkwise), (chunkwise, hopper_chunkwise)
    kernels = (of_channels if gate.forget_of == "channel" else of_steps)[fused]
    G = H if kernels is kda_chunkwise else H // 2
    q, k, v = (empty(B, heads, T, d, dtype=dtype) for heads, d in ((G, d_qk), (G, d_qk), (H, d_hv)))
    g, beta = empty(B, H, T, *[d_qk] * (gate.forget_of == "channel")) if gate.gated else None, empty(B, H, T)
    S = empty(len(bounds) - 1 if bounds else B, H, d_qk, d_hv)
    inputs, options = (
        Arguments(q, k, v, g, beta, State(S)),
        KernelOptions(gate, 0.1, T if fused else 256, bounds=bounds),
    )
    with catching(sm) as caught:
        if kernels is hopper_chunkwise:
            kernels.forward(inputs, options._replace(gate=replace(gate, l2_normalize=True), backward=False))
        o, last, saved = kernels.forward(inputs, options)
        kernels.backward(o, last, inputs, saved, options)
        if kernels is chunkwise:
            normalize_kernel.normalize(q, None, EPSILON)
            normalize_kernel.normalize(q, q, EPSILON)
    return caught


FUSED = (
    "make_inverses", "walk_outputs", "walk_values", "walk_queries_keys", "finish_gates", "make_operands",
    "walk_outputs_of_channels", *["walk_values_of_channels", "gradients_of_tiles"] * EVERY,
)  # fmt: skip
KDA_KERNELS = ("tile_operands", "kda_outputs", "kda_gradients", *["kda_tile_gradients"] * EVERY)  # the last takes long
OWN = (*KDA_KERNELS, "tile_inverses", "walk_errors", "walk_gradients", "normalize_rows", *FUSED)


def main() -> None:
    """Compile kernels of the delta rule, and variants of others that only it launches, with the installed Triton."""
    rows: list[dict[str, Any]] = []
    for name in sys.argv[1:] or CASES:
        caught = launches(*CASES[name], fused=name.startswith("fused"))
        variants: dict[tuple[str, str], Launch] = {}  # of a kernel, or the last of each: backward, which does more
        for launch in caught:
            kernel, config = launch[0].__name__, str(launch[2].get("config"))
            if kernel in OWN or (kernel == "parallel_outputs" and "strict=True" in config):  # no other family's is
                variants[kernel, config * EVERY] = launch
        rows += [compiled(launch, CASES[name][0]) | {"case": name} for launch in variants.values()]
    json.dump({"triton": triton.__version__, "kernels": rows}, sys.stdout)


if __name__ == "__main__":
    main()
