"""Whatever is typed wrong ends with exit code 2 and one line, and costs no row that was measured.

The cases come from the commands themselves: every command with options that it does not have or that lack a value,
every option with values that mean nothing, every path with what cannot be read. A fixed seed picks those that run, to
take less than a minute. What once went wrong stands in FOUND and always runs. Commands run in this process, where
nothing can measure; SHELL has those that a process of its own must refuse as well.
"""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synthetic import row, write
from typer.main import get_command
from typer.testing import CliRunner

from tflabench.bench import machine, workers
from tflabench.bench.machine import Machine
from tflabench.bench.station import Station
from tflabench.cli.main import app
from tflabench.implementations import registry

Words = tuple[str, ...]
SEED, CASES = 34, 200
ROWS = "rows"  # the results folder that no case may change; `place` makes it, and the files named below

# What each command is called with beside what is wrong, so that nothing else is. Folders are those of `place`.
USUAL: dict[str, Words] = {
    "sweep": ("--out", "new", "-a", "head_dim=16"),
    "verify": ("--out", "new", "-a", "head_dim=16"),
    "calibrate": (),
    "profile": (),
    "reproduce": ("--results", ROWS, "--out", "figures"),
    "plot": (ROWS, "--out", "figures"),
    "report": (ROWS, "--out", "page.html"),
    "compare": (ROWS, "others"),
    "claims": (ROWS,),
    "optimal-chunk": ("--gpu", "H100"),
    "roofline": ("--gpu", "H100"),
    "theory": ("fig17",),
    "advise": ("--gpu", "H100"),
    "transfer": ("--figure", "3", "--step", "5", "--seq-len", "8"),
    "gpus": (),
    "list": (),
    "cache": (),
    "cache clear": (),
    "rows merge": ("others", "--into", ROWS),
    "rows pack": ("others",),
}
NUMBERS = ("1e21", "-0", "nan", "inf", "-inf", "-1", "", "x", "0x10", "1,5")
INTEGERS = (*NUMBERS, "1.5", str(10**21), "1e3")
TEXTS = ("", " ", "nonsense", "nan,", ",", "-0")
AXES = (
    "", "seq_len", "seq_len=", "seq_len=0", "seq_len=-1", "seq_len=-0", "seq_len=1e21", "seq_len=nan", "seq_len=inf",
    "seq_len=a", "seq_len=1.5", "seq_len=64:32:x2", "seq_len=64:128", "seq_len=64:128:x1", "seq_len=64:128:x0",
    "seq_len=64:128:+0", "seq_len=1:1000000000:+1", "seq_len=64,", "=64", "T=64", "seqlen=64", "dtype=int8", "dtype=",
    "pass=up", "heads=0", "d_hv=100000000", "chunk_size=0", "inputs=zeros", "seed=-1", "batch=99999999999",
)  # fmt: skip
# File of `place` -> what it holds. All are no presets, no plugins, and no rows.
PRESETS = {
    "empty.toml": "",
    "torn.toml": 'title = "a',
    "binary.toml": "\0\1\2",
    "untitled.toml": "[[group]]\n",
    "groupless.toml": 'title = "a"\n',
    "group_of_text.toml": 'title = "a"\ngroup = "b"\n',
    "groups_of_numbers.toml": 'title = "a"\ngroup = [1, 2]\n',
    "odd_title.toml": "title = 3\n[[group]]\n",
    "odd_axes.toml": 'title = "a"\naxes = 3\n[[group]]\n',
    "odd_axis.toml": 'title = "a"\naxes = { seq_len = "long" }\n[[group]]\n',
    "odd_value.toml": 'title = "a"\n[[group]]\nseq_len = { a = 1 }\n',
    "no_number.toml": 'title = "a"\n[[group]]\nseq_len = nan\n',
    "odd_field.toml": 'title = "a"\nwishes = 3\n[[group]]\n',
    "odd_device.toml": 'title = "a"\n[[group]]\ndevice = "tpu"\n',
    "odd_family.toml": 'title = "a"\n[[group]]\nfamily = [1]\n',
    "odd_protocol.toml": 'title = "a"\nprotocol = { cpu = "slow" }\n[[group]]\n',
    "odd_protocols.toml": 'title = "a"\nprotocol = { cpu = 3 }\n[[group]]\n',
    "odd_impl.toml": 'title = "a"\n[[group]]\nimpl = "nonsense"\n',
}
MAKES = "from tflabench.plugin import Implementation, mlstm_kernel\n"
PLUGINS = {
    "torn.py": "def f(:\n",
    "binary.py": "\0\1\2",
    "without.py": "x = 1\n",
    "empty.py": "IMPLEMENTATIONS = ()\n",
    "number.py": "IMPLEMENTATIONS = (1,)\n",
    "nothing.py": "IMPLEMENTATIONS = None\n",
    "endless.py": f"{MAKES}import itertools\nIMPLEMENTATIONS = itertools.repeat(1)\n",
    "classes.py": f"{MAKES}IMPLEMENTATIONS = (Implementation,)\n",
    "raises.py": "raise RuntimeError('two\\nlines')\n",
    "speechless.py": "raise RuntimeError\n",
    "exits.py": "import sys; sys.exit(0)\n",
    "recurses.py": "def f(): f()\nf()\n",
    "imports.py": "import no.such.library\n",
    "itself.py": "import itself\nitself.x\n",
    "odd_gate.py": f"{MAKES}IMPLEMENTATIONS = (mlstm_kernel('mine', print, gate='tanh'),)\n",
    "odd_name.py": f"{MAKES}IMPLEMENTATIONS = (mlstm_kernel('two words', print, gate='sig'),)\n",
    "odd_build.py": f"{MAKES}IMPLEMENTATIONS = (Implementation('mine', 'mlstm', 't', 3, print),)\n",
    "odd_title.py": f"{MAKES}IMPLEMENTATIONS = (Implementation('mine', 'mlstm', None, print, print),)\n",
    "taken.py": f"{MAKES}IMPLEMENTATIONS = (mlstm_kernel('sdpa', print, gate='sig'),)\n",
    "arguments.py": f"{MAKES}IMPLEMENTATIONS = (mlstm_kernel(),)\n",
    "odd_code.py": "# -*- coding: nonsense -*-\n",
}
JOURNALS = {
    "no_json": "nonsense\n",
    "a_number": "3\n",
    "a_list": "[]\n",
    "no_version": "{}\n",
    "another_version": '{"schema_version": 99}\n',
    "an_odd_version": '{"schema_version": "three"}\n',
    "half_a_row": '{"schema_version": 4, "point": "a"}\n',
    "no_whole_line": '{"schema_version": 4',
    "binary": "\0\1\2\n",
    "empty": "",
}
ENVIRONMENTS = {
    "no_json": "{",
    "a_list": "[]",
    "no_runs": "{}",
    "odd_runs": '{"runs": 3}',
    "odd_run": '{"runs": {"run": 3}}',
}
CEILINGS = ("{", "", "[]", '"text"', '{"Some CPU, 2 cores": 3}', '{"Some CPU, 2 cores": {"bfloat16": {}}}', "\0\xff")
UNREADABLE = ("missing", "a_file", "a_folder", *(f"journals/{name}" for name in JOURNALS), "journals/folder")
UNREADABLE = (*UNREADABLE, *(f"environments/{name}" for name in ENVIRONMENTS), "others/journal.jsonl")
UNWRITABLE = ("a_file/below", "/proc/nothing/below", "/dev/null/below")
READS = ("--overlay", "--results", "--in", "--tuned-from", "--into")  # options that name rows

