"""Theoretical runtime, intensity and roofline (eqs. 112-119)."""

from __future__ import annotations

import numpy as np
import pytest

from tflabench.problem import Problem
from tflabench.theory import roofline
from tflabench.theory.chunk_size import Tradeoff
from tflabench.theory.cost import Cost
from tflabench.theory.hardware import Ceilings, find

CHIP = Ceilings(flops_per_s=100.0, bytes_per_s=10.0, provenance="given", source="")  # ridge at 10 FLOP/byte


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


def test_percent_of_own_roofline_is_the_lower_bound_over_the_time():
    assert roofline.percent_of_own_roofline(Cost(flops=300, bytes=50), CHIP, seconds=20) == 25
    assert roofline.percent_of_own_roofline(Cost(flops=300, bytes=50), CHIP, seconds=4) == 125


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
