"""One sweep at a time on a GPU: a lock file that the process holds, and that the system takes back when it ends."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tflabench.problem import InputError

POLL_S = 1.0


@contextmanager
def alone_on(device: str, say: Callable[[str], None], wait: bool = True) -> Iterator[None]:
    """Hold the lock of a device within the block, so that no other sweep measures on it at the same time.

    Args:
        device: what tells it from others on this machine: the UUID of a GPU, the name of a CPU.
        say: called once with a line where another sweep holds the device.
        wait: whether to wait for the other sweep's end.

    Raises:
        InputError: another sweep measures on the device, and `wait` is False.
    """
    name = "".join(letter if letter.isalnum() else "-" for letter in device)
    path = Path(tempfile.gettempdir()) / f"tflabench-{os.getuid()}-{name}.lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:  # no place for a lock file: measuring alone is then up to the user
        yield
        return
    try:
        told = False
        while not _taken(handle):
            other = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
            if not wait:
                raise InputError(f"process {other} measures on {device}: wait for its end, or choose another device")
            if not told:
                say(f"Process {other} measures on {device}: waiting for its end, Ctrl-C stops.")
                told = True
            time.sleep(POLL_S)
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
