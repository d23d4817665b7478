"""The source of the fused kernels of Kimi Delta Attention, run on the CPU (gluon_on_cpu.py), held to float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.importorskip("triton.experimental.gluon")

from delta_cases import Case, distance, draw, failures, log_decays
from gluon_on_cpu import KDA, Machine, launch_delta_on
from planted_mistakes import assert_mistake_shows
from torch import Tensor

from tflabench import ops
from tflabench.kernels.chunkwise_operator import setup_key
from tflabench.kernels.common.sizes import Sizes
from tflabench.kernels.kda.gating import KDA as GATE
from tflabench.kernels.kda.hopper import chunkwise, operands

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the rest is computed in Triton's interpreter")

B16 = torch.bfloat16
Kda = partial(Case, channels=True, dtype=B16)
SMALL = Kda(130, 16, 16, "closing", L=1024, states=True, heads=2, sharing=2)  # 4 heads, by 3 programs
CASES = [
    Kda(15, 48, 80, heads=4, sharing=2, states=True),
    Kda(64, 128, 128, "open", "alike", 1.0, layout="bthd"),
    Kda(150, 64, 192, "resets", beta=2.0, sharing=2, states=True),  # in segments of one tile, two pieces of v
    Kda(130, 96, 128, "closing", "repeated", heads=3, L=1024, states=True),
    Kda(100, 64, 64, "strong", "alike", 2.0, heads=4, L=1024),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_every_gradient(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    launch_delta_on(Machine(seed=case.T, newer=case.T % 2 == 0, family=KDA), monkeypatch)
    assert failures(case, "hopper") == []


@pytest.mark.parametrize(
    ("source", "right", "mistaken"),
    [
        ("delta/walk", "ring.producer_acquire(stage)", "pass"),  # a slot is overwritten
        ("delta/walks", "tma.store_wait(pendings=1)  # Z", "pass  # Z"),  # a state is overwritten
        ("kda/gradients", "mbarrier.wait(full, 0)\n    dq", "dq"),  # q and k that have not arrived
        ("kda/operands", "mbarrier.wait(loaded.index(c), 0)\n        g_block", "g_block"),
    ],
)  # fmt: skip
def test_mistakes_show(source: str, right: str, mistaken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch_on(edit: Any, seed: int) -> None:
        launch_delta_on(Machine(seed=seed, edit=edit, family=KDA), monkeypatch)

    assert_mistake_shows(launch_on, lambda: failures(SMALL, "hopper"), source, right, mistaken)


def test_without_gradients_o_is_the_same_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    launch_delta_on(Machine(seed=2, family=KDA), monkeypatch)
    inputs: Any = draw(Kda(70, 16, 16))[0]
    wanted = ops.kda(**{name: x.requires_grad_() for name, x in inputs.items()}, implementation="hopper")
    with torch.no_grad():
        assert torch.equal(ops.kda(**inputs, implementation="hopper"), wanted)


@pytest.mark.parametrize("length", [1e-3, 300.0])
def test_operands_are_divided_by_norms_without_gradients(length: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """And o is no farther from float64 than where q and k have been divided before, however long these are."""
    launch_delta_on(Machine(seed=3, family=KDA), monkeypatch)
    inputs: Any = draw(Kda(100, 48, 64, "closing", sharing=2))[0]
    inputs |= {name: inputs[name] * length * (1 + torch.rand(1, 1, 100, 1)).to(B16) for name in "qk"}
    divides: list[bool] = []

    def launch(*args: Any, normalizes: bool, **others: Any) -> Any:
        divides.append(normalizes)
        return operands.launch_operands(*args, normalizes=normalizes, **others)

    monkeypatch.setattr(chunkwise, "launch_operands", launch)
    inside = ops.kda(**inputs, l2_normalize=True, implementation="hopper")
    before = ops.kda(**inputs | {"v": inputs["v"].requires_grad_()}, l2_normalize=True, implementation="hopper")
    assert divides == [True, False]
    wide = {name: x.detach().double() for name, x in inputs.items()}
    exact = ops.kda(**wide, l2_normalize=True, implementation="reference")
    assert distance(inside, exact) <= 1.1 * distance(before, exact)


@pytest.mark.parametrize("backward", [True, False])
def test_the_operator_is_one_to_compilers(backward: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fake has the shapes and strides of what runs, in two segments."""
    launch_delta_on(Machine(seed=0, family=KDA), monkeypatch)
    q, k, v, g, beta = draw(Kda(70, 16, 32, heads=1, sharing=2))[0].values()
    key = setup_key("hopper", GATE.family, GATE.fields, torch.float32, None)
    arguments = (q, k, v, g, beta, None, None, None, 0.25, 1.0, 64, backward, key, None, True, None)
    torch.library.opcheck(
        torch.ops.tflabench.chunkwise.default, arguments, test_utils=("test_schema", "test_faketensor")
    )


def tiles(x: Tensor) -> Tensor:
    """(B, H, T, d) as (B, H, tiles, 64, d) in float64, with zeros beyond T."""
    return torch.nn.functional.pad(x.double(), (0, 0, 0, -x.shape[2] % 64)).unflatten(2, (-1, 64))


@pytest.mark.parametrize("gates", ["usual", "strong", "closing"])
def test_operands_of_a_tile(gates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the gates: their sums are those of the recurrence, and every factor is in range."""
    monkeypatch.setattr(operands, "make_operands", Machine(family=KDA).kernels["make_operands"])
    torch.manual_seed(0)
    q, k = (torch.randn(1, 1, 100, 80).to(B16) for _ in range(2))
    g = log_decays(gates, (1, 2, 100, 80)).to(B16 if gates == "usual" else torch.float32)
    made = operands.launch_operands(
        q, k, g, torch.ones(1, 2, 100), sizes=Sizes(1, 2, 2, 100, 80, 16), scale=0.1, parts=1
    )
    q, k, b = tiles(q), tiles(k), tiles(g).clamp_min(-100).cumsum(3)
    weights = (b[..., :, None, :] - b[..., None, :, :]).clamp_max(0).exp()
    p = torch.einsum("bhnic,bhnjc,bhnijc->bhnij", *(x.expand(-1, 2, -1, -1, -1) for x in (q, k)), weights).tril()
    end = b[..., -1:, :]
    wanted = (0.1 * q * b.exp(), k * (end - b).exp(), 0.1 * p)
    for x, y in zip((made.query, made.written_key, made.p), wanted, strict=True):
        assert distance(tiles(x), y) < 5e-3
    assert distance(made.decays.unflatten(2, (-1, 192))[..., :80], end[:, :, :, 0].exp()) < 1e-5
