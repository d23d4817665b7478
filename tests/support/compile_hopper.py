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
from functools import partial
from typing import Any

import triton
from assembled import assembled
from triton.experimental.gluon._runtime import GluonASTSource

from tflabench.kernels.common.launching import COMPILED
from tflabench.kernels.scalar.gates import Exponents
from tflabench.kernels.scalar.hopper import (
    backward_dkdv,
    backward_dqk,
    backward_dv,
    forward,
    packed_heads,
    segment_states,
    tile_gradients,
)  # fmt: skip
from tflabench.kernels.scalar.hopper.config import (
    DkdvConfig,
    PackedHeadsConfig,
    SegmentStatesConfig,
    TileGradientsConfig,
    WalkConfig,
)  # fmt: skip
from tflabench.kernels.scalar.hopper.launch import (
    BLOCKS,
    EXPONENTS_BLOCK,
    EXPONENTS_LAYOUT,
    LAYOUT,
    PACK,
    STATES_BLOCK,
    STATES_LAYOUT,
)
from tflabench.kernels.scalar.hopper.normaliser import NormaliserTensors
from tflabench.kernels.scalar.hopper.schedule import Counts, DocumentCounts
from tflabench.kernels.scalar.hopper.state import States
from tflabench.kernels.scalar.hopper.workarounds import ASSEMBLY
from tflabench.kernels.scalar.plan.hopper_shapes import (
    MOST_ADDED_UP,
    WIDTH,
    DkdvShape,
    PackedHeadsShape,
    StatePassShape,
    TileGradientsShape,
    WalkShape,
    takes_dkdv,
)

SHAPES = ("128/256", "256/512")
walk_forward: Any = forward.walk_forward
walk_backward_dqk: Any = backward_dqk.walk_backward_dqk
walk_dkdv: Any = backward_dkdv.pair
CONFIGURED: tuple[Any, ...] = (walk_forward, backward_dv.walk_backward_dv, walk_backward_dqk)
gradients: Any = tile_gradients.gradients
POINTER = "*fp32"
TUPLES = {
    "gates": Exponents(*[POINTER] * 3),  # type: ignore[arg-type]
    "states": States(*[POINTER] * 3),
    "norm": NormaliserTensors(*[POINTER] * 4),
    "tensors": backward_dqk.DqkTensors(
        Exponents(*[POINTER] * 3),  # type: ignore[arg-type]
        States(*[POINTER] * 3),
        backward_dqk.RowSumTensors(*[POINTER] * 3),
        POINTER,
        "*i32",
    ),
    "counts": Counts(*["i32"] * 11),  # type: ignore[arg-type]
}  # fmt: skip
TUPLES_OF = {
    walk_dkdv: {
        "tensors": backward_dkdv.DkdvTensors(*[POINTER] * 5),
        "counts": backward_dkdv.DkdvCounts(*["i32"] * 6),  # type: ignore[arg-type]
    },
    gradients: {
        "call": tile_gradients.TileArguments(
            tile_gradients.TileTensors(*[POINTER] * 5),
            tile_gradients.TileCounts(*["i32"] * 6),  # type: ignore[arg-type]
            "constexpr",
        )
    },
}
EXPONENTS = dict.fromkeys((walk_dkdv, gradients), ("x_desc", "y_desc"))  # by TMA
STATES = ("C_desc", "dC_desc", "kept_desc")


