"""Worker processes forked from servers that have imported torch, Triton and one library, and never touched CUDA.

A fork takes milliseconds where imports take seconds. So each point of a library can have a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from itertools import count
from multiprocessing import Pipe
from multiprocessing.reduction import send_handle

from tflabench.bench.child import Child
from tflabench.bench.fork_server import OUR_LIBRARY
from tflabench.bench.workers import VARIABLES
from tflabench.implementations import registry

SERVER = "tflabench.bench.fork_server"
OBITUARY_S = 2.0  # until a server says how a process ended
# NVML says whether there is a GPU: cuInit would make CUDA useless in every process forked afterwards.
SERVER_VARIABLES = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


class Forks:
    """Servers by library, started with the first process that needs them.

    Args:
        plugins: as `registry.plug_in` takes them.
    """

    def __init__(self, plugins: Sequence[str]) -> None:
        self._plugins = list(plugins)
        self._servers: dict[str, Child] = {}
        self._codes: dict[int, int] = {}  # by label
        self._labels = count(1)

    def prepare(self, packages: Iterable[str]) -> None:
        """Start the servers of distributions that take time to import, so that they do while something else goes on."""
        for package in packages:
            if _imports(package):
                self._server(package)

    def start(self, package: str) -> Child | None:
        """Fork a worker that has imported a distribution; None where that takes no time."""
        return self._fork(self._server(package)) if _imports(package) else None

    def start_to_warm_up(self, package: str, gate: int) -> Child:
        """Fork a worker that warms up points of a distribution, and stands at a gate while that is shut."""
        return self._fork(self._server(package if _imports(package) else OUR_LIBRARY), gate)

    def close(self) -> None:
        """End the servers and all that they forked."""
        for server in self._servers.values():
            server.kill()

    def _server(self, library: str) -> Child:
        if library not in self._servers or self._has_ended(self._servers[library]):
            variables = {name: os.environ.get(name, value) for name, value in VARIABLES.items()} | SERVER_VARIABLES
            self._servers[library] = Child.spawn(SERVER, library, variables=variables)
        return self._servers[library]

    @staticmethod
    def _has_ended(server: Child) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.exit_code(0.0)
            return True
        return False

    def _fork(self, server: Child, *gate: int) -> Child:
        self._hear(server, 0.0)  # or a server that has much to say waits until it is heard
        label = next(self._labels)
        ours, theirs = Pipe()
        log = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        descriptors = [theirs.fileno(), log.fileno(), *gate]
        with theirs, contextlib.suppress(OSError):  # that the server is gone is told when the worker's answer is read
            server.pipe.send((label, {"device": "cuda", "plugins": self._plugins}, len(descriptors)))
            for descriptor in descriptors:
                send_handle(server.pipe, descriptor, server.pid)
        child = Child(ours, 0, log, lambda seconds: self._code(server, label), lambda: None)

        def end() -> None:
            if child.pid:
                with contextlib.suppress(OSError):
                    os.kill(child.pid, signal.SIGKILL)

        child.end = end
        return child

    def _code(self, server: Child, label: int) -> int:
        """Wait for what a server says of the end of a process; -SIGKILL where it says nothing."""
        deadline = time.monotonic() + OBITUARY_S
        while label not in self._codes and self._hear(server, max(0.0, deadline - time.monotonic())):
            pass
        return self._codes.pop(label, -signal.SIGKILL)

    def _hear(self, server: Child, timeout_s: float) -> bool:
        """Take in what a server says of processes that have ended; return whether something came in time."""
        heard = False
        with contextlib.suppress(EOFError, OSError):
            while server.pipe.poll(0.0 if heard else timeout_s):
                ended, code = server.pipe.recv()
                self._codes[ended] = code
                heard = True
        return heard


def _imports(package: str) -> bool:
    return any(impl.imports for impl in registry.implementations() if impl.package == package)
