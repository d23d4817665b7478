"""Sweeps over several GPUs of a host: what is written, what a lost process or an interrupt costs.

Points are stand-ins (`stand_in.py`), GPUs are those of `nvidia_smi.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from nvidia_smi import fake_nvidia_smi
from repository import SUPPORT
from waiting import wait_for

from tflabench.bench import child
from tflabench.bench.child import Child
from tflabench.bench.events import Began, Task
from tflabench.bench.host import Host
from tflabench.bench.machine import Machine
from tflabench.bench.protocol import Rules
from tflabench.implementations import registry
from tflabench.problem import Problem
from tflabench.rows.load import find_results, read_rows
from tflabench.selection.points import Comparison, Point


def stuck(pipe: Connection) -> Child:
    """A process that hangs, with a pipe that it does not use, in a session of its own as those of GPUs are."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)

    def end() -> None:
        process.kill()
        process.wait()

    return Child(pipe, process.pid, tempfile.TemporaryFile(), process.wait, end)


def test_a_process_that_hangs_before_its_first_word_is_ended(monkeypatch):
    """Its task has a GPU from the start, so its silence counts."""
    ours, theirs = Pipe()
    process = stuck(ours)
    monkeypatch.setattr(Child, "spawn", lambda *_, **__: process)
    gpu = Machine("cuda", "NVIDIA H100", 2**36, uuid="GPU-1")
    host = Host([gpu], Rules(), "sweep")
    task = Task(1, Comparison((Point(registry.get("sdpa"), Problem(1, 2, 64, 16, 16)),)))
    host.start(task)
    assert host.wait(0) == [(task, Began(gpu))]
    assert host.wait(0) == []
    host.stop(task)
    assert process.exit_code(1) == -signal.SIGKILL
    assert host.room(task)
    theirs.close()


def test_a_process_that_hangs_at_its_end_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(child, "GRACE_S", 0.1)
    ours, theirs = Pipe()
    theirs.close()
    assert stuck(ours).last_words() == ("SIGKILL", "")
    ours.close()


GPUS = ["NVIDIA H100 80GB HBM3"] * 3
PLUGIN = str(SUPPORT / "stand_in.py")
SWEEP = ["sweep", "--plugin", PLUGIN, "--impl", "stand_in_[0-2]", "--pass", "fw", "--no-plots", "--out", "out"]
SIZES = ["-a", "head_dim=16", "-a", "heads=2", "-a", "batch=1"]
UUIDS = [f"GPU-here-{number}" for number in range(3)]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.Popen[str]]:
    """Start a sweep on this host, which has three GPUs."""
    monkeypatch.chdir(tmp_path)
    variables = {
        "PATH": f"{fake_nvidia_smi(tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}",
        "FAKE_GPUS": ",".join(GPUS),
        "FAKE_HOST": "here",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path),
        "STAND_IN_S": "0.1",
    }

    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tflabench", *SWEEP, *SIZES, *arguments],
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    return start


def rows_so_far() -> list[dict[str, Any]]:
    path = Path("out/journal.jsonl")
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def stations() -> dict[str, int]:
    """Processes of GPUs that run, by the UUID that they see."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"tflabench.bench.host" in (folder / "cmdline").read_bytes():
                entries = (folder / "environ").read_text().split("\0")
                variables = {name: value for name, _, value in (entry.partition("=") for entry in entries)}
                if variables.get("TMPDIR") == os.getcwd():
                    found[variables["CUDA_VISIBLE_DEVICES"]] = int(folder.name)
        except OSError:
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_gpu_that_loses_its_process_costs_no_row(start):
    sweep = start("--gpus", "2", "-a", "seq_len=16:64:+16", "--json")
    begun = wait_for(lambda: {row["gpu_uuid"] for row in rows_so_far()}, sweep)
    os.kill(stations()[begun.pop()], signal.SIGKILL)
    stdout, stderr = sweep.communicate(timeout=60)
    assert sweep.returncode == 0, stderr
    assert "is tried once more, elsewhere: on " in stderr
    assert "its process died (SIGKILL)" in stderr
    rows = read_rows("out")
    assert len(rows) == rows["point"].nunique() == 12
    assert rows["closed"].all()
    assert set(rows["status"]) == {"ok"}
    assert set(rows["gpu_uuid"]) <= set(UUIDS[:2])
    assert set(rows.groupby("comparison_id")["gpu_uuid"].nunique()) == {1}
    assert [row.details["visible"] for row in find_results("out")[0].rows] == list(rows["gpu_uuid"])
    assert set(rows["device"]) == {GPUS[0]}
    assert rows["node"].notna().all()
    assert json.loads(stdout)["folder"] == "out"
    assert "on 2 x NVIDIA H100 80GB HBM3" in stderr
    wait_for(lambda: not stations())


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_ended_in_the_middle_it_ends_its_processes_and_goes_on_with_more_gpus(start, how):
    sweep = start("--gpus", "1", "-a", "seq_len=16:48:+16")
    wait_for(lambda: sum(row["closed"] for row in rows_so_far()) >= 3, sweep)
    sweep.send_signal(how)
    _, stderr = sweep.communicate(timeout=30)
    wait_for(lambda: not stations())
    assert "Traceback" not in stderr
    if how == signal.SIGINT:
        assert sweep.returncode == 130
        assert "of 9 points are safe; the same command goes on." in stderr
    safe = {row["point"]: row["comparison_id"] for row in rows_so_far() if row["closed"]}
    safe = {point: one for point, one in safe.items() if list(safe.values()).count(one) == 3}
    assert 3 <= len(safe) < 9

    again = start("--gpus", "all", "-a", "seq_len=16:48:+16")
    _, stderr = again.communicate(timeout=60)
    assert again.returncode == 0, stderr
    assert f"{9 - len(safe)} of 9 points to measure" in stderr
    assert "on 3 x NVIDIA H100 80GB HBM3" in stderr
    rows = read_rows("out").set_index("point")
    assert len(rows) == 9
    assert rows["closed"].all()
    assert dict(rows["comparison_id"][list(safe)]) == safe


def test_more_gpus_than_there_are_is_one_line_and_2(start):
    sweep = start("--gpus", "4")
    _, stderr = sweep.communicate(timeout=30)
    assert (sweep.returncode, stderr) == (2, "tflabench: --gpus is 4, and this machine shows 3\n")
