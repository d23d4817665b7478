"""Which sources and which GPU made a row: a hash of what decides a number, the commit, the driver."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import tflabench

# What decides a number, relative to the folder of the package.
SOURCES = ("kernels", "baselines", "bench", "implementations")


@cache
def source_hash() -> str:
    """Return 12 hexadecimal digits of the sources that decide a number: kernels, baselines, bench, implementations.

    It is the same from a checkout, from a copy without .git and from an installed package.
    """
    root = Path(tflabench.__file__).resolve().parent
    digest = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(f"{folder}/{path.relative_to(root / folder).as_posix()}\n".encode())
            digest.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:12]


@cache
def commit() -> str | None:
    """Return the commit of the checkout that this package runs from, with "+" behind it if files have changed since.

    TFLABENCH_COMMIT, where set, wins: for files that were copied without their .git, or over another checkout.
    """
    if given := os.environ.get("TFLABENCH_COMMIT"):
        return given
    root = Path(tflabench.__file__).resolve().parent.parent
    if not (root / ".git").exists() or not shutil.which("git"):
        return None
    show = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    return subprocess.run(show, capture_output=True, text=True, timeout=60).stdout.strip() or None
