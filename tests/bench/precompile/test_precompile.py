"""Kernels compile ahead: what a dry run lists is what launches look up, and a pool leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT, SUPPORT

from tflabench.bench.precompile.gpu_facts import H100, DeviceFacts, probe
from tflabench.bench.precompile.pool import Compiled, CompilePool, Event, Finished, Listed
from tflabench.bench.precompile.processes import members
from tflabench.bench.precompile.server import OUR_LIBRARY, ForkServer
from tflabench.implementations import registry
from tflabench.problem import InputError, Pass, Problem

OLD_TRITON = Path(os.environ.get("TFLABENCH_OLD_TRITON", ".triton-3.6.0"))
PLUGIN = str(SUPPORT / "precompile_plugin.py")
TINY = Problem(1, 1, 64, 64, 64)
HANG_S = 4.0
CLOSE_S = 2.0

# Of our kernels: what another T, B or H compiles anew. T and strides where loads and stores are as wide as these are
# aligned (T = 1000 is no multiple of 16), the others are branches and tiles that a heuristic chooses. A tuple or a
# class of constants stands for all that is in it.
VARIES = {
    "_activate": "T f.h i.h",
    "_gate_gradients": "lengths.T f.h i.h config.chunks",
    "_pass_tiles": "config new",
    "_stabilise": "T f.h i.h blocks before.block_g before.block_m config.blocks launch_pdl",
    "_sum_tiles": "T TILE TILES",
    "_summarise": "T f.h i.h",
    "_tile_sums": "T config new",
    "accumulate": "config kept_desc new",  # another kept_desc where states are kept, by another config
    "add_bias": "T x_h x_t heads HEADS STEPS",
    "advance_state": "config.cols",
    "carry": "new",
    "chunk_states": "initial ends states other sizes.T sizes.steps sizes.sharing vectors.segment_g vectors.through "
    "vectors.n_initial vectors.n_ends vectors.n_states "
    "config.initial config.ends config.states config.through config.reverse config.chunk_tiles",
    "gradients": "call.config",
    "join_segments": "new",
    "pair": "config new",
    "parallel_outputs": "sizes.T sizes.steps sizes.in_sharing sizes.out_sharing config.members",
    "walk_backward_dqk": "config launch_pdl new",
    "walk_backward_dqk_with_sums": "config launch_pdl new",
    "walk_backward_dv": "config launch_pdl new",
    "walk_forward": "config launch_pdl new",
    "walk_forward_normalised": "config launch_pdl new",
    "walk_heads": "config",
}


def environment(triton: str, cache: Path) -> dict[str, str]:
    """Of a process that compiles for real, with one of the two versions."""
    if triton == "oldest" and not (ROOT / OLD_TRITON / "triton").is_dir():
        pytest.skip(f"no Triton in {ROOT / OLD_TRITON}: `make test` puts the oldest supported there")
    ours = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    folders = [str(ROOT / OLD_TRITON)] if triton == "oldest" else []
    folders += filter(None, [os.environ.get("PYTHONPATH")])  # where tflabench itself may be
    return ours | {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(folders)}


def dry_runs(env: dict[str, str], *argv: str) -> dict[str, Any]:
    command = [sys.executable, "-P", "-W", "ignore", str(ROOT / "tests" / "dry_runs.py"), *argv]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module", params=["installed", "oldest"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found = dry_runs(environment(request.param, tmp_path_factory.mktemp("cache")))
    assert (request.param == "oldest") == (found["triton"] == "3.6.0")
    if found["missing"]:
        print(f"not installed, so not tried: {', '.join(found['missing'])}")
    return found


def test_a_dry_run_lists_the_kernels_of_every_implementation(report: dict[str, Any]) -> None:
    for name, found in report["listed"].items():
        if not name.startswith("fla_"):  # some of fla's have gone, or refuse this Triton
            assert not found["reason"], (name, found)
        if not found["reason"] and "native" not in name:
            assert found["tasks"], name
    ours = {name: found for name, found in report["listed"].items() if name.startswith(("tfla", "hopper", "step"))}
    assert len(ours) > 30
    of_hopper = set(report["listed"]["hopper_exp fwbw"]["kernels"])
    assert {"walk_backward_dqk_with_sums", "pair", "_gate_gradients"} <= of_hopper
    assert {"chunk_states", "parallel_outputs"} <= set(report["listed"]["tfla_sig_xl fw"]["kernels"])
    for name in ours:
        if name.endswith(" fwbw"):
            assert ours[name]["tasks"] > ours[name.replace(" fwbw", " fw")]["tasks"], name
    tasks = {name: found["tasks"] for name, found in report["listed"].items()}
    assert tasks["fla_gla fw"] > 100  # of a handful of kernels: every configuration of their tuners
    assert sum(1 for name, count in tasks.items() if name.startswith("fla_") and count > 10) >= 14


def test_keys_are_those_of_tensors_with_memory(report: dict[str, Any]) -> None:
    """Types, alignment and strides of what has no memory are those that Triton's binder sees of what has."""
    assert [name for name, found in report["listed"].items() if not found["same_keys"]] == []


