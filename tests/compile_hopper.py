"""Compiles the fused kernels for sm_90a, without a GPU; prints what they use as JSON.

python compile_hopper.py [d_qk/d_hv[:name;name...] ...]     default: every kernel of the shapes of the bars
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import triton
from triton.experimental.gluon._runtime import GluonASTSource

from tflabench.kernels.gates import Exponents
from tflabench.kernels.hopper import backward_dqk, backward_dv, forward, packed, pair, segments, tilewise
from tflabench.kernels.hopper.config import WalkConfig
from tflabench.kernels.hopper.launch import (
    BLOCKS,
    EXPONENTS_BLOCK,
    EXPONENTS_LAYOUT,
    LAYOUT,
    MOST_ADDED_UP,
    PACK,
    PACKED,
    PairShape,
    StatePassShape,
    WalkShape,
    rings,
    takes_pair,
)
from tflabench.kernels.hopper.normaliser import NormaliserTensors
from tflabench.kernels.hopper.schedule import Counts
from tflabench.kernels.hopper.state_walk import States
from tflabench.kernels.hopper.workarounds import ASSEMBLY
from tflabench.kernels.launching import COMPILED

sys.path.insert(0, str(Path(__file__).parent))
from assembled import assembled

SHAPES = ("128/256", "256/512")
walk_forward: Any = forward.walk_forward
walk_backward_dqk: Any = backward_dqk.walk_backward_dqk
CONFIGURED: tuple[Any, ...] = (walk_forward, backward_dv.walk_backward_dv, walk_backward_dqk)
POINTER = "*fp32"
TUPLES = {
    "gates": Exponents(*[POINTER] * 3),  # type: ignore[arg-type]
    "states": States(*[POINTER] * 3),
    "norm": NormaliserTensors(*[POINTER] * 4),
    "tensors": backward_dqk.Tensors(
        Exponents(*[POINTER] * 3),  # type: ignore[arg-type]
        States(*[POINTER] * 3),
        backward_dqk.RowSumTensors(*[POINTER] * 3),
        POINTER,
    ),
    "counts": Counts(*["i32"] * 8),  # type: ignore[arg-type]
}  # fmt: skip
EXPONENTS = dict.fromkeys((pair.pair, tilewise.gradients), ("x_desc", "y_desc"))  # by TMA


def pointers(types: tuple[Any, ...], place: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield where the pointers of a tuple of types, or of tuples of these, are."""
    for n, x in enumerate(types):
        if isinstance(x, tuple):
            yield from pointers(x, (*place, n))
        elif x == POINTER:
            yield (*place, n)


def compiled(name: str, kernel: Any, constants: dict[str, Any], maxnreg: int, dtype: str) -> dict[str, Any]:
    if kernel in CONFIGURED:
        config = WalkConfig.of(**constants, bfloat16=dtype == "bf16")
        if config.normalise:
            kernel = forward.walk_forward_normalised
        if config.row_sums:
            kernel = backward_dqk.walk_backward_dqk_with_sums
        constants = {"config": config}

    def type_of(argument: str) -> Any:
        if argument in constants:
            return "constexpr"
        if argument in TUPLES:
            return TUPLES[argument]
        if argument in EXPONENTS.get(kernel, ()):
            return f"tensordesc<fp32{EXPONENTS_BLOCK},{EXPONENTS_LAYOUT!r}>"
        if argument.endswith("_desc"):
            of_heads = kernel is packed.walk_heads and argument == "z_desc"
            block = BLOCKS[PACK if of_heads else 1]
            return f"tensordesc<{dtype}{block},{LAYOUT!r}>"
        return POINTER if argument.endswith("_ptr") else "i32"

    signature = {argument: type_of(argument) for argument in kernel.arg_names}
    places = {argument: (place,) for place, argument in enumerate(kernel.arg_names)}
    aligned = [places[a] for a in kernel.arg_names if a.endswith("_ptr")]
    aligned += [path for a in kernel.arg_names if a in TUPLES for path in pointers(TUPLES[a], places[a])]
    attributes = {path: [["tt.divisibility", 16]] for path in aligned}
    source = GluonASTSource(kernel, signature, {places[a]: x for a, x in constants.items()}, attributes)
    warps = 8 if kernel in (pair.pair, backward_dqk.walk_backward_dqk_with_sums) else 4
    done, log = assembled(source, 90, {"num_warps": warps, "maxnreg": maxnreg, **COMPILED, **ASSEMBLY})
    return {
        "kernel": name,
        "shared_bytes": done.metadata.shared,
        "spilled_bytes": sum(map(int, re.findall(r"(\d+) bytes spill", log))),
        "warnings": sorted(set(re.findall(r"C75\d\d", log))),
    }


