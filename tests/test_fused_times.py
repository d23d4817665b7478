"""The modelled time of the fused kernels, against what was measured on GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tflabench.problem import InputError, Problem
from tflabench.theory import fused
from tflabench.theory.hardware import Ceilings, find
from tflabench.theory.launches import Chip, total
from tflabench.theory.roofline import percent_of_own_roofline

FIG_4 = Problem(batch=16, heads=16, seq_len=4096, d_qk=128, d_hv=256)
WIDE = Problem(batch=8, heads=8, seq_len=8192, d_qk=256, d_hv=512)
H200 = replace(find("H200"), ceilings=Ceilings(782e12, 4.26e12, "measured", "calibrate"))
MEASURED = [(FIG_4, 0.426), (WIDE, 0.593), (FIG_4.with_(pass_="fwbw"), 1.67), (WIDE.with_(pass_="fwbw"), 3.09)]


@pytest.mark.parametrize(("problem", "measured_ms"), MEASURED)
def test_the_bound_is_below_what_was_measured_but_not_far(problem, measured_ms):
    bound = fused.runtime(problem, "sig", H200) * 1e3
    assert 0.7 * measured_ms < bound < measured_ms


FILLED = [  # versions 19 and 20
    (FIG_4.with_(batch=2, seq_len=32768, chunk_size=13184), 0.522),  # h of a short first segment beside the state pass
    (FIG_4.with_(batch=1, seq_len=65536, chunk_size=14592), 0.580),
    (WIDE.with_(batch=2, seq_len=32768, chunk_size=13184), 0.736),
    (WIDE.with_(batch=1, seq_len=65536, chunk_size=14592), 0.807),
    (FIG_4.with_(batch=4, seq_len=16384, chunk_size=16384), 0.431),  # programs of half the rows
    (FIG_4.with_(batch=2, seq_len=32768, chunk_size=16384), 0.543),  # and a state pass of four parts a segment
    (FIG_4.with_(batch=1, seq_len=65536, chunk_size=16384), 0.600),
    (WIDE.with_(batch=4, seq_len=16384, chunk_size=16384), 0.588),
    (WIDE.with_(batch=1, seq_len=65536, chunk_size=16384), 0.869),
    (FIG_4.with_(batch=4, seq_len=16384, chunk_size=8192, pass_="fwbw"), 1.90),
    (FIG_4.with_(batch=1, seq_len=65536, chunk_size=8192, pass_="fwbw"), 2.05),
]


@pytest.mark.parametrize(("problem", "measured_ms"), MEASURED)
def test_the_calibrated_model_is_within_15_percent(problem, measured_ms):
    found = total(fused.launches(problem, "sig", problem.seq_len), Chip.of(H200))
    assert sum(found.values()) * 1e3 == pytest.approx(measured_ms, rel=0.15)


@pytest.mark.parametrize(("problem", "measured_ms"), FILLED)
def test_the_calibrated_model_of_programs_that_fill_the_chip_is_within_a_sixth(problem, measured_ms):
    found = total(fused.launches(problem, "sig", problem.chunk_size or problem.seq_len), Chip.of(H200))
    assert sum(found.values()) * 1e3 == pytest.approx(measured_ms, rel=1 / 6)


@pytest.mark.parametrize(
    ("pass_", "chunk_size", "measured_ms"),
    [("fw", 64, 6.23), ("fw", 128, 3.31), ("fw", 256, 2.28), ("fwbw", 64, 16.6), ("fwbw", 128, 10.2)],
)
def test_states_that_are_written_often_take_what_memory_makes_of_them(pass_, chunk_size, measured_ms):
    """results/h200/paper-fig5. Segments are joined by ten programs a multiprocessor, which fetch a segment ahead."""
    found = total(fused.launches(WIDE.with_(pass_=pass_), "sig", chunk_size), Chip.of(H200))
    assert sum(found.values()) * 1e3 == pytest.approx(measured_ms, rel=0.2)


MAMBA_2 = Problem(batch=16, heads=64, seq_len=4096, d_qk=64, d_hv=64)
LONG = MAMBA_2.with_(batch=1, seq_len=65536, chunk_size=8192)
MEASURED_MAMBA_2 = [  # kernels/MEASURED.md, version 18
    (MAMBA_2, 0.413),
    (MAMBA_2.with_(pass_="fwbw"), 1.877),
    (LONG, 0.549),
    (LONG.with_(pass_="fwbw"), 2.176),
]


@pytest.mark.parametrize(("problem", "measured_ms"), MEASURED_MAMBA_2)
def test_the_calibrated_model_of_heads_that_share_q_and_k_is_within_10_percent(problem, measured_ms):
    launches = fused.launches(problem, "sig", problem.chunk_size or problem.seq_len, group=64)
    assert sum(total(launches, Chip.of(H200)).values()) * 1e3 == pytest.approx(measured_ms, rel=0.1)


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
    assert percent_of_own_roofline(impl.cost(problem), H200.ceilings, measured_ms / 1e3) < 100


def test_fixed_decays_are_faster_as_they_were_measured():
    launches = fused.launches(FIG_4.with_(pass_="fwbw"), "sig", 4096, gate_gradients=False)
    assert not {"gate gradients", "sums of tiles"} & {launch.name for launch in launches}
    assert sum(total(launches, Chip.of(H200)).values()) * 1e3 == pytest.approx(1.48, rel=0.15)


def test_a_state_of_more_than_256_columns_takes_two_launches():
    names = [launch.name for launch in fused.launches(WIDE.with_(pass_="fwbw"), "sig", 8192)]
    assert {name: names.count(name) for name in ("h", "dq", "dk", "dv")} == {"h": 1, "dq": 2, "dk": 2, "dv": 1}


def test_decode_has_no_walk():
    with pytest.raises(InputError, match="pass is 'decode'"):
        fused.cost(Problem(1, 1, 1, 64, 64, pass_="decode"), "sig", 64)
