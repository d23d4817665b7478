"""Dry runs of every implementation that is installed, for an H100, without a GPU; prints what they list as JSON.

With the name of one and a pass: launches it instead, by a driver that launches nothing, on tensors in the host's
memory, and prints how many of its kernels Triton found in its cache; with "gpu" after them it runs on the GPU.
This process must not interpret kernels.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from dataclasses import fields, is_dataclass
from typing import Any

import torch
import triton
from triton import knobs

from tflabench.baselines.packages import installed
from tflabench.bench.precompile.dry_run import CompileTask, DryRun, _run, dry_run
from tflabench.bench.precompile.gpu_facts import H100
from tflabench.bench.precompile.pretence import answers_for_imports, answers_for_launches, start_autograd_without_gpu
from tflabench.bench.precompile.server import ready_to_measure
from tflabench.bench.precompile.stable_keys import key_callees_first
from tflabench.implementations import registry
from tflabench.implementations.adapter import Implementation
from tflabench.problem import Pass, Problem

PEERS = {
    "fla_*": "fla",
    "mamba2": "mamba_ssm",
    "nxai_*_limit,nxai_*_xl": "mlstm_kernels",
    "lightning*": "lightning_attn",
}
INDUCTORS = "triton_"  # kernels that torch.compile writes; they have a cache of their own, and none is compiled ahead
VARIED = ("tfla_exp_xl", "tfla_mamba2_xl", "hopper_exp", "hopper_sig", "hopper_mamba2", "step_exp", "step_mamba2")
CHANGES = [
    *({"seq_len": size} for size in (512, 1000, 8192, 65536)),
    *({"batch": size} for size in (1, 3, 64)),
    *({"heads": size} for size in (1, 4, 32)),
]


def point(name: str, pass_: Pass, small: bool = False) -> Problem:
    """A problem of Fig. 4 at T = 4096, or one of its kind that a CPU core can hold."""
    heads, d_qk, d_hv = (64, 64, 64) if "mamba" in name else (32, 128, 128) if "lightning_a" in name else (16, 128, 256)
    size = 1 if name.startswith("step_") else 256 if small else 4096
    problem = Problem(16, heads, size, d_qk, d_hv, pass_=pass_)
    return problem.with_(batch=1, heads=4, d_qk=64, d_hv=64) if small else problem


def implementations() -> list[tuple[Implementation, Pass]]:
    ours = [i for i in registry.implementations() if i.name.startswith(("tfla_", "hopper_", "step_"))]
    peers = [i for i in registry.implementations() for names, package in PEERS.items()
             if registry.matches(i, names) and installed(package)]  # fmt: skip
    return [(impl, pass_) for impl in (*ours, *peers) for pass_ in passes(impl.name)]


def passes(name: str) -> tuple[Pass, ...]:
    return ("decode",) if name.startswith("step_") else ("fw", "fwbw")


def listed(impl: Implementation, pass_: Pass) -> dict[str, Any]:
    found = dry_run(impl, point(impl.name, pass_), H100)
    small = point(impl.name, pass_, small=True)
    without, with_memory = dry_run(impl, small, H100), dry_run(impl, small, H100, "cpu")
    return {
        "tasks": len(found.tasks),
        "reason": found.reason,
        "kernels": sorted({task.kernel for task in found.tasks}),
        "same_keys": folders(without) == folders(with_memory) and without.reason == with_memory.reason,
    }


def folders(run: DryRun) -> list[str]:
    return [task.folder for task in run.tasks]


def varied(name: str, pass_: Pass) -> list[list[str]]:
    """[kernel, argument, what changes]: of kernels that another B, H or T compiles anew; "" for one that is new."""
    impl, base = registry.get(name), point(name, pass_)
    known = dry_run(impl, base, H100)
    found = set()
    for change in CHANGES:
        if name.startswith("step_") and "seq_len" in change:
            continue
        for task in dry_run(impl, base.with_(**change), H100).tasks:
            if task.folder not in folders(known):
                likes = [types(task, other) for other in known.tasks if other.kernel == task.kernel]
                nearest = min(likes, key=len, default={""})
                found |= {(task.kernel, argument, next(iter(change))) for argument in nearest}
    return [list(row) for row in sorted(found)]


def types(task: CompileTask, other: CompileTask) -> set[str]:
    """The arguments and options that two kernels of a name differ in."""
    ours, theirs = ({**typed(x)} for x in (task, other))
    return {name for name in ours if ours[name] != theirs.get(name)}


def typed(task: CompileTask) -> dict[str, str]:
    known = inspect.getclosurevars(task.compiles).nonlocals
    source, found = known["src"], {}
    for n, name in enumerate(source.fn.arg_names):
        found |= parts(name, source.signature[name], (n,), source)
    return found | {name: str(value) for name, value in vars(known["options"]).items()}


def parts(name: str, type_: Any, path: tuple[int, ...], source: Any) -> dict[str, str]:
    """Each element of a tuple by its name, and each field of a class of constants."""
    constant, found = source.constants.get(path), {}
    if is_dataclass(constant):
        return {f"{name}.{field.name}": str(getattr(constant, field.name)) for field in fields(constant)}
    if isinstance(type_, tuple):
        for place, field in enumerate(getattr(type_, "_fields", range(len(type_)))):
            found |= parts(f"{name}.{field}", type_[place], (*path, place), source)
        return found
    return {name: f"{type_} {source.attrs.get(path)} {constant}"}


def keyed(names: tuple[str, ...]) -> dict[str, list[str]]:
    """The keys of what some implementations launch, in a process of its own that has seen them in this order."""
    reading, writing = os.pipe()
    if not os.fork():
        found = {name: folders(dry_run(registry.get(name), point(name, passes(name)[-1]), H100)) for name in names}
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as answer:
        os.wait()
        return json.load(answer)


def launched(name: str, pass_: Pass) -> dict[str, Any]:
    """Triton's own launches, down to the driver; `found` of its `looked_up` kernels were in the cache."""
    from launches import Driver

    with answers_for_launches(H100, "cpu"):
        triton.runtime.driver.set_active(Driver())  # type: ignore[arg-type]
        return looked_up(name, pass_)


