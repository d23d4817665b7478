"""Where caches lie, how large they are, and what is removed of them."""

from __future__ import annotations

import os
from pathlib import Path

from commands import document, on_a_cpu, output

from tflabench.theory import hardware


def test_it_shows_sizes_and_clears_what_is_named(tmp_path, monkeypatch):
    on_a_cpu(tmp_path, monkeypatch)
    assert output("cache", "clear").count("removed 0 files") == 3
    ceilings = hardware.Ceilings(1e11, 1e10, "measured", "test")
    file = hardware.store_ceilings("Some CPU, 2 cores", "float32", ceilings)
    kernel = Path(os.environ["TRITON_CACHE_DIR"]) / "one" / "kernel.cubin"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(bytes(3 << 20))
    caches = document("cache")
    assert (caches["kernels"]["bytes"], caches["kernels"]["files"]) == (3 << 20, 1)
    assert caches["ceilings"]["path"] == str(file)
    assert "3.0 MiB" in output("cache")
    assert output("cache", "clear", "kernels") == f"kernels: removed 1 files, 3.0 MiB, from {kernel.parent.parent}\n"
    assert not kernel.exists()
    assert file.exists()
    output("cache", "clear")
    assert not file.exists()
