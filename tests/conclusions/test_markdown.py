"""How a page is written: whole, in UTF-8, and through what stands in its place."""

from __future__ import annotations

import os
import subprocess
import sys


def test_it_is_utf_8_in_any_locale_and_never_half_written(tmp_path):
    code = (
        "import sys, pathlib; from tflabench.conclusions.markdown import write_page; "
        "write_page(pathlib.Path(sys.argv[1]), chr(8224))"
    )
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.md")], env=os.environ | ascii_only, check=True)
    assert (tmp_path / "a.md").read_bytes() == "\u2020".encode()
    assert [path.name for path in tmp_path.iterdir()] == ["a.md"]
