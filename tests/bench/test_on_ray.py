"""Sweeps on a Ray cluster of two nodes, which are processes on this machine: what a lost node or driver costs.

Points are stand-ins (`stand_in.py`); nodes have GPUs by what `nvidia_smi.py` says.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import ray_driver
from repository import ROOT, SUPPORT

pytest.importorskip("ray", reason="the extra ray is not installed")

from nvidia_smi import fake_nvidia_smi
from waiting import wait_for

from tflabench.rows.load import read_rows

PLUGIN = str(SUPPORT / "stand_in.py")
NODES = {"a": "NVIDIA H100 80GB HBM3", "b": "NVIDIA H200"}
CPU = ["--device", "cpu", "-a", "seq_len=16:128:+16"]  # 8 comparisons
FIVE = ["--impl", "stand_in_[0-4]"]


SWEEP = ["sweep", "--executor", "ray", "--plugin", PLUGIN, "--no-plots", "-a", "head_dim=16", "-a", "heads=2"]


@dataclass
class Started:
    """A cluster, its nodes by name, its variables, and what calls a function in a process that has these."""

    cluster: Any
    nodes: dict[str, Any]
    variables: dict[str, str]
    call: Callable[..., Any]

    def words(self, *arguments: str) -> list[str]:
        return [*SWEEP, "--ray-address", self.cluster.address, "--pass", "fw", "--out", "out", *arguments]

    def sweep(self, *arguments: str, path: tuple[str, ...] = ()) -> ray_driver.Ended:
        return self.call(ray_driver.command, os.getcwd(), [*path], *self.words(*arguments))

    def process(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tflabench", *self.words(*arguments)],
            env=os.environ | self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )


@pytest.fixture(scope="module")
def started() -> Iterator[Started]:
    from ray.cluster_utils import Cluster

    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: paths of sockets are
    variables = {
        "RAY_TMPDIR": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TMPDIR": str(folder),
        "PATH": f"{fake_nvidia_smi(folder / 'bin')}{os.pathsep}{os.environ['PATH']}",
        "STAND_IN_S": "0.06",
        "COLUMNS": "200",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.syspath_prepend(str(ROOT))  # of which the process below takes tflabench
        cluster, nodes = Cluster(), {}
        driver = ProcessPoolExecutor(1, get_context("spawn"))
        try:
            for name, gpu in NODES.items():
                patch.setenv("FAKE_GPUS", gpu)
                patch.setenv("FAKE_HOST", name)
                nodes[name] = cluster.add_node(
                    node_name=name,
                    num_cpus=1,
                    num_gpus=1,
                    resources={f"accelerator_type:{gpu.split()[1]}": 1},
                    object_store_memory=80 << 20,
                    include_dashboard=False,
                )
            yield Started(cluster, nodes, variables, lambda *call: driver.submit(*call).result())
        finally:
            driver.shutdown()
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def journal() -> list[dict[str, Any]]:
    """Whole lines of the journal so far."""
    path = Path("out/journal.jsonl")
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def closed(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Comparisons by point, of those that are closed as a whole: 5 points."""
    final = {row["point"]: row["comparison_id"] for row in rows if row["closed"]}
    return {point: one for point, one in final.items() if list(final.values()).count(one) == 5}


def test_a_node_that_leaves_before_it_answers_is_left_out(started: Started):
    found = started.call(ray_driver.nodes_where_one_has_left, started.cluster.address)
    assert sorted(found) == sorted(started.nodes)


def test_what_ray_says_of_its_workers_is_no_output(started: Started):
    """A program that reads the JSON of a sweep would fail on it."""
    code = f"""if True:
    import os, sys
    from tflabench.bench import on_ray
    with on_ray.connected({started.cluster.address!r}):
        import ray
        try:
            ray.get(ray.remote(max_retries=0)(lambda: os._exit(1)).remote())
        except ray.exceptions.WorkerCrashedError:
            sys.stdin.read()  # until Ray has said so
    print("the output")
    """
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    driver = subprocess.Popen([sys.executable, "-c", code], env=os.environ | started.variables, text=True, **pipes)
    assert driver.stderr
    assert any("(raylet)" in line for line in driver.stderr)
    stdout, stderr = driver.communicate()
    assert stdout == "the output\n", stderr