def h_constants(d_qk: int, d_hv: int, *, halved: bool = False, **branches: bool) -> dict[str, Any]:
    """Of a walk for h or dv, as `WalkConfig.of` takes them."""
    shape = WalkShape.of(d_qk, d_hv, sums=False, norm=branches.get("normalise", False), halved=halved)
    return {"shape": shape, "d_qk": d_qk, "d_hv": d_hv, **branches}


def dqk_constants(
    d_qk: int, d_hv: int, *, row_sums: bool = True, more: bool = False, **branches: Any
) -> dict[str, Any]:
    """Of a walk for dq or dk, as `WalkConfig.of` takes them; more: of a second launch, if there is one."""
    shape = WalkShape.of(min(d_hv, 256), d_qk, sums=row_sums, norm=False)
    first_column = 256 if more and d_hv > 256 else 0
    independent = branches.get("reverse", False) and not first_column
    roles = {"transposed": False, "row_sums": row_sums, "first_column": first_column, "independent": independent}
    return {"shape": shape, "d_qk": d_qk, "d_hv": d_hv, **roles, **branches}


def pair_constants(d_qk: int, d_hv: int, **branches: bool) -> dict[str, Any]:
    flags = {"SUMS": False, "FIRST": False, "LAST": False, "SKIP": False, **branches}
    return {**asdict(PairShape.of(d_hv)), "Z_DIM": d_qk, "W_DIM": d_hv, "sharing": 1, **flags}


def packed_constants(**branches: bool) -> dict[str, Any]:
    """Of h of several heads a program."""
    return {**PACKED, **dict.fromkeys(("FIRST", "LAST", "SKIP"), False), **branches}


def kept_constants(*, heads: int, z_sharing: int, **branches: bool) -> dict[str, Any]:
    """Of a state pass that writes the state before every tile."""
    flags = {"REVERSE": False, "FIRST": False, "LAST": False, **branches}
    shape = asdict(StatePassShape.of(64, 64, heads=heads, z_sharing=z_sharing))
    shared = {"z_sharing": 1} if z_sharing == 1 else {}  # as Triton specialises it
    return {"Z_DIM": 64, "W_DIM": 64, "NORM": False, "KEEP": True, **shape, **shared, **flags}


def gradients_constants(heads: int, *, sums: bool, skip: bool) -> dict[str, Any]:
    """Of dq, dk and dv tile by tile."""
    return {"HEADS": heads, **rings(heads), "SUMS": sums, "SKIP": skip}


