"""Nodes of a Ray cluster: one actor of Ray has one device. Ray is imported only where it is asked for."""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from tflabench.bench import machine
from tflabench.bench.events import Began, Ended, Event, Fault, Location, Stations, Task
from tflabench.bench.host import SILENT_S
from tflabench.bench.machine import Machine, source_hash
from tflabench.bench.protocol import Rules
from tflabench.bench.station import measured
from tflabench.implementations import registry
from tflabench.problem import DeviceKind, InputError

NODE_LABEL = "ray.io/node-id"
ACCELERATOR = "accelerator_type:"  # before the name of a kind among the resources of a node
CONNECT_S = 10.0
PROBE_S = 120.0  # until a node has said what it has
LOOK_S = 2.0  # between looks at which nodes are there
AT_ONCE = 20  # events taken of one task before the others have their turn
OBJECT_BYTES = 200 << 20  # for what tasks send, of a Ray that is started here
Facts = tuple[dict[str, str], tuple[Machine, ...]]  # versions by name, and the GPUs of a node or its CPU alone


@dataclass(frozen=True)
class Node:
    """A node that a sweep may use.

    Attributes:
        kind: of its GPUs, as Ray's `accelerator_type`; None where it has none.
        slots: tasks that it may have at a time: its GPUs, or 1 for its CPU.
        cpus: as Ray counts them.
        devices: its GPUs, or its CPU alone.
        mixed_versions: as the column of that name.
    """

    id: str
    name: str
    kind: str | None
    slots: int
    cpus: float
    devices: tuple[Machine, ...]
    mixed_versions: str | None = None


def require_ray() -> None:
    """Raise InputError where Ray is not installed."""
    if find_spec("ray") is None:
        raise InputError("--executor ray needs Ray, which is not installed: pip install '.[ray]' in a checkout")


@contextlib.contextmanager
def connected(address: str | None = None) -> Iterator[None]:
    """Be connected to a Ray cluster within the block; what Ray says of its workers goes to stderr.

    It is that of `address`; without one that which runs on this machine, or else one that is started here.

    Raises:
        InputError: Ray is not installed, or no cluster answers at the address.
    """
    require_ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    quietly: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    with contextlib.redirect_stdout(sys.stderr):
        try:
            if address is not None:
                _knock(address)
            try:
                ray.init(address=address or "auto", **quietly)
            except ConnectionError:
                if address is not None:
                    raise
                ray.init(address="local", include_dashboard=False, object_store_memory=OBJECT_BYTES, **quietly)
        except (OSError, RuntimeError, ValueError, SystemExit) as error:
            reason = " ".join(str(error).split())[:200]
            where = "the default" if address is None else repr(address)
            raise InputError(f"--ray-address is {where}, and no Ray cluster answers there: {reason}") from None
        try:
            yield
        finally:
            ray.shutdown()


def device_kind(device: str) -> DeviceKind:
    """Return the kind of device to measure on: for "auto" GPUs where a node has one.

    Raises:
        InputError: CUDA asked for where no node has a GPU.
    """
    there = any(_count(node, "GPU") for node in _alive())
    if device == "cuda" and not there:
        raise InputError("--device is cuda, and no node of this Ray cluster has a GPU: use --device cpu")
    return "cuda" if there and device != "cpu" else "cpu"


def find_nodes(kind: DeviceKind, plugins: Sequence[str], mixed: bool) -> list[Node]:
    """Return the nodes that have devices of a kind, having asked each what it is.

    Args:
        plugins: that every node must be able to use.
        mixed: whether nodes may have other sources or versions than there are here.

    Raises:
        InputError: a node does not answer, cannot measure, or has other versions and `mixed` is False.
    """
    able = [node for node in _alive() if _count(node, "GPU" if kind == "cuda" else "CPU")]
    answers = _probe({node["NodeID"]: _name(node) for node in able}, kind, plugins)
    here = versions_here()
    nodes = [
        Node(
            id=node["NodeID"],
            name=_name(node),
            kind=_accelerator(node),
            slots=_count(node, "GPU") if kind == "cuda" else 1,
            cpus=node["Resources"].get("CPU", 0.0),
            devices=answers[node["NodeID"]][1],
            mixed_versions=difference(answers[node["NodeID"]][0], here),
        )
        for node in able
        if node["NodeID"] in answers
    ]
    if not nodes:
        raise InputError("this Ray cluster has no node with a CPU to measure on: start Ray with --num-cpus")
    if not mixed:
        require_alike({node.name: node.mixed_versions for node in nodes})
    return sorted(nodes, key=lambda node: node.name)


