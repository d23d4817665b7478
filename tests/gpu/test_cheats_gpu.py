"""On a GPU too kernels that cheat end as wrong, or as an error, and what does not cheat is right."""

from __future__ import annotations

import pytest
import torch
from cheats import CHEATS, SMALL, measured, problem_of, right

from tflabench.implementations import registry
from tflabench.plugin import mlstm_kernel
from tflabench.problem import Problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_found(name, monkeypatch):
    cheat = CHEATS[name]
    columns = measured(cheat.implementation, problem_of(name), monkeypatch, "cuda")
    assert columns["status"] in ("wrong", "error"), columns
    # What runs beside the stream that is timed may also be met by the check, half done.
    reasons = [cheat.reason, *["not repeatable"] * (name == "on_another_stream")]
    assert any(reason in columns["reason"] for reason in reasons)


@pytest.mark.parametrize("pass_", ["fw", "fwbw"])
def test_what_does_not_cheat_is_right(pass_, monkeypatch):
    columns = measured(mlstm_kernel("honest", right, gate="sig"), SMALL.with_(pass_=pass_), monkeypatch, "cuda")
    assert columns["reason"] is None


@pytest.mark.parametrize("name", ["tfla_sig_xl", "tfla_exp_xl", "hopper_sig", "hopper_exp", "hopper_simple_gla"])
@pytest.mark.parametrize("pass_", ["fw", "fwbw"])
def test_kernels_pass_whole(name, pass_, monkeypatch):
    """With more slices and steps than are compared directly, over which a projection goes."""
    impl, problem = registry.get(name), Problem(2, 8, 2048, 128, 128, pass_=pass_)
    if impl.majors and torch.cuda.get_device_capability()[0] not in range(impl.majors[0], impl.majors[1] + 1):
        pytest.skip("needs a Hopper GPU")
    columns = measured(impl, problem, monkeypatch, "cuda")
    assert columns["reason"] is None
    assert columns["details"]["projected_slices"] == 16
