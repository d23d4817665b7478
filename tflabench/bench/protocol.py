"""Protocols: how long to warm up, how many samples to take, in how many rounds. No torch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tflabench.rows.schema import Row

TIMES = ("cold", "graph", "eager", "alone")
VERSION = 2  # of how a row is measured, whatever its protocol: raised when its numbers mean something else


@dataclass(frozen=True)
class Protocol:
    """Rules of one measurement. A point takes one turn in every round of its comparison.

    Attributes:
        warmup_iterations, warmup_s: both are reached before the first sample of a turn.
        min_samples, max_samples: bounds of the samples of a turn.
        settled_spread: a turn ends once the relative interquartile range of its samples is below this ...
        budget_s: ... or once its samples have taken this long.
        cap_s: a turn of a slow point ends after this time, with fewer samples than `min_samples`, at least two.
        min_rounds, max_rounds: bounds of the rounds of a comparison.
        settled_rounds: no further round is needed once the standard error of an implementation's median is below this,
            relative to it; or once its place among the others is certain (see `timing.settled`).
        times: of TIMES, those that are taken; "cold" is always.
        locked_mhz: to which the user says that the clock of the GPU is locked; None where it may go as high as it can.
        verify_s: time that the float64 oracle of the correctness gate may take; `verified_steps` says how far it went.
    """

    name: str
    warmup_iterations: int = 5
    warmup_s: float = 0.1
    min_samples: int = 10
    max_samples: int = 40
    settled_spread: float = 0.005
    budget_s: float = 0.3
    cap_s: float = 5.0
    min_rounds: int = 3
    max_rounds: int = 6
    settled_rounds: float = 0.01
    verify_s: float = 0.8
    times: Sequence[str] = ("cold",)
    locked_mhz: float | None = None

    @property
    def brief(self) -> Protocol:
        """Return rules for the turn of a provisional row, which no ratio uses."""
        return replace(
            self, warmup_iterations=3, warmup_s=0.02, min_samples=5, max_samples=10, budget_s=0.05, cap_s=1.0
        )

    def with_(self, **changes: Any) -> Protocol:
        """Return the same rules with other values of some fields, where they are not None."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


STANDARD = Protocol("standard")
PAPER = Protocol("paper", 10, 0.0, min_samples=30, max_samples=30, cap_s=inf, min_rounds=1, max_rounds=1)
SHORT = Protocol(
    "short", 2, 0.02, max_samples=20, budget_s=0.1, cap_s=2.0, max_rounds=4, settled_rounds=0.05, verify_s=0.15
)
PROTOCOLS = {protocol.name: protocol for protocol in (STANDARD, PAPER, SHORT)}


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
