"""Nodes of a Ray cluster: one task of Ray measures one comparison. Ray is imported only where it is asked for."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from tflabench.bench.several.nodes import NodeFacts, difference, facts_here, require_alike, versions_here
from tflabench.bench.several.task import Began, Ended, Event, Fault, Place, Station, Task, Terms
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


@dataclass(frozen=True)
class Node:
    """A node that a sweep may use.

    Attributes:
        kind: of its GPUs, as Ray's `accelerator_type`; None where it has none.
        slots: tasks that it may have at a time: its GPUs, or 1 for its CPU.
        cpus: as Ray counts them.
        mixed_versions: as the column of that name.
    """

    id: str
    name: str
    kind: str | None
    slots: int
    cpus: float
    facts: NodeFacts
    mixed_versions: str | None = None

    @property
    def place(self) -> Place:
        """Its first device."""
        return Place(self.name, self.facts.devices[0].name)


def require_ray() -> None:
    """Raise InputError where Ray is not installed."""
    if find_spec("ray") is None:
        raise InputError("--executor ray needs Ray, which is not installed: pip install '.[ray]' in a checkout")


class Cluster:
    """A connection to a Ray cluster, as long as the block lasts.

    It is that of `address`; without one that which runs on this machine, or else one that is started here. What Ray
    says of its workers goes to stderr.

    Raises:
        InputError: Ray is not installed, or no cluster answers at the address.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address, self._open = address, contextlib.ExitStack()

    def __enter__(self) -> Cluster:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            self._connect(self._address)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        ray.shutdown()
        self._open.close()

    def _connect(self, address: str | None) -> None:
        require_ray()
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        quietly: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if address is not None:
                _knock(address)
                ray.init(address=address, **quietly)
                return
            try:
                ray.init(address="auto", **quietly)
            except ConnectionError:
                ray.init(address="local", include_dashboard=False, object_store_memory=OBJECT_BYTES, **quietly)
        except (OSError, RuntimeError, ValueError, SystemExit) as error:
            reason = " ".join(str(error).split())[:200]
            where = "the default" if address is None else repr(address)
            raise InputError(f"--ray-address is {where}, and no Ray cluster answers there: {reason}") from None

    def kind(self, device: str) -> DeviceKind:
        """Return the kind of device to measure on: for "auto" GPUs where a node has one.

        Raises:
            InputError: CUDA asked for where no node has a GPU, or no such device.
        """
        if device not in ("auto", "cuda", "cpu"):
            raise InputError(f"--device is {device!r}: it must be auto, cuda or cpu")
        there = any(_count(node, "GPU") for node in _alive())
        if device == "cuda" and not there:
            raise InputError("--device is cuda, and no node of this Ray cluster has a GPU: use --device cpu")
        return "cuda" if there and device != "cpu" else "cpu"

    def nodes(self, kind: DeviceKind, plugins: Sequence[str], mixed: bool) -> list[Node]:
        """Return the nodes that have devices of a kind, having asked each what it is.

        Args:
            plugins: that every node must be able to use.
            mixed: whether nodes may have other sources or versions than there are here.

        Raises:
            InputError: a node does not answer, cannot measure, or has other versions and `mixed` is False.
        """
        able = [node for node in _alive() if _count(node, "GPU" if kind == "cuda" else "CPU")]
        facts = _ask({node["NodeID"]: _name(node) for node in able}, kind, plugins)
        there = [node for node in able if node["NodeID"] in facts]
        if not there:
            raise InputError("this Ray cluster has no node with a CPU to measure on: start Ray with --num-cpus")
        here = versions_here()
        found = [
            Node(
                id=node["NodeID"],
                name=_name(node),
                kind=_accelerator(node),
                slots=_count(node, "GPU") if kind == "cuda" else 1,
                cpus=node["Resources"].get("CPU", 0.0),
                facts=facts[node["NodeID"]],
                mixed_versions=difference(facts[node["NodeID"]].versions, here),
            )
            for node in there
        ]
        if not mixed:
            require_alike({node.name: node.mixed_versions for node in found})
        return sorted(found, key=lambda node: node.name)


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


