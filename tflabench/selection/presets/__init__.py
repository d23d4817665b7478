"""Presets: sweeps by name, a TOML file each in this folder."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, get_args

from tflabench.implementations import registry
from tflabench.implementations.adapter import Family, Implementation
from tflabench.problem import InputError
from tflabench.selection.axes import Values, overlay, parse_axes, resolve


class Field(NamedTuple):
    """A field of a preset's file: its type, what is expected in words, and whether it must be there."""

    type: type
    expected: str
    required: bool = False


DEVICE_KINDS = ("cuda", "cpu")
TABLE = {
    "title": Field(str, 'a string, such as title = "My sweep"', required=True),
    "group": Field(list, "one [[group]] or more", required=True),
    "axes": Field(dict, 'a table, such as axes = { pass = "both" }'),
    "protocol": Field(dict, 'a table, such as protocol = { cpu = "short" }'),
    "times": Field(list, 'a list, such as times = ["cold", "eager"]'),
}
SETTINGS = {  # of a group, beside its axes
    "impl": Field(str, "patterns of names"),
    "without": Field(str, "patterns of names"),
    "family": Field(list, "a list of families"),
    "device": Field(str, "cuda or cpu"),
    "stage": Field(str, "words"),
    "comparison": Field(str, "words"),
}


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
    family: Sequence[str] = ()
    device: str | None = None
    stage: str = ""
    comparison: str = ""

    def fits(self, impl: Implementation) -> bool:
        """Return whether an implementation belongs to the group."""
        named = registry.matches(impl, self.impl) and not registry.matches(impl, self.without)
        return named and (not self.family or impl.family in self.family)


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
    try:
        text = path.read_text(encoding="utf-8-sig")
        return _of_shapes(path.stem, text) if path.suffix == ".csv" else _preset(path.stem, tomllib.loads(text))
    except OSError as error:
        raise InputError(f"preset {path} cannot be read ({error.strerror}): name a TOML or CSV file") from None
    except (ValueError, csv.Error) as error:  # of TOML, of its encoding, and InputError
        raise InputError(f"preset {path}: {error}") from None


def _of_shapes(name: str, text: str) -> Preset:
    """Return the preset of a CSV file, a shape a line.

    Raises:
        InputError: a line that is no shape, by its number, or no shapes.
    """
    reader = csv.DictReader(text.splitlines(), restval=None, skipinitialspace=True, strict=True)
    groups: list[Group] = []
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
    """Return the preset that a table describes.

    Raises:
        InputError: something is missing, unknown, or of another type.
    """
    _check_fields(table, TABLE, "it")
    shared = overlay({}, parse_axes(_of_type(table.get("axes", {}), dict, "axes")))
    for kind in table.get("protocol", {}):
        if kind not in DEVICE_KINDS:
            raise InputError(f"protocol has {kind!r}: it must be cuda or cpu")
    groups: list[Group] = []
    for number, entry in enumerate(table["group"], 1):
        settings = {key: value for key, value in _of_type(entry, dict, "group").items() if key in SETTINGS}
        _check_fields(settings, SETTINGS, f"group {number}")
        for family in settings.get("family", ()):
            if family not in (known := get_args(Family)):
                raise InputError(f"group {number} has family {family!r}: it must be one of {', '.join(known)}")
        if settings.get("device") not in (None, *DEVICE_KINDS):
            raise InputError(f"group {number} has device {settings['device']!r}: it must be cuda or cpu")
        axes = {key: value for key, value in entry.items() if key not in SETTINGS}
        groups.append(Group(overlay(shared, parse_axes(axes)), **settings))
    return Preset(name, table["title"], tuple(groups), table.get("protocol", {}), table.get("times", ("cold",)))


def _check_fields(table: Mapping[str, Any], fields: Mapping[str, Field], where: str) -> None:
    for name, field in fields.items():
        if field.required and not table.get(name):
            raise InputError(f"{where} has no {name}: expected {field.expected}")
        if name in table:
            _of_type(table[name], field.type, name, field.expected)
    if unknown := [name for name in table if name not in fields]:
        raise InputError(f"{where} has an unknown field {unknown[0]!r}; {registry.nearest(unknown[0], fields)}")


def _of_type(value: Any, type_: type, name: str, expected: str = "a table") -> Any:
    if not isinstance(value, type_):
        raise InputError(f"{name} is {value!r}: expected {expected}")
    return value
