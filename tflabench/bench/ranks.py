"""Measure a sequence that lies on several devices: a process for each rank beside the worker, which is rank 0.

The other ranks have the parts behind the worker's, drawn from other seeds. What the worker calls they are told over a
pipe, and call too. A call ends on the worker when it has ended on all: its time is that of the slowest. The correctness
gate sees the worker's part alone: the other ranks send no gradients.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
import weakref
from datetime import timedelta
from functools import cache
from itertools import count
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tflabench.bench.child import Child, die_with_parent
from tflabench.implementations import registry
from tflabench.implementations.adapter import Case, Implementation, Unsupported
from tflabench.problem import Problem

ON_CPU = 2  # ranks at most, where there are no GPUs to count
TIMEOUT = timedelta(seconds=120)
CALLS = 20  # of which the median is the time of a collective
AHEAD = 1_000_000  # cycles for which a GPU is kept busy so that the host can launch a collective meanwhile
LARGE = 64 << 20  # bytes a rank of a collective that shows the rate of the link


class World:
    """This process and those of other ranks, with a group of the first n of them for every n."""

    def __init__(self, device_type: str, rank: int, size: int, store: str) -> None:
        """Join, and wait until all have."""
        self.device = torch.device("cuda", rank) if device_type == "cuda" else torch.device("cpu")
        if device_type == "cuda":
            torch.cuda.set_device(self.device)
        self.rank, self.size = rank, size
        backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=TIMEOUT)
        self.groups = {n: dist.new_group(range(n), timeout=TIMEOUT) for n in range(2, size + 1)}
        self._end = torch.zeros(1, device=self.device)

    def meet(self, ranks: int) -> None:
        """Wait on the device until all ranks have come here."""
        dist.all_reduce(self._end, group=self.groups[ranks])

    def collective_ms(self, ranks: int, elements: int) -> float:
        """Return the time of an all-gather of so many float32 numbers a rank."""
        mine = torch.zeros(elements, device=self.device)
        gathered = [torch.empty_like(mine) for _ in range(ranks)]
        times: list[float] = []
        for _ in range(CALLS):
            if self.device.type == "cuda":
                torch.cuda._sleep(AHEAD)
            self.meet(ranks)
            start = self._mark()
            dist.all_gather(gathered, mine, group=self.groups[ranks])
            stop = self._mark()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            times.append(1e3 * (stop - start) if isinstance(start, float) else start.elapsed_time(stop))
        return median(times)

    def _mark(self) -> Any:
        """Return a point in time, of the GPU where there is one."""
        if self.device.type != "cuda":
            return time.perf_counter()
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark


class Leader(World):
    """The world as the worker has it, with the processes of all other ranks."""

    def __init__(self, device_type: str) -> None:
        """Start a process for each other device of this kind that there is."""
        size = torch.cuda.device_count() if device_type == "cuda" else ON_CPU
        store = os.path.join(tempfile.mkdtemp(), "ranks")
        self._followers = [Child.spawn(__name__, device_type, str(rank), str(size), store) for rank in range(1, size)]
        for follower in self._followers:
            follower.send(registry.plugins_in_use())
        super().__init__(device_type, 0, size, store)
        self.cases = count()

    def close(self) -> None:
        """End the other ranks and leave the group."""
        for follower in self._followers:
            follower.kill()
        dist.destroy_process_group()

    def tell(self, ranks: int, what: str, case: int, **more: Any) -> None:
        """Tell the other ranks of a case what they are to do now."""
        for follower in self._followers[: ranks - 1]:
            follower.send({"what": what, "case": case, "ranks": ranks, **more})

    def wait_until_built(self, ranks: int) -> None:
        """Wait until the other ranks of a case have built it.

        Raises:
            RuntimeError: one has ended. All end then, and the next case has other processes.
        """
        for rank, follower in enumerate(self._followers[: ranks - 1], 1):
            try:
                follower.pipe.recv()
            except (EOFError, ConnectionError):  # reset where it had not read all that it was told
                how, line = follower.last_words()
                self.close()
                leader.cache_clear()
                raise RuntimeError(f"rank {rank} has ended ({how}): {line}") from None


leader = cache(Leader)  # of this process


def build(impl: Implementation, problem: Problem, device: torch.device) -> Case:
    """Return the Case of a problem whose sequence lies on several devices, as rank 0 has it.

    Raises:
        Unsupported: the implementation runs on one device, or there are fewer.
        RuntimeError: another rank cannot build it.
    """
    ranks = problem.ranks or 1
    there = torch.cuda.device_count() if device.type == "cuda" else ON_CPU
    if ranks > there:
        seen = (
            f"this process sees {there} devices (leave --gpus out)" if device.type == "cuda" else f"a CPU has {there}"
        )
        raise Unsupported(f"ranks is {ranks}, and {seen}")
    case = impl.build(problem.part, device)
    if case.call is None:
        raise Unsupported("runs on one device: ranks must be 1")
    lead = leader(device.type)
    number, call = next(lead.cases), case.call
    lead.tell(ranks, "build", number, implementation=impl.name, problem=problem.part)
    lead.wait_until_built(ranks)
    p = problem
    elements = p.batch * p.heads * p.d_qk * p.d_hv
    collective, large = (lead.collective_ms(ranks, size) for size in (elements, LARGE // 4))
    rate = LARGE * (ranks - 1) / large * 1e3
    case.details |= {
        "collective_ms": collective, "link": link(device, ranks), "link_gbps": rate / 1e9,
        "collective_bytes": 4 * elements * (ranks - 1), "collective_model_ms": 4e3 * elements * (ranks - 1) / rate,
    }  # fmt: skip

    def forward() -> Tensor:
        lead.tell(ranks, "forward", number, gradients=torch.is_grad_enabled())
        output = call(group=lead.groups[ranks])
        lead.meet(ranks)
        if output.requires_grad:
            output.register_hook(lambda _: lead.tell(ranks, "backward", number))
        return output

    leaves = [x for x in case.inputs.values() if x.requires_grad]
    met = count(1)

    def end(_: Tensor) -> None:
        if next(met) % len(leaves) == 0:  # the last gradient of a backward
            lead.meet(ranks)

    for leaf in leaves:
        leaf.register_hook(end)
    case.forward = forward
    weakref.finalize(case, lead.tell, ranks, "drop", number).atexit = False
    return case


def link(device: torch.device, ranks: int) -> str:
    """Return what joins the devices of the first ranks."""
    if device.type != "cuda":
        return "shared memory of a CPU (gloo)"
    if not all(torch.cuda.can_device_access_peer(0, rank) for rank in range(1, ranks)):
        return "through the host"
    return "peer to peer"


def follow(
    world: World, pipe: Connection, case: Case | None, order: dict[str, Any], output: Tensor | None
) -> tuple[Case, Tensor | None]:
    """Do what the worker has told of a case: return the case, and an output that waits for its backward."""
    ranks = order["ranks"]
    if order["what"] == "build":
        problem: Problem = order["problem"]
        problem = problem.with_(seed=problem.seed + world.rank)
        torch.manual_seed(problem.seed)
        case = registry.get(order["implementation"]).build(problem, world.device)
        pipe.send("built")
        for elements in (problem.batch * problem.heads * problem.d_qk * problem.d_hv, LARGE // 4):
            world.collective_ms(ranks, elements)
        return case, None
    assert case is not None
    assert case.call is not None
    if order["what"] == "forward":
        with torch.set_grad_enabled(order["gradients"]):
            output = case.call(group=world.groups[ranks])
    else:
        assert output is not None
        leaves = [x for x in case.inputs.values() if x.requires_grad]
        torch.autograd.grad(output, leaves, torch.zeros_like(output))
        output = None
    world.meet(ranks)
    return case, output


def main(device_type: str, rank: str, size: str, store: str, descriptor: str) -> None:
    """Follow the worker until it is gone."""
    die_with_parent()
    world = World(device_type, int(rank), int(size), store)
    cases: dict[int, tuple[Case, Tensor | None]] = {}
    pipe = Connection(int(descriptor))
    try:
        for plugin in pipe.recv():
            registry.plug_in(plugin)
        while True:
            order = pipe.recv()
            case, output = cases.pop(order["case"], (None, None))
            if order["what"] != "drop":
                cases[order["case"]] = follow(world, pipe, case, order, output)
    except EOFError:
        os._exit(0)  # the worker waits for no goodbye
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # threads of a collective would end the process by a signal instead, and say so last


if __name__ == "__main__":
    main(*sys.argv[1:])
