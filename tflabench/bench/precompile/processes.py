"""Forked processes on Linux: they end with their parent, and can be listed and ended with what they started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def die_with(parent: int) -> None:
    """End this process when its parent, of this id, ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was faster
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of what its descendants leave behind, such as an assembler of a killed compiler."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def members(session: int) -> list[int]:
    """Ids of the living processes of a session, its leader among them."""
    found = []
    for folder in os.listdir("/proc"):
        if folder.isdigit():
            with contextlib.suppress(OSError):
                # pid (name) state parent group session ...; the name may have blanks and brackets in it
                state, _, _, its_session, *_ = Path("/proc", folder, "stat").read_text().rpartition(")")[2].split()
                if int(its_session) == session and state not in "ZX":
                    found.append(int(folder))
    return found


def kill_session(session: int, spare: int | None = None, seconds: float = 1.0) -> set[int]:
    """Kill every process of a session but one, and what these start meanwhile; says which they were."""
    killed: set[int] = set()
    deadline = time.monotonic() + seconds
    while left := set(members(session)) - {spare}:
        killed |= left
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(0.005)
    return killed


def reap() -> dict[int, int]:
    """Exit codes (negative: a signal) of the children that have ended, by id."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    return ended


def remove_unfinished(folders: Iterable[Path], processes: Iterable[int]) -> None:
    """Remove what killed processes were about to put into folders of Triton's cache, and folders left empty by it.

    Files that Triton has put there are whole: it writes them elsewhere and renames them.
    """
    prefixes = tuple(f"tmp.pid_{pid}_" for pid in processes)
    for folder in folders:
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                if entry.name.startswith(prefixes):
                    shutil.rmtree(entry.path, ignore_errors=True)
            os.rmdir(folder)  # if nothing is left in it


def said(code: int) -> str:
    """Return in words how a process ended, by its exit code."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
