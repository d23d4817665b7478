"""Compiles a kernel for a GPU that need not be there, and keeps what the assembler says of it."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget


def assembled(source: Any, sm: int, options: dict[str, Any]) -> tuple[Any, str]:
    """What `triton.compile` makes of the source, and the log of ptxas: registers, spills, warnings."""
    knobs.compilation.always_compile = True  # out of the cache there would be no log
    knobs.nvidia.dump_ptxas_log = True
    with redirect_stdout(io.StringIO()) as log:
        done = triton.compile(source, target=GPUTarget("cuda", sm, 32), options=options)
    assert "bytes spill" in log.getvalue(), log.getvalue()
    return done, log.getvalue()