# What once ended in more than a line, with another code than 2, or with rows lost.
FOUND: list[Words] = [
    # a note came before the error
    ("sweep", "--out", "a_file/below"),
    ("sweep", "--out", ROWS),
    ("sweep", "--out", "journals/a_list"),
    ("sweep", "--memory-limit", ","),
    ("sweep", "--tuned-from", "environments/odd_runs"),
    ("reproduce", "--results", "journals/a_number"),
    ("reproduce", "--results", ROWS, "--impl", "nonsense"),
    ("roofline", "--gpu", "H100", "--dtype", "nonsense"),
    # a warning came before the error
    ("claims", "journals/no_whole_line"),
    ("compare", "journals/no_whole_line", "others"),
    # it was not looked at where nothing is measured
    ("reproduce", "--results", ROWS, "--tune-seconds", "nan,"),
    ("reproduce", "--results", "a_file"),
    ("profile", "--keep", "a_file/below"),
    # it was taken for something that means something
    ("theory", "fig17", "--overlay", "environments/odd_run"),
    ("roofline", "--gpu", "H100", "--overlay", "environments/odd_runs"),
    ("plot", ROWS, "--highlight", ","),
    ("sweep", "--jobs=-0"),
    # a traceback, and rows were added before it
    ("rows", "merge", "others", "--into", "environments/no_runs"),
    ("rows", "merge", "others", "--into", "environments/no_json"),
    ("rows", "merge", "others", "--into", "journals/folder"),
]
# Run in a process of its own each: from the shell's words to the exit code.
SHELL: list[Words] = [
    ("sweep", "--timeout", "nan"),
    ("sweep", "--plugin", "plugins/raises.py", "--dry-run"),
    ("plot", "journals/no_json"),
    ("nonsense",),
]


