"""Packages: their installed versions, and whether a module can be imported."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import metadata
from importlib.machinery import PathFinder

_all_installed: ContextVar[bool] = ContextVar("all_installed", default=False)


@cache
def package_version(name: str) -> str | None:
    """Return the installed version of a distribution, None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def installed_version(name: str) -> str | None:
    """Return the version of a distribution that rules out what it cannot do; None where it is not known."""
    return None if _all_installed.get() else package_version(name)


def installed(module: str) -> bool:
    """Return whether a module is installed, by its dotted name; neither it nor the packages around it are imported."""
    if _all_installed.get():
        return True
    package, *inner = module.split(".")
    spec = importlib.util.find_spec(package)
    for part in inner:
        if spec is None or spec.submodule_search_locations is None:
            return False
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    return spec is not None


@contextmanager
def taken_as_installed() -> Iterator[None]:
    """Within the block every module counts as installed: for a machine that need not be here."""
    before = _all_installed.set(True)
    try:
        yield
    finally:
        _all_installed.reset(before)
