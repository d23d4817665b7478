"""Hugging Face's xLSTM at the sizes of xLSTM-7B: its native path against ours through `install`, in one run.

`python tools/integrations_times.py [--blocks 4] [--tokens 8192] [--batches 1 4]` times training, prefill and
decoding of some blocks; `--whole` the prefill of 32,768 tokens and decoding of all 32 blocks. Weights are random. It
needs transformers, without the package xlstm, whose presence would make transformers build other blocks.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from typing import Any

import torch

from tflabench.integrations import install

DEVICE, DTYPE = "cuda", torch.bfloat16
WARM_UP, ROUNDS = 2, 5


def build(blocks: int) -> Any:
    """Return a model of so many blocks of xLSTM-7B in bfloat16, and its configuration says inference."""
    modeling: Any = importlib.import_module("transformers.models.xlstm.modeling_xlstm")
    if modeling.external_xlstm:
        raise SystemExit("the package xlstm is installed: the native path of transformers itself is to be timed")
    config = modeling.xLSTMConfig(num_hidden_layers=blocks, num_blocks=blocks)  # the other sizes are those of 7B
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPE)
    try:
        with torch.device(DEVICE):
            return modeling.xLSTMForCausalLM(config)
    finally:
        torch.set_default_dtype(before)


def timed(run: Callable[[], Any], flush: torch.Tensor) -> tuple[float, Any]:
    """Return the seconds that a call takes on the GPU, with nothing of it in the L2 cache, and what it returns."""
    flush.zero_()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    number = run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3, None if number is None else float(number)


Paths = dict[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[[], Any]]]
Found = dict[str, tuple[float, float, float | None] | str]


def compare(paths: Paths, rounds: int) -> Found:
    """Return median seconds, peak GiB and last number of each path, in alternating rounds; or why it does not run.

    Args:
        paths: name -> (context to run in, what to run: it may return a number).
    """
    times: dict[str, list[float]] = {name: [] for name in paths}
    peak: dict[str, float] = {}
    last: dict[str, Any] = {}
    failed: dict[str, str] = {}
    flush = torch.empty(64 * 2**20, dtype=torch.int32, device=DEVICE)
    for number in range(WARM_UP + rounds):
        for name, (context, run) in paths.items():
            if name in failed:
                continue
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            with context():
                try:
                    took, last[name] = timed(run, flush)
                except (RuntimeError, ValueError) as error:
                    failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                    continue
            if number >= WARM_UP:
                times[name].append(took)
            peak[name] = torch.cuda.max_memory_allocated() / 2**30
    return {name: failed.get(name) or (statistics.median(times[name]), peak[name], last[name]) for name in paths}


def show(title: str, found: Found, unit: str = "ms", per: float = 1.0) -> None:
    """Print a line a path, with the ratio to the first path that ran."""
    base = next((x[0] for x in found.values() if not isinstance(x, str)), None)
    for name, x in found.items():
        if isinstance(x, str):
            print(f"{title:34} {name:18} {x[:100]}", flush=True)
            continue
        took, gib, number = x
        said = "" if number is None else f"  loss {number:.5f}"
        ratio = f"{base / took:6.2f}x" if base else ""
        print(f"{title:34} {name:18} {took * 1e3 / per:10.2f} {unit}  {gib:6.1f} GiB  {ratio}{said}", flush=True)


def tokens(batch: int, T: int) -> torch.Tensor:
    """Return random tokens (batch, T)."""
    return torch.randint(3, 50000, (batch, T), device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(T))


def train(model: Any, batch: int, T: int, rounds: int) -> None:
    """Time forward and backward."""
    ids = tokens(batch, T)
    model.config.mode = "train"

    def run() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        loss = model.train()(ids, labels=ids, use_cache=False).loss
        loss.backward()
        return loss.detach()

    paths: Paths = {"native": (nullcontext, run), "ours": (lambda: install("transformers"), run)}
    show(f"forward + backward, {batch} x {T}", compare(paths, rounds))
    model.zero_grad(set_to_none=True)


@torch.no_grad()
def prefill(model: Any, batch: int, T: int, rounds: int) -> None:
    """Time a prompt, with a cache and without."""
    ids = tokens(batch, T)
    model.config.mode = "inference"
    model.eval()

    def run(cached: bool) -> None:
        model(ids, use_cache=cached)

    paths: Paths = {}
    for cached, words in ((True, ""), (False, ", no cache")):  # without a cache the native states are float32
        paths[f"native{words}"] = (nullcontext, functools.partial(run, cached))
        paths[f"ours{words}"] = (lambda: install("transformers"), functools.partial(run, cached))
    show(f"prefill, {batch} x {T}", compare(paths, rounds))


@torch.no_grad()
def decode(model: Any, batch: int, steps: int, rounds: int) -> None:
    """Time tokens from an empty cache, one call each; then the same step as a CUDA graph."""
    model.config.mode = "inference"
    model.eval()
    ids = tokens(batch, 1)

    first = model(ids, use_cache=True)
    name = "cache" if hasattr(first, "cache") else "cache_params"
    cache = {name: getattr(first, name)}

    def run() -> None:
        for _ in range(steps):
            model(ids, use_cache=True, **cache)

    paths: Paths = {"native": (nullcontext, run), "ours": (lambda: install("transformers"), run)}
    graphs = {path: captured(model, ids, cache, context) for path, (context, _) in paths.items()}
    for path, graph in graphs.items():
        if isinstance(graph, str):
            print(f"{'decode, CUDA graph':34} {path:18} {graph[:100]}", flush=True)
        else:
            paths[f"{path}, CUDA graph"] = (nullcontext, functools.partial(replay, graph, steps))
    show(f"decode a token, batch {batch}", compare(paths, rounds), per=steps)


def replay(graph: torch.cuda.CUDAGraph, steps: int) -> None:
    """Replay a step so many times."""
    for _ in range(steps):
        graph.replay()


def captured(
    model: Any, ids: torch.Tensor, cache: dict[str, Any], context: Callable[[], AbstractContextManager[Any]]
) -> torch.cuda.CUDAGraph | str:
    """Return a graph of one step, or why it cannot be captured."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with context():
        try:
            with torch.cuda.stream(stream):
                model(ids, use_cache=True, **cache)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                model(ids, use_cache=True, **cache)
        except RuntimeError as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return graph


def main() -> None:
    """Time what the options name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--whole", action="store_true", help="all 32 blocks: prefill of 32,768 tokens, and decoding")
    chosen = parser.parse_args()
    installed = ", ".join(f"{name} {version(name)}" for name in ("torch", "triton", "transformers"))
    print(f"{torch.cuda.get_device_name()}, {installed}, bfloat16, medians of {chosen.rounds} rounds, L2 flushed")
    model = build(32 if chosen.whole else chosen.blocks)
    print(f"{len(model.backbone.blocks)} blocks, {sum(x.numel() for x in model.parameters()) / 1e9:.2f} G parameters")
    if chosen.whole:
        prefill(model, 1, 32768, chosen.rounds)
        decode(model, 1, 32, chosen.rounds)
        return
    for batch in chosen.batches:
        train(model, batch, chosen.tokens, chosen.rounds)
    for batch in chosen.batches:
        prefill(model, batch, chosen.tokens, chosen.rounds)
        decode(model, batch, 32, chosen.rounds)


if __name__ == "__main__":
    main()
