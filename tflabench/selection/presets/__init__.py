"""Presets: sweeps by name, a TOML file each in this folder."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, Field, ValidationError
from pydantic.dataclasses import dataclass

from tflabench.implementations import registry
from tflabench.implementations.adapter import Family, Implementation
from tflabench.problem import DeviceKind, InputError, reading
from tflabench.selection.axes import AXES, Values, overlay, parse_axes, resolve


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
        comparison: its points are compared with those of groups with the same words, and no others.
    """

    axes: Mapping[str, Values]
    impl: str = "*"
    without: str = ""
    family: Sequence[Family] = ()
    device: DeviceKind | None = None
    stage: str = ""
    comparison: str = ""

    def fits(self, impl: Implementation) -> bool:
        """Return whether an implementation belongs to the group."""
        named = registry.matches(impl, self.impl) and not registry.matches(impl, self.without)
        return named and (not self.family or impl.family in self.family)


SETTINGS = {field.name for field in fields(cast("Any", Group))} - {"axes"}


@dataclass(frozen=True)
class Preset:
    """A sweep by name.

    Attributes:
        protocol: the name of the one to use by kind of device, where it is not the standard one.
        times: that are taken of each point (see `bench.protocol.TIMES`).
    """

    name: str
    title: str
    groups: tuple[Group, ...]
    protocol: Mapping[str, str]
    times: Sequence[str] = ("cold",)


class PresetFile(BaseModel):
    """A file of TOML: its fields, of which `title` and `group` must be there; `axes` are those that groups share."""

    title: str = Field(min_length=1)
    group: list[dict[str, Any]] = Field(min_length=1)
    axes: dict[str, Any] = {}
    protocol: dict[DeviceKind, str] = {}
    times: list[str] = ["cold"]


def preset_names() -> list[str]:
    """Return the names of the bundled presets, sorted."""
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in files("tflabench.selection.presets").iterdir()
        if entry.name.endswith(".toml")
    )


def load_preset(name: str) -> Preset:
    """Return the preset of this name, or that of a TOML or CSV file.

    A TOML file has a `title`, `axes` that all groups share, and a list of groups: `[[group]]` with the fields of
    `Group` and its axes. `protocol = { cpu = "short" }` names other rules of measuring by kind of device, and
    `times = ["cold", "graph"]` which times are taken. A CSV file
    names axes, and fields of `Group`, in its first line; each further line is a shape, and a group. An empty cell is
    not set.

    Args:
        name: of a bundled preset, or the path of a file that ends in .toml or .csv.

    Raises:
        InputError: no such preset, with the nearest names; or a file that cannot be read, or that is no preset.
    """
    if name.endswith((".toml", ".csv")):
        return _of_file(Path(name))
    if name not in preset_names():
        hint = f"{registry.nearest(name, preset_names())}; a file must end in .toml or .csv"
        raise InputError(f"unknown preset {name!r}; {hint}")
    table = tomllib.loads((files("tflabench.selection.presets") / f"{name}.toml").read_text(encoding="utf-8"))
    return _preset(name, table)


def _of_file(path: Path) -> Preset:
    with reading(f"preset {path}", "TOML or CSV"):
        text = path.read_text(encoding="utf-8-sig")
        return _of_shapes(path.stem, text) if path.suffix == ".csv" else _preset(path.stem, tomllib.loads(text))


def _of_shapes(name: str, text: str) -> Preset:
    """Return the preset of a CSV file, a shape a line; InputError names the line that is none."""
    reader = csv.DictReader(text.splitlines(), restval=None, skipinitialspace=True, strict=True)
    groups: list[Group] = []
    known = sorted({*AXES, *SETTINGS})
    if unknown := [field for field in reader.fieldnames or () if field.strip() not in known]:
        raise InputError(f"line 1: unknown axis {unknown[0]!r}; {registry.nearest(unknown[0], known)}")
    for cells in reader:
        try:
            if None in cells or None in cells.values():
                raise InputError(
                    f"it has not as many cells as the first line, which has {len(reader.fieldnames or ())}"
                )
            entry = {field.strip(): cell.strip() for field, cell in cells.items() if cell.strip()}
            group = _preset(name, {"title": name, "group": [entry]}).groups[0]
            resolve({axis: values[0] for axis, values in group.axes.items()})
        except InputError as error:
            raise InputError(f"line {reader.line_num}: {error}") from None
        groups.append(group)
    if not groups:
        raise InputError(
            "it has no shapes: its first line must name axes, such as seq_len,d_qk,d_hv, and each other a shape"
        )
    return Preset(name, f"Shapes of {name}", tuple(groups), {})


def _preset(name: str, table: Mapping[str, Any]) -> Preset:
    """Return the preset that a table describes; InputError where something is missing, unknown, or of another type."""
    if unknown := [field for field in table if field not in PresetFile.model_fields]:
        hint = registry.nearest(unknown[0], PresetFile.model_fields)
        raise InputError(f"it has an unknown field {unknown[0]!r}; {hint}")
    place = "it"
    try:
        file = PresetFile.model_validate(table)
        shared = overlay({}, parse_axes(file.axes))
        groups: list[Group] = []
        for number, entry in enumerate(file.group, 1):
            place = f"group {number}"
            settings = {key: value for key, value in entry.items() if key in SETTINGS}
            axes = {key: value for key, value in entry.items() if key not in SETTINGS}
            groups.append(Group(overlay(shared, parse_axes(axes)), **settings))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"] if part != "[key]")
        if first["type"] == "missing":
            raise InputError(f"{place} has no {field}, which must be there") from None
        raise InputError(f"{place} has {field} = {first['input']!r}: {first['msg']}") from None
    return Preset(name, file.title, tuple(groups), cast("Mapping[str, str]", file.protocol), file.times)
