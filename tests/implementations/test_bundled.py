"""The bundled implementations as the bench sees them: each computes what its oracle does, or says why it cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import logsigmoid

from tflabench.bench.verify import verify
from tflabench.implementations import bundled, registry
from tflabench.implementations.adapter import Unsupported, forget_gates
from tflabench.implementations.bundled import IMPLEMENTATIONS
from tflabench.problem import Problem

RECURRENCES = {op.name: op for op in bundled.RECURRENCES}
BY_NAME = {impl.name: impl for impl in IMPLEMENTATIONS}
SEQUENCE = Problem(batch=2, heads=2, seq_len=40, d_qk=16, d_hv=32, dtype="float32", pass_="fwbw")
STEP = SEQUENCE.with_(seq_len=1, pass_="decode")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []


def agreed(name: str, problem: Problem) -> set[str]:
    """What was compared with the oracle, all of it right. Without a GPU too: Triton then interprets its kernels."""
    torch.manual_seed(0)
    case = BY_NAME[name].build(problem, DEVICE)
    output = case.forward()
    sizes = (2, problem.seq_len, 2, 32) if case.layout == "bthd" else (2, 2, problem.seq_len, 32)
    assert output.shape == sizes
    grad = torch.randn_like(output) if problem.pass_ == "fwbw" else None
    verdict = verify(case, torch.float32, grad, budget_s=10)
    assert max(error.error for error in verdict.errors) < 1e-4
    return {error.name for error in verdict.errors}


MLSTM = [impl.name for impl in IMPLEMENTATIONS if impl.family == "mlstm" and not impl.name.startswith("hopper")]


@pytest.mark.parametrize(
    ("name", "gates"), [*((name, "usual") for name in MLSTM), ("tfla_exp_xl", "closing"), ("step_sig", "closing")]
)
def test_agrees_with_its_oracle(name, gates):
    problem = (STEP if name.startswith("step") else SEQUENCE).with_(gates=gates)
    states = {"C", "n", "m"} if "exp" in name else {"C"}
    wanted = {"forward"} | (states if problem.pass_ == "decode" else {"dq", "dk", "dv", "di", "df"})
    assert agreed(name, problem) == wanted


@pytest.mark.parametrize(
    ("name", "given", "mean"),
    [
        ("tfla_sig_xl", {}, -0.0758),  # of logsigmoid(x + 3)
        ("tfla_sig_xl", {"inputs": "standard"}, -0.806),
        ("tfla_sig_xl", {"inputs": "standard", "gates": "usual"}, -0.0758),
        ("tfla_simple_gla_xl", {"gates": "medium"}, -0.806),
        ("tfla_gla_xl", {}, -0.806 / 16),
        ("fla_kda", {}, -2.5),
    ],
)
def test_gates_are_those_of_the_family_unless_others_are_asked_for(name, given, mean):
    impl = registry.get(name)
    problem = impl.with_gates(SEQUENCE.with_(seq_len=4096, **given))
    decays = logsigmoid(forget_gates(problem, DEVICE, "f", (2, 2, 4096), 2).detach())
    assert abs(float(decays.mean()) / mean - 1) < 0.05


def test_closing_gates_reset_all_heads_and_close_channels_for_a_while():
    problem = SEQUENCE.with_(gates="closing")
    g = forget_gates(problem, DEVICE, "g", (1, 2000, 2, 200), 1).detach()[0]
    closed = g == -torch.inf
    resets = closed.all(-1).all(-1)
    assert 0.005 < float(resets.float().mean()) < 0.02
    long = (closed & ~resets[:, None, None]).sum(0).float()  # by channel
    assert 0 < int((long > 50).sum()) < 12
    assert long.max() <= 100
    assert abs(float(logsigmoid(g[~closed]).mean()) + 2.5) < 0.05  # the others are strong


@pytest.mark.parametrize("form", ["tfla_{}_xl", "reference_{}", "step_{}"])
@pytest.mark.parametrize("op", RECURRENCES.values(), ids=RECURRENCES.keys())
def test_other_recurrences_agree_with_their_oracles(op, form):
    problem = STEP if form.startswith("step") else SEQUENCE
    given = {"mamba2": {"x", "dt", "B", "C"}, "simple_gla": {*"qkvg"}, "gated_retention": {*"qkvf"}}.get(
        op.name, {*"qkv"}
    )
    wanted = {"C"} if problem.pass_ == "decode" else {f"d{name}" for name in given}
    assert agreed(form.format(op.name), problem) == {"forward"} | wanted


@pytest.mark.parametrize("name", ["step_exp", "step_mamba2"])
def test_a_step_that_leaves_another_state_is_wrong(name):
    case = BY_NAME[name].build(STEP, DEVICE)
    assert case.states
    left = case.states.left
    off, coarse, short = (
        replace(case, states=replace(case.states, left=lambda change=change: {**left(), "C": change(left()["C"])}))
        for change in (lambda C: 1.01 * C, lambda C: C.bfloat16(), lambda C: C[..., :8])
    )
    verdict = verify(off, torch.float32, None, budget_s=10)
    assert (verdict.reason or "").startswith("C is off by 0.01")
    for wrong, reason in ((coarse, "the state C is bfloat16: it must be float32"), (short, "the state C has shape")):
        with pytest.raises(ValueError, match=reason):
            verify(wrong, torch.float32, None, budget_s=10)


def test_mamba2s_parameters_have_gradients_too():
    """A batch of one is where the gate can tell: it compares slices, and these sum over the batch."""
    torch.manual_seed(0)
    problem = SEQUENCE.with_(batch=1)
    case = BY_NAME["tfla_mamba2_xl"].build(problem, DEVICE)
    verdict = verify(case, torch.float32, torch.randn(1, 40, 2, 32, device=DEVICE), budget_s=10)
    assert {error.name for error in verdict.errors} > {"dA", "dD", "ddt_bias"}
    assert max(error.error for error in verdict.errors) < 1e-4


def test_theory_counts_shared_queries_once():
    problem = Problem(batch=16, heads=64, seq_len=4096, d_qk=64, d_hv=64, chunk_size=256)
    mamba2, simple_gla = (bundled.recurrence_cost(RECURRENCES[name], problem) for name in ("mamba2", "simple_gla"))
    assert mamba2.flops < simple_gla.flops
    assert mamba2.bytes < 0.7 * simple_gla.bytes


@pytest.mark.parametrize("op", ["retention", "simple_gla", "lightning", "gated_retention", "mamba2"])
def test_fused_kernels_count_tiles_not_chunks(op):
    """A chunk of the fused kernels is how often they write a state, not what they take the quadratic form of."""
    short, long = (Problem(batch=1, heads=4, seq_len=4096, d_qk=64, d_hv=64, chunk_size=L) for L in (512, 4096))
    count = BY_NAME[f"hopper_{op}"].cost
    assert count is not None
    assert count(long).flops < count(short).flops
    assert count(long).flops < 0.2 * bundled.recurrence_cost(RECURRENCES[op], long).flops


def test_fused_kernels_make_row_sums_only_for_decays_that_have_gradients():
    problem = Problem(batch=1, heads=4, seq_len=4096, d_qk=128, d_hv=128, pass_="fwbw")
    costs = {op: BY_NAME[f"hopper_{op}"].cost for op in RECURRENCES}
    counted = {op: count(problem) for op, count in costs.items() if count is not None}
    assert counted["retention"] == counted["lightning"]
    assert counted["simple_gla"] == counted["gated_retention"]
    assert counted["retention"].flops < counted["simple_gla"].flops
    assert counted["retention"].bytes < counted["simple_gla"].bytes


def test_a_wrong_oracle_is_found_out():
    case = BY_NAME["reference_exp"].build(SEQUENCE, DEVICE)
    case.oracle = BY_NAME["reference_sig"].build(SEQUENCE, DEVICE).oracle
    assert verify(case, torch.float32, torch.randn(2, 2, 40, 32, device=DEVICE), budget_s=10).reason


@pytest.mark.parametrize(
    ("name", "changes", "device", "reason"),
    [
        ("reference_exp", {}, "cpu", None),
        ("reference_exp", {"pass_": "decode"}, "cpu", "computes sequences: the decode pass is what step_* do"),
        ("step_exp", {}, "cpu", "computes single steps: the pass must be decode"),
        ("hopper_sig", {}, "cuda", "takes bfloat16 and float16, not float32"),
        ("hopper_mamba2", {"dtype": "bfloat16", "d_qk": 64, "d_hv": 64}, "cuda", None),
        ("tfla_sig_xl", {}, "cuda", None),
        ("tfla_sig_xl", {}, "cpu", "needs a CUDA device"),
        ("tfla_sig_xl", {"dtype": "float64"}, "cuda", "takes bfloat16, float16 and float32, not float64"),
        ("tfla_sig_xl", {"d_qk": 24}, "cuda", "takes a d_qk that is a multiple of 16 up to 1024, not 24"),
        (
            "tfla_sig_xl",
            {"chunk_size": 40},
            "cuda",
            "takes a chunk_size that is a multiple of 16, its smallest tile, not 40",
        ),
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
        "kernel": "reference",
        "chunk_size": 40,
    }
    details = BY_NAME["tfla_exp_limit"].build(SEQUENCE.with_(chunk_size=16), DEVICE).details
    assert details == {"kernel": "tfla_limit", "chunk_size": 16}
