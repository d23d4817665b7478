"""Compiles what the TFLA launchers would launch on sm_80, sm_90 and sm_100, without a GPU; prints what is used as JSON.

The launchers run on tensors without memory, each launch is caught and its arguments are typed as Triton's own
binder types them: so it is the heuristic's configurations that are compiled.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import triton
from assembled import assembled
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonTensorDescriptor
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from tflabench.kernels.common import device
from tflabench.kernels.common.contract import Arguments, KernelOptions
from tflabench.kernels.common.sizes import Device
from tflabench.kernels.mamba2 import epilogue_kernel as epilogue
from tflabench.kernels.mamba2 import prologue_kernel as prologue
from tflabench.kernels.scalar.hopper.exponents import exponents
from tflabench.kernels.scalar.plan.tfla import TileConfig
from tflabench.kernels.scalar.tfla import chunkwise
from tflabench.kernels.state import State
from tflabench.kernels.types import MLSTM_EXP, MLSTM_SIG, Gate

ELEMENTS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int32: "i32"}
SHARED = Gate("rate", "softplus")  # 64 heads, of which all share q and k, with a skip connection
CASES = [  # sm, d_qk, d_hv, chunk size, gate, dtype, whether of documents
    (90, 128, 256, 256, MLSTM_EXP, torch.bfloat16, False),
    (80, 128, 256, 64, MLSTM_EXP, torch.bfloat16, True),
    (100, 128, 256, 256, MLSTM_EXP, torch.bfloat16, False),
    (90, 128, 256, 256, MLSTM_SIG, torch.bfloat16, False),
    (90, 48, 64, 128, MLSTM_SIG, torch.float32, False),
    (90, 256, 512, 256, MLSTM_EXP, torch.float16, False),
    (90, 64, 64, 256, SHARED, torch.bfloat16, False),
]
TENSOR_CORES = {80: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}  # what multiplies 16-bit numbers there

TILES = ("rows", "cols", "inner", "outer", "u", "v")
Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]


@contextmanager
def catching(sm: int) -> Iterator[list[Launch]]:
    """Launches within, none of which takes place, on a GPU of this architecture."""
    caught: list[Launch] = []
    run, figures = JITFunction.run, device.figures

    def catch(kernel: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> None:
        caught.append((kernel, args, named))

    JITFunction.run = catch  # type: ignore[method-assign]
    triton.runtime.driver.set_active(SimpleNamespace(get_current_device=lambda: 0))  # type: ignore[arg-type]
    device.figures = lambda _: Device(sm, 132)
    try:
        yield caught
    finally:
        JITFunction.run, device.figures = run, figures  # type: ignore[method-assign]


def launches(
    d_qk: int, d_hv: int, L: int, gate: Gate, dtype: torch.dtype, of_documents: bool, *, sm: int
) -> list[Launch]:
    """Every launch of forward and backward, with an initial state and a gradient of the last."""
    with catching(sm) as caught:
        B, H, T = 1 if of_documents else 2, 64 if gate == SHARED else 16, 4096
        bounds = (0, 100, 1000, T) if of_documents else None
        starts = len(bounds) - 1 if bounds else B

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device="meta")

        q, k = (empty(B, 1 if gate == SHARED else H, T, d_qk, dtype=dtype) for _ in range(2))
        v = empty(B, H, T, d_hv, dtype=dtype)
        n = empty(starts, H, d_qk) if gate.normalize else None
        initial = State(empty(starts, H, d_qk, d_hv), n, empty(starts, H) if gate.stabilized else None)
        f, i = empty(H) if gate.per_head else empty(B, H, T), empty(B, H, T)
        of_heads = empty(H)
        skip = of_heads if gate == SHARED else None
        arguments, options = Arguments(q, k, v, f, i, initial, skip), KernelOptions(gate, 0.1, L, bounds=bounds)
        h, last, saved = chunkwise.forward(arguments, options)
        chunkwise.backward(h, last, arguments, saved, options)
        exponents(f, i, gate, (B, H, T), initial.m, 0.1)
        if gate == SHARED:
            epilogue.forward(h, v, skip, v)
            epilogue.backward(h, h, v, skip, v)
            epilogue.backward(h, None, v, skip, None)
            prologue.backward(prologue.forward(i, of_heads), i, of_heads)
    return caught


def source(launch: Launch) -> tuple[ASTSource, dict[str, Any]]:
    """What Triton would compile for a launch, and its options."""
    kernel, args, named = launch
    values = dict(zip(kernel.arg_names, args, strict=False))
    values |= {name: value for name, value in named.items() if name in kernel.arg_names}
    constants: dict[Any, Any] = {}
    attributes: dict[Any, Any] = {}

    def typed(value: Any, path: tuple[int, ...], constant: bool = False) -> Any:
        if kernel.is_gluon() and isinstance(value, int) and kernel.params[path[0]].do_not_specialize:
            return "i32"
        if constant or value is None or (isinstance(value, int) and value == 1):
            constants[path] = value
            return "constexpr"
        if isinstance(value, (TensorDescriptor, GluonTensorDescriptor)):
            block = ", ".join(map(str, value.block_shape))
            layout = f",{value.layout!r}" if isinstance(value, GluonTensorDescriptor) else ""
            return f"tensordesc<{ELEMENTS[value.base.dtype]}[{block}]{layout}>"
        if isinstance(value, tuple):
            types = [typed(x, (*path, place)) for place, x in enumerate(value)]
            return type(value)(*types) if hasattr(value, "_fields") else tuple(types)
        if isinstance(value, float):
            return "fp32"
        tensor = isinstance(value, torch.Tensor)
        if tensor or value % 16 == 0:
            attributes[path] = [["tt.divisibility", 16]]
        return f"*{ELEMENTS[value.dtype]}" if tensor else "i32" if abs(value) < 2**31 else "i64"

    signature = {p.name: typed(values[p.name], (place,), p.is_constexpr) for place, p in enumerate(kernel.params)}
    options = {name: value for name, value in named.items() if name not in kernel.arg_names}
    made_of = GluonASTSource if kernel.is_gluon() else ASTSource
    return made_of(kernel, signature, constants, attributes), options


def tiles(launch: Launch) -> dict[str, int]:
    """Sizes of the tiles that a launch takes, by name."""
    return {name: x for name, x in getattr(launch[2].get("config"), "__dict__", {}).items() if name in TILES}


def compiled(launch: Launch, sm: int) -> dict[str, Any]:
    """Registers, spills, shared memory and the assembler's warnings about serialised wgmma."""
    code, options = source(launch)
    done, log = assembled(code, sm, options)
    return {
        "kernel": launch[0].__name__,
        "sm": sm,
        "tiles": tiles(launch),
        "registers": max(map(int, re.findall(r"Used (\d+) registers", log))),
        "spilled_bytes": sum(map(int, re.findall(r"(\d+) bytes spill", log))),
        "shared_bytes": done.metadata.shared,
        "warnings": re.findall(r"C75\d\d", log),
        "tensor_memory_columns": done.metadata.tmem_size,
        "tensor_cores": TENSOR_CORES[sm] in done.asm["ptx"],
        "tma": "cp.async.bulk.tensor" in done.asm["ptx"],
        "wide_loads": bool(re.search(r"cp\.async\.cg\.shared|ld\.global\.v4", done.asm["ptx"])),
    }


