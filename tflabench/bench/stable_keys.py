"""Keeps the key that Triton gives to a kernel from depending on which kernels a process has keyed before."""

from __future__ import annotations

from typing import Any

from triton.runtime.jit import DependenciesFinder


def key_callees_first() -> None:
    """Do in every process what Triton does from 3.8 on; call it before the first kernel is launched.

    The key of a kernel holds the values of the global constants that its callees use. Triton 3.6 and 3.7 look for them
    before they have read a callee, unless another kernel has called it: the same kernel then has one of two keys, and
    a process does not find in the cache what another has compiled. A forked process keeps what its parent did.
    """
    update: Any = DependenciesFinder._update_hash
    if hasattr(update, "after_callees"):
        return

    def read_callee_first(finder: DependenciesFinder, callee: Any) -> None:
        _ = callee.cache_key
        update(finder, callee)

    read_callee_first.after_callees = True  # type: ignore[attr-defined]
    DependenciesFinder._update_hash = read_callee_first  # type: ignore[method-assign]
