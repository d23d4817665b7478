"""Axes of a sweep: their values as written on the command line, and the problem that one value of each describes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tflabench.implementations import registry
from tflabench.problem import DTYPE_BYTES, GATES, INPUTS, PASSES, InputError, Problem, one_of

Values = tuple[int | str | None, ...]

INTEGER_AXES = (
    "seq_len", "d_hv", "d_qk", "head_dim", "heads", "heads_qk", "batch", "tokens", "embedding", "chunk_size",
    "ranks",
)  # fmt: skip
MAX_VALUES = 1000  # of one range: more is a slip
WORDS = {"dtype": DTYPE_BYTES, "inputs": INPUTS, "gates": GATES}  # of the axes that take them
AXES = (*INTEGER_AXES, *WORDS, "pass")
# Of a plan, the slowest first; an axis that sets another stands before it.
ORDER = (
    "seq_len", "tokens", "batch", "head_dim", "d_hv", "d_qk", "embedding", "heads", "heads_qk", *WORDS, "pass",
    "chunk_size", "ranks",
)  # fmt: skip
# An axis that a later layer sets (preset < group < command line) takes the place of those that would contradict it.
RIVALS = {
    "batch": {"tokens"},
    "tokens": {"batch"},
    "heads": {"embedding"},
    "embedding": {"heads"},
    "head_dim": {"d_qk", "d_hv"},
}


def parse_values(axis: str, text: str) -> Values:
    """Return the values of an axis: `512,1024`, `512:65536:x2` (geometric), `64:512:+64` (linear), both ends included.

    `chunk_size` may also be `auto` (None: the implementation chooses), `pass` also `both`. InputError for all else.
    """
    if axis not in AXES:
        raise InputError(f"unknown axis {axis!r}; {registry.nearest(axis, AXES)}")
    parts = [word.strip() for word in text.split(",")]
    if not all(parts):
        raise InputError(f"axis {axis} is {text!r}: it must be values such as 512,1024 or a range such as 512:65536:x2")
    if axis == "pass":
        values = [name for word in parts for name in (("fw", "fwbw") if word == "both" else (word,))]
        values = [one_of(axis, value, (*PASSES, "both")) for value in values]
    elif axis in WORDS:
        values = [one_of(axis, value, WORDS[axis]) for value in parts]
    elif axis == "chunk_size":
        values = [value for word in parts for value in ([None] if word == "auto" else _integers(axis, word))]
    else:
        values = [value for word in parts for value in _integers(axis, word)]
    return tuple(dict.fromkeys(values))


def parse_overrides(options: Iterable[str]) -> dict[str, Values]:
    """Return the axes of repeated `-a AXIS=VALUES` options; InputError for one that is malformed, or given twice."""
    axes: dict[str, Values] = {}
    for option in options:
        axis, equals, text = option.partition("=")
        axis = axis.strip()
        if axis in axes:
            raise InputError(f"axis {axis} is given twice: give all its values at once, as in -a {axis}=A,B")
        if not equals:
            raise InputError(f"-a is {option!r}: it must be AXIS=VALUES, for example -a seq_len=512:4096:x2")
        axes[axis] = parse_values(axis, text)
    return axes


def overlay(axes: Mapping[str, Values], changes: Mapping[str, Values]) -> dict[str, Values]:
    """Return `axes` with `changes` on top, without those they contradict; InputError where two changes do."""
    for axis in changes:
        if axis != "head_dim" and (rival := RIVALS.get(axis, set()) & changes.keys()):
            raise InputError(f"axes {axis} and {rival.pop()} are both set: each follows from the other, give one")
    replaced = {rival for axis in changes for rival in RIVALS.get(axis, ())}
    return {axis: values for axis, values in axes.items() if axis not in replaced} | dict(changes)


def resolve(values: Mapping[str, Any]) -> Problem:
    """Return the problem of one value of each axis, or InputError; tokens, embedding, head_dim set what they imply."""
    sizes = {axis: values[axis] for axis in ("seq_len", "chunk_size", *WORDS) if axis in values}
    for axis in ("d_qk", "d_hv"):
        sizes[axis] = values.get(axis, values.get("head_dim"))
    for axis in ("seq_len", "d_qk", "d_hv"):
        if sizes.get(axis) is None:
            raise InputError(f"{axis} is not set: give it with -a {axis}=...")
    sizes["batch"] = _divided("tokens", "seq_len", values, sizes) if "tokens" in values else values.get("batch", 1)
    sizes["heads"] = _divided("embedding", "d_hv", values, sizes) if "embedding" in values else values.get("heads", 1)
    sizes |= {axis: values.get(axis) for axis in ("heads_qk", "ranks")}
    return Problem(**sizes, pass_=values.get("pass", "fw"))


def _divided(total: str, divisor: str, values: Mapping[str, Any], sizes: Mapping[str, Any]) -> int:
    quotient, rest = divmod(values[total], sizes[divisor])
    if rest or not quotient:
        raise InputError(f"{total} is {values[total]}: it must be a multiple of {divisor}, which is {sizes[divisor]}")
    return quotient


def parse_axes(table: Mapping[str, Any]) -> dict[str, Values]:
    """Return the axes of a preset's table."""
    return {axis: parse_values(axis, str(value)) for axis, value in table.items()}


def _integers(axis: str, word: str) -> list[int]:
    """Return the integers of one value or range, all at least 1."""
    if not word.isascii():  # int() takes the digits of every script
        raise InputError(f"axis {axis} has {word!r}: it must have the digits 0 to 9")
    malformed = InputError(f"axis {axis} has {word!r}: it must be an integer, START:STOP:xFACTOR or START:STOP:+STEP")
    first, *rest = word.split(":")
    try:
        if not rest:
            values = [int(first)]
        else:
            start, stop, operator, step = int(first), int(rest[0]), rest[1][:1], int(rest[1][1:])
            if len(rest) != 2 or operator not in "x+" or step < (2 if operator == "x" else 1) or start < 1:
                raise malformed
            values, value = list[int](), start
            while value <= stop and len(values) <= MAX_VALUES:
                values.append(value)
                value = value * step if operator == "x" else value + step
    except (ValueError, IndexError) as error:
        raise malformed from error
    if len(values) > MAX_VALUES:
        raise InputError(f"axis {axis} has {word!r}: it must have at most {MAX_VALUES} values")
    if not values:
        raise InputError(f"axis {axis} has the empty range {word!r}: its start must not lie above its stop")
    if values[0] < 1:
        raise InputError(f"{axis} is {values[0]}: it must be at least 1")
    return values
