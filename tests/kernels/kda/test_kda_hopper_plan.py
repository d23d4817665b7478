"""What theory counts of the fused kernels of Kimi Delta Attention is what their launches are given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compile_tfla import catching
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tflabench.implementations import registry
from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.kda.gating import KDA
from tflabench.kernels.kda.hopper import chunkwise
from tflabench.problem import Problem
from tflabench.theory import fused_walks

NAMES = {
    "make_operands": "operands", "walk_outputs_of_channels": "o", "walk_values_of_channels": "dv",
    "gradients_of_tiles": "dq, dk, dg",
}  # fmt: skip


@pytest.mark.parametrize(("pass_", "d_qk"), [("fw", 128), ("fwbw", 128), ("fwbw", 64)])
def test_launches_move_what_is_counted(d_qk: int, pass_: Any) -> None:
    problem = Problem(batch=2, heads=3, seq_len=256, d_qk=d_qk, d_hv=128, dtype="bfloat16", pass_=pass_)

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(2, 3, 256, *shape, dtype=dtype, device="meta")

    g, beta = empty(d_qk), empty(dtype=torch.float32)
    inputs = Arguments(empty(d_qk), empty(d_qk), empty(128), g, beta)
    options = KernelOptions(KDA, 0.1, 256, return_last_state=False, backward=pass_ == "fwbw")
    with catching(90) as caught:
        o, _, saved = chunkwise.forward(inputs, options)
        if pass_ == "fwbw":
            chunkwise.backward(o, None, inputs, saved, options)
    moved: dict[str, int] = {}
    for kernel, args, _named in caught:
        tensors = {id(x.base): x.base for x in args if isinstance(x, TensorDescriptor)}
        moved[NAMES[kernel.__name__]] = sum(x.nbytes for x in tensors.values())
    of_decays = 2 * 3 * 256 * 12
    moved["operands"] += beta.nbytes + of_decays
    if pass_ == "fwbw":
        moved["dq, dk, dg"] += 2 * beta.nbytes
    assert moved == {name: x.bytes * 2 * 3 * 256 for name, x in fused_walks.kda_launches(problem).items()}


def test_what_the_bench_does_not_run_is_said_in_a_line() -> None:
    problem = Problem(batch=1, heads=4, seq_len=4096, d_qk=128, d_hv=128, dtype="bfloat16", pass_="fw")
    impl = registry.get("hopper_kda")
    assert impl.refuses(problem, "cuda") is None
    assert impl.refuses(problem.with_(d_qk=256), "cuda") == "takes a d_qk up to 128, not 256"