def every_kernel(d_qk: int, d_hv: int) -> dict[str, tuple[Any, dict[str, Any], int]]:
    """By name: the kernel, its constants, maxnreg."""
    h = partial(h_constants, d_qk, d_hv)
    outputs = {
        "h": h(store_final_state=True),
        "h normalised": h(normalise=True, store_final_state=True),
        "h without the last state": h(),
        "h normalised without the last state": h(normalise=True),
        "h of segments": h(load_initial_state=True),
        "h normalised of segments": h(normalise=True, load_initial_state=True),
        "h of segments of half the rows": h(load_initial_state=True, halved=True),
        "h of a first segment": h(store_final_state=True, independent=True, halved=True),
        "h normalised of a first segment": h(normalise=True, store_final_state=True, independent=True),
        "h for segments": h(halved=True, keep_states=True),
        "h normalised for segments": h(normalise=True, keep_states=True),
        "h of segments for others": h(load_initial_state=True, halved=True, keep_states=True),
        "h normalised of segments for others": h(normalise=True, load_initial_state=True, keep_states=True),
        "h of shared heads and a skip connection": h(store_final_state=True, shared_heads=True, skip=True),  # Mamba 2
    }
    outputs["h of float16"], outputs["h normalised of float16"] = outputs["h"], outputs["h normalised"]
    dqk = partial(dqk_constants, d_qk, d_hv)
    walks = {
        "dq": dqk(),
        "dq without row sums": dqk(row_sums=False),
        "dq of segments": dqk(load_initial_state=True, more=True),
        "dq of shared heads and a skip connection": dqk(shared_heads=True, store_diagonal=True),  # Mamba 2
        "dk": dqk(reverse=True),
        "dk without row sums": dqk(row_sums=False, reverse=True),
        "dk of segments": dqk(reverse=True, load_initial_state=True, more=True),
        "dk with the state before": dqk(reverse=True, store_final_state=True),
    }
    walks["dq of float16"] = walks["dq"]
    of_dv = partial(h, reverse=True, independent=True)
    dv = {
        "dv": of_dv(),
        "dv of segments": of_dv(load_initial_state=True),
        "dv of shared heads and a skip connection": of_dv(shared_heads=True, skip=True),
    }
    found: dict[str, tuple[Any, dict[str, Any], int]]
    found = {name: (walk_forward, constants, 128) for name, constants in outputs.items()}
    found |= {name: (backward_dv.walk_backward_dv, constants, 128) for name, constants in dv.items()}
    found |= {name: (walk_backward_dqk, constants, 128) for name, constants in walks.items()}
    if takes_pair(d_qk, d_hv, sums=False):
        pairs = {}
        for sums in (True, False):
            made = {
                "dk and dv": pair_constants(d_qk, d_hv, SUMS=sums),
                "dk and dv with the state before": pair_constants(d_qk, d_hv, SUMS=sums, LAST=True),
                "dk and dv of segments": pair_constants(d_qk, d_hv, SUMS=sums, FIRST=True),
                "dk and dv of float16": pair_constants(d_qk, d_hv, SUMS=sums),
                "dk and dv of shared heads and a skip connection": pair_constants(d_qk, d_hv, SUMS=sums, SKIP=True),
            }
            del made["dk and dv of shared heads and a skip connection"]["sharing"]
            pairs |= {name + " without row sums" * (not sums): constants for name, constants in made.items()}
        found |= {name: (pair.pair, constants, 128) for name, constants in pairs.items()}
    for reverse in (False, True):
        constants = {
            "z_sharing": 1,
            "Z_DIM": d_qk,
            "W_DIM": d_hv,
            **asdict(StatePassShape.of(d_qk, d_hv, heads=PACK, z_sharing=1)),
            "REVERSE": reverse,
            "NORM": not reverse,
            "KEEP": False,
            "FIRST": False,
            "LAST": True,
        }
        found["dC" if reverse else "C, n"] = (segments.accumulate, constants, 168)
    if (d_qk, d_hv) == (64, 64):
        for name, branch in (("h", "SKIP"), ("h of segments", "FIRST")):
            found[f"{name} of heads together"] = (packed.walk_heads, packed_constants(**{branch: True}), 128)
        for name in ("C, n", "dC"):
            together = asdict(StatePassShape.of(d_qk, d_hv, heads=PACK, z_sharing=PACK))
            shared = found[name][1] | together | {"NORM": False}
            del shared["z_sharing"]
            found[f"{name.removesuffix(', n')} of heads together"] = (segments.accumulate, shared, 168)
        ends: dict[str, Any] = {"REVERSE": True, "FIRST": True, "LAST": True}
        kept = {
            "C of every tile": kept_constants(heads=64, z_sharing=64),
            "dC of every tile": kept_constants(heads=64, z_sharing=64, **ends),
            "C of every tile, of heads of their own": kept_constants(heads=4, z_sharing=1),
            "dC of every tile, of heads of their own": kept_constants(heads=4, z_sharing=1, **ends),
            "dC of every tile, of one head a program": kept_constants(heads=3, z_sharing=1, **ends),
        }
        found |= {name: (segments.accumulate, constants, 168) for name, constants in kept.items()}
        every = {
            "gradients": gradients_constants(MOST_ADDED_UP, sums=True, skip=False),
            "gradients of a head": gradients_constants(1, sums=True, skip=False),
            "gradients with a skip connection": gradients_constants(MOST_ADDED_UP, sums=True, skip=True),
            "gradients without row sums": gradients_constants(MOST_ADDED_UP, sums=False, skip=False),
            "gradients without row sums with a skip connection": gradients_constants(
                MOST_ADDED_UP, sums=False, skip=True
            ),
        }
        every["gradients of float16"] = every["gradients with a skip connection"]
        found |= {name: (tilewise.gradients, constants, 128) for name, constants in every.items()}
    return found


def compiled_by_name(shape: str, name: str) -> dict[str, Any]:
    """In a process that has nothing but these names of a kernel."""
    d_qk, d_hv = map(int, shape.split("/"))
    return compiled(f"{shape} {name}", *every_kernel(d_qk, d_hv)[name], "fp16" if "float16" in name else "bf16")


def main() -> None:
    jobs = []
    for argument in sys.argv[1:] or SHAPES:
        shape, _, names = argument.partition(":")
        every = every_kernel(*map(int, shape.split("/")))
        jobs += [(shape, name) for name in (names.split(";") if names else every)]
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork")) as pool:
        rows = list(pool.map(compiled_by_name, *zip(*jobs, strict=True)))
    print(json.dumps({"triton": triton.__version__, "kernels": rows}))


if __name__ == "__main__":
    main()
