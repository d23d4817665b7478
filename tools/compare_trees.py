"""Compares the kernels of this checkout with those of another one: results bit for bit, times, the host's time.

    git worktree add ../old COMMIT
    OLD_TREE=../old python tools/compare_trees.py [--part gla] [--no-times]
    OLD_TREE=../old python tools/compare_trees.py --cpu

Each tree has a process of its own and is called by `tflabench.ops` alone: where its modules lie does not matter.
Results are compared by a digest of their bits. Needs a GPU, for the fused kernels of compute capability 9.0. With
`--cpu` small cases run on the CPU, the Triton kernels in Triton's interpreter. `--plan` prints what would be run.
"""

from __future__ import annotations

import argparse
import hashlib
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
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

OLD_TREE = os.environ.get("OLD_TREE", "")
TREES = {"old": str(Path(OLD_TREE).resolve()), "new": str(Path(__file__).resolve().parents[1])}
ROUNDS, SAMPLES, PASSES = 5, 20, 100
FLUSHED_BYTES = 256 << 20
CYCLES_AHEAD = 5_000_000  # 3 ms a sample
REPEATS = 2  # of each result, on the same inputs
GATES = {"sig": "MLSTM_SIG", "exp": "MLSTM_EXP", "simple_gla": "SIMPLE_GLA", "mamba2": "MAMBA2"}
DOCUMENTS = {  # lengths, as parts of T
    "ragged": (0.31, 0.02, 0.0, 0.44, 0.23), "even": (0.25, 0.25, 0.25, 0.25),
}  # fmt: skip


