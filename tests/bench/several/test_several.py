"""Sweeps over several GPUs without Ray: who measures what, what a fault costs, what is refused; and the GPUs of a host.

Points are stand-ins (`stand_in.py`), GPUs are those of `nvidia_smi.py`. `test_ray.py` has the nodes of a cluster.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvidia_smi import fake_nvidia_smi
from repository import SUPPORT
from synthetic import row

from tflabench.bench.protocol import PAPER
from tflabench.bench.several import host, on_ray
from tflabench.bench.several.driver import Driver, Listener, Overview, Running
from tflabench.bench.several.nodes import difference, require_alike
from tflabench.bench.several.task import Began, Ended, Event, Fault, Note, Place, Task, Terms
from tflabench.bench.standing import Standing, Work
from tflabench.bench.sweep import Described
from tflabench.cli.common.live import overview_lines
from tflabench.cli.common.several import Where, where
from tflabench.implementations import registry
from tflabench.problem import InputError, Problem
from tflabench.rows.load import find_results, read_rows
from tflabench.rows.schema import Row
from tflabench.selection.axes import take_kinds
from tflabench.selection.comparisons import Comparison
from tflabench.selection.points import Point

TERMS = Terms("sweep", "cpu", PAPER)
A, B = Place("a", "a CPU, 2 cores"), Place("b", "a CPU, 2 cores")


def comparison(seq_len: int = 64) -> Comparison:
    points = (Point(registry.get(name), Problem(1, 2, seq_len, 16, 16)) for name in ("reference_sig", "sdpa"))
    return Comparison(tuple(points))


def finished(task: Task, place: Place, closed: bool = True) -> list[Event]:
    """What comes of a task that runs to its end, or to the end of its first turns."""
    rows: list[Event] = [
        row(point.implementation.name, point=point.id, node=place.node, device=place.device, closed=closed)
        for point in task.comparison.points
    ]
    return [Began(place), Described("run", {"ceilings": {}}), *rows]


class Devices:
    """An executor that does what a script says: for each try of a task, in order, its events; None for a silent one."""

    def __init__(self, script: Callable[[Task], Iterable[Event | None]], room: int = 1) -> None:
        self.script, self.free = script, room
        self.given: list[tuple[int, int]] = []  # number of a task, and its faults until then
        self.stopped: list[int] = []
        self._due: list[tuple[Task, list[Event | None]]] = []
        self.there = True

    def possible(self, task: Task) -> bool:
        return self.there

    def room(self, task: Task) -> bool:
        return len(self._due) < self.free

    def start(self, task: Task) -> None:
        self.given.append((task.number, len(task.faults)))
        self._due.append((task, list(self.script(task))))

    def wait(self, timeout_s: float) -> list[tuple[Task, Event]]:
        found = []
        for task, events in list(self._due):
            while events and (event := events.pop(0)) is not None:
                found.append((task, event))
                if isinstance(event, Ended | Fault):
                    self._due.remove((task, events))
        return found

    def stop(self, task: Task) -> None:
        self.stopped.append(task.number)
        self._due = [(one, events) for one, events in self._due if one is not task]

    def usual_place(self, task: Task) -> Place:
        return A

    def close(self) -> None: ...


def drive(devices: Devices, count: int = 1, **options: Any) -> tuple[list[Row], list[str], list[Overview]]:
    rows: list[Row] = []
    said: list[str] = []
    seen: list[Overview] = []
    tasks = [Task(number, comparison(64 * number)) for number in range(1, count + 1)]
    listener = Listener(rows.append, lambda *_: None, said.append, seen.append)
    Driver(tasks, devices, TERMS, listener, **options).run()
    return rows, said, seen


def test_comparisons_go_to_whoever_is_free_in_their_order():
    devices = Devices(lambda task: [*finished(task, A), Ended()], room=2)
    rows, said, seen = drive(devices, 3)
    assert devices.given == [(1, 0), (2, 0), (3, 0)]
    assert [row.seq_len for row in rows] == [4096] * 6  # as `synthetic` makes them
    assert len({row.point for row in rows}) == 6
    assert said == []
    assert (seen[-1].closed, seen[-1].comparisons, seen[-1].timed, seen[-1].points) == (3, 3, 6, 6)


def test_a_comparison_that_is_lost_is_measured_once_more_before_the_others():
    def script(task: Task) -> list[Event]:
        if task.number == 1 and not task.faults:
            return [*finished(task, A, closed=False), Fault("crashed", "its node left")]
        return [*finished(task, B), Ended()]

    devices = Devices(script)
    rows, said, _ = drive(devices, 2)
    assert devices.given == [(1, 0), (1, 1), (2, 0)]
    assert said == ["Comparison 1 is tried once more, elsewhere: on a: its node left"]
    last = {row.point: row for row in rows}
    assert {(row.node, row.closed, row.status) for row in last.values()} == {("b", True, "ok")}


@pytest.mark.parametrize("status", ["crashed", "oom", "timeout", "error"])
def test_lost_twice_its_points_are_rows_with_the_reason_and_the_sweep_goes_on(status):
    def script(task: Task) -> list[Event]:
        if task.number == 2:
            return [*finished(task, A), Ended()]
        return [*finished(task, B if task.faults else A, closed=False), Fault(status, f"fault {len(task.faults) + 1}")]

    rows, said, seen = drive(Devices(script), 2)
    assert said[-1] == "Comparison 1 has failed: on b: fault 2"
    last = {row.point: row for row in rows if row.point in {point.id for point in comparison().points}}
    assert {(row.status, row.closed, row.node, row.ms_median) for row in last.values()} == {(status, True, "b", None)}
    assert {row.reason for row in last.values()} == {"tried 2 times, on a: fault 1; on b: fault 2"}
    assert len({row.comparison_id for row in last.values()}) == 1
    assert (seen[-1].closed, seen[-1].failed, seen[-1].timed) == (2, 2, 2)


def test_a_task_that_never_had_a_device_fails_where_it_was_meant_to_run():
    rows, _, _ = drive(Devices(lambda task: [Fault("error", "no such plugin")]))
    assert {(row.node, row.device, row.status) for row in rows} == {("a", A.device, "error")}
    assert rows[0].reason == "tried 2 times, no such plugin; no such plugin"


def test_a_task_that_says_nothing_any_more_hangs():
    def script(task: Task) -> list[Event | None]:
        return [*finished(task, B), Ended()] if task.faults else [Began(A), None]

    devices = Devices(script)
    rows, said, _ = drive(devices, silent_s=0.05)
    assert devices.stopped == [1]
    assert said == ["Comparison 1 is tried once more, elsewhere: on a: nothing was heard of it for 0.05 s"]
    assert {row.node for row in rows} == {"b"}


def test_a_sign_of_life_is_no_hang():
    def script(task: Task) -> Iterable[Event | None]:
        return [Began(A), *[None, Note()] * 20, *finished(task, A), Ended()]

    devices = Devices(script)
    wait = devices.wait
    devices.wait = lambda timeout_s: (time.sleep(0.02), wait(timeout_s))[1]
    assert len(drive(devices, silent_s=0.2)[0]) == 2
    assert devices.stopped == []


def test_a_task_that_ends_too_soon_has_failed():
    rows, said, _ = drive(Devices(lambda task: [*finished(task, A, closed=bool(task.faults)), Ended()]))
    assert said == ["Comparison 1 is tried once more, elsewhere: on a: the task ended before its comparison did"]
    assert [row.closed for row in rows] == [False, False, True, True]


def test_without_a_device_or_time_the_rest_is_left():
    def script(task: Task) -> list[Event]:
        devices.there = False
        return [*finished(task, A), Ended()]

    devices = Devices(script)
    assert len(drive(devices, 3)[0]) == 2
    assert devices.given == [(1, 0)]
    assert drive(Devices(script), 3, stop_at=time.monotonic())[0] == []


def test_a_task_that_fails_when_the_time_is_up_is_left():
    stop_at = time.monotonic() + 0.2

    def script(task: Task) -> list[Event]:
        time.sleep(0.25)
        return [Began(A), Fault("crashed", "its process died", A)]

    rows, said, _ = drive(Devices(script), stop_at=stop_at)
    assert rows == []
    assert said == ["Comparison 1 is left for the same command: on a: its process died"]


def stuck(pipe: Connection) -> host._Process:
    """A process that hangs, with a pipe that it does not use, in a session of its own as those of GPUs are."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    return host._Process(process, pipe, tempfile.TemporaryFile())