def test_each_kind_of_gpu_measures_every_comparison_into_a_folder_of_its_own(started: Started):
    kinds = ["--gpu", "H100,H200", "-a", "seq_len=16,32", "--impl", "stand_in_[01]", "-a", "batch=1"]
    done = started.sweep(*kinds, "--json")
    assert json.loads(done.stdout)["folders"] == ["out/h100", "out/h200"], done.stderr
    rows: pd.DataFrame = read_rows("out").sort_values("seq_len")
    assert rows.groupby("device")["seq_len"].agg(list).to_dict() == {
        NODES["a"]: [16, 16, 32, 32],
        "NVIDIA H200": [16, 16, 32, 32],
    }
    assert set(rows.groupby("comparison_id")["gpu_uuid"].nunique()) == {1}
    assert rows["comparison_id"].nunique() == 4
    (uuid,) = set(rows[rows["device"] == NODES["a"]]["gpu_uuid"])
    assert rows["ceilings"].str.startswith("measured: tflabench calibrate").all()
    runs = json.loads(Path("out/h100/environment.json").read_text())["runs"]
    assert {(run["node"], run["device"]) for run in runs.values()} == {("a", NODES["a"])}
    stored = json.loads((Path(started.variables["XDG_CACHE_HOME"]) / "tflabench" / "ceilings.json").read_text())
    assert {uuid, "NVIDIA H200"} <= stored.keys()

    refused = started.sweep("--gpu", "A100", "--impl", "stand_in_0")
    assert refused.exit_code == 2
    assert refused.stderr.splitlines()[-1] == "tflabench: --gpu is 'A100', which no node has: there is H100, H200"


def test_nodes_of_other_versions_are_refused_before_anything_is_measured_unless_they_are_taken(
    started: Started, tmp_path: Path
):
    """The driver alone has a distribution that decides a number; those that are taken are measured from Python."""
    about = tmp_path / "here" / "flash_attn-9.9.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn\nVersion: 9.9\n")
    path = (str(about.parent),)
    refused = started.sweep("--device", "cpu", "-a", "seq_len=16", "--impl", "stand_in_0", path=path)
    assert refused.exit_code == 2
    assert "tflabench: node a has flash-attn missing, not 9.9; node" in refused.stderr
    assert "--allow-mixed-versions" in refused.stderr
    assert not Path("out").exists()

    where = {"executor": "ray", "ray_address": started.cluster.address, "device": "cpu", "out": "out"}
    sizes = {"seq_len": [16, 32], "head_dim": 16, "heads": 2, "batch": 1, "pass_": "fw"}
    options = {"impl": "stand_in_0", "plugin": PLUGIN, "allow_mixed_versions": True, **sizes, **where}
    rows, stderr = started.call(partial(ray_driver.sweep, os.getcwd(), [*path], **options))
    assert sorted(row["seq_len"] for row in rows) == [16, 32]
    assert {row["node"] for row in rows} <= set(started.nodes)
    assert {row["mixed_versions"] for row in rows} == {"flash-attn missing, not 9.9"}
    assert "Rows of node a are marked: it has flash-attn missing, not 9.9." in stderr


def test_killed_interrupted_and_without_a_node_a_sweep_ends_with_one_row_a_point(started: Started):
    driver = started.process(*CPU, *FIVE)
    wait_for(lambda: closed(journal()), driver)
    driver.kill()
    driver.communicate()
    before = Path("out/journal.jsonl").read_bytes()
    safe = closed(journal())
    assert 5 <= len(safe) <= 25

    driver, rows_before = started.process(*CPU, *FIVE), len(journal())
    wait_for(lambda: journal()[rows_before:], driver)
    driver.send_signal(signal.SIGINT)
    _, stderr = driver.communicate(timeout=60)
    assert driver.returncode == 130, stderr
    assert "of 40 points are safe; the same command goes on." in stderr
    assert "Traceback" not in stderr
    safe = closed(journal()) | safe

    driver, rows_before = started.process(*CPU, *FIVE, "--json"), len(journal())
    wait_for(lambda: [row for row in journal()[rows_before:] if row["node"] == "b" and not row["closed"]], driver)
    started.cluster.remove_node(started.nodes.pop("b"), allow_graceful=False)
    stdout, stderr = driver.communicate(timeout=120)
    assert driver.returncode == 0, stderr
    assert re.search("is tried once more, elsewhere: on b: its node (left|cannot be reached)", stderr), stderr
    assert json.loads(stdout)["left"] == 0

    assert Path("out/journal.jsonl").read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    rows = read_rows("out")
    assert len(rows) == rows["point"].nunique() == 40
    assert set(rows["status"]) == {"ok"}
    assert rows["closed"].all()
    assert set(rows["comparison_id"].value_counts()) == {5}
    assert set(rows.groupby("comparison_id")["node"].nunique()) == {1}
    assert set(rows["node"]) >= {"a"}
    assert dict(rows.set_index("point")["comparison_id"][list(safe)]) == safe, "what was closed is not measured twice"
