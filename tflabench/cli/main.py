"""The whole command line: importing a command adds it to `app`. Heavy libraries are imported inside commands only."""

from __future__ import annotations

from tflabench.cli import (  # noqa: F401
    advise,
    cache,
    calibrate,
    claims,
    compare,
    gpus,
    list_,
    model,
    optimal_chunk,
    plot,
    profile,
    report,
    reproduce,
    roofline,
    rows,
    sweep,
    theory,
    time_,
    transfer,
    verify,
)
from tflabench.cli.common.app import app as app
