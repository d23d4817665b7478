"""Implementations from outside: of files and modules that the user names, and of entry points of installed packages.

Every mistake in them is one line that names the plugin and says what was expected. The sources of a plugin, as one
hash, are its file and all that it imports from its folder.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import inf
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import tflabench
from tflabench.implementations.adapter import Family, Formulation, Implementation, Plugin
from tflabench.problem import InputError, Problem
from tflabench.theory.cost import Cost

GROUP = "tflabench.implementations"  # of entry points
NAME = re.compile(r"[A-Za-z0-9_.-]+")
EXPECTED = "IMPLEMENTATIONS, a tuple of tflabench.plugin.Implementation"
PACKAGE = Path(tflabench.__file__).resolve().parent
LIBRARIES = {"site-packages", "dist-packages"}


def load(plugin: str) -> tuple[Implementation, ...]:
    """Return the IMPLEMENTATIONS of a module from outside.

    Args:
        plugin: the path of a .py file, or the name of a module that can be imported; or one function of either and the
            operation that it computes, as in "my_kernel.py:my_kernel=mlstm_sig".

    Raises:
        InputError: it cannot be imported, or its IMPLEMENTATIONS or function are not what the bench can run.
    """
    source, _, function = plugin.rpartition(":") if "=" in plugin else (plugin, "", "")
    try:
        is_file = source.endswith(".py") or "/" in source or Path(source).exists()
        module = _load_file(Path(source)) if is_file else _import(source)
        folder = Path(source).resolve().parent if is_file else None
        origin = Plugin(Path(source).name if is_file else source, sources_hash(module, folder))
        if function:
            return _checked([_of_function(module, function)], origin)
        if not hasattr(module, "IMPLEMENTATIONS"):
            raise _MistakeError(f"it defines no IMPLEMENTATIONS; expected {EXPECTED}")
        return _checked(module.IMPLEMENTATIONS, origin)
    except _MistakeError as mistake:
        name = plugin.rpartition("=")[0] if function else plugin
        raise InputError(f"plugin {name!r} cannot be used: {mistake}") from mistake.__cause__


def _of_function(module: ModuleType, function: str) -> Implementation:
    from tflabench.implementations.bundled import implementation_of

    name, _, operation = function.partition("=")
    compute: Any = vars(module).get(name)
    if not hasattr(compute, "__call__"):  # noqa: B004  it keeps its type
        raise _MistakeError(f"it has no function {name!r}")
    return implementation_of(name, compute, operation)


def installed() -> tuple[Implementation, ...]:
    """Return the implementations of all entry points of GROUP; a warning names each that cannot be used.

    An entry point names a module that defines IMPLEMENTATIONS ("package.module"), or the tuple in it
    ("package.module:IMPLEMENTATIONS").
    """
    from importlib.metadata import entry_points  # 20 ms that `--help` need not wait for

    added: list[Implementation] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            loaded = point.load()
            given = getattr(loaded, "IMPLEMENTATIONS", None) if isinstance(loaded, ModuleType) else loaded
            added += _checked(given, Plugin(point.module, sources_hash(sys.modules[point.module])))
        except (Exception, SystemExit) as error:  # a package that is installed must not stop every command
            reason = str(error) if isinstance(error, _MistakeError) else _said(error)
            warnings.warn(f"entry point {point.value!r} ({GROUP}) cannot be used: {reason}", stacklevel=2)
    return tuple(added)


class _MistakeError(Exception):
    """A mistake in a plugin, with what was expected, in one line."""


def _load_file(path: Path) -> ModuleType:
    """Return a file as a module, which can import what lies beside it, as when Python runs it.

    Nothing is compiled to disk: Python takes a file that changed within a second for the one it compiled.
    """
    if not path.is_file():
        what = "it is a folder" if path.is_dir() else "there is no such file"
        raise _MistakeError(f"{what}; expected the path of a .py file, or the name of a module that can be imported")
    spec = importlib.util.spec_from_file_location(f"tflabench_plugin_{path.stem}", path.resolve())
    if spec is None or spec.loader is None:
        raise _MistakeError("it is no Python file; expected a file whose name ends in .py")
    folder = path.resolve().parent
    if folder != PACKAGE.parent and str(folder) not in sys.path:  # see tflabench.__main__.leave_repository_root
        sys.path.append(str(folder))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the module raises is its author's to mend
        del sys.modules[spec.name]
        raise _MistakeError(f"{_said(error, path.resolve())}; expected a file that can be imported") from error
    finally:
        sys.dont_write_bytecode = writes
    return module


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            wanted = "expected the name of a module that can be imported, or the path of a .py file"
            raise _MistakeError(f"there is no module of this name; {wanted}") from error
        raise _MistakeError(f"{_said(error)}; expected a module that can be imported") from error
    except (Exception, SystemExit) as error:
        raise _MistakeError(f"{_said(error)}; expected a module that can be imported") from error


def _said(error: BaseException, path: Path | None = None) -> str:
    """Return an error in one line, with the line of the file `path` in which it arose."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f"line {error.lineno}: SyntaxError: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f"line {frames[-1].lineno}: " if frames else ""
    return f"{where}{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def _checked(given: object, origin: Plugin | None = None) -> tuple[Implementation, ...]:
    """Return implementations that cannot end a sweep, whatever their functions raise.

    Raises:
        _MistakeError: the first thing that is not as the bench needs it.
    """
    if not isinstance(given, (tuple, list)):
        raise _MistakeError(f"IMPLEMENTATIONS is {_article(given)}; expected {EXPECTED}")
    if not given:
        raise _MistakeError(f"IMPLEMENTATIONS is empty; expected {EXPECTED}")
    for place, impl in enumerate(given):
        if not isinstance(impl, Implementation):
            hint = "expected an Implementation, such as tflabench.plugin.mlstm_kernel returns"
            raise _MistakeError(f"IMPLEMENTATIONS[{place}] is {_article(impl)}; {hint}")
        if mistake := next(_mistakes(impl), None):
            raise _MistakeError(f"IMPLEMENTATIONS[{place}]: {mistake}")
    return tuple(_guarded(replace(impl, plugin=origin)) for impl in given)


