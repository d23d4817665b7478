"""The layout holds: which package may import which, what stays light, and the import names that others rely on."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from repository import ROOT

import tflabench

PACKAGE = ROOT / "tflabench"

# Folders (and files) of tflabench/ from the top down: a module imports from its own and from those below, never above.
LAYERS = (
    "__main__",
    "cli",
    "api",
    "progress",
    "report",
    "figures",
    "conclusions",
    "bench",
    "selection",
    "rows",
    "baselines",
    "plugin",
    "implementations",
    "theory",
    "problem",
    "integrations",
    "ops",
    "kernels",
)
HEAVY = ["torch", "triton"]
PLAN = "tflabench.kernels.scalar.plan"
# Plain numbers, which may be read wherever kernels may not be imported.
PLAIN = (
    PLAN,
    "tflabench.kernels.gla.plan",
    "tflabench.kernels.gla.hopper_plan",
    "tflabench.kernels.delta.hopper_plan",
    "tflabench.kernels.kda.hopper_plan",
    "tflabench.kernels.common.sizes",
    "tflabench.kernels.common.tiling",
)
# module prefix -> libraries and packages it must never import, at any depth of the file
FORBIDDEN = {
    "tflabench.kernels": ["tflabench.problem", "typer", "pandas", "matplotlib"],
    **{plain: [*HEAVY, "numpy", "tflabench.kernels.types"] for plain in PLAIN},
    "tflabench.theory": [*HEAVY, "pandas", "matplotlib", "tflabench.kernels"],
    "tflabench.rows": [*HEAVY, "matplotlib", "tflabench.kernels", "tflabench.implementations", "tflabench.theory"],
    "tflabench.selection": [*HEAVY, "pandas", "matplotlib", "tflabench.kernels", "tflabench.rows"],
    "tflabench.conclusions": [*HEAVY, "matplotlib", "tflabench.kernels", "tflabench.bench"],
    "tflabench.figures": [*HEAVY, "tflabench.kernels"],
    "tflabench.report": [*HEAVY, "tflabench.kernels", "tflabench.bench"],
    "tflabench.bench.measure": ["tflabench.kernels", "tflabench.implementations"],
    "tflabench.cli": [*HEAVY, "tflabench.kernels", "tflabench.api"],
    "tflabench.api": ["typer", "tflabench.cli"],
}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def modules() -> list[tuple[str, Path]]:
    """Every module of the package by import name, through the links to kernels/ and baselines/."""
    found = []
    for folder, _, files in os.walk(PACKAGE, followlinks=True):
        for file in files:
            if file.endswith(".py"):
                path = Path(folder) / file
                parts = path.relative_to(ROOT).with_suffix("").parts
                found.append((".".join(p for p in parts if p != "__init__"), path))
    return sorted(found)


@cache
def imports(path: Path, name: str) -> set[str]:
    """Everything the file imports, wherever it does, type-checking blocks left out."""
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name if path.name == "__init__.py" else name.rpartition(".")[0]
                for _ in range(node.level - 1):
                    package = package.rpartition(".")[0]
                base = f"{package}.{base}".rstrip(".")
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree(path))
    return names


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def layer(name: str) -> int:
    """Return how far down a module of tflabench lies."""
    return LAYERS.index(name.split(".")[1])


def test_every_module_belongs_to_a_layer():
    assert {name.split(".")[1] for name, _ in modules() if name != "tflabench"} == set(LAYERS)


def test_arrows_point_down():
    wrong = [
        f"{name} imports {target}"
        for name, path in modules()
        if name != "tflabench"
        for target in imports(path, name)
        if within(target, "tflabench") and target.count(".") and target.split(".")[1] in LAYERS
        if layer(target) < layer(name)
    ]
    assert not wrong, "\n".join(sorted(wrong))


def test_no_circle_of_modules():
    """Imports at any depth of a file count, so that no circle hides inside a function."""
    paths = dict(modules())
    arrows = {name: {t for t in imports(path, name) if t in paths and t != name} for name, path in paths.items()}
    packages = {name for name in paths if paths[name].name == "__init__.py"}
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name not in done:
            for target in arrows[name] - packages:
                visit(target, (*way, name))
            done.add(name)

    for name in paths:
        visit(name, ())


def test_nothing_imports_what_is_forbidden_to_it():
    wrong = [
        f"{name} imports {target}"
        for name, path in modules()
        for prefix, banned in FORBIDDEN.items()
        if within(name, prefix)
        for target in imports(path, name)
        if any(within(target, ban) for ban in banned) and not any(within(target, plain) for plain in PLAIN)
    ]
    assert not wrong, "\n".join(sorted(wrong))


def named() -> set[str]:
    """Return the names of families, gates and operations."""
    from tflabench.implementations import registry
    from tflabench.kernels.families import FAMILIES

    operations = {impl.operation for impl in registry.implementations() if impl.owner.role == "ours"}
    gates = {impl.gate for impl in registry.implementations()}
    return {name for name in {*FAMILIES, *operations, *gates} if name}


def test_nothing_compares_with_the_name_of_a_family_or_gate():
    """Only what defines gates does, and adapters of libraries, whose gates are their own."""
    defining = ("tflabench.kernels.types", "tflabench.kernels.scalar", "tflabench.kernels.gla", "tflabench.baselines")
    names, wrong = named(), []
    assert {"gla", "scalar", "exp", "mamba2"} <= names
    for module, path in modules():
        if any(within(module, prefix) for prefix in defining):
            continue
        for node in ast.walk(tree(path)):
            sides: list[ast.expr | ast.pattern] = (
                [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            )
            if isinstance(node, ast.match_case):
                sides = [node.pattern]
            constants = [(x.lineno, x.value) for side in sides for x in ast.walk(side) if isinstance(x, ast.Constant)]
            wrong += [f"{module}:{line} compares with {x!r}" for line, x in constants if x in names]
    assert not wrong, "\n".join(wrong)


def run(code: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, **options)


@pytest.mark.parametrize(
    ("argv", "banned"),
    [
        (["--help"], ["torch", "pandas", "numpy", "matplotlib", "pyarrow"]),
        (["sweep", "--help"], ["torch", "pandas", "matplotlib"]),
        (["gpus"], ["torch", "pandas", "matplotlib"]),
        (["optimal-chunk", "--gpu", "H100", "--d-hv", "512", "--d-qk", "256"], ["torch", "pandas", "matplotlib"]),
    ],
)
def test_commands_import_only_what_they_need(argv, banned):
    code = f"""
