"""Checks of option values: one line that says what is wrong and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from tflabench.problem import DTYPE_BYTES, InputError


def words(text: str) -> list[str]:
    """Return the parts of a comma-separated option."""
    return [word.strip() for word in text.split(",")]


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    """Return `value` if it is one of `allowed`.

    Raises:
        InputError: it is not, with the nearest allowed value.
    """
    if value in allowed:
        return value
    near = difflib.get_close_matches(value, allowed, n=1, cutoff=0.4)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise InputError(f"{name} is {value!r}: it must be one of {', '.join(allowed)}{hint}")


def dtype_bytes(name: str, dtype: str) -> int:
    """Return the bytes of one element of a dtype given as an option.

    Raises:
        InputError: no such dtype.
    """
    return DTYPE_BYTES[one_of(name, dtype, tuple(DTYPE_BYTES))]
