"""The bundled implementations as the bench sees them: each computes what its oracle does, or says why it cannot."""

from __future__ import annotations

import pytest
import torch

from tflabench.adapter import Unsupported
from tflabench.bundled import IMPLEMENTATIONS
from tflabench.problem import Problem
from tflabench.verify import verify

BY_NAME = {impl.name: impl for impl in IMPLEMENTATIONS}
SEQUENCE = Problem(batch=2, heads=2, seq_len=40, d_qk=16, d_hv=32, dtype="float32", pass_="fwbw")
STEP = SEQUENCE.with_(seq_len=1, pass_="decode")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []


def test_names_follow_one_pattern():
    forms = (
        "tfla_{}_limit",
        "tfla_{}_xl",
        "reference_{}",
        "reference_parallel_{}",
        "reference_recurrent_{}",
        "step_{}",
    )
    assert sorted(BY_NAME) == sorted(form.format(gate) for form in forms for gate in ("exp", "sig"))
    assert all(impl.gate in impl.name for impl in IMPLEMENTATIONS if impl.gate)


@pytest.mark.parametrize("inputs", ["normal", "extreme"])
@pytest.mark.parametrize("name", BY_NAME)
def test_agrees_with_its_oracle(name, inputs):
    """Without a GPU too: Triton then interprets its kernels."""
    problem = (STEP if name.startswith("step") else SEQUENCE).with_(inputs=inputs)
    case = BY_NAME[name].build(problem, DEVICE)
    output = case.forward()
    assert output.shape == (2, 2, problem.seq_len, 32)
    grad = torch.randn_like(output) if problem.pass_ == "fwbw" else None
    verdict = verify(case, grad, budget_s=10)
    wanted = {"forward"} if grad is None else {"forward", "dq", "dk", "dv", "di", "df"}
    assert {error.name for error in verdict.errors} == wanted
    assert max(error.error for error in verdict.errors) < 1e-4


def test_a_wrong_oracle_is_found_out():
    case = BY_NAME["reference_exp"].build(SEQUENCE, DEVICE)
    case.oracle = BY_NAME["reference_sig"].build(SEQUENCE, DEVICE).oracle
    assert verify(case, torch.randn(2, 2, 40, 32, device=DEVICE), budget_s=10).reason


@pytest.mark.parametrize(
    ("name", "changes", "device", "reason"),
    [
        ("reference_exp", {}, "cpu", None),
        ("reference_exp", {"pass_": "decode"}, "cpu", "computes sequences: the decode pass is what step_* do"),
        ("step_exp", {}, "cpu", "computes single steps: the pass must be decode"),
        ("step_exp", {"pass_": "decode"}, "cpu", "computes single steps: seq_len must be 1, not 40"),
        ("step_sig", {"pass_": "decode", "seq_len": 1}, "cpu", None),
        ("tfla_sig_xl", {}, "cuda", None),
        ("tfla_sig_xl", {}, "cpu", "needs a CUDA device"),
        ("tfla_sig_xl", {"pass_": "decode"}, "cuda", "computes sequences: the decode pass is what step_* do"),
        ("tfla_sig_xl", {"dtype": "float64"}, "cuda", "takes bfloat16, float16 and float32, not float64"),
        ("tfla_sig_xl", {"d_qk": 24}, "cuda", "takes a d_qk that is a multiple of 16 up to 1024, not 24"),
        ("tfla_sig_xl", {"d_hv": 2048}, "cuda", "takes a d_hv that is a multiple of 16 up to 1024, not 2048"),
        (
            "tfla_sig_xl",
            {"chunk_size": 40},
            "cuda",
            "takes a chunk_size that is a multiple of 16, its smallest tile, not 40",
        ),
        ("tfla_sig_xl", {"chunk_size": 192}, "cuda", None),
        ("tfla_exp_limit", {"chunk_size": 64}, "cuda", None),
        (
            "tfla_exp_limit",
            {"chunk_size": 192},
            "cuda",
            "takes a chunk_size that is one tile, 16, 32, 64 or 128, not 192",
        ),
    ],
)
def test_refuses_with_a_reason(name, changes, device, reason):
    assert BY_NAME[name].refuses(SEQUENCE.with_(**changes), device) == reason


def test_what_only_the_device_can_tell_is_unsupported():
    with pytest.raises(Unsupported, match="takes a chunk_size that is a multiple of 16"):
        BY_NAME["tfla_exp_xl"].build(SEQUENCE.with_(chunk_size=24), DEVICE)


def test_rows_say_which_chunk_size_ran():
    assert BY_NAME["reference_exp"].build(SEQUENCE, DEVICE).details == {
        "kernel": "reference.chunkwise",
        "chunk_size": 40,
    }
    details = BY_NAME["tfla_exp_limit"].build(SEQUENCE.with_(chunk_size=16), DEVICE).details
    assert details == {"kernel": "tfla_limit", "chunk_size": 16}
