"""Tasks and events: what a sweep gives to a station, and what a station yields. All of it can be pickled. No torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Self

from tflabench.bench.machine import Machine
from tflabench.rows.schema import Row
from tflabench.selection.points import Comparison, Point


@dataclass(eq=False)
class Task:
    """One comparison to be measured on one device.

    Attributes:
        number: in the order of the sweep, from 1.
        faults: what came of it before.
    """

    number: int
    comparison: Comparison
    faults: list[Fault] = field(default_factory=list["Fault"])


@dataclass(frozen=True)
class Began:
    """A task has a device; without a task: a device is ready, and no other sweep measures on it."""

    machine: Machine


@dataclass(frozen=True)
class Note:
    """A line for the user; without text a sign of life."""

    text: str = ""


@dataclass(frozen=True)
class RunDescription:
    """A run, and what environment.json says of it."""

    run_id: str
    environment: Mapping[str, Any]


@dataclass(frozen=True)
class Work:
    """A point that is worked on now.

    Attributes:
        doing: "starting" its process, "preparing" or "tuning" it, or "timing" a turn of it.
        comparison: the number of its task.
        turn: the number of the turn that is timed, from 1; of the first one until then.
    """

    point: Point
    doing: str
    comparison: int
    turn: int


@dataclass(frozen=True)
class Activity:
    """Name the points that a station works on, and those whose kernels it compiles meanwhile."""

    working: tuple[Work, ...] = ()
    compiling: tuple[Point, ...] = ()


@dataclass(frozen=True)
class Ended:
    """Nothing more comes of a task."""


@dataclass(frozen=True)
class Fault:
    """The end of a task before that of its comparison.

    Attributes:
        status: that its points have unless another try succeeds.
        reason: in one line.
        machine: where; None until the sweep that hears of it has said so.
    """

    status: str
    reason: str
    machine: Machine | None = None

    def __str__(self) -> str:
        return f"on {self.machine}: {self.reason}"


Event = Began | Note | RunDescription | Row | Activity | Ended | Fault


class Stations(ABC):
    """Devices that measure tasks: that of a `station`, or GPUs of this host (`host`).

    Attributes:
        silent_s: seconds without an event after which a task that has begun hangs.
    """

    silent_s = inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def room(self, task: Task) -> bool:
        """Return whether a device takes a task now, to measure it or to prepare for it."""

    @abstractmethod
    def start(self, task: Task) -> None:
        """Give a task to a device for which there is room, where there is another one not to one where it failed."""

    @abstractmethod
    def wait(self, timeout_s: float) -> list[tuple[Task | None, Event]]:
        """Return what has come, by task where it is of one; wait at most `timeout_s` seconds for the first of it.

        The last event of each task is `Ended` or a `Fault`; after `stop` there is nothing more.
        """

    @abstractmethod
    def stop(self, task: Task) -> None:
        """End a task, whatever it does."""

    @abstractmethod
    def close(self) -> None:
        """End all tasks and what measures them; calling it twice does no harm."""