@dataclass(frozen=True)
class TreeCase:
    """A forward pass, and with `backward` what follows it. L = 0 leaves the length of segments to the kernels.

    Attributes:
        gate: a name of `GATES`, or "gla", a log decay a channel.
        groups: heads of q and k, which heads of v share; 0 for as many.
        states: starts from a state, returns the last one, and takes a gradient of that.
        gate_gradients: of a backward pass.
        documents: a name of `DOCUMENTS`, packed along T with their bounds on the CPU; "" for sequences.
        kernels: an implementation of the operation.
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
    documents: str = ""
    kernels: str = "hopper"

    def __str__(self) -> str:
        shape = f"{self.gate} {self.d_qk}/{self.d_hv} B{self.batch} H{self.heads} T{self.T}"
        more = [(x.name, getattr(self, x.name)) for x in fields(self)[6:] if getattr(self, x.name) != x.default]
        return " ".join([shape, *(f"{name}={value}" for name, value in more)])


SIZES = ((16, 16, 4096, 128, 256), (1, 16, 65536, 128, 256), (8, 8, 8192, 256, 512), (8, 64, 8192, 64, 64))
FORWARD = [TreeCase(gate, *sizes) for gate in ("sig", "exp") for sizes in SIZES]
TRAINING = [replace(case, backward=True) for case in FORWARD]
HOST = [
    TreeCase(gate, 1, 1, 64, 128, 256, L=64) for gate in ("sig", "exp")
]  # soon done: what it takes is the host's time
GLA_SIZES = ((8, 8, 4096, 128, 256), (1, 16, 32768, 128, 128))
GLA_HOST = TreeCase("gla", 1, 1, 64, 128, 256, L=64, kernels="tfla")


def backward_cases() -> list[TreeCase]:
    """Return cases of walks for dq, dk and dv: one for dk and dv up to 128/256, three beyond."""
    made = []
    for gate in ("sig", "exp"):
        small = TreeCase(gate, 2, 4, 1000, 128, 256, L=256, backward=True)
        wide = replace(small, d_qk=256, d_hv=512)
        made += [
            replace(wide, states=True), replace(wide, gate_gradients=False), replace(wide, L=4096, T=515, states=True),
            small, replace(small, gate_gradients=False), replace(small, states=True), replace(small, T=63, L=64),
            replace(small, d_qk=64, d_hv=128, groups=2, states=True), replace(small, d_qk=128, d_hv=128, L=4096),
            replace(small, d_qk=192, d_hv=192, states=True), replace(small, d_qk=256, d_hv=256, states=True),
            replace(small, d_qk=256, d_hv=256, gate_gradients=False, states=True),
            replace(wide, dtype="float16", states=True), replace(small, dtype="float16", L=4096),
        ]  # fmt: skip
    skipped = TreeCase("sig", 2, 4, 1000, 128, 256, L=256, groups=2, skip=True, backward=True)
    made += [skipped, replace(skipped, d_qk=256, d_hv=512, L=4096), replace(skipped, gate_gradients=False)]
    return made


def forward_cases() -> list[TreeCase]:
    """Return cases of h: segments, ragged ends, states, shared heads, float16, a skip connection."""
    made = []
    for gate in ("sig", "exp"):
        small = TreeCase(gate, 2, 4, 1000, 128, 256, L=256)
        made += [
            replace(small, states=True), replace(small, states=True, L=4096, T=515),
            replace(small, T=63, L=64, states=True), replace(small, groups=2, d_qk=64, d_hv=128),
            replace(small, d_qk=192, d_hv=256, states=True), replace(small, d_qk=256, d_hv=512, states=True),
            replace(small, d_qk=256, d_hv=512, dtype="float16", L=4096), replace(small, d_qk=64, d_hv=64, states=True),
        ]  # fmt: skip
    return [*made, TreeCase("sig", 2, 4, 1000, 128, 256, L=256, groups=2, skip=True)]


def packed_cases() -> list[TreeCase]:
    """Return cases of h of several heads a program, as of Mamba 2."""
    small = TreeCase("mamba2", 2, 8, 1000, 64, 64, L=256, groups=2)
    return [
        small, replace(small, states=True), replace(small, skip=True, L=4096), replace(small, T=63, L=64),
        replace(small, gate="simple_gla", dtype="float16"), replace(small, gate="sig", states=True, skip=True),
    ]  # fmt: skip


def segment_cases() -> list[TreeCase]:
    """Return cases of state passes: a first segment beside them, segments in parts, states kept for backward."""
    made = []
    for gate in ("sig", "exp"):
        small = TreeCase(gate, 1, 4, 2310, 128, 256, L=1024, backward=True)
        made += [
            small, replace(small, states=True), replace(small, d_qk=256, d_hv=512), replace(small, batch=1, heads=1),
            replace(small, T=4096, L=512), replace(small, d_qk=64, d_hv=64, states=True),
            replace(small, T=4096, L=512, d_qk=256, d_hv=512, states=True),
        ]  # fmt: skip
    return made


def tilewise_cases() -> list[TreeCase]:
    """Return cases of gradients tile by tile, and of what they are made of: states of every tile."""
    small = TreeCase("sig", 2, 8, 1000, 64, 64, L=256, backward=True)
    mamba2 = replace(small, gate="mamba2", heads=16, groups=1)
    return [
        small, replace(small, states=True), replace(small, T=1024, L=4096), replace(small, gate="exp", states=True),
        replace(small, gate_gradients=False), mamba2, replace(mamba2, skip=True, states=True),
        replace(mamba2, gate_gradients=False, skip=True), replace(mamba2, gate="simple_gla", dtype="float16"),
        replace(mamba2, batch=16, heads=64, T=2048, L=4096),
    ]  # fmt: skip


def tfla_cases() -> list[TreeCase]:
    """Return cases of the Triton kernels of two levels and of one."""
    made = []
    for gate in ("sig", "exp"):
        small = TreeCase(gate, 2, 4, 1000, 128, 256, L=256, backward=True, kernels="tfla_xl")
        made += [
            small, replace(small, states=True, T=515), replace(small, d_qk=64, d_hv=64, groups=2, L=128),
            replace(small, kernels="tfla_limit", L=64), replace(small, dtype="float32", d_hv=128, L=128),
            replace(small, d_qk=256, d_hv=512, L=128),
        ]  # fmt: skip
    mamba2 = TreeCase("mamba2", 2, 8, 1000, 64, 64, L=128, groups=2, skip=True, backward=True, kernels="tfla_xl")
    return [*made, mamba2, replace(mamba2, gate="simple_gla", states=True)]


def gla_cases() -> list[TreeCase]:
    """Return cases of Gated Linear Attention."""
    small = TreeCase("gla", 2, 4, 1000, 128, 256, L=128, backward=True, kernels="tfla")
    return [
        small, replace(small, states=True), replace(small, T=63, L=64, states=True), replace(small, L=0),
        replace(small, gate_gradients=False), replace(small, d_qk=64, d_hv=64, L=64, states=True),
        replace(small, dtype="float16", L=256), replace(small, dtype="float32", d_hv=128, L=64, states=True),
        replace(small, batch=1, T=2310, L=256), replace(small, d_qk=256, d_hv=512, L=256),
    ]  # fmt: skip


def document_cases() -> list[TreeCase]:
    """Return cases of packed sequences, of every family, with states and without."""
    made = []
    for gate, kernels in (
        ("sig", "hopper"),
        ("exp", "hopper"),
        ("exp", "tfla_xl"),
        ("mamba2", "hopper"),
        ("gla", "tfla"),
    ):
        small = TreeCase(gate, 1, 4, 2310, 64, 128, backward=True, documents="ragged", kernels=kernels)
        made += [
            small, replace(small, states=True), replace(small, states=True, L=512), replace(small, documents="even"),
            replace(small, documents="even", T=4096, states=True), replace(small, backward=False, states=True),
        ]  # fmt: skip
    return made


def small_cases() -> list[TreeCase]:
    """Return cases for the CPU: the Triton kernels in Triton's interpreter, which is slow, and the reference."""
    sig = TreeCase("sig", 1, 2, 20, 16, 16, L=16, dtype="float32", backward=True, kernels="tfla_xl")
    exp, mamba2, gla = (replace(sig, gate=gate) for gate in ("exp", "mamba2", "gla"))
    gla = replace(gla, kernels="tfla")
    cases = [
        gla, replace(gla, states=True), replace(gla, documents="ragged"),
        replace(gla, documents="ragged", states=True), replace(gla, documents="even", states=True),
        replace(gla, L=0, gate_gradients=False, dtype="float16"), replace(exp, states=True),
        replace(exp, documents="ragged", states=True), replace(sig, kernels="tfla_limit", groups=1),
        replace(mamba2, skip=True, groups=1, documents="ragged"), replace(sig, dtype="float16"),
    ]  # fmt: skip
    of_reference = [replace(case, kernels="reference") for case in (gla, sig, exp, mamba2)]
    documents = [replace(case, documents=name) for case in of_reference for name in DOCUMENTS]
    return [*of_reference, *documents, *(replace(case, states=True) for case in (*of_reference, *documents)), *cases]


