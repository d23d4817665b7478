"""Compares the kernels of this checkout with those of another one: results bit for bit, times.

    git worktree add ../old COMMIT
    OLD_TREE=../old python tests/support/compare_trees.py [--part backward] [--no-times]

Both are loaded into one process and called as `backends` calls them, by the entry points that their modules register:
names within a tree do not matter. Needs a GPU of compute capability 9.0; `--plan` prints what would be run without one.
Parts come one after the other, backward first, and each prints what it has found.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from repository import ROOT
from torch import Tensor

OLD_TREE = os.environ.get("OLD_TREE", "")
TREES = {"old": str(Path(OLD_TREE).resolve()), "new": str(ROOT)}
ROUNDS, SAMPLES, PASSES = 5, 20, 100
FLUSHED_BYTES = 256 << 20
CYCLES_AHEAD = 5_000_000  # 3 ms a sample
REPEATS = 2  # of each result, on the same inputs
GRADIENTS = ("dq", "dk", "dv", "df", "di", "dC_0", "dn_0", "dskip")


@dataclass(frozen=True)
class Case:
    """A forward pass, and with `backward` what follows it. L = 0 leaves the length of segments to the kernels.

    Attributes:
        gate: a name of `GATES`.
        groups: heads of q and k, which heads of v share; 0 for as many.
        states: starts from a state, returns the last one, and takes a gradient of that.
        gate_gradients: of a backward pass.
        cut_freely: forward may cut the sequence otherwise than backward, whose L this is.
        kernels: the module that registers them, and its arguments.
    """

    gate: str
    batch: int
    heads: int
    T: int
    d_qk: int
    d_hv: int
    L: int = 0
    groups: int = 0
    dtype: str = "bfloat16"
    states: bool = False
    skip: bool = False
    backward: bool = False
    gate_gradients: bool = True
    cut_freely: bool = False
    kernels: str = "hopper"

    def __str__(self) -> str:
        said = f"{self.gate} {self.d_qk}/{self.d_hv} B{self.batch} H{self.heads} T{self.T}"
        more = [(x.name, getattr(self, x.name)) for x in fields(self)[6:] if getattr(self, x.name) != x.default]
        return " ".join([said, *(f"{name}={value}" for name, value in more)])


SIZES = ((16, 16, 4096, 128, 256), (1, 16, 65536, 128, 256), (8, 8, 8192, 256, 512), (8, 64, 8192, 64, 64))
FORWARD = [Case(gate, *sizes) for gate in ("sig", "exp") for sizes in SIZES]
TRAINING = [replace(case, backward=True, cut_freely=True) for case in FORWARD]
HOST = [Case(gate, 1, 1, 64, 128, 256, L=64) for gate in ("sig", "exp")]  # soon done: what it takes is the host's time
KERNELS = {
    "hopper": ("hopper.chunkwise", ()),
    "tfla_xl": ("tfla.chunkwise", (2,)),
    "tfla_limit": ("tfla.chunkwise", (1,)),
}


def backward_cases() -> list[Case]:
    """Return cases of walks for dq, dk and dv: one for dk and dv up to 128/256, three beyond."""
    made = []
    for gate in ("sig", "exp"):
        small = Case(gate, 2, 4, 1000, 128, 256, L=256, backward=True)
        wide = replace(small, d_qk=256, d_hv=512)
        made += [
            replace(wide, states=True), replace(wide, gate_gradients=False), replace(wide, L=4096, T=515, states=True),
            small, replace(small, gate_gradients=False), replace(small, states=True), replace(small, T=63, L=64),
            replace(small, d_qk=64, d_hv=128, groups=2, states=True), replace(small, d_qk=128, d_hv=128, L=4096),
            replace(small, d_qk=192, d_hv=192, states=True), replace(small, d_qk=256, d_hv=256, states=True),
            replace(small, d_qk=256, d_hv=256, gate_gradients=False, states=True),
            replace(wide, dtype="float16", states=True), replace(small, dtype="float16", L=4096),
        ]  # fmt: skip
    skipped = Case("sig", 2, 4, 1000, 128, 256, L=256, groups=2, skip=True, backward=True)
    made += [skipped, replace(skipped, d_qk=256, d_hv=512, L=4096), replace(skipped, gate_gradients=False)]
    return made


def forward_cases() -> list[Case]:
    """Return cases of h: segments, ragged ends, states, shared heads, float16, a skip connection."""
    made = []
    for gate in ("sig", "exp"):
        small = Case(gate, 2, 4, 1000, 128, 256, L=256)
        made += [
            replace(small, states=True), replace(small, states=True, L=4096, T=515),
            replace(small, T=63, L=64, states=True), replace(small, groups=2, d_qk=64, d_hv=128),
            replace(small, d_qk=192, d_hv=256, states=True), replace(small, d_qk=256, d_hv=512, states=True),
            replace(small, d_qk=256, d_hv=512, dtype="float16", L=4096), replace(small, d_qk=64, d_hv=64, states=True),
        ]  # fmt: skip
    return [*made, Case("sig", 2, 4, 1000, 128, 256, L=256, groups=2, skip=True)]


def packed_cases() -> list[Case]:
    """Return cases of h of several heads a program, as of Mamba 2."""
    small = Case("mamba2", 2, 8, 1000, 64, 64, L=256, groups=2)
    return [
        small, replace(small, states=True), replace(small, skip=True, L=4096), replace(small, T=63, L=64),
        replace(small, gate="simple_gla", dtype="float16"), replace(small, gate="sig", states=True, skip=True),
    ]  # fmt: skip


def segment_cases() -> list[Case]:
    """Return cases of state passes: a first segment beside them, segments in parts, states kept for backward."""
    made = []
    for gate in ("sig", "exp"):
        small = Case(gate, 1, 4, 2310, 128, 256, L=1024, backward=True)
        made += [
            small, replace(small, states=True), replace(small, d_qk=256, d_hv=512), replace(small, batch=1, heads=1),
            replace(small, T=4096, L=512, cut_freely=True), replace(small, d_qk=64, d_hv=64, states=True),
            replace(small, T=4096, L=512, d_qk=256, d_hv=512, cut_freely=True, states=True),
        ]  # fmt: skip
    return made


def tilewise_cases() -> list[Case]:
    """Return cases of gradients tile by tile, and of what they are made of: states of every tile."""
    small = Case("sig", 2, 8, 1000, 64, 64, L=256, backward=True)
    mamba2 = replace(small, gate="mamba2", heads=16, groups=1)
    return [
        small, replace(small, states=True), replace(small, T=1024, L=4096), replace(small, gate="exp", states=True),
        replace(small, gate_gradients=False), mamba2, replace(mamba2, skip=True, states=True),
        replace(mamba2, gate_gradients=False, skip=True), replace(mamba2, gate="simple_gla", dtype="float16"),
        replace(mamba2, batch=16, heads=64, T=2048, L=4096),
    ]  # fmt: skip


def tfla_cases() -> list[Case]:
    """Return cases of the Triton kernels of two levels and of one."""
    made = []
    for gate in ("sig", "exp"):
        small = Case(gate, 2, 4, 1000, 128, 256, L=256, backward=True, kernels="tfla_xl")
        made += [
            small, replace(small, states=True, T=515), replace(small, d_qk=64, d_hv=64, groups=2, L=128),
            replace(small, kernels="tfla_limit", L=64), replace(small, dtype="float32", d_hv=128, L=128),
            replace(small, d_qk=256, d_hv=512, L=128),
        ]  # fmt: skip
    mamba2 = Case("mamba2", 2, 8, 1000, 64, 64, L=128, groups=2, skip=True, backward=True, kernels="tfla_xl")
    return [*made, mamba2, replace(mamba2, gate="simple_gla", states=True)]


def parts() -> dict[str, tuple[list[Case], list[Case]]]:
    """Return, by name, what is compared and what of it is timed."""
    wide = [case for case in TRAINING if case.d_qk > 64]
    narrow = [case for case in TRAINING if case.d_qk == 64]
    mamba2 = Case("mamba2", 16, 64, 4096, 64, 64, groups=1, skip=True, backward=True, cut_freely=True)
    tfla = [replace(case, kernels="tfla_xl", cut_freely=False) for case in TRAINING[::4]]
    found = {
        "backward": (backward_cases(), [*wide, replace(HOST[0], backward=True)]),
        "tilewise": (tilewise_cases(), [*narrow, mamba2]),
        "forward": (forward_cases(), [*FORWARD, *HOST]),
        "segments": (segment_cases(), []),
        "packed": (packed_cases(), []),
        "tfla": (tfla_cases(), tfla),
    }
    return {name: ([*cases, *timed], timed) for name, (cases, timed) in found.items()}


# --- Two trees in one process -----------------------------------------------------------------------------------------


def ours() -> dict[str, ModuleType]:
    """Return the modules of the tree that is active."""
    return {name: module for name, module in sys.modules.items() if name.split(".")[0] == "tflabench"}


class Tree:
    """A checkout, whose modules are those that are imported while it is active."""

    def __init__(self, name: str) -> None:
        self.path = TREES[name]
        self.modules: dict[str, ModuleType] = {}
        for known in ours():
            del sys.modules[known]
        sys.path.insert(0, self.path)
        try:
            types, state, backends = (
                importlib.import_module(f"tflabench.kernels.{x}") for x in ("types", "state", "backends")
            )
            assert str(types.__file__).startswith(self.path), f"{self.path} is not what was imported"
            self.kernels = {
                name: importlib.import_module(f"tflabench.kernels.{module}").kernels(*args)
                for name, (module, args) in KERNELS.items()
            }
            # So that processes find in the cache what others have compiled.
            importlib.import_module("tflabench.bench.precompile.stable_keys").key_callees_first()
        finally:
            sys.path.remove(self.path)
        self.State = state.State
        # Trees up to 85a0564 take tensors and options one by one.
        self.backends: Any = backends if hasattr(backends, "KernelOptions") else None
        self.gates = {
            "sig": types.MLSTM_SIG, "exp": types.MLSTM_EXP, "simple_gla": types.SIMPLE_GLA, "mamba2": types.MAMBA2,
        }  # fmt: skip
        self.modules = ours()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let what its functions import as they run be of this tree."""
        for known in ours():
            del sys.modules[known]
        sys.modules.update(self.modules)
        sys.path.insert(0, self.path)
        try:
            yield
        finally:
            self.modules = ours()
            sys.path.remove(self.path)

    def run(self, case: Case, x: SimpleNamespace) -> dict[str, Tensor]:
        """Return by name h, the last state, what backward needs, and gradients."""
        gate, kernels = self.gates[case.gate], self.kernels[case.kernels]
        initial = d_last = None
        if case.states:
            m = x.m if gate.stabilized else None
            initial = self.State(x.C, x.n if gate.normalize else None, m)
            d_last = self.State(x.dC, x.dn if gate.normalize else None, None)
        L = case.L or kernels.default_chunk_size(x.q, x.v, gate=gate, backward=case.backward)
        inputs = (x.q, x.k, x.v, x.f, x.i if gate.input != "none" else None, initial)
        options: dict[str, Any] = {"gate": gate, "scale": case.d_qk**-0.5, "chunk_size": L}
        of_backward = {"gate_gradients": case.gate_gradients}
        of_forward: dict[str, Any] = {}
        if case.kernels == "hopper":
            of_forward = {"return_last_state": case.states, "cut_freely": case.cut_freely}
        if self.backends is None:
            call = None
            h, state, saved = kernels.forward(*inputs, **options, **of_forward, skip=x.skip)
        else:
            call = self.backends.Arguments(*inputs, x.skip)
            h, state, saved = kernels.forward(call, self.backends.KernelOptions(**options, **of_forward))
        found = {"h": h, **dict(zip(("C", "n", "m"), state or (), strict=False))}
        if case.kernels == "hopper":
            found |= {f"saved {n}": y for n, y in enumerate(saved)}
        if case.backward:
            if self.backends is None:
                made = kernels.backward(x.dh, d_last, *inputs, saved, **options, **of_backward, skip=x.skip)
            else:
                told = self.backends.KernelOptions(**options, **of_backward)
                made = kernels.backward(x.dh, d_last, call, saved, told)
            found |= dict(zip(GRADIENTS, made, strict=False))
        return {name: y for name, y in found.items() if y is not None}


