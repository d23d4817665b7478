"""Worker processes forked from servers that have imported torch, Triton and one library, and never touched CUDA.

A fork takes milliseconds where imports take seconds. So each point of a library can have a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import tempfile
import time
from collections.abc import Iterable, Sequence
from itertools import count
from multiprocessing.connection import Connection

from tflabench.bench.child import Child
from tflabench.bench.precompile.gpu_facts import DeviceFacts
from tflabench.bench.precompile.server import ForkServer
from tflabench.bench.workers import VARIABLES
from tflabench.implementations import registry

SERVE = "tflabench.bench.worker:serve_forked"
OBITUARY_S = 2.0  # until a server says how a process ended


class Forks:
    """Servers by library, started with the first process that needs them.

    Args:
        facts: of the GPU that is here.
        plugins: as `registry.plug_in` takes them.
    """

    def __init__(self, facts: DeviceFacts, plugins: Sequence[str]) -> None:
        self._facts, self._plugins = facts, list(plugins)
        self._servers: dict[str, ForkServer] = {}
        self._codes: dict[int, int] = {}  # by label
        self._labels = count(1)

    def prepare(self, packages: Iterable[str]) -> None:
        """Start the servers of distributions, so that they import while something else goes on."""
        for package in packages:
            self._server(package)

    def start(self, package: str) -> Child | None:
        """Fork a worker that has imported a distribution; None where there is no server for that."""
        server = self._server(package)
        if server is None:
            return None
        label = next(self._labels)
        mine, theirs = (end.detach() for end in socket.socketpair())
        log = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        server.fork(label, SERVE, {"device": "cuda", "plugins": self._plugins}, [theirs, log.fileno()])
        os.close(theirs)
        child = Child(Connection(mine), 0, log, lambda seconds: self._code(server, label), lambda: None)

        def end() -> None:
            with contextlib.suppress(OSError):
                if child.pid:
                    os.kill(child.pid, signal.SIGKILL)

        child.end = end
        return child

    def close(self) -> None:
        """End the servers and all that they forked."""
        for server in self._servers.values():
            server.close()

    def _server(self, package: str) -> ForkServer | None:
        if not any(impl.imports for impl in registry.implementations() if impl.package == package):
            return None
        if package not in self._servers:
            self._servers[package] = ForkServer(package, self._facts, VARIABLES)
        return self._servers[package]

    def _code(self, server: ForkServer, label: int) -> int:
        """Wait for what a server says of the end of a process; -SIGKILL where it says nothing."""
        deadline = time.monotonic() + OBITUARY_S
        with selectors.DefaultSelector() as selector:
            selector.register(server.channel, selectors.EVENT_READ)
            while label not in self._codes and not server.channel.closed:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    break
                for message in server.channel.receive():
                    if "ended" in message:
                        self._codes[message["ended"]] = message["code"]
        return self._codes.pop(label, -signal.SIGKILL)
