"""Time every tiling of each TFLA kernel on this GPU and print the fastest: so `kernels.scalar.plan.tfla` got its table.

    python tools/tune_tfla.py ROWS.jsonl [--seconds N]

First worker processes compile all candidates into Triton's cache, then one process times them: CUDA events, the median
of 20 after 3, the L2 flushed. A line of ROWS is one (shape, chunk size, kernel, tiling): ms or error.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import torch

from tflabench.kernels.common.sizes import USUAL, Sizes
from tflabench.kernels.common.tiling import StateTiles
from tflabench.kernels.scalar.gates import log_gates
from tflabench.kernels.scalar.plan.tfla import TileConfig, Tiles, planned
from tflabench.kernels.scalar.tfla.call import Call, EdgeStates, Inputs
from tflabench.kernels.scalar.tfla.outputs import d_keys, d_queries, d_values, hidden
from tflabench.kernels.scalar.tfla.states import ChunkInputs, walk
from tflabench.kernels.types import MLSTM_SIG

PROGRAMS = (264, 512, 1024, 2048)  # for the state walk, where batch and heads are few


@dataclass(frozen=True)
class TunedShape:
    """Sizes of a problem."""

    batch: int
    heads: int
    T: int
    d_qk: int
    d_hv: int


SHAPES = {
    TunedShape(16, 16, 4096, 128, 256): (256,),
    TunedShape(1, 16, 65536, 128, 256): (256,),
    TunedShape(8, 8, 8192, 256, 512): (256, 4096),
}

# (rows, cols, inner, outer, warps, stages) by (d_in, d_out)
TILES = {
    (128, 256): (
        (64, 64, 128, 256, 4, 2), (64, 64, 128, 256, 4, 2, 128), (64, 32, 128, 256, 4, 3),
        (64, 32, 128, 256, 4, 3, 128), (64, 32, 128, 256, 4, 2, 128), (128, 64, 128, 256, 8, 3, 128),
        (128, 64, 128, 128, 8, 2, 128), (64, 64, 128, 128, 4, 2, 128),
    ),
    (256, 128): (
        (64, 32, 256, 128, 4, 3), (64, 32, 256, 128, 4, 3, 128), (64, 32, 256, 128, 4, 3, 256),
        (64, 32, 256, 128, 4, 2), (64, 64, 128, 128, 4, 3), (64, 64, 128, 128, 4, 2),
        (128, 64, 256, 128, 8, 2, 128), (64, 64, 256, 128, 4, 1, 128),
        (64, 64, 256, 64, 4, 1),
    ),
    (256, 512): (
        (128, 64, 256, 256, 8, 2), (128, 64, 256, 256, 8, 2, 128), (128, 32, 256, 256, 8, 3),
        (128, 32, 256, 256, 8, 3, 128),
        (64, 32, 256, 256, 4, 2), (64, 32, 256, 256, 4, 2, 128), (64, 64, 128, 256, 4, 2),
    ),
    (512, 256): (
        (128, 64, 128, 256, 8, 3), (128, 64, 128, 256, 8, 3, 128), (128, 64, 256, 256, 8, 2), (128, 32, 512, 256, 8, 2),
        (64, 64, 128, 256, 4, 2), (64, 64, 128, 256, 4, 2, 128), (128, 64, 128, 256, 8, 4), (128, 128, 128, 256, 8, 2),
    ),
}  # fmt: skip

# (rows, u, v, warps, stages)
STATE_TILES = (
    (64, 64, 128, 4, 3), (64, 64, 128, 4, 2), (64, 64, 128, 4, 4), (32, 64, 128, 4, 4), (64, 64, 64, 4, 3),
    (128, 64, 128, 4, 2), (64, 64, 256, 8, 3), (64, 128, 128, 8, 3), (64, 64, 128, 8, 3),
)  # fmt: skip


Candidate = tuple[str, Tiles | StateTiles, int]  # kernel, tiling, programs (see TileConfig)
Launcher = Callable[[str, Tiles | StateTiles, int], Callable[[], object]]


def candidates(shape: TunedShape) -> Iterator[Candidate]:
    """Yield what is timed of a shape."""
    few = shape.batch * shape.heads < 64
    for kernel, tiles in itertools.product(("forward_states", "backward_states"), STATE_TILES):
        for programs in PROGRAMS if few else PROGRAMS[:1]:
            yield kernel, StateTiles(*tiles), programs
    if few:
        return  # the parallel kernels see no difference
    for kernel in ("h", "dv", "dq", "dk"):
        wide = kernel in ("h", "dv")
        for tiles in TILES[(shape.d_qk, shape.d_hv) if wide else (shape.d_hv, shape.d_qk)]:
            yield kernel, Tiles(*tiles), PROGRAMS[0]


def bench(shape: TunedShape, chunk_size: int) -> Launcher:
    """Draw inputs and states of a shape, and return what makes a launch of one kernel."""
    cast("Any", torch).manual_seed(0)
    B, H, T = shape.batch, shape.heads, shape.T
    q, k, v, dh = (
        torch.randn(B, H, T, d, device="cuda", dtype=torch.bfloat16)
        for d in (shape.d_qk, shape.d_qk, shape.d_hv, shape.d_hv)
    )
    f, i = torch.randn(B, H, T, device="cuda") + 3, torch.randn(B, H, T, device="cuda")
    config = TileConfig.for_shape(shape.d_qk, shape.d_hv, q.dtype, chunk_size, 90)
    log = log_gates(f, i, MLSTM_SIG, (B, H, T), None)

    def call(config: TileConfig) -> Call:
        plan = planned(Sizes.of(q, v), chunk_size, q.dtype.itemsize, USUAL, config)
        return Call(plan, MLSTM_SIG, log, shape.d_qk**-0.5, precision="ieee")

    usual = call(config)
    inputs, forward = Inputs(q, k, v, dh=dh), ChunkInputs(k, v)
    stored = walk(usual, usual.plan.forward_states, forward, q.dtype).states
    backward = ChunkInputs(q, dh, other=stored, reverse=True)
    states = EdgeStates(stored, None, first=False)
    d_states = states._replace(states=walk(usual, usual.plan.backward_states, backward, q.dtype).states)

    def launch(kernel: str, tiles: Tiles | StateTiles, programs: int) -> Callable[[], object]:
        tuned = call(replace(config, programs=programs, **{kernel: tiles}))
        return {
            "forward_states": lambda: walk(tuned, tuned.plan.forward_states, forward, q.dtype),
            "backward_states": lambda: walk(tuned, tuned.plan.backward_states, backward, q.dtype),
            "h": lambda: hidden(tuned, inputs, states),
            "dq": lambda: d_queries(tuned, inputs, states, None),
            "dk": lambda: d_keys(tuned, inputs, d_states),
            "dv": lambda: d_values(tuned, inputs, d_states),
        }[kernel]

    return launch


def milliseconds(run: Callable[[], object], samples: int = 20) -> float:
    """Return the median time of a call."""
    for _ in range(3):
        run()
    flush = torch.empty(64 * 2**20, dtype=torch.int32, device="cuda")
    times: list[float] = []
    for _ in range(samples):
        flush.zero_()  # the L2; and while it runs, what follows is launched
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def warm(job: tuple[TunedShape, int, int, int]) -> None:
    """Compile one worker's share of a shape's candidates, on a short sequence."""
    shape, chunk_size, worker, workers = job
    launch = bench(replace(shape, T=1024), chunk_size)
    for candidate in itertools.islice(candidates(shape), worker, None, workers):
        try:
            launch(*candidate)()
        except Exception:
            continue
    torch.cuda.synchronize()


def main() -> None:
    """Compile all candidates, time them one by one, and print the best of each kernel."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=Path)
    parser.add_argument("--seconds", type=float, default=150)
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    workers = min(12, os.cpu_count() or 1)
    jobs = [(shape, 256, worker, workers) for shape in SHAPES for worker in range(workers)]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        list(pool.map(warm, jobs))
    print(f"compiled, {end - time.monotonic():.0f} s left", file=sys.stderr)
    best: dict[tuple[TunedShape, int, str], list[tuple[float, tuple[int, ...]]]] = {}
    with args.rows.open("w") as rows:
        for shape, chunk_sizes in SHAPES.items():
            for chunk_size in chunk_sizes:
                launch = bench(shape, chunk_size)
                for kernel, tiles, programs in candidates(shape):
                    if time.monotonic() > end:
                        break
                    tiling = (*astuple(tiles), programs)
                    row: dict[str, object] = {
                        "shape": astuple(shape),
                        "chunk_size": chunk_size,
                        "kernel": kernel,
                        "tiles": tiling,
                    }
                    try:
                        row["ms"] = ms = milliseconds(launch(kernel, tiles, programs))
                        best.setdefault((shape, chunk_size, kernel), []).append((ms, tiling))
                    except Exception as error:
                        row["error"] = str(error)[:200]
                    rows.write(json.dumps(row) + "\n")
                    rows.flush()
                del launch
                torch.cuda.empty_cache()
    for key, timed in best.items():
        print(astuple(key[0]), key[1], key[2], *(f"{ms:.3f} {tiles}" for ms, tiles in sorted(timed)[:3]), sep="  ")


if __name__ == "__main__":
    main()