def test_a_kernel_has_one_key_whatever_was_keyed_before(report: dict[str, Any]) -> None:
    assert report["same_in_any_order"]


def test_what_another_size_compiles_anew_is_known(report: dict[str, Any]) -> None:
    news = [
        f"{kernel}: {argument or 'new'} ({name}, {size})"
        for name, rows in report["varied"].items()
        for kernel, argument, size in rows
        if not {argument or "new", argument.partition(".")[0]} & {*VARIES.get(kernel, "").split()}
    ]
    assert news == []


# --- The pool


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; processes started from here compile for real, and know the plugin."""
    for name, value in environment("installed", tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(registry, "_plugged", [])
    registry.plug_in(PLUGIN)
    return tmp_path / "cache"


def small(name: str, pass_: Pass) -> Problem:
    """As `dry_runs.point` has it."""
    return Problem(1, 4, 1 if name.startswith("step_") else 256, 64, 64, pass_=pass_)


def pool(jobs: int = 2) -> CompilePool:
    return CompilePool(jobs, H100, timeout_s=HANG_S, plugins=[PLUGIN])


def events_of(pool: CompilePool, until: Callable[[list[Event]], object] = lambda _: False) -> list[Event]:
    """All events until every job is finished, or something else holds."""
    events: list[Event] = []
    deadline = time.monotonic() + 120
    while not pool.idle and not until(events):
        assert time.monotonic() < deadline, events
        events += pool.wait(1.0)
    return events


def of(kind: type[Any], events: list[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def unfinished(cache: Path) -> list[Path]:
    """What a compiler that was killed would leave: something half written, or an empty folder."""
    return [*cache.glob("*/tmp.pid_*"), *(folder for folder in cache.iterdir() if not any(folder.iterdir()))]


def test_what_was_compiled_ahead_is_found_by_launches(cache: Path) -> None:
    with pool() as first:
        first.submit("step_exp", small("step_exp", "decode"))
        first.submit("plug_tuned", TINY)
        first.submit("plug_tuned", TINY.with_(batch=2))
        events = events_of(first)
    assert [event.kernels for event in of(Listed, events)] == [2, 2, 2]  # the tuner cuts off its third
    compiled = of(Compiled, events)
    assert len(compiled) == 4  # what two jobs need is compiled once
    assert not [event for event in compiled if event.error]
    assert not list(cache.glob("*/*.autotune.json")), "what a dry run takes for timings stays out of the cache"
    assert len(list(cache.glob("*/*.cubin"))) == 4
    with pool() as second:
        second.submit("step_exp", small("step_exp", "decode"))
        events = events_of(second)
    assert [(event.kernels, event.cached) for event in of(Listed, events)] == [(2, 2)]
    assert not of(Compiled, events)
    before = sorted(cache.iterdir())
    assert dry_runs(dict(os.environ), "step_exp", "decode") == {"looked_up": 2, "found": 2, "missed": []}
    assert sorted(cache.iterdir()) == before


def test_crash_error_and_hang_cost_one_kernel_each(cache: Path) -> None:
    with pool() as compilers:
        job = compilers.submit("plug_faulty", TINY)
        compilers.submit("plug_fails", TINY)
        again = compilers.submit("plug_faulty", TINY)
        events = events_of(compilers)
    said = {event.kernel: event.error for event in of(Compiled, events) if event.ticket == job}
    assert said["sound"] is None
    assert said["crashes"] == "the compiler died, SIGABRT"
    assert said["hangs"] == f"killed after {HANG_S:g} s"
    assert said["refused"].startswith("CompileTimeAssertionFailure")
    for kernel in ("crashes", "hangs", "refused"):  # once, by whichever of the two jobs came to it first
        seconds = {event.ticket: event.seconds for event in of(Compiled, events) if event.kernel == kernel}
        assert seconds.keys() == {job, again}
        assert min(seconds.values()) == 0.0 < max(seconds.values())
    assert [event.reason for event in of(Finished, events) if event.reason] == ["OSError: a library that fails"]
    assert unfinished(cache) == []


def test_closing_leaves_no_process_and_nothing_half_written(cache: Path) -> None:
    with pool() as compilers:
        for _ in range(3):
            compilers.submit("plug_hangs", TINY)
        compilers.submit("hopper_exp", Problem(4, 4, 4096, 128, 256))
        events_of(compilers, lambda events: len(of(Listed, events)) >= 3)
        time.sleep(1.5)  # in the middle of it
        (server,) = compilers._servers.values()
        assert isinstance(server, ForkServer)
        assert len(members(server.pid)) > 3
        started = time.monotonic()
    assert time.monotonic() - started < CLOSE_S
    assert members(server.pid) == []
    assert unfinished(cache) == []
    assert not list(Path(os.environ.get("TMPDIR", "/tmp")).glob(f"tflabench-{server.pid}-*"))


def test_a_cancelled_job_ends_and_others_go_on(cache: Path) -> None:
    with CompilePool(1, H100, timeout_s=60, plugins=[PLUGIN]) as compilers:
        hanging = compilers.submit("plug_hangs", TINY)
        sound = compilers.submit("plug_sound", TINY)
        events = events_of(compilers, lambda events: of(Listed, events))
        compilers.cancel(hanging)
        events += events_of(compilers)
    assert [(event.ticket, event.reason) for event in of(Finished, events)] == [(hanging, "cancelled"), (sound, None)]
    assert [event.kernel for event in of(Compiled, events)] == ["sound"]


def test_processes_end_with_whoever_started_them(cache: Path) -> None:
    code = f"""