def parts(*, cpu: bool) -> dict[str, tuple[list[TreeCase], list[TreeCase]]]:
    """Return, by name, what is compared and what of it is timed."""
    if cpu:
        return {"small": (small_cases(), [])}
    wide = [case for case in TRAINING if case.d_qk > 64]
    narrow = [case for case in TRAINING if case.d_qk == 64]
    mamba2 = TreeCase("mamba2", 16, 64, 4096, 64, 64, groups=1, skip=True, backward=True)
    tfla = [replace(case, kernels="tfla_xl") for case in TRAINING[::4]]
    gla = [
        TreeCase("gla", *sizes, kernels="tfla", backward=backward) for sizes in GLA_SIZES for backward in (False, True)
    ]
    packed = [
        TreeCase("exp", 1, 16, 16384, 128, 256, documents="ragged", backward=True, states=True),
        TreeCase("gla", 1, 8, 16384, 128, 128, documents="ragged", backward=True, states=True, kernels="tfla"),
    ]
    compared_and_timed = {
        "backward": (backward_cases(), [*wide, replace(HOST[0], backward=True)]),
        "tilewise": (tilewise_cases(), [*narrow, mamba2]),
        "forward": (forward_cases(), [*FORWARD, *HOST]),
        "segments": (segment_cases(), []),
        "packed": (packed_cases(), []),
        "tfla": (tfla_cases(), tfla),
        "gla": (gla_cases(), [*gla, GLA_HOST, replace(GLA_HOST, backward=True)]),
        "documents": (document_cases(), packed),
    }
    return {name: ([*cases, *timed], timed) for name, (cases, timed) in compared_and_timed.items()}


