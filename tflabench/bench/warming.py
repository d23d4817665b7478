"""The inside of a worker that warms up: kernels are compiled in threads, autotuners time nothing, and a gate stops it.

No torch and no Triton are imported before they are needed: the gate is also used by the process that drives.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

THREADS = 4  # kernels that one worker compiles at a time, where it knows of several
NICENESS = 10  # what is measured goes first


class WarmUpGate:
    """A gate that is open while a byte lies in a pipe, which nobody but its owner takes out.

    It is no lock: a process that stands at it, is stopped there or dies there keeps nobody out.

    Attributes:
        descriptor: what others wait at, see `wait_at`.
    """

    def __init__(self) -> None:
        self.descriptor, self._opening = os.pipe()
        self.open()

    def open(self) -> None:
        """Let all pass."""
        os.write(self._opening, b".")

    def shut(self) -> None:
        """Let nobody pass until it is opened."""
        os.read(self.descriptor, 1)

    def close(self) -> None:
        """Give it up: whoever stands there passes."""
        os.close(self.descriptor)
        os.close(self._opening)


def wait_at(gate: int) -> None:
    """Wait until a gate is open; signals are answered meanwhile."""
    opened = select.poll()
    opened.register(gate, select.POLLIN)
    opened.poll()


def stand_when_asked(gate: int, pipe: Connection) -> None:
    """Answer SIGUSR1: finish what is enqueued on the GPU, say {"stands": True}, and wait at the gate.

    Threads that compile go on. Each of this process's messages is one write, so that a signal cannot come in between.
    """

    def stand(*_: object) -> None:
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is not None and cuda.is_initialized():
            cuda.synchronize()
        pipe.send({"stands": True})
        wait_at(gate)

    signal.signal(signal.SIGUSR1, stand)


@contextlib.contextmanager
def warming() -> Iterator[None]:
    """Compile in threads within the block, without waiting before a kernel is launched.

    Where an autotuner has a choice to make, all its configurations are compiled side by side and then called once. The
    backward pass runs in this thread, so that a signal can hold it. No process waits for a kernel that another one
    compiles, as that may stand at the gate: both compile it then. For this reason nothing of torch.compile is compiled
    here: Inductor locks what it compiles, by files.
    """
    import torch
    from triton import AsyncCompileMode
    from triton.runtime.autotuner import Autotuner

    originals = {name: vars(Autotuner)[name] for name in ("run", "_bench")}
    tuners: list[Any] = []

    def run(tuner: Any, *args: Any, **options: Any) -> Any:
        tuners.append(tuner)
        if len(tuner.configs) > 1:
            before = len(mode.raw_futures)
            with contextlib.suppress(Exception):  # what is wrong shows in the call below
                tuner.warmup(*args, **{name: value for name, value in options.items() if name != "warmup"})
            wait(mode.raw_futures[before:])
        return originals["run"](tuner, *args, **options)

    def bench(tuner: Any, *args: Any, **options: Any) -> list[float]:
        tuner.__dict__["do_bench"] = _called_once
        return originals["_bench"](tuner, *args, **options)

    dynamo = "torch._dynamo" in sys.modules  # to import it takes seconds
    pool = ThreadPoolExecutor(THREADS, "compiler")
    mode = AsyncCompileMode(pool, ignore_errors=True)
    try:
        eager = torch.compiler.set_stance("force_eager") if dynamo else contextlib.nullcontext()
        called_once = patch.multiple(Autotuner, run=run, _bench=bench)
        with called_once, mode, eager, torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        for tuner in tuners:  # the next point chooses anew
            tuner.cache.clear()
            tuner.__dict__.pop("do_bench", None)
        pool.shutdown(wait=True, cancel_futures=True)


def _called_once(call: Callable[[], object], *_: object, **__: object) -> list[float]:
    """Stand in for a benchmark: every configuration that runs takes as long."""
    call()
    return [1.0, 1.0, 1.0]


def key_callees_first() -> None:
    """Do in every process what Triton does from 3.8 on; call it before the first kernel is launched.

    The key of a kernel holds the values of the global constants that its callees use. Triton 3.6 and 3.7 look for them
    before they have read a callee, unless another kernel has called it: the same kernel then has one of two keys, and
    a process does not find in the cache what another has compiled. A forked process keeps what its parent did.
    """
    from triton.runtime.jit import DependenciesFinder

    update: Any = DependenciesFinder._update_hash
    if hasattr(update, "after_callees"):
        return

    def read_callee_first(finder: DependenciesFinder, callee: Any) -> None:
        _ = callee.cache_key
        update(finder, callee)

    read_callee_first.after_callees = True  # type: ignore[attr-defined]
    DependenciesFinder._update_hash = read_callee_first  # type: ignore[method-assign]