def draw(case: Case, device: str = "cuda") -> SimpleNamespace:
    """Return inputs and gradients of outputs."""
    torch.manual_seed(case.T + case.d_qk)
    B, H, T, dtype = case.batch, case.heads, case.T, getattr(torch, case.dtype)

    def normal(*shape: int, to: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, device=device, dtype=to)

    q, k = (normal(B, case.groups or H, T, case.d_qk, to=dtype) for _ in range(2))
    v = normal(B, H, T, case.d_hv, to=dtype)
    f, i = normal(B, H, T) + 3, normal(B, H, T)
    if case.gate == "simple_gla":
        f = -f.abs() / 16
    if case.gate == "mamba2":
        f, i = -torch.rand(H, device=device) / 8, i.abs() + 0.1
    x = SimpleNamespace(q=q, k=k, v=v, f=f, i=i, skip=normal(H) if case.skip else None)
    if case.backward:
        x.dh = normal(B, H, T, case.d_hv, to=dtype)
    if case.states:
        x.C, x.n, x.m = normal(B, H, case.d_qk, case.d_hv), normal(B, H, case.d_qk), normal(B, H)
        x.dC, x.dn = normal(B, H, case.d_qk, case.d_hv) / 4, normal(B, H, case.d_qk) / 4
    return x


