"""What first calls of our kernels compile, and in how many seconds of one core: on an H100, without a GPU.

    python tests/support/first_call_seconds.py [--list] [PATTERN,... [PRESET,...]]

Every point of the presets (all of them by default) is run dry; what that lists is compiled, each kernel once, into an
empty cache; --list compiles nothing. Seconds are those of the CPU, of this process and the assemblers that it starts,
from a launch's key to the binary: no imports, no loading. Prints Markdown.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from collections import defaultdict

import triton
from triton import knobs

from tflabench.bench.precompile.dry_run import CompileTask, dry_run
from tflabench.bench.precompile.gpu_facts import H100
from tflabench.bench.precompile.pretence import answers_for_imports, start_autograd_without_gpu
from tflabench.bench.precompile.stable_keys import key_callees_first
from tflabench.implementations import registry
from tflabench.selection.points import Point, select_points
from tflabench.selection.presets import load_preset, preset_names

OURS = "hopper_*,tfla_*,step_*"


def points(patterns: str, presets: list[str]) -> list[Point]:
    """Of the presets, each once."""
    found: dict[str, Point] = {}
    for name in presets:
        for point in select_points(load_preset(name), {}, None, "cuda"):
            if registry.matches(point.implementation, patterns):
                found[point.id] = point
    return list(found.values())


def cpu_seconds() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(x.ru_utime + x.ru_stime for x in used)


def compiled(task: CompileTask) -> float:
    before = cpu_seconds()
    task.compile()
    return cpu_seconds() - before


def row(*cells: object) -> None:
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def said(point: Point) -> str:
    p = point.problem
    return f"B {p.batch}, H {p.heads}, T {p.seq_len}, {p.d_qk}/{p.d_hv}, L {p.chunk_size or 'auto'}"


def main() -> None:
    given = [argument for argument in sys.argv[1:] if argument != "--list"]
    listing = "--list" in sys.argv
    patterns = given[0] if given else OURS
    presets = given[1].split(",") if given[1:] else preset_names()
    key_callees_first()
    start_autograd_without_gpu()
    calls: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(dict)  # folders of kernels by implementation, pass
    tasks: dict[str, CompileTask] = {}
    by_id = {}
    with answers_for_imports(H100):
        for point in points(patterns, presets):
            done = dry_run(point.implementation, point.problem, H100)
            if not done.tasks:
                continue  # it refuses
            assert not done.reason, (point.id, done.reason)
            by_id[point.id] = point
            tasks |= {task.folder: task for task in done.tasks}
            folders = [task.folder for task in done.tasks]
            calls[point.implementation.name, point.problem.pass_][point.id] = folders
    with tempfile.TemporaryDirectory() as cache:
        knobs.cache.dir = cache
        seconds = {folder: 0.0 if listing else compiled(task) for folder, task in tasks.items()}

    print(f"Triton {triton.__version__}, {', '.join(presets)}: {len(by_id)} calls, {len(tasks)} kernels\n")
    row("implementation, pass", "calls", "kernels in all", "most in a call", "slowest call", "s")
    row(*["---"] * 6)
    for (name, pass_), each in sorted(calls.items()):
        total = {point: sum(map(seconds.__getitem__, folders)) for point, folders in each.items()}
        slowest = max(total, key=total.__getitem__)
        most = max(map(len, each.values()))
        every = {folder for folders in each.values() for folder in folders}
        where = "" if listing else said(by_id[slowest])
        row(f"{name} {pass_}", len(each), len(every), most, where, "" if listing else f"{total[slowest]:.1f}")
    print()
    variants: dict[str, list[float]] = defaultdict(list)
    for folder, task in tasks.items():
        variants[task.kernel].append(seconds[folder])
    row("kernel", "compiled", "s, fastest", "median", "slowest")
    row(*["---"] * 5)
    for kernel, found in sorted(variants.items()):
        found.sort()
        each = ("",) * 3 if listing else (f"{x:.2f}" for x in (found[0], found[len(found) // 2], found[-1]))
        row(f"`{kernel}`", len(found), *each)


if __name__ == "__main__":
    main()
