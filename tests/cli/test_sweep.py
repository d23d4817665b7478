"""`tflabench sweep`, `verify` and `calibrate` as a user meets them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import commands
import pandas as pd
import pytest
from forked_workers import fork_workers
from repository import SUPPORT
from synthetic import row
from typer.testing import Result
from waiting import wait_for

from tflabench.bench import sweep as bench_sweep
from tflabench.bench.sweep import Measured
from tflabench.cli.sweep import has_failed
from tflabench.implementations import registry
from tflabench.rows.load import read_rows

PLUGIN = str(SUPPORT / "faulty.py")
SWEEP = ["sweep", "--device", "cpu", "--no-plots", "--plugin", PLUGIN, "--out", "out"]
TINY = ["-a", "seq_len=16", "-a", "head_dim=16", "-a", "heads=2"]


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    """Every test has its own working directory, locks and cache, with ceilings in it, so that nothing is calibrated."""
    from tflabench.bench.machine import detect
    from tflabench.theory.hardware import Ceilings, store_ceilings

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # or it waits for sweeps of tests beside it
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(registry, "_plugged", [])
    monkeypatch.setattr(registry, "_by_plugin", {})
    fork_workers(monkeypatch)
    store_ceilings(detect("cpu").name, "float32", Ceilings(1e11, 1e10, "measured", "test"))


def run(*arguments: str, code: int = 0) -> Result:
    done = commands.run(*arguments, COLUMNS="200")
    assert done.exit_code == code, done.output
    return done


def sweep(*arguments: str, code: int = 0) -> Result:
    return run(*SWEEP, *arguments, code=code)


def process(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """A sweep as a user starts it."""
    return subprocess.Popen([sys.executable, "-m", "tflabench", *SWEEP, *arguments], text=True, **options)


def journal() -> list[dict]:
    return [json.loads(line) for line in Path("out/journal.jsonl").read_text().splitlines()]


def test_every_fault_costs_one_row():
    faults = "fine,aborts,raises,returns_nan,chatters"  # bench/test_workers.py has more of them
    done = sweep("--impl", faults, *TINY, "--pass", "fw", code=1)  # what is named has failed
    rows = read_rows("out").set_index("implementation")
    assert dict(rows["status"]) == {
        "fine": "ok",
        "aborts": "crashed",
        "raises": "error",
        "returns_nan": "wrong",
        "chatters": "ok",
    }
    assert sorted(rows["ms_median"].dropna().index) == ["chatters", "fine", "returns_nan"]  # who is wrong is timed too
    assert rows["closed"].all()
    assert rows["comparison_id"].nunique() == 1
    assert rows["rounds"].to_dict()["fine"] >= 3
    assert len(rows["model_ms_lower"].dropna()) == 5  # theory is drawn also where nothing could be measured
    assert "aborts" in done.stderr  # a live line a point
    assert "crashed (1x)  aborts: the worker died (SIGABRT)" in done.stdout
    assert "from a kernel" not in done.stdout
    assert "tflabench plot out" in done.stdout

    before = len(journal())
    again = sweep("--impl", faults, *TINY, "--pass", "fw", code=1)
    assert "0 of 5 points to measure" in again.stderr  # what failed has had its chance
    assert len(journal()) == before


def test_killed_in_the_middle_and_started_again_it_ends_with_one_row_a_point():
    arguments = ["--impl", "fine", "-a", "head_dim=16", "--pass", "fw", "-a", "seq_len=16:64:+16"]
    driver = process(*arguments, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    path = Path("out/journal.jsonl")
    wait_for(lambda: path.exists() and path.read_bytes().count(b"\n") >= 2, driver)
    children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
    driver.kill()
    driver.wait()
    before = path.read_bytes()
    closed = {row["point"]: row["comparison_id"] for row in journal() if row["closed"]}
    assert 0 < len(closed) < 4
    wait_for(lambda: not any(Path(f"/proc/{child}").exists() for child in children))  # the worker goes with its parent

    sweep(*arguments)
    assert path.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    rows = read_rows("out").set_index("point")
    assert len(rows) == 4
    assert rows["closed"].all()
    assert set(rows["status"]) == {"ok"}
    assert dict(rows["comparison_id"][list(closed)]) == closed  # what was closed was not measured twice
    assert len(json.loads(Path("out/environment.json").read_text())["runs"]) == 2


HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"  # the cursor


def test_interrupted_it_keeps_what_it_has():
    driver = process(
        *("--impl", "fine,hangs", *TINY),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert driver.stderr
    assert any(line.lstrip().startswith("fine") for line in driver.stderr)  # the next one hangs
    driver.send_signal(signal.SIGINT)
    said = driver.stderr.read()
    assert driver.wait() == 130
    assert "Interrupted: 0 of 4 points are safe; the same command goes on. Provisional rows that are kept: " in said
    assert "Traceback" not in said
    assert Path("out/rows.parquet").exists()
    assert {row["closed"] for row in journal()} == {False}  # where the machine is busy, a second one too


def test_without_time_nothing_is_measured_and_nothing_drawn():
    done = run("sweep", "--device", "cpu", "--impl", "sdpa", *TINY, "--out", "out", "--stop-after", "0")
    assert "0 of 2 points measured, 2 left" in done.stdout
    assert not Path("out/figures").exists()


def test_json_goes_to_stdout_alone_and_no_resume_measures_again():
    result = json.loads(sweep("--impl", "fine", *TINY, "--json").stdout)
    assert [row["pass"] for row in result["rows"]] == ["fw", "fwbw"]
    assert {row["status"] for row in result["rows"]} == {"ok"}
    assert all(Path(file).exists() for file in result["files"])

    done = sweep("--impl", "fine", *TINY, "--pass", "fw", "--no-resume", "--paper-protocol")
    assert "1 of 1 points to measure" in done.stderr
    first = read_rows("out").to_dict("records")[0]
    assert (first["pass"], first["protocol"], first["warmup"] >= 10, first["samples"]) == ("fw", "paper", True, 30)
    assert (first["rounds"], first["closed"]) == (1, True)


def test_the_check_takes_as_long_as_it_is_given():
    sweep("--impl", "fine,bad_gradient", "-a", "seq_len=2048", "-a", "head_dim=16", "--verify-seconds", "0", code=1)
    rows = read_rows("out").set_index(["implementation", "pass"])
    assert set(rows["verified_steps"]) == {512}
    assert dict(rows["status"]) == {
        ("fine", "fw"): "ok",
        ("fine", "fwbw"): "ok",
        ("bad_gradient", "fw"): "ok",
        ("bad_gradient", "fwbw"): "wrong",
    }


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="there is a GPU")
def test_without_a_gpu_it_runs_on_the_cpu_says_so_and_draws():
    done = run("sweep", "--impl", "sdpa,reference_sig", *TINY, "-a", "chunk_size=16", "--pass", "fw")
    first, *_ = done.stderr.splitlines()
    assert first.startswith("No NVIDIA GPU here: running preset quick on the CPU")
    (folder,) = Path("results").glob("*/quick")
    assert set(read_rows(folder)["status"]) == {"ok"}
    assert list((folder / "figures").glob("roofline*.png"))
    assert "next best of others" in done.stdout
    assert f"tflabench plot {folder}" in done.stdout
    shapes = Path("of me", "shapes.csv")
    shapes.parent.mkdir()
    shapes.write_text("impl,batch,heads,seq_len,d_qk,d_hv,pass\nreference_sig,1,2,16,16,16,fw\n")
    done = run("sweep", "--preset", str(shapes), "--no-plots")
    assert "running preset shapes on the CPU" in done.stderr, done.stderr
    assert "1 of 1 points to measure, in 1 comparison, into" in done.stderr


@pytest.mark.parametrize(
    ("rows", "left", "impl", "plugin", "failed"),
    [
        ([("mine", "ok"), ("sdpa", "wrong")], 0, ["mine", "sd*"], None, False),
        ([("mine", "ok"), ("sdpa", "wrong")], 0, ["mine", "sdpa"], None, True),
        ([("mine", "ok"), ("sdpa", "oom"), ("other", "unsupported")], 0, ["mine", "sdpa", "other"], None, False),
        ([("mine", "crashed"), ("sdpa", "ok")], 0, None, ["mine.py"], True),
        ([("mine", "timeout"), ("sdpa", "ok")], 0, ["sd*", "mi*"], ["mine.py"], False),
        ([("mine", "wrong"), ("sdpa", "ok")], 0, None, None, False),
        ([("sdpa", "oom")], 0, None, None, True),
        ([], 4, None, None, False),  # --stop-after
    ],
)
def test_a_sweep_has_failed_where_nothing_is_ok_or_something_named_is_not(rows, left, impl, plugin, failed):
    made = [row(name, status=status, plugin_hash="1" if name == "mine" else None) for name, status in rows]
    assert has_failed(Measured(made, left=left), impl, plugin) is failed


def test_rows_that_are_not_where_they_should_be_are_the_last_word_and_code_1(monkeypatch):
    lost = "out/journal.jsonl has no room for 2 rows, which are in /tmp/x: make room, then `cat /tmp/x`"
    measured = Measured([row("fine"), row("sdpa", seq_len=64)], folder=Path("out"), unsaved=lost)
    monkeypatch.setattr(bench_sweep, "measure", lambda *_: measured)
    done = sweep(code=1)
    assert "2 of 2 points measured" in done.stdout
    assert done.stderr.splitlines()[-1] == lost


def test_dry_run_measures_nothing():
    done = sweep("--dry-run", "--impl", "fine,sdpa_flash,sdpa", "-a", "seq_len=64,128")
    assert done.stderr == ""
    assert "28 points in 12 comparisons, 24 can run on" in done.stdout
    assert "min; at least" in done.stdout
    assert "needs a CUDA GPU" in done.stdout
    assert not Path("out").exists()


def test_dry_run_for_a_gpu_that_need_not_be_here():
    """The main job on an H100: an mLSTM first, the most telling comparison whole before any other."""
    selection = json.loads(run("sweep", "--dry-run", "--gpu", "H100", "--json").stdout)
    points = selection["points"]
    assert selection["device"] == "H100 SXM"
    assert selection["folder"] == "results/h100/quick"
    assert 100 < len(points) <= 120
    assert points[0]["family"] == "mlstm"
    first = [point for point in points if point["comparison"] == 1]
    assert {(point["pass"], point["seq_len"], point["batch"]) for point in first} == {("fw", 4096, 16)}
    runnable = {point["implementation"] for point in first if point["refused"] is None}
    assert runnable >= set("hopper_exp hopper_sig nxai_exp_xl nxai_sig_xl sdpa_cudnn mamba2 fla_retention".split())
    assert runnable >= {"flash_attention_3", "fla_simple_gla_fused", "hopper_simple_gla", "hopper_retention"}
    assert [point["comparison"] for point in points] == sorted(point["comparison"] for point in points)
    assert {"seconds", "gate", "d_qk", "d_hv", "heads", "chunk_size", "dtype"} <= points[0].keys()
    lengths = [point["seq_len"] for point in points if point["chunk_size"] is None and point["heads"] == 16]
    assert list(dict.fromkeys(lengths))[:4] == [4096, 1024, 16384, 65536]

    on_ampere = json.loads(run("sweep", "--dry-run", "--gpu", "A100", "--json").stdout)["points"]
    refused = {point["implementation"]: point["refused"] for point in on_ampere}
    assert refused["hopper_sig"] == "needs a GPU of compute capability 9.x, not 8.0"
    assert refused["tfla_sig_xl"] is None


def test_a_plan_that_does_not_fit_is_announced():
    with pytest.warns(UserWarning, match="2 of 2 points will not fit in memory and end as oom: fine/"):
        sweep("--dry-run", "--impl", "fine", "-a", "seq_len=1073741824", "-a", "head_dim=256")


def test_what_does_not_fit_is_recorded_as_oom():
    large = ["-a", "seq_len=1048576", "-a", "head_dim=256", "--memory-limit", "1GiB"]
    sweep("--impl", "fine", "--pass", "fw", *large, code=1)  # nothing is ok
    assert list(read_rows("out")["status"]) == ["oom"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--impl", "sdpa_flash"], "none of the 8 points can run on cpu: sdpa_flash: this backend of torch needs"),
        (["--device", "auto", "--gpu", "H100"], "--gpu is 'H100', and this machine has"),
        (["--tune-seconds", "fast"], "--tune-seconds is 'fast': it must be a number of seconds, or full"),
        (["--device", "tpu"], "--device is 'tpu': it must be one of auto, cuda, cpu"),
        (["--memory-limit", "lots"], "tflabench: --memory-limit is 'lots': it must be a size"),
        (["--impl", "fine", "--out", "/dev/null/out"], "/dev/null/out cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message):
    commands.refused([*SWEEP, *arguments], message)


def test_rows_of_older_kernels_are_not_mixed_with_new_ones():
    arguments = [
        "sweep",
        "--device",
        "cpu",
        "--no-plots",
        "--impl",
        "reference_sig",
        "-a",
        "chunk_size=16",
        *TINY,
        "--pass",
        "fw",
    ]
    run(*arguments)
    (folder,) = Path("results").glob("*/quick")
    path = folder / "journal.jsonl"
    path.write_text(path.read_text().replace('"kernel_version":1,', '"kernel_version":0,'))
    beside = f"{folder}-kernels-{registry.kernel_versions()}"
    assert (
        f"{folder} holds rows of older versions of reference_sig: this sweep goes into {beside}."
        in run(*arguments).stderr
    )
    assert len(read_rows(beside)) == len(read_rows(folder))
    refused = run(*arguments, "--out", str(folder), code=2)
    assert "holds rows of older versions of reference_sig: give another --out" in refused.stderr
    run(*arguments, "--out", str(folder), "--no-resume")
    run("rows", "pack", str(folder))
    assert f"{folder} holds rows of a finished sweep: this sweep goes into {beside}." in run(*arguments).stderr


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="there is a GPU")
def test_cuda_where_there_is_none():
    commands.refused(["sweep", "--device", "cuda"], "--device is cuda, and this machine shows no NVIDIA GPU")


def test_a_folder_of_another_schema_version_and_a_torn_line():
    sweep("--impl", "fine", *TINY)
    path = Path("out/journal.jsonl")
    text = path.read_text()
    path.write_text(text + text.splitlines()[0][:50])
    with pytest.warns(UserWarning, match=r"out/journal\.jsonl: the last line was cut off"):
        done = sweep("--impl", "fine", *TINY)
    assert "0 of 2 points to measure" in done.stderr
    assert path.read_text() == text
    path.write_text(text.replace('"schema_version":4', '"schema_version":7'))
    assert "row schema 7" in sweep("--impl", "fine", *TINY, code=2).stderr


def test_verify_prints_every_gradient_and_fails_on_the_wrong_one():
    good = run("verify", "--device", "cpu", "--impl", "reference_exp", *TINY, "--out", "errors", "--json")
    (result, *_) = json.loads(good.stdout)
    assert [error["name"] for error in result["errors"]] == ["forward", "dq", "dk", "dv", "di", "df"]
    written = pd.read_csv("errors/errors.csv").to_dict("records")
    assert [line["name"] for line in written[:6]] == [error["name"] for error in result["errors"]]
    assert written[0]["mean_absolute"] == pytest.approx(result["errors"][0]["mean_absolute"])
    bad = run("verify", "--device", "cpu", "--plugin", PLUGIN, "--impl", "fine,bad_gradient", *TINY, code=1)
    assert "WRONG" in bad.stdout
    assert "1 of 2 points agree with float64" in bad.stderr


def test_calibrate_stores_what_theory_then_uses():
    run("calibrate", "--device", "cpu", "--seconds", "0.5")
    sweep("--impl", "fine", *TINY, "--pass", "fw")
    (row,) = read_rows("out").to_dict("records")
    assert row["ceilings"].startswith("measured: tflabench calibrate, 0.5 s")


def test_a_sweep_measures_ceilings_before_its_first_row_and_keeps_them():
    from tflabench.bench.machine import detect
    from tflabench.theory.hardware import Ceilings, measured_ceilings

    sweep("--impl", "fine", *TINY, "-a", "dtype=float64")
    told = [json.loads(line)["ceilings"] for line in Path("out/journal.jsonl").read_text().splitlines()]
    assert all(each.startswith("measured: tflabench calibrate") for each in told)
    (run_,) = json.loads(Path("out/environment.json").read_text())["runs"].values()
    assert measured_ceilings(detect("cpu").name, "float64") == Ceilings(**run_["ceilings"]["float64"])
