"""A process that this one has started: messages go in and out over a pipe, pickled, whatever happens to it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Any

GRACE_S = 2.0  # for a process that has closed its pipe to end
LAST_BYTES = 1 << 16  # of a log, which the last line is looked for in
PR_SET_PDEATHSIG = 1


@dataclass
class Child:
    """One process, the pipe to it, and its log.

    Attributes:
        pid: its process id; 0 where it is not known yet.
        log: what it writes to standard output and error.
        exit_code: waits at most so many seconds for its end and returns its exit code, negative for a signal.
            Raises subprocess.TimeoutExpired.
        end: kills it and whatever it has started.
    """

    pipe: Connection
    pid: int
    log: IO[bytes]
    exit_code: Callable[[float | None], int]
    end: Callable[[], None]

    @classmethod
    def spawn(cls, module: str, *arguments: str, variables: Mapping[str, str] | None = None) -> Child:
        """Run a module with these arguments, and the descriptor of its end of the pipe behind them.

        It has a session of its own: Ctrl-C reaches this process alone, which then ends it.
        """
        ours, theirs = Pipe()
        log = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        with theirs:
            process = subprocess.Popen(
                # -P: the working directory stays off sys.path (see tflabench.__main__)
                [sys.executable, "-P", "-m", module, *arguments, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(variables or {})},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

        def end() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

        return cls(ours, process.pid, log, process.wait, end)

    def send(self, message: Any) -> None:
        """Send a message; that a process is gone is told when its answer is read."""
        with contextlib.suppress(OSError):
            self.pipe.send(message)

    def last_words(self) -> tuple[str, str]:
        """Wait for the end of a process that has closed its pipe; return how it came, and what was written last.

        The end is brought about where it does not come within GRACE_S.
        """
        try:
            code = self.exit_code(GRACE_S)
        except subprocess.TimeoutExpired:
            self.end()
            code = self.exit_code(None)
        size = os.fstat(self.log.fileno()).st_size
        text = os.pread(self.log.fileno(), LAST_BYTES, max(0, size - LAST_BYTES)).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        named = {known.value: known.name for known in signal.Signals}.get(-code, f"signal {-code}")
        return f"exit code {code}" if code >= 0 else named, lines[-1][:300] if lines else ""

    def signal(self, number: int) -> None:
        """Send it a signal; nothing happens where it is gone, or its id is not known yet."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it and whatever it has started, and close the pipe."""
        self.end()
        self.pipe.close()
        self.log.close()


def die_with_parent() -> None:
    """Make the kernel end this process when the one that started it is killed, whatever it is doing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
