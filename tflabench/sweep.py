"""What to measure: axes and presets -> an ordered list of points. No torch."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import product
from typing import Any

from tflabench import registry
from tflabench.adapter import Implementation
from tflabench.problem import DTYPE_BYTES, INPUTS, PASSES, InputError, Problem
from tflabench.store import point_id

Values = tuple[int | str | None, ...]

INTEGER_AXES = ("seq_len", "d_hv", "d_qk", "head_dim", "heads", "batch", "tokens", "embedding", "chunk_size")
MAX_VALUES = 1000  # of one range: more is a slip
WORDS = {"dtype": DTYPE_BYTES, "inputs": INPUTS}  # of the axes that take them
AXES = (*INTEGER_AXES, *WORDS, "pass")
# Of a plan, the slowest first; an axis that sets another stands before it.
ORDER = ("seq_len", "tokens", "batch", "head_dim", "d_hv", "d_qk", "embedding", "heads", *WORDS, "pass", "chunk_size")
# An axis that a later layer sets (preset < group < command line) takes the place of those that would contradict it.
RIVALS = {
    "batch": {"tokens"},
    "tokens": {"batch"},
    "heads": {"embedding"},
    "embedding": {"heads"},
    "head_dim": {"d_qk", "d_hv"},
}


def parse_values(axis: str, text: str) -> Values:
    """The values of an axis: `512,1024`, `512:65536:x2` (geometric), `64:512:+64` (linear), both ends included.

    `chunk_size` may also be `auto` (None: the implementation chooses), `pass` also `both`.

    Raises:
        InputError: unknown axis, malformed or empty values, or values below 1.
    """
    if axis not in AXES:
        raise InputError(f"unknown axis {axis!r}; {registry.nearest(axis, AXES)}")
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise InputError(f"axis {axis} is {text!r}: it must be values such as 512,1024 or a range such as 512:65536:x2")
    if axis == "pass":
        values = [name for word in words for name in (("fw", "fwbw") if word == "both" else (word,))]
        _require_known(axis, values, PASSES)
    elif axis in WORDS:
        values = words
        _require_known(axis, values, WORDS[axis])
    elif axis == "chunk_size":
        values = [value for word in words for value in ([None] if word == "auto" else _integers(axis, word))]
    else:
        values = [value for word in words for value in _integers(axis, word)]
    return tuple(dict.fromkeys(values))


def parse_overrides(options: Iterable[str]) -> dict[str, Values]:
    """The axes of repeated `-a AXIS=VALUES` options; the last one wins.

    Raises:
        InputError: an option without `=`, or what `parse_values` refuses.
    """
    axes = {}
    for option in options:
        axis, equals, text = option.partition("=")
        if not equals:
            raise InputError(f"-a is {option!r}: it must be AXIS=VALUES, for example -a seq_len=512:4096:x2")
        axes[axis.strip()] = parse_values(axis.strip(), text)
    return axes


@dataclass(frozen=True)
class Group:
    """Implementations that a preset runs over the same axes.

    Attributes:
        axes: values by axis.
        impl, without: name patterns of those that belong to it, and of those that do not.
        family: families that belong to it; empty for all.
        device: "cuda" or "cpu" where it is meant for one kind of device.
    """

    axes: Mapping[str, Values]
    impl: str = "*"
    without: str = ""
    family: Sequence[str] = ()
    device: str | None = None

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


@dataclass(frozen=True)
class Point:
    implementation: Implementation
    problem: Problem
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", point_id(self.implementation, self.problem))


def preset_names() -> list[str]:
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in files("tflabench.presets").iterdir()
        if entry.name.endswith(".toml")
    )


def load_preset(name: str) -> Preset:
    """The preset of this name from tflabench/presets.

    Raises:
        InputError: no such preset, with the nearest names.
    """
    if name not in preset_names():
        raise InputError(f"unknown preset {name!r}; {registry.nearest(name, preset_names())}")
    table = tomllib.loads((files("tflabench.presets") / f"{name}.toml").read_text())
    shared = _axes_of(table.get("axes", {}))
    groups = []
    for entry in table["group"]:
        settings = {key: entry.pop(key) for key in ("impl", "without", "family", "device") if key in entry}
        groups.append(Group(overlay(shared, _axes_of(entry)), **settings))
    return Preset(name, table["title"], tuple(groups), table.get("protocol", {}))


def overlay(axes: Mapping[str, Values], changes: Mapping[str, Values]) -> dict[str, Values]:
    """`axes` with `changes` on top; a changed axis removes those it contradicts.

    Raises:
        InputError: two of the changes contradict each other.
    """
    for axis in changes:
        if axis != "head_dim" and (rival := RIVALS.get(axis, set()) & changes.keys()):
            raise InputError(f"axes {axis} and {rival.pop()} are both set: each follows from the other, give one")
    replaced = {rival for axis in changes for rival in RIVALS.get(axis, ())}
    return {axis: values for axis, values in axes.items() if axis not in replaced} | dict(changes)


def plan(preset: Preset, overrides: Mapping[str, Values], patterns: Sequence[str] | None, device: str) -> list[Point]:
    """The points to measure, each once. Those of one problem size stand together, so that drift hits all alike.

    Args:
        overrides: axes that replace those of every group; sizes are measured in the order of their values, those of
            other axes from small to large.
        patterns: which implementations: those of the preset that match, or, where it names none of them, all that
            match, over the axes of its first group for their family; None for the preset's own and those plugged in.
        device: "cuda" or "cpu": groups meant for the other are left out.

    Raises:
        InputError: nothing to run, a pattern that matches nothing, or axes that no problem satisfies.
    """
    groups = [group for group in preset.groups if group.device in (None, device)]
    if not groups:
        raise InputError(f"preset {preset.name} has nothing to run on {device}: choose another --preset")
    points: dict[str, Point] = {}
    for impl, claims in _chosen(groups, patterns).items():
        for group in claims:
            axes = overlay(group.axes, overrides)
            for values in product(*axes.values()):
                problem = resolve(dict(zip(axes, values, strict=True)))
                point = Point(impl, problem if impl.chunked else problem.with_(chunk_size=None))
                points.setdefault(point.id, point)
    if not points:
        raise InputError(f"preset {preset.name} has no implementation to run on {device}: name one with --impl")
    rank = {impl.name: index for index, impl in enumerate(registry.implementations())}
    return sorted(
        points.values(), key=lambda point: (_place(point.problem, overrides), rank[point.implementation.name])
    )


def _chosen(groups: Sequence[Group], patterns: Sequence[str] | None) -> dict[Implementation, list[Group]]:
    """Every implementation to run, with the groups whose axes it runs over."""
    claims = {impl: [group for group in groups if group.fits(impl)] for impl in registry.implementations()}

    def adopted(impl: Implementation) -> list[Group]:
        return [next((group for group in groups if impl.family in group.family), groups[0])]

    if patterns is None:
        claims |= {impl: adopted(impl) for impl in registry.plugged() if not claims[impl]}
        return {impl: claim for impl, claim in claims.items() if claim}
    chosen = {}
    for pattern in patterns:
        matching = registry.select(pattern)
        named = {impl: claims[impl] for impl in matching if claims[impl]}
        chosen |= named or {impl: adopted(impl) for impl in matching}
    return chosen


def resolve(values: Mapping[str, Any]) -> Problem:
    """The problem that one value of each axis describes; `tokens`, `embedding` and `head_dim` set what they imply.

    Raises:
        InputError: a size is missing or below 1, or tokens or embedding are no multiple of seq_len or d_hv.
    """
    sizes = {axis: values[axis] for axis in ("seq_len", "chunk_size", "dtype", "inputs") if axis in values}
    for axis in ("d_qk", "d_hv"):
        sizes[axis] = values.get(axis, values.get("head_dim"))
    for axis in ("seq_len", "d_qk", "d_hv"):
        if sizes.get(axis) is None:
            raise InputError(f"{axis} is not set: give it with -a {axis}=...")
    sizes["batch"] = _divided("tokens", "seq_len", values, sizes) if "tokens" in values else values.get("batch", 1)
    sizes["heads"] = _divided("embedding", "d_hv", values, sizes) if "embedding" in values else values.get("heads", 1)
    return Problem(**sizes, pass_=values.get("pass", "fw"))


def _divided(total: str, by: str, values: Mapping[str, Any], sizes: Mapping[str, Any]) -> int:
    quotient, rest = divmod(values[total], sizes[by])
    if rest or not quotient:
        raise InputError(f"{total} is {values[total]}: it must be a multiple of {by}, which is {sizes[by]}")
    return quotient


def _place(problem: Problem, given: Mapping[str, Values]) -> tuple:
    """Where a problem stands in a plan: axis by axis, the values given in their order, others from small to large."""
    p = problem
    asked = {"tokens": p.tokens, "head_dim": p.d_hv, "embedding": p.heads * p.d_hv, **p.columns()}
    small_to_large = {**p.columns(), "pass": PASSES.index(p.pass_), "chunk_size": p.chunk_size or 0}

    def place(axis: str) -> Any:
        if axis not in given:
            return small_to_large.get(axis)  # None, alike for all: what sets other axes has no order of its own
        return given[axis].index(asked[axis]) if asked[axis] in given[axis] else -1  # -1: it has no chunks

    return tuple(place(axis) for axis in ORDER)


def _axes_of(table: Mapping[str, Any]) -> dict[str, Values]:
    return {axis: parse_values(axis, str(value)) for axis, value in table.items()}


def _integers(axis: str, word: str) -> list[int]:
    """The integers of one value or range, all at least 1."""
    malformed = InputError(f"axis {axis} has {word!r}: it must be an integer, START:STOP:xFACTOR or START:STOP:+STEP")
    first, *rest = word.split(":")
    try:
        if not rest:
            values = [int(first)]
        else:
            start, stop, operator, by = int(first), int(rest[0]), rest[1][:1], int(rest[1][1:])
            if len(rest) != 2 or operator not in "x+" or by < (2 if operator == "x" else 1) or start < 1:
                raise malformed
            values, value = [], start
            while value <= stop and len(values) <= MAX_VALUES:
                values.append(value)
                value = value * by if operator == "x" else value + by
    except (ValueError, IndexError) as error:
        raise malformed from error
    if len(values) > MAX_VALUES:
        raise InputError(f"axis {axis} has {word!r}: it must have at most {MAX_VALUES} values")
    if not values:
        raise InputError(f"axis {axis} has the empty range {word!r}: its start must not lie above its stop")
    if values[0] < 1:
        raise InputError(f"{axis} is {values[0]}: it must be at least 1")
    return values


def _require_known(axis: str, values: Sequence[str], known: Iterable[str]) -> None:
    for value in values:
        if value not in known:
            raise InputError(f"{axis} is {value!r}: it must be one of {', '.join(known)}")
