"""A task, which is one comparison on one device: what travels to the device, what measures there, what comes back."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf

from tflabench.bench import gpu_lock, machine
from tflabench.bench.protocol import Protocol
from tflabench.bench.standing import Standing
from tflabench.bench.sweep import Described, Origin, Session, Settings
from tflabench.problem import DeviceKind, InputError
from tflabench.rows.schema import Row
from tflabench.selection.comparisons import Comparison


@dataclass(frozen=True)
class Terms:
    """The rules that all tasks of a sweep share; they travel to every node.

    Attributes:
        sweep_id: of all of it.
        jobs: compilers at a time for one task; None for the share of a GPU in the cores of its node.
        memory_limit: bytes of host memory that a point may allocate; None for the node's own limit.
        until: time of `time.time` from which on no point is begun.
        threads: OMP_NUM_THREADS of the driver.
        timeout_s, tune_s, plugins, tuned: as `sweep.Settings` has them.
    """

    sweep_id: str
    kind: DeviceKind
    protocol: Protocol
    timeout_s: float = 300.0
    tune_s: float | None = 20.0
    jobs: int | None = None
    plugins: Sequence[str] = ()
    memory_limit: int | None = None
    tuned: Sequence[Row] = ()
    until: float = inf
    threads: str | None = None


@dataclass(frozen=True)
class Place:
    """The node and device that a task runs on; `gpu_uuid` is None for a CPU."""

    node: str
    device: str
    gpu_uuid: str | None = None

    def __str__(self) -> str:
        return f"{self.node} {self.gpu_uuid[:12]}" if self.gpu_uuid else self.node


@dataclass(eq=False)
class Task:
    """One comparison to be measured on one device.

    Attributes:
        number: in the order of the sweep, from 1.
        kind: of GPU that it must run on, as the axis `gpu` names it; None for any.
        faults: what came of it before.
    """

    number: int
    comparison: Comparison
    kind: str | None = None
    faults: list[Fault] = field(default_factory=list["Fault"])


@dataclass(frozen=True)
class Began:
    """A task has a device."""

    place: Place


@dataclass(frozen=True)
class Note:
    """A line for the user; without text a sign of life."""

    text: str = ""


@dataclass(frozen=True)
class Ended:
    """Nothing more comes of a task."""


@dataclass(frozen=True)
class Fault:
    """A task that ended before its comparison did.

    Attributes:
        status: that its points have unless another try succeeds.
        reason: in one line.
        place: where; None where that is not known.
    """

    status: str
    reason: str
    place: Place | None = None


Event = Began | Note | Row | Standing | Described | Ended | Fault


class Station:
    """One device of this node, which measures comparisons as long as the block lasts.

    Args:
        node: name of this node.
        mixed_versions: as the column of that name.

    Raises:
        InputError: there is no such device here, or torch is missing.
    """

    def __init__(self, terms: Terms, node: str, mixed_versions: str | None = None) -> None:
        self._terms, self._machine = terms, machine.detect(terms.kind)
        self.place = Place(node, self._machine.name, self._machine.uuid)
        run_id = hashlib.sha256(f"{terms.sweep_id} {self.place}".encode()).hexdigest()[:12]
        self._origin = Origin(run_id, node, mixed_versions)

    def __enter__(self) -> Station:
        self._stack = ExitStack()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def prepare(self) -> Iterator[Event]:
        """Wait until no other sweep measures on the device, and start what measures."""
        yield Began(self.place)
        yield from self._alone()
        terms, here = self._terms, self._machine
        limit = here.host_memory_limit if terms.memory_limit is None else terms.memory_limit
        jobs = machine.compilers(terms.jobs, max(1, len(machine.gpus_of_node()))) if here.kind == "cuda" else 0
        settings = Settings(
            here, terms.protocol, terms.timeout_s, terms.tune_s, jobs, terms.plugins, limit, terms.tuned
        )
        self._session = self._stack.enter_context(Session(settings))

    def measure(self, comparison: Comparison) -> Iterator[Event]:
        """Measure a comparison, and yield its rows and where it stands."""
        yield Began(self.place)
        stop_at = time.monotonic() + (self._terms.until - time.time())
        yield from self._session.stream(comparison, self._origin, stop_at)

    def _alone(self) -> Iterator[Event]:
        """Take the lock of the device, with a sign of life while another sweep has it."""
        # Several nodes on one machine share its CPU: whoever started them knows that.
        device = self.place.gpu_uuid or (
            self.place.device if self.place.node == machine.node_name() else f"{self.place.device} {self.place.node}"
        )
        told = False
        while True:
            try:
                self._stack.enter_context(gpu_lock.alone_on(device, print, wait=False))
                return
            except InputError:
                yield Note("" if told else f"{self.place}: another sweep measures there; waiting for its end.")
                told = True
                time.sleep(gpu_lock.POLL_S)
