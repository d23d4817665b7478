"""More of a point, on request: times with the host, in a CUDA graph and of a row, and what bits depend on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from math import ceil
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tflabench.bench.measure import Clocks
    from tflabench.implementations.adapter import Case

EAGER_S = 0.2
GRAPH_S = 0.6  # the energy counter of a GPU moves every tenth of a second or so
EVERY_S = 5e-3  # between looks at the counter and the clock meanwhile
OVER_L2 = 4  # times the L2 are the inputs of a graph's calls, so that none finds its own there
MOST_CALLS = 256  # of a graph
OTHER = 1 / 64  # relative to a result: what differs as much is not rounded otherwise, but another one


def eager_ms(step: Callable[[], object], wait: Callable[[], object], now: Callable[[], float] = perf_counter) -> float:
    """Return milliseconds of a call among many, one after the other as a program makes them, host included."""
    step()
    wait()
    calls, spent = 0, 0.0
    begin = now()
    while spent < EAGER_S:
        for _ in range(max(calls, 1)):
            step()
        wait()
        calls, spent = max(2 * calls, 1), now() - begin
    return 1e3 * spent / calls


def invariance(pairs: Iterable[tuple[Tensor, Tensor]]) -> str:
    """Return a word of `Row.batch_invariant`, of pairs of results."""
    off = 0.0
    for ours, alone in pairs:
        difference = (ours.double() - alone.double()).norm() / alone.double().norm().clamp(min=1e-30)
        off = max(off, float(difference.nan_to_num(nan=1.0)))
    return "bits" if off == 0 else f"within {off:.0e}" if off < OTHER else "no"


def of_one_sequence(case: Case) -> str:
    """Return words of `Row.batch_invariant`: of the first row of a case of ours, otherwise than as one sequence."""
    import torch

    assert case.call is not None
    assert case.decode is not None
    call, axis = case.call, 1 if case.layout == "bthd" else 2
    T = next(x.shape[axis] for x in case.inputs.values() if x.dim() > 2)
    half = T // 2

    def steps(begin: int, end: int) -> dict[str, Tensor]:
        """Return the inputs of these steps of the row; those of no steps as they are."""
        return {
            name: x.detach()[:1].narrow(axis, begin, end - begin) if x.dim() > 2 else x.detach()
            for name, x in case.inputs.items()
        }

    with torch.no_grad():
        whole, behind = call(**steps(0, T)), steps(half, T)
        before, state = call(**steps(0, half), return_last_state=True)
        pieces = torch.cat([before, call(**behind, initial_state=state)], axis), whole
        documents = (
            call(**steps(0, T), cu_seqlens=torch.tensor([0, half, T])),
            torch.cat([before, call(**behind)], axis),
        )
        _, state = call(**steps(0, T - 1), return_last_state=True)
        last = {name: x.select(axis, 0) if x.dim() > 2 else x for name, x in steps(T - 1, T).items()}
        step = case.decode(**last, state=state), whole.select(axis, T - 1)
    pairs = {"pieces": pieces, "documents": documents, "step": step}
    return ", ".join(f"{what} {invariance([pair])}" for what, pair in pairs.items())


def calls_of_graph(input_bytes: int, l2_bytes: int) -> int:
    """Return how many calls, each on inputs of its own, make a graph whose inputs exceed the L2."""
    return min(MOST_CALLS, max(1, ceil(OVER_L2 * l2_bytes / max(input_bytes, 1))))


def captured(steps: Sequence[Callable[[], object]], device: torch.device) -> Callable[[], object]:
    """Return what replays a CUDA graph of these calls, each of which has run before.

    Raises:
        RuntimeError: what a call does cannot be captured.
    """
    import torch

    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for step in steps:
            step()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for step in steps:
            step()
    return graph.replay


def back_to_back(
    replay: Callable[[], object],
    calls: int,
    wait: Callable[[], object],
    clocks: Clocks,
    now: Callable[[], float] = perf_counter,
    sleep: Callable[[float], object] = time.sleep,
) -> dict[str, Any]:
    """Return ms and joules of a call, and the SM clock, of a graph of `calls` that is replayed for GRAPH_S.

    The energy is that between the first and the last step of the counter, over the time between them.
    """

    def seconds(times: int, watch: Callable[[float], object] = lambda begin: None) -> float:
        wait()
        begin = now()
        for _ in range(times):
            replay()
        watch(begin)
        wait()
        return now() - begin

    steps: list[tuple[float, float]] = []  # when the energy counter moved, and to what

    def watched(begin: float) -> None:
        while now() - begin < GRAPH_S:
            clocks.read()
            joules = clocks.joules()
            if joules is not None and (not steps or joules != steps[-1][1]):
                steps.append((now(), joules))
            sleep(EVERY_S)

    seconds(1)
    times = ceil(1.1 * GRAPH_S / seconds(1)) + 1
    call_s = seconds(times, watched) / times / calls
    columns = {"ms_graph": 1e3 * call_s, "joules": None, "mhz_graph": clocks.median_mhz}
    if len(steps) > 2:  # the first is where the counter stood, not when it moved
        (first, low), (last, high) = steps[1], steps[-1]
        columns["joules"] = (high - low) / (last - first) * call_s
    return columns
