"""What is said of the machine and the sources behind a row."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tflabench
from tflabench.bench import machine


def said(**variables: str) -> str:
    """What `assembler` says of sm_80 in a process with these variables."""
    code = "from tflabench.bench.machine import assembler; print(assembler(80))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | variables, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_assembler_is_named_with_its_version_and_origin(tmp_path: Path) -> None:
    get_ptxas = pytest.importorskip("triton.backends.nvidia.compiler").get_ptxas
    own = get_ptxas(80)
    assert said() == f"{own.version} of Triton"
    other = tmp_path / "ptxas"
    shutil.copy(own.path, other)
    assert said(TRITON_PTXAS_PATH=str(other)) == f"{own.version} of {other}"


def forget() -> None:
    machine.commit.cache_clear()
    machine.source_hash.cache_clear()


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing is remembered of other tests, nor after this one."""
    forget()
    yield
    forget()


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package without .git, that this process takes for its own; its links are folders."""
    package = Path(tflabench.__file__).resolve().parent
    shutil.copytree(package, tmp_path / "tflabench", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(tflabench, "__file__", str(tmp_path / "tflabench" / "__init__.py"))
    return tmp_path / "tflabench"


@pytest.mark.usefixtures("fresh")
def test_a_copy_over_another_checkout_is_what_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TFLABENCH_COMMIT", raising=False)
    found = machine.commit()
    monkeypatch.setenv("TFLABENCH_COMMIT", "0123456789ab")
    assert machine.commit() == found, "asked once a process"
    machine.commit.cache_clear()
    assert machine.commit() == "0123456789ab" != found


@pytest.mark.usefixtures("fresh", "copy")
def test_a_copy_without_git_has_no_commit_unless_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TFLABENCH_COMMIT", raising=False)
    assert machine.commit() is None


@pytest.mark.usefixtures("fresh")
def test_the_commit_is_that_of_the_checkout_and_says_where_files_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which("git"):
        pytest.skip("needs git")
    monkeypatch.delenv("TFLABENCH_COMMIT", raising=False)
    (tmp_path / "tflabench").mkdir()
    source = tmp_path / "tflabench" / "__init__.py"
    source.write_text("")
    monkeypatch.setattr(tflabench, "__file__", str(source))

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", "-C", tmp_path, *who, *arguments], capture_output=True, text=True, check=True
        ).stdout

    git("init")
    git("add", ".")
    git("commit", "-m", "x")
    head = git("rev-parse", "HEAD")[:12]
    assert machine.commit() == head
    source.write_text("changed = 1")
    machine.commit.cache_clear()
    assert machine.commit() == f"{head}+"


def hashed() -> str:
    machine.source_hash.cache_clear()
    return machine.source_hash()


@pytest.mark.usefixtures("fresh")
def test_sources_have_the_same_hash_wherever_they_lie(request: pytest.FixtureRequest) -> None:
    own = hashed()
    assert re.fullmatch("[0-9a-f]{12}", own)
    copy = request.getfixturevalue("copy")
    assert hashed() == own, "from a copy without .git, whose kernels are no link"
    for path in (copy / "kernels").rglob("*.py"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    (copy / "kernels" / "README.md").write_text("anything")
    (copy / "kernels" / "__pycache__").mkdir()
    (copy / "kernels" / "__pycache__" / "api.pyc").write_bytes(b"anything")
    (copy / "theory" / "cost.py").write_text("anything")
    assert hashed() == own, "neither line ends, nor what decides no time"


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    "name",
    [
        "kernels/api.py",
        "kernels/scalar/plan/tfla.py",
        "baselines/sdpa.py",
        "bench/timing.py",
        "implementations/mlstm.py",
    ],
)
def test_a_byte_of_what_decides_a_time_changes_the_hash(copy: Path, name: str) -> None:
    before = hashed()
    source = copy / name
    whole = source.read_bytes()
    source.write_bytes(whole + b"#")
    assert machine.source_hash() == before, "asked once a process"
    assert hashed() != before
    source.write_bytes(whole)
    assert hashed() == before
    source.rename(source.with_stem("another_name"))
    assert hashed() != before


def test_a_command_is_written_down_without_the_folder_of_its_results(monkeypatch):
    folders = ["--out", "/home/me/rows", "--out=/home", "--results", "/home/me", "--results=/home"]
    monkeypatch.setattr("sys.argv", ["tflabench", "sweep", *folders[:2], "-a", "seq_len=512", *folders[2:]])
    assert machine.command() == ["sweep", "-a", "seq_len=512"]
