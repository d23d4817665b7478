"""Triton's interpreter, in half the time."""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import numpy as np


def interpret_quickly() -> None:
    """Leave out what Triton's interpreter does again and again: most of the time of what runs in it.

    It patches the language at every call from one kernel function to another, though it is patched since the launch;
    it looks for sums of integers that overflow, which those of small tests do not; it makes a table for every dtype,
    and the shape of every tensor anew; it broadcasts what has one shape; it scans element by element.
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
    _make_shapes_once()
    semantic: Any = interpreter.interpreter_semantic
    broadcast = semantic.broadcast_impl_value

    def broadcast_unlike(x: Any, y: Any) -> tuple[Any, Any]:
        return (x, y) if _sizes(x.type) == _sizes(y.type) else broadcast(x, y)

    semantic.broadcast_impl_value = broadcast_unlike
    interpreter.ScanOps.generic_scan = _scan  # type: ignore[assignment]


def _sizes(type_: Any) -> list[int] | None:
    return type_.shape.values if type_.is_block() else None


def _make_shapes_once() -> None:
    """Keep what a shape is to Triton's types and tensors."""
    import triton.language as tl

    core: Any = tl.core
    describe = core.block_type.__init__

    @functools.cache
    def of_type(sizes: tuple[int, ...], element: str) -> dict[str, Any]:
        made = SimpleNamespace()
        describe(made, element, list(sizes))
        return {name: value for name, value in vars(made).items() if name != "element_ty"}

    def make_type(self: Any, element_ty: Any, shape: Any) -> None:
        self.element_ty = element_ty
        self.__dict__ |= of_type(tuple(core._unwrap_shape(shape)), str(element_ty))

    @functools.cache
    def of_tensor(sizes: tuple[int, ...]) -> dict[str, Any]:
        numel = core.constexpr(int(np.prod(sizes, dtype=int)))
        return {"numel": numel, "shape": core.tuple([core.constexpr(size) for size in sizes])}

    def make_tensor(self: Any, handle: Any, type: Any) -> None:
        sizes = tuple(type.shape.values) if type.is_block() else ()
        self.__dict__ |= {"handle": handle, "type": type, "dtype": type.scalar, **of_tensor(sizes)}

    core.block_type.__init__ = make_type
    core.tensor.__init__ = make_tensor


def _scan(scan: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """Scan all elements at once, in as many steps as twice the distance makes of them."""
    data = [x.handle.data for x in inputs]
    along = [1] * data[0].ndim
    along[scan.axis] = -1
    place, distance = np.arange(data[0].shape[scan.axis]).reshape(along), 1
    while distance < data[0].shape[scan.axis]:
        before = [np.roll(x, distance, scan.axis) for x in data]
        tensors = [scan.to_tensor(x, y.dtype) for part in (before, data) for x, y in zip(part, inputs, strict=False)]
        made = scan.combine_fn.fn(*tensors)
        made = made if isinstance(made, tuple) else (made,)
        data = [np.where(place >= distance, x.handle.data, y) for x, y in zip(made, data, strict=True)]
        distance *= 2
    return [scan.to_tensor(x, y.dtype) for x, y in zip(data, inputs, strict=True)]
