"""The rules of a sweep: one record, which travels to every process and node that measures. No torch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from tflabench.bench.protocol import STANDARD, Protocol
from tflabench.rows.schema import Row


@dataclass(frozen=True)
class Rules:
    """The rules by which a sweep measures.

    Attributes:
        protocol: rounds and samples.
        timeout_s: for one job of a point.
        tune_s: for the autotuners of one point; None for every configuration.
        jobs: points that are warmed up at a time; 0 to compile in the process that measures; None for what the cores
            allow.
        plugins: as `registry.plug_in` takes them.
        memory_limit: bytes of host memory that a point may allocate; None for the limit of its machine.
        tuned: rows whose choices of autotuners are taken over.
        stop_at: time of `time.monotonic` from which on no point is begun.
    """

    protocol: Protocol = STANDARD
    timeout_s: float = 300.0
    tune_s: float | None = 20.0
    jobs: int | None = None
    plugins: Sequence[str] = ()
    memory_limit: int | None = None
    tuned: Sequence[Row] = ()
    stop_at: float = inf


def end_of(seconds: float | None) -> float:
    """Return the time of `time.monotonic` this many seconds from now; infinity for None."""
    return inf if seconds is None else time.monotonic() + seconds
