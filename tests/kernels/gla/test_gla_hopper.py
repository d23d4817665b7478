"""The source of the fused kernels of Gated Linear Attention, run on the CPU (gluon_on_cpu.py), held to float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.importorskip("triton.experimental.gluon")

from gla_cases import Case, draw, failures
from gluon_on_cpu import GLA, Machine, launch_gla_on
from planted_mistakes import assert_mistake_shows

from tflabench.kernels.chunkwise_operator import setup_key
from tflabench.kernels.gla.gating import GLA as GATE

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the rest is computed in Triton's interpreter")

B16 = torch.bfloat16
SMALL = Case(130, 16, 16, dtype=B16, heads=4)  # by 3 programs
CASES = [
    SMALL,
    Case(3, 48, 80, dtype=B16, heads=2, states=True),
    Case(200, 64, 192, dtype=B16, states=True, L=64),
    Case(150, 128, 256, "uniform", L=1024, dtype=B16, states=True, layout="bthd"),
    Case(130, 16, 320, "zeros", L=1024, dtype=B16, states=True, heads=2),
    Case(130, 16, 16, "closed", L=64, dtype=B16, states=True, heads=2),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_every_gradient(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    launch_gla_on(Machine(seed=case.T, family=GLA), monkeypatch)
    assert failures(case, "hopper") == []


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(
    ("source", "right", "mistaken"),
    [
        ("columns", "inputs.keys.consumer_wait(stage)", "pass"),  # a tile that has not arrived
        ("columns", "scores.ring.producer_acquire(slot)\n        of_q", "pass\n        of_q"),  # P is overwritten
        ("columns", "tma.store_wait(pendings=OUTPUTS - 1)", "pass"),  # o is overwritten
        ("channels", "inputs.gates.consumer_wait(gate)", "pass"),
        ("channels", "inputs.targets.consumer_wait(target)", "pass"),
        ("channels", "    tma.store_wait(pendings=0)\n    return after", "    return after"),  # dq not yet written
    ],
)  # fmt: skip
def test_mistakes_show(source: str, right: str, mistaken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch_on(edit: Any, seed: int) -> None:
        launch_gla_on(Machine(seed=seed, edit=edit, family=GLA), monkeypatch)

    assert_mistake_shows(launch_on, lambda: failures(SMALL, "hopper"), f"gla/{source}", right, mistaken)


@pytest.mark.parametrize("backward", [True, False])
def test_the_operator_is_one_to_compilers(backward: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fake has the shapes and strides of what runs, in two segments."""
    launch_gla_on(Machine(seed=0, family=GLA), monkeypatch)
    q, k, v, g = draw(Case(70, 16, 32, dtype=B16))[0].values()
    key = setup_key("hopper", GATE.family, GATE.fields, torch.float32, None)
    arguments = (q, k, v, g, None, None, None, None, 0.25, 1.0, 64, backward, key, None, True, None)
    torch.library.opcheck(
        torch.ops.tflabench.chunkwise.default, arguments, test_utils=("test_schema", "test_faketensor")
    )