def _commands(group: Any, before: Words = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        words = (*before, name)
        if " ".join(words) in USUAL:
            yield " ".join(words), command
        if hasattr(command, "commands"):
            yield from _commands(command, words)


def _values(param: Any) -> tuple[str, ...]:
    """Return values that an option cannot have."""
    kind = str(param.bare_type() if hasattr(param, "bare_type") else param.type)  # by the version of Typer
    name = param.opts[-1]
    if "int" in kind:
        return INTEGERS
    if "float" in kind:
        return NUMBERS
    if name == "--axis":
        return AXES
    if name == "--plugin":
        return ("", "nonsense", "missing.py", "a_folder", "a_file", *(f"plugins/{name}" for name in PLUGINS))
    if name == "--preset":
        return ("", "nonsense", "missing.toml", "a_folder.toml", "a_file", *(f"presets/{name}" for name in PRESETS))
    if name in READS:
        made = (
            ("missing", "a_folder", "journals/empty", "journals/no_whole_line")
            if name in ("--results", "--into")
            else ()
        )
        return ("", *(path for path in UNREADABLE if path not in made))  # those are what a first sweep starts from
    if name == "--keep":
        return ("", *UNWRITABLE)
    if name == "--out":
        return ("", *UNWRITABLE)
    return TEXTS


def generated() -> Iterator[Words]:
    """Yield the words of every case, command by command."""
    for name, command in _commands(get_command(app)):
        usual = (*name.split(), *USUAL[name])
        options = [param for param in command.params if param.param_type_name == "option"]
        yield (*usual, "--nonsense")
        yield (*usual, "-Z")
        yield from ((*usual, f"{param.opts[-1]}x") for param in options)
        for param in options:
            option = param.opts[-1]
            if param.is_flag:
                yield (*usual, f"{option}=3")
                continue
            yield (*usual, option)
            yield from ((*usual, option, value) for value in _values(param) if not value.startswith("-"))
            yield from ((*usual, f"{option}={value}") for value in _values(param))
        if any(param.opts[-1] == "--axis" for param in options):
            yield (*usual, "-a", "heads=1", "-a", "heads=1")
        folders = [word for word in USUAL[name] if word in (ROWS, "others")]
        if folders and name != "reproduce":
            yield from (tuple(path if word == folders[0] else word for word in usual) for path in UNREADABLE)
        else:
            yield (*usual, "nonsense")
    yield from ((word,) for word in ("nonsense", "swep", "Sweep", "-V", "--verbose", "merge", ""))
    yield from (("rows", "nonsense"), ("cache", "nonsense"), ("cache", "clear", "kernels", "nonsense"))


def _digests(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with measured rows and everything that cannot be read."""
    place = tmp_path_factory.mktemp("place")
    for name in (ROWS, "others"):
        write(place / name, [row(), row("sdpa"), row(ms=None, seq_len=8192), row(pass_="fwbw")])
    (place / ROWS / "rows.parquet").write_bytes(b"PAR1 no table")
    (place / "a_file").write_text("hello\n")
    for folder in ("a_folder", "a_folder.toml", "journals/folder/journal.jsonl"):
        (place / folder).mkdir(parents=True)
    for folder, files in {"presets": PRESETS, "plugins": PLUGINS}.items():
        (place / folder).mkdir()
        for name, text in files.items():
            (place / folder / name).write_text(text)
    for name, text in JOURNALS.items():
        (place / "journals" / name).mkdir()
        (place / "journals" / name / "journal.jsonl").write_text(text)
    for name, text in ENVIRONMENTS.items():
        write(place / "environments" / name, [row()])
        (place / "environments" / name / "environment.json").write_text(text)
    return place


@pytest.fixture(autouse=True)
def nothing_measures(place, monkeypatch):
    """A machine without a GPU on which nothing can be measured, in the folder `place`."""
    for name in ("XDG_CACHE_HOME", "TFLABENCH_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(place / "caches" / name))
    monkeypatch.chdir(place)
    monkeypatch.setattr(machine, "_first_gpu", lambda: None)
    monkeypatch.setattr(machine, "_cpu", lambda: Machine("cpu", "Some CPU, 2 cores", 8 << 30))
    monkeypatch.setattr(Station, "_open", lambda *_: pytest.fail("it measures"))
    monkeypatch.setattr(workers, "spawn_worker", lambda *_: pytest.fail("it measures"))
    monkeypatch.setattr(registry, "_plugged", [])
    monkeypatch.setattr(registry, "_by_plugin", {})

    def show(message, category, filename, lineno, file=None, line=None):
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))

    monkeypatch.setattr(warnings, "showwarning", show)  # a warning is a line too, which pytest would keep


def picked() -> list[Words]:
    """Return CASES cases: what was found, and as many of those generated."""
    every = sorted(set(generated()) - set(FOUND))
    return [*FOUND, *random.Random(SEED).sample(every, CASES - len(FOUND) - len(SHELL) - len(CEILINGS))]


@pytest.mark.parametrize("words", picked(), ids=lambda words: " ".join(words) or "nothing")
def test_it_is_one_line_and_code_2_and_no_row_is_lost(place, words):
    before = _digests(place)
    done = CliRunner().invoke(app, list(words), env={"COLUMNS": "80"}, prog_name="tflabench")
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert isinstance(done.exception, SystemExit)
    assert len(done.stderr.splitlines()) == 1, done.stderr
    after = _digests(place)
    assert {path: after.get(path) for path in before} == before


@pytest.mark.parametrize("text", CEILINGS)
def test_stored_ceilings_that_mean_nothing_are_named(place, monkeypatch, tmp_path, text):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "tflabench").mkdir()
    (tmp_path / "tflabench" / "ceilings.json").write_text(text)
    test_it_is_one_line_and_code_2_and_no_row_is_lost(place, ("gpus",))
    test_it_is_one_line_and_code_2_and_no_row_is_lost(place, ("advise", "--measure", "--seq-len", "512"))


@pytest.mark.parametrize("words", SHELL, ids=" ".join)
def test_a_process_of_its_own_refuses_it_too(place, words):
    before = _digests(place)
    done = subprocess.run([sys.executable, "-m", "tflabench", *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert {path: _digests(place).get(path) for path in before} == before


def test_every_command_is_among_the_cases():
    assert {name for name, _ in _commands(get_command(app))} == set(USUAL)
    assert len(picked()) + len(SHELL) + len(CEILINGS) == CASES