# --- What is run ------------------------------------------------------------------------------------------------------


@cache
def tree_of(name: str) -> Tree:
    """Return a tree, imported once in a process."""
    return Tree(name)


def compile_for(name: str, case: Case) -> None:
    """Compile, in a process of its own, what a tree launches for a case; a dozen of these share the GPU."""
    tree = tree_of(name)
    try:
        with tree.active():
            tree.run(case, draw(case))
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        print(f"no memory to compile for {case}", flush=True)
    torch.cuda.empty_cache()


@contextmanager
def paused(pool: ProcessPoolExecutor) -> Iterator[None]:
    """Stop the processes that compile while something is timed."""
    processes = [process for process in (pool._processes or {}).values() if process.is_alive()]
    for process in processes:
        os.kill(process.pid or 0, signal.SIGSTOP)
    torch.cuda.synchronize()
    time.sleep(0.5)  # what they have launched is done
    try:
        yield
    finally:
        for process in processes:
            os.kill(process.pid or 0, signal.SIGCONT)


def differences(trees: dict[str, Tree], case: Case) -> list[str]:
    """Return what is not equal bit for bit, in repeats on the same inputs."""
    x = draw(case)
    with trees["old"].active():
        wanted = trees["old"].run(case, x)
    found = []
    for _ in range(REPEATS):
        with trees["new"].active():
            got = trees["new"].run(case, x)
        if got.keys() != wanted.keys():
            return [f"{case}: {', '.join(got)}, not {', '.join(wanted)}"]
        found += [f"{case}: {name}" for name, y in wanted.items() if not torch.equal(got[name], y)]
    found += [f"{case}: {name} is not a number" for name, y in wanted.items() if y.isnan().any()]
    return list(dict.fromkeys(found))


