"""Mistakes that are planted in the source of a fused kernel: a check that they show on the CPU model of Gluon."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from gluon_on_cpu import Deadlock

ORDERS = 4


def assert_mistake_shows(
    launch_on: Callable[[Callable[[str, str], str], int], None],
    failures: Callable[[], Sequence[str]],
    source: str,
    right: str,
    mistaken: str,
) -> None:
    """Fail unless numbers are wrong, or a role waits for ever, in one of ORDERS orders of events.

    Args:
        launch_on: makes kernels run with an edit of their sources, in the order of a seed.
        failures: computes a case and returns what is wrong.
        source: the file that has the mistake, as `Machine` names it to an edit.
        right, mistaken: text that stands in it once, and what stands there instead.
    """
    counts = []

    def edit(name: str, text: str) -> str:
        if name != source:
            return text
        counts.append(text.count(right))
        return text.replace(right, mistaken)

    for seed in range(ORDERS):
        launch_on(edit, seed)
        try:
            wrong = failures()
        except (Deadlock, AssertionError):
            wrong = ["stuck"]
        assert counts[-1] == 1
        if wrong:
            return
    pytest.fail("no order shows it")