# --- What a process of a tree does -----------------------------------------------------------------------------------


def load(path: str) -> None:
    """Import the operations of a tree, in a process of its own."""
    sys.path.insert(0, path)
    import tflabench.ops

    assert str(tflabench.ops.__file__).startswith(path), f"{tflabench.ops.__file__} is not of {path}"


def run(case: TreeCase, x: SimpleNamespace) -> dict[str, Tensor]:
    """Return by name h, the last state, and gradients."""
    from tflabench import ops

    q, k, v = x.inputs["q"], x.inputs["k"], x.inputs["v"]
    options: dict[str, Any] = {"implementation": case.kernels, "return_last_state": case.states}
    options |= {"chunk_size": case.L or "auto", "cu_seqlens": x.cu_seqlens}
    if case.states:
        options["initial_state"] = ops.State(x.inputs["C"], x.inputs.get("n"), x.m)
    if case.gate == "gla":
        made: Any = ops.gla(q, k, v, x.inputs["f"], **options)
    else:
        gate, skip = getattr(ops, GATES[case.gate]), x.inputs.get("skip")
        made = ops.chunkwise(q, k, v, x.inputs["f"], x.inputs.get("i"), gate=gate, skip=skip, **options)
    h, last = made if case.states else (made, ())
    results = {"h": h, **{f"last {name}": y for name, y in zip("Cnm", last, strict=False) if y is not None}}
    if case.backward:
        wanted = {name: y for name, y in x.inputs.items() if y.requires_grad}
        outputs = [h, *(y for name, y in results.items() if name in ("last C", "last n"))]
        grads = torch.autograd.grad(outputs, [*wanted.values()], [x.grads[y.shape] for y in outputs], allow_unused=True)
        results |= {f"d{name}": grad for name, grad in zip(wanted, grads, strict=True) if grad is not None}
    return {name: y.detach() for name, y in results.items()}


def draw(case: TreeCase, device: str) -> SimpleNamespace:
    """Return inputs, those of no gradient too, and gradients of outputs by their shape."""
    torch.manual_seed(case.T + case.d_qk)
    B, H, T, dtype = case.batch, case.heads, case.T, getattr(torch, case.dtype)

    def normal(*shape: int, to: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, device=device, dtype=to)

    inputs = {name: normal(B, case.groups or H, T, case.d_qk, to=dtype) for name in "qk"}
    inputs["v"] = normal(B, H, T, case.d_hv, to=dtype)
    inputs |= {"f": normal(B, H, T) + 3, "i": normal(B, H, T)}
    if case.gate == "gla":
        inputs["f"] = -normal(B, case.groups or H, T, case.d_qk).abs() / 16
    if case.gate == "simple_gla":
        inputs["f"] = -inputs["f"].abs() / 16
    if case.gate in ("gla", "simple_gla"):
        del inputs["i"]
    if case.gate == "mamba2":
        inputs |= {"f": -torch.rand(H, device=device) / 8, "i": inputs["i"].abs() + 0.1}
    if case.skip:
        inputs["skip"] = normal(H)
    lengths = [int(part * T) for part in DOCUMENTS[case.documents]] if case.documents else []
    sequences = len(lengths) or B
    bounds = torch.tensor([0, *lengths]).cumsum(0) if lengths else None
    if bounds is not None:
        bounds[-1] = T
    m, grads = None, {torch.Size((B, H, T, case.d_hv)): normal(B, H, T, case.d_hv, to=dtype)}
    if case.states:
        inputs["C"] = normal(sequences, H, case.d_qk, case.d_hv)
        grads[inputs["C"].shape] = normal(*inputs["C"].shape) / 4
        if case.gate == "exp":
            inputs["n"], m = normal(sequences, H, case.d_qk), normal(sequences, H)
            grads[inputs["n"].shape] = normal(*inputs["n"].shape) / 4
    for name, y in inputs.items():
        y.requires_grad_(case.backward and (case.gate_gradients or name not in "fi"))
    return SimpleNamespace(inputs=inputs, m=m, grads=grads, cu_seqlens=bounds)


