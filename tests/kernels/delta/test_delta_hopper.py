"""The source of the fused kernels of the delta rules, run on the CPU (gluon_on_cpu.py), held to float64."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.importorskip("triton.experimental.gluon")

from delta_cases import Case, distance, distances_of_documents, draw, failures
from gluon_on_cpu import DELTA, Machine, launch_delta_on
from planted_mistakes import assert_mistake_shows

from tflabench import ops
from tflabench.kernels.chunkwise_operator import setup_key
from tflabench.kernels.common import device
from tflabench.kernels.common.sizes import USUAL, Sizes
from tflabench.kernels.delta import hopper_plan as plans
from tflabench.kernels.delta.gating import GATED_DELTA_NET
from tflabench.kernels.delta.hopper import chunkwise, walks
from tflabench.kernels.delta.hopper.chunkwise import refuses
from tflabench.kernels.delta.hopper.tiles import NormalizedGates

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the rest is computed in Triton's interpreter")

B16 = torch.bfloat16
SMALL = Case(200, 16, 16, L=1024, states=True, heads=2, sharing=2, dtype=B16)  # 4 heads, by 3 programs
CASES = [
    Case(3, 48, 80, dtype=B16, heads=2, states=True),
    Case(64, 128, 128, "none", "alike", 1.0, heads=2, dtype=B16, layout="bthd"),
    Case(200, 64, 192, "resets", beta=2.0, sharing=2, dtype=B16, states=True),  # in segments of one tile
    Case(200, 16, 16, "none", "alike", 1.0, L=128, dtype=B16),
    Case(130, 96, 192, "resets", "repeated", 1.0, L=1024, dtype=B16, states=True),
    Case(100, 128, 256, "strong", beta=2.0, L=1024, dtype=B16, states=True),
    Case(150, 64, 64, "open", "alike", 2.0, L=1024, dtype=B16, heads=2),
    # Some steps have a beta of 0, and of a segment of two tiles nothing is left of the first.
    Case(260, 16, 48, "strong", beta=1.0, L=128, dtype=torch.float16, states=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_every_gradient(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    launch_delta_on(Machine(seed=case.T, family=DELTA), monkeypatch)
    assert failures(case, "hopper") == []


@pytest.mark.parametrize("gates", ["none", "strong"])
def test_documents_are_one_launch(gates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several tiles, of one, of none, and of whole tiles: none writes where another one does."""
    machine = Machine(seed=1, family=DELTA)
    launch_delta_on(machine, monkeypatch)
    assert max(distances_of_documents(gates, torch.float16, (0, 7, 150, 150, 214, 290), "hopper")) < 2e-3


