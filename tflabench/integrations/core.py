"""Replaces functions of a library by ours where models look them up, and puts them back.

`install` asks the file of the library for its `Replacement`s and makes them. What a model looks up at each call is
replaced, never what it keeps, so models built before and after are served alike, and none keeps anything of ours.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from importlib import metadata
from types import ModuleType
from typing import Any, NamedTuple, Self

from tflabench.kernels.common.operators import constant_to_compilers

LIBRARIES = ("transformers", "xlstm", "mlstm_kernels", "fla", "mamba_ssm")
MISSING: Any = object()  # what stands where nothing did


class IntegrationError(RuntimeError):
    """Says in one line why kernels cannot be put into a library, or not taken out."""


class Replacement(NamedTuple):
    """One thing to put in the place of another.

    Attributes:
        name: what users call it, for `Installed.replaced`.
        place: a module, a class, or a dict.
        key: the attribute, or the key of the dict.
        value: what to put there.
    """

    name: str
    place: Any
    key: str
    value: Any


class Installed:
    """Hold what `install` did, and the way back. As a context manager it uninstalls at the end.

    Attributes:
        library: its name.
        replaced: names of what is ours now.
        left: what is still the library's, and why.
        calls: how many calls ours served. Under torch.compile, and in a CUDA graph, a call counts when it is traced or
            captured, not when it is replayed.
    """

    def __init__(self, library: str) -> None:
        self.library = library
        self.replaced: tuple[str, ...] = ()
        self.left: dict[str, str] = {}
        self.calls = 0
        self._undo: list[tuple[Replacement, Any]] = []

    def __repr__(self) -> str:
        state = f"{len(self.replaced)} replaced, {self.calls} calls" if self in _installed else "uninstalled"
        return f"<tflabench in {self.library}: {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self in _installed:
            self.uninstall()

    @constant_to_compilers
    def active(self) -> bool:
        """Return whether it is installed."""
        return self in _installed

    @constant_to_compilers
    def count(self) -> int:
        """Count a call that ours serves. Compilers run it while they trace, and keep nothing of it."""
        self.calls += 1
        return 0

    @constant_to_compilers
    def leave(self, name: str, why: str) -> int:
        """Note that `name` stays the library's, and why."""
        self.left[name] = why
        return 0

    def uninstall(self) -> None:
        """Put the library's own functions back, in models built before and after.

        Raises:
            IntegrationError: it is not installed, or something else was put in the same places since.
        """
        if self not in _installed:
            raise IntegrationError(f"{self.library} is not installed: install('{self.library}') comes first")
        for replacement, _ in self._undo:
            if _value(replacement.place, replacement.key) is not replacement.value:
                raise IntegrationError(f"{replacement.name} was replaced again {_by_whom(self, replacement)} first")
        for replacement, before in reversed(self._undo):
            _put(replacement.place, replacement.key, before)
        self._undo.clear()
        _installed.remove(self)
        _forget_compiled()


_installed: list[Installed] = []  # in the order in which they were


def install(library: str, force: bool = False) -> Installed:
    """Let a library compute with our kernels wherever they do what its own do.

    Args:
        library: "transformers" (Hugging Face's xLSTM, and models with the delta rule), "xlstm", "mlstm_kernels",
            "fla" or "mamba_ssm".
        force: try it with versions of the library that nobody has tried.

    Returns:
        What was replaced, and the way back.

    Raises:
        IntegrationError: an unknown library, one that is not there, one of an unknown version, or one that is already
            installed. Nothing is replaced then.
    """
    if library not in LIBRARIES:
        raise IntegrationError(f"library is {library!r}: it must be one of {', '.join(LIBRARIES)}")
    if any(handle.library == library for handle in _installed):
        raise IntegrationError(f"{library} is already installed: uninstall() its handle first")
    module = importlib.import_module(f".{library}", __package__)
    check_versions(module.VERSIONS, force=force)
    handle = Installed(library)
    try:
        replacements: list[Replacement] = module.plan(handle, force)
    except (ImportError, AttributeError) as error:
        raise IntegrationError(f"{library} is not what this version of tflabench knows: {error}") from error
    for replacement in replacements:
        handle._undo.append((replacement, _value(replacement.place, replacement.key)))
        _put(replacement.place, replacement.key, replacement.value)
    handle.replaced = tuple(dict.fromkeys(replacement.name for replacement in replacements))
    _installed.append(handle)
    _forget_compiled()
    return handle


