"""The bound of a problem, and the two percentages: of it, and of an implementation's own roofline."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from repository import ROOT

from tflabench.bench.theory_columns import modelled
from tflabench.implementations import registry
from tflabench.problem import InputError, Problem
from tflabench.theory.cost import Cost
from tflabench.theory.hardware import Ceilings, custom
from tflabench.theory.problem_bound import Bounded, bound_s, pass_bounds

H100, H200 = custom(795, 3.02).ceilings, custom(782, 4.26).ceilings
SMALL = Problem(batch=16, heads=16, seq_len=4096, d_qk=128, d_hv=256, chunk_size=128)
LARGE = Problem(batch=16, heads=8, seq_len=4096, d_qk=256, d_hv=512, chunk_size=128)


@pytest.mark.parametrize(
    ("problem", "ceilings", "forward_ms", "both_ms"),
    [
        (SMALL, H100, 0.536, 1.431),
        (LARGE, H100, 0.535, 1.475),
        (SMALL, H200, 0.380, 1.014),
        (LARGE, H200, 0.384, 1.340),
    ],
)
def test_the_bound_of_the_mlstm_at_the_sizes_of_the_paper(
    problem: Problem, ceilings: Ceilings, forward_ms: float, both_ms: float
):
    for pass_, ms in (("fw", forward_ms), ("fwbw", both_ms)):
        assert bound_s("two_gates", problem.with_(pass_=pass_), ceilings) == pytest.approx(ms / 1e3, abs=0.0005e-3)


@pytest.mark.parametrize(
    ("bounded", "gate_bytes"),
    [("ungated", 0), ("one_gate", 4), ("two_gates", 8), ("channel_gates", 2 * 128)],
)
def test_gates_are_read_in_both_passes_and_their_gradients_written(bounded: Bounded, gate_bytes: int):
    passes = pass_bounds(bounded, SMALL.with_(pass_="fwbw"))
    assert passes
    tokens = 16 * 16 * 4096
    assert [cost.bytes / tokens for cost in passes] == [1536 + gate_bytes, 2560 + 2 * gate_bytes]
    assert [cost.flops / tokens for cost in passes] == [4 * 2**15 + 64 * 384, 10 * 2**15 + 64 * 896]


def test_the_products_within_a_chunk_are_of_64_steps_or_of_the_sequence():
    for T, t in ((16, 16), (64, 64), (65536, 64)):
        passes = pass_bounds("ungated", SMALL.with_(seq_len=T))
        assert passes
        assert passes[0].flops / (16 * 16 * T) == 4 * 2**15 + t * 384


def test_attention_has_no_state_and_the_products_of_all_steps():
    passes = pass_bounds("attention", SMALL.with_(pass_="fwbw"))
    assert passes
    tokens = 16 * 16 * 4096
    assert [cost.flops / tokens for cost in passes] == [4096 * 384, 4096 * 896]
    assert [cost.bytes / tokens for cost in passes] == [1536, 2560]


def test_an_unknown_kind_is_named():
    with pytest.raises(InputError, match="bounded is 'mlstm': it must be one of attention, ungated, one_gate"):
        pass_bounds("mlstm", SMALL)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("names", "bounded"),
    [
        ("tfla_* hopper_exp nxai_sig_xl reference_recurrent_exp", "two_gates"),
        ("hopper_retention hopper_lightning fla_retention fla_lightning fla_linear lightning_attention_2", "ungated"),
        ("hopper_simple_gla hopper_gated_retention fla_simple_gla fla_simple_gla_fused", "one_gate"),
        ("fla_gla fla_gla_fused", "channel_gates"),
        ("sdpa sdpa_cudnn flash_attention_2 flash_attention_3 flash_attention_4", "attention"),
        ("fla_delta_net fla_gated_delta_net fla_kda mamba mamba2 mamba2_conv hopper_mamba2", None),
    ],
)
def test_every_operation_has_the_gates_it_has(names: str, bounded: str | None):
    for name in names.replace("tfla_*", "tfla_sig_xl tfla_exp_limit").split():
        assert registry.get(name).bounded == bounded, name


@pytest.mark.parametrize(
    "name", ["fla_delta_net", "fla_gated_delta_net", "fla_kda", "mamba", "mamba2", "hopper_mamba2"]
)
def test_where_there_is_no_formula_there_is_no_percentage(name: str):
    columns = modelled(registry.get(name), SMALL, H200, ms=1.0)
    assert columns["percent_of_bound"] is None
    assert columns["percent_of_own_roofline"] > 0


def test_a_decode_step_has_no_bound():
    step = SMALL.with_(seq_len=1, chunk_size=None, pass_="decode")
    columns = modelled(registry.get("step_sig"), step, H200, ms=1.0)
    assert columns["percent_of_bound"] is None
    assert columns["percent_of_own_roofline"] > 0


@pytest.mark.parametrize("pass_", ["fw", "fwbw"])
@pytest.mark.parametrize("name", ["hopper_sig", "fla_simple_gla", "sdpa"])
def test_doing_the_work_twice_halves_the_percentage_of_the_bound_and_keeps_the_other(name: str, pass_: str):
    once = registry.get(name)
    problem = SMALL.with_(pass_=pass_)

    def doubled(problem: Problem) -> Cost:
        count = once.count(problem)
        return Cost(flops=2 * count.flops, bytes=2 * count.bytes)

    first = modelled(once, problem, H200, ms=3.0)
    second = modelled(replace(once, cost=doubled), problem, H200, ms=6.0)
    assert second["percent_of_bound"] == pytest.approx(first["percent_of_bound"] / 2)
    assert second["percent_of_own_roofline"] == pytest.approx(first["percent_of_own_roofline"])


def test_the_percentage_does_not_depend_on_which_kernel_computes_the_problem():
    percents = {
        modelled(registry.get(name), SMALL, H200, ms=2.0)["percent_of_bound"]
        for name in ("hopper_sig", "tfla_exp_xl", "nxai_exp_xl", "reference_sig")
    }
    assert len(percents) == 1


def test_without_a_time_there_is_no_percentage():
    assert not [name for name in modelled(registry.get("sdpa"), SMALL, H200, None) if name.startswith("percent")]


def test_the_bound_needs_no_torch():
    code = "import sys, tflabench.theory.problem_bound; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
