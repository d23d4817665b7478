"""What theory counts of the fused kernels of the delta rules is what their launches are given to read and write."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch
from compile_tfla import catching
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tflabench.implementations import registry
from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.sizes import USUAL, Sizes
from tflabench.kernels.delta import hopper_plan
from tflabench.kernels.delta.gating import DELTA_NET, GATED_DELTA_NET
from tflabench.kernels.delta.hopper import backward_dqk, chunkwise
from tflabench.problem import Problem
from tflabench.theory import fused_walks

NAMES = {"make_inverses": "inverses", "walk_outputs": "o", "walk_values": "dv", "walk_queries_keys": "dq, dk"}


@pytest.mark.parametrize("gate", [DELTA_NET, GATED_DELTA_NET], ids=["delta_net", "gated_delta_net"])
@pytest.mark.parametrize("pass_", ["fw", "fwbw"])
@pytest.mark.parametrize(("d_qk", "d_hv"), [(128, 128), (64, 96)])
def test_launches_move_what_is_counted(d_qk: int, d_hv: int, pass_: Any, gate: Any, monkeypatch: Any) -> None:
    problem = Problem(batch=2, heads=3, seq_len=256, d_qk=d_qk, d_hv=d_hv, dtype="bfloat16", pass_=pass_)

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(2, 3, 256, *shape, dtype=dtype, device="meta")

    g, beta = (empty(dtype=torch.float32) for _ in range(2))
    inputs = Arguments(empty(d_qk), empty(d_qk), empty(d_hv), g if gate.gated else None, beta)
    options = KernelOptions(gate, 0.1, 256, return_last_state=False, backward=pass_ == "fwbw")
    nothing: Any = defaultdict(lambda: lambda *_, **__: None)
    monkeypatch.setattr(backward_dqk, "finish_gates", nothing)  # which would be interpreted
    with catching(90) as caught:
        o, _, saved = chunkwise.forward(inputs, options)
        if pass_ == "fwbw":
            chunkwise.backward(o, None, inputs, saved, options)
    of_gates = (1 + gate.gated) * beta.nbytes
    moved = {
        NAMES[kernel.__name__]: bytes_of(args) + of_gates for kernel, args, _ in caught if kernel.__name__ in NAMES
    }
    name = "gated_delta_net" if gate.gated else "delta_net"
    counted = {launch: x.bytes * 2 * 3 * 256 for launch, x in fused_walks.delta_launches(problem, name).items()}
    if pass_ == "fwbw":
        of_sums = fused_walks.SUMS * beta.nbytes  # written by the walk, read by the kernel of the gates
        moved |= {"dq, dk": moved["dq, dk"] + of_sums, "gates": of_sums + 2 * of_gates}
    assert moved == counted


def bytes_of(args: tuple[Any, ...]) -> int:
    """Of what descriptors describe, each tensor once."""
    tensors = {id(x.base): x.base for x in args if isinstance(x, TensorDescriptor)}
    return sum(x.nbytes for x in tensors.values())


@pytest.mark.parametrize(("batch", "members", "items"), [(8, 2, 128), (2, 1, 64)])
def test_heads_that_share_take_turns_where_one_of_them_fills_the_chip(batch: int, members: int, items: int) -> None:
    sizes = Sizes(batch, heads=32, group=2, steps=4096, d_qk=128, d_hv=128)
    walk = hopper_plan.planned(sizes, USUAL, chunk_size=4096, beta_max=1, backward=True).queries_keys
    assert (walk.members, walk.items) == (members, items)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "float32"}, "takes float16 and bfloat16, not float32"),
        ({"d_qk": 256}, "takes a d_qk up to 128, not 256"),
        ({"d_hv": 512}, "takes a d_hv up to 256, not 512"),
        ({"batch": 2**12, "seq_len": 2**15}, "takes up to 268435456 steps of all heads, not 536870912"),
    ],
)
def test_what_the_bench_does_not_run_is_said_in_a_line(change: dict[str, Any], words: str) -> None:
    problem = Problem(batch=1, heads=4, seq_len=4096, d_qk=128, d_hv=128, dtype="bfloat16", pass_="fw")
    impl = registry.get("hopper_gated_delta_net")
    assert impl.refuses(problem, "cuda") is None
    assert impl.refuses(problem.with_(**change), "cuda") == words
