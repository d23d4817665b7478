"""The whole command line: importing a command adds it to `app`. Heavy libraries are imported inside commands only."""

from __future__ import annotations

from tflabench.cli import (
    advise,
    cache,
    calibrate,
    claims,
    compare,
    gpus,
    headline,
    list_,
    model_error,
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
from tflabench.cli.rows import merge, pack, recount

__all__ = [
    "advise",
    "app",
    "cache",
    "calibrate",
    "claims",
    "compare",
    "gpus",
    "headline",
    "list_",
    "merge",
    "model_error",
    "optimal_chunk",
    "pack",
    "plot",
    "profile",
    "recount",
    "report",
    "reproduce",
    "roofline",
    "sweep",
    "theory",
    "transfer",
    "verify",
]
