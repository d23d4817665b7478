"""What theory counts of the fused kernels of GLA is what launches are given; sizes and segments that they take."""

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
from tflabench.kernels.gla import hopper_plan
from tflabench.kernels.gla.gating import GLA
from tflabench.kernels.gla.hopper import chunkwise, gates
from tflabench.problem import Problem
from tflabench.theory import fused_walks


@pytest.mark.parametrize("pass_", ["fw", "fwbw"])
def test_launches_move_what_is_counted(pass_: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(batch=2, heads=3, seq_len=256, d_qk=128, d_hv=256, dtype="bfloat16", pass_=pass_)

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(2, 3, 256, *shape, dtype=dtype, device="meta")

    inputs = Arguments(empty(128), empty(128), empty(256), empty(128))
    options = KernelOptions(GLA, 0.1, 256, return_last_state=False, backward=pass_ == "fwbw")
    nothing: Any = defaultdict(lambda: lambda *_, **__: None)  # which would be interpreted
    monkeypatch.setattr(gates, "look_at_tile", nothing)
    with catching(90) as caught:
        o, _, saved = chunkwise.forward(inputs, options)
        if pass_ == "fwbw":
            chunkwise.backward(o, None, inputs, saved, options)
    moved: dict[str, int] = {}
    terms = 2 * 3 * 256 * 128 * fused_walks.FLOAT
    for kernel, args, named in caught:
        if kernel.__name__ in ("make_operands", "add_pairs_of_tiles") or named["config"].exact:
            continue
        of_columns, reverse = kernel.__name__ == "walk_columns", named["config"].reverse
        name = ("dv" if reverse else "o") if of_columns else ("dk" if reverse else "dq")
        tensors = {id(x.base): x.base for x in args if isinstance(x, TensorDescriptor)}
        moved[name] = sum(x.nbytes for x in tensors.values()) + (0 if of_columns else terms)
        moved[name] += inputs.f.nbytes if name == "dk" else 0  # dg
    assert moved == {name: x.bytes * 2 * 3 * 256 for name, x in fused_walks.gla_launches(problem).items()}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "float16"}, "takes bfloat16, not float16"),
        ({"d_qk": 256}, "takes a d_qk up to 128, not 256"),
        ({"d_hv": 1024}, "takes a d_hv up to 512, not 1024"),
    ],
)
def test_what_the_bench_does_not_run_is_said_in_a_line(change: dict[str, Any], words: str) -> None:
    problem = Problem(batch=1, heads=4, seq_len=4096, d_qk=128, d_hv=128, dtype="bfloat16", pass_="fw")
    impl = registry.get("hopper_gla")
    assert impl.refuses(problem, "cuda") is None
    assert impl.refuses(problem.with_(**change), "cuda") == words


@pytest.mark.parametrize(("heads", "T", "segments"), [(256, 4096, 1), (16, 65536, 8), (16, 1024, 1), (1, 65536, 16)])
def test_sequences_are_cut_where_heads_leave_the_chip_idle(heads: int, T: int, segments: int) -> None:
    """Of 132 multiprocessors; a segment has 16 tiles at least."""
    chunk_size = hopper_plan.default_chunk_size(Sizes(1, heads, 1, T, 128, 256), USUAL)
    assert -(-T // chunk_size) == segments
