"""Compiles the fused kernels for sm_90a, without a GPU; prints what they use as JSON.

python compile_hopper.py [d_qk/d_hv[:name;name...] ...]     default: every kernel of the shapes of the bars
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import triton
from triton.experimental.gluon._runtime import GluonASTSource

from tflabench.kernels.gates import Exponents
from tflabench.kernels.hopper import forward, packed_heads, pair, segment_states, tilewise, walk
from tflabench.kernels.hopper.config import PackedHeadsConfig, SegmentStatesConfig, WalkConfig
from tflabench.kernels.hopper.launch import (
    BLOCKS,
    EXPONENTS_BLOCK,
    EXPONENTS_LAYOUT,
    LAYOUT,
    MOST_ADDED_UP,
    PACK,
    PairShape,
    WalkShape,
    rings,
    takes_pair,
)
from tflabench.kernels.hopper.normaliser import NormaliserTensors
from tflabench.kernels.hopper.schedule import Counts
from tflabench.kernels.hopper.shapes import StatePassShape
from tflabench.kernels.hopper.workarounds import ASSEMBLY
from tflabench.kernels.launching import COMPILED

sys.path.insert(0, str(Path(__file__).parent))
from assembled import assembled

SHAPES = ("128/256", "256/512")
walk_forward: Any = forward.walk_forward
POINTER = "*fp32"
TUPLES = {
    "gates": Exponents(*[POINTER] * 3),  # type: ignore[arg-type]
    "states": forward.States(*[POINTER] * 3),
    "norm": NormaliserTensors(*[POINTER] * 4),
    "counts": Counts(*["i32"] * 8),  # type: ignore[arg-type]
}  # fmt: skip
EXPONENTS = dict.fromkeys((pair.pair, tilewise.gradients), ("x_desc", "y_desc"))  # by TMA


def compiled(name: str, kernel: Any, constants: dict[str, Any], maxnreg: int, dtype: str) -> dict[str, Any]:
    if kernel is walk_forward:
        config = WalkConfig.of(**constants, bfloat16=dtype == "bf16")
        kernel = forward.walk_forward_normalised if config.normalise else forward.walk_forward
        constants = {"config": config}

    def type_of(argument: str) -> Any:
        if argument in constants:
            return "constexpr"
        if argument in TUPLES:
            return TUPLES[argument]
        if argument in EXPONENTS.get(kernel, ()):
            return f"tensordesc<fp32{EXPONENTS_BLOCK},{EXPONENTS_LAYOUT!r}>"
        if argument.endswith("_desc"):
            of_heads = kernel is packed_heads.walk_heads and argument == "v_desc"
            block = BLOCKS[PACK if of_heads else 1]
            return f"tensordesc<{dtype}{block},{LAYOUT!r}>"
        return POINTER if argument.endswith("_ptr") else "i32"

    signature = {argument: type_of(argument) for argument in kernel.arg_names}
    places = {argument: (place,) for place, argument in enumerate(kernel.arg_names)}
    aligned = [places[a] for a in kernel.arg_names if a.endswith("_ptr")]
    tuples = [(places[a], TUPLES[a]) for a in kernel.arg_names if a in TUPLES]
    aligned += [(*place, n) for place, types in tuples for n, x in enumerate(types) if x == POINTER]
    attributes = {path: [["tt.divisibility", 16]] for path in aligned}
    source = GluonASTSource(kernel, signature, {places[a]: x for a, x in constants.items()}, attributes)
    warps = 8 if kernel is pair.pair else 4 * constants.get("GROUPS", 1)
    done, log = assembled(source, 90, {"num_warps": warps, "maxnreg": maxnreg, **COMPILED, **ASSEMBLY})
    return {
        "kernel": name,
        "shared_bytes": done.metadata.shared,
        "spilled_bytes": sum(map(int, re.findall(r"(\d+) bytes spill", log))),
        "warnings": sorted(set(re.findall(r"C75\d\d", log))),
    }


def h_constants(d_qk: int, d_hv: int, *, halved: bool = False, **branches: bool) -> dict[str, Any]:
    """Of the walk for h, as `WalkConfig.of` takes them."""
    shape = WalkShape.of(d_qk, d_hv, sums=False, norm=branches.get("normalise", False), halved=halved)
    return {"shape": shape, "d_qk": d_qk, "d_hv": d_hv, **branches}


def walk_constants(w: int, z: int, *, sums: bool = False, columns: int = 0, **branches: bool) -> dict[str, Any]:
    """Of a walk with a state of z rows and w columns, of the `columns` that there are in all."""
    flags = {
        "SKIP": False,
        "DIAGONAL": False,
        "REVERSE": False,
        "FIRST": False,
        "LAST": False,
        "ADD": False,
        "INDEPENDENT": branches.get("REVERSE", False) and not branches.get("ADD", False),
        **branches,
    }
    return {
        **asdict(WalkShape.of(w, z, sums=sums, norm=False)),
        "SUMS": sums,
        "Z_DIM": z,
        "W_DIM": columns or w,
        "TRANSPOSED": not sums,
        "u_sharing": 1,
        "z_sharing": 1,
        **flags,
    }


def pair_constants(d_qk: int, d_hv: int, **branches: bool) -> dict[str, Any]:
    flags = {"SUMS": False, "FIRST": False, "LAST": False, "SKIP": False, **branches}
    return {**asdict(PairShape.of(d_hv)), "Z_DIM": d_qk, "W_DIM": d_hv, "sharing": 1, **flags}


def packed_constants(**branches: bool) -> dict[str, Any]:
    """Of h of several heads a program."""
    return {"config": PackedHeadsConfig(**branches)}


def kept_constants(*, heads: int, heads_per_qk: int, **branches: bool) -> dict[str, Any]:
    """Of a state pass that writes the state before every tile."""
    shape = StatePassShape.of(64, 64, heads=heads, heads_per_qk=heads_per_qk)
    shared = heads_per_qk > 1
    return {"config": SegmentStatesConfig.of(shape, 64, 64, shared_heads=shared, keep_states=True, **branches)}


def gradients_constants(heads: int, *, sums: bool, skip: bool) -> dict[str, Any]:
    """Of dq, dk and dv tile by tile."""
    return {"HEADS": heads, **rings(heads), "SUMS": sums, "SKIP": skip}


def every_kernel(d_qk: int, d_hv: int) -> dict[str, tuple[Any, dict[str, Any], int]]:
    """By name: the kernel, its constants, maxnreg."""
    w = min(d_hv, 256)
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
    walks = {
        "dq": walk_constants(w, d_qk, sums=True, columns=d_hv),
        "dq without row sums": walk_constants(w, d_qk, columns=d_hv, TRANSPOSED=False),
        "dq of segments": walk_constants(w, d_qk, sums=True, columns=d_hv, FIRST=True, ADD=d_hv > 256),
        "dk": walk_constants(w, d_qk, sums=True, columns=d_hv, REVERSE=True),
        "dk without row sums": walk_constants(w, d_qk, columns=d_hv, TRANSPOSED=False, REVERSE=True),
        "dk of segments": walk_constants(w, d_qk, sums=True, columns=d_hv, REVERSE=True, FIRST=True, ADD=d_hv > 256),
        "dv": walk_constants(d_qk, d_hv, REVERSE=True),
        "dv of segments": walk_constants(d_qk, d_hv, REVERSE=True, FIRST=True),
    }
    walks["dq of float16"] = walks["dq"]
    for name in ("dq", "dv"):  # as Mamba 2 has them; not constants where heads share q and k
        shared = {x: value for x, value in walks[name].items() if not x.endswith("_sharing")}
        walks[f"{name} of shared heads and a skip connection"] = shared | {"DIAGONAL" if name == "dq" else "SKIP": True}
    found: dict[str, tuple[Any, dict[str, Any], int]]
    found = {name: (walk_forward, constants, 128) for name, constants in outputs.items()}
    found |= {name: (walk.walk, constants, 128) for name, constants in walks.items()}
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
        shape = StatePassShape.of(d_qk, d_hv, heads=PACK, heads_per_qk=1)
        config = SegmentStatesConfig.of(
            shape, d_qk, d_hv, reverse=reverse, normalise=not reverse, store_final_state=True
        )
        found["dC" if reverse else "C, n"] = (segment_states.accumulate, {"config": config}, 168)
    if (d_qk, d_hv) == (64, 64):
        packed = {
            "h of heads together": packed_constants(skip=True, one_segment=True),
            "h of segments of heads together": packed_constants(load_initial_state=True),
        }
        found |= {name: (packed_heads.walk_heads, constants, 128) for name, constants in packed.items()}
        shape = StatePassShape.of(d_qk, d_hv, heads=PACK, heads_per_qk=PACK)
        for name, reverse in (("C", False), ("dC", True)):
            config = SegmentStatesConfig.of(
                shape, d_qk, d_hv, reverse=reverse, shared_heads=True, store_final_state=True
            )
            found[f"{name} of heads together"] = (segment_states.accumulate, {"config": config}, 168)
        ends: dict[str, Any] = {"reverse": True, "load_initial_state": True, "store_final_state": True}
        kept = {
            "C of every tile": kept_constants(heads=64, heads_per_qk=64),
            "dC of every tile": kept_constants(heads=64, heads_per_qk=64, **ends),
            "C of every tile, of heads of their own": kept_constants(heads=4, heads_per_qk=1),
            "dC of every tile, of heads of their own": kept_constants(heads=4, heads_per_qk=1, **ends),
            "dC of every tile, of one head a program": kept_constants(heads=3, heads_per_qk=1, **ends),
        }
        found |= {name: (segment_states.accumulate, constants, 168) for name, constants in kept.items()}
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