def digests(case: TreeCase, device: str) -> list[dict[str, str]]:
    """Return a digest of the bits of every result, of each of REPEATS runs on the same inputs."""
    x = draw(case, device)
    found = []
    for _ in range(REPEATS if device == "cuda" else 1):
        bits = {name: y.contiguous().view(torch.uint8).cpu() for name, y in run(case, x).items()}
        nan = {name for name, y in run(case, x).items() if y.isnan().any()} if not found else set()
        found.append({name: hashlib.sha256(y.numpy().tobytes()).hexdigest() for name, y in bits.items()})
        found[0] |= {f"{name} is not a number": "" for name in nan}
    if device == "cuda":
        torch.cuda.empty_cache()
    return found


def compile_for(case: TreeCase) -> None:
    """Compile what a case launches; a dozen processes of each tree share the GPU."""
    try:
        run(case, draw(case, "cuda"))
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        print(f"no memory to compile for {case}", flush=True)
    torch.cuda.empty_cache()


def sample(case: TreeCase) -> list[float]:
    """Return milliseconds of passes, each with a cold L2."""
    x = draw(case, "cuda")
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
    run(case, x)
    pairs = []
    torch.cuda._sleep(SAMPLES * CYCLES_AHEAD)  # the host is to be ahead of the GPU, however slow it is
    for _ in range(SAMPLES):
        flushed.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run(case, x)
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    times = [begin.elapsed_time(end) for begin, end in pairs]
    del x, flushed
    torch.cuda.empty_cache()
    return times


def host_microseconds(case: TreeCase) -> float:
    """Return the host's time for a pass."""
    x = draw(case, "cuda")
    run(case, x)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(PASSES):
        run(case, x)
    taken = (time.perf_counter() - begin) / PASSES * 1e6
    torch.cuda.synchronize()
    return taken


# --- What compares them -----------------------------------------------------------------------------------------------

Trees = dict[str, ProcessPoolExecutor]  # a process of each


