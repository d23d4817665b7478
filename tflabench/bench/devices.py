"""The devices of a sweep: the first of this machine, or several of its GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tflabench.bench import machine
from tflabench.bench.events import Stations
from tflabench.bench.machine import Machine
from tflabench.bench.protocol import Rules
from tflabench.problem import InputError, one_of
from tflabench.theory import hardware

ALL = "all"
MOST_GPUS = 1024  # of one machine: more is a slip


@dataclass(frozen=True)
class Devices:
    """A wish for devices.

    Attributes:
        device: "auto", "cuda" or "cpu".
        gpu: the kind of GPU that this machine must have; None for any.
        gpus: how many GPUs of this machine, or "all"; None for the first device alone.

    Raises:
        InputError: an option means nothing, or nothing together with the others.
    """

    device: str = "auto"
    gpu: str | None = None
    gpus: int | str | None = None

    def __post_init__(self) -> None:
        one_of("--device", self.device, ("auto", "cuda", "cpu"))
        for option, given in (("--gpu", self.gpu), ("--gpus", self.gpus)):
            if given is not None and self.device == "cpu":
                raise InputError(f"{option} {given} and --device cpu are both given: give one of them")
        if self.gpus is None:
            return
        text = str(self.gpus)
        if text != ALL and not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_GPUS):
            raise InputError(f"--gpus is {text!r}: it must be a number of GPUs from 1 to {MOST_GPUS}, or {ALL}")

    def fleet(self) -> Fleet:
        """Return the devices as they are.

        Raises:
            InputError: there are no such devices, or they are of several kinds.
        """
        here = self.here()
        if self.gpus is None:
            return Fleet.one(here)
        from tflabench.bench.host import Host

        gpus = list(machine.gpus())
        if not gpus:
            raise InputError("--gpus is given, and this machine shows no NVIDIA GPU (nvidia-smi)")
        if self.gpus != ALL and int(self.gpus) > len(gpus):
            raise InputError(f"--gpus is {self.gpus}, and this machine shows {len(gpus)}")
        gpus = gpus[: None if self.gpus == ALL else int(self.gpus)]
        names = list(dict.fromkeys(gpu.name for gpu in gpus))
        if len(names) > 1:
            kinds = " and ".join(names)
            raise InputError(f"--gpus is {self.gpus}, which takes {kinds}: choose one kind by CUDA_VISIBLE_DEVICES")
        return Fleet(gpus[0], len(gpus), partial(Host, gpus))

    def here(self) -> Machine:
        """Return the first device of this machine.

        Raises:
            InputError: it has none such, or another kind of GPU is wished for.
        """
        here = machine.detect(self.device)
        if self.gpu is not None:
            wanted = hardware.find(self.gpu)
            if here.kind != "cuda" or hardware.from_device_name(here.name) != wanted:
                raise InputError(
                    f"--gpu is {self.gpu!r}, and this machine has {here.name}: leave it out, or add --dry-run"
                )
        return here


@dataclass(frozen=True)
class Fleet:
    """The devices of a sweep, as they are.

    Attributes:
        machine: the first of them, of whose kind all are.
        make: makes what measures on them, of rules and the id of a sweep.
    """

    machine: Machine
    count: int
    make: Callable[[Rules, str], Stations]

    @classmethod
    def one(cls, here: Machine) -> Fleet:
        """Return a device of this process alone."""
        from tflabench.bench.station import Station

        return cls(here, 1, partial(Station, here))
