"""A process that has imported torch, Triton and one library, never touches CUDA, and forks others that need them.

A fork takes milliseconds where imports take seconds. While the server imports, torch.cuda and Triton's driver answer
as the GPU would; afterwards nothing of that is left, so that a forked process is as if it had imported them itself:

- one that lists and compiles kernels pretends again (`pretence.answers_for_launches`), and never uses CUDA;
- one that measures calls `ready_to_measure()` first, and then uses CUDA as any process does. It must not pretend.

What libraries remembered of the GPU while they were imported stays true, since it was this GPU's facts. A process that
measures without being forked from here finds what was compiled if it calls `stable_keys.key_callees_first()` before it
launches anything.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tflabench.bench.precompile.channel import Channel
from tflabench.bench.precompile.compiling import scratch_prefix
from tflabench.bench.precompile.gpu_facts import DeviceFacts
from tflabench.bench.precompile.processes import adopt_orphans, die_with, kill_session, reap, remove_unfinished

# NVML says whether there is a GPU: cuInit would make CUDA useless in every process forked afterwards.
ENVIRONMENT = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
CLOSE_S = 1.5
OUR_LIBRARY = "tflabench"


class ForkServer:
    """The server of one library, as its parent sees it; it ends when its parent does.

    Args:
        library: OUR_LIBRARY, or a distribution whose implementations have `imports`.
        facts: of the GPU that is there, or that is to be compiled for.

    Attributes:
        channel: says {"ready": seconds, "failed": {implementation: why}} once, and {"ended": label, "code": exit code}
            of each process that it forked.
    """

    def __init__(self, library: str, facts: DeviceFacts, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        self.library = library
        self.channel, theirs = Channel.pair()
        self._log = tempfile.NamedTemporaryFile()  # noqa: SIM115  read through a position of its own
        with theirs, open(self._log.name, "ab") as log:
            command = [sys.executable, "-P", "-m", f"{__package__}.server"]
            self._process = subprocess.Popen(
                [*command, library, facts.as_json(), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, **os.environ, **ENVIRONMENT},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return the id of the server's process."""
        return self._process.pid

    def fork(self, label: int, call: str, arguments: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Fork a process that calls `call`, "module:function", with the descriptors first, then ends."""
        message = {"fork": label, "call": call, "arguments": dict(arguments), "descriptors": len(descriptors)}
        self.channel.send(message, descriptors)

    def last_words(self) -> str:
        """Return the last line that it or a process of its session wrote."""
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"

    def close(self, seconds: float = CLOSE_S) -> None:
        """End it and every process of its session; within `seconds`, or without asking."""
        self.channel.close()
        self._process.terminate()  # which it heeds while it imports
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            kill_session(self.pid)
            self._process.wait()
        self._log.close()


def ready_to_measure() -> None:
    """Check that this process, forked from a server, is as it would be without one.

    Raises:
        RuntimeError: it is not.
    """
    import torch
    from triton.runtime.driver import driver

    from tflabench.bench.precompile.pretence import touched_cuda

    pretends = driver._active is not None or "device" in vars(torch.Tensor)
    if pretends or torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork() or touched_cuda():
        raise RuntimeError("this process has pretended to have a GPU, or used it before the fork: it cannot measure")


def import_library(library: str, facts: DeviceFacts) -> dict[str, str]:
    """Import what the implementations of a library need; says why, by name, where one cannot be had."""
    if library != OUR_LIBRARY:  # whose kernels do without, and Dynamo takes seconds
        import torch._dynamo  # noqa: F401  keeps what torch.cuda is when it is imported: before anything is replaced
    from triton.compiler.compiler import make_backend
    from triton.runtime.cache import triton_key

    from tflabench.bench.precompile import dry_run, pretence  # noqa: F401  what jobs import
    from tflabench.bench.precompile.stable_keys import key_callees_first
    from tflabench.implementations import registry

    key_callees_first()
    failed = {}
    with pretence.answers_for_imports(facts):
        if library == OUR_LIBRARY:
            from tflabench.kernels import api, step  # noqa: F401
        for impl in registry.implementations():
            if impl.imports and impl.package == library:
                try:
                    impl.imports()
                except Exception as error:  # whatever a foreign module raises
                    failed[impl.name] = f"{type(error).__name__}: {error}"
        triton_key()  # a hash of all of Triton, and of its assembler below: remembered
        make_backend(pretence.StandInDriver(facts).get_current_target()).hash()
    return failed


def main() -> None:
    """Import a library once, then fork a process for every job that comes, until the parent ends."""
    library, facts, descriptor = sys.argv[1:]
    channel = Channel(socket.socket(fileno=int(descriptor)))
    adopt_orphans()
    started = time.monotonic()
    failed = import_library(library, DeviceFacts.from_json(facts))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # from here on it ends what it has forked first
    gc.collect()
    gc.freeze()  # or the first collection of every forked process copies all that was imported
    channel.send({"ready": time.monotonic() - started, "failed": failed})
    _serve(channel)


def _serve(channel: Channel) -> None:
    from triton import knobs

    labels: dict[int, int] = {}
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(waking)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(channel, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    while not channel.closed:
        for key, _ in selector.select():
            if key.fileobj is channel:
                for message in channel.receive():
                    labels[_fork(channel, message, [woken, waking])] = message["fork"]
            else:
                os.read(woken, 1 << 12)
        for pid, code in reap().items():
            if pid in labels:
                channel.send({"ended": labels.pop(pid), "code": code})
    deadline = time.monotonic() + 0.5  # jobs end by themselves, and clean up, when their channels are closed
    while labels and time.monotonic() < deadline:
        for pid in reap():
            labels.pop(pid, None)
        time.sleep(0.01)
    killed = kill_session(os.getpid(), spare=os.getpid())
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    if killed:
        with contextlib.suppress(OSError):
            remove_unfinished(list(Path(knobs.cache.dir).iterdir()), killed)
    for folder in Path(tempfile.gettempdir()).glob(f"{scratch_prefix(os.getpid())}*"):
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # to take torch apart takes a while


def _fork(channel: Channel, message: dict[str, Any], private: Sequence[int]) -> int:
    """Fork a process that does what a message asks for, and return its id."""
    count = message["descriptors"]
    descriptors, channel.descriptors = channel.descriptors[:count], channel.descriptors[count:]
    server = os.getpid()
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        return pid
    code = 1
    try:
        die_with(server)
        channel.close()
        signal.set_wakeup_fd(-1)
        for name in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(name, signal.SIG_DFL)
        for descriptor in private:
            os.close(descriptor)
        module, _, function = message["call"].partition(":")
        getattr(importlib.import_module(module), function)(*descriptors, **message["arguments"])
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    # Not as __main__: what is forked imports this module by its name.
    from tflabench.bench.precompile import server

    server.main()
