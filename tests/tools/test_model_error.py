"""Rows held to both models: which are judged, what is fitted, and the errors that the package comes with."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import model_error
import numpy as np
import pytest
from committed import committed_checkout
from model_error import JudgedRow, errors_by_gpu, judge, median_and_worst
from synthetic import row, write

from tflabench.rows.load import find_results, read_results
from tflabench.rows.schema import Row
from tflabench.theory import calibrated, held_out
from tflabench.theory.hardware import Ceilings, find
from tflabench.theory.launches import Modelled

WIDE = {"batch": 8, "heads": 8, "seq_len": 8192, "d_qk": 256, "d_hv": 512}
ROOFS = {"flops_per_s": 782e12, "bytes_per_s": 4.26e12, "provenance": "measured", "source": "calibrate"}
ROWS = [
    *(row("tfla_sig_xl", ms, chunk_size=size, **WIDE) for size, ms in ((128, 2.12), (256, 2.00), (512, 2.10))),
    row("nxai_exp_xl", 5.48, chunk_size=256, **WIDE),
    row("hopper_sig", 0.667, chunk_size=8192, **WIDE),
    row("tfla_sig_xl", 0.9, chunk_size=256),  # heads of 128/256: of those that the constant is fitted on
]


def judged(folder: Path, rows: list[Row], **run: object) -> list[JudgedRow]:
    return judge([read_results(write(folder, rows, run={"ceilings": {"bfloat16": ROOFS}, **run}))])[0]


def test_only_rows_that_the_model_describes_are_judged_and_others_counted(tmp_path):
    others = [
        row("tfla_sig_xl", None, seq_len=512),  # no time
        row("tfla_sig_xl", dtype="float32", seq_len=1024),
        row("hopper_sig", kernel_version=0),
        row("tfla_sig_xl", ranks=2),
        row("sdpa"),
    ]
    rows, counts = judge([read_results(write(tmp_path, [*ROWS, *others]))])
    assert len(rows) == len(ROWS)
    assert counts == Counter({"tfla_sig_xl": 2, "hopper_sig, an older version": 1, "sdpa": 1})


def test_a_point_that_a_device_measured_twice_counts_once(tmp_path):
    for n in range(2):
        write(tmp_path / str(n), [row(run_id=str(n))])
    assert len(judge(find_results(tmp_path))[0]) == 1


def test_the_calibrated_model_stands_under_the_roofs_of_the_run_or_the_datasheet(tmp_path):
    assert judged(tmp_path / "measured", ROWS)[0].chip.ceilings == Ceilings(**ROOFS)  # type: ignore[arg-type]
    assert judged(tmp_path / "bare", ROWS, ceilings={})[0].chip.ceilings == find("H200").ceilings


def test_rows_are_held_out_by_gpu_and_head_size(tmp_path):
    assert [row.held_out for row in judged(tmp_path / "h200", ROWS)] == [True] * 5 + [False]
    elsewhere = [row("tfla_sig_xl", device="NVIDIA H100 80GB HBM3")]
    assert judged(tmp_path / "h100", elsewhere)[0].held_out


def test_errors(tmp_path):
    first = replace(judged(tmp_path, ROWS)[0], measured=2.0, published=1.0, terms={"states": 1.0, "waiting": 1.5})
    assert first.error == 0.25
    assert median_and_worst([0.1, -0.4, 0.2]) == (0.2, -0.4)
    assert median_and_worst([0.1, -0.3]) == (pytest.approx(0.2), -0.3)
    short = replace(first, measured=10.0, problem=first.problem.with_(batch=1))
    (error,) = errors_by_gpu([first, replace(first, measured=5.0), short])
    assert asdict(error) == {
        "gpu": "H200 SXM", "algorithm": "tfla", "rows": 2, "median": 0.375, "worst": -0.5, "held_out": False,
        "groups": 1, "of_groups": 0.125, "by_rule": None, "beside_rule": None, "few": 1, "of_few": 0.75,
    }  # fmt: skip


def test_published_is_equation_116_on_the_datasheet(tmp_path):
    problem = judged(tmp_path, ROWS)[2].problem
    L, d, p, b_C = 512, 512, 0.5, 4
    flops = L**2 * 0.5 * (2 * d * p + 2 * d + 6) + L**2 + L * (4 * d**2 * p + 2 * d * p + d + 11) + 2 * d**2 * p + 5
    moved = 6 * L * d * (1 + p) + 8 * L + 2 * b_C * d**2 * p
    expected = 8 * 8 * 8192 / L * (moved / 3.35e12 + flops / 989e12)
    seconds = model_error.published(problem, Modelled("tfla", "sig"), find("paper-H100"))
    assert seconds == pytest.approx(expected, rel=1e-12)


def test_a_fit_recovers_the_constant_of_made_up_times(tmp_path):
    made_up = []
    for each in judged(tmp_path, ROWS):
        chip = replace(each.chip, round_trip_s=0.4e-6)
        made_up.append(replace(each, measured=sum(calibrated.term_seconds(each.problem, each.kernel, chip).values())))
    fit = model_error.RoundTripFit(made_up)
    assert fit.best() == pytest.approx(0.4e-6, rel=2e-3)
    assert fit.loss(fit.best()) <= min(fit.loss(seconds) for seconds in np.geomspace(1e-8, 1e-5, 100)) + 1e-4


def test_the_script_prints_errors_and_fits(tmp_path, monkeypatch, capsys):
    folder = write(tmp_path / "rows", ROWS)
    monkeypatch.setattr(sys, "argv", ["model_error.py", str(folder), "--fit"])
    model_error.main()
    printed = capsys.readouterr().out
    assert "H200 SXM tfla sig" in printed
    assert "fitted on H200 SXM, 128/256" in printed


# --- What comes with the package


def test_the_stored_errors_are_those_of_the_stored_rows():
    errors = errors_by_gpu(judge(find_results(committed_checkout() / "results"))[0])
    assert [asdict(error) for error in errors] == [
        pytest.approx(asdict(error), abs=2e-4) for error in held_out.stored()
    ], "run `python tools/model_error.py results --write`"


def test_held_out_errors_have_a_limit():
    medians = [error.median for error in held_out.stored() if error.held_out]
    assert medians
    assert max(medians) < 0.12


def test_the_model_stands_beside_the_time_of_another_gpu_times_the_ratio_of_bandwidths(tmp_path):
    first = replace(judged(tmp_path, ROWS)[0], measured=2.0, terms={"states": 2.2})
    slower = Ceilings(first.chip.ceilings.flops_per_s, first.chip.ceilings.bytes_per_s / 2, "given", "half")
    other = replace(first, gpu=find("H100"), chip=replace(first.chip, ceilings=slower), measured=5.0, terms={"x": 5.5})
    on_h100, on_h200 = errors_by_gpu([first, other])
    assert (on_h100.by_rule, on_h100.beside_rule) == (0.2, 0.1)
    assert (on_h200.by_rule, on_h200.beside_rule) == (0.25, 0.1)
