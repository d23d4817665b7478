"""Triton's interpreter, in half the time."""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace


def interpret_quickly() -> None:
    """Leave out what Triton's interpreter does again and again: two thirds of the time of what runs in it.

    It patches the language at every call from one kernel function to another, though it is patched since the launch;
    it looks for sums of integers that overflow, which those of small tests do not; it makes a table for every dtype.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    patch_lang, np_dtype = interpreter._patch_lang, functools.cache(interpreter._get_np_dtype)
    seen_by_all = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    interpreter._patch_lang = lambda _fn: patch_lang(seen_by_all)
    interpreter.InterpretedFunction.__call__ = lambda self, *args, **named: self.rewrite()(*args, **named)
    interpreter._get_np_dtype = lambda dtype: np_dtype(tl.uint64 if dtype.scalar.is_ptr() else dtype.scalar)
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