def _ask(names: Mapping[str, str], kind: DeviceKind, plugins: Sequence[str]) -> dict[str, NodeFacts]:
    """Return the facts of nodes by their id, without those that leave before they answer."""
    import ray
    from ray.exceptions import NodeDiedError, RayError, TaskUnschedulableError

    probe = ray.remote(num_cpus=0, max_retries=0)(_facts_of_node)
    asked = {id_: probe.options(label_selector={NODE_LABEL: id_}).remote(kind, list(plugins)) for id_ in names}
    found: dict[str, NodeFacts] = {}
    for id_, answer in asked.items():
        try:
            facts = ray.get(answer, timeout=PROBE_S)
        except (NodeDiedError, TaskUnschedulableError):  # for a while Ray still lists a node that has left
            continue
        except RayError as error:
            raise InputError(f"node {names[id_]} cannot measure: {_last_line(error)}") from None
        if isinstance(facts, str):
            raise InputError(f"node {names[id_]} cannot measure: {facts}")
        found[id_] = facts
    return found


def _facts_of_node(kind: DeviceKind, plugins: Sequence[str]) -> NodeFacts | str:
    """Return the facts of the node that this runs on, or why it cannot measure."""
    try:
        facts = facts_here(kind, plugins)
    except InputError as error:
        return str(error)
    return facts if facts.devices else "nvidia-smi shows no NVIDIA GPU there"


def _measured(terms: Terms, nodes: Mapping[str, tuple[str, str | None]], comparison: bytes) -> Iterator[Event]:
    """Measure a comparison on the node and the GPU that Ray has chosen.

    Args:
        nodes: by id, the name of a node and its `mixed_versions`.
        comparison: pickled, for it can be read only once the plugins are known.
    """
    import ray

    name, mixed_versions = nodes[ray.get_runtime_context().get_node_id()]
    _threads_as_in(terms)
    try:
        for plugin in terms.plugins:
            registry.plug_in(plugin)
        with Station(terms, name, mixed_versions) as station:
            yield from station.prepare()
            yield from station.measure(pickle.loads(comparison))
    except InputError as error:
        yield Fault("error", str(error))


def _threads_as_in(terms: Terms) -> None:
    """Take the number of threads that the driver has: Ray sets one by the CPUs of a task."""
    os.environ.pop("OMP_NUM_THREADS", None)
    if terms.threads:
        os.environ["OMP_NUM_THREADS"] = terms.threads


@dataclass
class _Submitted:
    """A task that Ray has.

    Attributes:
        pool: which slots it takes one of.
        nodes: ids of those that it may run on.
        place: where it runs, once it does.
    """

    task: Task
    pool: object
    nodes: tuple[str, ...]
    place: Place | None = None


