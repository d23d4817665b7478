"""Waits for what other processes do. What never comes ends with pytest's own timeout, which names the test."""

from __future__ import annotations

import time
from collections.abc import Callable
from subprocess import Popen
from typing import Any


def wait_for(seen: Callable[[], Any], process: Popen[Any] | None = None) -> Any:
    """Return what is seen once it is true, while the process runs."""
    while not (result := seen()):
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.01)
    return result