@pytest.mark.parametrize("seed", range(3))
def test_right_in_any_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the mistakes below are tried, but without one."""
    launch_delta_on(Machine(seed=seed, family=DELTA), monkeypatch)
    assert failures(SMALL, "hopper") == []


@pytest.mark.parametrize(
    ("source", "right", "mistaken"),
    [
        ("walk", "inputs.keys.consumer_wait(stage)", "pass"),  # a tile that has not arrived
        ("walk", "scores.ring.producer_acquire(slot)", "pass"),  # scores are overwritten
        ("walk", "ring.producer_acquire(stage)", "pass"),  # a stage is overwritten
        ("walks", "scores.ring.consumer_wait(slot)", "pass"),
        ("walks", "tma.store_wait(pendings=1)\n        barrier()  # D", "barrier()  # D"),
        ("walks", "tma.store_wait(pendings=2)", "pass"),  # dv is overwritten
        ("backward_dqk", "inputs.keys.consumer_wait(key)", "pass"),
        ("backward_dqk", "scores.ring.producer_acquire(slot)", "pass"),
        ("backward_dqk", "    tma.store_wait(pendings=0)\n    barrier()", "    barrier()"),  # dq, dk not yet written
    ],
)  # fmt: skip
def test_mistakes_show(source: str, right: str, mistaken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch_on(edit: Any, seed: int) -> None:
        launch_delta_on(Machine(seed=seed, edit=edit, family=DELTA), monkeypatch)

    assert_mistake_shows(launch_on, lambda: failures(SMALL, "hopper"), f"delta/{source}", right, mistaken)


def test_without_gradients_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """And o is the same to the bit."""
    launch_delta_on(Machine(seed=2, family=DELTA), monkeypatch)
    inputs: Any = draw(Case(70, 16, 16, dtype=B16))[0]
    wanted = ops.gated_delta_net(**{name: x.requires_grad_() for name, x in inputs.items()}, implementation="hopper")
    kept: list[Any] = []

    def launch(walk: Any, outputs: Any, *args: Any, **options: Any) -> None:
        kept.append(outputs[1])
        walks.launch_walk(walk, outputs, *args, **options)

    monkeypatch.setattr(chunkwise, "launch_walk", launch)
    with torch.no_grad():
        assert torch.equal(ops.gated_delta_net(**inputs, implementation="hopper"), wanted)
    assert kept == [None]


@pytest.mark.parametrize("length", [1e-3, 300.0])
@pytest.mark.parametrize("options", [{}, {"chunk_size": 64, "beta_max": 2}, {"cu_seqlens": torch.tensor([0, 70, 150])}])
def test_walks_divide_by_norms_without_gradients(
    options: dict[str, Any], length: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are no farther from float64 than where q and k have been divided before, however long these are."""
    launch_delta_on(Machine(seed=4, family=DELTA), monkeypatch)
    inputs: Any = draw(Case(150, 64, 80, sharing=2, dtype=B16))[0]
    inputs |= {name: inputs[name] * length * (1 + torch.rand(1, 1, 150, 1)).to(B16) for name in "qk"}
    options |= {"l2_normalize": True, "return_last_state": True}
    divides: list[bool] = []

    def launch(*args: Any, gates: Any, **options: Any) -> None:
        divides.append(isinstance(gates, NormalizedGates))
        walks.launch_walk(*args, gates=gates, **options)

    monkeypatch.setattr(chunkwise, "launch_walk", launch)
    walked = ops.gated_delta_net(**inputs, **options, implementation="hopper")
    assert all(divides)
    before = ops.gated_delta_net(**inputs | {"v": inputs["v"].requires_grad_()}, **options, implementation="hopper")
    assert not divides[-1]
    wide = {name: x.detach().double() for name, x in inputs.items()}
    exact = ops.gated_delta_net(**wide, **options, implementation="reference")
    for x, y, truth in zip(walked, before, exact, strict=True):
        x, y, truth = (z if isinstance(z, torch.Tensor) else z.C for z in (x, y, truth))
        assert distance(x, truth) <= 1.1 * distance(y, truth)


@pytest.mark.parametrize("backward", [True, False])
def test_the_operator_is_one_to_compilers(backward: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fake has the shapes and strides of what runs, in one segment and in two."""
    launch_delta_on(Machine(seed=0, family=DELTA), monkeypatch)
    q, k, v, g, beta = draw(Case(70, 16, 32, heads=1, sharing=2, dtype=B16))[0].values()
    key = setup_key("hopper", GATED_DELTA_NET.family, GATED_DELTA_NET.fields, torch.float32, None)
    for chunk_size in (None, 64):
        arguments = (q, k, v, g, beta, None, None, None, 0.25, 1.0, chunk_size, backward, key, None, True, None)
        torch.library.opcheck(
            torch.ops.tflabench.chunkwise.default, arguments, test_utils=("test_schema", "test_faketensor")
        )


@pytest.mark.parametrize(
    ("d_qk", "d_hv", "dtype", "words"),
    [
        (144, 64, B16, "takes a d_qk up to 128, not 144"),
        (64, 272, B16, "takes a d_hv up to 256, not 272"),
        (64, 64, torch.float32, "takes float16 and bfloat16, not float32"),
    ],
)
def test_what_is_not_taken_is_said_in_a_line(d_qk: int, d_hv: int, dtype: Any, words: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(device, "figures", lambda _: USUAL)
    on_gpu: Any = SimpleNamespace(dtype=dtype, device=torch.device("cuda"), shape=(1, 1, 8, d_qk))
    v = torch.zeros(1, 1, 8, d_hv, device="meta")
    assert refuses(on_gpu, v, gate=GATED_DELTA_NET, chunk_size=64) == words
    on_cpu = on_gpu.__class__(**{**vars(on_gpu), "device": torch.device("cpu")})
    assert refuses(on_cpu, v, gate=GATED_DELTA_NET, chunk_size=64) == "needs a GPU of compute capability 9.0, not cpu"


@pytest.mark.parametrize(
    ("heads", "T", "d_hv", "segments"),
    [(256, 4096, 128, 1), (16, 65536, 128, 8), (64, 65536, 128, 1), (16, 1024, 128, 1), (1, 65536, 64, 16)],
)  # fmt: skip
def test_sequences_are_cut_where_heads_leave_the_chip_idle(heads: int, T: int, d_hv: int, segments: int) -> None:
    """Of 132 multiprocessors; a segment has 16 tiles at least."""
    chunk_size = plans.default_chunk_size(Sizes(1, heads, 1, T, 128, d_hv), USUAL)
    assert -(-T // chunk_size) == segments
