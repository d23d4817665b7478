"""The layout holds: which package may import which, what stays light, and the import names that others rely on."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tflabench

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tflabench"

OUTER = [
    f"tflabench.{name}" for name in "bench cli executor plots registry report store summary sweep verify worker".split()
]
BENCH = [*OUTER, *(f"tflabench.{name}" for name in "adapter bundled machine measure problem".split())]
HEAVY = ["torch", "triton"]
# module prefix -> prefixes it must never import, at any depth of the file
FORBIDDEN = {
    "tflabench.kernels": [*BENCH, "tflabench.baselines", "tflabench.analysis", "typer", "pandas", "matplotlib"],
    "tflabench.baselines": OUTER,
    "tflabench.analysis": [*HEAVY, "matplotlib", "tflabench.kernels", "tflabench.baselines", *OUTER],
    "tflabench.store": [*HEAVY, "tflabench.kernels", "tflabench.baselines", "tflabench.cli"],
    "tflabench.plots": [*HEAVY, "tflabench.kernels", "tflabench.baselines", "tflabench.cli", "tflabench.report"],
    "tflabench.report": [*HEAVY, "tflabench.kernels", "tflabench.baselines", "tflabench.cli"],
    "tflabench.measure": ["tflabench.kernels", "tflabench.baselines", "tflabench.registry", "tflabench.cli"],
    "tflabench.cli": HEAVY,
}


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

    visit(ast.parse(path.read_text()))
    return names


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def test_arrows_between_packages_point_one_way():
    wrong = [
        f"{name} imports {target}"
        for name, path in modules()
        for prefix, banned in FORBIDDEN.items()
        if within(name, prefix)
        for target in imports(path, name)
        if any(within(target, ban) for ban in banned)
    ]
    assert not wrong, "\n".join(sorted(wrong))


def test_every_rule_guards_something():
    names = [name for name, _ in modules()]
    assert [prefix for prefix in FORBIDDEN if not any(within(name, prefix) for name in names)] == []


def run(code: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, **options)


@pytest.mark.parametrize(
    ("argv", "banned"),
    [
        (["--help"], ["torch", "pandas", "numpy", "matplotlib", "pyarrow"]),
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


def test_help_is_quick():
    """Best of three, in processor time: the wall clock of a busy machine says nothing of the program."""
    best = float("inf")
    for _ in range(3):
        before, start = os.times(), time.perf_counter()
        subprocess.run([sys.executable, "-m", "tflabench", "--help"], check=True, capture_output=True)
        wall, after = time.perf_counter() - start, os.times()
        used = after.children_user - before.children_user + after.children_system - before.children_system
        best = min(best, used, wall)
    assert best < 0.5, f"tflabench --help took {best:.2f} s"


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
