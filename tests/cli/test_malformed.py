"""What cannot be read or run ends with exit code 2 and one line, and costs no row that was measured."""

from __future__ import annotations

import hashlib
import sys
import warnings
from pathlib import Path

import pytest
from commands import on_a_cpu, refused
from synthetic import row, write

from tflabench.bench import workers
from tflabench.bench.station import Station
from tflabench.implementations import registry

MAKES = "from tflabench.plugin import Implementation, mlstm_kernel\n"
FILES = {
    "a_file": "hello\n",
    "torn.toml": 'title = "a',
    "odd_axis.toml": 'title = "a"\naxes = { seq_len = "long" }\n[[group]]\n',
    "odd_protocol.toml": 'title = "a"\nprotocol = { cpu = "slow" }\n[[group]]\n',
    "raises.py": "raise RuntimeError('two\\nlines')\n",
    "exits.py": "import sys; sys.exit(0)\n",
    "endless.py": f"{MAKES}import itertools\nIMPLEMENTATIONS = itertools.repeat(1)\n",
    "taken.py": f"{MAKES}IMPLEMENTATIONS = (mlstm_kernel('sdpa', print, gate='sig'),)\n",
    "odd_gate.py": f"{MAKES}IMPLEMENTATIONS = (mlstm_kernel('mine', print, gate='tanh'),)\n",
    "list/journal.jsonl": "[]\n",
    "version/journal.jsonl": '{"schema_version": 99}\n',
    "half/journal.jsonl": '{"schema_version": 4, "point": "a"}\n',
    "torn/journal.jsonl": '{"schema_version": 4',
}
WRONG = [
    ("sweep", "--device", "cpu", "--out", "a_file/below"),
    ("sweep", "--device", "cpu", "--out", "list"),
    ("sweep", "--preset", "torn.toml"),
    ("sweep", "--preset", "odd_axis.toml"),
    ("sweep", "--preset", "odd_protocol.toml"),
    ("sweep", "--plugin", "raises.py"),
    ("sweep", "--plugin", "exits.py"),
    ("sweep", "--plugin", "endless.py"),
    ("sweep", "--plugin", "taken.py"),
    ("list", "--plugin", "odd_gate.py"),
    ("sweep", "-a", "seq_len=64:128:x1"),
    ("sweep", "--tuned-from", "odd_runs"),
    ("sweep", "--tune-seconds", "nan,"),
    ("plot", "version"),
    ("plot", "rows", "--highlight", ","),
    ("plot", "rows", "--what", "runtme"),
    ("plot", "rows", "--format", "gif"),
    ("compare", "half", "rows"),
    ("claims", "torn"),
    ("rows", "merge", "rows", "--into", "odd_runs"),
    ("theory", "fig17", "--overlay", "odd_runs"),
]


@pytest.fixture(autouse=True)
def _nothing_measures(tmp_path, monkeypatch):
    """A folder with measured rows and what cannot be read, on a machine where nothing can be measured."""
    on_a_cpu(tmp_path, monkeypatch)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in ("rows", "odd_runs"):
        write(tmp_path / name, [row(), row("sdpa"), row(ms=None, seq_len=8192), row(pass_="fwbw")])
    (tmp_path / "odd_runs" / "environment.json").write_text('{"runs": 3}')
    monkeypatch.setattr(Station, "_open", lambda *_: pytest.fail("it measures"))
    monkeypatch.setattr(workers, "spawn_worker", lambda *_: pytest.fail("it measures"))
    monkeypatch.setattr(registry, "_plugged", [])
    monkeypatch.setattr(registry, "_by_plugin", {})

    def show(message, category, filename, lineno, file=None, line=None):
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))

    monkeypatch.setattr(warnings, "showwarning", show)  # a warning is a line too, which pytest would keep


def digests(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_it_is_one_line_and_code_2_and_no_row_is_lost(tmp_path, words):
    before = digests(tmp_path)
    refused(list(words), "")
    after = digests(tmp_path)
    assert {path: after.get(path) for path in before} == before


@pytest.mark.parametrize("text", ["{", '{"Some CPU, 2 cores": {"bfloat16": {}}}', "\0\xff"])
def test_stored_ceilings_that_mean_nothing_are_named(tmp_path, monkeypatch, text):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "tflabench").mkdir()
    (tmp_path / "tflabench" / "ceilings.json").write_text(text)
    refused(["gpus"], "ceilings.json")
