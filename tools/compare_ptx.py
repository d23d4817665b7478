"""Compares what the kernels of two trees compile to, without a GPU: where that is the same, nothing need be measured.

python compare_ptx.py OLD NEW [CASE ...]     CASE: part of a name, as "128/256 dq" or "tfla 2"; default: every kernel

First the IR in which everything is inlined (TTGIR). Where that differs, PTX without names and lines, and what ptxas
says: registers, bytes spilled, warnings. PYTHONPATH may choose another Triton.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SHAPES = ("64/64", "128/256", "256/512")


class Stopped(BaseException):
    """Carries TTGIR past the stages that come after it."""


def without_names(text: str) -> str:
    """IR or PTX without what another name or line changes."""
    text = re.sub(r"\s*(\.loc\s.*|//.*)$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*\.(file|section\s+\.debug)[\s\S]*", "", text, flags=re.MULTILINE)
    text = re.sub(r"@[\w.]+\.(\w+)", r"@\1", text)  # functions by their modules
    for name in re.findall(r"(?:\.entry |tt\.func public @)(\w+)", text):
        text = re.sub(rf"\b{name}(?=\b|_param)", "kernel", text)
    return text


def jobs() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names of the kernels of the tree that is imported, and what compiles each."""
    import compile_gla
    import compile_hopper
    import compile_tfla

    for shape in SHAPES:
        for name in compile_hopper.every_kernel(*map(int, shape.split("/"))):
            yield f"{shape} {name}", lambda shape=shape, name=name: compile_hopper.compiled_by_name(shape, name)
    cases: list[Any] = compile_tfla.CASES
    for number, (sm, *case) in enumerate(cases):
        for n, launch in enumerate(compile_tfla.launches(*case, sm=sm)):
            name = f"tfla {number} {n} {launch[0].__name__}"
            yield name, lambda launch=launch, sm=sm: compile_tfla.compiled(launch, sm)
    for name, case in compile_gla.CASES.items():
        for n, launch in enumerate(compile_gla.launches(*case, fused=name == "fused")):
            kernel = f"gla {name} {n} {launch[0].__name__}"
            yield kernel, lambda launch=launch: compile_tfla.compiled(launch, 90)


def compile_tree(stage: str, *cases: str) -> None:
    """Print a line of JSON for every kernel of the tree that is imported: its name, and what it compiles to."""
    import assembled
    from triton.backends.nvidia.compiler import CUDABackend

    compiled, add_stages = assembled.assembled, CUDABackend.add_stages
    made: dict[str, Any] = {}

    def recorded(source: Any, sm: int, options: dict[str, Any]) -> tuple[Any, str]:
        done, log = compiled(source, sm, options)
        made["text"] = done.asm["ptx"]
        made["registers"] = max(map(int, re.findall(r"Used (\d+) registers", log)))
        made["spilled"] = sum(map(int, re.findall(r"(\d+) bytes spill", log)))
        made["warnings"] = sorted(set(re.findall(r"C75\d\d", log)))
        return done, log

    def stopping(backend: Any, stages: dict[str, Any], *more: Any) -> None:
        add_stages(backend, stages, *more)
        to_ttgir = stages["ttgir"]

        def stop(*args: Any) -> None:
            raise Stopped(to_ttgir(*args).str_nodebug())

        stages["ttgir"] = stop

    assembled.assembled = recorded
    if stage == "ttgir":
        CUDABackend.add_stages = stopping  # type: ignore[method-assign]
    for name, compile_kernel in jobs():
        if cases and not any(case in name for case in cases):
            continue
        try:
            compile_kernel()
        except Stopped as stopped:
            made = {"text": str(stopped)}
        made["text"] = hashlib.sha256(without_names(made["text"]).encode()).hexdigest()[:16]
        print(json.dumps([name, made]), flush=True)
        made = {}


def compiled_kernels(tree: Path, stage: str, cases: Iterable[str]) -> dict[str, Any]:
    """Return what the kernels of a tree compile to, by name."""
    (assembled,) = tree.glob("tests/**/assembled.py")
    paths = [str(assembled.parent.resolve()), *filter(None, [os.environ.get("PYTHONPATH")]), str(tree.resolve())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-P", __file__, "--tree", stage, *cases]
    done = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


def main(old: str, new: str, *cases: str) -> None:
    """Print the kernels that differ, and how many are the same."""

    def compiled(stage: str, cases: Iterable[str]) -> tuple[dict[str, Any], ...]:
        with ThreadPoolExecutor() as pool:
            return tuple(pool.map(lambda tree: compiled_kernels(Path(tree), stage, cases), (old, new)))

    before, after = compiled("ttgir", cases)
    differ = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    print(f"{len(after) - len(differ)} of {len(after)} kernels have the same TTGIR")
    before, after = compiled("ptx", differ) if differ else ({}, {})
    for name in differ:
        print(name, "the same PTX" if before.get(name) == after.get(name) else f"{before.get(name)} {after.get(name)}")


if __name__ == "__main__":
    compile_tree(*sys.argv[2:]) if sys.argv[1] == "--tree" else main(*sys.argv[1:])