def test_a_process_that_hangs_before_its_first_word_is_ended(monkeypatch):
    """Its task has a GPU from the start, so its silence counts."""
    ours, theirs = Pipe()
    gpu = SimpleNamespace(name=A.device, uuid="GPU-1")
    devices = host.OneHost([gpu], TERMS)  # type: ignore[list-item]
    processes = [stuck(ours)]
    monkeypatch.setattr(devices, "_started", lambda uuid: processes[0])
    task = Task(1, comparison(64))
    devices.start(task)
    assert devices.wait(0) == [(task, Began(devices.usual_place(task)))]
    assert devices.wait(0) == []
    devices.stop(task)
    assert processes[0].process.poll() == -signal.SIGKILL
    theirs.close()


def test_a_process_that_hangs_at_its_end_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(host, "GRACE_S", 0.1)
    ours, theirs = Pipe()
    theirs.close()
    assert stuck(ours).obituary() == "its process died (SIGKILL)"
    ours.close()


def test_the_display_has_a_line_a_device():
    task = Task(7, comparison())
    work = Work(task.comparison.points[0], "sampling", 1, 2)
    standing = Standing(1, 0, 2, 0, 0, 0, 0, 1, 0, 0, (work,), ())
    gpu = Place("a", "NVIDIA H100", "GPU-1234567-89")
    overview = Overview(9, 6, 18, 12, 1, 2, (Running(task, gpu, standing=standing), Running(Task(8, comparison()), B)))
    lines = [line.plain for line in overview_lines(overview, PAPER, 100)]
    assert lines[-2] == "a GPU-1234567-: timing round 2 of 1, reference_sig, forward T=64, comparison 7 of 9"
    assert lines[-1] == "b: comparison 8 of 9 starts"
    assert [line for line in lines if "12 of 18" in line and "6 of 9" in line]


