"""Nodes: what devices and versions they have, and whether their rows may stand in one table."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tflabench.bench import machine
from tflabench.bench.machine import Machine
from tflabench.bench.provenance import source_hash
from tflabench.implementations import registry
from tflabench.problem import DeviceKind, InputError


@dataclass(frozen=True)
class NodeFacts:
    """The devices and versions of a node.

    Attributes:
        versions: of the sources, Python and packages, by name.
        devices: its GPUs, or its CPU alone.
    """

    versions: Mapping[str, str]
    devices: tuple[Machine, ...]


def versions_here() -> dict[str, str]:
    """Return what decides a number on a given device: sources, Python and packages, by name."""
    return {"source_hash": source_hash(), "Python": platform.python_version(), **registry.package_versions()}


def facts_here(kind: DeviceKind, plugins: Sequence[str] = ()) -> NodeFacts:
    """Return the facts of this node.

    Raises:
        InputError: a plugin cannot be used here.
    """
    for plugin in plugins:
        registry.plug_in(plugin)
    devices = machine.gpus_of_node() if kind == "cuda" else [machine.detect("cpu")]
    return NodeFacts(versions_here(), tuple(devices))


def difference(found: Mapping[str, str], wanted: Mapping[str, str]) -> str | None:
    """Return in what versions differ from those wanted, in words; None where they do not."""
    names = [name for name in {**wanted, **found} if found.get(name) != wanted.get(name)]
    said = [f"{name} {found.get(name, 'missing')}, not {wanted.get(name, 'missing')}" for name in names]
    return "; ".join(said) or None


def require_alike(differences: Mapping[str, str | None]) -> None:
    """Refuse nodes by name whose versions differ from those here.

    Raises:
        InputError: there is one.
    """
    said = [f"node {name} has {different}" for name, different in sorted(differences.items()) if different]
    if said:
        raise InputError(
            f"{'; '.join(said)}: install the same everywhere, or give --allow-mixed-versions, which marks their rows"
        )