def check_versions(versions: dict[str, tuple[str, ...]], *, force: bool) -> None:
    """Raise IntegrationError unless packages are installed, in versions that were tried.

    Args:
        versions: distribution -> versions; "5.17" stands for 5.17.0, 5.17.1, ...
        force: any version will do.
    """
    for distribution, tried in versions.items():
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            if force:  # copied without its metadata, maybe: its import will tell
                continue
            raise IntegrationError(f"the package {distribution} is not installed") from None
        if not force and not any(version == prefix or version.startswith(f"{prefix}.") for prefix in tried):
            raise IntegrationError(
                f"{distribution} is {version}: it must be {' or '.join(tried)}, which were tried, or force=True"
            )


def kept_by_instances(name: str, read: Callable[[Any, Callable[[], Any]], Any]) -> property:
    """Return a property for a class whose instances keep something under its name.

    It goes before what an instance keeps, which stays where it is: without the property everything is as before.

    Args:
        name: of the attribute.
        read: (instance, a function that returns what it keeps) -> what it shows instead. The Dynamo of torch 2.11
            cannot follow that function, so only who needs it calls it.
    """

    def get(instance: Any) -> Any:
        return read(instance, lambda: instance.__dict__[name])

    def keep(instance: Any, value: Any) -> None:
        instance.__dict__[name] = value

    return property(get, keep)


def stand_in(
    handle: Installed,
    original: Callable[..., Any],
    ours: Callable[..., Any],
    refuses: Callable[[dict[str, Any]], str | None] | None = None,
) -> Callable[..., Any]:
    """Return a function that calls ours while the handle is installed, and the original before and after.

    Whoever keeps it for longer keeps the original.

    Args:
        refuses: (its arguments by name) -> why a call goes to the original, or None; None takes every call.
    """
    signature = None if refuses is None else inspect.signature(original)

    @functools.wraps(original)
    def served(*args: Any, **named: Any) -> Any:
        if not handle.active():
            return original(*args, **named)
        why = None if refuses is None or signature is None else refuses(_by_name(signature, args, named))
        if why is not None:
            handle.leave(f"{original.__name__}, in some calls", why)
            return original(*args, **named)
        handle.count()
        return ours(*args, **named)

    return served


def _by_name(signature: inspect.Signature, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by name, whether they were given by place or by name, with those of a `**` among them."""
    given = signature.bind(*args, **named).arguments
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            given |= given.pop(parameter.name, {})
    return given


def wherever(module: ModuleType, key: str, value: Any) -> list[Replacement]:
    """Return replacements of a function in every module that has it by now, under whichever name."""
    original = getattr(module, key)
    replacements = [Replacement(key, module, key, value)]
    for name, module_there in sorted(sys.modules.items()):
        if module_there is None or module_there is module or name.startswith("tflabench"):
            continue
        names = [k for k, x in list(getattr(module_there, "__dict__", {}).items()) if x is original]
        replacements += [Replacement(key, module_there, k, value) for k in names]
    return replacements


def _value(place: Any, key: str) -> Any:
    # Of a class its own attribute, not an inherited one, and no descriptor's answer.
    return (place if isinstance(place, dict) else vars(place)).get(key, MISSING)


def _put(place: Any, key: str, value: Any) -> None:
    delete, put = (dict.__delitem__, dict.__setitem__) if isinstance(place, dict) else (delattr, setattr)
    if value is MISSING:
        delete(place, key)
    else:
        put(place, key, value)


def _by_whom(handle: Installed, replacement: Replacement) -> str:
    for later in _installed[_installed.index(handle) + 1 :]:
        if any(x.place is replacement.place and x.key == replacement.key for x, _ in later._undo):
            return f"by install('{later.library}'): uninstall that"
    return "by something else: undo that"


def _forget_compiled() -> None:
    """Let torch.compile compile anew: its guards do not see attributes of classes change."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()