def _article(value: object) -> str:
    kind = type(value).__name__
    return "None" if value is None else f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def _mistakes(impl: Implementation) -> Iterator[str]:
    """Yield what is wrong with the fields of an implementation, which no type checker may have seen."""
    for field, (is_right, expected) in VALUES.items():
        if not is_right(value := getattr(impl, field)):
            yield f"{field} is {value!r}; expected {expected}"
    for field in ("build", "refuses"):
        if not callable(value := getattr(impl, field)):
            yield f"{field} is {_article(value)}; expected a function (problem, device)"
    for field in ("imports", *RETURNS):
        if (value := getattr(impl, field)) is not None and not callable(value):
            yield f"{field} is {_article(value)}; expected a function, or None"


def _is_name(value: object) -> bool:
    return isinstance(value, str) and NAME.fullmatch(value) is not None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.strip() != ""


def _is_amount(value: object) -> bool:
    """Return whether a value is a number that can be counted with: not negative, no NaN, not infinite."""
    return isinstance(value, Real) and 0 <= float(value) < inf


def _one_of(choices: tuple[object, ...]) -> tuple[Callable[[Any], bool], str]:
    return choices.__contains__, f"one of {', '.join(map(str, choices))}"


# Field -> whether a value is right, and what is expected.
VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (_is_name, "letters, digits, '_', '-' and '.' only"),
    "title": (_is_text, "the words of a legend"),
    "family": _one_of(get_args(Family)),
    "formulation": _one_of(get_args(Formulation)),
    "gate": _one_of(("exp", "sig", None)),
    "package": (_is_text, "the name of a distribution"),
    "packages": (
        lambda names: isinstance(names, (tuple, list)) and all(map(_is_text, names)),
        "a tuple of distributions",
    ),
    "version": (lambda version: version is None or type(version) is int, "a whole number, or None"),
    "majors": (
        lambda pair: pair is None or (isinstance(pair, (tuple, list)) and [type(end) for end in pair] == [int, int]),
        "the lowest and the highest major compute capability, or None",
    ),
}  # fmt: skip
# Field that is a function, or None -> whether what it returns is right, and what is expected.
RETURNS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "cost": (
        lambda cost: isinstance(cost, Cost) and _is_amount(cost.flops) and _is_amount(cost.bytes),
        "a Cost of FLOPs and bytes, both finite",
    ),
    "usual_chunk_size": (
        lambda size: size is None or (isinstance(size, Integral) and int(size) >= 1),
        "an integer, 1 or more, or None",
    ),
    "workspace_bytes": (_is_amount, "a number of bytes"),
    "shared_bytes": (_is_amount, "a number of bytes"),
}


