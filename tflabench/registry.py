"""Every implementation the bench knows, in the order tables and legends use. One line an adapter module."""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase
from functools import cache

from tflabench.adapter import Implementation
from tflabench.problem import InputError


@cache
def implementations() -> tuple[Implementation, ...]:
    """All registered implementations; importing the adapters imports no torch."""
    from tflabench import bundled
    from tflabench.baselines import sdpa

    return (*bundled.IMPLEMENTATIONS, *sdpa.IMPLEMENTATIONS)


def select(patterns: str) -> tuple[Implementation, ...]:
    """The implementations that match any of the comma-separated shell patterns, in registry order.

    Raises:
        InputError: a pattern that matches nothing, with the nearest names.
    """
    known = implementations()
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    for pattern in wanted:
        if not any(fnmatchcase(impl.name, pattern) for impl in known):
            names = [impl.name for impl in known]
            near = difflib.get_close_matches(pattern, names, n=2, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
            raise InputError(f"no implementation matches {pattern!r}; {hint}")
    return tuple(impl for impl in known if any(fnmatchcase(impl.name, pattern) for pattern in wanted))
