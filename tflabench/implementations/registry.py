"""Every implementation the bench knows, in the order tables and legends use. One line an adapter module."""

from __future__ import annotations

import copyreg
import difflib
import importlib
import warnings
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache

from tflabench.implementations import plugins
from tflabench.implementations.adapter import OTHERS, Implementation, Owner
from tflabench.implementations.packages import package_version
from tflabench.problem import InputError

# Modules of tflabench/baselines, in the order of tables and legends. They are named, not imported: adapters import
# this package.
ADAPTERS = (
    "gla_walkthrough", "nxai", "sdpa", "flash_attention", "fla_ops", "fla_rwkv7", "flash_qla", "flashinfer_gdn",
    "attn_gym_gdn", "cudnn_kda", "lightning", "mamba",
)  # fmt: skip
MOST_NAMES = 24  # that a message lists
MODELS = "tflabench.baselines.models"  # whole ones, which no sweep of kernels takes

_plugged: list[Implementation] = []
_by_plugin: dict[str, tuple[Implementation, ...]] = {}


@cache
def _bundled() -> tuple[Implementation, ...]:
    from tflabench.implementations import bundled

    adapters = (importlib.import_module(f"tflabench.baselines.{name}") for name in ADAPTERS)
    of_baselines = (impl for adapter in adapters for impl in adapter.IMPLEMENTATIONS)
    return (*bundled.IMPLEMENTATIONS, *of_baselines)


@cache
def _installed() -> tuple[Implementation, ...]:
    """Return what entry points of installed packages add; a name that is taken is left out, with a warning."""
    taken = {impl.name for impl in _bundled()}
    added: dict[str, Implementation] = {}
    for impl in plugins.installed():
        if impl.name in taken | added.keys():
            warnings.warn(f"an entry point defines {impl.name!r}, which exists already: it is left out", stacklevel=2)
        else:
            added[impl.name] = impl
    return tuple(added.values())


def implementations() -> tuple[Implementation, ...]:
    """All registered implementations; importing the adapters imports no torch."""
    return (*_bundled(), *plugged())


@cache
def our_kernels() -> frozenset[str]:
    """Return the names of this project's own kernels."""
    return frozenset(impl.name for impl in _bundled() if impl.owner.role == "ours")


def owner(name: str) -> Owner:
    """Return whose an implementation of this name is; OTHERS where it is unknown."""
    return impl.owner if (impl := find(name)) else OTHERS


def package_versions() -> dict[str, str]:
    """Return the installed distributions that decide what is measured, with their versions."""
    needed = (package for impl in _bundled() for package in (impl.package, *impl.packages))
    names = dict.fromkeys(("torch", "triton", "numpy", *needed))
    return {name: version for name in names if (version := package_version(name))}


def versions_used(impl: Implementation) -> dict[str, str]:
    """Return the installed distributions that decide the times of an implementation, with their versions."""
    triton = ["triton"] if impl.compiles or impl.plugin else []
    names = dict.fromkeys(("torch", *triton, impl.package, *impl.packages))
    return {name: version for name in names if (version := package_version(name))}


def operation(name: str, gate: str | None = None) -> str | None:
    """Return the operation of an implementation of this name, or of an mLSTM of this gate; None where unknown."""
    if gate:
        return f"mlstm_{gate}"
    return impl.operation if (impl := find(name)) else None


def ours_and_plugged() -> tuple[Implementation, ...]:
    """Return the kernels of this project, plain PyTorch, and what comes from outside: no libraries'."""
    without_libraries = (impl for impl in _bundled() if impl.owner.role in ("ours", "reference"))
    return (*without_libraries, *plugged())


def tried_by_auto(gate: str) -> list[Implementation]:
    """Return our kernels of a gate or operation in the order in which `implementation="auto"` tries them."""
    tried = [(impl.tried, impl) for impl in implementations() if impl.tried is not None]
    of_gate = [(place, impl) for place, impl in tried if (impl.gate or impl.operation) == gate]
    return [impl for _, impl in sorted(of_gate, key=lambda entry: entry[0])]


def is_current(name: str, kernel_version: int | None) -> bool:
    """Return whether rows of an implementation are of today's kernels, by their column `kernel_version`.

    True for implementations without a version, and for names that are not registered.
    """
    version = impl.version if (impl := find(name)) else None
    return version is None or version == kernel_version


def kernel_versions() -> str:
    """Return the versions of this project's kernels, family by family, in a form that names a folder: "26.5.1.1.1"."""
    from tflabench.implementations.bundled import VERSIONS

    return ".".join(map(str, VERSIONS.values()))


def plugged() -> tuple[Implementation, ...]:
    """Return the implementations from outside: of entry points of installed packages, and of `plug_in`."""
    return (*_installed(), *_plugged)


def get(name: str) -> Implementation:
    """Return the implementation of exactly this name; KeyError if there is none."""
    return {impl.name: impl for impl in implementations()}[name]


# An implementation travels to another process by name: it is the one that is registered there.
copyreg.pickle(Implementation, lambda impl: (get, (impl.name,)))


def matches(impl: Implementation, patterns: str) -> bool:
    """Return whether the name matches any of the comma-separated shell patterns."""
    return any(fnmatchcase(impl.name, pattern) for pattern in split(patterns))


def select(pattern: str) -> tuple[Implementation, ...]:
    """Return the implementations whose names match any of the comma-separated shell patterns, in registry order.

    Raises:
        InputError: none matches one of them, with the nearest names.
    """
    registered = implementations()
    for part in split(pattern) or [pattern]:
        if not any(fnmatchcase(impl.name, part) for impl in registered):
            raise InputError(f"no implementation matches {part!r}; {nearest(part, [impl.name for impl in registered])}")
    return tuple(impl for impl in registered if matches(impl, pattern))


def plug_in(plugin: str) -> None:
    """Register the IMPLEMENTATIONS of a module from outside: its import name, or the path of a .py file.

    Those that the same plugin registered before are replaced.

    Raises:
        InputError: it cannot be used (see `plugins.load`), or takes a name that is taken.
    """
    added, earlier = plugins.load(plugin), _by_plugin.get(plugin, ())
    kept = [impl for impl in _plugged if impl not in earlier]
    taken = {impl.name for impl in (*_bundled(), *_installed(), *kept)}
    for impl in added:
        if impl.name in taken:
            raise InputError(f"plugin {plugin!r} defines {impl.name!r}, which exists already: choose another name")
        taken.add(impl.name)
    _plugged[:] = [*kept, *added]
    _by_plugin[plugin] = added


def plugins_in_use() -> tuple[str, ...]:
    """Return what `plug_in` was given in this process."""
    return tuple(_by_plugin)


def nearest(wanted: str, names: Iterable[str]) -> str:
    """Return the hint that ends an error message about a name that does not exist."""
    names = list(names)
    near = difflib.get_close_matches(wanted, names, n=2, cutoff=0.5)
    if len(names) > MOST_NAMES:
        names = [*names[:MOST_NAMES], f"and {len(names) - MOST_NAMES} more of `tflabench list`"]
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"


def split(patterns: str) -> list[str]:
    """Return the parts of a comma-separated list."""
    return [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]


def find(name: str) -> Implementation | None:
    """Return the implementation of exactly this name, or the model; None where there is none."""
    return _named().get(name) or next((impl for impl in plugged() if impl.name == name), None)


@cache
def _named() -> dict[str, Implementation]:
    models = importlib.import_module(MODELS).IMPLEMENTATIONS
    return {impl.name: impl for impl in (*models, *_bundled())}