import time
from tflabench.implementations import registry
from tflabench.bench.precompile.gpu_facts import H100
from tflabench.bench.precompile.pool import CompilePool, Listed
from tflabench.problem import Problem
registry.plug_in({PLUGIN!r})
pool = CompilePool(2, H100, plugins=[{PLUGIN!r}])
pool.submit("plug_hangs", Problem(1, 1, 64, 64, 64))
while not any(isinstance(event, Listed) for event in pool.wait()):
    pass
time.sleep(0.5)
print(*(server.pid for server in pool._servers.values()), flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    server = int(parent.stdout.readline())
    assert len(members(server)) >= 3
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + CLOSE_S
    while members(server) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert members(server) == []
    assert unfinished(cache) == []


def test_a_forked_process_is_ready_to_measure_and_a_lost_one_is_told(cache: Path) -> None:
    server = ForkServer("flash-linear-attention", H100)
    try:
        messages: Iterator[dict[str, Any]] = _messages(server)
        assert next(messages)["failed"] == {}
        server.fork(7, "tflabench.bench.precompile.server:ready_to_measure", {}, [])
        assert next(messages) == {"ended": 7, "code": 0}
        server.fork(8, "os:abort", {}, [])
        assert next(messages) == {"ended": 8, "code": -signal.SIGABRT}
    finally:
        server.close()
    assert members(server.pid) == []


def _messages(server: ForkServer) -> Iterator[dict[str, Any]]:
    while not server.channel.closed:
        yield from server.channel.receive()


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(InputError, match=r"^Triton's cache \S+ cannot be written \(Not a directory\): .*$"):
        CompilePool(1, H100)


@pytest.mark.gpu
@pytest.mark.timeout(400)  # fla's tuner tries all it knows, in two processes
def test_launches_on_the_gpu_find_what_was_compiled_without_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fresh processes, and in those that a server forks, whose imports saw no GPU; and nothing is compiled anew."""
    import torch

    facts = probe()
    assert facts.name == torch.cuda.get_device_name()
    properties = torch.cuda.get_device_properties(0)
    assert (facts.multiprocessors, facts.l2_bytes) == (properties.multi_processor_count, properties.L2_cache_size)
    assert (facts.capability, facts.memory_bytes) == (torch.cuda.get_device_capability(), properties.total_memory)
    monkeypatch.setenv("PYTHONPATH", f"{SUPPORT}:{os.environ.get('PYTHONPATH', '')}")
    wanted: list[tuple[str, Pass]] = [
        *(("step_exp", "decode"), ("tfla_sig_xl", "fwbw"), ("hopper_exp", "fwbw"), ("mamba2", "fw")),
        *(
            ("fla_simple_gla_fused", "fwbw"),
            ("fla_retention", "fw"),
            ("nxai_sig_xl", "fw"),
            ("lightning_attention_2", "fw"),
        ),
    ]
    with CompilePool(os.cpu_count() or 1, facts) as compilers:
        jobs = {}
        for name, pass_ in wanted:
            jobs[compilers.submit(name, small(name, pass_))] = name, pass_
        events = events_of(compilers)
    assert not [event for event in of(Compiled, events) if event.error]
    left_out = {jobs[event.ticket]: event.reason for event in of(Finished, events) if event.reason}
    print("not tried:", left_out)
    compiled = compiled_in(cache)
    for name, pass_ in [pair for pair in wanted if pair not in left_out]:
        impl = registry.get(name)
        server = ForkServer(impl.package if impl.imports else OUR_LIBRARY, facts)
        reading, writing = os.pipe()
        server.fork(1, "dry_runs:on_gpu", {"name": name, "pass_": pass_}, [writing])
        os.close(writing)
        answer = os.read(reading, 1 << 16)
        assert answer, (name, server.last_words())
        server.close()
        found = json.loads(answer)
        assert found["looked_up"] == found["found"] > 0, (name, pass_, found)
        found = dry_runs(dict(os.environ), name, pass_, "gpu")
        assert found["looked_up"] == found["found"] > 0, (name, pass_, found)
    assert compiled_in(cache) == compiled


def compiled_in(cache: Path) -> set[Path]:
    """Folders of kernels, but for those that torch.compile writes: the first call of mlstm_kernels makes one."""
    return {path.parent for path in cache.glob("*/__grp__*") if not path.name.startswith("__grp__triton_")}


def test_who_asks_for_compiling_imports_no_torch() -> None:
    code = "import sys, tflabench.bench.precompile.pool as pool; sys.exit(bool({'torch', 'triton'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_our_kernels_are_listed_without_dynamo(tmp_path: Path) -> None:
    """To import it takes longer than to compile the first of them."""
    code = """
import sys
from tflabench.bench.precompile.dry_run import compile_tasks
from tflabench.bench.precompile.gpu_facts import H100
from tflabench.bench.precompile.server import import_library
from tflabench.implementations import registry
from tflabench.problem import Problem
assert import_library("tflabench", H100) == {}
for name in ("hopper_exp", "hopper_mamba2"):
    assert compile_tasks(registry.get(name), Problem(1, 2, 256, 64, 64), H100)
assert "torch._dynamo" not in sys.modules
"""
    command, env = [sys.executable, "-W", "ignore", "-c", code], environment("installed", tmp_path)
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_facts_travel_as_text() -> None:
    assert DeviceFacts.from_json(H100.as_json()) == H100
    assert H100.architecture == 90
