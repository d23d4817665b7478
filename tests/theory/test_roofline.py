"""Theoretical runtime, intensity and roofline (eqs. 112-119), and the bound of a problem."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tflabench.bench.rows_of_run import modelled
from tflabench.implementations import registry
from tflabench.problem import InputError, Problem
from tflabench.theory import roofline
from tflabench.theory.chunk_size import Tradeoff
from tflabench.theory.cost import Cost
from tflabench.theory.hardware import Ceilings, find
from tflabench.theory.roofline import Bounded, bound_s, pass_bounds

CHIP = Ceilings(flops_per_s=100.0, bytes_per_s=10.0, provenance="given", source="")  # ridge at 10 FLOP/byte
H100, H200 = (Ceilings(*rates, "given", "") for rates in ((795e12, 3.02e12), (782e12, 4.26e12)))
SMALL = Problem(batch=16, heads=16, seq_len=4096, d_qk=128, d_hv=256, chunk_size=128)
LARGE = Problem(batch=16, heads=8, seq_len=4096, d_qk=256, d_hv=512, chunk_size=128)


def test_bounds_are_the_maximum_and_the_sum():
    assert roofline.time_bounds(Cost(flops=300, bytes=50), CHIP) == (5, 8)  # moving takes longer
    assert roofline.time_bounds(Cost(flops=900, bytes=50), CHIP) == (9, 14)  # computing does


def test_runtime_of_figure_17_worked_out_by_hand():
    """Eq. (116) on an H100: 8 batches, 8 heads, T = 8192, d_hv = 512, d_qk = 256, L = 128, states in float32."""
    chunks = 8 * 8 * 8192 / 128
    moved = chunks * (6 * 128 * 512 * 1.5 + 8 * 128 + 2 * 4 * 512**2 * 0.5)
    intra = 128**2 * 0.5 * (512 + 1024 + 6) + 128**2
    flops = chunks * (intra + 128 * (4 * 512**2 * 0.5 + 512 + 512 + 11) + 2 * 512**2 * 0.5 + 5)
    time = Tradeoff(Problem(8, 8, 8192, 256, 512), "sig", find("paper-H100").ceilings).time(128)
    assert time.upper == pytest.approx(moved / 3.35e12 + flops / 989e12, rel=1e-12)
    assert time.lower == pytest.approx(moved / 3.35e12, rel=1e-12)
    assert time.upper * 1e3 == pytest.approx(2.34, abs=0.005)


def test_the_roof_has_a_slope_a_ridge_and_a_top():
    assert CHIP.intensity == 10
    assert roofline.attainable(CHIP, np.array([0.1, 5, 10, 20])).tolist() == [1, 50, 100, 100]


def test_bound_by_computing_above_the_ridge_only():
    assert not roofline.compute_bound(Cost(flops=999, bytes=100), CHIP)
    assert roofline.compute_bound(Cost(flops=1001, bytes=100), CHIP)
    assert roofline.compute_bound(Cost(flops=np.array([1, 2000]), bytes=100), CHIP).tolist() == [False, True]


def test_small_chunks_are_memory_bound_and_large_ones_compute_bound():
    """The paper's Fig. 19, and its summary: newer chips need larger chunks to leave the memory-bound side."""
    problem = Problem(8, 8, 8192, 256, 512)
    crossings = []
    for name in ("paper-V100", "paper-A100", "paper-H100"):
        tradeoff = Tradeoff(problem, "sig", find(name).ceilings)
        bound = [bool(roofline.compute_bound(tradeoff.cost(2**n), tradeoff.ceilings)) for n in range(4, 14)]
        assert (bound[0], bound[-1]) == (False, True)
        assert bound == sorted(bound)
        crossings.append(bound.index(True))
    assert crossings == sorted(crossings)


@pytest.mark.parametrize(
    ("problem", "ceilings", "forward_ms", "both_ms"),
    [
        (SMALL, H100, 0.535, 1.426),
        (LARGE, H100, 0.534, 1.474),
        (SMALL, H200, 0.379, 1.011),
        (LARGE, H200, 0.384, 1.340),
    ],
)
def test_the_bound_of_the_mlstm_at_the_sizes_of_the_paper(
    problem: Problem, ceilings: Ceilings, forward_ms: float, both_ms: float
):
    for pass_, ms in (("fw", forward_ms), ("fwbw", both_ms)):
        assert bound_s("two_gates", problem.with_(pass_=pass_), ceilings) == pytest.approx(ms / 1e3, abs=0.0005e-3)


@pytest.mark.parametrize(
    ("bounded", "gate_bytes", "reads_of_k"),
    [
        ("ungated", 0, 0), ("one_gate", 2, 0), ("two_gates", 4, 0), ("channel_gates", 2 * 128, 0), ("delta_rule", 2, 1),
        ("gated_delta_rule", 4, 1), ("channel_delta_rule", 2 * 129, 1),
    ],
)  # fmt: skip
def test_gates_are_read_in_both_passes_and_their_gradients_written(bounded: Bounded, gate_bytes: int, reads_of_k: int):
    passes = pass_bounds(bounded, SMALL.with_(pass_="fwbw"))
    assert passes
    tokens = 16 * 16 * 4096
    assert [cost.bytes / tokens for cost in passes] == [1536 + gate_bytes, 2560 + 2 * gate_bytes]
    within = [(1 + reads_of_k) * 64 * pairs for pairs in (384, 896)]
    through = [(4 + 2 * reads_of_k) * 2**15, (10 + 6 * reads_of_k) * 2**15]
    assert [cost.flops / tokens for cost in passes] == [a + b for a, b in zip(through, within, strict=True)]


def test_gates_are_as_wide_as_their_dtype():
    narrow, wide = (pass_bounds("two_gates", SMALL.with_(dtype=dtype)) for dtype in ("bfloat16", "float32"))
    assert narrow
    assert wide
    assert wide[0].bytes == 2 * narrow[0].bytes


def test_heads_of_mamba_2_share_all_q_and_k():
    """What one head of q and k for all heads of v is to one gate."""
    one = SMALL.with_(pass_="fwbw")
    assert pass_bounds("shared_keys", one) == pass_bounds("one_gate", one.with_(heads_qk=1))


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
        ("mamba2 hopper_mamba2", "shared_keys"),
        ("fla_delta_net fla_gated_delta_net fla_kda mamba mamba2_conv", None),
    ],
)
def test_every_operation_has_the_gates_it_has(names: str, bounded: str | None):
    for name in names.replace("tfla_*", "tfla_sig_xl tfla_exp_limit").split():
        assert registry.get(name).bounded == bounded, name


@pytest.mark.parametrize("name", ["fla_delta_net", "fla_gated_delta_net", "fla_kda", "mamba", "mamba2_conv"])
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
