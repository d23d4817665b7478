"""Checks of what was typed that no command has to make itself: words that a shell made, empty ones, absurd numbers."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tflabench.problem import InputError

LARGEST = {float: 1e9, int: 2**40}  # of any option: what is more is a slip
# (command, old option) -> the new one, or what to do instead
RENAMED = {
    ("advise", "--plot"): "--out",
    ("optimal-chunk", "--plot"): "--out",
    ("verify", "--budget"): "--verify-seconds",
    ("compare", "--plot"): "--out FILE",
    ("compare", "--no-plot"): "no option: without --out nothing is drawn",
}


def check_words(command: str, words: Sequence[str]) -> None:
    """Check what was typed after a command, before any of it is parsed.

    Raises:
        InputError: an empty value, an option that has another name now, or file names where a pattern should stand.
    """
    for before, word in zip(("", *words), words, strict=False):
        option, equals, value = word.partition("=") if word.startswith("--") else (before, "=", word)
        if equals and not value.strip():
            raise InputError(
                f"{option if option.startswith('-') else 'an argument'} is {value!r}: it must not be empty"
            )
        if equals and re.fullmatch("-0+", value.strip()):
            raise InputError(f"{option} is {value!r}: it must be a number of 0 or more, without a sign")
        name = word.partition("=")[0]
        if new := RENAMED.get((command, name)):
            raise InputError(f"`tflabench {command} {name}` is now {new}")
        if equals and option == "--impl" and _is_file_name(value):
            raise InputError(
                f"--impl is {value!r}, the name of a file here, as a shell makes it of a pattern: "
                "quote the pattern, as in --impl 'tfla*'"
            )


def check_numbers(values: Mapping[str, Any]) -> None:
    """Check the numbers among the values of options.

    Raises:
        InputError: one is not a number, is minus nothing, or is larger than anything that makes sense.
    """
    for option, value in values.items():
        if isinstance(value, bool) or not isinstance(value, float | int):
            continue
        if not math.isfinite(value) or (value == 0 and math.copysign(1.0, value) < 0):
            raise InputError(f"{option} is {value:g}: it must be a number of 0 or more, and not without end")
        if abs(value) > LARGEST[type(value)]:
            raise InputError(f"{option} is {value:g}: it must be at most {LARGEST[type(value)]:g}")


def _is_file_name(value: str) -> bool:
    """Return whether a pattern of implementations is the name of a file here, and of no implementation."""
    if not os.path.exists(value):  # false also of what is too long for a name, as many names with commas are
        return False
    from tflabench.implementations import registry

    return value not in {impl.name for impl in registry.implementations()}