def pointers(types: tuple[Any, ...], place: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield where the pointers of a tuple of types, or of tuples of these, are."""
    for n, x in enumerate(types):
        if isinstance(x, tuple):
            yield from pointers(x, (*place, n))
        elif x == POINTER:
            yield (*place, n)


def compiled(name: str, kernel: Any, constants: dict[str, Any], maxnreg: int, dtype: str) -> dict[str, Any]:
    named = TUPLES_OF.get(kernel, TUPLES)
    if kernel in CONFIGURED:
        config = WalkConfig.of(**constants, bfloat16=dtype == "bf16")
        if config.normalise:
            kernel = forward.walk_forward_normalised
        if config.row_sums:
            kernel = backward_dqk.walk_backward_dqk_with_sums
        constants = {"config": config}
        if config.documents:
            named = {**named, "counts": DocumentCounts(*["i32"] * 6, "*i32")}  # type: ignore[arg-type]
    elif kernel is walk_dkdv:
        config = DkdvConfig.of(**constants)
        constants = {"config": config}
        if config.documents:
            named = {**named, "counts": backward_dkdv.DkdvDocuments(*["i32"] * 4, "*i32")}  # type: ignore[arg-type]
    elif kernel is gradients:
        constants = {"call.config": TileGradientsConfig.of(**constants)}

    def type_of(argument: str) -> Any:
        if argument in constants:
            return "constexpr"
        if argument in named:
            return named[argument]
        if argument in EXPONENTS.get(kernel, ()):
            return f"tensordesc<fp32{EXPONENTS_BLOCK},{EXPONENTS_LAYOUT!r}>"
        if argument in STATES:
            return f"tensordesc<{dtype}{STATES_BLOCK},{STATES_LAYOUT!r}>"
        if argument.endswith("_desc"):
            of_heads = kernel is packed_heads.walk_heads and argument == "v_desc"
            block = BLOCKS[PACK if of_heads else 1]
            return f"tensordesc<{dtype}{block},{LAYOUT!r}>"
        return POINTER if argument.endswith("_ptr") else "i32"

    signature = {argument: type_of(argument) for argument in kernel.arg_names}
    places: dict[str, tuple[int, ...]] = {argument: (place,) for place, argument in enumerate(kernel.arg_names)}
    if kernel is gradients:
        places["call.config"] = (*places["call"], tile_gradients.TileArguments._fields.index("config"))
    aligned = [places[a] for a in kernel.arg_names if a.endswith("_ptr")]
    aligned += [path for a in kernel.arg_names if a in named for path in pointers(named[a], places[a])]
    attributes = {path: [["tt.divisibility", 16]] for path in aligned}
    source = GluonASTSource(kernel, signature, {places[a]: x for a, x in constants.items()}, attributes)
    warps = 8 if kernel in (walk_dkdv, backward_dqk.walk_backward_dqk_with_sums) else 4
    done, log = assembled(source, 90, {"num_warps": warps, "maxnreg": maxnreg, **COMPILED, **ASSEMBLY})
    return {
        "kernel": name,
        "shared_bytes": done.metadata.shared,
        "spilled_bytes": sum(map(int, re.findall(r"(\d+) bytes spill", log))),
        "warnings": sorted(set(re.findall(r"C75\d\d", log))),
    }


def h_constants(d_qk: int, d_hv: int, *, halved: bool = False, **branches: bool) -> dict[str, Any]:
    """Of a walk for h or dv, as `WalkConfig.of` takes them."""
    shape = WalkShape.of(d_qk, d_hv, sums=False, halved=halved, normalise=branches.get("normalise", False))
    return {"shape": shape, "d_qk": d_qk, "d_hv": d_hv, **branches}


def dqk_constants(d_qk: int, d_hv: int, *, row_sums: bool = True, **branches: Any) -> dict[str, Any]:
    """Of a walk for dq or dk, as `WalkConfig.of` takes them."""
    shape = WalkShape.of(min(d_hv, 256), d_qk, sums=row_sums)
    return {"shape": shape, "d_qk": d_qk, "d_hv": d_hv, "transposed": False, "row_sums": row_sums, **branches}


def dkdv_constants(d_qk: int, d_hv: int, **branches: bool) -> dict[str, Any]:
    """Of the walk for dk and dv, as `DkdvConfig.of` takes them."""
    return {"shape": DkdvShape.of(d_hv), "d_qk": d_qk, "d_hv": d_hv, **branches}


def packed_constants(**branches: bool) -> dict[str, Any]:
    """Of h of several heads a program."""
    return {"config": PackedHeadsConfig.of(PackedHeadsShape(), **branches)}


def kept_constants(*, heads: int, heads_per_qk: int, **branches: bool) -> dict[str, Any]:
    """Of a state pass that writes the state before every tile."""
    shape = StatePassShape.of(64, 64, heads=heads, heads_per_qk=heads_per_qk)
    return {"config": SegmentStatesConfig.of(shape, d_qk=64, d_hv=64, keep_states=True, **branches)}


def gradients_constants(num_heads: int, *, row_sums: bool = True, skip: bool = False) -> dict[str, Any]:
    """Of dq, dk and dv tile by tile, as `TileGradientsConfig.of` takes them."""
    return {"shape": TileGradientsShape(num_heads), "row_sums": row_sums, "skip": skip}


def every_kernel(d_qk: int, d_hv: int) -> dict[str, tuple[Any, dict[str, Any], int]]:
    """By name: the kernel, its constants, maxnreg."""
    h = partial(h_constants, d_qk, d_hv)
    outputs = {
        "h": h(),
        "h normalised": h(normalise=True),
        "h of half the rows": h(halved=True),
        "h normalised of half the rows": h(normalise=True, halved=True),
        "h for segments": h(halved=True, keep_states=True),
        "h normalised for segments": h(normalise=True, keep_states=True),
        "h of a skip connection": h(skip=True),  # Mamba 2
        "h of documents": h(documents=True),
        "h normalised of documents": h(normalise=True, documents=True),
    }
    outputs["h of float16"], outputs["h normalised of float16"] = outputs["h"], outputs["h normalised"]
    dqk = partial(dqk_constants, d_qk, d_hv)
    walks = {
        "dq": dqk(),
        "dk": dqk(reverse=True),
        "dq of a skip connection": dqk(store_diagonal=True),  # Mamba 2
        "dq of documents": dqk(documents=True),
        "dk of documents": dqk(reverse=True, documents=True),
    }
    if d_hv <= WIDTH:
        walks |= {"dq without row sums": dqk(row_sums=False), "dk without row sums": dqk(row_sums=False, reverse=True)}
    walks["dq of float16"] = walks["dq"]
    dv = {
        "dv": h(reverse=True),
        "dv of a skip connection": h(reverse=True, skip=True),
        "dv of documents": h(reverse=True, documents=True),
    }
    found: dict[str, tuple[Any, dict[str, Any], int]]
    found = {name: (walk_forward, constants, 128) for name, constants in outputs.items()}
    found |= {name: (backward_dv.walk_backward_dv, constants, 128) for name, constants in dv.items()}
    found |= {name: (walk_backward_dqk, constants, 128) for name, constants in walks.items()}
    if takes_dkdv(d_qk, d_hv):
        for row_sums in (True, False):
            both = partial(dkdv_constants, d_qk, d_hv, row_sums=row_sums)
            made = {
                "dk and dv": both(),
                "dk and dv with the state before": both(store_final_state=True),
                "dk and dv of segments": both(load_initial_state=True),
                "dk and dv of float16": both(),
                "dk and dv of a skip connection": both(skip=True),
                "dk and dv of documents": both(load_initial_state=True, store_final_state=True, documents=True),
            }
            without = " without row sums" * (not row_sums)
            found |= {name + without: (walk_dkdv, constants, 128) for name, constants in made.items()}
    for reverse in (False, True):
        shape = StatePassShape.of(d_qk, d_hv, heads=PACK, heads_per_qk=1)
        config = SegmentStatesConfig.of(
            shape, d_qk=d_qk, d_hv=d_hv, reverse=reverse, normalise=not reverse, store_final_state=True
        )
        found["dC" if reverse else "C, n"] = (segment_states.accumulate, {"config": config}, 168)
    if (d_qk, d_hv) == (64, 64):
        packed = {
            "h of heads together": packed_constants(skip=True),
            "h of segments of heads together": packed_constants(load_initial_state=True),
        }
        found |= {name: (packed_heads.walk_heads, constants, 128) for name, constants in packed.items()}
        shape = StatePassShape.of(d_qk, d_hv, heads=PACK, heads_per_qk=PACK)
        for name, reverse in (("C", False), ("dC", True)):
            config = SegmentStatesConfig.of(shape, d_qk=d_qk, d_hv=d_hv, reverse=reverse, store_final_state=True)
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
            "gradients": gradients_constants(MOST_ADDED_UP),
            "gradients of a head": gradients_constants(1),
            "gradients with a skip connection": gradients_constants(MOST_ADDED_UP, skip=True),
            "gradients without row sums": gradients_constants(MOST_ADDED_UP, row_sums=False),
            "gradients without row sums with a skip connection": gradients_constants(
                MOST_ADDED_UP, row_sums=False, skip=True
            ),
        }
        every["gradients of float16"] = every["gradients with a skip connection"]
        found |= {name: (gradients, constants, 128) for name, constants in every.items()}
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
