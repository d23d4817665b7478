"""Presets: sweeps by name, a TOML file each in this folder."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from tflabench.implementations import registry
from tflabench.implementations.adapter import Implementation
from tflabench.problem import InputError
from tflabench.selection.axes import Values, overlay, parse_axes


@dataclass(frozen=True)
class Group:
    """Implementations that a preset runs over the same axes.

    Attributes:
        axes: values by axis.
        impl, without: name patterns of those that belong to it, and of those that do not.
        family: families that belong to it; empty for all.
        device: "cuda" or "cpu" where it is meant for one kind of device.
        stage: stages are measured one after the other, in the order in which the preset first names them; a point that
            several ask for belongs to the first.
    """

    axes: Mapping[str, Values]
    impl: str = "*"
    without: str = ""
    family: Sequence[str] = ()
    device: str | None = None
    stage: str = ""

    def fits(self, impl: Implementation) -> bool:
        named = registry.matches(impl, self.impl) and not registry.matches(impl, self.without)
        return named and (not self.family or impl.family in self.family)


@dataclass(frozen=True)
class Preset:
    """A sweep by name; `protocol` names the one to use by kind of device, where it is not the standard one."""

    name: str
    title: str
    groups: tuple[Group, ...]
    protocol: Mapping[str, str]


def preset_names() -> list[str]:
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in files("tflabench.selection.presets").iterdir()
        if entry.name.endswith(".toml")
    )


def load_preset(name: str) -> Preset:
    """Return the preset of this name.

    Raises:
        InputError: no such preset, with the nearest names.
    """
    if name not in preset_names():
        raise InputError(f"unknown preset {name!r}; {registry.nearest(name, preset_names())}")
    table = tomllib.loads((files("tflabench.selection.presets") / f"{name}.toml").read_text())
    shared = parse_axes(table.get("axes", {}))
    groups: list[Group] = []
    for entry in table["group"]:
        settings = {key: entry.pop(key) for key in ("impl", "without", "family", "device", "stage") if key in entry}
        groups.append(Group(overlay(shared, parse_axes(entry)), **settings))
    return Preset(name, table["title"], tuple(groups), table.get("protocol", {}))
