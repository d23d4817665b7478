"""The best chunk size: eqs. (111) and (121) as printed, their generalisation, the 5% band and the memory budget.

The oracles are independent: sympy on the formulas typed from the paper's text, and brute force over every L.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import sympy

from tflabench.problem import InputError, Problem
from tflabench.theory.chunk_size import Tradeoff, chunk_sizes
from tflabench.theory.hardware import Ceilings, find

FIG_17 = Problem(batch=8, heads=8, seq_len=8192, d_qk=256, d_hv=512)
H100 = find("paper-H100").ceilings
VARIANTS = [
    (gate, pass_, counts)
    for gate in ("exp", "sig", "gla")
    for pass_ in ("fw", "fwbw")
    for counts in ("exact", "published")
]

L, d, p, F, alpha, beta, b_C = sympy.symbols("L d p F alpha beta b_C", positive=True)
FLOPS = L**2 * F * (2 * d * p + 2 * d + 6) + L**2 + L * (4 * d**2 * p + 2 * d * p + d + 11) + 2 * d**2 * p + 5
BYTES = 6 * L * d * (1 + p) + 8 * L + 2 * b_C * d**2 * p


def eq_111(d_hv, p_qk, causal_factor=0.5):
    """L_opt,FLOP of the sig forward as printed; p_qk = d_qk / d_hv."""
    return np.sqrt((2 * d_hv**2 * p_qk + 5) / (2 * causal_factor * (d_hv * (1 + p_qk) + 3) + 1))


def eq_121(d_hv, p_qk, intensity, causal_factor=0.5, state_bytes=4):
    """L_opt,runtime of the sig forward as printed, on an accelerator of intensity I_acc = alpha/beta in FLOP/byte."""
    state = 2 * d_hv**2 * p_qk
    return np.sqrt((state + 5 + intensity * state * state_bytes) / (2 * causal_factor * (d_hv * (1 + p_qk) + 3) + 1))


def optimum(time_per_step: sympy.Expr) -> sympy.Expr:
    """The positive root of the derivative with respect to L."""
    (root,) = sympy.solve(sympy.Eq(sympy.diff(time_per_step, L), 0), L)
    assert sympy.simplify(sympy.diff(time_per_step, L).subs(L, root)) == 0
    assert sympy.diff(time_per_step, L, 2).is_positive  # a minimum
    return root


def test_spot_values_of_the_paper():
    assert eq_111(512, 0.5) == pytest.approx(18.4, abs=0.05)
    assert eq_121(512, 0.5, H100.intensity) == pytest.approx(633.5, abs=0.05)


def test_eq_111_is_the_minimum_of_the_flops():
    root = sympy.lambdify((d, p, F), optimum(sympy.expand(FLOPS / L)))
    for values in [(512, 0.5, 0.5), (256, 1, 0.66), (64, 0.25, 1)]:
        assert eq_111(*values) == pytest.approx(root(*values), rel=1e-12)


def test_eq_121_is_the_minimum_of_the_runtime():
    root = sympy.lambdify((d, p, F, alpha, beta, b_C), optimum(sympy.expand((FLOPS / alpha + BYTES / beta) / L)))
    for d_hv, p_qk, causal, state_bytes in [(512, 0.5, 0.5, 4), (256, 1, 0.66, 2), (64, 0.25, 1, 4)]:
        expected = root(d_hv, p_qk, causal, 989e12, 3.35e12, state_bytes)
        assert eq_121(d_hv, p_qk, H100.intensity, causal, state_bytes) == pytest.approx(expected, rel=1e-12)


def test_the_coefficients_give_the_printed_equations_for_the_published_sig_forward():
    for state_bytes, causal in [(4, 0.5), (2, 0.66)]:
        tradeoff = Tradeoff(FIG_17, "sig", H100, causal_factor=causal, state_bytes=state_bytes)
        assert tradeoff.flop_optimal == pytest.approx(eq_111(512, 0.5, causal), rel=1e-14)
        assert tradeoff.runtime_optimal == pytest.approx(
            eq_121(512, 0.5, H100.intensity, causal, state_bytes), rel=1e-14
        )


@pytest.mark.parametrize(("gate", "pass_", "counts"), VARIANTS)
def test_the_derivative_vanishes_at_every_variants_optimum(gate, pass_, counts):
    tradeoff = Tradeoff(FIG_17.with_(pass_=pass_, dtype="float32"), gate, H100, 0.66, 2, counts)
    flops, moved = tradeoff.flops_per_chunk(L) / L, tradeoff.bytes_per_chunk(L) / L
    for value, best in [
        (flops, tradeoff.flop_optimal),
        (flops / H100.flops_per_s + moved / H100.bytes_per_s, tradeoff.runtime_optimal),
    ]:
        slope, curvature = (sympy.lambdify(L, sympy.diff(value, L, order))(best) for order in (1, 2))
        assert curvature > 0
        assert abs(slope) < 1e-9 * curvature * best


@pytest.mark.parametrize(("gate", "pass_", "counts"), VARIANTS)
@pytest.mark.parametrize("gpu", ["paper-A100", "H200", "B200", "RTX 4090"])
def test_no_chunk_size_is_faster_than_the_optima(gate, pass_, counts, gpu):
    tradeoff = Tradeoff(FIG_17.with_(pass_=pass_), gate, find(gpu).ceilings, counts=counts)
    every = tradeoff.time(np.arange(1, FIG_17.seq_len + 1))
    assert tradeoff.time(tradeoff.runtime_optimal).upper <= every.upper.min()
    assert tradeoff.time(tradeoff.overlapped_optimal).lower <= every.lower.min() * (1 + 1e-12)


def test_where_nothing_is_memory_bound_overlap_changes_nothing():
    tradeoff = Tradeoff(FIG_17, "sig", Ceilings(1e12, 10e12, "given", ""))
    assert tradeoff.overlapped_optimal == tradeoff.flop_optimal


@pytest.mark.parametrize("seq_len", [256, 700, 8192, 65536])
def test_the_band_holds_exactly_what_is_within_5_percent(seq_len):
    """Also where the optimum, 633, lies beyond the sequence."""
    tradeoff = Tradeoff(FIG_17.with_(seq_len=seq_len), "sig", H100)
    sizes = np.arange(1, seq_len + 1)
    upper = tradeoff.time(sizes).upper
    best = tradeoff.time(min(tradeoff.runtime_optimal, seq_len)).upper
    inside = sizes[upper <= 1.05 * best]
    assert tradeoff.within(0.05) == (inside[0], inside[-1])


def test_predictions_are_plain_numbers_for_one_chunk_size_and_arrays_for_many():
    tradeoff = Tradeoff(FIG_17, "exp", H100)
    sizes = np.array([64, 100, 8192])
    assert tradeoff.time(sizes).upper.tolist() == [tradeoff.time(int(size)).upper for size in sizes]
    assert tradeoff.memory(sizes).tolist() == [tradeoff.memory(int(size)) for size in sizes]


class TestRecommended:
    @pytest.mark.parametrize("gpu", ["paper-A100", "B200"])
    def test_is_the_best_power_of_two_that_the_tile_divides(self, gpu):
        tradeoff = Tradeoff(FIG_17, "sig", find(gpu).ceilings)
        allowed = [size for size in range(64, 8193, 64) if math.log2(size).is_integer()]
        assert chunk_sizes(8192) == allowed
        assert tradeoff.recommend() == min(allowed, key=lambda size: tradeoff.time(size).upper)

    def test_never_exceeds_the_sequence(self):
        assert Tradeoff(FIG_17.with_(seq_len=200), "sig", H100).recommend() == 128

    def test_a_memory_budget_forces_larger_chunks_and_keeps_the_fastest_that_fits(self):
        tradeoff = Tradeoff(FIG_17, "sig", find("paper-A100").ceilings)
        free = tradeoff.recommend()
        assert tradeoff.recommend(tradeoff.memory(free)) == free
        assert tradeoff.recommend(tradeoff.memory(free) - 1) == 2 * free
        assert tradeoff.recommend(tradeoff.memory(4 * free)) == 4 * free

    def test_a_budget_that_nothing_fits_says_how_much_would(self):
        tradeoff = Tradeoff(FIG_17, "sig", H100)
        with pytest.raises(InputError, match=r"memory_budget is 1.00 GiB: it must be at least (\d+) MiB") as error:
            tradeoff.recommend(2**30)
        enough = int(str(error.value).split("at least ")[1].split()[0])
        assert tradeoff.recommend(enough * 2**20) == 8192


class TestMemory:
    @pytest.mark.parametrize(
        ("chunk_size", "pass_", "gib"),
        [
            (64, "fw", 5.575),
            (256, "fw", 2.569),
            (4096, "fw", 1.630),
            (64, "fwbw", 11.114),
            (128, "fwbw", 7.110),
            (4096, "fwbw", 3.232),
        ],
    )
    def test_is_what_public_kernels_were_seen_to_take(self, chunk_size, pass_, gib):
        """Peak memory of mlstm_kernels 2.0.6, mLSTMsig xl_chunk, at this size on an H200; it keeps one state more."""
        tradeoff = Tradeoff(FIG_17.with_(pass_=pass_), "sig", H100)
        assert tradeoff.memory(chunk_size) / 2**30 == pytest.approx(gib, rel=0.05)

    def test_worked_out_by_hand(self):
        small = Problem(batch=2, heads=3, seq_len=10, d_qk=4, d_hv=8, dtype="float32")
        per_head = 10 * (4 + 4 + 8 + 8 + 2) * 4 + 3 * (4 * 8 * 2)  # three chunks of at most four steps
        assert Tradeoff(small, "sig", H100, state_bytes=2).memory(4) == 6 * per_head
        exp = per_head + 3 * (4 + 1) * 2 + 10 * 2 * 2  # n and m a state, and a step
        assert Tradeoff(small, "exp", H100, state_bytes=2).memory(4) == 6 * exp
        assert Tradeoff(small.with_(pass_="fwbw"), "sig", H100, state_bytes=2).memory(4) == 12 * per_head


class TestClaims:
    """What the paper says of the optimum (G.4, G.5)."""

    def test_the_runtime_optimum_is_far_above_the_flop_optimum(self):
        for d_hv, p_qk in [(512, 0.5), (256, 0.5), (128, 1)]:
            assert eq_121(d_hv, p_qk, H100.intensity) > 20 * eq_111(d_hv, p_qk)

    def test_grows_with_the_square_root_of_head_dimension_and_intensity(self):
        assert eq_121(4096, 0.5, 300) / eq_121(1024, 0.5, 300) == pytest.approx(2, rel=0.01)
        assert eq_121(512, 0.5, 1200) / eq_121(512, 0.5, 300) == pytest.approx(2, rel=0.01)

    def test_newer_gpus_want_larger_chunks_but_by_its_own_table_the_b200_does_not(self):
        """Point 8 of its summary says newer; its Table 18 gives the B200 a lower I_acc (292) than the H100 (295)."""
        v100, a100, h100, b200 = (
            Tradeoff(FIG_17, "sig", find(f"paper-{name}").ceilings).runtime_optimal
            for name in ("V100", "A100", "H100", "B200")
        )
        assert v100 < a100 < h100
        assert b200 < h100


def test_decode_has_no_chunk_size():
    with pytest.raises(InputError, match="pass is 'decode': one step has no chunks"):
        Tradeoff(FIG_17.with_(pass_="decode", seq_len=1), "sig", H100)
