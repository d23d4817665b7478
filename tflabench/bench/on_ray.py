"""Nodes of a Ray cluster: one task of Ray measures one comparison. Ray is imported only where it is asked for."""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from tflabench.bench import machine
from tflabench.bench.events import Began, Ended, Event, Fault, Location, Stations, Task
from tflabench.bench.host import SILENT_S
from tflabench.bench.machine import Machine
from tflabench.bench.provenance import source_hash
from tflabench.bench.rules import Rules
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
Generator = Any  # Ray's ObjectRefGenerator, which types do not know
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
    """Measures comparisons as tasks of Ray, as `events.Stations` says.

    Ray finds a free GPU for each. A task has a process of its own, and its GPU, or all CPUs of its node, for itself.

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
        self._nodes = {node.id: node for node in nodes}
        self._rules, self._sweep_id, self._clock = rules, sweep_id, clock
        self._function = ray.remote(max_calls=1, max_retries=0, num_returns="streaming")(_measured_on_node)
        self._submitted: dict[Generator, _Submitted] = {}
        self._alive, self._looked_at = set(self._nodes), clock()

    def possible(self, task: Task) -> bool:
        """Return whether there is a node that may take it."""
        return bool(self._for(task))

    def room(self, task: Task) -> bool:
        """Return whether fewer tasks are with Ray than there are devices for it."""
        return self._choice(task) is not None

    def start(self, task: Task) -> None:
        """Give it to Ray, for a node on which it has not failed where there is one."""
        choice = self._choice(task)
        assert choice is not None
        pool, nodes = choice
        if self._kind == "cuda":
            options: dict[str, Any] = {"num_gpus": 1, "num_cpus": 1, "accelerator_type": task.kind}
        else:
            options = {"num_cpus": nodes[0].cpus}
        ids = tuple(node.id for node in nodes)
        options["label_selector"] = {NODE_LABEL: f"in({','.join(ids)})"}
        left_s = self._rules.stop_at - self._clock()  # clocks of nodes differ
        names = {node.id: (node.name, node.mixed_versions) for node in self._nodes.values()}
        rules, threads = replace(self._rules, stop_at=left_s), os.environ.get("OMP_NUM_THREADS")
        arguments = (pickle.dumps(task), self._kind, rules, self._sweep_id, names, threads)
        self._submitted[self._function.options(**options).remote(*arguments)] = _Submitted(task, pool, ids)

    def wait(self, timeout_s: float) -> list[tuple[Task | None, Event]]:
        """Return what has come of tasks, as `Stations` says."""
        import ray

        events = self._look()
        if not self._submitted:
            time.sleep(0.0 if events else timeout_s)
            return events
        ready, rest = ray.wait(list(self._submitted), timeout=timeout_s, fetch_local=False)
        if ready and rest:
            ready += ray.wait(rest, num_returns=len(rest), timeout=0, fetch_local=False)[0]
        for generator in ready:
            task = self._submitted[generator].task
            events += [(task, event) for event in self._received(generator)]
        return events

    def stop(self, task: Task) -> None:
        """Cancel it."""
        for generator in [key for key, submitted in self._submitted.items() if submitted.task is task]:
            self._cancel(generator)

    def close(self) -> None:
        """Cancel all tasks."""
        for generator in list(self._submitted):
            self._cancel(generator)

    def _for(self, task: Task) -> list[Node]:
        """Return the nodes that are there and have its kind of GPU."""
        return [node for id_, node in self._nodes.items() if id_ in self._alive and task.kind in (None, node.kind)]

    def _choice(self, task: Task) -> tuple[object, list[Node]] | None:
        """Return a pool of slots of which one is free, and the nodes in it that the task may run on.

        GPUs of one kind are a pool. So are CPUs of as many cores, for a task takes all of its node.
        """
        nodes = self._for(task)
        failed = {fault.location.node for fault in task.faults if fault.location}
        elsewhere = [node for node in nodes if node.name not in failed] or nodes

        def pool_of(node: Node) -> object:
            return task.kind if self._kind == "cuda" else node.cpus

        for pool in dict.fromkeys(map(pool_of, elsewhere)):
            slots = sum(node.slots for node in nodes if pool_of(node) == pool)
            if sum(submitted.pool == pool for submitted in self._submitted.values()) < slots:
                return pool, [node for node in elsewhere if pool_of(node) == pool]
        return None

    def _look(self) -> list[tuple[Task | None, Event]]:
        """See which nodes are there; return faults of tasks that wait for nodes which are not."""
        if self._clock() - self._looked_at < LOOK_S:
            return []
        self._alive, self._looked_at = {node["NodeID"] for node in _alive()}, self._clock()
        lost = [
            (generator, submitted)
            for generator, submitted in self._submitted.items()
            if submitted.location is None and not self._alive.intersection(submitted.nodes)
        ]
        for generator, _ in lost:
            self._cancel(generator)
        return [(submitted.task, Fault("crashed", "its node left before it began")) for _, submitted in lost]

    def _received(self, generator: Generator) -> list[Event]:
        """Return what a task that is ready has yielded; its end, or how it ended otherwise, is the last of it."""
        import ray
        from ray.exceptions import RayError

        submitted, events = self._submitted[generator], list[Event]()
        try:
            while not events or (len(events) < AT_ONCE and ray.wait([generator], timeout=0, fetch_local=False)[0]):
                event: Any = ray.get(next(generator))
                events.append(event)
                if isinstance(event, Began):
                    submitted.location = event.location
                if isinstance(event, Ended | Fault):
                    break
        except StopIteration:
            events.append(Ended())
        except RayError as error:
            events.append(Fault(*self._fault(error, submitted), submitted.location))
        if isinstance(events[-1], Ended | Fault):
            self._submitted.pop(generator, None)
        return events

    def _fault(self, error: Exception, submitted: _Submitted) -> tuple[str, str]:
        """Return the status and the reason of a task that Ray could not bring to its end."""
        from ray import exceptions

        if isinstance(error, exceptions.OutOfMemoryError):
            return "oom", "Ray ended it, for its node was short of memory"
        if isinstance(error, exceptions.RayTaskError):
            return "error", _last_line(error)
        there = {self._nodes[id_].name for node in _alive() if (id_ := node["NodeID"]) in self._nodes}
        left = submitted.location and submitted.location.node not in there
        if left or isinstance(error, exceptions.NodeDiedError):
            return "crashed", "its node left"
        return "crashed", f"its Ray worker died ({type(error).__name__})"

    def _cancel(self, generator: Generator) -> None:
        import ray
        from ray.exceptions import RayError

        self._submitted.pop(generator, None)
        with contextlib.suppress(RayError, ValueError, TypeError):
            ray.cancel(generator, force=True)


@dataclass
class _Submitted:
    """A task that Ray has.

    Attributes:
        pool: which slots it takes one of.
        nodes: ids of those that it may run on.
        location: where it runs, once it does.
    """

    task: Task
    pool: object
    nodes: tuple[str, ...]
    location: Location | None = None


def _measured_on_node(
    task: bytes,
    kind: DeviceKind,
    rules: Rules,
    sweep_id: str,
    nodes: Mapping[str, tuple[str, str | None]],
    threads: str | None,
) -> Iterator[Event]:
    """Measure a task on the node and the GPU that Ray has chosen.

    Args:
        task: pickled, for it can be read only once the plugins are known.
        rules: with the seconds that are left as `stop_at`.
        nodes: by id, the name of a node and its `mixed_versions`.
        threads: OMP_NUM_THREADS of the process that drives.
    """
    import ray

    name, mixed_versions = nodes[ray.get_runtime_context().get_node_id()]
    os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets one by the CPUs of a task
    if threads:
        os.environ["OMP_NUM_THREADS"] = threads
    rules = replace(rules, stop_at=time.monotonic() + rules.stop_at)
    yield from measured(map(pickle.loads, [task]), kind, rules, sweep_id, name, mixed_versions)


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
