"""What holds for every command: its help, what it says of mistakes, and how it ends where it cannot go on."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import on_a_cpu, output, refused, run

import tflabench
from tflabench.cli.common.app import COMMANDS
from tflabench.cli.common.console import emit

COMMAND = [sys.executable, "-m", "tflabench"]


@pytest.fixture(autouse=True)
def _machine(tmp_path, monkeypatch):
    on_a_cpu(tmp_path, monkeypatch)


def process(*words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], stderr=subprocess.PIPE, text=True, timeout=120, check=False, **options)


@pytest.mark.parametrize("name", [name for below in COMMANDS.values() for name in below])
def test_every_command_has_help(name):
    assert "--help" in output(name, "-h")


def test_version():
    assert output("--version") == f"tflabench {tflabench.__version__}\n"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("sweep --preset paper-fig4", ["paper-fig4", "paper-fig4-matched"]),
        ("verify --preset min", ["mine.toml"]),
        ("roofline --gpu A100,L", ["A100,L4", "A100,L40S"]),
    ],
)
def test_a_shell_completes_commands_presets_and_gpus(tmp_path, words, offered):
    (tmp_path / "mine.toml").touch()
    place = str(len(words.split()))
    done = run(_TFLABENCH_COMPLETE="complete_bash", COMP_WORDS=f"tflabench {words}", COMP_CWORD=place)
    assert done.stdout.split() == offered


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--bogus"], "--bogus"),
        (["sweeep"], "sweep"),
        (["plot"], "DIR"),
        (["roofline", "--gpu="], "--gpu is ''"),
        (["sweep", "--timeout", "0"], "--timeout"),
        (["advise", "--tokens", str(10**21)], "--tokens"),
        (["optimal-chunk", "--memory-budget", "9999999999GiB"], "--memory-budget is '9999999999GiB'"),
        (["sweep", "-a", "seq_len=1", "-a", "seq_len=2"], "axis seq_len is given twice"),
        (["sweep", "--dry-run", "--gpu", "H100", "--device", "cpu"], "--device cpu"),
        (["plot", "a" * 300], "File name too long"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(words, reason):
    refused(words, reason)


@pytest.mark.parametrize("words", [["gpus"], ["--help"], ["advise", "--gpu", "H100", "--json"]])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_one_line_and_code_1(words):
    with open("/dev/full", "w") as full:
        done = process(*words, stdout=full)
    assert (done.returncode, done.stderr) == (1, "tflabench: cannot write: No space left on device\n")


@pytest.mark.parametrize("words", [["gpus"], ["advise", "--gpu", "H100", "--json"]])
def test_a_closed_pipe_is_code_141_without_a_word(words):
    read, write_end = os.pipe()
    os.close(read)
    done = process(*words, stdout=write_end)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_stdout_that_is_closed_or_has_few_characters_ends_in_no_traceback():
    closed = subprocess.run(f"{' '.join(COMMAND)} gpus >&-", shell=True, capture_output=True, text=True, check=False)
    assert (closed.returncode, closed.stderr) == (0, "")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    done = process("gpus", stdout=subprocess.PIPE, env=os.environ | ascii_only)
    assert (done.returncode, done.stderr) == (0, "")
    assert "H100" in done.stdout


def test_a_level_of_the_log_that_is_none_is_one_line_and_2():
    done = process("gpus", stdout=subprocess.DEVNULL, env=os.environ | {"TFLABENCH_LOG": "foo"})
    assert done.returncode == 2
    assert done.stderr.startswith("tflabench: TFLABENCH_LOG is 'foo': it must be one of CRITICAL")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("module", ["tflabench.cli.main", "typer", "tflabench.bench.machine"])
def test_an_interrupt_while_it_imports_is_code_130_without_a_traceback(tmp_path, module):
    """A module that stops the process where the import of another begins."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    done = process(
        "gpus",
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": path},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stderr) == (130, "")


def test_json_has_null_where_a_number_is_none(capsys):
    emit({"a": math.nan, "b": [1.5, math.inf, {"c": (-math.inf, 2)}]}, (), as_json=True)
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [1.5, None, {"c": [None, 2]}]}


def test_a_sweep_needs_no_triton(tmp_path):
    """Which is for Linux alone."""
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder\n"
        "find = PathFinder.find_spec\n"
        "PathFinder.find_spec = lambda name, *rest: None if name.split('.')[0] == 'triton' else find(name, *rest)\n"
    )
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    options = (
        "--impl reference_sig -a seq_len=64 -a d_qk=16 -a d_hv=16 -a chunk_size=64 -a pass=fw --no-plots --out rows"
    )
    env = os.environ | {"PYTHONPATH": path}
    done = process("sweep", *options.split(), cwd=tmp_path, env=env, stdout=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "rows" / "rows.csv").read_text().count(",ok,") == 1