# --- What travels, and what is refused


def test_points_travel_by_the_names_of_their_implementations():
    sent = comparison()
    assert pickle.loads(pickle.dumps(sent)) == sent
    assert pickle.loads(pickle.dumps(sent)).points[0].implementation is registry.get("reference_sig")


def test_nodes_of_other_versions_are_refused_by_name():
    here = {"source_hash": "0123", "Python": "3.11.7", "torch": "2.11.0"}
    assert difference(dict(here), here) is None
    other = difference({"source_hash": "4567", "Python": "3.11.7", "triton": "3.6.0"}, here)
    assert other == "source_hash 4567, not 0123; torch missing, not 2.11.0; triton 3.6.0, not missing"
    require_alike({"a": None})
    with pytest.raises(InputError, match=r"^node b has source_hash 4567, .* --allow-mixed-versions"):
        require_alike({"a": None, "b": other})


def test_kinds_are_an_axis_of_their_own():
    assert take_kinds(["gpu=H100, H200", "seq_len=64"]) == (("H100", "H200"), ["seq_len=64"])
    assert take_kinds([]) == ((), [])
    for wrong in (["gpu="], ["gpu"], ["gpu=H100,,H200"], ["gpu=H100", "gpu=H200"]):
        with pytest.raises(InputError, match="gpu"):
            take_kinds(wrong)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"executor": "slurm"}, "--executor is 'slurm': it must be one of local, ray"),
        ({"address": "here"}, "--ray-address is given without --executor ray"),
        ({"mixed": True}, "--allow-mixed-versions is given without --executor ray"),
        ({"kinds": ("H100",)}, "-a gpu=... is given without --executor ray"),
        ({"gpus": "0"}, "--gpus is '0': it must be a number of GPUs from 1 to 1024, or all"),
        ({"gpus": "many"}, "--gpus is 'many'"),
        ({"gpus": "2", "device": "cpu"}, "--gpus 2 and --device cpu are both given"),
        ({"executor": "ray", "gpus": "2"}, "--gpus and --executor ray are both given"),
        ({"executor": "ray", "kinds": ("H100",), "device": "cpu"}, "-a gpu=H100 and --device cpu are both given"),
    ],
)
def test_options_that_mean_nothing_together(options, says):
    usual: dict[str, Any] = {
        "executor": "local",
        "address": None,
        "gpus": None,
        "mixed": False,
        "kinds": (),
        "device": "auto",
    }
    given: Any = usual | options
    with pytest.raises(InputError) as error:
        where(**given)
    assert str(error.value).startswith(says)
    assert where(**usual) is None
    three: Any = usual | {"gpus": "3"}
    assert where(**three) == Where(gpus=3)


def test_without_ray_one_line_says_how_to_get_it(monkeypatch, capsys):
    from tflabench.cli.main import app

    monkeypatch.setattr(on_ray, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as end:
        app(["sweep", "--executor", "ray", "--device", "cpu"])
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert err == "tflabench: --executor ray needs Ray, which is not installed: pip install '.[ray]' in a checkout\n"


# --- The GPUs of this host

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
            if b"tflabench.bench.several.station" in (folder / "cmdline").read_bytes():
                entries = (folder / "environ").read_text().split("\0")
                variables = {name: value for name, _, value in (entry.partition("=") for entry in entries)}
                if variables.get("TMPDIR") == os.getcwd():
                    found[variables["CUDA_VISIBLE_DEVICES"]] = int(folder.name)
        except OSError:
            continue
    return found


def gone() -> bool:
    deadline = time.monotonic() + 20
    while stations() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not stations()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_gpu_that_loses_its_process_costs_no_row(start):
    sweep = start("--gpus", "2", "-a", "seq_len=16:64:+16", "--json")
    while not (begun := {row["gpu_uuid"] for row in rows_so_far()}):
        assert sweep.poll() is None, sweep.communicate()
        time.sleep(0.02)
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
    assert json.loads(stdout)["folders"] == ["out"]
    assert "on 2 devices" in stderr
    assert gone()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_ended_in_the_middle_it_ends_its_processes_and_goes_on_with_more_gpus(start, how):
    sweep = start("--gpus", "1", "-a", "seq_len=16:48:+16")
    while sum(row["closed"] for row in rows_so_far()) < 3:
        assert sweep.poll() is None, sweep.communicate()
        time.sleep(0.02)
    sweep.send_signal(how)
    _, stderr = sweep.communicate(timeout=30)
    assert gone()
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
    assert "on 3 devices" in stderr
    rows = read_rows("out").set_index("point")
    assert len(rows) == 9
    assert rows["closed"].all()
    assert dict(rows["comparison_id"][list(safe)]) == safe


def test_more_gpus_than_there_are_is_one_line_and_2(start):
    sweep = start("--gpus", "4")
    _, stderr = sweep.communicate(timeout=30)
    assert (sweep.returncode, stderr) == (2, "tflabench: --gpus is 4, and this machine shows 3\n")
