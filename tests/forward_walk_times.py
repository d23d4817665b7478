"""Compares the forward kernels of this checkout with those of another one: results bit for bit, times, host time.

    git worktree add /tmp/old COMMIT
    OLD_TREE=/tmp/old python tests/forward_walk_times.py

Both are loaded into one process. Needs a GPU of compute capability 9.0; `--plan` prints what would be run without one.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

OLD_TREE = os.environ.get("OLD_TREE", "")
TREES = {"old": str(Path(OLD_TREE).resolve()), "new": str(Path(__file__).resolve().parents[1])}
ROUNDS, SAMPLES, LAUNCHES = 5, 30, 300
FLUSHED_BYTES = 256 << 20
REPEATS = 3  # of each result, on the same inputs


@dataclass(frozen=True)
class Case:
    """One forward pass. L = 0 leaves the length of segments to the kernels.

    Attributes:
        groups: heads of q and k, which heads of v share; 0 for as many.
        states: starts from a state and returns the last one.
        backward_cut: the L of a backward that is cut otherwise, for which states are kept; 0 for none.
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
    backward_cut: int = 0
    skip: bool = False

    def __str__(self) -> str:
        said = f"{self.gate} {self.d_qk}/{self.d_hv} B{self.batch} H{self.heads} T{self.T}"
        more = {name: value for name, value in asdict(self).items() if name in MORE and value != MORE[name]}
        return " ".join([said, *(f"{name}={value}" for name, value in more.items())])


MORE = {"L": 0, "groups": 0, "dtype": "bfloat16", "states": False, "backward_cut": 0, "skip": False}
TIMED = [
    Case(gate, *sizes)
    for gate in ("sig", "exp")
    for sizes in ((16, 16, 4096, 128, 256), (1, 16, 65536, 128, 256), (8, 8, 8192, 256, 512), (8, 64, 8192, 64, 64))
]


def compared() -> list[Case]:
    """What must be equal: the timed ones; segments, ragged ends, states, shared heads, float16, kept states, skip."""
    found = list(TIMED)
    for gate in ("sig", "exp"):
        small = Case(gate, 2, 4, 1000, 128, 256, L=256)
        found += [
            small,
            replace(small, states=True),
            replace(small, states=True, L=4096, T=515),
            replace(small, T=63, L=64, states=True),
            replace(small, groups=2, d_qk=64, d_hv=128),
            replace(small, d_qk=128, d_hv=128, states=True),
            replace(small, d_qk=192, d_hv=256, states=True),
            replace(small, d_qk=256, d_hv=256, states=True),
            replace(small, d_qk=64, d_hv=64, states=True),
            replace(small, d_qk=256, d_hv=512, dtype="float16", states=True),
            replace(small, dtype="float16", L=4096),
            replace(small, T=2310, batch=1, L=1024, states=True),  # the first segment beside the state pass
            replace(small, T=2310, batch=1, L=1024, d_qk=256, d_hv=512),
            replace(small, T=4096, batch=1, L=0, backward_cut=512),
            replace(small, T=4096, batch=1, L=0, backward_cut=512, d_qk=256, d_hv=512, states=True),
        ]
    found.append(Case("sig", 2, 4, 1000, 128, 256, L=256, groups=2, skip=True))
    return found


# --- Two trees in one process -----------------------------------------------------------------------------------------


def load(tree: str) -> SimpleNamespace:
    """Import the kernels of a tree; what another tree has been imported as is put aside."""
    for name in [name for name in sys.modules if name.split(".")[0] == "tflabench"]:
        del sys.modules[name]
    sys.path.insert(0, tree)
    try:
        modules = {name: importlib.import_module(f"tflabench.kernels.{name}")
                   for name in ("hopper.forward", "hopper.cuts", "types", "state")}  # fmt: skip
        key_callees_first = importlib.import_module("tflabench.bench.precompile.stable_keys").key_callees_first
    finally:
        sys.path.remove(tree)
    assert str(modules["types"].__file__).startswith(tree), f"{tree} is not what was imported"
    key_callees_first()  # so that processes find in the cache what others have compiled
    forward, cuts, types, state = modules.values()
    return SimpleNamespace(
        forward=forward, Shape=cuts.Shape, chosen=cuts.chosen, State=state.State,
        gates={"sig": types.MLSTM_SIG, "exp": types.MLSTM_EXP},
    )  # fmt: skip