DISTINCT: list[tuple[Launch, int, dict[str, Any]]] = []  # what is compiled, which the processes of `main` inherit


def add_distinct(sm: int, *case: Any, once: bool) -> None:
    """Add kernels of a case, with the shared memory that the tiling says a program of it needs, but for those added.

    once: of every kernel with tiles of one size only the last launch, which is one of backward.
    """
    d_qk, d_hv, L, _, dtype, _ = case
    needed = TileConfig.for_shape(d_qk, d_hv, dtype, L, sm).shared_bytes(dtype.itemsize, sm)
    of_case = {"dtype": str(dtype).removeprefix("torch."), "needed_bytes": needed}

    def key(launch: Launch, sm: int) -> tuple[Any, ...]:
        code, options = source(launch)
        return sm, code.hash(), sorted(options.items())

    before = [key(launch, sm) for launch, sm, _ in DISTINCT]
    caught = launches(*case, sm=sm)
    if once:
        caught = list({(launch[0].__name__, str(tiles(launch))): launch for launch in caught}.values())
    for launch in caught:
        if key(launch, sm) not in before:
            before.append(key(launch, sm))
            DISTINCT.append((launch, sm, of_case))


def compiled_nth(n: int) -> dict[str, Any]:
    """What the n-th of `DISTINCT` uses."""
    launch, sm, of_case = DISTINCT[n]
    return compiled(launch, sm) | of_case


def main() -> None:
    """Compile every case with the Triton that is installed; "few": one for sm_90, and each kernel for the others."""
    few = sys.argv[1:] == ["few"]
    for case in CASES[:3] if few else CASES:
        add_distinct(*case, once=few and case[0] != 90)
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork")) as pool:
        rows = list(pool.map(compiled_nth, range(len(DISTINCT))))
    json.dump({"triton": triton.__version__, "kernels": rows}, sys.stdout)


if __name__ == "__main__":
    main()