def on_each(trees: Trees, what: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """Return what a function returns in each tree, one after the other: their passes are not to meet on the GPU."""
    return {name: tree.submit(what, *args).result() for name, tree in trees.items()}


@contextmanager
def paused(pools: list[ProcessPoolExecutor]) -> Iterator[None]:
    """Stop the processes that compile while something is timed."""
    processes = [p for pool in pools for p in (pool._processes or {}).values() if p.is_alive()]
    for process in processes:
        os.kill(process.pid or 0, signal.SIGSTOP)
    time.sleep(0.5)  # what they have launched is done
    try:
        yield
    finally:
        for process in processes:
            os.kill(process.pid or 0, signal.SIGCONT)


def differences(trees: Trees, case: TreeCase, device: str) -> list[str]:
    """Return what is not equal bit for bit, in repeats on the same inputs, or no number."""
    found = on_each(trees, digests, case, device)
    wanted = found["old"][0]
    wrong = [f"{case}: {name}" for name in wanted if name.endswith("is not a number")]
    for got in found["new"]:
        if got.keys() | {x for x in wanted if "not a number" in x} != wanted.keys():
            wrong.append(f"{case}: {', '.join(got)}, not {', '.join(wanted)}")
        wrong += [f"{case}: {name}" for name in got if got[name] != wanted.get(name)]
    return list(dict.fromkeys(wrong))


def timed(trees: Trees, case: TreeCase) -> str:
    """Return a line: median [10th percentile] of old and new, new over old, and that in each round."""
    every: dict[str, list[list[float]]] = {name: [] for name in trees}
    for turn in range(ROUNDS):
        for name in ("old", "new") if turn % 2 == 0 else ("new", "old"):
            every[name].append(trees[name].submit(sample, case).result())

    def tenth(times: list[float]) -> float:
        return sorted(times)[len(times) // 10]

    columns = []
    for name in ("old", "new"):
        times = [t for each in every[name] for t in each]
        columns.append(f"{statistics.median(times):.4f} [{tenth(times):.4f}]")
    rounds = [tenth(new) / tenth(old) for new, old in zip(every["new"], every["old"], strict=True)]
    columns.append(f"{statistics.median(rounds):.3f}")
    columns.append(" ".join(f"{ratio:.3f}" for ratio in rounds))
    return f"| {'training' if case.backward else 'forward'} {case} | " + " | ".join(columns) + " |"


def host_time(trees: Trees, case: TreeCase) -> str:
    """Return a line: microseconds of the host for a pass, old and new, medians of rounds."""
    rounds = [on_each(trees, host_microseconds, case) for _ in range(2 * ROUNDS)]
    old, new = (statistics.median(each[name] for each in rounds) for name in ("old", "new"))
    return f"| host, us: {case} | {old:.1f} | {new:.1f} | {new / old:.3f} | |"


def report(
    trees: Trees, name: str, cases: list[TreeCase], to_time: list[TreeCase], pools: list[ProcessPoolExecutor]
) -> bool:
    """Compare and time a part, print what is found, and return whether all is equal."""
    begin, device = time.perf_counter(), "cuda" if pools else "cpu"
    wrong = []
    for case in cases:
        try:
            unequal = differences(trees, case, device)
        except Exception as error:  # of one case: the others are compared all the same
            unequal = [f"{case}: {type(error).__name__}: {str(error)[:300]}"]
        wrong += unequal
        if device == "cpu":
            print(*(unequal or [f"{case}: equal"]), sep="\n", flush=True)
    verdict = "equal" if not wrong else "NOT EQUAL"
    print(f"\n{name}: {len(cases)} passes compared: {verdict}", *wrong, sep="\n", flush=True)
    if to_time:
        print("\n| ms: median [10th percentile] | old | new | new / old | rounds, 10th percentiles |")
        print("| --- | --- | --- | --- | --- |", flush=True)
        with paused(pools):
            for case in to_time:
                print((host_time if case.T == 64 else timed)(trees, case), flush=True)
    print(f"\n({name}: {time.perf_counter() - begin:.0f} s)", flush=True)
    return not wrong


def main() -> None:
    """Compare what the options name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=[*parts(cpu=False), "all"], default="all")
    parser.add_argument("--cpu", action="store_true", help="small cases on the CPU, in Triton's interpreter")
    parser.add_argument("--no-times", action="store_true", help="compare results only")
    parser.add_argument("--plan", action="store_true", help="print the cases, run nothing")
    parser.add_argument("--only", default="", help="cases whose text has this in it")
    parser.add_argument("--jobs", type=int, default=min(14, os.cpu_count() or 1), help="processes that compile")
    options = parser.parse_args()
    if not OLD_TREE:
        parser.error("OLD_TREE names no tree to compare with")
    chosen = {}
    for name, both in parts(cpu=options.cpu).items():
        if options.cpu or options.part in (name, "all"):
            compared, to_time = ([case for case in cases if options.only in str(case)] for cases in both)
            chosen[name] = compared, [] if options.no_times else to_time
    if options.plan:
        for name, (cases, to_time) in chosen.items():
            print(
                *(f"{name}: compare {case}" for case in cases), *(f"{name}: time {case}" for case in to_time), sep="\n"
            )
        return
    begin = time.perf_counter()
    if options.cpu:
        os.environ["TRITON_INTERPRET"] = "1"  # of the processes, which are started from now on
    else:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    spawn = multiprocessing.get_context("spawn")

    def processes(tree: str, count: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(count, spawn, initializer=load, initargs=(TREES[tree],))

    trees = {name: processes(name, 1) for name in TREES}
    compilers = {} if options.cpu else {name: processes(name, max(1, options.jobs // 2)) for name in TREES}
    jobs = {
        name: [pool.submit(compile_for, case) for case in cases for pool in compilers.values()]
        for name, (cases, _) in chosen.items()
    }
    right = []
    for name, (cases, to_time) in chosen.items():
        for job in jobs[name]:
            if (error := job.exception()) is not None:
                print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        print(f"\n{name}: compiled after {time.perf_counter() - begin:.0f} s", flush=True)
        right.append(report(trees, name, cases, to_time, [*compilers.values()]))
    for pool in (*trees.values(), *compilers.values()):
        pool.shutdown()
    print(f"\n{'All equal' if all(right) else 'NOT ALL EQUAL'}, {time.perf_counter() - begin:.0f} s")
    sys.exit(not all(right))


if __name__ == "__main__":
    main()