def versions_here() -> dict[str, str]:
    """Return what decides a number on a given device: sources, Python and packages, by name."""
    return {"source_hash": source_hash(), "Python": platform.python_version(), **registry.package_versions()}


def difference(versions: Mapping[str, str], wanted: Mapping[str, str]) -> str | None:
    """Return in what versions differ from those wanted, in words; None where they do not."""
    names = [name for name in {**wanted, **versions} if versions.get(name) != wanted.get(name)]
    return "; ".join(f"{n} {versions.get(n, 'missing')}, not {wanted.get(n, 'missing')}" for n in names) or None


def require_alike(differences: Mapping[str, str | None]) -> None:
    """Refuse nodes by name whose versions differ from those here.

    Raises:
        InputError: there is one.
    """
    lines = [f"node {name} has {different}" for name, different in sorted(differences.items()) if different]
    if lines:
        raise InputError(
            f"{'; '.join(lines)}: install the same everywhere, or give --allow-mixed-versions, which marks their rows"
        )


class OnRay(Stations):
    """Measures comparisons on the nodes of Ray, an actor a device, as `events.Stations` says.

    An actor has its GPU, or all CPUs of its node, for itself, and a station from the first comparison to the last. It
    begins once Ray has found room for it, and again after a fault.

    Args:
        nodes: those that it may use.
        kind: of device.
        sweep_id: of all of the sweep.
    """

    silent_s = SILENT_S

    def __init__(
        self,
        nodes: Sequence[Node],
        kind: DeviceKind,
        rules: Rules,
        sweep_id: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        import ray

        self._kind: DeviceKind = kind
        self._rules, self._sweep_id, self._clock = rules, sweep_id, clock
        self._actor_class = ray.remote(max_restarts=0, max_task_retries=0)(_StationActor)
        self._slots = [_Slot(node) for node in nodes for _ in range(node.slots)]
        self._alive, self._looked_at = {node.id for node in nodes}, clock()

    def possible(self, task: Task) -> bool:
        """Return whether there is a node that may take it."""
        return any(self._may_take(slot, task) for slot in self._slots)

    def room(self, task: Task) -> bool:
        """Return whether a device that may take it is ready and free."""
        return self._free_for(task) is not None

    def start(self, task: Task) -> None:
        """Give it to the first device that is free for it."""
        slot = self._free_for(task)
        assert slot is not None
        slot.task, slot.events = task, slot.actor.measure.options(num_returns="streaming").remote(pickle.dumps(task))

    def wait(self, timeout_s: float) -> list[tuple[Task | None, Event]]:
        """Return what has come of tasks, as `Stations` says; begin the actors that are lacking."""
        import ray

        self._look()
        waited = {key: slot for slot in self._slots if (key := slot.events or (not slot.ready and slot.begun))}
        if not waited:
            time.sleep(timeout_s)
            return []
        ready, rest = ray.wait(list(waited), timeout=timeout_s, fetch_local=False)
        if ready and rest:
            ready += ray.wait(rest, num_returns=len(rest), timeout=0, fetch_local=False)[0]
        return [(task, event) for key in ready for task, event in self._received(waited[key])]

    def stop(self, task: Task) -> None:
        """End the actor that has it."""
        for slot in self._slots:
            if slot.task is task:
                self._end(slot)

    def close(self) -> None:
        """End all actors."""
        for slot in self._slots:
            self._end(slot)

    def _may_take(self, slot: _Slot, task: Task) -> bool:
        return slot.node.id in self._alive and task.kind in (None, slot.node.kind)

    def _free_for(self, task: Task) -> _Slot | None:
        """Return a device that is ready and free: where the task may have others, not one of a node where it failed."""
        failed = {fault.location.node for fault in task.faults if fault.location}
        able = [slot for slot in self._slots if self._may_take(slot, task)]
        elsewhere = [slot for slot in able if slot.node.name not in failed] or able
        return next((slot for slot in elsewhere if slot.ready and slot.task is None), None)

    def _look(self) -> None:
        """See which nodes are there, and begin an actor for each device of theirs that has none."""
        if self._clock() - self._looked_at >= LOOK_S:
            self._alive, self._looked_at = {node["NodeID"] for node in _alive()}, self._clock()
        for slot in self._slots:
            if slot.actor is None and slot.node.id in self._alive:
                self._begin(slot)

    def _begin(self, slot: _Slot) -> None:
        node = slot.node
        options: dict[str, Any] = {"num_cpus": node.cpus}
        if self._kind == "cuda":
            options = {"num_gpus": 1, "num_cpus": 1}
        left_s = self._rules.stop_at - self._clock()  # clocks of nodes differ
        rules, threads = replace(self._rules, stop_at=left_s), os.environ.get("OMP_NUM_THREADS")
        actor: Any = self._actor_class.options(**options, label_selector={NODE_LABEL: node.id})
        slot.actor = actor.remote(self._kind, rules, self._sweep_id, node.name, node.mixed_versions, threads)
        slot.begun = slot.actor.is_ready.remote()

    def _received(self, slot: _Slot) -> list[tuple[Task, Event]]:
        """Return what a device that is ready has yielded; an `Ended` or a `Fault` is the last of it."""
        import ray
        from ray.exceptions import RayError

        task, events = slot.task, list[Event]()
        try:
            if task is None:
                slot.ready = ray.get(slot.begun)
                return []
            while not events or (len(events) < AT_ONCE and ray.wait([slot.events], timeout=0, fetch_local=False)[0]):
                event: Any = ray.get(next(slot.events))
                events.append(event)
                if isinstance(event, Began):
                    slot.location = event.location
                if isinstance(event, Ended | Fault):
                    break
        except StopIteration:
            events.append(Fault("crashed", "its Ray worker ended before the comparison did", slot.location))
        except RayError as error:
            events.append(Fault(*self._fault(error, slot), slot.location))
        if isinstance(events[-1], Fault):
            self._end(slot)
        elif isinstance(events[-1], Ended):
            slot.task = slot.events = None
        return [(task, event) for event in events] if task else []

    def _fault(self, error: Exception, slot: _Slot) -> tuple[str, str]:
        """Return the status and the reason of a task that Ray could not bring to its end."""
        from ray import exceptions

        if isinstance(error, exceptions.OutOfMemoryError):
            return "oom", "Ray ended it, for its node was short of memory"
        if isinstance(error, exceptions.RayTaskError):
            return "error", _last_line(error)
        if isinstance(error, exceptions.ActorUnavailableError):  # Ray lists a node for some seconds after it has left
            return "crashed", "its node cannot be reached"
        if slot.node.id not in {node["NodeID"] for node in _alive()}:
            return "crashed", "its node left"
        return "crashed", f"its Ray worker died ({type(error).__name__})"

    def _end(self, slot: _Slot) -> None:
        import ray
        from ray.exceptions import RayError

        actor = slot.actor
        slot.task = slot.events = slot.actor = slot.begun = slot.location = None
        slot.ready = False
        if actor is not None:
            with contextlib.suppress(RayError, ValueError):
                ray.kill(actor)


@dataclass(eq=False)
class _Slot:
    """A device of a node, and its actor.

    Attributes:
        begun: Ray's reference to the answer that the actor gives once it runs.
        ready: whether it has come.
        task: that it measures, of which `events` come.
        location: where it measures, once it has said so.
    """

    node: Node
    actor: Any = None
    begun: Any = None
    ready: bool = False
    task: Task | None = None
    events: Any = None
    location: Location | None = None


class _StationActor:
    """Measures tasks on the node and the GPU that Ray has chosen.

    Args:
        rules: with the seconds that are left as `stop_at`.
        node, mixed_versions: its name, and what is behind the column.
        threads: OMP_NUM_THREADS of the process that drives.
    """

    def __init__(
        self,
        kind: DeviceKind,
        rules: Rules,
        sweep_id: str,
        node: str,
        mixed_versions: str | None,
        threads: str | None,
    ) -> None:
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets one by the CPUs of an actor
        if threads:
            os.environ["OMP_NUM_THREADS"] = threads
        rules = replace(rules, stop_at=time.monotonic() + rules.stop_at)
        self._tasks: deque[bytes] = deque()
        tasks = map(pickle.loads, iter(self._tasks.popleft, None))
        self._events = measured(tasks, kind, rules, sweep_id, node, mixed_versions)

    def is_ready(self) -> bool:
        """Return that it runs."""
        return True

    def measure(self, task: bytes) -> Iterator[Event]:
        """Yield the events of a task, pickled, for it can be read only once the plugins are known."""
        self._tasks.append(task)
        for event in self._events:
            yield event
            if isinstance(event, Ended):
                return


def _probe(names: Mapping[str, str], kind: DeviceKind, plugins: Sequence[str]) -> dict[str, Facts]:
    """Return versions and devices of nodes by their id, without those that leave before they answer."""
    import ray
    from ray.exceptions import NodeDiedError, RayError, TaskUnschedulableError

    probe = ray.remote(num_cpus=0, max_retries=0)(_facts_of_node)
    pending = {id_: probe.options(label_selector={NODE_LABEL: id_}).remote(kind, list(plugins)) for id_ in names}
    facts: dict[str, Facts] = {}
    for id_, answer in pending.items():
        try:
            of_node = ray.get(answer, timeout=PROBE_S)
        except (NodeDiedError, TaskUnschedulableError):  # for a while Ray still lists a node that has left
            continue
        except RayError as error:
            raise InputError(f"node {names[id_]} cannot measure: {_last_line(error)}") from None
        if isinstance(of_node, str):
            raise InputError(f"node {names[id_]} cannot measure: {of_node}")
        facts[id_] = of_node
    return facts


def _facts_of_node(kind: DeviceKind, plugins: Sequence[str]) -> Facts | str:
    """Return the versions and the devices of the node that this runs on, or why it cannot measure."""
    try:
        for plugin in plugins:
            registry.plug_in(plugin)
        devices = machine.gpus_of_node() if kind == "cuda" else [machine.detect("cpu")]
    except InputError as error:
        return str(error)
    return (versions_here(), tuple(devices)) if devices else "nvidia-smi shows no NVIDIA GPU there"


def _knock(address: str) -> None:
    """Raise OSError where nothing listens at HOST:PORT; Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and "/" not in address and port.isdigit():
        socket.create_connection((host, int(port)), CONNECT_S).close()


def _alive() -> list[dict[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _name(node: Mapping[str, Any]) -> str:
    """Return the name that a node was given, else that of its host."""
    given, host = node.get("NodeName"), node["NodeManagerHostname"]
    return given if given and given != node["NodeManagerAddress"] else host


def _count(node: Mapping[str, Any], resource: str) -> int:
    return int(node["Resources"].get(resource, 0))


def _accelerator(node: Mapping[str, Any]) -> str | None:
    names = [name.removeprefix(ACCELERATOR) for name in node["Resources"] if name.startswith(ACCELERATOR)]
    return names[0] if names else None


def _last_line(error: Exception) -> str:
    """Return what an exception says at last: the exception of a task comes with its traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
