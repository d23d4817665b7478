"""The whole command line: importing a command adds it to `app`. Heavy libraries are imported inside commands only."""

from __future__ import annotations

# isort: off
from tflabench.cli import advise
from tflabench.cli import claims
from tflabench.cli import headline
from tflabench.cli import compare
from tflabench.cli import plot
from tflabench.cli import sweep
from tflabench.cli import verify
from tflabench.cli import calibrate
from tflabench.cli import profile
from tflabench.cli import report
from tflabench.cli import reproduce
from tflabench.cli import merge
from tflabench.cli import recount
from tflabench.cli import migrate
from tflabench.cli import gpus
from tflabench.cli import optimal_chunk
from tflabench.cli import roofline
from tflabench.cli import theory
from tflabench.cli import model_error
from tflabench.cli import transfer

# isort: on
from tflabench.cli.common.app import app

__all__ = [
    "advise",
    "app",
    "calibrate",
    "claims",
    "compare",
    "gpus",
    "headline",
    "merge",
    "migrate",
    "model_error",
    "optimal_chunk",
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