class OnRay:
    """Measures comparisons as tasks of Ray, as `driver.ComparisonExecutor` says.

    Ray finds a free GPU for each. A task has a process of its own, and its GPU, or all CPUs of its node, for itself.
    """

    def __init__(self, nodes: Sequence[Node], terms: Terms) -> None:
        import ray

        self._nodes, self._terms = {node.id: node for node in nodes}, terms
        self._named = {node.id: (node.name, node.mixed_versions) for node in nodes}
        self._function = ray.remote(max_calls=1, max_retries=0, num_returns="streaming")(_measured)
        self._submitted: dict[Generator, _Submitted] = {}
        self._alive, self._looked_at = set(self._nodes), time.monotonic()

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
        if self._terms.kind == "cuda":
            options: dict[str, Any] = {"num_gpus": 1, "num_cpus": 1, "accelerator_type": task.kind}
        else:
            options = {"num_cpus": nodes[0].cpus}
        ids = tuple(node.id for node in nodes)
        options["label_selector"] = {NODE_LABEL: f"in({','.join(ids)})"}
        generator = self._function.options(**options).remote(self._terms, self._named, pickle.dumps(task.comparison))
        self._submitted[generator] = _Submitted(task, pool, ids)

    def wait(self, timeout_s: float) -> list[tuple[Task, Event]]:
        """Return what has come of tasks, as `ComparisonExecutor` says."""
        import ray

        events = self._look()
        if not self._submitted:
            time.sleep(0.0 if events else timeout_s)
            return events
        ready, _ = ray.wait(list(self._submitted), timeout=timeout_s, fetch_local=False)
        first, *_ = ready or [None]
        if first is None:
            return events
        others = [generator for generator in self._submitted if generator is not first]
        also = ray.wait(others, num_returns=len(others), timeout=0, fetch_local=False)[0] if others else []
        for generator in (first, *also):
            task = self._submitted[generator].task
            events += [(task, event) for event in self._said(generator)]
        return events

    def stop(self, task: Task) -> None:
        """Cancel it."""
        for generator in [one for one, submitted in self._submitted.items() if submitted.task is task]:
            self._cancel(generator)

    def usual_place(self, task: Task) -> Place:
        """Return the first device of its kind."""
        nodes = list(self._nodes.values())
        return next((node for node in nodes if task.kind in (None, node.kind)), nodes[0]).place

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
        failed = {fault.place.node for fault in task.faults if fault.place}
        elsewhere = [node for node in nodes if node.name not in failed] or nodes

        def pool(node: Node) -> object:
            return task.kind if self._terms.kind == "cuda" else node.cpus

        for one in dict.fromkeys(map(pool, elsewhere)):
            slots = sum(node.slots for node in nodes if pool(node) == one)
            if sum(submitted.pool == one for submitted in self._submitted.values()) < slots:
                return one, [node for node in elsewhere if pool(node) == one]
        return None

    def _look(self) -> list[tuple[Task, Event]]:
        """See which nodes are there; return faults of tasks that wait for nodes which are not."""
        if time.monotonic() - self._looked_at < LOOK_S:
            return []
        self._alive, self._looked_at = {node["NodeID"] for node in _alive()}, time.monotonic()
        lost = [
            (generator, submitted)
            for generator, submitted in self._submitted.items()
            if submitted.place is None and not self._alive.intersection(submitted.nodes)
        ]
        for generator, _ in lost:
            self._cancel(generator)
        return [(submitted.task, Fault("crashed", "its node left before it began")) for _, submitted in lost]

    def _said(self, generator: Generator) -> list[Event]:
        """Return what a task that is ready has yielded; its end, or how it ended otherwise, is the last of it."""
        import ray
        from ray.exceptions import RayError

        submitted, events = self._submitted[generator], list[Event]()
        try:
            while not events or (len(events) < AT_ONCE and ray.wait([generator], timeout=0, fetch_local=False)[0]):
                event: Any = ray.get(next(generator))
                events.append(event)
                if isinstance(event, Began):
                    submitted.place = event.place
                if isinstance(event, Fault):
                    break
        except StopIteration:
            events.append(Ended())
        except RayError as error:
            events.append(Fault(*self._fault(error, submitted), submitted.place))
        if events and isinstance(events[-1], Ended | Fault):
            self._submitted.pop(generator, None)
        return events

    def _fault(self, error: Exception, submitted: _Submitted) -> tuple[str, str]:
        """Return the status and the reason of a task that Ray could not bring to its end."""
        from ray import exceptions

        if isinstance(error, exceptions.OutOfMemoryError):
            return "oom", "Ray ended it, for its node was short of memory"
        if isinstance(error, exceptions.RayTaskError):
            return "error", _last_line(error)
        there = {self._named[id_][0] for node in _alive() if (id_ := node["NodeID"]) in self._named}
        left = submitted.place and submitted.place.node not in there
        if left or isinstance(error, exceptions.NodeDiedError):
            return "crashed", "its node left"
        return "crashed", f"its Ray worker died ({type(error).__name__})"

    def _cancel(self, generator: Generator) -> None:
        import ray
        from ray.exceptions import RayError

        self._submitted.pop(generator, None)
        with contextlib.suppress(RayError, ValueError, TypeError):
            ray.cancel(generator, force=True)


def _last_line(error: Exception) -> str:
    """Return what an exception says at last: the exception of a task comes with its traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
