"""The sources of a plugin, as one hash: its file and all that it imports from its folder."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import tflabench

PACKAGE = Path(tflabench.__file__).resolve().parent
LIBRARIES = {"site-packages", "dist-packages"}


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