def _guarded(impl: Implementation) -> Implementation:
    """Return the implementation with functions that raise nothing but what the bench expects of them."""

    def refuses(problem: Problem, device: str) -> str | None:
        try:
            reason: object = impl.refuses(problem, device)
        except Exception as error:
            return f"its refuses raised {_said(error)}"
        if reason is None:
            return None
        if isinstance(reason, str):
            return " ".join(reason.split()) or None
        return f"its refuses returned {reason!r}; expected None or a reason in one line"

    returns = {field: partial(_returned, impl, field) for field in RETURNS if getattr(impl, field) is not None}
    return replace(impl, refuses=refuses, **returns)


def _returned(impl: Implementation, field: str, *arguments: object) -> object:
    """Return what a function of an implementation returns.

    Raises:
        InputError: it raises, or returns something else than is expected.
    """
    is_right, expected = RETURNS[field]
    try:
        value: object = getattr(impl, field)(*arguments)
        right = is_right(value)
    except Exception as error:
        raise InputError(f"the {field} of {impl.name} raised {_said(error)}; expected {expected}") from error
    if right:
        return value
    raise InputError(f"the {field} of {impl.name} is {value!r}; expected {expected}")


def sources_hash(module: ModuleType, folder: Path | None = None) -> str | None:
    """Return 12 hexadecimal digits of the sources of a module; None where it has no file.

    They are its file and what import statements in it name, at any depth, of the modules and packages in its folder.
    What it imports by other means, or reads while it runs, is not seen. Nothing of this package is of it.

    Args:
        folder: that is searched; None for the one that the module's name begins in.
    """
    if not module.__file__:
        return None
    start = Path(module.__file__).resolve()
    if folder is None:
        folder = start.parents[module.__name__.count(".") + (start.name == "__init__.py")]
    within = folder / module.__name__.partition(".")[0] if LIBRARIES & set(folder.parts) else folder
    sources, unread = {start: start.read_bytes()}, [start]
    while unread:
        file = unread.pop()
        for other in _imported(file, sources[file], folder):
            if other not in sources and other.is_file() and within in other.parents and PACKAGE not in other.parents:
                sources[other] = other.read_bytes()
                unread.append(other)
    digest = hashlib.sha256()
    for file in sorted(sources):
        digest.update(f"{file.relative_to(folder)}\n".encode())
        digest.update(sources[file].replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:12]


def _imported(file: Path, source: bytes, folder: Path) -> Iterator[Path]:
    """Yield the files that the import statements of a file may mean in a folder, whether they exist or not."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # it may never be imported
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(folder, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = file.parents[node.level - 1] if node.level else folder
            names = [(base, f"{node.module or ''}.{alias.name}".strip(".")) for alias in node.names]
        else:
            continue
        for base, name in names:
            parts = name.split(".")
            for end in range(len(parts) + 1):
                place = base.joinpath(*parts[:end])
                yield place / "__init__.py"
                yield place.with_name(f"{place.name}.py")
