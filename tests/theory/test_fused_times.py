"""The modelled time of the fused kernels, against what was measured on GPUs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tflabench.problem import InputError, Problem
from tflabench.theory import fused
from tflabench.theory.hardware import Ceilings, Gpu, find
from tflabench.theory.launches import Chip, Modelled, total
from tflabench.theory.roofline import time_bounds

SIG = Modelled("fused", "sig")
FIG_4 = Problem(batch=16, heads=16, seq_len=4096, d_qk=128, d_hv=256)
WIDE = Problem(batch=8, heads=8, seq_len=8192, d_qk=256, d_hv=512)
H200 = replace(find("H200"), ceilings=Ceilings(782e12, 4.26e12, "measured", "calibrate"))
H100 = replace(find("H100"), ceilings=Ceilings(795e12, 3.02e12, "measured", "calibrate"))
MEASURED = [
    (FIG_4, H200, 0.426), (WIDE, H200, 0.593), (FIG_4.with_(pass_="fwbw"), H200, 1.67),
    (WIDE.with_(pass_="fwbw"), H100, 3.27),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "gpu", "measured_ms"), MEASURED)
def test_the_bound_is_below_what_was_measured_but_not_far(problem, gpu, measured_ms):
    chip = Chip.of(gpu)
    bound = 0.0
    for launch in fused.launches(problem, SIG, problem.seq_len, chip.device):
        matrix = sum(launch.flops.values()) / gpu.ceilings.flops_per_s
        full = launch.waves(chip)
        memory = sum(launch.moved.values()) / gpu.ceilings.bytes_per_s
        bound += 1e3 * max(memory, matrix * math.ceil(full) / full)
    assert 0.7 * measured_ms < bound < measured_ms


MAMBA_2 = Problem(batch=16, heads=64, seq_len=4096, d_qk=64, d_hv=64)
LONG = MAMBA_2.with_(batch=1, seq_len=65536, chunk_size=8192)
MEASURED_MAMBA_2 = [  # docs/decisions/2026-11-23-small-states.md
    (MAMBA_2, 0.413),
    (MAMBA_2.with_(pass_="fwbw"), 1.877),
    (LONG, 0.549),
    (LONG.with_(pass_="fwbw"), 2.176),
]
# Milliseconds measured, and what the model makes of them: predicted over measured.
TIMES = [
    (FIG_4, 0.426, 1.10),
    (WIDE, 0.593, 1.07),
    (FIG_4.with_(pass_="fwbw"), 1.67, 1.07),
    # docs/decisions: choice-of-segments and first-segment. h of a short first segment beside the state pass:
    (FIG_4.with_(batch=2, seq_len=32768, chunk_size=13184), 0.522, 1.11),
    (FIG_4.with_(batch=1, seq_len=65536, chunk_size=14592), 0.580, 1.11),
    (WIDE.with_(batch=2, seq_len=32768, chunk_size=13184), 0.736, 1.01),
    (WIDE.with_(batch=1, seq_len=65536, chunk_size=14592), 0.807, 0.99),
    (FIG_4.with_(batch=4, seq_len=16384, chunk_size=16384), 0.431, 1.12),  # programs of half the rows
    (FIG_4.with_(batch=2, seq_len=32768, chunk_size=16384), 0.543, 1.12),  # and a state pass of four parts a segment
    (FIG_4.with_(batch=1, seq_len=65536, chunk_size=16384), 0.600, 1.11),
    (WIDE.with_(batch=4, seq_len=16384, chunk_size=16384), 0.588, 1.08),
    (WIDE.with_(batch=1, seq_len=65536, chunk_size=16384), 0.869, 0.98),
    (FIG_4.with_(batch=4, seq_len=16384, chunk_size=8192, pass_="fwbw"), 1.90, 1.08),
    (FIG_4.with_(batch=1, seq_len=65536, chunk_size=8192, pass_="fwbw"), 2.05, 1.085),
    # results/h200/paper-fig5. States are written often, and joined by ten programs a multiprocessor:
    (WIDE.with_(chunk_size=64), 6.23, 0.87),
    (WIDE.with_(chunk_size=128), 3.31, 0.935),
    (WIDE.with_(chunk_size=256), 2.28, 0.846),
    *(
        (problem, ms, ratio)
        for (problem, ms), ratio in zip(MEASURED_MAMBA_2, (0.914, 0.958, 0.942, 0.956), strict=True)
    ),
]


# docs/decisions/archive/2026-11-25-one-launch-for-both-halves.md, an H100. At 256/512 programs share columns of C.
TIMES_H100 = [
    (WIDE.with_(pass_="fwbw"), 3.27, 1.0),
    (WIDE.with_(batch=4, seq_len=16384, chunk_size=16384, pass_="fwbw"), 3.33, 0.977),
    (WIDE.with_(batch=1, seq_len=65536, chunk_size=16384, pass_="fwbw"), 3.96, 0.965),
    # More segments than fill the chip:
    (WIDE.with_(batch=4, seq_len=16384, chunk_size=8192, pass_="fwbw"), 3.69, 0.993),
    (WIDE.with_(batch=2, seq_len=32768, chunk_size=8192, pass_="fwbw"), 4.01, 0.965),
    (WIDE.with_(batch=1, seq_len=65536, chunk_size=8192, pass_="fwbw"), 4.10, 0.961),
]
EVERY_TIME = [*((*each, H200) for each in TIMES), *((*each, H100) for each in TIMES_H100)]


TOLERANCE = 0.01  # of predicted over measured time; every mutation below moves some ratio by more


def ratio(problem: Problem, measured_ms: float, gpu: Gpu) -> float:
    kernel = replace(SIG, shared=problem.heads == 64)
    found = fused.launches(problem, kernel, problem.chunk_size or problem.seq_len)
    return sum(total(found, Chip.of(gpu)).values()) * 1e3 / measured_ms


@pytest.mark.parametrize(("problem", "measured_ms", "expected", "gpu"), EVERY_TIME)
def test_the_calibrated_model_is_as_far_from_measured_times_as_it_was(problem, measured_ms, expected, gpu):
    assert ratio(problem, measured_ms, gpu) == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "problem", "measured_ms"),
    [
        *(("mamba2", *measured) for measured in MEASURED_MAMBA_2),
        ("retention", FIG_4, 0.407),
        ("retention", FIG_4.with_(pass_="fwbw"), 1.44),
        ("lightning", FIG_4.with_(pass_="fwbw"), 1.42),
        ("simple_gla", FIG_4.with_(pass_="fwbw"), 1.67),
    ],
)
def test_nothing_is_faster_than_its_bytes_and_products(name, problem, measured_ms):
    pytest.importorskip("torch")
    from tflabench.implementations.bundled import IMPLEMENTATIONS

    (impl,) = (impl for impl in IMPLEMENTATIONS if impl.name == f"hopper_{name}")
    assert impl.cost is not None
    assert time_bounds(impl.cost(problem), H200.ceilings).lower < measured_ms / 1e3


def test_fixed_decays_are_faster_as_they_were_measured():
    launches = fused.launches(FIG_4.with_(pass_="fwbw"), replace(SIG, gate_gradients=False), 4096)
    assert not {"gate gradients", "sums of tiles"} & {launch.name for launch in launches}
    fixed = sum(total(launches, Chip.of(H200)).values()) * 1e3
    assert fixed / 1.48 == pytest.approx(1.103, abs=TOLERANCE)  # decisions/archive/2026-11-22-dk-and-dv.md


def test_programs_share_a_state_of_more_than_256_columns():
    found = {launch.name: launch for launch in fused.launches(WIDE.with_(pass_="fwbw"), SIG, 8192)}
    assert [found[name].programs for name in ("h", "dq", "dk", "dv")] == [256] * 4


def test_decode_has_no_walk():
    with pytest.raises(InputError, match="pass is 'decode'"):
        fused.cost(Problem(1, 1, 1, 64, 64, pass_="decode"), SIG, 64)
