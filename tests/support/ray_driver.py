"""What tests of a Ray cluster run in a process of its own, one after the other: it imports Ray and the rest once."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple


class Ended(NamedTuple):
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str


@contextlib.contextmanager
def anew(folder: str, path: list[str]) -> Iterator[None]:
    """Be in a folder, without plugins, and look for packages also in `path`."""
    from tflabench.implementations import registry
    from tflabench.implementations.packages import package_version

    os.chdir(folder)
    for plugged in (registry._plugged, registry._by_plugin):
        plugged.clear()
    before = list(sys.path)
    sys.path[:0] = path
    package_version.cache_clear()
    try:
        yield
    finally:
        sys.path[:] = before


def command(folder: str, path: list[str], *words: str) -> Ended:
    """Run a command in a folder, where packages are also looked for in `path`."""
    from commands import run

    with anew(folder, path):
        done = run(*words, COLUMNS="200")
    return Ended(done.exit_code, done.stdout, done.stderr)


def nodes_where_one_has_left(address: str) -> list[str]:
    """Return the nodes that are found in a cluster which still lists another, as Ray does for some seconds."""
    from tflabench.bench import on_ray

    alive = on_ray._alive
    with on_ray.connected(address):
        listed = alive()
        on_ray._alive = lambda: [*listed, dict(listed[0], NodeID="0" * 56, NodeName="left")]
        try:
            return [node.name for node in on_ray.find_nodes("cpu", [], mixed=False)]
        finally:
            on_ray._alive = alive


def sweep(folder: str, path: list[str], **options: Any) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of `tflabench.sweep`, and what it says."""
    import tflabench

    with anew(folder, path), contextlib.redirect_stderr(io.StringIO()) as said:
        rows: Any = tflabench.sweep(**options).to_dict("records")
    return rows, said.getvalue()