def sample(launch: Callable[[], Any], flushed: Tensor) -> list[float]:
    """Return milliseconds of launches, each with a cold L2."""
    pairs = []
    torch.cuda._sleep(SAMPLES * CYCLES_AHEAD)  # the host is to be ahead of the GPU, however slow it is
    for _ in range(SAMPLES):
        flushed.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        launch()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in pairs]


def timed(trees: dict[str, Tree], case: Case) -> str:
    """Return a line: median [10th percentile] of old and new, new over old, and that in each round."""
    x = draw(case)
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
    every: dict[str, list[list[float]]] = {name: [] for name in trees}
    for turn in range(-1, ROUNDS):  # the first one to warm up
        for name in ("old", "new") if turn % 2 == 0 else ("new", "old"):
            tree = trees[name]
            with tree.active():
                times = sample(lambda tree=tree: tree.run(case, x), flushed)
            if turn >= 0:
                every[name].append(times)

    def tenth(times: list[float]) -> float:
        return sorted(times)[len(times) // 10]

    columns = []
    for name in ("old", "new"):
        times = [t for one in every[name] for t in one]
        columns.append(f"{statistics.median(times):.4f} [{tenth(times):.4f}]")
    rounds = [tenth(new) / tenth(old) for new, old in zip(every["new"], every["old"], strict=True)]
    columns.append(f"{statistics.median(rounds):.3f}")
    columns.append(" ".join(f"{ratio:.3f}" for ratio in rounds))
    return f"| {'training' if case.backward else 'forward'} {case} | " + " | ".join(columns) + " |"


def host_time(trees: dict[str, Tree], case: Case) -> str:
    """Return a line: microseconds of the host for a pass, old and new, medians of rounds."""
    x = draw(case)
    every: dict[str, list[float]] = {name: [] for name in trees}
    for _ in range(ROUNDS):
        for name, tree in trees.items():
            with tree.active():
                tree.run(case, x)
                torch.cuda.synchronize()
                begin = time.perf_counter()
                for _ in range(PASSES):
                    tree.run(case, x)
                every[name].append((time.perf_counter() - begin) / PASSES * 1e6)
            torch.cuda.synchronize()
    old, new = (statistics.median(every[name]) for name in ("old", "new"))
    return f"| host, us: {case} | {old:.1f} | {new:.1f} | {new / old:.3f} | |"


def report(trees: dict[str, Tree], name: str, cases: list[Case], to_time: list[Case], pool: Any) -> bool:
    """Compare and time a part, print what is found, and return whether all is equal."""
    begin = time.perf_counter()
    wrong = []
    for case in cases:
        try:
            wrong += differences(trees, case)
        except Exception as error:  # of one case: the others are compared all the same
            wrong.append(f"{case}: {type(error).__name__}: {str(error)[:300]}")
        torch.cuda.empty_cache()
    verdict = "equal" if not wrong else "NOT EQUAL"
    print(f"\n{name}: {len(cases)} passes compared, {REPEATS} times each: {verdict}", *wrong, sep="\n", flush=True)
    if to_time:
        print("\n| ms: median [10th percentile] | old | new | new / old | rounds, 10th percentiles |")
        print("| --- | --- | --- | --- | --- |", flush=True)
        with paused(pool):
            for case in to_time:
                print((host_time if case.T == 64 else timed)(trees, case), flush=True)
                torch.cuda.empty_cache()
    print(f"\n({name}: {time.perf_counter() - begin:.0f} s)", flush=True)
    return not wrong


def main() -> None:
    known = parts()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=[*known, "all"], default="all")
    parser.add_argument("--no-times", action="store_true", help="compare results only")
    parser.add_argument("--plan", action="store_true", help="print the cases, import both trees, run nothing")
    parser.add_argument("--only", default="", help="cases whose text has this in it")
    parser.add_argument("--jobs", type=int, default=min(14, os.cpu_count() or 1), help="processes that compile")
    options = parser.parse_args()
    if not OLD_TREE:
        parser.error("OLD_TREE names no tree to compare with")
    chosen = {}
    for name, both in known.items():
        if options.part in (name, "all"):
            compared, to_time = ([case for case in cases if options.only in str(case)] for cases in both)
            chosen[name] = compared, [] if options.no_times else to_time
    trees = {name: tree_of(name) for name in TREES}
    if options.plan:
        for name, (cases, to_time) in chosen.items():
            print(
                *(f"{name}: compare {case}" for case in cases), *(f"{name}: time {case}" for case in to_time), sep="\n"
            )
        for name, tree in trees.items():
            print(f"{name}: {tree.path}, {len(tree.modules)} modules, {', '.join(tree.kernels)}")
        return
    begin = time.perf_counter()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    right = []
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        jobs = {
            name: [pool.submit(compile_for, tree, case) for case in cases for tree in TREES]
            for name, (cases, _) in chosen.items()
        }
        for name, (cases, to_time) in chosen.items():
            for job in jobs[name]:
                if (error := job.exception()) is not None:
                    print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            print(f"\n{name}: compiled after {time.perf_counter() - begin:.0f} s", flush=True)
            right.append(report(trees, name, cases, to_time, pool))
    print(f"\n{'All equal' if all(right) else 'NOT ALL EQUAL'}, {time.perf_counter() - begin:.0f} s")
    sys.exit(not all(right))


if __name__ == "__main__":
    main()
