"""The devices of a sweep: one of this machine, several GPUs of it, or those of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from tflabench.bench import machine
from tflabench.bench.events import Stations
from tflabench.bench.machine import Machine
from tflabench.bench.protocol import Rules
from tflabench.problem import DeviceKind, InputError, one_of
from tflabench.theory import hardware

EXECUTORS = ("local", "ray")
ALL = "all"
MOST_GPUS = 1024  # of one machine: more is a slip


@dataclass(frozen=True)
class Devices:
    """A wish for devices.

    Attributes:
        device: "auto", "cuda" or "cpu".
        kinds: of GPU. A Ray cluster measures each comparison on each of them; elsewhere they must be this machine's.
        gpus: how many GPUs of this machine, or "all"; None for the first device alone.
        executor: "local", or "ray" for a Ray cluster, which is at `ray_address`.
        mixed_versions: whether its nodes may have other versions.

    Raises:
        InputError: an option means nothing, or nothing together with the others.
    """

    device: str = "auto"
    kinds: tuple[str, ...] = ()
    gpus: int | str | None = None
    executor: str = "local"
    ray_address: str | None = None
    mixed_versions: bool = False

    def __post_init__(self) -> None:
        one_of("--device", self.device, ("auto", "cuda", "cpu"))
        one_of("--executor", self.executor, EXECUTORS)
        if self.kinds and self.device == "cpu":
            raise InputError(f"--gpu {','.join(self.kinds)} and --device cpu are both given: give one of them")
        if self.executor == "ray" and self.gpus is not None:
            raise InputError("--gpus and --executor ray are both given: Ray takes all GPUs of its nodes")
        for option, given in (("--ray-address", self.ray_address), ("--allow-mixed-versions", self.mixed_versions)):
            if given and self.executor != "ray":
                raise InputError(f"{option} is given without --executor ray: add that, or leave it out")
        if self.gpus is None:
            return
        if self.device == "cpu":
            raise InputError(f"--gpus {self.gpus} and --device cpu are both given: give one of them")
        text = str(self.gpus)
        if text != ALL and not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_GPUS):
            raise InputError(f"--gpus is {text!r}: it must be a number of GPUs from 1 to {MOST_GPUS}, or {ALL}")

    @contextmanager
    def open(self, plugins: Sequence[str], note: Callable[[str], None]) -> Iterator[Fleet]:
        """Give the devices, as long as the block lasts.

        Args:
            plugins: that every node must be able to use.
            note: takes lines for the user.

        Raises:
            InputError: there are no such devices, or they have other versions.
        """
        if self.executor == "ray":
            with self._on_ray(plugins, note) as fleet:
                yield fleet
            return
        here = self.here()
        if self.gpus is None:
            yield Fleet.one(here)
            return
        from tflabench.bench.host import Host

        gpus = list(machine.gpus())
        if not gpus:
            raise InputError("--gpus is given, and this machine shows no NVIDIA GPU (nvidia-smi)")
        if self.gpus != ALL and int(self.gpus) > len(gpus):
            raise InputError(f"--gpus is {self.gpus}, and this machine shows {len(gpus)}")
        gpus = gpus[: None if self.gpus == ALL else int(self.gpus)]
        words = ", ".join(gpu.name for gpu in gpus)
        yield Fleet("cuda", _by_kind([(None, gpus)], ()), len(gpus), words, partial(Host, gpus))

    def here(self) -> Machine:
        """Return the first device of this machine.

        Raises:
            InputError: it has none such, or another kind of GPU is wished for.
        """
        here = machine.detect(self.device)
        for kind in self.kinds:
            wanted = hardware.find(kind)
            if here.kind != "cuda" or hardware.from_device_name(here.name) != wanted:
                raise InputError(f"--gpu is {kind!r}, and this machine has {here.name}: leave it out, or add --dry-run")
        return here

    @contextmanager
    def _on_ray(self, plugins: Sequence[str], note: Callable[[str], None]) -> Iterator[Fleet]:
        from tflabench.bench import on_ray

        on_ray.require_ray()
        note("Asking the nodes of the Ray cluster what they are ...")
        with on_ray.connected(self.ray_address):
            kind = on_ray.device_kind(self.device)
            nodes = on_ray.find_nodes(kind, plugins, self.mixed_versions)
            by_kind = _by_kind([(node.kind, node.devices) for node in nodes], self.kinds)
            usable = [node for node in nodes if not self.kinds or node.kind in self.kinds]
            for node in usable:
                if node.mixed_versions:
                    note(f"Rows of node {node.name} are marked: it has {node.mixed_versions}.")
            words = ", ".join(f"{node.name} ({node.slots} x {node.devices[0].name})" for node in usable)
            count = sum(node.slots for node in usable)
            yield Fleet(kind, by_kind, count, words, partial(on_ray.OnRay, usable, kind))


@dataclass(frozen=True)
class Fleet:
    """The devices of a sweep, as they are.

    Attributes:
        by_kind: one of each, by its name, by kind; the only kind is None where no kind is wished for.
        count: of all devices.
        words: what they are; "" for one alone.
        make: makes what measures on them, of rules and the id of a sweep.
    """

    kind: DeviceKind
    by_kind: Mapping[str | None, Mapping[str, Machine]]
    count: int
    words: str
    make: Callable[[Rules, str], Stations]

    @classmethod
    def one(cls, here: Machine) -> Fleet:
        """Return a device of this process alone."""
        from tflabench.bench.station import Station

        return cls(here.kind, {None: {here.name: here}}, 1, "", partial(Station, here))

    @property
    def devices(self) -> dict[str, Machine]:
        """One of each, by its name."""
        return {name: device for devices in self.by_kind.values() for name, device in devices.items()}


def _by_kind(
    there: Sequence[tuple[str | None, Sequence[Machine]]], kinds: Sequence[str]
) -> dict[str | None, dict[str, Machine]]:
    """Return one device of each name by the kind wished for, from the kinds and devices of nodes.

    Raises:
        InputError: no node has a kind that is wished for.
    """
    if not kinds:
        return {None: {device.name: device for _, devices in there for device in devices}}
    by_kind: dict[str | None, dict[str, Machine]] = {}
    for kind in kinds:
        by_kind[kind] = {device.name: device for of, devices in there if of == kind for device in devices}
        if not by_kind[kind]:
            names = ", ".join(sorted({str(of) for of, _ in there if of})) or "no GPU"
            raise InputError(f"--gpu is {kind!r}, which no node has: there is {names}")
    return by_kind
