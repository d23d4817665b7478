"""One sweep at a time on a device: a lock file that the process holds, and that the system takes back when it ends."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path


class DeviceLock:
    """The lock of a device.

    Args:
        device: what tells it from others on this machine: the UUID of a GPU, the name of a CPU.
    """

    def __init__(self, device: str) -> None:
        name = "".join(letter if letter.isalnum() else "-" for letter in device)
        self._path = Path(tempfile.gettempdir()) / f"tflabench-{os.getuid()}-{name}.lock"
        self._handle: int | None = None

    def holder(self) -> str | None:
        """Take the lock; return None where it is ours now, else the id of the process that holds it.

        Where no lock file can be made it is ours too: measuring alone is then up to the user.
        """
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            process = os.pread(handle, 32, 0).decode(errors="replace").strip()
            os.close(handle)
            return process or "unknown"
        self._handle = handle
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        return None

    def release(self) -> None:
        """Give the lock back, if it is ours."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
