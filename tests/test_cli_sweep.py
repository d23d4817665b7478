"""`tflabench sweep`, `verify` and `calibrate` as a user meets them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from tflabench.rows.load import read_rows

PLUGIN = str(Path(__file__).with_name("faulty.py"))
SWEEP = ["sweep", "--device", "cpu", "--no-plots", "--plugin", PLUGIN, "--out", "out"]
TINY = ["-a", "seq_len=16", "-a", "head_dim=16", "-a", "heads=2"]


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    """Every test has its own working directory and cache, with ceilings in it, so that nothing is calibrated."""
    from tflabench.bench.machine import detect
    from tflabench.theory.hardware import Ceilings, store_ceilings

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    store_ceilings(detect("cpu").name, "float32", Ceilings(1e11, 1e10, "measured", "test"))


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tflabench", *arguments]


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr + done.stdout
    return done


def sweep(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return run(*SWEEP, *arguments, code=code)


@pytest.fixture
def invoke(capsys, monkeypatch):
    """Run a command in this process, for what ends before a worker starts: (exit code, stdout, stderr)."""
    from tflabench.cli.main import app
    from tflabench.implementations import registry

    monkeypatch.setattr(registry, "_plugged", [])

    def invoke(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            app(list(arguments))
        return int(end.value.code or 0), *capsys.readouterr()

    return invoke


def journal() -> list[dict]:
    return [json.loads(line) for line in Path("out/journal.jsonl").read_text().splitlines()]


def test_every_fault_costs_one_row():
    faults = "fine,aborts,hangs,raises,returns_nan,hoards,chatters"
    done = sweep("--impl", faults, *TINY, "--pass", "fw", "--timeout", "5", "--memory-limit", "1GiB")
    rows = read_rows("out").set_index("implementation")
    assert dict(rows["status"]) == {
        "fine": "ok",
        "aborts": "crashed",
        "hangs": "timeout",
        "raises": "error",
        "returns_nan": "wrong",
        "hoards": "oom",
        "chatters": "ok",
    }
    assert sorted(rows["ms_median"].dropna().index) == ["chatters", "fine"]
    assert len(rows["model_ms_lower"].dropna()) == 7  # theory is drawn also where nothing could be measured
    assert "aborts" in done.stderr  # a live line a point
    assert "crashed (1x)  aborts: the worker died (SIGABRT)" in done.stdout
    assert "from a kernel" not in done.stdout
    assert "tflabench plot out" in done.stdout

    again = sweep("--impl", "fine,raises", *TINY, "--pass", "fw")
    assert "1 of 2 points to measure" in again.stderr  # what failed is tried again, what is there is kept
    tries = Counter(row["implementation"] for row in journal())
    assert (tries["fine"], tries["raises"], len(read_rows("out"))) == (1, 2, 7)


def test_killed_in_the_middle_and_started_again_it_ends_with_one_row_a_point():
    arguments = ["--impl", "fine", "-a", "head_dim=16", "-a", "seq_len=16:96:+16"]
    process = subprocess.Popen(
        command(*SWEEP, *arguments),
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    path = Path("out/journal.jsonl")
    while not path.exists() or path.read_bytes().count(b"\n") < 3:
        assert process.poll() is None
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.wait()
    before = path.read_bytes()
    assert before.count(b"\n") < 12
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{child}").exists() for child in children):  # the worker goes with its parent
        assert time.monotonic() < deadline
        time.sleep(0.05)

    sweep(*arguments)
    assert path.read_bytes().startswith(before[: before.rfind(b"\n") + 1])  # nothing was measured twice
    assert sorted(Counter(row["point"] for row in journal()).values()) == [1] * 12
    assert set(read_rows("out")["status"]) == {"ok"}
    assert len(json.loads(Path("out/environment.json").read_text())["runs"]) == 2


def test_interrupted_it_keeps_what_it_has_and_says_130():
    process = subprocess.Popen(
        command(*SWEEP, "--impl", "fine,hangs", *TINY),
        stderr=subprocess.PIPE,
        text=True,
        # As in a terminal: a shell that runs these tests in the background has it ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    path = Path("out/journal.jsonl")
    while not path.exists() or path.read_bytes().count(b"\n") < 1:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert "Interrupted: 1 of 4 points are safe" in stderr
    assert "Traceback" not in stderr
    assert Path("out/rows.parquet").exists()


def test_when_its_time_is_up_it_keeps_what_it_has_and_the_same_command_measures_the_rest():
    arguments = [*TINY, "--pass", "fw", "-a", "seq_len=64,32,16", "--timeout", "16"]
    done = sweep("--impl", "fine,hangs", *arguments, "--stop-after", "15")
    assert [(row["implementation"], row["seq_len"], row["status"]) for row in journal()] == [
        ("fine", 64, "ok"),
        ("hangs", 64, "timeout"),  # the one that runs is finished
    ]
    assert "The time is up: 4 of 6 points are left; the same command measures them." in done.stderr
    assert "1 of 2 points measured, 4 left: the same command measures them" in done.stdout
    again = json.loads(sweep("--impl", "fine", *arguments, "--stop-after", "60", "--json").stdout)
    assert ([row["seq_len"] for row in again["rows"]], again["left"]) == ([64, 32, 16], 0)


def test_without_time_nothing_is_measured_and_nothing_drawn():
    done = run("sweep", "--device", "cpu", "--impl", "sdpa", *TINY, "--out", "out", "--stop-after", "0")
    assert "0 of 0 points measured, 2 left" in done.stdout
    assert not Path("out/figures").exists()


def test_json_goes_to_stdout_alone_and_no_resume_measures_again():
    result = json.loads(sweep("--impl", "fine", *TINY, "--json").stdout)
    assert [row["pass"] for row in result["rows"]] == ["fw", "fwbw"]
    assert {row["status"] for row in result["rows"]} == {"ok"}
    assert all(Path(file).exists() for file in result["files"])

    done = sweep("--impl", "fine", *TINY, "--pass", "fw", "--no-resume", "--paper-protocol")
    assert "1 of 1 points to measure" in done.stderr
    assert len(journal()) == 3
    row = read_rows("out").to_dict("records")[0]
    assert (row["pass"], row["protocol"], row["warmup"] >= 10, row["samples"]) == ("fw", "paper", True, 30)


def test_the_check_takes_as_long_as_it_is_given():
    sweep("--impl", "fine,bad_gradient", "-a", "seq_len=2048", "-a", "head_dim=16", "--verify-seconds", "0")
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
    done = run("sweep", "--impl", "sdpa,reference_sig", *TINY, "-a", "chunk_size=16")
    first, *_ = done.stderr.splitlines()
    assert first.startswith("No NVIDIA GPU here: running preset quick on the CPU")
    (folder,) = Path("results").glob("*/quick")
    assert set(read_rows(folder)["status"]) == {"ok"}
    assert list((folder / "figures").glob("roofline*.png"))
    assert "times faster than" in done.stdout
    assert f"tflabench plot {folder}" in done.stdout


def test_dry_run_measures_nothing(invoke):
    code, out, err = invoke(*SWEEP, "--dry-run", "--impl", "fine,sdpa_flash,sdpa", "-a", "seq_len=64,128")
    assert (code, err) == (0, "")
    assert "20 points, 16 of them can run on" in out
    assert "min; at least" in out
    assert "needs a CUDA GPU" in out
    assert not Path("out").exists()


def test_dry_run_as_json(invoke):
    _, out, _ = invoke(*SWEEP, "--dry-run", "--json", "--impl", "fine", *TINY)
    assert [point["pass"] for point in json.loads(out)["points"]] == ["fw", "fwbw"]


def test_a_plan_that_does_not_fit_is_announced(invoke):
    with pytest.warns(UserWarning, match="2 of 2 points will not fit in memory and end as oom: fine/"):
        invoke(*SWEEP, "--dry-run", "--impl", "fine", "-a", "seq_len=1073741824", "-a", "head_dim=256")


def test_what_does_not_fit_is_recorded_as_oom():
    sweep("--impl", "fine", "-a", "seq_len=1048576", "-a", "head_dim=256", "--pass", "fw", "--memory-limit", "1GiB")
    assert list(read_rows("out")["status"]) == ["oom"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "quik"], "unknown preset 'quik'; did you mean quick?"),
        (["-a", "seqlen=512"], "unknown axis 'seqlen'; did you mean seq_len?"),
        (["-a", "seq_len=512:64:x2"], "empty range"),
        (["-a", "seq_len=a"], "must be an integer"),
        (["-a", "d_qk=0"], "d_qk is 0: it must be at least 1"),
        (["-a", "embedding=100"], "embedding is 100: it must be a multiple of d_hv"),
        (["--impl", "sdpa_flsh"], "no implementation matches 'sdpa_flsh'; did you mean sdpa_flash"),
        (["--impl", "sdpa_flash"], "none of the 8 points can run on cpu: sdpa_flash: this backend of torch needs"),
        (["--pass", "backward"], "pass is 'backward'"),
        (["--device", "tpu"], "--device is 'tpu': it must be auto, cuda or cpu"),
        (["--memory-limit", "lots"], "--memory-limit is 'lots': it must be a size"),
        (["--plugin", "nowhere.py"], "plugin 'nowhere.py' cannot be used"),
        (["--impl", "fine", "--out", "/dev/null/out"], "/dev/null/out cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(invoke, arguments, message):
    code, out, err = invoke(*SWEEP, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("tflabench: ")
    assert err.count("\n") == 1


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="there is a GPU")
def test_cuda_where_there_is_none(invoke):
    code, _, err = invoke("sweep", "--device", "cuda")
    assert code == 2
    assert "--device is cuda, and this machine shows no NVIDIA GPU" in err
    assert err.count("\n") == 1


def test_a_folder_of_another_schema_version_and_a_torn_line():
    sweep("--impl", "fine", *TINY)
    path = Path("out/journal.jsonl")
    text = path.read_text()
    path.write_text(text + text.splitlines()[0][:50])
    done = sweep("--impl", "fine", *TINY)
    assert "tflabench: warning: out/journal.jsonl: the last line was cut off" in done.stderr
    assert "0 of 2 points to measure" in done.stderr
    assert path.read_text() == text
    path.write_text(text.replace('"schema_version":1', '"schema_version":7'))
    assert "row schema 7" in sweep("--impl", "fine", *TINY, code=2).stderr


def test_verify_prints_every_gradient_and_fails_on_the_wrong_one():
    good = run("verify", "--device", "cpu", "--impl", "reference_exp", *TINY, "--out", "errors", "--json")
    (result, *_) = json.loads(good.stdout)
    assert [error["name"] for error in result["errors"]] == ["forward", "dq", "dk", "dv", "di", "df"]
    written = pd.read_csv("errors/errors.csv").to_dict("records")
    assert [line["name"] for line in written[:6]] == [error["name"] for error in result["errors"]]
    assert written[0]["mean_absolute"] == pytest.approx(result["errors"][0]["mean_absolute"])
    assert "verify" in json.loads(Path("errors/environment.json").read_text())["runs"]["verify"]["arguments"]
    bad = run("verify", "--device", "cpu", "--plugin", PLUGIN, "--impl", "fine,bad_gradient", *TINY, code=1)
    assert "WRONG" in bad.stdout
    assert "1 of 2 points agree with float64" in bad.stderr


def test_calibrate_stores_what_theory_then_uses():
    run("calibrate", "--device", "cpu", "--seconds", "0.5")
    sweep("--impl", "fine", *TINY, "--pass", "fw")
    (row,) = read_rows("out").to_dict("records")
    assert row["ceilings"].startswith("measured: tflabench calibrate, 0.5 s")