def load_both() -> dict[str, SimpleNamespace]:
    return {name: load(tree) for name, tree in TREES.items()}


def draw(case: Case, device: str = "cuda") -> dict[str, Any]:
    """q, k, v, f, i and what starts from a state."""
    torch.manual_seed(case.T + case.d_qk)
    B, H, T = case.batch, case.heads, case.T
    dtype = getattr(torch, case.dtype)

    def normal(*shape: int, to: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, device=device, dtype=to)

    q, k = (normal(B, case.groups or H, T, case.d_qk, to=dtype) for _ in range(2))
    v, f, i = normal(B, H, T, case.d_hv, to=dtype), normal(B, H, T) + 3, normal(B, H, T)
    state = (normal(B, H, case.d_qk, case.d_hv), normal(B, H, case.d_qk), normal(B, H)) if case.states else None
    return {"q": q, "k": k, "v": v, "f": f, "i": i, "state": state, "skip": normal(H) if case.skip else None}


def run(tree: SimpleNamespace, case: Case, x: dict[str, Any]) -> list[Tensor]:
    """h, the last state and what backward needs."""
    gate = tree.gates[case.gate]
    initial = None
    if x["state"] is not None:
        C, n, m = x["state"]
        initial = tree.State(C, n if gate.normalize else None, m if gate.stabilized else None)
    L = case.backward_cut or case.L
    L = L or tree.chosen(tree.Shape.of(x["q"], x["v"], gate), backward=False).chunk_size(case.T)
    h, state, saved = tree.forward.forward(
        x["q"], x["k"], x["v"], x["f"], x["i"], initial, gate=gate, scale=case.d_qk**-0.5, chunk_size=L,
        skip=x["skip"], return_last_state=case.states, cut_freely=bool(case.backward_cut),
    )  # fmt: skip
    return [y for y in (h, *(state or ()), *saved) if y is not None]


def launch_of_walk(tree: SimpleNamespace, case: Case, x: dict[str, Any]) -> Callable[[], None]:
    """Launch the walk for h alone, as a forward pass does: of several, the one over most segments."""
    calls: list[tuple[Any, Any]] = []
    launch = tree.forward.launch_walk

    def record(*args: Any, **options: Any) -> None:
        calls.append((args, options))
        launch(*args, **options)

    tree.forward.launch_walk = record
    try:
        run(tree, case, x)
    finally:
        tree.forward.launch_walk = launch
    args, options = calls[-1]
    return lambda: launch(*args, **options)


# --- What is run ------------------------------------------------------------------------------------------------------


def compile_for(name: str, case: Case) -> str:
    """Compile, in a process of its own, what a tree launches for a case."""
    run(load(TREES[name]), case, draw(case))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # a dozen processes share the GPU
    return f"{name}: {case}"


def differences(trees: dict[str, SimpleNamespace], case: Case) -> list[str]:
    """What is not equal bit for bit, in repeats on the same inputs."""
    x = draw(case)
    wanted = run(trees["old"], case, x)
    found = []
    for _ in range(REPEATS):
        got = run(trees["new"], case, x)
        if len(got) != len(wanted):
            return [f"{case}: {len(got)} tensors, not {len(wanted)}"]
        found += [f"{case}: tensor {n} of {len(got)}" for n, (a, b) in enumerate(zip(got, wanted, strict=True))
                  if not torch.equal(a, b)]  # fmt: skip
    if any(y.isnan().any() for y in wanted):  # exponents of empty rows are -inf
        found.append(f"{case}: not a number")
    return found


def sample(launch: Callable[[], None], flushed: Tensor) -> list[float]:
    """Milliseconds of launches, each with a cold L2."""
    pairs = []
    for _ in range(SAMPLES):
        flushed.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        launch()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in pairs]


