"""The results folders of the checkout, without what a sweep has written beside them since."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from repository import ROOT


@cache
def committed_checkout() -> Path:
    """Return a folder with `results` as git has it, by links; the checkout itself where there is no git."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "results"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ROOT
    names = [name for name in listed.stdout.split("\0") if name]
    if not names:
        return ROOT
    made = Path(tempfile.mkdtemp(prefix="committed-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    for name in names:
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).symlink_to(ROOT / name)
    return made