def looked_up(name: str, pass_: Pass) -> dict[str, Any]:
    hits: list[bool] = []
    missed: list[str] = []

    def listen(*, src: Any, cache_hit: bool, **_: Any) -> None:
        if src.name.startswith(INDUCTORS):
            return
        hits.append(cache_hit)
        missed.extend([] if cache_hit else [src.name])

    knobs.compilation.listener = listen
    _run(registry.get(name), point(name, pass_, small=True))
    return {"looked_up": len(hits), "found": sum(hits), "missed": missed}


def on_gpu(answer: int, name: str, pass_: Pass) -> None:
    """In a process forked from a server: what it finds, as JSON, into a pipe."""
    ready_to_measure()
    found = looked_up(name, pass_)
    torch.cuda.synchronize()
    os.write(answer, json.dumps(found).encode())


def main() -> None:
    key_callees_first()
    if sys.argv[3:] == ["gpu"]:
        on_gpu(1, *sys.argv[1:3])  # type: ignore[arg-type]
        return
    start_autograd_without_gpu()
    with answers_for_imports(H100):  # what a server does
        if sys.argv[1:]:
            name, pass_ = sys.argv[1:]
            report: dict[str, Any] = launched(name, pass_)  # type: ignore[arg-type]
        else:
            some = ("step_exp", "tfla_exp_xl", "hopper_sig", "hopper_exp")
            report = {
                "same_in_any_order": keyed(some) == keyed(some[::-1]),  # first: this process has keyed nothing yet
                "triton": triton.__version__,
                "missing": [package for package in PEERS.values() if not installed(package)],
                "listed": {f"{impl.name} {pass_}": listed(impl, pass_) for impl, pass_ in implementations()},
                "varied": {f"{name} {pass_}": varied(name, pass_) for name in VARIED for pass_ in passes(name)},
            }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