def kernel_times(trees: dict[str, SimpleNamespace], case: Case) -> str:
    """A line: median [10th percentile] of old and new, and new to old in each round."""
    x = draw(case)
    launches = {name: launch_of_walk(tree, case, x) for name, tree in trees.items()}
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
    every: dict[str, list[list[float]]] = {name: [] for name in trees}
    for launch in launches.values():
        sample(launch, flushed)
    for turn in range(ROUNDS):
        for name in ("old", "new") if turn % 2 == 0 else ("new", "old"):
            every[name].append(sample(launches[name], flushed))

    def tenth(times: list[float]) -> float:
        return sorted(times)[len(times) // 10]

    said = {}
    for name, rounds in every.items():
        times = [t for one in rounds for t in one]
        said[name] = statistics.median(times), tenth(times)
    pairs = list(zip(every["new"], every["old"], strict=True))
    ratios = [statistics.median(new) / statistics.median(old) for new, old in pairs]
    lows = [tenth(new) / tenth(old) for new, old in pairs]
    columns = [f"{median:.4f} [{low:.4f}]" for median, low in (said["old"], said["new"])]
    columns.append(f"{said['new'][0] / said['old'][0] - 1:+.1%} [{said['new'][1] / said['old'][1] - 1:+.1%}]")
    columns += [" ".join(f"{ratio:.3f}" for ratio in of) for of in (ratios, lows)]
    return f"| {case} | " + " | ".join(columns) + " |"


def host_times(trees: dict[str, SimpleNamespace], gate: str) -> str:
    """A line: microseconds of the host for a launch of a kernel that is soon done, old and new, medians of rounds."""
    case = Case(gate, 1, 1, 64, 128, 256, L=64)
    x = draw(case)
    launches = {name: launch_of_walk(tree, case, x) for name, tree in trees.items()}
    every: dict[str, list[float]] = {name: [] for name in trees}
    for _ in range(ROUNDS):
        for name, launch in launches.items():
            launch()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(LAUNCHES):
                launch()
            every[name].append((time.perf_counter() - begin) / LAUNCHES * 1e6)
            torch.cuda.synchronize()
    old, new = (statistics.median(every[name]) for name in ("old", "new"))
    return f"| {gate} | {old:.1f} | {new:.1f} | {new / old - 1:+.1%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", action="store_true", help="print the cases, import both trees, run nothing")
    parser.add_argument("--only", default="", help="cases whose text has this in it")
    parser.add_argument("--jobs", type=int, default=min(14, os.cpu_count() or 1), help="processes that compile")
    options = parser.parse_args()
    if not OLD_TREE:
        parser.error("OLD_TREE names no tree to compare with")
    cases = [case for case in compared() if options.only in str(case)]
    timed = [case for case in TIMED if options.only in str(case)]
    if options.plan:
        trees = load_both()
        print(*(f"compare {case}" for case in cases), *(f"time {case}" for case in timed), sep="\n")
        print(*(f"{name}: {tree.forward.__file__}" for name, tree in trees.items()), sep="\n")
        return
    begin = time.perf_counter()
    jobs = [(name, case) for case in cases for name in TREES]
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(compile_for, *job) for job in jobs]):
            done.result()
    print(f"compiled for {len(jobs)} passes in {time.perf_counter() - begin:.0f} s", flush=True)
    trees = load_both()
    wrong = []
    for case in cases:
        wrong += differences(trees, case)
        print(f"compared {case}", flush=True)
    rows = [kernel_times(trees, case) for case in timed]
    hosts = [host_times(trees, gate) for gate in ("sig", "exp")]
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, {time.perf_counter() - begin:.0f} s in all")
    print(f"{len(cases)} passes compared, {REPEATS} times each: {'equal' if not wrong else 'NOT EQUAL'}")
    print(*wrong, sep="\n")
    print("| walk for h, ms: median [10th percentile] | old | new | | rounds, medians | rounds, 10th percentiles |")
    print("| --- | --- | --- | --- | --- | --- |", *rows, sep="\n")
    print("\n| host, us a launch | old | new | |", "| --- | --- | --- | --- |", *hosts, sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
