"""The whole command line: importing a command adds it to `app`. Heavy libraries are imported inside commands only."""

from __future__ import annotations

from tflabench.cli import (
    advise,
    cache,
    calibrate,
    claims,
    compare,
    gpus,
    list_,
    optimal_chunk,
    plot,
    profile,
    report,
    reproduce,
    roofline,
    sweep,
    theory,
    transfer,
    verify,
)
from tflabench.cli.common.app import app
from tflabench.cli.rows import merge, pack

__all__ = [
    "advise",
    "app",
    "cache",
    "calibrate",
    "claims",
    "compare",
    "gpus",
    "list_",
    "merge",
    "optimal_chunk",
    "pack",
    "plot",
    "profile",
    "report",
    "reproduce",
    "roofline",
    "sweep",
    "theory",
    "transfer",
    "verify",
]