import sys
sys.argv = ["tflabench", *{argv!r}]
from tflabench.__main__ import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("LOADED", [m for m in {banned!r} if m in sys.modules])
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "LOADED []"


def test_the_folder_kernels_does_not_hide_the_package_of_that_name(tmp_path):
    """transformers, which fla needs, imports a distribution called `kernels`; ours must never answer to that name."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("REAL = True\n")
    for place in (ROOT / "kernels", ROOT / "baselines"):
        assert not (place / "__init__.py").exists(), f"{place.name}/__init__.py would hide the package {place.name}"
    code = "import kernels, tflabench.kernels.types; assert kernels.REAL, kernels.__path__"
    done = run(code, cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"})
    assert done.returncode == 0, done.stderr


def test_started_in_the_checkout_the_name_kernels_is_free():
    """With no such distribution, `find_spec('kernels')` must say None, or transformers believes that it has one."""
    code = """
import importlib.util, sys
from tflabench.__main__ import leave_repository_root
leave_repository_root()
import tflabench.kernels.types
spec = importlib.util.find_spec("kernels")
assert spec is None or "tflabench" not in str(list(spec.submodule_search_locations or [])), spec
"""
    done = run(code, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_fla_and_transformers_import_in_the_checkout():
    done = run("import fla.ops, transformers; print(fla.__version__)", cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_links_lead_to_the_top_level_folders():
    for name in ("kernels", "baselines"):
        link = PACKAGE / name
        assert link.is_symlink()
        assert os.readlink(link) == f"../{name}"
    assert Path(tflabench.__file__).resolve().parent == PACKAGE
